/* SPDX-License-Identifier: Apache-2.0 */
/* The key of a captured forward: what must change it and what must not. */
#include "tests/support/case.h"

#include <ckv/attention.h>

#include <string.h>

static ckv_cache *open_cache(int64_t pin_tokens)
{
    static const int64_t sizes[] = {12, 3};
    ckv_pool_config pool = ckv_pool_config_default();
    pool.layers = 2;
    pool.kv_heads = 2;
    pool.head_dim = 8;
    pool.dtype = CKV_BF16;
    pool.tokens_per_page = 8;
    pool.pool_tokens = 800;
    ckv_rollout_config rollout = ckv_rollout_config_default();
    rollout.pin_tokens = pin_tokens;
    rollout.window_tokens = 20;
    rollout.max_staged_tokens = 12;
    rollout.causal_block_sizes = sizes;
    rollout.num_causal_block_sizes = 2;
    ckv_cache *cache;
    assert_ok(ckv_cache_create(&pool, &cache));
    assert_ok(ckv_cache_open(cache, &rollout, NULL));
    return cache;
}

static char memory[2][1 << 16];

static ckv_attention_args forward(ckv_cache *cache)
{
    ckv_attention_args args = ckv_attention_args_default();
    args.cache = cache;
    args.q_heads = 4;
    args.rows = 14;
    args.seq_len = 12;
    ckv_attention_args_set_packed(&args, memory[0]);
    args.out = memory[1];
    args.out_token_stride = 32;
    args.out_head_stride = 8;
    return args;
}

static uint64_t key_of(const ckv_attention_args *args)
{
    uint64_t key = 0;
    assert_ok(ckv_attention_graph_key(args, &key));
    return key;
}

static void key_follows_what_is_captured(void **state)
{
    (void)state;
    ckv_cache *cache = open_cache(5), *other = open_cache(5);
    ckv_attention_args base = forward(cache);
    ckv_attention_args variants[] = {forward(other), base, base, base, base, base, base, base, base, base};
    variants[1].layer = 1;
    variants[2].rows = 13;
    variants[3].seq_len = 9;
    variants[4].causal_block_size = 3;
    variants[5].q_token_stride += 8;
    variants[6].kv.v_token_stride += 8;
    variants[7].lse = (float *)(void *)memory[1];
    variants[8].scale = 0.5;
    variants[9].backend = "host";
    enum { VARIANTS = sizeof variants / sizeof *variants };
    variants[3].causal_block_size = 3;
    uint64_t keys[VARIANTS + 1] = {[VARIANTS] = key_of(&base)};
    for (int i = 0; i < VARIANTS; i++) {
        keys[i] = key_of(&variants[i]);
        for (int j = 0; j < i; j++)
            assert_true(keys[i] != keys[j]);
        assert_true(keys[i] != keys[VARIANTS]);
    }
    ckv_cache_destroy(&cache);
    ckv_cache_destroy(&other);
}

static void key_outlives_commits_and_reopening(void **state)
{
    (void)state;
    ckv_cache *cache = open_cache(5);
    ckv_attention_args args = forward(cache);
    uint64_t key = key_of(&args);
    for (int chunk = 0; chunk < 5; chunk++)
        assert_ok(ckv_cache_commit(cache, 12, NULL));
    assert_true(key_of(&args) == key);
    args.out = memory[0]; /* addresses are the caller's */
    args.causal_block_size = 12;
    assert_true(key_of(&args) == key); /* one block of all tokens, said otherwise */
    ckv_cache_close(cache);
    static const int64_t sizes[] = {3, 12};
    ckv_rollout_config longer_pin = ckv_rollout_config_default();
    longer_pin.pin_tokens = 30;
    longer_pin.window_tokens = 20;
    longer_pin.max_staged_tokens = 12;
    longer_pin.causal_block_sizes = sizes;
    longer_pin.num_causal_block_sizes = 2;
    assert_ok(ckv_cache_open(cache, &longer_pin, NULL));
    assert_true(key_of(&args) == key);
    ckv_cache_close(cache);
    longer_pin.window_tokens = 21; /* another geometry */
    assert_ok(ckv_cache_open(cache, &longer_pin, NULL));
    assert_true(key_of(&args) != key);
    ckv_cache_destroy(&cache);
}

static void refused_calls_have_no_key(void **state)
{
    (void)state;
    ckv_cache *cache = open_cache(5);
    ckv_attention_args args = forward(cache);
    uint64_t key = 77;
    args.seq_len = 0;
    assert_status(ckv_attention_graph_key(&args, &key), CKV_ERROR_INVALID);
    args.seq_len = 12;
    ckv_cache_close(cache);
    assert_status(ckv_attention_graph_key(&args, &key), CKV_ERROR_STATE);
    assert_int_equal(key, 77);
    ckv_cache_destroy(&cache);
}

static const ckv_test_case cases[] = {
    CKV_CASE(key_follows_what_is_captured),
    CKV_CASE(key_outlives_commits_and_reopening),
    CKV_CASE(refused_calls_have_no_key),
};

CKV_TEST_MAIN("graph_key", cases)
