/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/walk.h"

#include "tools/trace/replay.h"
#include "tools/window/identity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 2048, MAX_BLOCKS = 128, DIM = IDENTITY_MIN_HEAD_DIM };

static const identity_place K_PLACE = {.is_v = 0};

static ckv_status check(ckv_status status, problem *why)
{
    if (status != CKV_OK)
        problem_format(why, "%s", ckv_last_error());
    return status;
}

ckv_status walk_create(walk *w, const trace *t, json_t *report, problem *why)
{
    *w = (walk){.trace = t, .rollouts = json_array(), .states = json_array(), .layouts = json_array()};
    json_object_set_new(report, "rollouts", w->rollouts);
    json_object_set_new(report, "states", w->states);
    json_object_set_new(report, "layouts", w->layouts);
    trace small = *t;
    ckv_pool_config pool = ckv_pool_config_default();
    small.config.layers = pool.layers = 1;
    small.config.kv_heads = pool.kv_heads = 1;
    small.config.head_dim = pool.head_dim = DIM;
    small.config.dtype = pool.dtype = CKV_FP32;
    pool.tokens_per_page = t->config.tokens_per_page;
    pool.poison_fresh_pages = 1; /* so that a slot without a token is seen to be */
    size_t op = 0;
    ckv_status status = replay_pool_tokens(&small, 1, &pool.pool_tokens, &op, why);
    if (status != CKV_OK)
        return status;
    w->total_pages = pool.pool_tokens / pool.tokens_per_page;
    w->pages_per_cell = (w->total_pages + MAX_CELLS - 1) / MAX_CELLS;
    w->ids = malloc((size_t)pool.pool_tokens * sizeof *w->ids);
    w->cells = malloc((size_t)w->total_pages * sizeof *w->cells);
    if (w->ids == NULL || w->cells == NULL) {
        problem_format(why, "out of memory");
        return CKV_ERROR_MEMORY;
    }
    return check(ckv_cache_create(&pool, &w->cache), why);
}

void walk_destroy(walk *w)
{
    ckv_cache_destroy(&w->cache);
    arena_free(&w->memory);
    free(w->ids);
    free(w->cells);
    w->ids = NULL;
    w->cells = NULL;
}

int64_t walk_position_id(const walk *w, int64_t position)
{
    ckv_cache_state state = ckv_cache_get_state(w->cache);
    return position < state.fixed_tokens ? position : position + state.committed_tokens - state.staging_offset;
}

/* Tokens from a resident position on that say which they are, in K; nobody looks at V. */
static ckv_kv identities(walk *w, int64_t position, int64_t tokens)
{
    arena_free(&w->memory);
    float *k = arena_alloc(&w->memory, (size_t)(tokens * DIM) * sizeof *k);
    for (int64_t i = 0; i < tokens; i++)
        identity_encode((identity){walk_position_id(w, position + i), 1}, K_PLACE, DIM, k + i * DIM);
    return ckv_kv_dense(k, k, 1, DIM);
}

static float *slot_vector(const walk *w, int64_t page, int64_t slot)
{
    ckv_pool_view pool = ckv_pool_get_view(ckv_cache_pool(w->cache));
    void *vector = (char *)pool.base + page * pool.page_stride + slot * pool.slot_stride;
    return vector;
}

/* -1: no token */
static int64_t slot_id(const walk *w, int64_t page, int64_t slot)
{
    identity token = {-1, 0};
    return identity_decode(slot_vector(w, page, slot), K_PLACE, DIM, &token) == IDENTITY_TOKEN ? token.id : -1;
}

static void fill_pages(const walk *w, float value)
{
    for (int64_t page = 0; page < w->total_pages; page++)
        for (int64_t slot = 0; slot < w->trace->config.tokens_per_page; slot++)
            for (int64_t i = 0; i < DIM; i++)
                slot_vector(w, page, slot)[i] = value;
}

/* A cell takes neighbours of one role, and no page that the rollout does not hold. */
static void add_page(walk *w, int64_t page, bool is_private)
{
    walk_cell *last = w->num_cells > 0 ? &w->cells[w->num_cells - 1] : NULL;
    if (last != NULL && last->is_private == is_private && last->first_page + last->pages == page &&
        last->pages < w->pages_per_cell)
        last->pages++;
    else
        w->cells[w->num_cells++] = (walk_cell){page, 1, is_private};
}

static json_t *cells_json(const walk *w)
{
    json_t *cells = json_array();
    for (int64_t i = 0; i < w->num_cells; i++)
        json_array_append_new(cells, json_pack("[I,I,i]", (json_int_t)w->cells[i].first_page,
                                               (json_int_t)w->cells[i].pages, w->cells[i].is_private));
    return cells;
}

/* Nothing is committed yet: what is written to all resident positions now lies in the resident pages, and fresh pages
 * without it are private. Pages the rollout does not hold are still zeros. */
