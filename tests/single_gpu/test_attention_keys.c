/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys a backend counts, and how much each weighs. */
#include "tests/single_gpu/attention_case.h"

#include <stdio.h>

enum { VISIBLE_IDS = 128 };

/* q = 0 and one-hot V: a key that is read weighs 1/n, one that is not weighs nothing. */
static void check_visible_set(pair *p, int64_t seq_len, int64_t block, const char *one_hot, const char *zeros,
                              const char *out)
{
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    int64_t offset = state.committed_tokens * VISIBLE_IDS * (int64_t)ckv_dtype_bytes(tensor_dtype(p));
    const double rounding =
        uses_tensor_cores() ? 0x1p-8 : 1e-6; /* relative; the weights themselves are equal, so exact */
    ckv_attention_args args = ckv_attention_args_default();
    args.cache = p->cache;
    args.q_heads = 1;
    args.rows = args.seq_len = seq_len;
    args.causal_block_size = block;
    args.q = zeros;
    args.q_token_stride = args.q_head_stride = VISIBLE_IDS;
    args.kv = ckv_kv_dense(zeros, one_hot + offset, 1, VISIBLE_IDS);
    args.out = mirror_of(p, out)->host;
    args.out_token_stride = args.out_head_stride = VISIBLE_IDS;
    args.backend = ckv_test_backend();
    assert_ok(attention(p, &args));
    for (int64_t row = 0; row < seq_len; row++) {
        int64_t start = state.committed_tokens + row / block * block, visible = 0;
        int sees[VISIBLE_IDS];
        for (int64_t id = 0; id < VISIBLE_IDS; id++) {
            sees[id] = id < state.fixed_tokens || (id >= start - state.window_tokens && id < start + block);
            visible += sees[id];
        }
        for (int64_t id = 0; id < VISIBLE_IDS; id++) {
            double weight = (double)get_element(tensor_dtype(p), out, row * VISIBLE_IDS + id);
            if (sees[id])
                assert_near(weight, 1.0 / (double)visible, rounding / (double)visible);
            else
                assert_true(weight == 0);
        }
    }
}

/* At every commit from empty over filling to full, for windows on and off page boundaries. */
static void visible_keys_are_exactly_the_window(void **state)
{
    (void)state;
    static const int64_t pages[] = {1, 4, 8, 32}, pins[] = {0, 5, 8}, windows[] = {0, 7, 16, 33};
    const int64_t elements = VISIBLE_IDS * VISIBLE_IDS;
    for (int i = 0; i < 4 * 3 * 4; i += uses_cudnn() ? 7 : 1) {
        pair p = default_pair();
        p.q_heads = p.pool.layers = p.pool.kv_heads = 1;
        p.pool.head_dim = VISIBLE_IDS;
        p.pool.tokens_per_page = pages[i % 4];
        p.rollout.pin_tokens = pins[i / 4 % 3];
        p.rollout.window_tokens = windows[i / 12];
        p.rollout.max_staged_tokens = 12;
        p.sizes[0] = 12;
        p.sizes[1] = 3;
        open_pair(&p);
        size_t bytes = (size_t)elements * ckv_dtype_bytes(tensor_dtype(&p));
        void *zeros = mirror_new(&p, bytes), *one_hot = mirror_new(&p, bytes), *out = mirror_new(&p, bytes);
        fill_value(tensor_dtype(&p), zeros, elements, 0);
        fill_value(tensor_dtype(&p), one_hot, elements, 0);
        for (int64_t id = 0; id < VISIBLE_IDS; id++)
            set_element(tensor_dtype(&p), one_hot, id * VISIBLE_IDS + id, 1);
        for (int64_t committed = 0; committed + 12 <= VISIBLE_IDS; committed += 12) {
            check_visible_set(&p, 12, 12, one_hot, zeros, out);
            check_visible_set(&p, 12, 3, one_hot, zeros, out);
            assert_ok(ckv_cache_commit(p.cache, 12, NULL));
        }
        mirror_free(&p, out);
        mirror_free(&p, one_hot);
        mirror_free(&p, zeros);
        close_pair(&p);
    }
}

