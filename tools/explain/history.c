/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/explain/history.h"

#include "tools/trace/replay.h"
#include "tools/window/identity.h"

#include <inttypes.h>
#include <string.h>

static const identity_place K_PLACE = {.is_v = 0}, V_PLACE = {.is_v = 1};

void history_add(arena *memory, history_keys *list, history_key *key)
{
    if ((list->count & (list->count - 1)) == 0) { /* full at every power of two */
        history_key **grown = arena_alloc(memory, (size_t)(2 * list->count + 1) * sizeof(history_key *));
        if (list->count > 0)
            memcpy(grown, list->keys, (size_t)list->count * sizeof(history_key *));
        list->keys = grown;
    }
    list->keys[list->count++] = key;
}

static ckv_status check(ckv_status status, problem *why)
{
    if (status != CKV_OK)
        problem_format(why, "%s", ckv_last_error());
    return status;
}

static int64_t rows_per_rank(const history *h, const trace_op *op)
{
    return (op->seq_len + h->ranks - 1) / h->ranks;
}

int64_t history_rank_of(const history *h, const trace_op *op, int64_t row)
{
    int64_t rank = h->ranks == 1 ? 0 : row / rows_per_rank(h, op); /* one rank keeps all the padding there is */
    return rank < h->ranks ? rank : -1;
}

static history_key *make_key(const history *h, const trace_op *op, int64_t row)
{
    size_t bytes =
        (size_t)(h->trace->config.kv_heads * h->trace->config.head_dim) * ckv_dtype_bytes(h->trace->config.dtype);
    history_key *key = arena_alloc(h->memory, sizeof *key);
    key->k = (const char *)op->k + (size_t)row * bytes;
    key->v = (const char *)op->v + (size_t)row * bytes;
    key->id = key->page = key->slot = key->rank = key->forward = -1;
    key->row = row;
    if (op->kind == TRACE_FORWARD)
        key->rank = history_rank_of(h, op, row);
    return key;
}

/* The id of a resident position, as the exact-window reference counts. */
static int64_t position_id(const history *h, int64_t position)
{
    ckv_cache_state state = ckv_cache_get_state(h->cache);
    return position < state.fixed_tokens ? position : position + state.committed_tokens - state.staging_offset;
}

static void set_token(history *h, int64_t id, history_key *key)
{
    key->id = id;
    key->order = 2 * id;
    key->version = h->versions;
    while (h->tokens.count <= id)
        history_add(h->memory, &h->tokens, NULL);
    h->tokens.keys[id] = key;
}

/* `tokens` identities from `position`, dense K and V. */
static ckv_kv identities(const history *h, int64_t position, int64_t tokens)
{
    float *planes = arena_alloc(h->memory, (size_t)(2 * tokens * IDENTITY_MIN_HEAD_DIM) * sizeof *planes);
    float *v = planes + tokens * IDENTITY_MIN_HEAD_DIM;
    for (int64_t i = 0; i < tokens; i++) {
        identity token = {position_id(h, position + i), h->versions};
        identity_encode(token, K_PLACE, IDENTITY_MIN_HEAD_DIM, planes + i * IDENTITY_MIN_HEAD_DIM);
        identity_encode(token, V_PLACE, IDENTITY_MIN_HEAD_DIM, v + i * IDENTITY_MIN_HEAD_DIM);
    }
    return ckv_kv_dense(planes, v, 1, IDENTITY_MIN_HEAD_DIM);
}

static ckv_status run_write(history *h, const trace_op *op)
{
    h->versions++;
    ckv_kv source = identities(h, op->start, op->tokens);
    ckv_status status = ckv_cache_write_range(h->cache, 0, op->start, op->tokens, &source, NULL);
    for (int64_t i = 0; i < op->tokens && status == CKV_OK; i++)
        set_token(h, position_id(h, op->start + i), make_key(h, op, i));
    return status;
}

static ckv_status run_zero_values(const history *h, const trace_op *op)
{
    ckv_status status = ckv_cache_zero_values(h->cache, 0, op->start, op->tokens, NULL);
    size_t bytes =
        (size_t)(h->trace->config.kv_heads * h->trace->config.head_dim) * ckv_dtype_bytes(h->trace->config.dtype);
    const void *zeros = arena_alloc(h->memory, bytes);
    for (int64_t i = 0; i < op->tokens && status == CKV_OK; i++) {
        int64_t id = position_id(h, op->start + i);
        if (id < h->tokens.count && h->tokens.keys[id] != NULL)
            h->tokens.keys[id]->v = zeros;
    }
    return status;
}

