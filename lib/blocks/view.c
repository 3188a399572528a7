/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: tables, page tables, tokens, hashes, the tree, diagnostics. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

ckv_status ckv_blocks_get_request(ckv_blocks *blocks, int64_t id, ckv_blocks_request_info *info_out)
{
    if (info_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "get_request: info_out is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "get_request"));
    live_request *r;
    ckv_status status = ckv_request_find(blocks, id, &r);
    if (status == CKV_OK) {
        *info_out = (ckv_blocks_request_info){.tokens = r->num_tokens,
                                              .prompt = r->prompt,
                                              .kv = r->kv,
                                              .beam = r->beam,
                                              .positions = r->tables[0].positions,
                                              .context_done = r->kv >= r->prompt};
        for (int32_t i = 0; i < blocks->num_windows; i++) {
            info_out->front_removed[i] = r->tables[i].removed;
            info_out->scratch_first[i] = r->tables[i].scratch_first;
            info_out->scratch_end[i] = r->tables[i].scratch_end;
        }
    }
    return ckv_blocks_leave(blocks, status);
}

static ckv_status check_beam(const live_request *r, int64_t beam)
{
    if (beam < 0 || beam >= r->beam)
        return ckv_fail(CKV_ERROR_NOT_FOUND, "request %" PRId64 " has %" PRId64 " beams, not number %" PRId64, r->id,
                        r->beam, beam);
    return CKV_OK;
}

ckv_status ckv_blocks_get_table(ckv_blocks *blocks, int64_t id, int64_t wanted, int64_t beam, int64_t capacity,
                                int64_t *ids_out, int64_t *slots_out, int64_t *tiers_out)
{
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "get_table", wanted, &w));
    live_request *r;
    ckv_status status = ckv_request_find(blocks, id, &r);
    if (status == CKV_OK)
        status = check_beam(r, beam);
    if (status == CKV_OK && capacity < r->tables[w->index].positions)
        status = ckv_fail(CKV_ERROR_INVALID, "get_table: room for %" PRId64 " positions of %" PRId64, capacity,
                          r->tables[w->index].positions);
    for (int64_t k = 0; status == CKV_OK && k < r->tables[w->index].positions; k++) {
        int32_t at = table_at(r, w, k)[beam];
        if (ids_out != NULL)
            ids_out[k] = at;
        if (slots_out != NULL)
            slots_out[k] = at == NONE ? CKV_BLOCKS_HOLE : w->blocks[at].slot;
        if (tiers_out != NULL)
            tiers_out[k] = at == NONE ? CKV_BLOCKS_HOLE : w->blocks[at].tier;
    }
    return ckv_blocks_leave(blocks, status);
}

ckv_status ckv_blocks_block_at(ckv_blocks *blocks, int64_t id, int64_t wanted, int64_t index, int64_t beam,
                               int64_t *block_out)
{
    if (block_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "block_at: block_out is NULL");
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "block_at", wanted, &w));
    live_request *r;
    ckv_status status = ckv_request_find(blocks, id, &r);
    if (status == CKV_OK)
        status = check_beam(r, beam);
    if (status == CKV_OK &&
        (index < 0 || index >= r->tables[w->index].positions || table_at(r, w, index)[beam] == NONE))
        status =
            ckv_fail(CKV_ERROR_NOT_FOUND, "request %" PRId64 " has no block at position %" PRId64 " of window %" PRId64,
                     id, index, w->info.window);
    if (status == CKV_OK)
        *block_out = table_at(r, w, index)[beam];
    return ckv_blocks_leave(blocks, status);
}

