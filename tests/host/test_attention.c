/* SPDX-License-Identifier: Apache-2.0 */
/* The attention dispatcher and the host backend over a real cache, against the exact-window reference. */
#include "tests/support/case.h"

#include "tests/host/random_data.h"

#include <ckv/attention.h>
#include <ckv/reference.h>

#include <stdlib.h>
#include <string.h>

/* A cache and its reference, driven together. */
typedef struct pair {
    ckv_pool_config pool;
    ckv_rollout_config rollout;
    int64_t sizes[3];
    int64_t q_heads;
    double scale; /* 0: the default */
    ckv_cache *cache;
    ckv_reference *reference;
} pair;

/* The caller has filled in pool sizes (not pool_tokens), rollout, sizes and q_heads. */
static void open_pair(pair *p)
{
    p->rollout.causal_block_sizes = p->sizes;
    ckv_rollout_size size;
    assert_ok(ckv_rollout_config_size(&p->rollout, p->pool.tokens_per_page, &size));
    p->pool.pool_tokens = size.pool_tokens;
    p->pool.poison_fresh_pages = 1;
    assert_ok(ckv_cache_create(&p->pool, &p->cache));
    assert_ok(ckv_cache_open(p->cache, &p->rollout, NULL));
    ckv_reference_config config = ckv_reference_config_default();
    config.layers = p->pool.layers;
    config.q_heads = p->q_heads;
    config.kv_heads = p->pool.kv_heads;
    config.head_dim = p->pool.head_dim;
    config.dtype = p->pool.dtype;
    config.scale = p->scale;
    assert_ok(ckv_reference_create(&config, &p->reference));
    assert_ok(ckv_reference_open(p->reference, p->rollout.pin_tokens, p->rollout.window_tokens));
}

static void close_pair(pair *p)
{
    ckv_reference_destroy(&p->reference);
    ckv_cache_destroy(&p->cache);
}

static pair default_pair(void)
{
    pair p = {.pool = ckv_pool_config_default(), .rollout = ckv_rollout_config_default(), .q_heads = 4};
    p.pool.layers = 2;
    p.pool.kv_heads = 2;
    p.pool.head_dim = 16;
    p.pool.dtype = CKV_FP32;
    p.pool.tokens_per_page = 4;
    p.rollout.pin_tokens = 5;
    p.rollout.window_tokens = 8;
    p.rollout.max_staged_tokens = 6;
    p.sizes[0] = 6;
    p.sizes[1] = 2;
    p.rollout.num_causal_block_sizes = 2;
    return p;
}

static void commit_pair(pair *p, int64_t tokens)
{
    assert_ok(ckv_cache_commit(p->cache, tokens, NULL));
    assert_ok(ckv_reference_commit(p->reference, tokens));
}

static int64_t id_of_position(const pair *p, int64_t position)
{
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    return position < state.fixed_tokens ? position : position + state.committed_tokens - state.staging_offset;
}

/* Dense K/V of `tokens` resident positions of a layer, in both. The range must not cross the end of the fixed region.
 */
static void write_pair(pair *p, int64_t layer, int64_t start, int64_t tokens, const void *k, const void *v)
{
    ckv_kv source = ckv_kv_dense(k, v, p->pool.kv_heads, p->pool.head_dim);
    assert_ok(ckv_cache_write_range(p->cache, layer, start, tokens, &source, NULL));
    assert_ok(ckv_reference_write(p->reference, layer, id_of_position(p, start), tokens, &source));
}

