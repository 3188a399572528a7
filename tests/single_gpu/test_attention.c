/* SPDX-License-Identifier: Apache-2.0 */
/* The attention dispatcher and a backend over a real cache, against the exact-window reference. */
#include "tests/single_gpu/attention_case.h"

static void defaults_and_packed(void **state)
{
    (void)state;
    pair p = default_pair();
    set_dtype(&p, CKV_BF16);
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

    const char *name = named_backend();
    ckv_attention_args args = ckv_attention_args_default();
    assert_status(ckv_attention_supports(name, &args), CKV_ERROR_INVALID); /* no cache */
    args.cache = p.cache;
    assert_status(ckv_attention_supports(name, NULL), CKV_ERROR_INVALID);
    assert_status(ckv_attention_supports(NULL, &args), CKV_ERROR_INVALID);
    assert_ok(ckv_attention_supports(name, &args));
    assert_status(ckv_attention_supports("flash", &args), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "flash"));
    args.mask = CKV_MASK_CUSTOM;
    assert_status(ckv_attention_supports(name, &args), CKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(ckv_last_error(), "mask"));
    args.mask = CKV_MASK_NONE;
    args.quantization = CKV_QUANT_FP8;
    assert_status(ckv_attention_supports(name, &args), CKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(ckv_last_error(), "quantization"));
    close_pair(&p);
}

/* A call that must be refused, and what its message must say. */
typedef struct refusal {
    ckv_attention_args args;
    ckv_status status;
    const char *says;
} refusal;

/* Refuse each; the cache's whole memory, its state, out and lse stay as they are, to the bit. */
static void expect_refusals(pair *p, const forward *f, const refusal *refusals, size_t count)
{
    ckv_pool *pool = ckv_cache_pool(p->cache);
    size_t pool_bytes = (size_t)ckv_pool_get_view(pool).layer_stride * (size_t)p->pool.layers;
    size_t out_bytes = (size_t)f->count_out * ckv_dtype_bytes(tensor_dtype(p));
    size_t lse_bytes = (size_t)(f->rows * p->q_heads) * sizeof(float);
    char *before = malloc(pool_bytes + out_bytes + lse_bytes), *memory = malloc(pool_bytes);
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    test_download(before, ckv_pool_get_view(pool).base, pool_bytes);
    memcpy(before + pool_bytes, f->out, out_bytes);
    memcpy(before + pool_bytes + out_bytes, f->lse, lse_bytes);
    for (size_t i = 0; i < count; i++) {
        assert_status(attention(p, &refusals[i].args), refusals[i].status);
        if (strstr(ckv_last_error(), refusals[i].says) == NULL)
            fail_msg("refusal %zu does not say '%s': %s", i, refusals[i].says, ckv_last_error());
        ckv_cache_state after = ckv_cache_get_state(p->cache);
        assert_true(same_state(&after, &state));
        test_download(memory, ckv_pool_get_view(pool).base, pool_bytes);
        assert_memory_equal(memory, before, pool_bytes);
        assert_memory_equal(f->out, before + pool_bytes, out_bytes);
        assert_memory_equal(f->lse, before + pool_bytes + out_bytes, lse_bytes);
    }
    free(memory);
    free(before);
}

static void refuses_sizes(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
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
    assert_ok(attention(&p, &f.args)); /* and the call they were made from is good */
    free_forward(&p, &f);
    close_pair(&p);
}

static void refuses_tensors_and_options(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
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
    r[12].args.mask = CKV_MASK_CUSTOM, r[12].args.backend = named_backend();
    r[12].status = CKV_ERROR_UNSUPPORTED, r[12].says = "mask";
    r[13].args.quantization = CKV_QUANT_FP8, r[13].status = CKV_ERROR_UNSUPPORTED, r[13].says = "quantization";
    r[14].args.quantization = CKV_QUANT_FP8, r[14].args.backend = named_backend();
    r[14].status = CKV_ERROR_UNSUPPORTED, r[14].says = ckv_dtype_name(p.pool.dtype);
    expect_refusals(&p, &f, r, sizeof r / sizeof r[0]);
    assert_ok(attention(&p, &f.args));

    ckv_cache_close(p.cache);
    refusal closed = {.args = f.args, .status = CKV_ERROR_STATE, .says = "rollout"};
    expect_refusals(&p, &f, &closed, 1);
    free_forward(&p, &f);
    close_pair(&p);
}

