/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's invariants, checked from what is on the device. Rows are checked by turning every slot they read back
 * into a resident position and comparing with the definition of visibility, token by token, without ckv_row_plan. What
 * a private slot that no forward writes is a copy of, its place in the row says; then its contents must be the home
 * slot's. */
#include "lib/cache/cache.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define VIOLATED(...) ckv_fail(CKV_ERROR_INTERNAL, "cache check: " __VA_ARGS__)

enum { UNKNOWN_POSITION = -1 };

typedef struct checker {
    const ckv_cache *cache;
    const ckv_device *device;
    ckv_stream stream;
    int64_t tokens_per_page;
    int64_t num_slots;
    int32_t *table;         /* [resident] as on the device */
    int64_t *home_position; /* [num_slots] resident position whose home the slot is */
    int64_t *copy_position; /* [num_slots] resident position a private slot holds a copy of */
    int64_t *writer;        /* [num_slots] block that owns a private slot, numbered over all sizes; -1 home or free */
    char *seen;             /* [resident tokens] positions that a key of the block at hand has been found to be */
} checker;

/* A host copy of a device array; NULL when memory or the device fails. */
static void *fetch(const checker *c, const void *source, int64_t count, size_t element_bytes, ckv_status *status)
{
    size_t bytes = (size_t)count * element_bytes;
    void *copy = malloc(bytes > 0 ? bytes : 1);
    *status = copy == NULL ? ckv_fail(CKV_ERROR_MEMORY, "cache check: out of host memory")
                           : c->device->download(copy, source, bytes, c->stream);
    if (*status == CKV_OK)
        return copy;
    free(copy);
    return NULL;
}

/* Checked launches since the last open. */
static ckv_status check_fault(const checker *c)
{
    ckv_slot_fault fault = {0};
    if (c->cache->tensors->check.fault == NULL)
        return CKV_OK;
    CKV_TRY(c->device->download(&fault, c->cache->tensors->check.fault, sizeof fault, c->stream));
    if (fault.kind == CKV_SLOT_FAULT_NONE)
        return CKV_OK;
    return VIOLATED("entry %" PRId64 " of a launch %s slot %" PRId64 "%s", fault.entry,
                    fault.list == 2 ? "reads" : "writes", fault.slot,
                    fault.kind == CKV_SLOT_FAULT_OUTSIDE ? ", outside the pool"
                                                         : ", which another entry writes with another value");
}

/* The device's account of the rollout is the mirror's. */
static ckv_status check_progress(const checker *c, const ckv_layout_state *state)
{
    const ckv_cache *cache = c->cache;
    const ckv_progress *progress = &state->progress[ckv_layout_current(state)];
    if (state->pin_tokens != cache->pin_tokens || state->resident_pages != cache->resident_pages ||
        memcmp(progress, &cache->progress, sizeof *progress) != 0)
        return VIOLATED("the device has %" PRId64 " fixed and %" PRId64 " history tokens, the mirror %" PRId64
                        " and %" PRId64 "; was a replayed commit followed?",
                        progress->fixed_tokens, progress->history_tokens, cache->progress.fixed_tokens,
                        cache->progress.history_tokens);
    return CKV_OK;
}

/* Invariant 1: table and private pages are this cache's, all distinct, and the mirror equals the device. */
static ckv_status check_pages(checker *c)
{
    const ckv_cache *cache = c->cache;
    const ckv_cache_tensors *tensors = cache->tensors;
    int64_t pages = ckv_cache_held_pages(cache);
    const int32_t *mirror = tensors->host_pages;
    if (memcmp(c->table, mirror, (size_t)cache->resident_pages * sizeof *mirror) != 0)
        return VIOLATED("the device's page table differs from the host's mirror");
    ckv_status status;
    int32_t *private_pages = fetch(c, tensors->private_page_ids, tensors->total_private_pages, sizeof *mirror, &status);
    CKV_TRY(status);
    int same = memcmp(private_pages, mirror + cache->resident_pages,
                      (size_t)tensors->total_private_pages * sizeof *mirror) == 0;
    free(private_pages);
    if (!same)
        return VIOLATED("the device's private pages differ from the host's mirror");
    for (int64_t i = 0; i < pages; i++) {
        if (ckv_pool_page_owner(cache->pool, mirror[i]) != cache->user)
            return VIOLATED("page %" PRId32 " is in use but not held", mirror[i]);
        int64_t first_slot = mirror[i] * c->tokens_per_page;
        if (c->home_position[first_slot] != UNKNOWN_POSITION || c->writer[first_slot] != UNKNOWN_POSITION)
            return VIOLATED("page %" PRId32 " is in use twice", mirror[i]);
        for (int64_t slot = 0; slot < c->tokens_per_page; slot++) {
            if (i < cache->resident_pages)
                c->home_position[first_slot + slot] = i * c->tokens_per_page + slot;
            else
                c->writer[first_slot + slot] = 0;
        }
    }
    return CKV_OK;
}