static void write_random(pair *p, random_source *random, int64_t layer, int64_t start, int64_t tokens)
{
    int64_t count = tokens * p->pool.kv_heads * p->pool.head_dim;
    void *k = malloc((size_t)count * ckv_dtype_bytes(p->pool.dtype));
    void *v = malloc((size_t)count * ckv_dtype_bytes(p->pool.dtype));
    fill_random(random, p->pool.dtype, k, count);
    fill_random(random, p->pool.dtype, v, count);
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

static forward new_forward(pair *p, random_source *random, int64_t layer, int64_t seq_len, int64_t block, int64_t rows)
{
    int64_t heads = p->q_heads + 2 * p->pool.kv_heads;
    size_t bytes = ckv_dtype_bytes(p->pool.dtype);
    forward f = {.rows = rows, .count_out = rows * p->q_heads * p->pool.head_dim};
    f.qkv = malloc((size_t)(rows * heads * p->pool.head_dim) * bytes);
    f.out = malloc((size_t)f.count_out * bytes);
    f.lse = malloc((size_t)(rows * p->q_heads) * sizeof *f.lse);
    fill_random(random, p->pool.dtype, f.qkv, rows * heads * p->pool.head_dim);
    fill_value(p->pool.dtype, f.out, f.count_out, SENTINEL);
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
    return f;
}

static void free_forward(forward *f)
{
    free(f->lse);
    free(f->out);
    free(f->qkv);
}

static int64_t out_index(const ckv_attention_args *args, int64_t row, int64_t head)
{
    return row * args->out_token_stride + head * args->out_head_stride;
}

/* Every element of the result near `expected`: half a unit of the output's dtype, and float sums. */
static void check_near(const pair *p, const ckv_attention_args *args, const double *expected, const double *lse)
{
    static const double unit[] = {[CKV_FP32] = 0x1p-24, [CKV_BF16] = 0x1p-8, [CKV_FP16] = 0x1p-11};
    int64_t dim = p->pool.head_dim;
    for (int64_t row = 0; row < args->seq_len; row++) {
        for (int64_t head = 0; head < args->q_heads; head++) {
            for (int64_t d = 0; d < dim; d++) {
                double exact = expected[(row * args->q_heads + head) * dim + d];
                assert_near((double)get_element(p->pool.dtype, args->out, out_index(args, row, head) + d), exact,
                            1.01 * unit[p->pool.dtype] * fabs(exact) + 2e-6);
            }
            double exact_lse = lse[row * args->q_heads + head];
            if (args->lse != NULL)
                assert_near((double)args->lse[row * args->q_heads + head], exact_lse, 4e-6 + 1e-7 * fabs(exact_lse));
        }
    }
}

static void check_padding(const pair *p, const ckv_attention_args *args)
{
    for (int64_t row = args->seq_len; row < args->rows; row++) {
        for (int64_t head = 0; head < args->q_heads; head++) {
            for (int64_t d = 0; d < p->pool.head_dim; d++)
                assert_true(get_element(p->pool.dtype, args->out, out_index(args, row, head) + d) == 0);
            if (args->lse != NULL)
                assert_true(args->lse[row * args->q_heads + head] == -INFINITY);
        }
    }
}

static ckv_reference_forward reference_forward(const ckv_attention_args *args, double *out, double *lse)
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

/* Attend in both and compare. */
static void attend_pair(pair *p, const ckv_attention_args *args)
{
    int64_t results = args->seq_len * args->q_heads;
    double *expected = calloc((size_t)(results * p->pool.head_dim), sizeof *expected);
    double *lse = calloc((size_t)results, sizeof *lse);
    ckv_reference_forward reference = reference_forward(args, expected, lse);
    assert_ok(ckv_reference_run(p->reference, &reference));
    assert_ok(ckv_attention(args, NULL));
    check_near(p, args, expected, lse);
    check_padding(p, args);
    free(lse);
    free(expected);
}

/* A prompt through write_range, committed: fixed tokens first. */
static void write_prompt(pair *p, random_source *random, int64_t tokens)
{
    for (int64_t layer = 0; layer < p->pool.layers; layer++)
        write_random(p, random, layer, 0, tokens);
    commit_pair(p, tokens);
}

/* Forward of all layers, then commit. */
static void step_pair(pair *p, random_source *random, int64_t seq_len, int64_t block, int64_t commit)
{
    for (int64_t layer = 0; layer < p->pool.layers; layer++) {
        forward f = new_forward(p, random, layer, seq_len, block, seq_len);
        attend_pair(p, &f.args);
        free_forward(&f);
    }
    commit_pair(p, commit);
}

static void defaults_and_packed(void **state)
{
    (void)state;
    pair p = default_pair();
    p.pool.dtype = CKV_BF16;
    open_pair(&p);
    ckv_attention_args args = ckv_attention_args_default();
    assert_int_equal(args.struct_size, sizeof args);
    assert_true(args.cache == NULL && args.seq_len == 0 && args.scale == 0 && args.backend == NULL);
    uint16_t qkv[8 * 16];
    args.cache = p.cache;
    args.q_heads = 4;
    ckv_attention_args_set_packed(&args, qkv);
    assert_ptr_equal(args.q, qkv);
    assert_ptr_equal(args.kv.k, qkv + 4 * 16);
    assert_ptr_equal(args.kv.v, qkv + 6 * 16);
    assert_true(args.q_token_stride == 8 * 16 && args.kv.k_token_stride == 8 * 16 && args.kv.v_token_stride == 8 * 16);
    assert_true(args.q_head_stride == 16 && args.kv.k_head_stride == 16 && args.kv.v_head_stride == 16);
    close_pair(&p);
}

static void backend_names(void **state)
{
    (void)state;
    pair p = default_pair();
    open_pair(&p);
    size_t count = ckv_attention_num_backends();
    assert_true(count >= 1);
    for (size_t i = 0; i < count; i++)
        assert_non_null(ckv_attention_backend_name(i));
    assert_null(ckv_attention_backend_name(count));

    ckv_attention_args args = ckv_attention_args_default();
    assert_status(ckv_attention_supports("host", &args), CKV_ERROR_INVALID); /* no cache */
    args.cache = p.cache;
    assert_status(ckv_attention_supports("host", NULL), CKV_ERROR_INVALID);
    assert_status(ckv_attention_supports(NULL, &args), CKV_ERROR_INVALID);
    assert_ok(ckv_attention_supports("host", &args));
    assert_status(ckv_attention_supports("flash", &args), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "flash"));
    args.mask = CKV_MASK_CUSTOM;
    assert_status(ckv_attention_supports("host", &args), CKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(ckv_last_error(), "mask"));
    args.mask = CKV_MASK_NONE;
    args.quantization = CKV_QUANT_FP8;
    assert_status(ckv_attention_supports("host", &args), CKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(ckv_last_error(), "quantization"));
    close_pair(&p);
}