static pair random_pair(ckv_random *random)
{
    pair p = default_pair();
    set_dtype(&p, (ckv_dtype)ckv_random_range(random, uses_tensor_cores() ? CKV_BF16 : CKV_FP32, CKV_FP16));
    p.pool.kv_heads = ckv_random_range(random, 1, 3);
    p.q_heads = p.pool.kv_heads * ckv_random_range(random, 1, 4);
    p.pool.head_dim = uses_tensor_cores() ? 8 * ckv_random_range(random, 1, 5) : ckv_random_range(random, 1, 40);
    if (ckv_random_range(random, 0, 2) == 0)
        p.pool.head_dim = 64 * ckv_random_range(random, 1, 2);
    static const int64_t page_sizes[] = {1, 4, 8, 32};
    p.pool.tokens_per_page = page_sizes[ckv_random_range(random, 0, 3)];
    p.rollout.pin_tokens = ckv_random_range(random, 0, 30);
    p.rollout.window_tokens = ckv_random_range(random, 0, 3) == 0 ? 0 : ckv_random_range(random, 1, 60);
    p.rollout.max_staged_tokens = ckv_random_range(random, 1, 24);
    p.rollout.num_causal_block_sizes = 3;
    for (int i = 0; i < 3; i++)
        p.sizes[i] = ckv_random_range(random, 1, p.rollout.max_staged_tokens);
    return p;
}

/* The forward's K/V, Q and out in layouts of their own: separate, padded, tokens backwards (K always; out where the
 * backend can). Owns the memory it makes. */
typedef struct strided {
    void *memory[4]; /* q, k, v, out */
    ckv_attention_args args;
} strided;

static void *scatter_tensor(pair *p, const void *source, int64_t heads, int64_t rows, int64_t source_token_stride,
                            int64_t token_stride, int64_t head_stride, int64_t first)
{
    int64_t count = rows * (token_stride < 0 ? -token_stride : token_stride);
    void *memory = mirror_new(p, (size_t)count * ckv_dtype_bytes(tensor_dtype(p)));
    fill_value(tensor_dtype(p), memory, count, NAN);
    for (int64_t t = 0; source != NULL && t < rows; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < p->pool.head_dim; d++)
                set_element(tensor_dtype(p), memory, first + t * token_stride + h * head_stride + d,
                            get_element(tensor_dtype(p), source, t * source_token_stride + h * p->pool.head_dim + d));
    return memory;
}

static strided make_strided(pair *p, const forward *f)
{
    strided s = {.args = f->args};
    int64_t dim = p->pool.head_dim, rows = f->rows, packed = f->args.q_token_stride;
    int64_t size = (int64_t)ckv_dtype_bytes(tensor_dtype(p));
    int64_t head = dim + (uses_tensor_cores() ? 8 : 3), more = uses_tensor_cores() ? 16 : 5, k_head = dim + 3;
    int64_t q_token = p->q_heads * head + more;
    int64_t k_token = -(p->pool.kv_heads * k_head), v_token = p->pool.kv_heads * k_head + 1;
    int64_t out_token = uses_tensor_cores() ? p->q_heads * head + more : -(p->q_heads * head);
    int64_t k_first = -(rows - 1) * k_token, out_first = out_token < 0 ? -(rows - 1) * out_token : 0;
    s.memory[0] = scatter_tensor(p, f->args.q, p->q_heads, rows, packed, q_token, head, 0);
    s.memory[1] = scatter_tensor(p, f->args.kv.k, p->pool.kv_heads, rows, packed, k_token, k_head, k_first);
    s.memory[2] = scatter_tensor(p, f->args.kv.v, p->pool.kv_heads, rows, packed, v_token, k_head, 0);
    s.memory[3] = scatter_tensor(p, NULL, p->q_heads, rows, 0, out_token, head, 0);
    s.args.q = s.memory[0];
    s.args.q_token_stride = q_token;
    s.args.q_head_stride = head;
    s.args.kv = (ckv_kv){(char *)s.memory[1] + k_first * size, s.memory[2], k_token, k_head, v_token, k_head};
    s.args.out = (char *)s.memory[3] + out_first * size;
    s.args.out_token_stride = out_token;
    s.args.out_head_stride = head;
    return s;
}

static void free_strided(pair *p, strided *s)
{
    for (int i = 0; i < 4; i++)
        mirror_free(p, s->memory[i]);
}

/* Padding rows hold zero, random, NaN or infinity. */
static void dirty_padding(const pair *p, ckv_random *random, forward *f)
{
    static const float values[] = {0, NAN, INFINITY, -INFINITY};
    int64_t kind = ckv_random_range(random, 0, 4), stride = f->args.q_token_stride;
    for (int64_t i = f->args.seq_len * stride; kind < 4 && i < f->rows * stride; i++)
        set_element(tensor_dtype(p), f->qkv, i, values[kind]);
}

