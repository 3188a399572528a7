/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that a correct program does not make: each is refused with a reason, or has no effect. */
#include "tests/support/case.h"

#include <ckv/ckv.h>
#include <pthread.h>
#include <string.h>

enum { DIM = 16, PAGE = 4, STAGED = 6, ROWS = 6 };

static const int64_t block_sizes[] = {STAGED, 2};
static _Alignas(64) float vectors[4][ROWS * DIM]; /* q, k, v, out */

static ckv_pool_config pool_config(void)
{
    ckv_pool_config config = ckv_pool_config_default();
    config.layers = config.kv_heads = 1;
    config.head_dim = DIM;
    config.tokens_per_page = PAGE;
    config.pool_tokens = 400;
    return config;
}

static ckv_rollout_config rollout_config(void)
{
    ckv_rollout_config config = ckv_rollout_config_default();
    config.window_tokens = 8;
    config.max_staged_tokens = STAGED;
    config.causal_block_sizes = block_sizes;
    config.num_causal_block_sizes = 2;
    return config;
}

static ckv_cache *open_cache(void)
{
    ckv_pool_config pool = pool_config();
    ckv_rollout_config rollout = rollout_config();
    ckv_cache *cache = NULL;
    assert_ok(ckv_cache_create(&pool, &cache));
    assert_ok(ckv_cache_open(cache, &rollout, NULL));
    return cache;
}

static ckv_kv source_kv(void)
{
    return ckv_kv_dense(vectors[1], vectors[2], 1, DIM);
}

static ckv_attention_args attention_args(ckv_cache *cache)
{
    ckv_attention_args args = ckv_attention_args_default();
    args.cache = cache;
    args.q_heads = 1;
    args.rows = args.seq_len = ROWS;
    args.q = vectors[0];
    args.kv = source_kv();
    args.out = vectors[3];
    args.q_token_stride = args.out_token_stride = DIM;
    args.q_head_stride = args.out_head_stride = DIM;
    return args;
}

#define expect_invalid(call) assert_int_equal(call, CKV_ERROR_INVALID)

static void null_configs_and_results_are_refused(void **state)
{
    (void)state;
    ckv_pool_config pool = pool_config();
    ckv_rollout_config rollout = rollout_config();
    ckv_pool *pool_out;
    ckv_cache *cache;
    ckv_rollout_size size;
    int64_t number;
    const ckv_device *host;
    void *memory;
    expect_invalid(ckv_device_find("host", NULL));
    expect_invalid(ckv_device_find(NULL, &host));
    expect_invalid(ckv_device_alloc(NULL, 4, NULL));
    assert_ok(ckv_device_alloc(NULL, 4, &memory));
    expect_invalid(ckv_device_upload(NULL, memory, NULL, 4, NULL));
    expect_invalid(ckv_device_download(NULL, NULL, memory, 4, NULL));
    assert_ok(ckv_device_upload(NULL, NULL, NULL, 0, NULL));
    ckv_device_free(NULL, memory);
    ckv_device_free(NULL, NULL);
    expect_invalid(ckv_qk_norm_rope(NULL, NULL, NULL));
    expect_invalid(ckv_pool_config_bytes(NULL, &number));
    expect_invalid(ckv_pool_config_bytes(&pool, NULL));
    expect_invalid(ckv_pool_create(NULL, &pool_out));
    expect_invalid(ckv_pool_create(&pool, NULL));
    expect_invalid(ckv_rollout_config_size(NULL, PAGE, &size));
    expect_invalid(ckv_rollout_config_size(&rollout, PAGE, NULL));
    expect_invalid(ckv_rollout_max_window(NULL, &pool, 1 << 20, &number));
    expect_invalid(ckv_rollout_max_window(&rollout, NULL, 1 << 20, &number));
    expect_invalid(ckv_rollout_max_window(&rollout, &pool, 1 << 20, NULL));
    expect_invalid(ckv_rollout_state_bytes(NULL, &pool, &number));
    expect_invalid(ckv_rollout_state_bytes(&rollout, NULL, &number));
    expect_invalid(ckv_rollout_state_bytes(&rollout, &pool, NULL));
    expect_invalid(ckv_cache_create(NULL, &cache));
    expect_invalid(ckv_cache_create(&pool, NULL));
    expect_invalid(ckv_cache_create_on_pool(NULL, 0, &cache));
    expect_invalid(ckv_ulysses_kv_heads_per_rank(NULL, 1, &number));
    expect_invalid(ckv_comm_create_self(NULL));
    expect_invalid(ckv_comm_create_threads(1, 0, NULL));
}