/* NaN in one channel of one token's V reaches that channel of the rows that see the token, and nothing else. */
static void nan_reaches_only_rows_that_see_it(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
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
    float k[16] = {0}, v[16] = {0}; /* room for any dtype */
    set_element(tensor_dtype(&p), v, 3, NAN);
    write_pair(&p, 0, position, 1, k, v);
    forward f = new_forward(&p, &random, 0, 6, 2, 6);
    assert_ok(attention(&p, &f.args));
    for (int64_t row = 0; row < 6; row++)
        for (int64_t d = 0; d < 16; d++)
            assert_int_equal(isnan(get_element(tensor_dtype(&p), f.out, row * 16 + d)) != 0, row < 4 && d == 3);
    set_element(tensor_dtype(&p), v, 3, 0);
    set_element(tensor_dtype(&p), k, 0, NAN); /* in K it makes the score NaN, and with it every channel */
    write_pair(&p, 0, position, 1, k, v);
    assert_ok(attention(&p, &f.args));
    for (int64_t row = 0; row < 6; row++)
        for (int64_t d = 0; d < 16; d++)
            assert_int_equal(isnan(get_element(tensor_dtype(&p), f.out, row * 16 + d)) != 0, row < 4);
    free_forward(&p, &f);
    close_pair(&p);
}

/* Scores far apart: the maximum moves between tiles of keys, weights vanish, and the sums stay right. Whole numbers and
 * powers of two keep the scores exact, so that only the softmax is tested. */
static void scores_of_any_size(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    static const double scales[] = {0x1p-6, 1, 0x1p4, 0x1p10};
    const size_t count =
        uses_tensor_cores() ? 3 : 4; /* at 2^10 one float rounding of score * log2(e) moves a weight by 1% */
    for (size_t i = 0; i < count; i++) {
        pair p = default_pair();
        p.peaked = 1;
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
            for (int64_t j = 0; j < 300 * f.args.q_token_stride; j++)
                if (j % f.args.q_token_stride < (4 + 2) * 16) /* Q and K, not V */
                    set_element(tensor_dtype(&p), f.qkv, j, roundf(2 * get_element(tensor_dtype(&p), f.qkv, j)));
            attend_pair(&p, &f.args);
            free_forward(&p, &f);
            commit_pair(&p, 300);
        }
        close_pair(&p);
    }
}

/* A first tile of keys whose scores are all -inf weighs nothing once a finite score follows. */
static void minus_infinity_weighs_nothing(void **state)
{
    (void)state;
    if (uses_cudnn())
        ckv_test_skip("cuDNN says nothing of rows of -inf scores");
    ckv_random random = {ckv_test_seed()};
    pair p = default_pair();
    enum { PIN = 150, VECTOR = 2 * 16 };
    p.peaked = 1; /* few of the row's keys count */
    p.pool.layers = 1;
    p.rollout.pin_tokens = PIN;
    open_pair(&p);
    static float k[PIN * VECTOR], v[PIN * VECTOR]; /* room for any dtype */
    fill_random(&random, tensor_dtype(&p), v, PIN * VECTOR);
    fill_value(tensor_dtype(&p), k, PIN * VECTOR, 0);
    for (int64_t i = 0; i < PIN * 2; i++)
        set_element(tensor_dtype(&p), k, i * 16, -INFINITY);
    write_pair(&p, 0, 0, PIN, k, v);
    commit_pair(&p, PIN);
    forward f = new_forward(&p, &random, 0, 6, 2, 6);
    for (int64_t row = 0; row < 6; row++)
        for (int64_t head = 0; head < 4; head++)
            set_element(tensor_dtype(&p), f.qkv, row * f.args.q_token_stride + head * 16, 1);
    attend_pair(&p, &f.args);
    assert_true(isfinite(get_element(tensor_dtype(&p), f.out, 0)));
    free_forward(&p, &f);
    close_pair(&p);
}