static void random_forward(pair *p, ckv_random *random, int64_t layer, int64_t seq_len, int64_t block)
{
    forward f = new_forward(p, random, layer, seq_len, block, seq_len + ckv_random_range(random, 0, 5));
    dirty_padding(p, random, &f);
    if (ckv_random_range(random, 0, 1))
        f.args.lse = NULL;
    if (ckv_random_range(random, 0, 2) == 0 && (uses_cudnn() || !uses_tensor_cores() || p->pool.dtype == CKV_FP8_E4M3))
        f.args.backend = NULL;
    if (ckv_random_range(random, 0, 1)) {
        strided s = make_strided(p, &f);
        attend_pair(p, &s.args);
        free_strided(p, &s);
    } else {
        attend_pair(p, &f.args);
    }
    free_forward(p, &f);
}

/* An edit of committed tokens on one side of the fixed end, sometimes zero_values. */
static void random_edit(pair *p, ckv_random *random)
{
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    if (state.staging_offset == 0)
        return;
    int64_t start = ckv_random_range(random, 0, state.staging_offset - 1);
    int64_t end = start < state.fixed_tokens ? state.fixed_tokens : state.staging_offset;
    int64_t tokens = ckv_random_range(random, 1, end - start), layer = ckv_random_range(random, 0, p->pool.layers - 1);
    if (ckv_random_range(random, 0, 2) > 0) {
        write_random(p, random, layer, start, tokens);
        return;
    }
    assert_ok(ckv_cache_zero_values(p->cache, layer, start, tokens, NULL));
    assert_ok(ckv_reference_zero_values(p->reference, layer, id_of_position(p, start), tokens));
}

static void random_chunk(pair *p, ckv_random *random)
{
    int64_t blocks = 0, block = 0;
    for (int64_t i = ckv_random_range(random, 1, 3); i > 0; i--) {
        block = p->sizes[ckv_random_range(random, 0, 2)];
        blocks = ckv_random_range(random, 1, p->rollout.max_staged_tokens / block);
        for (int64_t layer = 0; layer < p->pool.layers; layer++)
            random_forward(p, random, layer, blocks * block, block);
    }
    commit_pair(p, ckv_random_range(random, 0, 3) == 0 ? ckv_random_range(random, 1, blocks * block) : blocks * block);
    if (ckv_random_range(random, 0, 1))
        random_edit(p, random);
}

/* Geometries, dtypes, GQA, pages, strides, padding, overwritten forwards, partial commits and edits, all at random. */
static void random_rollouts_match_the_reference(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    for (int round = 0; round < (uses_cudnn() ? 4 : 60); round++) {
        pair p = random_pair(&random);
        open_pair(&p);
        int64_t prompt = ckv_random_range(&random, 0, p.rollout.pin_tokens + p.rollout.max_staged_tokens);
        if (prompt > 0)
            write_prompt(&p, &random, prompt);
        for (int64_t chunks = ckv_random_range(&random, 2, uses_cudnn() ? 5 : 12); chunks > 0; chunks--)
            random_chunk(&p, &random);
        close_pair(&p);
    }
}

