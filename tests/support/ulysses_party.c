/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ulysses_party.h"

#include "tests/support/case.h"
#include "tests/support/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t element_bytes(const party *p)
{
    return (int64_t)ckv_dtype_bytes(p->shape.dtype);
}

ckv_status party_open_cache(const party_shape *shape, int64_t kv_heads, const ckv_device *device, ckv_cache **cache_out)
{
    ckv_rollout_config rollout = ckv_rollout_config_default();
    rollout.pin_tokens = shape->pin_tokens;
    rollout.window_tokens = shape->window_tokens;
    rollout.max_staged_tokens = shape->max_staged_tokens;
    rollout.causal_block_sizes = shape->sizes;
    while (rollout.num_causal_block_sizes < 4 && shape->sizes[rollout.num_causal_block_sizes] > 0)
        rollout.num_causal_block_sizes++;
    ckv_rollout_size size;
    ckv_status status = ckv_rollout_config_size(&rollout, shape->tokens_per_page, &size);
    if (status != CKV_OK)
        return status;
    ckv_pool_config pool = ckv_pool_config_default();
    pool.device = device;
    pool.layers = PARTY_LAYERS;
    pool.kv_heads = kv_heads;
    pool.head_dim = shape->head_dim;
    pool.dtype = shape->dtype;
    pool.tokens_per_page = shape->tokens_per_page;
    pool.pool_tokens = size.pool_tokens;
    pool.poison_fresh_pages = 1;
    ckv_cache *cache = NULL;
    status = ckv_cache_create(&pool, &cache);
    if (status == CKV_OK)
        status = ckv_cache_open(cache, &rollout, NULL);
    if (status == CKV_OK)
        *cache_out = cache;
    else
        ckv_cache_destroy(&cache);
    return status;
}

void party_open(party *p, rank_report *report, ckv_comm *comm, const party_shape *shape, const ckv_device *device)
{
    *p = (party){.comm = comm, .rank = ckv_comm_rank(comm), .ranks = ckv_comm_size(comm), .shape = *shape};
    ckv_ulysses_config config = ckv_ulysses_config_default();
    config.q_heads = shape->q_heads;
    config.kv_heads = shape->kv_heads;
    config.head_dim = shape->head_dim;
    config.dtype = shape->dtype;
    config.device = device;
    RANK_OK(report, ckv_ulysses_kv_heads_per_rank(&config, p->ranks, &p->rank_kv_heads));
    RANK_OK(report, ckv_ulysses_create(comm, &config, &p->ulysses));
    RANK_OK(report, party_open_cache(shape, p->rank_kv_heads, device, &p->cache));
    RANK_OK(report, party_open_cache(shape, shape->kv_heads, NULL, &p->whole));
    ckv_reference_config reference = ckv_reference_config_default();
    reference.layers = PARTY_LAYERS;
    reference.q_heads = shape->q_heads;
    reference.kv_heads = shape->kv_heads;
    reference.head_dim = shape->head_dim;
    reference.dtype = shape->dtype;
    RANK_OK(report, ckv_reference_create(&reference, &p->reference));
    RANK_OK(report, ckv_reference_open(p->reference, shape->pin_tokens, shape->window_tokens));
}

void party_close(party *p)
{
    ckv_reference_destroy(&p->reference);
    ckv_cache_destroy(&p->whole);
    ckv_cache_destroy(&p->cache);
    ckv_ulysses_destroy(&p->ulysses);
}

static float padding_value(party_padding padding, ckv_random *random)
{
    switch (padding) {
    case PADDING_RANDOM:
        return 8 * ckv_random_float(random);
    case PADDING_NAN:
        return NAN;
    case PADDING_INFINITY:
        return ckv_random_next(random) & 1 ? INFINITY : -INFINITY;
    default:
        return 0;
    }
}

static void set(const party *p, void *tensor, int64_t index, float value)
{
    ckv_convert_from_float(p->shape.dtype, &value, 1, (char *)tensor + index * element_bytes(p));
}

static float get(const party *p, const void *tensor, int64_t index)
{
    float value = 0;
    ckv_convert_to_float(p->shape.dtype, (const char *)tensor + index * element_bytes(p), 1, &value);
    return value;
}

/* Point q and kv at `rows` of the fused tensor, starting at `first`. The packed helper of the library counts the
 * cache's heads, which are one rank's. */
