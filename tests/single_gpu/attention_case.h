/* SPDX-License-Identifier: Apache-2.0 */
/* A cache and the exact-window reference beside it, driven together by ckv_attention on the device and with the backend
 * of the case. Tensors live in mirrors, so a case reads and writes plain host memory. */
#ifndef CKV_TESTS_SINGLE_GPU_ATTENTION_CASE_H
#define CKV_TESTS_SINGLE_GPU_ATTENTION_CASE_H

#include "tests/support/device_memory.h"
#include "tests/support/random_data.h"

#include <ckv/attention.h>
#include <ckv/reference.h>

#include <stdlib.h>
#include <string.h>

/* Memory that host and device have each a copy of; one and the same on the host device. */
typedef struct mirror {
    char *host, *device;
    size_t bytes;
} mirror;

enum { MAX_MIRRORS = 16 };

/* A cache and its reference, driven together. */
typedef struct pair {
    ckv_pool_config pool;
    ckv_rollout_config rollout;
    int64_t sizes[3];
    int64_t q_heads;
    double scale; /* 0: the default */
    int peaked;   /* weights may gather on few keys: the backend's rounding of them does not average out */
    ckv_cache *cache;
    ckv_reference *reference;
    mirror mirrors[MAX_MIRRORS];
} pair;

/* The backend compiles kernels for every shape: cases try fewer of them. */
static inline int uses_cudnn(void)
{
    return strcmp(ckv_test_backend(), "cudnn") == 0;
}

/* The backend runs on tensor cores: 16-bit types only, which it also rounds weights to, and strides that keep vectors
 * aligned. */
static inline int uses_tensor_cores(void)
{
    return uses_cudnn() || strcmp(ckv_test_backend(), "hopper") == 0;
}

/* A backend that can be named in a call. */
static inline const char *named_backend(void)
{
    return uses_tensor_cores() ? ckv_test_backend() : "host";
}

/* A dtype the backend takes, fp32 where it can. */
static inline ckv_dtype default_dtype(void)
{
    return uses_tensor_cores() ? CKV_BF16 : CKV_FP32;
}

static inline ckv_dtype tensor_dtype(const pair *p)
{
    return ckv_pool_config_tensor_dtype(&p->pool);
}

/* Tensors are of the dtype, and pages too unless the case has others. */
static inline void set_dtype(pair *p, ckv_dtype dtype)
{
    p->pool.dtype = p->pool.tensor_dtype = dtype;
    if (ckv_test_pages()[0] != '\0')
        assert_ok(ckv_dtype_from_name(ckv_test_pages(), &p->pool.dtype));
}

static inline void *mirror_new(pair *p, size_t bytes)
{
    mirror *m = p->mirrors;
    while (m < p->mirrors + MAX_MIRRORS && m->host != NULL)
        m++;
    assert_true(m < p->mirrors + MAX_MIRRORS);
    *m = (mirror){.host = malloc(bytes), .bytes = bytes};
    assert_non_null(m->host);
    m->device = m->host;
    if (!p->pool.device->host_addressable)
        m->device = test_upload(m->host, bytes);
    return m->host;
}

static inline mirror *mirror_of(pair *p, const void *host)
{
    for (mirror *m = p->mirrors; m < p->mirrors + MAX_MIRRORS; m++)
        if (m->host != NULL && (const char *)host >= m->host && (const char *)host < m->host + m->bytes)
            return m;
    fail_msg("%p is in no mirror", host);
}

static inline void mirror_free(pair *p, void *host)
{
    mirror *m = mirror_of(p, host);
    if (m->device != m->host)
        p->pool.device->free(m->device);
    free(m->host);
    *m = (mirror){.host = NULL};
}

/* The device's address for a host address, with the host's contents there. */
static inline void *mirror_upload(pair *p, const void *host)
{
    if (host == NULL)
        return NULL;
    mirror *m = mirror_of(p, host);
    if (m->device != m->host)
        assert_ok(p->pool.device->upload(m->device, m->host, m->bytes, NULL));
    return m->device + ((const char *)host - m->host);
}

