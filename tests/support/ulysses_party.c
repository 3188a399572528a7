/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ulysses_party.h"

#include "lib/device/device.h"
#include "tests/support/case.h"
#include "tests/support/random_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

party_setup party_uses;

const ckv_device *party_device(void)
{
    return party_uses.device != NULL ? party_uses.device : &ckv_device_host;
}

int party_on_gpu(void)
{
    return !party_device()->host_addressable;
}

static const ckv_device *device_of(const party *p)
{
    return p->shape.device;
}

static int64_t element_bytes(const party *p)
{
    return (int64_t)ckv_dtype_bytes(p->shape.dtype);
}

/* --- Opening --- */

party_shape party_fit(const party_shape *shape)
{
    party_shape fitted = *shape;
    if (fitted.device == NULL)
        fitted.device = party_device();
    if (fitted.exchange == NULL)
        fitted.exchange = party_uses.exchange;
    if (fitted.device->host_addressable)
        return fitted;
    if (fitted.dtype == CKV_FP32)
        fitted.dtype = CKV_BF16;
    fitted.head_dim = fitted.head_dim <= 8 ? 64 : 128;
    if (fitted.tokens_per_page < 16)
        fitted.tokens_per_page = 16;
    return fitted;
}

ckv_ulysses_config party_config(const party_shape *shape)
{
    ckv_ulysses_config config = ckv_ulysses_config_default();
    config.q_heads = shape->q_heads;
    config.kv_heads = shape->kv_heads;
    config.head_dim = shape->head_dim;
    config.dtype = shape->dtype;
    config.device = shape->device;
    config.sharding = shape->sharding;
    config.exchange = shape->exchange;
    config.overlap_parts = shape->overlap_parts;
    return config;
}

ckv_status party_open_cache(const party_shape *shape, int64_t kv_heads, ckv_cache **cache_out)
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
    pool.device = shape->device;
    pool.layers = PARTY_LAYERS;
    pool.kv_heads = kv_heads;
    pool.head_dim = shape->head_dim;
    pool.tensor_dtype = shape->dtype;
    pool.dtype = shape->fp8_pages ? CKV_FP8_E4M3 : shape->dtype;
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

static void open_reference(party *p, rank_report *report)
{
    const party_shape *s = &p->shape;
    ckv_reference_config reference = ckv_reference_config_default();
    reference.layers = PARTY_LAYERS;
    reference.q_heads = s->q_heads;
    reference.kv_heads = s->kv_heads;
    reference.head_dim = s->head_dim;
    reference.dtype = s->dtype;
    RANK_OK(report, ckv_reference_create(&reference, &p->reference));
    RANK_OK(report, ckv_reference_open(p->reference, s->pin_tokens, s->window_tokens));
}

void party_open(party *p, rank_report *report, ckv_comm *comm, const party_shape *shape)
{
    *p = (party){.comm = comm, .rank = ckv_comm_rank(comm), .ranks = ckv_comm_size(comm), .shape = party_fit(shape)};
    ckv_ulysses_config config = party_config(&p->shape);
    RANK_OK(report, ckv_ulysses_kv_heads_per_rank(&config, p->ranks, &p->rank_kv_heads));
    RANK_OK(report, ckv_ulysses_create(comm, &config, &p->ulysses));
    RANK_OK(report, party_open_cache(&p->shape, p->rank_kv_heads, &p->cache));
    RANK_OK(report, party_open_cache(&p->shape, p->shape.kv_heads, &p->whole));
    if (!shape->without_reference)
        open_reference(p, report);
}

void party_close(party *p)
{
    ckv_reference_destroy(&p->reference);
    ckv_cache_destroy(&p->whole);
    ckv_cache_destroy(&p->cache);
    ckv_ulysses_destroy(&p->ulysses);
}

/* --- Tensors --- */

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

static int64_t fused_width(const party_shape *s)
{
    return (s->q_heads + 2 * s->kv_heads) * s->head_dim;
}

/* Point q and kv at `rows` of the fused tensor, starting at `first`. The packed helper of the library counts the
 * cache's heads, which are one rank's. */