/* All that is in a slot, K (0) or V (1), of every head of layer 0. */
static void fill_slot(const pair *p, int64_t page, int64_t slot, int64_t kv, float value)
{
    const ckv_pool_view view = ckv_pool_get_view(ckv_cache_pool(p->cache));
    float vector[64]; /* room for any dtype */
    fill_value(p->pool.dtype, vector, p->pool.head_dim, value);
    for (int64_t head = 0; head < p->pool.kv_heads; head++)
        assert_ok(p->pool.device->upload((char *)view.base + page * view.page_stride + kv * view.kv_stride +
                                             head * view.head_stride + slot * view.slot_stride,
                                         vector, (size_t)view.slot_stride, NULL));
}

/* The slots past the keys of each block's row: the end of its last page, and with `guard` the guard page instead. */
static void fill_past_rows(const pair *p, int64_t block_size, int guard, int64_t kv, float value)
{
    ckv_block_view view;
    assert_ok(ckv_cache_block_view(p->cache, block_size, &view));
    const int64_t page_tokens = p->pool.tokens_per_page;
    for (int64_t block = 0; block < view.num_blocks; block++) {
        int32_t page = ckv_pool_get_view(ckv_cache_pool(p->cache)).guard_page, keys = 0;
        if (!guard) {
            test_download(&keys, view.seq_len_kv + block, sizeof keys);
            test_download(&page, view.rows + block * view.row_pages + (keys - 1) / page_tokens, sizeof page);
        }
        for (int64_t slot = guard ? 0 : (keys - 1) % page_tokens + 1; slot < page_tokens; slot++)
            fill_slot(p, page, slot, kv, value);
    }
}

/* A kernel that gives masked keys the weight 0 still multiplies their V: 0 * NaN is NaN, and a kernel's tile of keys
 * reaches over the end of the row into the rest of its last page and into the guard page. */
static void check_slots_past_rows(ckv_random *random, int64_t head_dim, int64_t tokens_per_page)
{
    static const float values[] = {1000, INFINITY, NAN};
    pair p = default_pair();
    p.pool.layers = 1;
    p.pool.head_dim = head_dim;
    p.pool.tokens_per_page = tokens_per_page;
    p.pool.poison_fresh_pages = 0;
    open_pair(&p);
    for (int guard = 0; guard < 2; guard++)
        for (int64_t kv = 0; kv < 2; kv++)
            fill_past_rows(&p, 2, guard, kv, 0);
    write_prompt(&p, random, 5);
    step_pair(&p, random, 6, 6, 6);
    forward f = new_forward(&p, random, 0, 6, 2, 6);
    attend_pair(&p, &f.args);
    size_t bytes = (size_t)f.count_out * ckv_dtype_bytes(tensor_dtype(&p));
    void *before = malloc(bytes);
    memcpy(before, f.out, bytes);
    char influences[512] = "";
    for (int i = 0; i < 9; i++) { /* V of the guard page is zero, always */
        int guard = i / 6, kv = i / 3 % 2;
        fill_past_rows(&p, 2, guard, kv, values[i % 3]);
        assert_ok(attention(&p, &f.args));
        if (memcmp(f.out, before, bytes) != 0)
            snprintf(influences + strlen(influences), sizeof influences - strlen(influences), " %s of %s = %g;",
                     kv ? "V" : "K", guard ? "the guard page" : "the last page's end", (double)values[i % 3]);
        fill_past_rows(&p, 2, guard, kv, 0);
    }
    free(before);
    if (influences[0] != '\0')
        fail_msg("slots that no row reads change results:%s", influences);
    free_forward(&p, &f);
    close_pair(&p);
}

static void slots_past_a_row_have_no_influence(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    check_slots_past_rows(&random, 16, 8);
    check_slots_past_rows(&random, 64, 32);
}

static const ckv_test_case cases[] = {
    CKV_CASE(visible_keys_are_exactly_the_window),
    CKV_CASE(nan_reaches_only_rows_that_see_it),
    CKV_CASE(scores_of_any_size),
    CKV_CASE(minus_infinity_weighs_nothing),
    CKV_CASE(slots_past_a_row_have_no_influence),
};
CKV_TEST_MAIN("attention_keys", cases)