static inline void mirror_download(pair *p, const void *host)
{
    mirror *m = host != NULL ? mirror_of(p, host) : NULL;
    if (m != NULL && m->device != m->host)
        test_download(m->host, m->device, m->bytes);
}

/* The arguments for the device, with what the host has in its copies. */
static inline ckv_attention_args upload_args(pair *p, const ckv_attention_args *args)
{
    ckv_attention_args there = *args;
    there.q = mirror_upload(p, args->q);
    there.kv.k = mirror_upload(p, args->kv.k);
    there.kv.v = mirror_upload(p, args->kv.v);
    there.out = mirror_upload(p, args->out);
    there.lse = mirror_upload(p, args->lse);
    return there;
}

/* ckv_attention of tensors that are mirrored; out and lse come back, also from a refusal. */
static inline ckv_status attention(pair *p, const ckv_attention_args *args)
{
    ckv_attention_args there = upload_args(p, args);
    ckv_status status = ckv_attention(&there, NULL);
    mirror_download(p, args->out);
    mirror_download(p, args->lse);
    return status;
}

/* What a code of a layer and head is worth. Those of layer 0 are powers of two, for cases of exact numbers; the largest
 * values saturate in some. */
static inline float scale_of(int64_t layer, int64_t kv, int64_t head)
{
    return layer % 2 == 0 ? ldexpf(1, (int)(-9 + (2 * kv + head) % 4)) : (float)(1 + kv + 3 * head) / 700;
}

static inline void set_scales(const pair *p)
{
    float k[64], v[64];
    assert_true(p->pool.kv_heads <= 64);
    for (int64_t layer = 0; layer < p->pool.layers; layer++) {
        for (int64_t head = 0; head < p->pool.kv_heads; head++)
            k[head] = scale_of(layer, 0, head), v[head] = scale_of(layer, 1, head);
        assert_ok(ckv_pool_set_scales(ckv_cache_pool(p->cache), layer, k, v));
    }
}

/* [tokens, heads] of a tensor, dense and in float. */
static inline float *dense_floats(const pair *p, const void *source, int64_t tokens, int64_t heads,
                                  int64_t token_stride, int64_t head_stride)
{
    const int64_t dim = p->pool.head_dim, bytes = (int64_t)ckv_dtype_bytes(tensor_dtype(p));
    float *values = malloc((size_t)(tokens * heads * dim) * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < tokens * heads; i++)
        ckv_convert_to_float(tensor_dtype(p),
                             (const char *)source + (i / heads * token_stride + i % heads * head_stride) * bytes,
                             (size_t)dim, values + i * dim);
    return values;
}

/* The same of K or V, as pages of fp8 remember it. */
static inline float *remembered(const pair *p, int64_t layer, int64_t kv, const void *source, int64_t tokens,
                                int64_t token_stride, int64_t head_stride)
{
    const int64_t heads = p->pool.kv_heads, dim = p->pool.head_dim;
    float *values = dense_floats(p, source, tokens, heads, token_stride, head_stride);
    for (int64_t i = 0; i < tokens * heads * dim; i++) {
        const float scale = scale_of(layer, kv, i / dim % heads), scaled = values[i] * (1 / scale);
        uint8_t code;
        ckv_convert_from_float(CKV_FP8_E4M3, &scaled, 1, &code);
        ckv_convert_to_float(CKV_FP8_E4M3, &code, 1, &values[i]);
        values[i] *= scale;
    }
    return values;
}

/* K and V for the reference: what pages of fp8 keep of them, or they themselves. */
typedef struct kept_kv {
    ckv_kv kv;
    float *k, *v; /* memory of it; NULL: the caller's own tensors */
} kept_kv;

static inline kept_kv keep(const pair *p, int64_t layer, int64_t tokens, const ckv_kv *source)
{
    kept_kv kept = {.kv = *source};
    if (p->pool.dtype != CKV_FP8_E4M3)
        return kept;
    kept.k = remembered(p, layer, 0, source->k, tokens, source->k_token_stride, source->k_head_stride);
    kept.v = remembered(p, layer, 1, source->v, tokens, source->v_token_stride, source->v_head_stride);
    kept.kv = ckv_kv_dense(kept.k, kept.v, p->pool.kv_heads, p->pool.head_dim);
    return kept;
}