static void point_at(const party *p, const void *qkv, int64_t first, ckv_attention_args *args)
{
    const party_shape *s = &p->shape;
    int64_t stride = fused_width(s);
    const char *row = (const char *)qkv + first * stride * element_bytes(p);
    const char *k = row + s->q_heads * s->head_dim * element_bytes(p);
    const char *v = k + s->kv_heads * s->head_dim * element_bytes(p);
    args->q_heads = s->q_heads;
    args->q = row;
    args->q_token_stride = stride;
    args->q_head_stride = s->head_dim;
    args->kv = (ckv_kv){k, v, stride, s->head_dim, stride, s->head_dim};
}

static void count_rows(const party *p, int64_t seq_len, party_tensors *t)
{
    for (int rank = 0; rank < p->ranks; rank++) {
        int64_t rows = ckv_ulysses_rows_of_rank(p->shape.sharding, seq_len, p->ranks, rank);
        if (rank < p->rank)
            t->first_row += rows;
        if (rank == p->rank)
            t->rows = rows;
        t->padded += rows;
    }
}

/* All scales are 1. */
static void round_to_pages(const party *p, void *tensor, int64_t count)
{
    for (int64_t i = 0; p->shape.fp8_pages && i < count; i++) {
        float value = get_element(p->shape.dtype, tensor, i);
        set_element(CKV_FP8_E4M3, &value, 0, value);
        set_element(p->shape.dtype, tensor, i, get_element(CKV_FP8_E4M3, &value, 0));
    }
}

static void fill(party *p, const party_forward *forward, const party_tensors *t)
{
    int64_t width = fused_width(&p->shape);
    ckv_random random = {ckv_test_seed() + 1000 * ++p->forwards};
    for (int64_t i = 0; i < t->padded * width; i++)
        set_element(p->shape.dtype, t->qkv, i,
                    i < forward->seq_len * width ? ckv_random_float(&random)
                                                 : padding_value(forward->padding, &random));
    round_to_pages(p, t->qkv, forward->seq_len * width);
    fill_value(p->shape.dtype, t->out_before, t->out_bytes / element_bytes(p), 77);
}

/* A rank without rows has no tensors; that it wants an lse like the others, an address says. */
static void describe(const party *p, const party_forward *forward, party_tensors *t)
{
    const party_shape *s = &p->shape;
    t->args = ckv_attention_args_default();
    t->args.cache = p->cache;
    t->args.layer = forward->layer;
    t->args.q_heads = s->q_heads;
    t->args.rows = t->rows;
    t->args.seq_len = forward->seq_len;
    t->args.causal_block_size = forward->causal_block_size;
    t->args.backend = s->fp8_pages ? NULL : party_uses.backend;
    t->args.lse = forward->without_lse ? NULL : t->device_lse;
    if (t->rows == 0)
        return;
    point_at(p, t->device_qkv, t->first_row, &t->args);
    t->args.out = t->device_out;
    t->args.out_token_stride = (s->q_heads + 1) * s->head_dim;
    t->args.out_head_stride = s->head_dim;
}

void party_upload(const party *p, rank_report *report, const party_tensors *t)
{
    RANK_OK(report, ckv_device_upload(device_of(p), t->device_qkv, t->qkv, (size_t)t->qkv_bytes, NULL));
    RANK_OK(report, ckv_device_upload(device_of(p), t->device_out, t->out_before, (size_t)t->out_bytes, NULL));
}

void party_download(const party *p, rank_report *report, const party_tensors *t)
{
    RANK_OK(report, ckv_device_download(device_of(p), t->out, t->device_out, (size_t)t->out_bytes, NULL));
    RANK_OK(report, ckv_device_download(device_of(p), t->lse, t->device_lse, (size_t)t->lse_bytes, NULL));
}

