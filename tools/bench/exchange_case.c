/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/exchange_case.h"

#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "lib/cache/cache.h"
#include "lib/device/device.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKED_TOKENS = 64 };

static int64_t all_heads(const exchange_case *c)
{
    return c->heads.q_heads + 2 * c->heads.kv_heads;
}

/* What one head of one token holds: random bits that tell where they belong. Only moved, so any bits will do. */
static void make_vector(const exchange_case *c, int64_t token, int64_t head, char *out)
{
    uint64_t state = (uint64_t)(token * all_heads(c) + head) << 20;
    for (size_t at = 0; at < (size_t)c->vector_bytes; at += sizeof(uint64_t)) {
        uint64_t word = (state += 0x9e3779b97f4a7c15u);
        word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
        word = (word ^ word >> 27) * 0x94d049bb133111ebu;
        size_t left = (size_t)c->vector_bytes - at;
        memcpy(out + at, &word, left < sizeof word ? left : sizeof word);
    }
}

static ckv_status fill_shard(exchange_case *c, ckv_stream stream)
{
    size_t token_bytes = (size_t)(all_heads(c) * c->vector_bytes), bytes = (size_t)c->rows * token_bytes;
    char *host = malloc(bytes);
    if (host == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "exchange: no memory for %zu bytes", bytes);
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t head = 0; head < all_heads(c); head++)
            make_vector(c, c->rank * c->rows + row, head, host + (row * all_heads(c) + head) * c->vector_bytes);
    ckv_status status = c->device->upload(c->qkv, host, bytes, stream);
    if (status == CKV_OK)
        status = c->device->wait(stream);
    free(host);
    return status;
}

static ckv_status open_cache(exchange_case *c, ckv_stream stream)
{
    const bench_options *o = c->options;
    int64_t tokens = c->ranks * c->rows;
    ckv_pool_config pool = ckv_pool_config_default();
    ckv_rollout_config rollout = ckv_rollout_config_default();
    ckv_rollout_size size;
    rollout.max_staged_tokens = tokens;
    rollout.causal_block_sizes = &tokens;
    rollout.num_causal_block_sizes = 1;
    CKV_TRY(ckv_rollout_config_size(&rollout, o->page, &size));
    pool.device = c->device;
    pool.layers = 1;
    pool.kv_heads = c->heads.rank_kv_heads;
    pool.head_dim = c->heads.head_dim;
    pool.dtype = o->dtype;
    pool.tokens_per_page = o->page;
    pool.pool_tokens = size.pool_tokens;
    CKV_TRY(ckv_cache_create(&pool, &c->cache));
    return ckv_cache_open(c->cache, &rollout, stream);
}

static ckv_status open_tensors(exchange_case *c, ckv_stream stream)
{
    void *qkv, *out;
    int64_t head_bytes = c->rows * c->vector_bytes;
    CKV_TRY(c->device->alloc((size_t)(head_bytes * all_heads(c)), &qkv));
    c->qkv = qkv;
    CKV_TRY(c->device->alloc((size_t)(head_bytes * c->heads.q_heads), &out));
    c->out = out;
    CKV_TRY(fill_shard(c, stream));
    return open_cache(c, stream);
}

ckv_status exchange_case_open(exchange_case *c, const bench_options *options, int64_t tokens, ckv_stream stream)
{
    const model_geometry *model = &options->geometry;
    *c = (exchange_case){.options = options, .comm = options->comm, .device = options->device};
    c->rank = ckv_comm_rank(c->comm);
    c->ranks = ckv_comm_size(c->comm);
    CKV_TRY(ckv_ulysses_plan_heads(model->q_heads, model->kv_heads, model->head_dim, c->ranks, &c->heads));
    c->vector_bytes = model->head_dim * (int64_t)ckv_dtype_bytes(options->dtype);
    c->rows = ckv_ulysses_rows_per_rank(tokens, c->ranks);
    return ckv_comm_agree(options->host, open_tensors(c, stream));
}

void exchange_case_close(exchange_case *c)
{
    exchange_case_leave_path(c);
    ckv_cache_destroy(&c->cache);
    c->device->free(c->out);
    c->device->free(c->qkv);
}