static ckv_status run_forward(history *h, const trace_op *op, int64_t forward)
{
    h->versions++;
    int64_t staging = ckv_cache_get_state(h->cache).staging_offset;
    int64_t block = op->causal_block_size == 0 ? op->seq_len : op->causal_block_size;
    ckv_kv source = identities(h, staging, op->seq_len);
    ckv_status status = ckv_cache_write_staged(h->cache, 0, op->seq_len, block, &source, 1, NULL);
    for (int64_t i = 0; i < op->seq_len && status == CKV_OK; i++) {
        history_key *key = make_key(h, op, i);
        key->forward = forward;
        set_token(h, position_id(h, staging + i), key);
    }
    h->staged = op;
    h->staged_forward = forward;
    h->block_size = block;
    return status;
}

static void add_padding(const history *h, history_keys *list, const trace_op *op, int64_t forward, int64_t next_id)
{
    for (int64_t row = op->seq_len; row < op->rows; row++) {
        history_key *key = make_key(h, op, row);
        key->forward = forward;
        key->order = 2 * next_id - 1;
        history_add(h->memory, list, key);
    }
}

static ckv_status run_commit(history *h, const trace_op *op)
{
    ckv_status status = ckv_cache_commit(h->cache, op->tokens, NULL);
    if (status == CKV_OK && h->staged != NULL && h->staged->seq_len == op->tokens)
        add_padding(h, &h->padding, h->staged, h->staged_forward, ckv_cache_get_state(h->cache).committed_tokens);
    h->staged = NULL;
    return status;
}

static ckv_status run_open(history *h, const trace_op *op)
{
    ckv_rollout_config config = ckv_rollout_config_default();
    config.pin_tokens = op->pin_tokens;
    config.window_tokens = op->window_tokens;
    config.max_staged_tokens = op->max_staged_tokens;
    config.causal_block_sizes = op->causal_block_sizes;
    config.num_causal_block_sizes = op->num_causal_block_sizes;
    h->tokens.count = h->padding.count = 0;
    h->staged = NULL;
    h->versions = 0;
    return ckv_cache_open(h->cache, &config, NULL);
}

static ckv_status run_op(history *h, const trace_op *op, int64_t forward)
{
    switch (op->kind) {
    case TRACE_OPEN:
        return run_open(h, op);
    case TRACE_WRITE_RANGE:
        return op->layer == h->op->layer ? run_write(h, op) : CKV_OK;
    case TRACE_ZERO_VALUES:
        return op->layer == h->op->layer ? run_zero_values(h, op) : CKV_OK;
    case TRACE_FORWARD:
        return op->layer == h->op->layer ? run_forward(h, op, forward) : CKV_OK;
    case TRACE_COMMIT:
        return run_commit(h, op);
    case TRACE_CLOSE:
        ckv_cache_close(h->cache);
        break;
    }
    return CKV_OK;
}

/* One layer, one head, and just the elements that hold an identity. */
static ckv_status create_cache(history *h, problem *why)
{
    trace small = *h->trace;
    ckv_pool_config pool = ckv_pool_config_default();
    small.config.layers = pool.layers = 1;
    small.config.kv_heads = pool.kv_heads = 1;
    small.config.head_dim = pool.head_dim = IDENTITY_MIN_HEAD_DIM;
    small.config.dtype = pool.dtype = CKV_FP32;
    pool.tokens_per_page = small.config.tokens_per_page;
    pool.poison_fresh_pages = 1;
    size_t op = 0;
    problem cause;
    ckv_status status = replay_pool_tokens(&small, 1, &pool.pool_tokens, &op, &cause);
    if (status != CKV_OK)
        problem_format(why, "op %zu: %s", op, cause.text);
    return status == CKV_OK ? check(ckv_cache_create(&pool, &h->cache), why) : status;
}

static ckv_status find_forward(history *h, int64_t forward, size_t *index_out, problem *why)
{
    int64_t forwards = 0;
    for (size_t i = 0; i < h->trace->num_ops; i++) {
        if (h->trace->ops[i].kind != TRACE_FORWARD || forwards++ != forward)
            continue;
        h->op = &h->trace->ops[i];
        *index_out = i;
        return CKV_OK;
    }
    problem_format(why, "there is no forward %" PRId64 ": the trace has %" PRId64 ", counted from 0", forward,
                   forwards);
    return CKV_ERROR_INVALID;
}

