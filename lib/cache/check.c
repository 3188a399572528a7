/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's invariants, checked from what is on the device. Rows are checked by turning every slot they read back
 * into a resident position and comparing with the definition of visibility, token by token, without ckv_row_plan. */
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
    const ckv_progress *progress = &state->progress[state->current];
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
    int64_t pages = ckv_cache_held_pages(cache);
    const int32_t *mirror = cache->tensors->host_pages;
    if (memcmp(c->table, mirror, (size_t)cache->resident_pages * sizeof *mirror) != 0)
        return VIOLATED("the device's page table differs from the host's mirror");
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

/* Where the commit's copy read from: the fixed tail may have come from the page that rotated away. */
static int64_t source_position(const checker *c, int64_t slot)
{
    const ckv_cache *cache = c->cache;
    int64_t position = c->home_position[slot];
    int64_t moved_page = cache->resident_pages - cache->last_dropped_pages;
    if (cache->last_refill_tokens > 0 && position / c->tokens_per_page == moved_page)
        return cache->progress.fixed_tokens / c->tokens_per_page * c->tokens_per_page + position % c->tokens_per_page;
    return position;
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

/* Invariant 3: collect what every private slot of a block holds; no slot gets two values. */
static ckv_status collect_copies(checker *c, const ckv_causal_layout_size *size, int64_t block, int64_t number)
{
    int64_t staging_offset = ckv_cache_staging_offset(c->cache);
    int64_t currents = 2 * (c->tokens_per_page - 1), committeds = 3 * (c->tokens_per_page - 1);
    ckv_status status[5];
    int64_t *committed_source =
        fetch(c, size->committed_private_source + block * committeds, committeds, 8, &status[0]);
    int64_t *committed_destination =
        fetch(c, size->committed_private_destination + block * committeds, committeds, 8, &status[1]);
    int64_t *current_source = fetch(c, size->current_private_source + block * currents, currents, 8, &status[2]);
    int64_t *current_destination =
        fetch(c, size->current_private_destination + block * currents, currents, 8, &status[3]);
    int64_t *own = fetch(c, size->own_slots + block * size->block_size, size->block_size, 8, &status[4]);
    ckv_status result = CKV_OK;
    for (int i = 0; i < 5 && result == CKV_OK; i++)
        result = status[i];
    for (int64_t i = 0; result == CKV_OK && i < committeds; i++)
        if (committed_source[i] >= 0)
            result = record_copy(c, committed_destination[i], source_position(c, committed_source[i]), number);
    for (int64_t i = 0; result == CKV_OK && i < currents; i++) {
        int64_t position = staging_offset + current_source[i];
        if (c->home_position[current_destination[i]] != position) /* else a repeat of the home write */
            result = record_copy(c, current_destination[i], position, number);
    }
    for (int64_t i = 0; result == CKV_OK && i < size->block_size; i++)
        result = record_copy(c, own[i], staging_offset + block * size->block_size + i, number);
    free(committed_source);
    free(committed_destination);
    free(current_source);
    free(current_destination);
    free(own);
    return result;
}

/* The position a row reads at key i, or UNKNOWN_POSITION when the slot is not one this block may read. */
static int64_t key_position(const checker *c, const int32_t *row, int64_t key, int64_t number)
{
    int64_t slot = row[key / c->tokens_per_page] * c->tokens_per_page + key % c->tokens_per_page;
    if (c->home_position[slot] != UNKNOWN_POSITION)
        return c->home_position[slot];
    return c->writer[slot] == number ? c->copy_position[slot] : UNKNOWN_POSITION;
}

/* Invariant 2: the keys are exactly the visible positions, each once, own tokens last and in order. */
static ckv_status check_keys(const checker *c, const int32_t *row, int64_t keys, int64_t block_start,
                             int64_t block_size, int64_t number, char *seen)
{
    int64_t fixed = c->cache->progress.fixed_tokens;
    int64_t window_start = block_start - c->cache->tensors->geometry.window_tokens;
    int64_t expected = fixed + block_size;
    for (int64_t position = fixed; position < block_start; position++)
        expected += position >= window_start;
    if (keys != expected)
        return VIOLATED("a block at position %" PRId64 " reads %" PRId64 " keys instead of %" PRId64, block_start, keys,
                        expected);
    memset(seen, 0, (size_t)(c->cache->resident_pages * c->tokens_per_page));
    for (int64_t key = 0; key < keys; key++) {
        int64_t position = key_position(c, row, key, number);
        int own = key >= keys - block_size;
        int visible = own ? position == block_start + key - (keys - block_size)
                          : (position >= 0 && position < block_start && (position < fixed || position >= window_start));
        if (!visible || seen[position])
            return VIOLATED("key %" PRId64 " of the block at position %" PRId64 " is position %" PRId64 "%s", key,
                            block_start, position, visible ? " again" : ", which it must not see");
        seen[position] = 1;
    }
    return CKV_OK;
}

/* Invariant 6: what follows the keys is the guard page. */
static ckv_status check_row(const checker *c, const ckv_causal_layout_size *size, int64_t block, int64_t number,
                            char *seen)
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
    if (status == CKV_OK)
        status = check_keys(c, row, keys, ckv_cache_staging_offset(c->cache) + block * size->block_size,
                            size->block_size, number, seen);
    free(row);
    return status;
}

static ckv_status check_rows(checker *c, char *seen)
{
    const ckv_cache_tensors *tensors = c->cache->tensors;
    int64_t number = 0;
    for (int32_t s = 0; s < tensors->geometry.num_sizes; s++) {
        const ckv_causal_layout_size *size = &tensors->layout.sizes[s];
        for (int64_t block = 0; block < size->num_blocks; block++, number++) {
            CKV_TRY(collect_copies(c, size, block, number));
            CKV_TRY(check_row(c, size, block, number, seen));
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
    if (state.current < 0 || state.current > 1 || state.arrivals != 0)
        return VIOLATED("the device's state is not one: current %" PRId32 ", %" PRIu32 " arrivals", state.current,
                        state.arrivals);
    CKV_TRY(check_progress(&c, &state));
    ckv_status status;
    c.table = fetch(&c, layout->tables + state.current * layout->table_pages, cache->resident_pages, sizeof *c.table,
                    &status);
    c.home_position = malloc((size_t)c.num_slots * sizeof *c.home_position);
    c.copy_position = malloc((size_t)c.num_slots * sizeof *c.copy_position);
    c.writer = malloc((size_t)c.num_slots * sizeof *c.writer);
    char *seen = malloc((size_t)(cache->resident_pages * c.tokens_per_page));
    if (status == CKV_OK && (!c.home_position || !c.copy_position || !c.writer || !seen))
        status = ckv_fail(CKV_ERROR_MEMORY, "cache check: out of host memory");
    if (status == CKV_OK) {
        memset(c.home_position, 0xff, (size_t)c.num_slots * sizeof *c.home_position);
        memset(c.copy_position, 0xff, (size_t)c.num_slots * sizeof *c.copy_position);
        memset(c.writer, 0xff, (size_t)c.num_slots * sizeof *c.writer);
        status = check_pages(&c);
    }
    if (status == CKV_OK) {
        number_private_slots(&c);
        status = check_rows(&c, seen);
    }
    free(c.table);
    free(c.home_position);
    free(c.copy_position);
    free(c.writer);
    free(seen);
    return status;
}