void party_make(party *p, rank_report *report, const party_forward *forward, party_tensors *tensors_out)
{
    const party_shape *s = &p->shape;
    party_tensors t = {0};
    count_rows(p, forward->seq_len, &t);
    t.qkv_bytes = t.padded * fused_width(s) * element_bytes(p);
    t.out_bytes = t.rows * (s->q_heads + 1) * s->head_dim * element_bytes(p);
    t.lse_bytes = t.rows * s->q_heads * (int64_t)sizeof(float);
    t.qkv = malloc((size_t)t.qkv_bytes);
    t.out = malloc((size_t)t.out_bytes + 1); /* there may be no rows */
    t.out_before = malloc((size_t)t.out_bytes + 1);
    t.lse = malloc((size_t)t.lse_bytes + sizeof(float));
    fill(p, forward, &t);
    RANK_OK(report, ckv_device_alloc(device_of(p), (size_t)t.qkv_bytes, &t.device_qkv));
    RANK_OK(report, ckv_device_alloc(device_of(p), (size_t)t.out_bytes + 1, &t.device_out));
    RANK_OK(report, ckv_device_alloc(device_of(p), (size_t)t.lse_bytes + sizeof(float), &t.device_lse));
    RANK_STEP(report, party_upload(p, report, &t));
    describe(p, forward, &t);
    *tensors_out = t;
}

void party_renew(party *p, rank_report *report, const party_forward *forward, const party_tensors *t)
{
    fill(p, forward, t);
    party_upload(p, report, t);
}

void party_free(const party *p, party_tensors *t)
{
    ckv_device_free(device_of(p), t->device_qkv);
    ckv_device_free(device_of(p), t->device_out);
    ckv_device_free(device_of(p), t->device_lse);
    free(t->qkv);
    free(t->out);
    free(t->out_before);
    free(t->lse);
}

/* --- Running --- */

void party_attend(party *p, rank_report *report, const party_tensors *t)
{
    RANK_OK(report, ckv_ulysses_attention(p->ulysses, &t->args, NULL));
    RANK_STEP(report, party_download(p, report, t));
    RANK_OK(report, ckv_comm_async_error(p->comm));
}

/* All tokens and heads on one rank. `out` and `lse` are host memory. */
static void run_whole(party *p, rank_report *report, const party_tensors *t, void *out, float *lse)
{
    const party_shape *s = &p->shape;
    size_t vectors = (size_t)(t->args.seq_len * s->q_heads);
    size_t out_bytes = vectors * (size_t)(s->head_dim * element_bytes(p)), lse_bytes = vectors * sizeof(float);
    void *device_out = NULL, *device_lse = NULL;
    RANK_OK(report, ckv_device_alloc(device_of(p), out_bytes, &device_out));
    RANK_OK(report, ckv_device_alloc(device_of(p), lse_bytes, &device_lse));
    ckv_attention_args args = t->args;
    args.cache = p->whole;
    args.rows = args.seq_len;
    point_at(p, t->device_qkv, 0, &args);
    args.out = device_out;
    args.out_token_stride = s->q_heads * s->head_dim;
    args.out_head_stride = s->head_dim;
    args.lse = device_lse;
    RANK_OK(report, ckv_attention(&args, NULL));
    RANK_OK(report, ckv_device_download(device_of(p), out, device_out, out_bytes, NULL));
    RANK_OK(report, ckv_device_download(device_of(p), lse, device_lse, lse_bytes, NULL));
    ckv_device_free(device_of(p), device_out);
    ckv_device_free(device_of(p), device_lse);
}

static void run_reference(party *p, rank_report *report, const party_tensors *t, double *out, double *lse)
{
    ckv_reference_forward forward = ckv_reference_forward_default();
    ckv_attention_args all = t->args;
    point_at(p, t->qkv, 0, &all);
    forward.layer = all.layer;
    forward.seq_len = all.seq_len;
    forward.causal_block_size = all.causal_block_size;
    forward.q = all.q;
    forward.q_token_stride = all.q_token_stride;
    forward.q_head_stride = all.q_head_stride;
    forward.kv = all.kv;
    forward.out = out;
    forward.lse = lse;
    RANK_OK(report, ckv_reference_run(p->reference, &forward));
}

/* --- Comparing --- */