ckv_status ckv_blocks_get_tokens(ckv_blocks *blocks, int64_t id, int64_t capacity, int32_t *tokens_out)
{
    if (tokens_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "get_tokens: tokens_out is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "get_tokens"));
    live_request *r;
    ckv_status status = ckv_request_find(blocks, id, &r);
    if (status == CKV_OK && capacity < r->num_tokens)
        status =
            ckv_fail(CKV_ERROR_INVALID, "get_tokens: room for %" PRId64 " tokens of %" PRId64, capacity, r->num_tokens);
    if (status == CKV_OK)
        memcpy(tokens_out, r->tokens, (size_t)r->num_tokens * sizeof *tokens_out);
    return ckv_blocks_leave(blocks, status);
}

static ckv_status pack(live_request *r)
{
    if (r->packed != NULL)
        return CKV_OK;
    r->packed = malloc((size_t)r->num_tokens * 4);
    if (r->packed == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "get_packed: out of host memory");
    for (int64_t i = 0; i < r->num_tokens; i++)
        for (int byte = 0; byte < 4; byte++)
            r->packed[4 * i + byte] = (uint8_t)((uint32_t)r->tokens[i] >> 8 * byte);
    return CKV_OK;
}

ckv_status ckv_blocks_get_packed(ckv_blocks *blocks, int64_t id, const uint8_t **packed_out, size_t *bytes_out)
{
    if (packed_out == NULL || bytes_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "get_packed: an _out pointer is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "get_packed"));
    live_request *r;
    ckv_status status = ckv_request_find(blocks, id, &r);
    if (status == CKV_OK)
        status = pack(r);
    if (status == CKV_OK) {
        *packed_out = r->packed;
        *bytes_out = (size_t)r->num_tokens * 4;
    }
    return ckv_blocks_leave(blocks, status);
}

/* ---- Page tables ---- */

/* Where the active pages of a request lie in its table: [0, sinks) and [start, end). */
typedef struct active_pages {
    int64_t sinks, start, end;
} active_pages;

static ckv_status find_active(const ckv_blocks *m, const window_state *w, const live_request *r, int64_t length,
                              active_pages *pages_out)
{
    const struct table *table = &r->tables[w->index];
    int64_t step = m->tokens_per_block, end = ckv_ceil_div_i64(ckv_max_i64(length, 0), step);
    int64_t start = w->info.sink_blocks + table->removed;
    if (length < 1 || length > r->num_tokens || (table->removed > 0 && end <= start))
        return ckv_fail(CKV_ERROR_INVALID,
                        "page_table: %" PRId64 " tokens of request %" PRId64 ", which has %" PRId64 "; window %" PRId64
                        " has dropped %" PRId64 " blocks",
                        length, r->id, r->num_tokens, w->info.window, table->removed);
    int64_t sinks = ckv_min_i64(w->info.sink_blocks, end);
    *pages_out = (active_pages){sinks, ckv_min_i64(start, end), end};
    if (w->info.recurrent)
        *pages_out = (active_pages){0, end - 1, end};
    return CKV_OK;
}

static ckv_status slot_of(const window_state *w, const live_request *r, int32_t id, int64_t *slot_out)
{
    if (id != NONE && w->blocks[id].tier != CKV_BLOCKS_PRIMARY)
        return ckv_fail(CKV_ERROR_STATE,
                        "page_table: block %d of request %" PRId64 " in window %" PRId64
                        " is in host memory; onboard it first",
                        id, r->id, w->info.window);
    *slot_out = id == NONE ? CKV_BLOCKS_HOLE : w->blocks[id].slot;
    return CKV_OK;
}

static ckv_status add_slots(const window_state *w, live_request *r, int64_t first, int64_t end, int64_t beam,
                            ckv_blocks_page_table *table)
{
    if (table->cache_loc_capacity - table->cache_loc_count < end - first)
        return ckv_fail(CKV_ERROR_INVALID, "page_table: cache_loc has room for %" PRId64 " slots, too few",
                        table->cache_loc_capacity);
    for (int64_t k = first; k < end; k++) {
        CKV_TRY(slot_of(w, r, table_at(r, w, k)[beam], &table->cache_loc[table->cache_loc_count]));
        table->cache_loc_count++;
    }
    return CKV_OK;
}

static ckv_status add_request(ckv_blocks *m, const window_state *w, int64_t id, const int64_t *length, int64_t beam,
                              int64_t index, ckv_blocks_page_table *table)
{
    live_request *r;
    active_pages pages;
    CKV_TRY(ckv_request_find(m, id, &r));
    CKV_TRY(check_beam(r, beam));
    int64_t tokens = length != NULL ? *length : r->num_tokens;
    CKV_TRY(find_active(m, w, r, tokens, &pages));
    CKV_TRY(add_slots(w, r, 0, pages.sinks, beam, table));
    CKV_TRY(add_slots(w, r, pages.start, pages.end, beam, table));
    if (w->info.recurrent)
        return CKV_OK;
    table->cu_num_pages[index + 1] = table->cache_loc_count;
    table->last_page_len[index] = (tokens - 1) % m->tokens_per_block + 1;
    table->page_offset[index] = r->tables[w->index].removed;
    table->cached[index] = tokens - r->tables[w->index].removed * m->tokens_per_block;
    table->extra_page[index] = CKV_BLOCKS_HOLE;
    if (pages.end < r->tables[w->index].positions)
        return slot_of(w, r, table_at(r, w, pages.end)[beam], &table->extra_page[index]);
    return CKV_OK;
}

static bool is_complete(const ckv_blocks_page_table *t)
{
    return t->cache_loc != NULL && t->cu_num_pages != NULL && t->last_page_len != NULL && t->extra_page != NULL &&
           t->page_offset != NULL && t->cached != NULL;
}

ckv_status ckv_blocks_get_page_table(ckv_blocks *blocks, int64_t wanted, const int64_t *ids, const int64_t *lens,
                                     int64_t num_requests, int64_t beam, ckv_blocks_page_table *table)
{
    if (num_requests < 0 || (ids == NULL && num_requests > 0) || table == NULL || !is_complete(table))
        return ckv_fail(CKV_ERROR_INVALID, "page_table: %" PRId64 " requests, or an array is NULL", num_requests);
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "get_page_table", wanted, &w));
    ckv_status status = CKV_OK;
    table->cache_loc_count = 0;
    table->cu_num_pages[0] = 0;
    for (int64_t i = 0; status == CKV_OK && i < num_requests; i++)
        status = add_request(blocks, w, ids[i], lens != NULL ? &lens[i] : NULL, beam, i, table);
    return ckv_blocks_leave(blocks, status);
}