/* A call that must be refused, and what its message must say. */
typedef struct refusal {
    ckv_attention_args args;
    ckv_status status;
    const char *says;
} refusal;

/* Member by member: padding between them may differ. */
static int same_state(const ckv_cache_state *a, const ckv_cache_state *b)
{
    return a->is_open == b->is_open && a->pin_tokens == b->pin_tokens && a->window_tokens == b->window_tokens &&
           a->max_staged_tokens == b->max_staged_tokens && a->fixed_tokens == b->fixed_tokens &&
           a->history_tokens == b->history_tokens && a->staging_offset == b->staging_offset &&
           a->committed_tokens == b->committed_tokens && a->resident_tokens == b->resident_tokens;
}

/* Refuse each; the cache's whole memory, its state, out and lse stay as they are, to the bit. */
static void expect_refusals(pair *p, const forward *f, const refusal *refusals, size_t count)
{
    ckv_pool *pool = ckv_cache_pool(p->cache);
    size_t pool_bytes = (size_t)ckv_pool_bytes(pool);
    size_t out_bytes = (size_t)f->count_out * ckv_dtype_bytes(p->pool.dtype);
    size_t lse_bytes = (size_t)(f->rows * p->q_heads) * sizeof(float);
    char *before = malloc(pool_bytes + out_bytes + lse_bytes);
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    const void *memory = ckv_pool_get_view(pool).base;
    memcpy(before, memory, pool_bytes);
    memcpy(before + pool_bytes, f->out, out_bytes);
    memcpy(before + pool_bytes + out_bytes, f->lse, lse_bytes);
    for (size_t i = 0; i < count; i++) {
        assert_status(ckv_attention(&refusals[i].args, NULL), refusals[i].status);
        if (strstr(ckv_last_error(), refusals[i].says) == NULL)
            fail_msg("refusal %zu does not say '%s': %s", i, refusals[i].says, ckv_last_error());
        ckv_cache_state after = ckv_cache_get_state(p->cache);
        assert_true(same_state(&after, &state));
        assert_memory_equal(memory, before, pool_bytes);
        assert_memory_equal(f->out, before + pool_bytes, out_bytes);
        assert_memory_equal(f->lse, before + pool_bytes + out_bytes, lse_bytes);
    }
    free(before);
}