/* What one rank and the reference make of a forward: [seq_len, q_heads(, head_dim)]. */
typedef struct expectation {
    void *whole;
    float *whole_lse;
    double *exact, *exact_lse; /* NULL without the reference */
} expectation;

/* The row of a causal block as a kernel reads it: `length` tokens of K, then of V. */
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

/* This rank's cache holds exactly its heads of the whole: the last causal block's row, bit for bit. */
static void compare_caches(party *p, rank_report *report, const party_forward *f)
{
    int64_t page_element = p->shape.fp8_pages ? 1 : element_bytes(p);
    int64_t vector = p->shape.head_dim * page_element, mine_bytes = p->rank_kv_heads * vector;
    int64_t whole_bytes = p->shape.kv_heads * vector, mine_length, whole_length;
    int64_t first_head = p->rank * p->shape.kv_heads / p->ranks;
    char *mine = NULL, *whole = NULL;
    RANK_STEP(report, read_row(report, p->cache, f, mine_bytes, &mine, &mine_length));
    RANK_STEP(report, read_row(report, p->whole, f, whole_bytes, &whole, &whole_length));
    RANK_CHECK(report, mine_length == whole_length);
    for (int64_t i = 0; i < 2 * mine_length; i++)
        RANK_CHECK(report, memcmp(mine + i * mine_bytes, whole + i * whole_bytes + first_head * vector,
                                  (size_t)mine_bytes) == 0);
    free(mine);
    free(whole);
}

static const double unit[] = {[CKV_FP32] = 0x1p-24, [CKV_BF16] = 0x1p-8, [CKV_FP16] = 0x1p-11};

/* How far a result may be from the exact one, besides the rounding of the result: float sums, and on a GPU each key's
 * weight rounded to the dtype, whose errors do not add up over the keys of a row. */
static void find_tolerance(const party *p, rank_report *report, const party_tensors *t, int64_t token,
                           double *tolerance_out)
{
    *tolerance_out = 2e-6;
    if (device_of(p)->host_addressable)
        return;
    int64_t size = t->args.causal_block_size ? t->args.causal_block_size : t->args.seq_len, keys = 0;
    RANK_OK(report, ckv_cache_read_row(p->cache, t->args.layer, size, token / size, 0, NULL, NULL, &keys, NULL));
    *tolerance_out = unit[p->shape.dtype] * 1.5 / sqrt((double)keys) + 1e-5;
}

static int is_near(double value, double expected, double tolerance)
{
    return fabs(value - expected) <= tolerance;
}

/* One real row. One rank is as far from the exact result as this one, so two may be twice as far apart. */
static void compare_row(const party *p, rank_report *report, const party_tensors *t, int64_t row,
                        const expectation *expected, double tolerance)
{
    const party_shape *s = &p->shape;
    int64_t heads = s->q_heads * s->head_dim, at = row * (heads + s->head_dim), first = (t->first_row + row) * heads;
    const double relative = 1.01 * unit[s->dtype];
    if (device_of(p)->host_addressable)
        RANK_CHECK(report, memcmp((const char *)t->out + at * element_bytes(p),
                                  (const char *)expected->whole + first * element_bytes(p),
                                  (size_t)(heads * element_bytes(p))) == 0);
    for (int64_t i = 0; i < heads; i++) {
        double value = get_element(s->dtype, t->out, at + i), whole = get_element(s->dtype, expected->whole, first + i);
        RANK_CHECK(report, is_near(value, whole, 2 * (relative * fabs(whole) + tolerance)));
        if (expected->exact != NULL)
            RANK_CHECK(report, is_near(value, expected->exact[first + i],
                                       relative * fabs(expected->exact[first + i]) + tolerance));
    }
}