static void number_private_slots(checker *c)
{
    const ckv_cache_tensors *tensors = c->cache->tensors;
    int64_t number = 0;
    for (int32_t s = 0; s < tensors->geometry.num_sizes; s++)
        for (int64_t block = 0; block < tensors->layout.sizes[s].num_blocks; block++, number++)
            for (int64_t i = 0; i < tensors->layout.sizes[s].private_pages * c->tokens_per_page; i++) {
                int32_t page = ckv_cache_private_pages(c->cache, s, block)[i / c->tokens_per_page];
                c->writer[page * c->tokens_per_page + i % c->tokens_per_page] = number;
            }
}

static ckv_status record_copy(checker *c, int64_t slot, int64_t position, int64_t number)
{
    if (slot < 0 || slot >= c->num_slots || c->writer[slot] != number)
        return VIOLATED("a private copy goes to slot %" PRId64 ", which is not the block's", slot);
    if (c->copy_position[slot] != UNKNOWN_POSITION && c->copy_position[slot] != position)
        return VIOLATED("slot %" PRId64 " is written with positions %" PRId64 " and %" PRId64, slot,
                        c->copy_position[slot], position);
    c->copy_position[slot] = position;
    return CKV_OK;
}

/* Invariant 3: collect what forwards write to private slots of a block; no slot gets two values. */
static ckv_status collect_copies(checker *c, const ckv_causal_layout_size *size, int64_t block, int64_t number)
{
    int64_t staging_offset = ckv_cache_staging_offset(c->cache);
    int64_t currents = 2 * (c->tokens_per_page - 1);
    ckv_status status[3];
    int64_t *current_source = fetch(c, size->current_private_source + block * currents, currents, 8, &status[0]);
    int64_t *current_destination =
        fetch(c, size->current_private_destination + block * currents, currents, 8, &status[1]);
    int64_t *own = fetch(c, size->own_slots + block * size->block_size, size->block_size, 8, &status[2]);
    ckv_status result = CKV_OK;
    for (int i = 0; i < 3 && result == CKV_OK; i++)
        result = status[i];
    for (int64_t i = 0; result == CKV_OK && i < currents; i++) {
        int64_t position = staging_offset + current_source[i];
        int64_t slot = current_destination[i];
        int in_pool = slot >= 0 && slot < c->num_slots;
        if (!in_pool || c->home_position[slot] != position) /* else a repeat of the home write */
            result = record_copy(c, slot, position, number);
    }
    for (int64_t i = 0; result == CKV_OK && i < size->block_size; i++)
        result = record_copy(c, own[i], staging_offset + block * size->block_size + i, number);
    free(current_source);
    free(current_destination);
    free(own);
    return result;
}

/* A block as check_keys sees it. */
typedef struct block_keys {
    const int32_t *row;
    int64_t keys;
    int64_t start; /* position of its first token */
    int64_t size;
    int64_t number;
} block_keys;

static int is_visible(const checker *c, const block_keys *b, int64_t position)
{
    int64_t window_start = b->start - c->cache->tensors->geometry.window_tokens;
    return position >= 0 && position < b->start &&
           (position < c->cache->progress.fixed_tokens || position >= window_start);
}

static int64_t slot_of_key(const checker *c, const block_keys *b, int64_t key)
{
    return b->row[key / c->tokens_per_page] * c->tokens_per_page + key % c->tokens_per_page;
}

/* The block's own slot, which the commit fills: no forward does. */
static int is_filled_by_commit(const checker *c, const block_keys *b, int64_t slot)
{
    return c->writer[slot] == b->number && c->copy_position[slot] == UNKNOWN_POSITION;
}

/* The keys at home or written by forwards: visible positions, each once; own tokens last and in order. */
static ckv_status check_known_keys(const checker *c, const block_keys *b)
{
    for (int64_t key = 0; key < b->keys; key++) {
        int64_t slot = slot_of_key(c, b, key);
        if (is_filled_by_commit(c, b, slot))
            continue;
        int64_t position = c->home_position[slot];
        if (position == UNKNOWN_POSITION && c->writer[slot] == b->number)
            position = c->copy_position[slot];
        int64_t own = key - (b->keys - b->size);
        int visible = own >= 0 ? position == b->start + own : is_visible(c, b, position);
        if (!visible || c->seen[position])
            return VIOLATED("key %" PRId64 " of the block at position %" PRId64 " is position %" PRId64 "%s", key,
                            b->start, position, visible ? " again" : ", which it must not see");
        c->seen[position] = 1;
    }
    return CKV_OK;
}