static ckv_status find_cells(walk *w)
{
    ckv_cache_state state = ckv_cache_get_state(w->cache);
    ckv_kv everywhere = identities(w, 0, state.resident_tokens);
    ckv_status status = ckv_cache_write_range(w->cache, 0, 0, state.resident_tokens, &everywhere, NULL);
    w->num_cells = 0;
    for (int64_t page = 0; page < w->total_pages && status == CKV_OK; page++) {
        bool is_resident = slot_id(w, page, 0) >= 0;
        if (is_resident || isnan(slot_vector(w, page, 0)[0]))
            add_page(w, page, !is_resident);
    }
    fill_pages(w, NAN);
    return status;
}

static ckv_status open_rollout(walk *w, const trace_op *op)
{
    ckv_rollout_config config = ckv_rollout_config_default();
    config.pin_tokens = op->pin_tokens;
    config.window_tokens = op->window_tokens;
    config.max_staged_tokens = op->max_staged_tokens;
    config.causal_block_sizes = op->causal_block_sizes;
    config.num_causal_block_sizes = op->num_causal_block_sizes;
    fill_pages(w, 0);
    ckv_status status = ckv_cache_open(w->cache, &config, NULL);
    if (status == CKV_OK)
        status = find_cells(w);
    if (status != CKV_OK)
        return status;
    for (int64_t i = 0; i < w->total_pages * w->trace->config.tokens_per_page; i++)
        w->ids[i] = -1;
    w->is_new = true;
    json_t *sizes = json_array();
    for (size_t i = 0; i < op->num_causal_block_sizes; i++)
        json_array_append_new(sizes, json_integer(op->causal_block_sizes[i]));
    ckv_pool_view pool = ckv_pool_get_view(ckv_cache_pool(w->cache));
    json_array_append_new(w->rollouts, json_pack("{sI sI sI so si so}", "pin_tokens", (json_int_t)op->pin_tokens,
                                                 "window_tokens", (json_int_t)op->window_tokens, "max_staged_tokens",
                                                 (json_int_t)op->max_staged_tokens, "causal_block_sizes", sizes,
                                                 "guard_page", (int)pool.guard_page, "cells", cells_json(w)));
    return CKV_OK;
}

static int64_t block_size(const trace_op *op)
{
    return op->causal_block_size == 0 ? op->seq_len : op->causal_block_size;
}

static ckv_status run_op(walk *w, const trace_op *op)
{
    ckv_kv source;
    if (op->kind == TRACE_FORWARD)
        w->is_new |= op->seq_len != w->seq_len || block_size(op) != w->block_size;
    else
        w->is_new |= op->kind != TRACE_ZERO_VALUES;
    switch (op->kind) {
    case TRACE_OPEN:
        return open_rollout(w, op);
    case TRACE_WRITE_RANGE:
        source = identities(w, op->start, op->tokens);
        return ckv_cache_write_range(w->cache, 0, op->start, op->tokens, &source, NULL);
    case TRACE_FORWARD:
        source = identities(w, ckv_cache_get_state(w->cache).staging_offset, op->seq_len);
        return ckv_cache_write_staged(w->cache, 0, op->seq_len, block_size(op), &source, 1, NULL);
    case TRACE_COMMIT:
        return ckv_cache_commit(w->cache, op->tokens, NULL);
    case TRACE_ZERO_VALUES: /* keys stay */
        return CKV_OK;
    case TRACE_CLOSE:
        ckv_cache_close(w->cache);
        break;
    }
    return CKV_OK;
}

ckv_status walk_op(walk *w, const trace_op *op, problem *why)
{
    return check(run_op(w, op), why);
}

/* [first, count, ...] of ascending values; repeats count once. */
static json_t *runs_json(const int64_t *values, int64_t count)
{
    json_t *runs = json_array();
    for (int64_t i = 0; i < count;) {
        int64_t first = i;
        while (++i < count && values[i] - values[i - 1] <= 1) {
        }
        json_array_append_new(runs, json_integer(values[first]));
        json_array_append_new(runs, json_integer(values[i - 1] - values[first] + 1));
    }
    return runs;
}

/* [cell, slot, id, count, ...] of a cell that differs from what the last state showed, else NULL. */
static json_t *cell_change(walk *w, int64_t index)
{
    int64_t page_tokens = w->trace->config.tokens_per_page;
    const walk_cell *cell = &w->cells[index];
    int64_t slots = cell->pages * page_tokens, *ids = w->ids + cell->first_page * page_tokens;
    bool differs = false;
    for (int64_t i = 0; i < slots; i++) {
        int64_t id = slot_id(w, cell->first_page + i / page_tokens, i % page_tokens);
        differs |= id != ids[i];
        ids[i] = id;
    }
    if (!differs)
        return NULL;
    json_t *change = json_pack("[I]", (json_int_t)index);
    for (int64_t i = 0; i < slots;) {
        int64_t first = i++;
        while (i < slots && ids[first] >= 0 && ids[i] == ids[i - 1] + 1)
            i++;
        if (ids[first] < 0)
            continue;
        json_array_append_new(change, json_integer(first));
        json_array_append_new(change, json_integer(ids[first]));
        json_array_append_new(change, json_integer(i - first));
    }
    return change;
}