static inline void free_kept(kept_kv *kept)
{
    free(kept->k);
    free(kept->v);
}

/* The caller has filled in pool sizes (not pool_tokens), rollout, sizes and q_heads. */
static inline void open_pair(pair *p)
{
    p->rollout.causal_block_sizes = p->sizes;
    ckv_rollout_size size;
    assert_ok(ckv_rollout_config_size(&p->rollout, p->pool.tokens_per_page, &size));
    p->pool.pool_tokens = size.pool_tokens;
    assert_ok(ckv_cache_create(&p->pool, &p->cache));
    if (p->pool.dtype == CKV_FP8_E4M3)
        set_scales(p);
    assert_ok(ckv_cache_open(p->cache, &p->rollout, NULL));
    ckv_reference_config config = ckv_reference_config_default();
    config.layers = p->pool.layers;
    config.q_heads = p->q_heads;
    config.kv_heads = p->pool.kv_heads;
    config.head_dim = p->pool.head_dim;
    config.dtype = p->pool.dtype == CKV_FP8_E4M3 ? CKV_FP32 : p->pool.dtype;
    config.scale = p->scale;
    assert_ok(ckv_reference_create(&config, &p->reference));
    assert_ok(ckv_reference_open(p->reference, p->rollout.pin_tokens, p->rollout.window_tokens));
}

static inline void close_pair(pair *p)
{
    ckv_reference_destroy(&p->reference);
    ckv_cache_destroy(&p->cache);
}

static inline pair default_pair(void)
{
    pair p = {.pool = ckv_pool_config_default(), .rollout = ckv_rollout_config_default(), .q_heads = 4};
    p.pool.device = test_device();
    p.pool.poison_fresh_pages = 1;
    p.pool.layers = 2;
    p.pool.kv_heads = 2;
    p.pool.head_dim = 16;
    set_dtype(&p, default_dtype());
    p.pool.tokens_per_page = 4;
    p.rollout.pin_tokens = 5;
    p.rollout.window_tokens = 8;
    p.rollout.max_staged_tokens = 6;
    p.sizes[0] = 6;
    p.sizes[1] = 2;
    p.rollout.num_causal_block_sizes = 2;
    return p;
}

static inline void commit_pair(pair *p, int64_t tokens)
{
    assert_ok(ckv_cache_commit(p->cache, tokens, NULL));
    assert_ok(ckv_reference_commit(p->reference, tokens));
}

static inline int64_t id_of_position(const pair *p, int64_t position)
{
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    return position < state.fixed_tokens ? position : position + state.committed_tokens - state.staging_offset;
}

/* Dense K/V of `tokens` resident positions of a layer, in both. The range must not cross the end of the fixed region.
 */
static inline void write_pair(pair *p, int64_t layer, int64_t start, int64_t tokens, const void *k, const void *v)
{
    size_t bytes = (size_t)(tokens * p->pool.kv_heads * p->pool.head_dim) * ckv_dtype_bytes(tensor_dtype(p));
    void *device_k = test_upload(k, bytes), *device_v = test_upload(v, bytes);
    ckv_kv source = ckv_kv_dense(device_k, device_v, p->pool.kv_heads, p->pool.head_dim);
    assert_ok(ckv_cache_write_range(p->cache, layer, start, tokens, &source, NULL));
    assert_ok(p->pool.device->wait(NULL));
    p->pool.device->free(device_v);
    p->pool.device->free(device_k);
    source = ckv_kv_dense(k, v, p->pool.kv_heads, p->pool.head_dim);
    kept_kv kept = keep(p, layer, tokens, &source);
    assert_ok(ckv_reference_write(p->reference, layer, id_of_position(p, start), tokens, &kept.kv));
    free_kept(&kept);
}