static void refuses_sizes(void **state)
{
    (void)state;
    random_source random = {ckv_test_seed()};
    pair p = default_pair();
    open_pair(&p);
    write_prompt(&p, &random, 5);
    forward f = new_forward(&p, &random, 0, 6, 2, 7);
    refusal r[11];
    for (size_t i = 0; i < sizeof r / sizeof r[0]; i++)
        r[i] = (refusal){.args = f.args, .status = CKV_ERROR_INVALID, .says = ""};
    r[0].args.struct_size = 8, r[0].says = "struct_size";
    r[1].args.cache = NULL, r[1].says = "cache is NULL";
    r[2].args.seq_len = 0, r[2].says = "must be given";
    r[3].args.seq_len = 8, r[3].says = "rows = 7";
    r[4].args.seq_len = -1, r[4].says = "-1";
    r[5].args.q_heads = 3, r[5].says = "kv_heads 2";
    r[6].args.q_heads = 0, r[6].says = "q_heads 0";
    r[7].args.layer = 2, r[7].says = "layer 2";
    r[8].args.causal_block_size = 4, r[8].says = "multiple";
    r[9].args.causal_block_size = 3, r[9].says = "6"; /* not declared; the message lists those that are */
    r[10].args.seq_len = 7, r[10].args.causal_block_size = 0, r[10].says = "max_staged_tokens 6";
    expect_refusals(&p, &f, r, sizeof r / sizeof r[0]);
    assert_status(ckv_attention(NULL, NULL), CKV_ERROR_INVALID);
    assert_ok(ckv_attention(&f.args, NULL)); /* and the call they were made from is good */
    free_forward(&f);
    close_pair(&p);
}

static void refuses_tensors_and_options(void **state)
{
    (void)state;
    random_source random = {ckv_test_seed()};
    pair p = default_pair();
    open_pair(&p);
    write_prompt(&p, &random, 5);
    forward f = new_forward(&p, &random, 0, 6, 2, 7);
    refusal r[15];
    for (size_t i = 0; i < sizeof r / sizeof r[0]; i++)
        r[i] = (refusal){.args = f.args, .status = CKV_ERROR_INVALID, .says = ""};
    r[0].args.q = NULL, r[0].says = "q is NULL";
    r[1].args.kv.k = NULL, r[1].says = "k is NULL";
    r[2].args.kv.v = NULL, r[2].says = "v is NULL";
    r[3].args.out = NULL, r[3].says = "out is NULL";
    r[4].args.out_token_stride = 0, r[4].says = "out strides";
    r[5].args.out_head_stride = 0, r[5].says = "out strides";
    r[6].args.scale = NAN, r[6].says = "scale";
    r[7].args.scale = -1, r[7].says = "scale";
    r[8].args.mask = (ckv_attention_mask)7, r[8].says = "mask 7";
    r[9].args.quantization = (ckv_quantization)7, r[9].says = "quantization 7";
    r[10].args.backend = "flash", r[10].says = "flash";
    r[11].args.mask = CKV_MASK_KEY_PADDING, r[11].status = CKV_ERROR_UNSUPPORTED, r[11].says = "mask";
    r[12].args.mask = CKV_MASK_CUSTOM, r[12].args.backend = "host";
    r[12].status = CKV_ERROR_UNSUPPORTED, r[12].says = "mask";
    r[13].args.quantization = CKV_QUANT_FP8, r[13].status = CKV_ERROR_UNSUPPORTED, r[13].says = "quantization";
    r[14].args.quantization = CKV_QUANT_FP8, r[14].args.backend = "host";
    r[14].status = CKV_ERROR_UNSUPPORTED, r[14].says = "fp32";
    expect_refusals(&p, &f, r, sizeof r / sizeof r[0]);
    assert_ok(ckv_attention(&f.args, NULL));

    ckv_cache_close(p.cache);
    refusal closed = {.args = f.args, .status = CKV_ERROR_STATE, .says = "rollout"};
    expect_refusals(&p, &f, &closed, 1);
    free_forward(&f);
    close_pair(&p);
}

static pair random_pair(random_source *random)
{
    pair p = default_pair();
    p.pool.dtype = (ckv_dtype)random_between(random, 0, 2);
    p.pool.kv_heads = random_between(random, 1, 3);
    p.q_heads = p.pool.kv_heads * random_between(random, 1, 4);
    p.pool.head_dim = random_between(random, 1, 40);
    static const int64_t page_sizes[] = {1, 4, 8, 32};
    p.pool.tokens_per_page = page_sizes[random_between(random, 0, 3)];
    p.rollout.pin_tokens = random_between(random, 0, 30);
    p.rollout.window_tokens = random_between(random, 0, 3) == 0 ? 0 : random_between(random, 1, 60);
    p.rollout.max_staged_tokens = random_between(random, 1, 24);
    p.rollout.num_causal_block_sizes = 3;
    for (int i = 0; i < 3; i++)
        p.sizes[i] = random_between(random, 1, p.rollout.max_staged_tokens);
    return p;
}

/* The forward's K/V, Q and out in layouts of their own: separate, padded, tokens backwards. Owns the memory it makes.
 */