/* What remains to be seen, ascending, is what the commit has copied. */
static ckv_status assign_committed_keys(checker *c, const block_keys *b)
{
    int64_t staging_offset = ckv_cache_staging_offset(c->cache), position = 0;
    for (int64_t key = 0; key < b->keys; key++) {
        int64_t slot = slot_of_key(c, b, key);
        if (!is_filled_by_commit(c, b, slot))
            continue;
        while (position < staging_offset && (c->seen[position] || !is_visible(c, b, position)))
            position++;
        if (position == staging_offset)
            return VIOLATED("key %" PRId64 " of the block at position %" PRId64 " reads slot %" PRId64
                            ", which nobody writes",
                            key, b->start, slot);
        c->seen[position] = 1;
        c->copy_position[slot] = position;
    }
    return CKV_OK;
}

/* Invariant 2: the keys are exactly the visible positions, each once, own tokens last and in order. */
static ckv_status check_keys(checker *c, const block_keys *b)
{
    int64_t expected = b->size;
    for (int64_t position = 0; position < b->start; position++)
        expected += is_visible(c, b, position);
    if (b->keys != expected)
        return VIOLATED("a block at position %" PRId64 " reads %" PRId64 " keys instead of %" PRId64, b->start, b->keys,
                        expected);
    memset(c->seen, 0, (size_t)(c->cache->resident_pages * c->tokens_per_page));
    CKV_TRY(check_known_keys(c, b));
    return assign_committed_keys(c, b);
}

/* K and V of a page of a layer, on the host. */
typedef struct page_copy {
    char *bytes;
    int64_t layer, page; /* -1: none */
} page_copy;

static ckv_status fetch_page(const checker *c, int64_t layer, int64_t page, page_copy *copy)
{
    if (copy->layer == layer && copy->page == page)
        return CKV_OK;
    ckv_pool_view pool = ckv_pool_get_view(c->cache->pool);
    copy->layer = layer;
    copy->page = page;
    return c->device->download(copy->bytes, (char *)pool.base + layer * pool.layer_stride + page * pool.page_stride,
                               (size_t)pool.page_stride, c->stream);
}

/* What private slots hold of committed tokens is what their home slots hold. */
static ckv_status check_slot_contents(const checker *c, int64_t layer, int64_t slot, page_copy *private_page,
                                      page_copy *home_page)
{
    const ckv_pool_config *config = ckv_pool_get_config(c->cache->pool);
    ckv_pool_view pool = ckv_pool_get_view(c->cache->pool);
    int64_t home = ckv_cache_home_slot(c->cache, c->copy_position[slot]);
    CKV_TRY(fetch_page(c, layer, slot / c->tokens_per_page, private_page));
    CKV_TRY(fetch_page(c, layer, home / c->tokens_per_page, home_page));
    for (int64_t row = 0; row < 2 * config->kv_heads; row++) {
        int64_t plane = row / config->kv_heads * pool.kv_stride + row % config->kv_heads * pool.head_stride;
        if (memcmp(private_page->bytes + plane + slot % c->tokens_per_page * pool.slot_stride,
                   home_page->bytes + plane + home % c->tokens_per_page * pool.slot_stride,
                   (size_t)ckv_pool_row_bytes(c->cache->pool)) != 0)
            return VIOLATED("slot %" PRId64 " of layer %" PRId64 " does not hold the copy of slot %" PRId64
                            ", position %" PRId64,
                            slot, layer, home, c->copy_position[slot]);
    }
    return CKV_OK;
}

static ckv_status check_contents(const checker *c)
{
    int64_t staging_offset = ckv_cache_staging_offset(c->cache);
    size_t page_bytes = (size_t)ckv_pool_get_view(c->cache->pool).page_stride;
    page_copy private_page = {malloc(page_bytes), -1, -1}, home_page = {malloc(page_bytes), -1, -1};
    ckv_status status = CKV_OK;
    if (private_page.bytes == NULL || home_page.bytes == NULL)
        status = ckv_fail(CKV_ERROR_MEMORY, "cache check: out of host memory");
    for (int64_t layer = 0; layer < ckv_pool_get_config(c->cache->pool)->layers; layer++)
        for (int64_t slot = 0; status == CKV_OK && slot < c->num_slots; slot++)
            if (c->copy_position[slot] != UNKNOWN_POSITION && c->copy_position[slot] < staging_offset)
                status = check_slot_contents(c, layer, slot, &private_page, &home_page);
    free(private_page.bytes);
    free(home_page.bytes);
    return status;
}