ckv_status exchange_case_take_path(exchange_case *c, const char *path, ckv_stream stream)
{
    CKV_TRY(ckv_exchange_create(c->comm, c->device, &c->heads, c->vector_bytes, 1, path, &c->exchange));
    ckv_ulysses_shards shards = ckv_ulysses_split(CKV_SHARDS_PADDED, c->rows * c->ranks, c->ranks);
    CKV_TRY(ckv_exchange_make_plan(c->exchange, &shards, 0, &c->plan));
    CKV_TRY(ckv_exchange_reserve(c->exchange, &c->plan, stream));
    return CKV_OK;
}

void exchange_case_leave_path(exchange_case *c)
{
    ckv_exchange_destroy(&c->exchange);
}

static void *slice(const exchange_case *c, enum ckv_place place)
{
    return ckv_exchange_slice(c->exchange, &c->plan, place, 0);
}

static ckv_status scatter(exchange_case *c, int64_t tokens, ckv_stream stream)
{
    ckv_kv kv = ckv_kv_dense(slice(c, CKV_PLACE_K), slice(c, CKV_PLACE_V), c->heads.rank_kv_heads, c->heads.head_dim);
    return ckv_cache_write_staged(c->cache, 0, tokens, tokens, &kv, 1, stream);
}

ckv_status exchange_case_there(void *argument, ckv_stream stream)
{
    exchange_case *c = argument;
    int64_t token = all_heads(c) * c->vector_bytes, tokens = c->ranks * c->rows;
    char *k = c->qkv + c->heads.q_heads * c->vector_bytes, *v = k + c->heads.kv_heads * c->vector_bytes;
    const ckv_shard_tensor tensors[CKV_TENSORS_THERE] = {{CKV_PLACE_Q, c->qkv, token, c->vector_bytes},
                                                         {CKV_PLACE_K, k, token, c->vector_bytes},
                                                         {CKV_PLACE_V, v, token, c->vector_bytes}};
    const ckv_staged_heads staged = {.kv_heads = c->heads.rank_kv_heads, .tokens = tokens, .causal_block_size = tokens};
    ckv_scatter_kv_slots_params pages = {0};
    if (c->into_pages)
        CKV_TRY(ckv_cache_plan_staged(c->cache, &staged, &pages));
    CKV_TRY(c->exchange->path->there(c->exchange, &c->plan, 0, tensors, &pages, stream));
    return c->into_pages && !c->exchange->path->fills_pages ? scatter(c, tokens, stream) : CKV_OK;
}

ckv_status exchange_case_back(void *argument, ckv_stream stream)
{
    exchange_case *c = argument;
    const ckv_shard_tensor out = {CKV_PLACE_OUT, c->out, c->heads.q_heads * c->vector_bytes, c->vector_bytes};
    return c->exchange->path->back(c->exchange, &c->plan, 0, &out, 1, stream);
}

/* --- The check --- */

/* `count` heads of a token, on the device or not, against what its rank made. */
static ckv_status check_token(const exchange_case *c, const char *what, const char *there, int64_t token, int64_t first,
                              int64_t count, ckv_stream stream)
{
    size_t bytes = (size_t)(count * c->vector_bytes);
    char *vectors = malloc(bytes + (size_t)c->vector_bytes);
    if (vectors == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "exchange: out of memory");
    char *wanted = vectors + bytes;
    ckv_status status = c->device->download(vectors, there, bytes, stream);
    for (int64_t i = 0; i < count && status == CKV_OK; i++) {
        make_vector(c, token, first + i, wanted);
        if (memcmp(vectors + i * c->vector_bytes, wanted, (size_t)c->vector_bytes) != 0)
            status = ckv_fail(CKV_ERROR_INTERNAL, "%s of token %" PRId64 ", head %" PRId64 ", is not what was sent",
                              what, token, i);
    }
    free(vectors);
    return status;
}