static inline void write_random(pair *p, ckv_random *random, int64_t layer, int64_t start, int64_t tokens)
{
    int64_t count = tokens * p->pool.kv_heads * p->pool.head_dim;
    void *k = malloc((size_t)count * ckv_dtype_bytes(tensor_dtype(p)));
    void *v = malloc((size_t)count * ckv_dtype_bytes(tensor_dtype(p)));
    fill_random(random, tensor_dtype(p), k, count);
    fill_random(random, tensor_dtype(p), v, count);
    write_pair(p, layer, start, tokens, k, v);
    free(v);
    free(k);
}

/* One forward: packed [rows, q_heads + 2 * kv_heads, head_dim], and an out filled with a value that no result has. */
typedef struct forward {
    int64_t rows, count_out;
    void *qkv, *out;
    float *lse;
    ckv_attention_args args;
} forward;

static const float SENTINEL = -77;

static inline forward new_forward(pair *p, ckv_random *random, int64_t layer, int64_t seq_len, int64_t block,
                                  int64_t rows)
{
    int64_t heads = p->q_heads + 2 * p->pool.kv_heads;
    size_t bytes = ckv_dtype_bytes(tensor_dtype(p));
    forward f = {.rows = rows, .count_out = rows * p->q_heads * p->pool.head_dim};
    f.qkv = mirror_new(p, (size_t)(rows * heads * p->pool.head_dim) * bytes);
    f.out = mirror_new(p, (size_t)f.count_out * bytes);
    f.lse = mirror_new(p, (size_t)(rows * p->q_heads) * sizeof *f.lse);
    fill_random(random, tensor_dtype(p), f.qkv, rows * heads * p->pool.head_dim);
    fill_value(tensor_dtype(p), f.out, f.count_out, SENTINEL);
    fill_value(CKV_FP32, f.lse, rows * p->q_heads, SENTINEL);
    f.args = ckv_attention_args_default();
    f.args.cache = p->cache;
    f.args.layer = layer;
    f.args.q_heads = p->q_heads;
    f.args.rows = rows;
    f.args.seq_len = seq_len;
    f.args.causal_block_size = block;
    ckv_attention_args_set_packed(&f.args, f.qkv);
    f.args.out = f.out;
    f.args.out_token_stride = p->q_heads * p->pool.head_dim;
    f.args.out_head_stride = p->pool.head_dim;
    f.args.lse = f.lse;
    f.args.scale = p->scale;
    f.args.backend = ckv_test_backend();
    return f;
}

static inline void free_forward(pair *p, forward *f)
{
    mirror_free(p, f->lse);
    mirror_free(p, f->out);
    mirror_free(p, f->qkv);
}

static inline int64_t out_index(const ckv_attention_args *args, int64_t row, int64_t head)
{
    return row * args->out_token_stride + head * args->out_head_stride;
}

/* How far a result may be from the exact one. Half a unit of the output's dtype, and float sums. Tensor cores also
 * round each key's weight to the dtype before it multiplies V: at most half a unit of the largest |V|, which is 1, if a
 * single key has the weight, and 1/sqrt(keys) of that, six times the deviation, when weights and signs spread over the
 * keys. One key too many or too few moves a result by about 1/keys, more than this up to some 10,000 keys of bf16. */
static inline double tolerance(const pair *p, int64_t block, int64_t block_size)
{
    static const double unit[] = {[CKV_FP32] = 0x1p-24, [CKV_BF16] = 0x1p-8, [CKV_FP16] = 0x1p-11};
    if (!uses_tensor_cores())
        return 2e-6;
    int64_t keys;
    assert_ok(ckv_cache_read_row(p->cache, 0, block_size, block, 0, NULL, NULL, &keys, NULL));
    return unit[tensor_dtype(p)] * (p->peaked ? 1 : 1.5 / sqrt((double)keys)) + 1e-5;
}