/* Invariant 6: what follows the keys is the guard page. */
static ckv_status check_row(checker *c, const ckv_causal_layout_size *size, int64_t block, int64_t number)
{
    int32_t keys;
    CKV_TRY(c->device->download(&keys, size->seq_len_kv + block, sizeof keys, c->stream));
    ckv_status status;
    int32_t *row = fetch(c, size->rows + block * size->row_pages, size->row_pages, sizeof *row, &status);
    CKV_TRY(status);
    int32_t guard_page = ckv_pool_get_view(c->cache->pool).guard_page;
    int64_t used = (keys + c->tokens_per_page - 1) / c->tokens_per_page;
    if ((size->row_pages - used) * c->tokens_per_page < CKV_ROW_GUARD_TOKENS)
        status =
            VIOLATED("a row of %" PRId64 " entries uses %" PRId64 ": too few guard entries", size->row_pages, used);
    for (int64_t i = 0; status == CKV_OK && i < size->row_pages; i++)
        if (i < used ? row[i] < 0 || row[i] >= guard_page : row[i] != guard_page)
            status = VIOLATED("entry %" PRId64 " of a row is page %" PRId32, i, row[i]);
    block_keys b = {.row = row,
                    .keys = keys,
                    .start = ckv_cache_staging_offset(c->cache) + block * size->block_size,
                    .size = size->block_size,
                    .number = number};
    if (status == CKV_OK)
        status = check_keys(c, &b);
    free(row);
    return status;
}

static ckv_status check_rows(checker *c)
{
    const ckv_cache_tensors *tensors = c->cache->tensors;
    int64_t number = 0;
    for (int32_t s = 0; s < tensors->geometry.num_sizes; s++) {
        const ckv_causal_layout_size *size = &tensors->layout.sizes[s];
        for (int64_t block = 0; block < size->num_blocks; block++, number++) {
            CKV_TRY(collect_copies(c, size, block, number));
            CKV_TRY(check_row(c, size, block, number));
        }
    }
    return CKV_OK;
}

ckv_status ckv_cache_check(const ckv_cache *cache, ckv_stream stream)
{
    if (cache == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "check: cache is NULL");
    if (cache->tensors == NULL)
        return CKV_OK;
    const ckv_pool_config *config = ckv_pool_get_config(cache->pool);
    checker c = {.cache = cache,
                 .device = config->device,
                 .stream = stream,
                 .tokens_per_page = config->tokens_per_page,
                 .num_slots = config->pool_tokens};
    const ckv_causal_layout_params *layout = &cache->tensors->layout;
    ckv_layout_state state;
    CKV_TRY(check_fault(&c));
    CKV_TRY(c.device->download(&state, layout->state, sizeof state, stream));
    if (state.arrivals != 0 && state.arrivals != state.blocks)
        return VIOLATED("%" PRIu32 " of %" PRIu32 " blocks have arrived at the device's state", state.arrivals,
                        state.blocks);
    CKV_TRY(check_progress(&c, &state));
    ckv_status status;
    c.table = fetch(&c, layout->tables + ckv_layout_current(&state) * layout->table_pages, cache->resident_pages,
                    sizeof *c.table, &status);
    c.home_position = malloc((size_t)c.num_slots * sizeof *c.home_position);
    c.copy_position = malloc((size_t)c.num_slots * sizeof *c.copy_position);
    c.writer = malloc((size_t)c.num_slots * sizeof *c.writer);
    c.seen = malloc((size_t)(cache->resident_pages * c.tokens_per_page));
    if (status == CKV_OK && (!c.home_position || !c.copy_position || !c.writer || !c.seen))
        status = ckv_fail(CKV_ERROR_MEMORY, "cache check: out of host memory");
    if (status == CKV_OK) {
        memset(c.home_position, 0xff, (size_t)c.num_slots * sizeof *c.home_position);
        memset(c.copy_position, 0xff, (size_t)c.num_slots * sizeof *c.copy_position);
        memset(c.writer, 0xff, (size_t)c.num_slots * sizeof *c.writer);
        status = check_pages(&c);
    }
    if (status == CKV_OK) {
        number_private_slots(&c);
        status = check_rows(&c);
    }
    if (status == CKV_OK)
        status = check_contents(&c);
    free(c.table);
    free(c.home_position);
    free(c.copy_position);
    free(c.writer);
    free(c.seen);
    return status;
}