typedef struct strided {
    void *memory[4]; /* q, k, v, out */
    ckv_attention_args args;
} strided;

static void *scatter_tensor(const pair *p, const void *source, int64_t heads, int64_t rows, int64_t source_token_stride,
                            int64_t token_stride, int64_t head_stride, int64_t first)
{
    int64_t count = rows * (token_stride < 0 ? -token_stride : token_stride);
    void *memory = malloc((size_t)count * ckv_dtype_bytes(p->pool.dtype));
    fill_value(p->pool.dtype, memory, count, NAN);
    for (int64_t t = 0; source != NULL && t < rows; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < p->pool.head_dim; d++)
                set_element(p->pool.dtype, memory, first + t * token_stride + h * head_stride + d,
                            get_element(p->pool.dtype, source, t * source_token_stride + h * p->pool.head_dim + d));
    return memory;
}

static strided make_strided(const pair *p, const forward *f)
{
    strided s = {.args = f->args};
    int64_t dim = p->pool.head_dim, rows = f->rows, packed = f->args.q_token_stride;
    int64_t head = dim + 3, size = (int64_t)ckv_dtype_bytes(p->pool.dtype);
    int64_t q_token = p->q_heads * head + 5, k_token = -(p->pool.kv_heads * head),
            v_token = p->pool.kv_heads * head + 1;
    int64_t k_first = -(rows - 1) * k_token, out_token = -(p->q_heads * head), out_first = -(rows - 1) * out_token;
    s.memory[0] = scatter_tensor(p, f->args.q, p->q_heads, rows, packed, q_token, head, 0);
    s.memory[1] = scatter_tensor(p, f->args.kv.k, p->pool.kv_heads, rows, packed, k_token, head, k_first);
    s.memory[2] = scatter_tensor(p, f->args.kv.v, p->pool.kv_heads, rows, packed, v_token, head, 0);
    s.memory[3] = scatter_tensor(p, NULL, p->q_heads, rows, 0, out_token, head, 0);
    s.args.q = s.memory[0];
    s.args.q_token_stride = q_token;
    s.args.q_head_stride = head;
    s.args.kv = (ckv_kv){(char *)s.memory[1] + k_first * size, s.memory[2], k_token, head, v_token, head};
    s.args.out = (char *)s.memory[3] + out_first * size;
    s.args.out_token_stride = out_token;
    s.args.out_head_stride = head;
    return s;
}

static void free_strided(strided *s)
{
    for (int i = 0; i < 4; i++)
        free(s->memory[i]);
}

/* Padding rows hold zero, random, NaN or infinity. */
static void dirty_padding(const pair *p, random_source *random, forward *f)
{
    static const float values[] = {0, NAN, INFINITY, -INFINITY};
    int64_t kind = random_between(random, 0, 4), stride = f->args.q_token_stride;
    for (int64_t i = f->args.seq_len * stride; kind < 4 && i < f->rows * stride; i++)
        set_element(p->pool.dtype, f->qkv, i, values[kind]);
}

static void random_forward(pair *p, random_source *random, int64_t layer, int64_t seq_len, int64_t block)
{
    forward f = new_forward(p, random, layer, seq_len, block, seq_len + random_between(random, 0, 5));
    dirty_padding(p, random, &f);
    if (random_between(random, 0, 1))
        f.args.lse = NULL;
    if (random_between(random, 0, 2) == 0)
        f.args.backend = random_between(random, 0, 1) ? "host" : "auto";
    if (random_between(random, 0, 1)) {
        strided s = make_strided(p, &f);
        attend_pair(p, &s.args);
        free_strided(&s);
    } else {
        attend_pair(p, &f.args);
    }
    free_forward(&f);
}

/* An edit of committed tokens on one side of the fixed end, sometimes zero_values. */
static void random_edit(pair *p, random_source *random)
{
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    if (state.staging_offset == 0)
        return;
    int64_t start = random_between(random, 0, state.staging_offset - 1);
    int64_t end = start < state.fixed_tokens ? state.fixed_tokens : state.staging_offset;
    int64_t tokens = random_between(random, 1, end - start), layer = random_between(random, 0, p->pool.layers - 1);
    if (random_between(random, 0, 2) > 0) {
        write_random(p, random, layer, start, tokens);
        return;
    }
    assert_ok(ckv_cache_zero_values(p->cache, layer, start, tokens, NULL));
    assert_ok(ckv_reference_zero_values(p->reference, layer, id_of_position(p, start), tokens));
}