/* Longer than a tile of keys and a tile of queries of a backend, in every dtype it takes. */
static void several_tiles(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    for (int dtype = uses_tensor_cores() ? CKV_BF16 : CKV_FP32; dtype <= CKV_FP16; dtype++) {
        pair p = default_pair();
        set_dtype(&p, (ckv_dtype)dtype);
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

/* Head sizes and pages that a backend may have a kernel of its own for, several tiles long, with groups of query heads
 * that do and do not divide a tile. */
static void wide_heads_and_pages(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    for (int i = 0; i < 6; i++) {
        pair p = default_pair();
        set_dtype(&p, i % 2 && uses_tensor_cores() ? CKV_FP16 : default_dtype());
        p.pool.layers = 2;
        p.q_heads = p.pool.kv_heads * (1 + i);
        p.pool.head_dim = 64 * (1 + i % 2);
        p.pool.tokens_per_page = 32 << i / 2;
        p.rollout.pin_tokens = 77;
        p.rollout.window_tokens = 700;
        p.rollout.max_staged_tokens = 132;
        p.sizes[0] = 132;
        p.sizes[1] = 44;
        open_pair(&p);
        write_prompt(&p, &random, 77);
        for (int chunk = 0; chunk < 3; chunk++)
            step_pair(&p, &random, 132, chunk % 2 ? 44 : 132, 132);
        step_pair(&p, &random, 88, 44, 88);
        close_pair(&p);
    }
}

/* A forward in calls of one K/V head each: together they are the forward of all heads. */
static void heads_may_come_in_groups(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    for (int wide = 0; wide < 2; wide++) {
        pair p = default_pair();
        p.pool.kv_heads = 3;
        p.q_heads = 6;
        p.pool.head_dim = wide ? 64 : 16;
        p.pool.tokens_per_page = wide ? 32 : 4;
        open_pair(&p);
        write_prompt(&p, &random, 9);
        for (int layer = 0; layer < 2; layer++) {
            forward f = new_forward(&p, &random, layer, 6, 2, 7);
            f.args.lse = NULL;
            for (int64_t head = 0; head < 3; head++) {
                const size_t step = (size_t)(head * p.pool.head_dim) * ckv_dtype_bytes(tensor_dtype(&p));
                ckv_attention_args args = f.args;
                args.first_kv_head = head;
                args.kv_heads = 1;
                args.q_heads = 2;
                args.q = (const char *)f.args.q + 2 * step;
                args.kv.k = (const char *)f.args.kv.k + step;
                args.kv.v = (const char *)f.args.kv.v + step;
                args.out = (char *)f.args.out + 2 * step;
                assert_ok(attention(&p, &args));
            }
            compare_pair(&p, &f.args);
            free_forward(&p, &f);
        }
        close_pair(&p);
    }
}

/* More causal blocks than a GPU has multiprocessors. */
static void many_small_blocks(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    pair p = default_pair();
    p.pool.layers = 1;
    p.pool.head_dim = 64;
    p.pool.tokens_per_page = 32;
    p.rollout.window_tokens = 300;
    p.rollout.max_staged_tokens = 180;
    p.sizes[0] = 180;
    p.sizes[1] = 1;
    open_pair(&p);
    write_prompt(&p, &random, 5);
    step_pair(&p, &random, 180, 180, 180);
    step_pair(&p, &random, 180, 1, 180);
    step_pair(&p, &random, 180, 1, 180);
    close_pair(&p);
}

/* The same call twice gives the same bits, however its work is shared out. */
static void repeats_are_bit_identical(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    pair p = default_pair();
    p.pool.layers = 1;
    p.pool.head_dim = 128;
    p.pool.tokens_per_page = 32;
    p.rollout.window_tokens = 1500;
    p.rollout.max_staged_tokens = 300;
    p.sizes[0] = 300;
    open_pair(&p);
    write_prompt(&p, &random, 5);
    for (int chunk = 0; chunk < 3; chunk++)
        step_pair(&p, &random, 300, 300, 300);
    forward f = new_forward(&p, &random, 0, 300, 300, 300);
    attend_pair(&p, &f.args);
    size_t bytes = (size_t)f.count_out * ckv_dtype_bytes(tensor_dtype(&p));
    void *first = malloc(bytes);
    memcpy(first, f.out, bytes);
    for (int repeat = 0; repeat < 5; repeat++) {
        fill_value(tensor_dtype(&p), f.out, f.count_out, SENTINEL);
        assert_ok(attention(&p, &f.args));
        assert_memory_equal(f.out, first, bytes);
    }
    free(first);
    free_forward(&p, &f);
    close_pair(&p);
}

/* The same tokens packed, separate and strided give the same bits. */
static void layouts_of_the_input_do_not_matter(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    for (int dtype = uses_tensor_cores() ? CKV_BF16 : CKV_FP32; dtype <= CKV_FP16; dtype++) {
        pair p = default_pair();
        set_dtype(&p, (ckv_dtype)dtype);
        open_pair(&p);
        write_prompt(&p, &random, 9);
        forward f = new_forward(&p, &random, 0, 4, 2, 6);
        strided s = make_strided(&p, &f);
        attend_pair(&p, &f.args);
        attend_pair(&p, &s.args);
        int64_t size = (int64_t)ckv_dtype_bytes(tensor_dtype(&p));
        for (int64_t row = 0; row < 6; row++)
            for (int64_t head = 0; head < p.q_heads; head++)
                assert_memory_equal((char *)f.args.out + out_index(&f.args, row, head) * size,
                                    (char *)s.args.out + out_index(&s.args, row, head) * size,
                                    (size_t)(p.pool.head_dim * size));
        free_strided(&p, &s);
        free_forward(&p, &f);
        close_pair(&p);
    }
}

/* What is between the vectors of a strided out, and past it, is not ours. */
static void writes_nothing_but_out(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    pair p = default_pair();
    open_pair(&p);
    forward f = new_forward(&p, &random, 0, 2, 2, 3);
    enum { HEAD = 24, TOKEN = 4 * HEAD + 8, COUNT = 3 * TOKEN };
    void *out = mirror_new(&p, COUNT * sizeof(float));
    fill_value(tensor_dtype(&p), out, COUNT, SENTINEL);
    f.args.out = out;
    f.args.out_token_stride = TOKEN;
    f.args.out_head_stride = HEAD;
    attend_pair(&p, &f.args);
    for (int i = 0; i < COUNT; i++) {
        int in_token = i % TOKEN, in_head = in_token % HEAD;
        assert_true((get_element(tensor_dtype(&p), out, i) == SENTINEL) == (in_token >= 4 * HEAD || in_head >= 16));
    }
    mirror_free(&p, out);
    free_forward(&p, &f);
    close_pair(&p);
}

/* A forward that is repeated with other tokens leaves nothing of the first, whatever that was. */
static void later_forwards_overwrite_staged_tokens(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    pair p = default_pair();
    open_pair(&p);
    write_prompt(&p, &random, 7);
    for (int chunk = 0; chunk < 5; chunk++) {
        for (int64_t layer = 0; layer < p.pool.layers; layer++) {
            forward dirty = new_forward(&p, &random, layer, 6, 2, 6);
            fill_value(tensor_dtype(&p), dirty.qkv, 6 * dirty.args.q_token_stride, NAN);
            assert_ok(attention(&p, &dirty.args));
            assert_true(isnan(get_element(tensor_dtype(&p), dirty.out, 0)));
            free_forward(&p, &dirty);
        }
        step_pair(&p, &random, 6, chunk % 2 ? 2 : 6, 6);
    }
    close_pair(&p);
}

/* Plans and packs are per shape and layer: calls that take turns get their own. */
static void shapes_and_layers_take_turns(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    pair p = default_pair();
    open_pair(&p);
    write_prompt(&p, &random, 7);
    forward f[4];
    for (int i = 0; i < 4; i++) {
        f[i] = new_forward(&p, &random, i % 2, i < 2 ? 6 : 4, i < 2 ? 6 : 2, 6);
        f[i].args.lse = i % 2 ? NULL : f[i].lse;
    }
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 4; i++)
            attend_pair(&p, &f[i].args);
        commit_pair(&p, 4);
    }
    for (int i = 0; i < 4; i++)
        free_forward(&p, &f[i]);
    close_pair(&p);
}