static void compare_lse(const party *p, rank_report *report, const party_tensors *t, int64_t row,
                        const expectation *expected)
{
    int on_host = device_of(p)->host_addressable;
    const double rounding =
        on_host ? 4e-6 : 2e-4; /* a GPU folds the scale into exp2, and its logarithm is a fast one */
    for (int64_t head = 0; head < p->shape.q_heads; head++) {
        double lse = t->lse[row * p->shape.q_heads + head];
        int64_t at = (t->first_row + row) * p->shape.q_heads + head;
        double whole = expected->whole_lse[at], tolerance = rounding * (1 + fabs(whole) / 40);
        RANK_CHECK(report, is_near(lse, whole, on_host ? 0 : 2 * tolerance));
        if (expected->exact_lse != NULL)
            RANK_CHECK(report, is_near(lse, expected->exact_lse[at], tolerance));
    }
}

static void check_padding_row(const party *p, rank_report *report, const party_tensors *t, int64_t row)
{
    const party_shape *s = &p->shape;
    int64_t heads = s->q_heads * s->head_dim;
    for (int64_t i = 0; i < heads; i++)
        RANK_CHECK(report, get_element(s->dtype, t->out, row * (heads + s->head_dim) + i) == 0);
    for (int64_t head = 0; t->args.lse != NULL && head < s->q_heads; head++)
        RANK_CHECK(report, t->lse[row * s->q_heads + head] == -INFINITY);
}

/* Real rows are right, padding rows zero, and nothing else is touched. */
static void compare_rows(const party *p, rank_report *report, const party_tensors *t, const expectation *expected)
{
    const party_shape *s = &p->shape;
    int64_t heads = s->q_heads * s->head_dim, size = t->args.causal_block_size ? t->args.causal_block_size : 0;
    double tolerance = -1;
    for (int64_t row = 0; row < t->rows; row++) {
        int64_t token = t->first_row + row;
        for (int64_t i = heads; i < heads + s->head_dim; i++)
            RANK_CHECK(report, get_element(s->dtype, t->out, row * (heads + s->head_dim) + i) == 77);
        if (token >= t->args.seq_len) {
            RANK_STEP(report, check_padding_row(p, report, t, row));
            continue;
        }
        if (tolerance < 0 || (size > 0 && token % size == 0))
            RANK_STEP(report, find_tolerance(p, report, t, token, &tolerance));
        RANK_STEP(report, compare_row(p, report, t, row, expected, tolerance));
        if (t->args.lse != NULL)
            RANK_STEP(report, compare_lse(p, report, t, row, expected));
    }
}

static void compare_all(party *p, rank_report *report, const party_forward *forward, const party_tensors *t,
                        const expectation *expected)
{
    RANK_STEP(report, party_download(p, report, t));
    RANK_STEP(report, run_whole(p, report, t, expected->whole, expected->whole_lse));
    if (expected->exact != NULL)
        RANK_STEP(report, run_reference(p, report, t, expected->exact, expected->exact_lse));
    RANK_STEP(report, compare_rows(p, report, t, expected));
    RANK_STEP(report, compare_caches(p, report, forward));
}

void party_compare(party *p, rank_report *report, const party_forward *forward, const party_tensors *t)
{
    size_t vectors = (size_t)(forward->seq_len * p->shape.q_heads), elements = vectors * (size_t)p->shape.head_dim;
    expectation expected = {.whole = malloc(elements * (size_t)element_bytes(p)),
                            .whole_lse = malloc(vectors * sizeof(float))};
    if (p->reference != NULL) {
        expected.exact = malloc(elements * sizeof(double));
        expected.exact_lse = malloc(vectors * sizeof(double));
    }
    compare_all(p, report, forward, t, &expected);
    free(expected.exact_lse);
    free(expected.exact);
    free(expected.whole_lse);
    free(expected.whole);
}

void party_run(party *p, rank_report *report, const party_forward *forward)
{
    party_tensors t = {0};
    RANK_STEP(report, party_make(p, report, forward, &t));
    RANK_STEP(report, party_attend(p, report, &t));
    RANK_STEP(report, party_compare(p, report, forward, &t));
    party_free(p, &t);
}