static void random_chunk(pair *p, random_source *random)
{
    int64_t blocks = 0, block = 0;
    for (int64_t i = random_between(random, 1, 3); i > 0; i--) {
        block = p->sizes[random_between(random, 0, 2)];
        blocks = random_between(random, 1, p->rollout.max_staged_tokens / block);
        for (int64_t layer = 0; layer < p->pool.layers; layer++)
            random_forward(p, random, layer, blocks * block, block);
    }
    commit_pair(p, random_between(random, 0, 3) == 0 ? random_between(random, 1, blocks * block) : blocks * block);
    if (random_between(random, 0, 1))
        random_edit(p, random);
}

/* Geometries, dtypes, GQA, pages, strides, padding, overwritten forwards, partial commits and edits, all at random. */
static void random_rollouts_match_the_reference(void **state)
{
    (void)state;
    random_source random = {ckv_test_seed()};
    for (int round = 0; round < 60; round++) {
        pair p = random_pair(&random);
        open_pair(&p);
        int64_t prompt = random_between(&random, 0, p.rollout.pin_tokens + p.rollout.max_staged_tokens);
        if (prompt > 0)
            write_prompt(&p, &random, prompt);
        for (int64_t chunks = random_between(&random, 2, 12); chunks > 0; chunks--)
            random_chunk(&p, &random);
        close_pair(&p);
    }
}

/* Longer than a tile of keys and a tile of queries of the host backend, in every dtype. */
static void several_tiles(void **state)
{
    (void)state;
    random_source random = {ckv_test_seed()};
    for (int dtype = 0; dtype < 3; dtype++) {
        pair p = default_pair();
        p.pool.dtype = (ckv_dtype)dtype;
        p.pool.layers = p.pool.kv_heads = 1;
        p.pool.head_dim = 64;
        p.pool.tokens_per_page = 32;
        p.rollout.pin_tokens = 77;
        p.rollout.window_tokens = 500;
        p.rollout.max_staged_tokens = 396;
        p.sizes[0] = 396;
        p.sizes[1] = 132;
        open_pair(&p);
        write_prompt(&p, &random, 77);
        step_pair(&p, &random, 396, 396, 396);
        step_pair(&p, &random, 396, 132, 396);
        step_pair(&p, &random, 396, 396, 396);
        close_pair(&p);
    }
}

/* q = 0 and one-hot V: a key that is read weighs 1/n, one that is not weighs nothing. */
static void check_visible_set(pair *p, int64_t seq_len, int64_t block, const float *one_hot, const float *zeros)
{
    enum { DIM = 128 };
    static float out[24 * DIM];
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    ckv_attention_args args = ckv_attention_args_default();
    args.cache = p->cache;
    args.q_heads = 1;
    args.rows = args.seq_len = seq_len;
    args.causal_block_size = block;
    args.q = zeros;
    args.kv = ckv_kv_dense(zeros, one_hot + state.committed_tokens * DIM, 1, DIM);
    args.out = out;
    args.out_token_stride = args.out_head_stride = DIM;
    assert_ok(ckv_attention(&args, NULL));
    for (int64_t row = 0; row < seq_len; row++) {
        int64_t start = state.committed_tokens + row / block * block, visible = 0;
        int sees[DIM];
        for (int64_t id = 0; id < DIM; id++) {
            sees[id] = id < state.fixed_tokens || (id >= start - state.window_tokens && id < start + block);
            visible += sees[id];
        }
        for (int64_t id = 0; id < DIM; id++) {
            if (sees[id])
                assert_near((double)out[row * DIM + id], 1.0 / (double)visible, 1e-8);
            else
                assert_true(out[row * DIM + id] == 0);
        }
    }
}