/* "auto" passes over what cannot read the pages, and a name says why not. */
static void pages_of_fp8_need_a_backend_that_reads_them(void **state)
{
    (void)state;
    pair p = default_pair();
    p.pool.tensor_dtype = default_dtype();
    p.pool.dtype = CKV_FP8_E4M3;
    open_pair(&p);
    ckv_attention_args args = ckv_attention_args_default();
    args.cache = p.cache;
    args.q_heads = p.q_heads;
    args.seq_len = args.rows = 2;
    args.q_token_stride = args.out_token_stride = p.q_heads * p.pool.head_dim;
    args.q_head_stride = args.out_head_stride = p.pool.head_dim;
    if (uses_cudnn()) {
        assert_status(ckv_attention_supports("cudnn", &args), CKV_ERROR_UNSUPPORTED);
        assert_non_null(strstr(ckv_last_error(), "fp8_e4m3"));
        assert_ok(ckv_attention_supports("hopper", &args));
    } else {
        assert_ok(ckv_attention_supports(named_backend(), &args));
    }
    close_pair(&p);
}

static const ckv_test_case cases[] = {
    CKV_CASE(defaults_and_packed),
    CKV_CASE(backend_names),
    CKV_CASE(refuses_sizes),
    CKV_CASE(refuses_tensors_and_options),
    CKV_CASE(random_rollouts_match_the_reference),
    CKV_CASE(several_tiles),
    CKV_CASE(wide_heads_and_pages),
    CKV_CASE(heads_may_come_in_groups),
    CKV_CASE(many_small_blocks),
    CKV_CASE(repeats_are_bit_identical),
    CKV_CASE(layouts_of_the_input_do_not_matter),
    CKV_CASE(writes_nothing_but_out),
    CKV_CASE(later_forwards_overwrite_staged_tokens),
    CKV_CASE(shapes_and_layers_take_turns),
    CKV_CASE(pages_of_fp8_need_a_backend_that_reads_them),
};
CKV_TEST_MAIN("attention", cases)