static ckv_status check_tokens(exchange_case *c, ckv_stream stream)
{
    int64_t tokens = c->ranks * c->rows, step = tokens > CHECKED_TOKENS ? tokens / CHECKED_TOKENS : 1;
    const struct {
        const char *name;
        enum ckv_place place;
        int64_t first, count;
    } tensors[] = {
        {"q", CKV_PLACE_Q, c->rank * c->heads.rank_q_heads, c->heads.rank_q_heads},
        {"k", CKV_PLACE_K, c->heads.q_heads + ckv_ulysses_first_kv_head(&c->heads, c->rank), c->heads.rank_kv_heads},
        {"v", CKV_PLACE_V, c->heads.q_heads + c->heads.kv_heads + ckv_ulysses_first_kv_head(&c->heads, c->rank),
         c->heads.rank_kv_heads},
    };
    for (int64_t at = 0; at < tokens + step; at += step) {
        int64_t token = at < tokens ? at : tokens - 1, row = token - c->rank * c->rows;
        for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
            const char *there = (char *)slice(c, tensors[i].place) + token * tensors[i].count * c->vector_bytes;
            CKV_TRY(check_token(c, tensors[i].name, there, token, tensors[i].first, tensors[i].count, stream));
        }
        if (row >= 0 && row < c->rows)
            CKV_TRY(check_token(c, "the output", c->out + row * c->heads.q_heads * c->vector_bytes, token, 0,
                                c->heads.q_heads, stream));
    }
    return CKV_OK;
}

/* The block's row as a kernel reads it, against the slices. */
static ckv_status check_pages(exchange_case *c, ckv_stream stream)
{
    int64_t tokens = c->ranks * c->rows, seq_len;
    size_t bytes = (size_t)(tokens * c->heads.rank_kv_heads * c->vector_bytes);
    char *seen = malloc(4 * bytes + 1); /* of something, whatever the sizes */
    if (seen == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "exchange: out of memory");
    char *wanted = seen + 2 * bytes;
    ckv_status status = ckv_cache_read_row(c->cache, 0, tokens, 0, tokens, seen, seen + bytes, &seq_len, stream);
    if (status == CKV_OK)
        status = c->device->download(wanted, slice(c, CKV_PLACE_K), bytes, stream);
    if (status == CKV_OK)
        status = c->device->download(wanted + bytes, slice(c, CKV_PLACE_V), bytes, stream);
    if (status == CKV_OK && (seq_len != tokens || memcmp(seen, wanted, 2 * bytes) != 0))
        status = ckv_fail(CKV_ERROR_INTERNAL, "the pages do not hold the K and V that arrived");
    free(seen);
    return status;
}

/* What arrived as q is called the output and goes back. */
static ckv_status go_both_ways(exchange_case *c, ckv_stream stream)
{
    size_t token_bytes = (size_t)(c->heads.rank_q_heads * c->vector_bytes), tokens = (size_t)(c->ranks * c->rows);
    c->into_pages = true;
    CKV_TRY(exchange_case_there(c, stream));
    CKV_TRY(c->device->copy_2d(slice(c, CKV_PLACE_OUT), token_bytes, slice(c, CKV_PLACE_Q), token_bytes, token_bytes,
                               tokens, stream));
    CKV_TRY(exchange_case_back(c, stream));
    CKV_TRY(c->device->wait(stream));
    return ckv_comm_async_error(c->comm);
}

/* Nothing of an earlier exchange may pass for what this one brings. */
static ckv_status spoil(exchange_case *c, ckv_stream stream)
{
    CKV_TRY(c->device->fill(c->exchange->slices, 0xff, (size_t)c->plan.box_bytes, stream));
    CKV_TRY(c->device->fill(c->out, 0xff, (size_t)(c->rows * c->heads.q_heads * c->vector_bytes), stream));
    return c->device->wait(stream);
}

ckv_status exchange_case_check(exchange_case *c, ckv_stream stream)
{
    CKV_TRY(ckv_comm_agree(c->options->host, spoil(c, stream)));
    CKV_TRY(go_both_ways(c, stream));
    ckv_status status = check_tokens(c, stream);
    if (status == CKV_OK)
        status = check_pages(c, stream);
    return ckv_comm_agree(c->options->host, status);
}
