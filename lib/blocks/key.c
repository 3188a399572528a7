/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/blocks/key.h"

#include "lib/support/mutant.h"

#include <stdlib.h>
#include <string.h>

/* Two words into one: the halves of a 128-bit product. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    return fold(hash ^ 0x2d358dccaa6c78a5u, word ^ 0x8bb84b93962eacc9u);
}

static uint64_t mix_bytes(uint64_t hash, const char *text)
{
    size_t length = strlen(text);
    hash = mix(hash, length);
    for (size_t i = 0; i < length; i++)
        hash = mix(hash, (unsigned char)text[i]);
    return hash;
}

void key_spaces_init(key_spaces *spaces)
{
    *spaces = (key_spaces){.unused = -1};
}

void key_spaces_free(key_spaces *spaces)
{
    for (int32_t i = 0; i < spaces->count; i++)
        free(spaces->items[i].salt_text);
    free(spaces->items);
    id_map_free(&spaces->by_hash);
    key_spaces_init(spaces);
}

/* The name space of a request, with the request's own salt text. */
static key_space describe(const ckv_blocks_request *request)
{
    key_space space = {.uses_extra = request->extra_ids != NULL,
                       .has_lora = request->has_lora != 0,
                       .lora = request->has_lora ? request->lora : 0,
                       .salt_kind = CKV_MUTATE(salt_unread, CKV_BLOCKS_NO_SALT, request->salt_kind),
                       .salt = request->salt_kind == CKV_BLOCKS_SALT_INTEGER ? request->salt : 0,
                       .refs = 1,
                       .next = -1};
    uint64_t hash = mix(0x5bf03635ca6f2cd1u, (uint64_t)space.uses_extra << 1 | (uint64_t)space.has_lora);
    hash = mix(mix(hash, (uint64_t)space.lora), (uint64_t)space.salt_kind);
    hash = mix(hash, (uint64_t)space.salt);
    space.hash = space.salt_kind == CKV_BLOCKS_SALT_TEXT ? mix_bytes(hash, request->salt_text) : hash;
    return space;
}

static bool space_matches(const key_space *a, const key_space *b, const char *b_text)
{
    return a->uses_extra == b->uses_extra && a->has_lora == b->has_lora && a->lora == b->lora &&
           a->salt_kind == b->salt_kind && a->salt == b->salt &&
           (a->salt_kind != CKV_BLOCKS_SALT_TEXT || strcmp(a->salt_text, b_text) == 0);
}

static int32_t take_unused(key_spaces *spaces)
{
    if (spaces->unused >= 0) {
        int32_t index = spaces->unused;
        spaces->unused = spaces->items[index].next;
        return index;
    }
    if (spaces->count == spaces->capacity) {
        int32_t capacity = spaces->capacity > 0 ? 2 * spaces->capacity : 8;
        key_space *items = realloc(spaces->items, (size_t)capacity * sizeof *items);
        if (items == NULL)
            return -1;
        spaces->items = items;
        spaces->capacity = capacity;
    }
    spaces->items[spaces->count] = (key_space){.next = -1};
    return spaces->count++;
}

int32_t key_space_acquire(key_spaces *spaces, const ckv_blocks_request *request)
{
    key_space wanted = describe(request);
    int64_t *first = id_map_find(&spaces->by_hash, wanted.hash);
    for (int32_t i = first != NULL ? (int32_t)*first : -1; i >= 0; i = spaces->items[i].next) {
        if (space_matches(&spaces->items[i], &wanted, request->salt_text)) {
            spaces->items[i].refs++;
            return i;
        }
    }
    if (wanted.salt_kind == CKV_BLOCKS_SALT_TEXT && (wanted.salt_text = strdup(request->salt_text)) == NULL)
        return -1;
    int32_t index = id_map_reserve(&spaces->by_hash, 1) ? take_unused(spaces) : -1;
    if (index < 0) {
        free(wanted.salt_text);
        return -1;
    }
    first = id_map_find(&spaces->by_hash, wanted.hash);
    if (first != NULL) {
        wanted.next = (int32_t)*first;
        *first = index;
    } else {
        id_map_add(&spaces->by_hash, wanted.hash, index);
    }
    spaces->items[index] = wanted;
    return index;
}