static void add_state(walk *w, const trace_op *op)
{
    ckv_cache_state state = ckv_cache_get_state(w->cache);
    json_t *changed = json_array();
    for (int64_t cell = 0; cell < w->num_cells; cell++) {
        json_t *change = cell_change(w, cell);
        if (change != NULL)
            json_array_append_new(changed, change);
    }
    json_array_append_new(w->states,
                          json_pack("{sI sI sI sI sI so}", "rollout", (json_int_t)json_array_size(w->rollouts) - 1,
                                    "committed", (json_int_t)state.committed_tokens, "fixed",
                                    (json_int_t)state.fixed_tokens, "history", (json_int_t)state.history_tokens,
                                    "staged", (json_int_t)op->seq_len, "changed", changed));
}

/* Ids that a block should read, from the definition of a window and no layout. */
static json_t *expected_runs(const walk *w, int64_t start, int64_t block)
{
    ckv_cache_state state = ckv_cache_get_state(w->cache);
    int64_t fixed = state.fixed_tokens, begin = start - state.window_tokens, end = start + block;
    if (begin <= fixed)
        return json_pack("[i,I]", 0, (json_int_t)end);
    json_int_t count = end - begin;
    if (fixed == 0)
        return json_pack("[I,I]", (json_int_t)begin, count);
    return json_pack("[i,I,I,I]", 0, (json_int_t)fixed, (json_int_t)begin, count);
}

static int compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* [block, expected ids, ids its row reads, pages of the row, keys of the row]; ids and pages as runs. */
static ckv_status read_block(walk *w, const ckv_block_view *view, int64_t block, json_t **json_out)
{
    int64_t page_tokens = w->trace->config.tokens_per_page, keys = 0;
    arena_free(&w->memory);
    float *k = arena_alloc(&w->memory, (size_t)(view->max_seq_len_kv * DIM) * sizeof *k);
    ckv_status status =
        ckv_cache_read_row(w->cache, 0, view->causal_block_size, block, view->max_seq_len_kv, k, NULL, &keys, NULL);
    if (status != CKV_OK)
        return status;
    int64_t *ids = arena_alloc(&w->memory, (size_t)keys * sizeof *ids);
    for (int64_t i = 0; i < keys; i++) {
        identity token = {-1, 0};
        identity_decode(k + i * DIM, K_PLACE, DIM, &token);
        ids[i] = token.id;
    }
    qsort(ids, (size_t)keys, sizeof *ids, compare_ids);
    int64_t pages = (keys + page_tokens - 1) / page_tokens, *row = arena_alloc(&w->memory, (size_t)pages * sizeof *row);
    for (int64_t i = 0; i < pages; i++)
        row[i] = view->rows[block * view->row_pages + i];
    qsort(row, (size_t)pages, sizeof *row, compare_ids);
    int64_t start = ckv_cache_get_state(w->cache).committed_tokens + block * view->causal_block_size;
    *json_out = json_pack("[I,o,o,o,I]", (json_int_t)block, expected_runs(w, start, view->causal_block_size),
                          runs_json(ids, keys), runs_json(row, pages), (json_int_t)keys);
    return CKV_OK;
}

static ckv_status add_layout(walk *w, const trace_op *op)
{
    ckv_block_view view;
    ckv_status status = ckv_cache_block_view(w->cache, block_size(op), &view);
    int64_t count = op->seq_len / block_size(op), shown = count < MAX_BLOCKS ? count : MAX_BLOCKS;
    json_t *blocks = json_array();
    for (int64_t i = 0; i < shown && status == CKV_OK; i++) {
        json_t *block = NULL;
        status = read_block(w, &view, shown == 1 ? 0 : i * (count - 1) / (shown - 1), &block);
        if (status == CKV_OK)
            json_array_append_new(blocks, block);
    }
    json_array_append_new(w->layouts, json_pack("{sI sI so}", "block_size", (json_int_t)block_size(op), "blocks_in_all",
                                                (json_int_t)count, "blocks", blocks));
    return status;
}

ckv_status walk_show(walk *w, const trace_op *op, json_t *forward, problem *why)
{
    ckv_status status = CKV_OK;
    if (w->is_new) {
        add_state(w, op);
        status = add_layout(w, op);
        w->is_new = false;
        w->seq_len = op->seq_len;
        w->block_size = block_size(op);
    }
    json_object_set_new(forward, "state", json_integer((json_int_t)json_array_size(w->states) - 1));
    json_object_set_new(forward, "layout", json_integer((json_int_t)json_array_size(w->layouts) - 1));
    return check(status, why);
}