/* At every commit from empty over filling to full, for windows on and off page boundaries. */
static void visible_keys_are_exactly_the_window(void **state)
{
    (void)state;
    enum { DIM = 128 };
    static float zeros[DIM * DIM], one_hot[DIM * DIM];
    for (int64_t i = 0; i < DIM; i++)
        one_hot[i * DIM + i] = 1;
    static const int64_t pages[] = {1, 4, 8, 32}, pins[] = {0, 5, 8}, windows[] = {0, 7, 16, 33};
    for (int i = 0; i < 4 * 3 * 4; i++) {
        pair p = default_pair();
        p.q_heads = p.pool.layers = p.pool.kv_heads = 1;
        p.pool.head_dim = DIM;
        p.pool.tokens_per_page = pages[i % 4];
        p.rollout.pin_tokens = pins[i / 4 % 3];
        p.rollout.window_tokens = windows[i / 12];
        p.rollout.max_staged_tokens = 12;
        p.sizes[0] = 12;
        p.sizes[1] = 3;
        open_pair(&p);
        for (int64_t committed = 0; committed + 12 <= DIM; committed += 12) {
            check_visible_set(&p, 12, 12, one_hot, zeros);
            check_visible_set(&p, 12, 3, one_hot, zeros);
            assert_ok(ckv_cache_commit(p.cache, 12, NULL));
        }
        close_pair(&p);
    }
}

/* The same tokens packed, separate and strided give the same bits. */
static void layouts_of_the_input_do_not_matter(void **state)
{
    (void)state;
    random_source random = {ckv_test_seed()};
    for (int dtype = 0; dtype < 3; dtype++) {
        pair p = default_pair();
        p.pool.dtype = (ckv_dtype)dtype;
        open_pair(&p);
        write_prompt(&p, &random, 9);
        forward f = new_forward(&p, &random, 0, 4, 2, 6);
        strided s = make_strided(&p, &f);
        attend_pair(&p, &f.args);
        attend_pair(&p, &s.args);
        int64_t size = (int64_t)ckv_dtype_bytes(p.pool.dtype);
        for (int64_t row = 0; row < 6; row++)
            for (int64_t head = 0; head < p.q_heads; head++)
                assert_memory_equal((char *)f.args.out + out_index(&f.args, row, head) * size,
                                    (char *)s.args.out + out_index(&s.args, row, head) * size,
                                    (size_t)(p.pool.head_dim * size));
        free_strided(&s);
        free_forward(&f);
        close_pair(&p);
    }
}

/* What is between the vectors of a strided out, and past it, is not ours. */
static void writes_nothing_but_out(void **state)
{
    (void)state;
    random_source random = {ckv_test_seed()};
    pair p = default_pair();
    open_pair(&p);
    forward f = new_forward(&p, &random, 0, 2, 2, 3);
    enum { HEAD = 20, TOKEN = 4 * HEAD + 7, COUNT = 3 * TOKEN };
    float out[COUNT];
    fill_value(CKV_FP32, out, COUNT, SENTINEL);
    f.args.out = out;
    f.args.out_token_stride = TOKEN;
    f.args.out_head_stride = HEAD;
    attend_pair(&p, &f.args);
    for (int i = 0; i < COUNT; i++) {
        int in_token = i % TOKEN, in_head = in_token % HEAD;
        assert_true((out[i] == SENTINEL) == (in_token >= 4 * HEAD || in_head >= 16));
    }
    free_forward(&f);
    close_pair(&p);
}

/* A forward that is repeated with other tokens leaves nothing of the first, whatever that was. */
static void later_forwards_overwrite_staged_tokens(void **state)
{
    (void)state;
    random_source random = {ckv_test_seed()};
    pair p = default_pair();
    open_pair(&p);
    write_prompt(&p, &random, 7);
    for (int chunk = 0; chunk < 5; chunk++) {
        for (int64_t layer = 0; layer < p.pool.layers; layer++) {
            forward dirty = new_forward(&p, &random, layer, 6, 2, 6);
            fill_value(CKV_FP32, dirty.qkv, 6 * dirty.args.q_token_stride, NAN);
            assert_ok(ckv_attention(&dirty.args, NULL));
            assert_true(isnan(((float *)dirty.out)[0]));
            free_forward(&dirty);
        }
        step_pair(&p, &random, 6, chunk % 2 ? 2 : 6, 6);
    }
    close_pair(&p);
}