/* ---- Hashes, tree, counts ---- */

ckv_status ckv_blocks_hashes(ckv_blocks *blocks, int64_t id, int64_t capacity, uint64_t *hashes_out, int64_t *count_out)
{
    if (count_out == NULL || (hashes_out == NULL && capacity > 0))
        return ckv_fail(CKV_ERROR_INVALID, "hashes: an _out pointer is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "hashes"));
    live_request *r;
    ckv_status status = ckv_request_find(blocks, id, &r);
    if (status == CKV_OK && r->beam > 1)
        status = ckv_fail(CKV_ERROR_UNSUPPORTED, "hashes: request %" PRId64 " has %" PRId64 " beams", id, r->beam);
    if (status == CKV_OK) {
        const trie *t = &blocks->trie;
        key_source keys = ckv_request_keys(r);
        uint64_t digest = t->nodes[TRIE_ROOT].digest;
        int64_t count = r->num_tokens / t->tokens_per_block;
        for (int64_t k = 0; hashes_out != NULL && k < ckv_min_i64(count, capacity); k++) {
            key_view key = key_make(&keys, k * t->tokens_per_block, t->tokens_per_block);
            hashes_out[k] = digest = key_digest(digest, &key, &t->spaces);
        }
        *count_out = count;
    }
    return ckv_blocks_leave(blocks, status);
}

/* Tokens from the root to a node, written from the back of `path`; where they begin. */
static const int32_t *spell(const trie *t, int32_t node, int32_t *path_end, int64_t *count_out)
{
    int32_t *at = path_end;
    for (; node != TRIE_ROOT; node = t->nodes[node].parent) {
        at -= t->nodes[node].count;
        memcpy(at, trie_key(t, node).tokens, (size_t)t->nodes[node].count * sizeof *at);
    }
    *count_out = path_end - at;
    return at;
}

ckv_status ckv_blocks_visit_tree(ckv_blocks *blocks, int64_t wanted, ckv_blocks_visitor visit, void *context)
{
    if (visit == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "visit_tree: visit is NULL");
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "visit_tree", wanted, &w));
    int64_t longest = (w->info.max_blocks_per_seq + 1) * blocks->tokens_per_block;
    int32_t *path = malloc((size_t)longest * sizeof *path);
    ckv_status status = path != NULL ? CKV_OK : ckv_fail(CKV_ERROR_MEMORY, "visit_tree: out of host memory");
    for (int32_t id = 0; status == CKV_OK && id < w->total; id++) {
        int64_t count;
        if (w->blocks[id].node == NONE)
            continue;
        const int32_t *tokens = spell(&blocks->trie, w->blocks[id].node, path + longest, &count);
        visit(context, tokens, count, id);
    }
    free(path);
    return ckv_blocks_leave(blocks, status);
}

ckv_status ckv_blocks_get_free(ckv_blocks *blocks, int64_t wanted, int64_t free_out[CKV_BLOCKS_TIERS],
                               int64_t empty_out[CKV_BLOCKS_TIERS])
{
    if (free_out == NULL || empty_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "get_free: an _out pointer is NULL");
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "get_free", wanted, &w));
    for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++) {
        free_out[tier] = w->free[tier].count;
        empty_out[tier] = w->free[tier].empty;
    }
    return ckv_blocks_leave(blocks, CKV_OK);
}

ckv_status ckv_blocks_diagnose(ckv_blocks *blocks, ckv_blocks_diagnostics *diagnostics_out)
{
    if (diagnostics_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "diagnose: diagnostics_out is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "diagnose"));
    ckv_blocks_diagnostics d = {.sequences = blocks->num_live,
                                .context = blocks->num_context,
                                .generation = blocks->num_live - blocks->num_context,
                                .pins = blocks->pins.count};
    for (int32_t i = 0; i < blocks->num_windows; i++) {
        const window_state *w = &blocks->windows[i];
        for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++) {
            d.free[i][tier] = w->free[tier].count;
            d.evictable[i][tier] = w->free[tier].count - w->free[tier].empty;
        }
        d.stalled[i] = w->free[CKV_BLOCKS_PRIMARY].count == 0;
    }
    *diagnostics_out = d;
    return ckv_blocks_leave(blocks, CKV_OK);
}