void party_commit(party *p, rank_report *report, int64_t tokens)
{
    int64_t before = ckv_cache_get_state(p->cache).committed_tokens;
    RANK_OK(report, ckv_cache_commit(p->cache, tokens, NULL));
    RANK_OK(report, ckv_cache_commit(p->whole, tokens, NULL));
    if (p->reference != NULL)
        RANK_OK(report, ckv_reference_commit(p->reference, tokens));
    ckv_cache_state mine = ckv_cache_get_state(p->cache), whole = ckv_cache_get_state(p->whole);
    RANK_CHECK(report, mine.committed_tokens == before + tokens);
    RANK_CHECK(report, mine.staging_offset == whole.staging_offset);
}

void party_step(party *p, rank_report *report, const party_forward *forward, int64_t commit_tokens)
{
    party_forward f = *forward;
    for (f.layer = 0; f.layer < PARTY_LAYERS; f.layer++)
        RANK_STEP(report, party_run(p, report, &f));
    party_commit(p, report, commit_tokens);
}

static void write_prompt(const party *p, rank_report *report, int64_t layer, int64_t tokens, const void *prompt)
{
    const party_shape *s = &p->shape;
    int64_t half = tokens * s->kv_heads * s->head_dim * element_bytes(p);
    void *memory = NULL;
    RANK_OK(report, ckv_device_alloc(device_of(p), (size_t)(2 * half), &memory));
    RANK_OK(report, ckv_device_upload(device_of(p), memory, prompt, (size_t)(2 * half), NULL));
    ckv_kv there = ckv_kv_dense(memory, (const char *)memory + half, s->kv_heads, s->head_dim);
    RANK_OK(report, ckv_ulysses_write_replicated(p->ulysses, p->cache, layer, 0, tokens, &there, NULL));
    RANK_OK(report, ckv_cache_write_range(p->whole, layer, 0, tokens, &there, NULL));
    ckv_kv here = ckv_kv_dense(prompt, (const char *)prompt + half, s->kv_heads, s->head_dim);
    if (p->reference != NULL)
        RANK_OK(report, ckv_reference_write(p->reference, layer, 0, tokens, &here));
    RANK_OK(report, device_of(p)->wait(NULL));
    ckv_device_free(device_of(p), memory);
}

void party_prompt(party *p, rank_report *report, int64_t tokens)
{
    int64_t count = 2 * tokens * p->shape.kv_heads * p->shape.head_dim;
    void *prompt = malloc((size_t)(count * element_bytes(p)));
    ckv_random random = {ckv_test_seed() + 1000 * ++p->forwards};
    for (int64_t layer = 0; layer < PARTY_LAYERS; layer++) {
        fill_random(&random, p->shape.dtype, prompt, count);
        round_to_pages(p, prompt, count);
        RANK_STEP(report, write_prompt(p, report, layer, tokens, prompt));
    }
    free(prompt);
    party_commit(p, report, tokens);
}

/* --- Refusals --- */

static void read_pool(const party *p, rank_report *report, void *copy_out)
{
    ckv_pool *pool = ckv_cache_pool(p->cache);
    RANK_OK(report, ckv_device_download(device_of(p), copy_out, ckv_pool_get_view(pool).base,
                                        (size_t)ckv_pool_bytes(pool), NULL));
}

void party_refused(party *p, rank_report *report, const party_tensors *t, const ckv_attention_args *args,
                   ckv_status expected, const char *detail)
{
    size_t bytes = (size_t)ckv_pool_bytes(ckv_cache_pool(p->cache));
    char *before = malloc(bytes), *after = malloc(bytes);
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    RANK_STEP(report, read_pool(p, report, before));
    RANK_STATUS(report, ckv_ulysses_attention(p->ulysses, args, NULL), expected);
    RANK_DETAIL(report, detail);
    RANK_STEP(report, read_pool(p, report, after));
    RANK_STEP(report, party_download(p, report, t));
    ckv_cache_state now = ckv_cache_get_state(p->cache);
    RANK_CHECK(report, memcmp(before, after, bytes) == 0);
    RANK_CHECK(report, now.committed_tokens == state.committed_tokens);
    RANK_CHECK(report, now.staging_offset == state.staging_offset);
    RANK_CHECK(report, memcmp(t->out, t->out_before, (size_t)t->out_bytes) == 0);
    free(after);
    free(before);
}