/* NaN in one channel of one token's V reaches that channel of the rows that see the token, and nothing else. */
static void nan_reaches_only_rows_that_see_it(void **state)
{
    (void)state;
    random_source random = {ckv_test_seed()};
    pair p = default_pair();
    p.pool.layers = p.q_heads = p.pool.kv_heads = 1;
    open_pair(&p);
    write_prompt(&p, &random, 5);
    step_pair(&p, &random, 6, 6, 6);
    step_pair(&p, &random, 6, 6, 6);
    /* Blocks of 2 start at ids 17, 19, 21 and see 9.., 11.., 13..: token 12 is in the first two windows. Resident
     * positions: 17 committed, 5 fixed, so id 12 is at 12 less what was dropped. */
    ckv_cache_state state_now = ckv_cache_get_state(p.cache);
    int64_t position = 12 - (state_now.committed_tokens - state_now.staging_offset);
    float k[16] = {0}, v[16] = {0};
    v[3] = NAN;
    write_pair(&p, 0, position, 1, k, v);
    forward f = new_forward(&p, &random, 0, 6, 2, 6);
    assert_ok(ckv_attention(&f.args, NULL));
    for (int64_t row = 0; row < 6; row++)
        for (int64_t d = 0; d < 16; d++)
            assert_int_equal(isnan(((float *)f.out)[row * 16 + d]) != 0, row < 4 && d == 3);
    v[3] = 0;
    k[0] = NAN; /* in K it makes the score NaN, and with it every channel */
    write_pair(&p, 0, position, 1, k, v);
    assert_ok(ckv_attention(&f.args, NULL));
    for (int64_t row = 0; row < 6; row++)
        for (int64_t d = 0; d < 16; d++)
            assert_int_equal(isnan(((float *)f.out)[row * 16 + d]) != 0, row < 4);
    free_forward(&f);
    close_pair(&p);
}

/* Scores far apart: the maximum moves between tiles of keys, weights vanish, and the sums stay right. Whole numbers and
 * powers of two keep the scores exact, so that only the softmax is tested. */
static void scores_of_any_size(void **state)
{
    (void)state;
    random_source random = {ckv_test_seed()};
    static const double scales[] = {0x1p-6, 1, 0x1p4, 0x1p10};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        pair p = default_pair();
        p.scale = scales[i];
        p.pool.layers = 1;
        p.rollout.pin_tokens = 0;
        p.rollout.window_tokens = 400;
        p.rollout.max_staged_tokens = 300;
        p.sizes[0] = 300;
        p.sizes[1] = 30;
        open_pair(&p);
        for (int chunk = 0; chunk < 3; chunk++) {
            forward f = new_forward(&p, &random, 0, 300, chunk == 1 ? 30 : 300, 300);
            float *values = f.qkv;
            for (int64_t j = 0; j < 300 * f.args.q_token_stride; j++)
                if (j % f.args.q_token_stride < (4 + 2) * 16) /* Q and K, not V */
                    values[j] = roundf(2 * values[j]);
            attend_pair(&p, &f.args);
            free_forward(&f);
            commit_pair(&p, 300);
        }
        close_pair(&p);
    }
}

/* A first tile of keys whose scores are all -inf weighs nothing once a finite score follows. */
static void minus_infinity_weighs_nothing(void **state)
{
    (void)state;
    random_source random = {ckv_test_seed()};
    pair p = default_pair();
    enum { PIN = 150, VECTOR = 2 * 16 };
    p.pool.layers = 1;
    p.rollout.pin_tokens = PIN;
    open_pair(&p);
    static float k[PIN * VECTOR], v[PIN * VECTOR];
    fill_random(&random, CKV_FP32, v, PIN * VECTOR);
    for (int64_t i = 0; i < PIN * 2; i++)
        k[i * 16] = -INFINITY;
    write_pair(&p, 0, 0, PIN, k, v);
    commit_pair(&p, PIN);
    forward f = new_forward(&p, &random, 0, 6, 2, 6);
    for (int64_t row = 0; row < 6; row++)
        for (int64_t head = 0; head < 4; head++)
            ((float *)f.qkv)[row * f.args.q_token_stride + head * 16] = 1;
    attend_pair(&p, &f.args);
    assert_true(isfinite(((float *)f.out)[0]));
    free_forward(&f);
    close_pair(&p);
}

static const ckv_test_case cases[] = {
    CKV_CASE(defaults_and_packed),
    CKV_CASE(backend_names),
    CKV_CASE(refuses_sizes),
    CKV_CASE(refuses_tensors_and_options),
    CKV_CASE(random_rollouts_match_the_reference),
    CKV_CASE(several_tiles),
    CKV_CASE(visible_keys_are_exactly_the_window),
    CKV_CASE(layouts_of_the_input_do_not_matter),
    CKV_CASE(writes_nothing_but_out),
    CKV_CASE(later_forwards_overwrite_staged_tokens),
    CKV_CASE(nan_reaches_only_rows_that_see_it),
    CKV_CASE(scores_of_any_size),
    CKV_CASE(minus_infinity_weighs_nothing),
};
CKV_TEST_MAIN("attention", cases)