static inline void check_near(const pair *p, const ckv_attention_args *args, const double *expected, const double *lse)
{
    static const double unit[] = {[CKV_FP32] = 0x1p-24, [CKV_BF16] = 0x1p-8, [CKV_FP16] = 0x1p-11};
    const double lse_tolerance =
        uses_tensor_cores() ? 2e-4 : 4e-6; /* exp2 with the scale folded in, and fast logarithms */
    int64_t dim = p->pool.head_dim, block = args->causal_block_size ? args->causal_block_size : args->seq_len;
    double absolute = 0;
    for (int64_t row = 0; row < args->seq_len; row++) {
        if (row % block == 0)
            absolute = tolerance(p, row / block, block);
        for (int64_t head = 0; head < args->q_heads; head++) {
            for (int64_t d = 0; d < dim; d++) {
                double exact = expected[(row * args->q_heads + head) * dim + d];
                assert_near((double)get_element(tensor_dtype(p), args->out, out_index(args, row, head) + d), exact,
                            1.01 * unit[tensor_dtype(p)] * fabs(exact) + absolute);
            }
            double exact_lse = lse[row * args->q_heads + head];
            if (args->lse != NULL)
                assert_near((double)args->lse[row * args->q_heads + head], exact_lse,
                            lse_tolerance * (1 + fabs(exact_lse) / 40));
        }
    }
}

static inline void check_padding(const pair *p, const ckv_attention_args *args)
{
    for (int64_t row = args->seq_len; row < args->rows; row++) {
        for (int64_t head = 0; head < args->q_heads; head++) {
            for (int64_t d = 0; d < p->pool.head_dim; d++)
                assert_true(get_element(tensor_dtype(p), args->out, out_index(args, row, head) + d) == 0);
            if (args->lse != NULL)
                assert_true(args->lse[row * args->q_heads + head] == -INFINITY);
        }
    }
}

static inline ckv_reference_forward reference_forward(const ckv_attention_args *args, double *out, double *lse)
{
    ckv_reference_forward reference = ckv_reference_forward_default();
    reference.layer = args->layer;
    reference.seq_len = args->seq_len;
    reference.causal_block_size = args->causal_block_size;
    reference.q = args->q;
    reference.q_token_stride = args->q_token_stride;
    reference.q_head_stride = args->q_head_stride;
    reference.kv = args->kv;
    reference.out = out;
    reference.lse = lse;
    return reference;
}

/* The reference's forward against what the cache's has left in out and lse. */
static inline void compare_pair(pair *p, const ckv_attention_args *args)
{
    int64_t results = args->seq_len * args->q_heads;
    double *expected = calloc((size_t)(results * p->pool.head_dim), sizeof *expected);
    double *lse = calloc((size_t)results, sizeof *lse);
    ckv_reference_forward reference = reference_forward(args, expected, lse);
    float *q = NULL;
    kept_kv kept = keep(p, args->layer, args->seq_len, &args->kv);
    reference.kv = kept.kv;
    if (p->pool.dtype == CKV_FP8_E4M3) {
        reference.q = q =
            dense_floats(p, args->q, args->seq_len, args->q_heads, args->q_token_stride, args->q_head_stride);
        reference.q_token_stride = args->q_heads * p->pool.head_dim;
        reference.q_head_stride = p->pool.head_dim;
    }
    assert_ok(ckv_reference_run(p->reference, &reference));
    free(q);
    free_kept(&kept);
    check_near(p, args, expected, lse);
    check_padding(p, args);
    free(lse);
    free(expected);
}

/* Attend in both and compare. */
static inline void attend_pair(pair *p, const ckv_attention_args *args)
{
    assert_ok(attention(p, args));
    compare_pair(p, args);
}

/* A prompt through write_range, committed: fixed tokens first. */
static inline void write_prompt(pair *p, ckv_random *random, int64_t tokens)
{
    for (int64_t layer = 0; layer < p->pool.layers; layer++)
        write_random(p, random, layer, 0, tokens);
    commit_pair(p, tokens);
}

/* Forward of all layers, then commit. */
static inline void step_pair(pair *p, ckv_random *random, int64_t seq_len, int64_t block, int64_t commit)
{
    for (int64_t layer = 0; layer < p->pool.layers; layer++) {
        forward f = new_forward(p, random, layer, seq_len, block, seq_len);
        attend_pair(p, &f.args);
        free_forward(p, &f);
    }
    commit_pair(p, commit);
}

#endif
