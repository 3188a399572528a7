/* SPDX-License-Identifier: Apache-2.0 */
/* Memory as the driver counts it, and a device that has none left. Nothing else may use the GPU meanwhile. */
#include "tests/single_gpu/cuda_case.h"
#include "tests/single_gpu/rollout_case.h"

static size_t free_bytes(void)
{
    size_t left, total;
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaMemGetInfo(&left, &total));
    return left;
}

/* So that loading code and the first allocation do not count. */
static void warm_up(const ckv_pool_config *pool, const ckv_rollout_config *config)
{
    ckv_cache *cache;
    assert_ok(ckv_cache_create(pool, &cache));
    assert_ok(ckv_cache_open(cache, config, NULL));
    assert_ok(ckv_cache_commit(cache, 1, NULL));
    assert_ok(ckv_cache_check(cache, NULL));
    ckv_cache_destroy(&cache);
}

static void bytes_are_what_the_driver_sees(void **state)
{
    (void)state;
    static const int64_t tokens[] = {4096, 40000, 200000};
    ckv_rollout_config config = rollout(5, 1000, 12, SIZES(12, 3), 2);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        ckv_pool_config pool = pool_config(3, 5, 8, tokens[i]);
        warm_up(&pool, &config);
        int64_t planned;
        ckv_cache *cache;
        size_t before = free_bytes();
        assert_ok(ckv_pool_config_bytes(&pool, &planned));
        assert_ok(ckv_cache_create(&pool, &cache));
        size_t with_pool = free_bytes();
        assert_int_equal(before - with_pool, planned);
        assert_int_equal(before - with_pool, ckv_pool_bytes(ckv_cache_pool(cache)));
        assert_ok(ckv_cache_open(cache, &config, NULL));
        assert_int_equal(with_pool - free_bytes(), ckv_cache_device_bytes(cache));
        ckv_cache_destroy(&cache);
        assert_int_equal(free_bytes(), before);
    }
}

enum { MAX_PIECES = 4096 };

/* All memory the device has left, in ever smaller pieces; how many. */
static int take_all_memory(void **pieces)
{
    int count = 0;
    for (size_t bytes = (size_t)8 << 30; bytes >= (size_t)2 << 20; bytes /= 2)
        while (count < MAX_PIECES && cudaMalloc(&pieces[count], bytes) == cudaSuccess)
            count++;
    cudaGetLastError();
    return count;
}

static void open_without_memory_leaves_nothing_open(void **state)
{
    (void)state;
    static void *pieces[MAX_PIECES];
    ckv_rollout_config config = rollout(5, 20, 12, SIZES(12, 3), 2);
    ckv_pool_config pool = pool_config(1, 1, 8, 400);
    ckv_cache *cache;
    warm_up(&pool, &config);
    assert_ok(ckv_cache_create(&pool, &cache));
    int count = take_all_memory(pieces);
    ckv_cache *second = NULL;
    ckv_status open_status = ckv_cache_open(cache, &config, NULL);
    ckv_status create_status = ckv_cache_create(&pool, &second);
    for (int i = 0; i < count; i++)
        assert_cuda(cudaFree(pieces[i]));
    assert_int_equal(open_status, CKV_ERROR_MEMORY);
    assert_int_equal(create_status, CKV_ERROR_MEMORY);
    assert_null(second);
    assert_int_equal(ckv_cache_get_state(cache).is_open, 0);
    assert_int_equal(ckv_pool_free_pages(ckv_cache_pool(cache)), ckv_pool_total_pages(ckv_cache_pool(cache)));
    assert_int_equal(ckv_cache_device_bytes(cache), 0);
    model_create(&model, &pool);
    assert_ok(ckv_cache_open(cache, &config, NULL));
    model_open(&model, &config);
    forward_and_expect(cache, 12, 3);
    ckv_cache_destroy(&cache);
}

static const ckv_test_case cases[] = {
    CKV_CASE(bytes_are_what_the_driver_sees),
    CKV_CASE(open_without_memory_leaves_nothing_open),
};

CKV_TEST_MAIN("gpu_memory", cases)