/* A block offset is 2 * page + 1 in 32 bits; the byte count alone would fit. */
static void pages_that_offsets_cannot_name_are_refused(void **state)
{
    (void)state;
    ckv_pool_config pool = pool_config();
    int64_t bytes = 0;
    pool.tokens_per_page = 1;
    pool.pool_tokens = INT32_MAX / 2;
    assert_ok(ckv_pool_config_bytes(&pool, &bytes));
    assert_int_equal(bytes, ((int64_t)INT32_MAX / 2 + 1) * 2 * DIM * 4);
    pool.pool_tokens++;
    expect_invalid(ckv_pool_config_bytes(&pool, &bytes));
    pool.tokens_per_page = 2;
    assert_ok(ckv_pool_config_bytes(&pool, &bytes));
}

static void null_objects_are_refused(void **state)
{
    (void)state;
    ckv_cache *cache = open_cache();
    ckv_rollout_config rollout = rollout_config();
    ckv_kv source = source_kv();
    ckv_attention_args args = attention_args(cache);
    ckv_block_view view;
    int64_t number;
    expect_invalid(ckv_cache_open(NULL, &rollout, NULL));
    expect_invalid(ckv_cache_write_range(NULL, 0, 0, 1, &source, NULL));
    expect_invalid(ckv_cache_write_range(cache, 0, 0, 1, NULL, NULL));
    expect_invalid(ckv_cache_zero_values(NULL, 0, 0, 1, NULL));
    expect_invalid(ckv_cache_write_staged(NULL, 0, STAGED, STAGED, &source, 1, NULL));
    expect_invalid(ckv_cache_write_staged(cache, 0, STAGED, STAGED, NULL, 1, NULL));
    expect_invalid(ckv_cache_commit(NULL, 1, NULL));
    expect_invalid(ckv_cache_block_view(NULL, STAGED, &view));
    expect_invalid(ckv_cache_block_view(cache, STAGED, NULL));
    expect_invalid(ckv_cache_read_row(NULL, 0, STAGED, 0, 0, NULL, NULL, &number, NULL));
    expect_invalid(ckv_cache_read_row(cache, 0, STAGED, 0, 0, NULL, NULL, NULL, NULL));
    expect_invalid(ckv_cache_check(NULL, NULL));
    expect_invalid(ckv_attention(NULL, NULL));
    expect_invalid(ckv_attention_supports(NULL, &args));
    expect_invalid(ckv_ulysses_attention(NULL, &args, NULL));
    expect_invalid(ckv_comm_barrier(NULL));
    expect_invalid(ckv_comm_agree(NULL, CKV_OK));
    ckv_cache_destroy(&cache);
    expect_invalid(ckv_cache_open(cache, NULL, NULL));
    ckv_cache_close(cache);
    ckv_cache_destroy(&cache);
    ckv_cache_destroy(NULL);
    assert_int_equal(ckv_ulysses_rows_per_rank(5, 0), 0);
    assert_int_equal(ckv_ulysses_rows_per_rank(-5, 2), 0);
}

static void expect_refused(const ckv_attention_args *args, const char *says)
{
    expect_invalid(ckv_attention(args, NULL));
    if (strstr(ckv_last_error(), says) == NULL)
        fail_msg("'%s' does not say '%s'", ckv_last_error(), says);
}

static void misaligned_tensors_are_refused(void **state)
{
    (void)state;
    ckv_cache *cache = open_cache();
    const ckv_attention_args good = attention_args(cache);
    assert_ok(ckv_attention(&good, NULL));
    ckv_attention_args args = good;
    args.q = (const char *)vectors[0] + 2;
    expect_refused(&args, "q is at");
    args = good;
    args.kv.k = (const char *)vectors[1] + 1;
    expect_refused(&args, "kv.k is at");
    args = good;
    args.kv.v = (const char *)vectors[2] + 3;
    expect_refused(&args, "kv.v is at");
    args = good;
    args.out = (char *)vectors[3] + 2;
    expect_refused(&args, "out is at");
    args = good;
    args.lse = (float *)(void *)((char *)vectors[3] + 1);
    expect_refused(&args, "lse is at");
    ckv_cache_destroy(&cache);
}