static void point_at(const party *p, const party_tensors *t, int64_t first, ckv_attention_args *args)
{
    const party_shape *s = &p->shape;
    int64_t stride = (s->q_heads + 2 * s->kv_heads) * s->head_dim;
    const char *row = (const char *)t->qkv + first * stride * element_bytes(p);
    const char *k = row + s->q_heads * s->head_dim * element_bytes(p);
    const char *v = k + s->kv_heads * s->head_dim * element_bytes(p);
    args->q_heads = s->q_heads;
    args->q = row;
    args->q_token_stride = stride;
    args->q_head_stride = s->head_dim;
    args->kv = (ckv_kv){k, v, stride, s->head_dim, stride, s->head_dim};
}

void party_make(party *p, const party_forward *forward, party_tensors *tensors_out)
{
    const party_shape *s = &p->shape;
    party_tensors t = {.rows = ckv_ulysses_rows_per_rank(forward->seq_len, p->ranks)};
    t.padded = t.rows * p->ranks;
    int64_t width = (s->q_heads + 2 * s->kv_heads) * s->head_dim, out_width = (s->q_heads + 1) * s->head_dim;
    ckv_random random = {ckv_test_seed() + 1000 * ++p->forwards};
    t.qkv = malloc((size_t)(t.padded * width * element_bytes(p)));
    for (int64_t i = 0; i < t.padded * width; i++)
        set(p, t.qkv, i,
            i < forward->seq_len * width ? ckv_random_float(&random) : padding_value(forward->padding, &random));
    t.out_bytes = t.rows * out_width * element_bytes(p);
    t.out = malloc((size_t)t.out_bytes);
    t.out_before = malloc((size_t)t.out_bytes);
    for (int64_t i = 0; i < t.rows * out_width; i++)
        set(p, t.out, i, 77);
    memcpy(t.out_before, t.out, (size_t)t.out_bytes);
    t.lse = malloc((size_t)(t.rows * s->q_heads) * sizeof *t.lse);
    t.args = ckv_attention_args_default();
    t.args.cache = p->cache;
    t.args.layer = forward->layer;
    t.args.rows = t.rows;
    t.args.seq_len = forward->seq_len;
    t.args.causal_block_size = forward->causal_block_size;
    point_at(p, &t, p->rank * t.rows, &t.args);
    t.args.out = t.out;
    t.args.out_token_stride = out_width;
    t.args.out_head_stride = s->head_dim;
    t.args.lse = forward->without_lse ? NULL : t.lse;
    *tensors_out = t;
}

void party_free(party_tensors *t)
{
    free(t->qkv);
    free(t->out);
    free(t->out_before);
    free(t->lse);
}

/* The row of the last causal block as a kernel reads it: `length` tokens of K, then of V. */
static void read_row(rank_report *report, const ckv_cache *cache, const party_forward *f, int64_t heads_bytes,
                     char **row_out, int64_t *length_out)
{
    int64_t size = f->causal_block_size ? f->causal_block_size : f->seq_len, block = f->seq_len / size - 1;
    int64_t length = 0;
    RANK_OK(report, ckv_cache_read_row(cache, f->layer, size, block, 0, NULL, NULL, &length, NULL));
    char *row = malloc((size_t)(2 * length * heads_bytes) + 1);
    RANK_OK(report,
            ckv_cache_read_row(cache, f->layer, size, block, length, row, row + length * heads_bytes, &length, NULL));
    *row_out = row;
    *length_out = length;
}

/* This rank's cache holds exactly its heads of the whole. */
static void compare_caches(party *p, rank_report *report, const party_forward *f)
{
    int64_t vector = p->shape.head_dim * element_bytes(p), mine_bytes = p->rank_kv_heads * vector;
    int64_t whole_bytes = p->shape.kv_heads * vector, mine_length, whole_length;
    char *mine = NULL, *whole = NULL;
    RANK_STEP(report, read_row(report, p->cache, f, mine_bytes, &mine, &mine_length));
    RANK_STEP(report, read_row(report, p->whole, f, whole_bytes, &whole, &whole_length));
    RANK_CHECK(report, mine_length == whole_length);
    for (int64_t i = 0; i < 2 * mine_length; i++)
        RANK_CHECK(report, memcmp(mine + i * mine_bytes, whole + i * whole_bytes + p->rank * mine_bytes,
                                  (size_t)mine_bytes) == 0);
    free(mine);
    free(whole);
}

/* All tokens and heads on one rank. */
static void run_whole(party *p, rank_report *report, const party_tensors *t, char *out, float *lse)
{
    const party_shape *s = &p->shape;
    ckv_attention_args args = t->args;
    args.cache = p->whole;
    args.rows = args.seq_len;
    point_at(p, t, 0, &args);
    args.out = out;
    args.out_token_stride = s->q_heads * s->head_dim;
    args.out_head_stride = s->head_dim;
    args.lse = lse;
    RANK_OK(report, ckv_attention(&args, NULL));
}