void key_space_retain(key_spaces *spaces, int32_t space)
{
    spaces->items[space].refs++;
}

void key_space_release(key_spaces *spaces, int32_t space)
{
    key_space *item = &spaces->items[space];
    if (--item->refs > 0)
        return;
    int64_t *first = id_map_find(&spaces->by_hash, item->hash);
    if (*first != space) {
        int32_t before = (int32_t)*first;
        while (spaces->items[before].next != space)
            before = spaces->items[before].next;
        spaces->items[before].next = item->next;
    } else if (item->next >= 0) {
        *first = item->next;
    } else {
        id_map_remove(&spaces->by_hash, item->hash);
    }
    free(item->salt_text);
    *item = (key_space){.next = spaces->unused};
    spaces->unused = space;
}

key_view key_make(const key_source *source, int64_t start, int64_t count)
{
    key_view key = {.tokens = source->tokens + start,
                    .extra = source->extra != NULL ? source->extra + start : NULL,
                    .mm = source->scratch,
                    .count = (int32_t)count,
                    .space = source->space};
    for (int64_t i = 0; i < source->num_mm; i++) {
        const ckv_blocks_mm *item = &source->mm[i];
        if (item->position >= start + count || item->position + item->length <= start)
            continue;
        int64_t before = item->position < start ? start - item->position : 0;
        source->scratch[key.num_mm++] = (key_mm){item->hash, before};
    }
    return key;
}

uint64_t key_digest(uint64_t parent, const key_view *key, const key_spaces *spaces)
{
    uint64_t hash =
        mix(mix(parent, spaces->items[key->space].hash), (uint64_t)key->count << 32 | (uint32_t)key->num_mm);
    int32_t i = 0;
    for (; i + 3 < key->count; i += 4) {
        uint64_t low = (uint32_t)key->tokens[i] | (uint64_t)(uint32_t)key->tokens[i + 1] << 32;
        uint64_t high = (uint32_t)key->tokens[i + 2] | (uint64_t)(uint32_t)key->tokens[i + 3] << 32;
        hash = fold(hash ^ low ^ 0x2d358dccaa6c78a5u, high ^ 0x8bb84b93962eacc9u) + hash;
    }
    for (; i < key->count; i++)
        hash = mix(hash, (uint32_t)key->tokens[i]);
    for (i = 0; key->extra != NULL && i < key->count; i++)
        hash = mix(hash, (uint64_t)key->extra[i]);
    for (i = 0; i < key->num_mm; i++)
        hash = mix(mix(hash, key->mm[i].hash), (uint64_t)key->mm[i].before);
    return mix(hash, 0x4b33a62ed433d4a3u);
}

bool key_equal(const key_view *a, const key_view *b)
{
    if (a->space != b->space || a->count != b->count || a->num_mm != b->num_mm ||
        memcmp(a->tokens, b->tokens, (size_t)a->count * sizeof *a->tokens) != 0)
        return false;
    if (a->extra != NULL && memcmp(a->extra, b->extra, (size_t)a->count * sizeof *a->extra) != 0)
        return false;
    for (int32_t i = 0; i < a->num_mm; i++)
        if (a->mm[i].hash != b->mm[i].hash || a->mm[i].before != b->mm[i].before)
            return false;
    return true;
}

int32_t key_common(const key_view *a, const key_view *b)
{
    if (a->space != b->space || a->num_mm > 0 || b->num_mm > 0)
        return 0;
    int32_t most = a->count < b->count ? a->count : b->count, common = 0;
    while (common < most && a->tokens[common] == b->tokens[common] &&
           (a->extra == NULL || a->extra[common] == b->extra[common]))
        common++;
    return common;
}