/* What the first block reads and is there, is there for every later one: windows only move on. */
static ckv_status check_written(const history *h, problem *why)
{
    history_keys window = history_window(h, 0);
    for (int64_t i = 0; i < window.count; i++) {
        if (window.keys[i] != NULL)
            continue;
        problem_format(why, "forward %" PRId64 " would read a token that was never written in layer %" PRId64,
                       h->forward, h->op->layer);
        return CKV_ERROR_STATE;
    }
    return CKV_OK;
}

ckv_status history_open(history *h, const trace *t, int64_t forward, int64_t ranks, arena *memory, problem *why)
{
    *h = (history){.trace = t, .memory = memory, .ranks = ranks, .forward = forward};
    size_t last = 0;
    ckv_status status = find_forward(h, forward, &last, why);
    if (status == CKV_OK)
        status = create_cache(h, why);
    int64_t forwards = 0;
    for (size_t i = 0; i <= last && status == CKV_OK; i++) {
        status = run_op(h, &t->ops[i], forwards);
        forwards += t->ops[i].kind == TRACE_FORWARD;
        if (status != CKV_OK)
            problem_format(why, "op %zu (%s): %s", i, trace_op_name(t->ops[i].kind), ckv_last_error());
    }
    if (status != CKV_OK)
        return status;
    h->state = ckv_cache_get_state(h->cache);
    h->committed = h->state.committed_tokens;
    add_padding(h, &h->own_padding, h->op, forward, h->committed + h->op->seq_len);
    h->padded_tokens = ranks * rows_per_rank(h, h->op);
    if (h->padded_tokens < h->op->rows)
        h->padded_tokens = h->op->rows;
    return check_written(h, why);
}

void history_close(history *h)
{
    ckv_cache_destroy(&h->cache);
}

history_keys history_window(const history *h, int64_t row)
{
    int64_t last_row = row < h->op->seq_len ? row : h->op->seq_len - 1;
    int64_t start = h->committed + last_row / h->block_size * h->block_size;
    history_keys window = {0};
    for (int64_t id = 0; id < start + h->block_size; id++)
        if (id < h->state.fixed_tokens || id >= start - h->state.window_tokens)
            history_add(h->memory, &window, h->tokens.keys[id]);
    return window;
}

/* One key of the row: which token it is, from its stored K. */
static ckv_status note_place(const history *h, const history_keys *window, int64_t index, const float *vector,
                             int64_t page, problem *why)
{
    identity token = {-1, 0};
    identity_kind kind = identity_decode(vector, K_PLACE, IDENTITY_MIN_HEAD_DIM, &token);
    history_key *key = kind == IDENTITY_TOKEN && token.id < h->tokens.count ? h->tokens.keys[token.id] : NULL;
    if (key == NULL || key->version != token.version || key->page >= 0 || index >= window->count) {
        problem_format(why, "key %" PRId64 " of the row is token %" PRId64 " version %" PRId64 ": not the window",
                       index, token.id, token.version);
        return CKV_ERROR_INTERNAL;
    }
    key->page = page;
    key->slot = index % h->trace->config.tokens_per_page;
    return CKV_OK;
}

ckv_status history_locate(const history *h, int64_t row, const history_keys *window, problem *why)
{
    int64_t last_row = row < h->op->seq_len ? row : h->op->seq_len - 1, block = last_row / h->block_size, keys = 0;
    float *k = arena_alloc(h->memory, (size_t)(window->count * IDENTITY_MIN_HEAD_DIM) * sizeof *k);
    ckv_block_view view;
    ckv_status status = ckv_cache_block_view(h->cache, h->block_size, &view);
    if (status == CKV_OK)
        status = ckv_cache_read_row(h->cache, 0, h->block_size, block, window->count, k, NULL, &keys, NULL);
    if (check(status, why) != CKV_OK)
        return status;
    for (int64_t i = 0; i < keys && status == CKV_OK; i++)
        status = note_place(h, window, i, k + i * IDENTITY_MIN_HEAD_DIM,
                            view.rows[block * view.row_pages + i / h->trace->config.tokens_per_page], why);
    if (status == CKV_OK && keys != window->count) {
        problem_format(why, "the row has %" PRId64 " keys, its window %" PRId64, keys, window->count);
        return CKV_ERROR_INTERNAL;
    }
    return status;
}