static void run_reference(party *p, rank_report *report, const party_tensors *t, double *out)
{
    ckv_reference_forward forward = ckv_reference_forward_default();
    ckv_attention_args all = t->args;
    point_at(p, t, 0, &all);
    forward.layer = all.layer;
    forward.seq_len = all.seq_len;
    forward.causal_block_size = all.causal_block_size;
    forward.q = all.q;
    forward.q_token_stride = all.q_token_stride;
    forward.q_head_stride = all.q_head_stride;
    forward.kv = all.kv;
    forward.out = out;
    RANK_OK(report, ckv_reference_run(p->reference, &forward));
}

/* Real rows equal one rank bit for bit and the reference within rounding; padding rows are zero; nothing else is
 * touched. */
static void compare_rows(party *p, rank_report *report, const party_tensors *t, const char *whole,
                         const float *whole_lse, const double *reference)
{
    const party_shape *s = &p->shape;
    int64_t heads = s->q_heads * s->head_dim;
    double tolerance = s->dtype == CKV_FP32 ? 2e-6 : 1e-2;
    for (int64_t row = 0; row < t->rows; row++) {
        int64_t token = p->rank * t->rows + row, at = row * (heads + s->head_dim);
        int real = token < t->args.seq_len;
        const char *mine = (const char *)t->out + at * element_bytes(p);
        if (real)
            RANK_CHECK(report,
                       memcmp(mine, whole + token * heads * element_bytes(p), (size_t)(heads * element_bytes(p))) == 0);
        for (int64_t i = 0; i < heads; i++) {
            float value = get(p, t->out, at + i);
            RANK_CHECK(report, real ? fabs(value - reference[token * heads + i]) < tolerance : value == 0);
        }
        for (int64_t i = heads; i < heads + s->head_dim; i++)
            RANK_CHECK(report, get(p, t->out, at + i) == 77);
        for (int64_t head = 0; t->args.lse && head < s->q_heads; head++) {
            float lse = t->lse[row * s->q_heads + head];
            RANK_CHECK(report, lse == (real ? whole_lse[token * s->q_heads + head] : -INFINITY));
        }
    }
}

void party_run(party *p, rank_report *report, const party_forward *forward)
{
    party_tensors t;
    party_make(p, forward, &t);
    int64_t vectors = forward->seq_len * p->shape.q_heads;
    char *whole = malloc((size_t)(vectors * p->shape.head_dim * element_bytes(p)));
    float *lse = malloc((size_t)vectors * sizeof *lse);
    double *reference = malloc((size_t)(vectors * p->shape.head_dim) * sizeof *reference);
    RANK_OK(report, ckv_ulysses_attention(p->ulysses, &t.args, NULL));
    RANK_STEP(report, run_whole(p, report, &t, whole, lse));
    RANK_STEP(report, run_reference(p, report, &t, reference));
    RANK_STEP(report, compare_rows(p, report, &t, whole, lse, reference));
    RANK_STEP(report, compare_caches(p, report, forward));
    free(reference);
    free(lse);
    free(whole);
    party_free(&t);
}

void party_commit(party *p, rank_report *report, int64_t tokens)
{
    int64_t before = ckv_cache_get_state(p->cache).committed_tokens;
    RANK_OK(report, ckv_cache_commit(p->cache, tokens, NULL));
    RANK_OK(report, ckv_cache_commit(p->whole, tokens, NULL));
    RANK_OK(report, ckv_reference_commit(p->reference, tokens));
    ckv_cache_state mine = ckv_cache_get_state(p->cache), whole = ckv_cache_get_state(p->whole);
    RANK_CHECK(report, mine.committed_tokens == before + tokens);
    RANK_CHECK(report, mine.staging_offset == whole.staging_offset);
}

void party_refused(party *p, rank_report *report, const party_tensors *t, const ckv_attention_args *args,
                   ckv_status expected, const char *detail)
{
    ckv_pool *pool = ckv_cache_pool(p->cache);
    size_t bytes = (size_t)ckv_pool_bytes(pool);
    const void *memory = ckv_pool_get_view(pool).base;
    void *before = malloc(bytes);
    memcpy(before, memory, bytes);
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    RANK_STATUS(report, ckv_ulysses_attention(p->ulysses, args, NULL), expected);
    RANK_DETAIL(report, detail);
    ckv_cache_state after = ckv_cache_get_state(p->cache);
    RANK_CHECK(report, memcmp(before, memory, bytes) == 0);
    RANK_CHECK(report, after.committed_tokens == state.committed_tokens);
    RANK_CHECK(report, after.staging_offset == state.staging_offset);
    RANK_CHECK(report, memcmp(t->out, t->out_before, (size_t)t->out_bytes) == 0);
    free(before);
}