/* Two query heads, so that both strides count. */
static void results_in_one_place_are_refused(void **state)
{
    static const struct {
        int64_t token, head;
        int apart;
    } strides[] = {
        {2 * DIM, DIM, 1},
        {DIM, ROWS * DIM, 1},
        {-2 * DIM, DIM, 1},
        {DIM, -ROWS * DIM, 1},
        {2 * DIM + 3, DIM + 1, 1},
        {0, DIM, 0},
        {2 * DIM, 0, 0},
        {DIM, DIM, 0},
        {2 * DIM, DIM - 1, 0},
        {2 * DIM - 1, DIM, 0},
        {DIM, ROWS * DIM - 1, 0},
        {DIM - 1, ROWS * DIM, 0},
        {-DIM, DIM, 0},
        {2 * DIM, INT64_MIN, 0},
        {INT64_MAX, DIM, 0},
        {INT64_MAX / 2, DIM, 0},
    };
    (void)state;
    static float q[2 * ROWS * DIM], out[4 * ROWS * 2 * DIM];
    ckv_cache *cache = open_cache();
    for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
        ckv_attention_args args = attention_args(cache);
        args.q_heads = 2;
        args.q = q;
        args.q_token_stride = 2 * DIM;
        args.out = out + sizeof out / sizeof *out / 2; /* room for negative strides */
        args.out_token_stride = strides[i].token;
        args.out_head_stride = strides[i].head;
        if (!strides[i].apart)
            expect_refused(&args, "in one place");
        else
            assert_ok(ckv_attention(&args, NULL));
    }
    ckv_cache_destroy(&cache);
}

static void order_of_destruction_does_not_matter(void **state)
{
    (void)state;
    ckv_pool_config config = pool_config();
    ckv_rollout_config rollout = rollout_config();
    ckv_pool *pool = NULL;
    ckv_cache *caches[2] = {NULL, NULL};
    assert_ok(ckv_pool_create(&config, &pool));
    assert_ok(ckv_cache_create_on_pool(pool, 0, &caches[0]));
    assert_ok(ckv_cache_create_on_pool(pool, 0, &caches[1]));
    ckv_pool_destroy(&pool);
    ckv_pool_destroy(&pool);
    assert_ok(ckv_cache_open(caches[0], &rollout, NULL));
    assert_ok(ckv_cache_open(caches[1], &rollout, NULL));
    ckv_cache_destroy(&caches[0]);
    ckv_attention_args args = attention_args(caches[1]);
    assert_ok(ckv_attention(&args, NULL));
    assert_int_equal(ckv_pool_free_pages(ckv_cache_pool(caches[1])) + ckv_cache_held_pages(caches[1]),
                     ckv_pool_total_pages(ckv_cache_pool(caches[1])));
    ckv_cache_destroy(&caches[1]);
}

/* One thread's rollouts on a pool that others use too; NULL, or what went wrong. */
static void *roll(void *argument)
{
    ckv_pool *pool = argument;
    ckv_cache *cache = NULL;
    ckv_rollout_config rollout = rollout_config();
    ckv_kv source = source_kv();
    ckv_status status = ckv_cache_create_on_pool(pool, 0, &cache);
    for (int round = 0; round < 20 && status == CKV_OK; round++) {
        status = ckv_cache_open(cache, &rollout, NULL);
        for (int chunk = 0; chunk < 4 && status == CKV_OK; chunk++) {
            status = ckv_cache_write_staged(cache, 0, STAGED, 2, &source, 1, NULL);
            if (status == CKV_OK)
                status = ckv_cache_commit(cache, STAGED, NULL);
            if (status == CKV_OK)
                status = ckv_cache_check(cache, NULL);
            if (ckv_pool_free_pages(pool) > ckv_pool_total_pages(pool) - ckv_cache_held_pages(cache))
                status = CKV_ERROR_INTERNAL;
        }
        ckv_cache_close(cache);
    }
    ckv_cache_destroy(&cache);
    return status == CKV_OK ? NULL : argument;
}

static void caches_of_threads_share_a_pool(void **state)
{
    (void)state;
    enum { THREADS = 3 };
    ckv_pool_config config = pool_config();
    ckv_pool *pool = NULL;
    pthread_t threads[THREADS];
    assert_ok(ckv_pool_create(&config, &pool));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, roll, pool), 0);
    int wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        wrong += result != NULL;
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(ckv_pool_free_pages(pool), ckv_pool_total_pages(pool));
    ckv_pool_destroy(&pool);
}

static const ckv_test_case cases[] = {
    CKV_CASE(null_configs_and_results_are_refused),
    CKV_CASE(pages_that_offsets_cannot_name_are_refused),
    CKV_CASE(null_objects_are_refused),
    CKV_CASE(misaligned_tensors_are_refused),
    CKV_CASE(results_in_one_place_are_refused),
    CKV_CASE(order_of_destruction_does_not_matter),
    CKV_CASE(caches_of_threads_share_a_pool),
};

CKV_TEST_MAIN("misuse", cases)
