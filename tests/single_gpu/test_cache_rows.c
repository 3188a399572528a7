/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel is given besides pages: both forms of a row, slots of own tokens it writes itself, reading back, and
 * what it all takes. */
#include "tests/support/case.h"
#include "tests/support/device_memory.h"

#include <ckv/cache.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4, PIN = 5, WINDOW = 8, STAGED = 6, BLOCK = 2, DIM = 4, MAX_KEYS = 32 };

static ckv_rollout_config rollout_config(int64_t pin, int64_t window, int64_t staged, const int64_t *sizes,
                                         size_t count)
{
    ckv_rollout_config rollout = ckv_rollout_config_default();
    rollout.pin_tokens = pin;
    rollout.window_tokens = window;
    rollout.max_staged_tokens = staged;
    rollout.causal_block_sizes = sizes;
    rollout.num_causal_block_sizes = count;
    return rollout;
}

static ckv_cache *open_cache(void)
{
    ckv_pool_config pool = ckv_pool_config_default();
    pool.device = test_device();
    pool.layers = pool.kv_heads = 1;
    pool.head_dim = DIM;
    pool.dtype = CKV_FP32;
    pool.tokens_per_page = PAGE;
    pool.pool_tokens = 76;
    pool.poison_fresh_pages = 1;
    ckv_rollout_config rollout = rollout_config(PIN, WINDOW, STAGED, (int64_t[]){STAGED, BLOCK}, 2);
    ckv_cache *cache;
    assert_ok(ckv_cache_create(&pool, &cache));
    assert_ok(ckv_cache_open(cache, &rollout, NULL));
    return cache;
}

/* Token i of a forward holds first + i. */
static void stage(ckv_cache *cache, int64_t tokens, int64_t block, float first, int own_tokens)
{
    float values[STAGED * DIM];
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t d = 0; d < DIM; d++)
            values[token * DIM + d] = first + (float)token;
    void *memory = test_upload(values, (size_t)(tokens * DIM) * sizeof *values);
    ckv_kv source = ckv_kv_dense(memory, memory, 1, DIM);
    assert_ok(ckv_cache_write_staged(cache, 0, tokens, block, &source, own_tokens, NULL));
    assert_ok(test_device()->wait(NULL));
    test_device()->free(memory);
}

static void expect_offsets(const ckv_cache *cache, int64_t causal_block_size)
{
    ckv_block_view view;
    assert_ok(ckv_cache_block_view(cache, causal_block_size, &view));
    size_t count = (size_t)(view.num_blocks * view.row_pages);
    int32_t *rows = malloc(count * sizeof *rows), *offsets = malloc(2 * count * sizeof *offsets);
    assert_true(rows != NULL && offsets != NULL);
    test_download(rows, view.rows, count * sizeof *rows);
    test_download(offsets, view.kv_block_offsets, 2 * count * sizeof *offsets);
    for (int64_t block = 0; block < view.num_blocks; block++)
        for (int64_t i = 0; i < view.row_pages; i++) {
            const int32_t *planes = offsets + block * 2 * view.row_pages;
            assert_int_equal(planes[i], 2 * rows[block * view.row_pages + i]);
            assert_int_equal(planes[view.row_pages + i], 2 * rows[block * view.row_pages + i] + 1);
        }
    free(rows);
    free(offsets);
}

static void offsets_follow_rows(void **state)
{
    (void)state;
    ckv_cache *cache = open_cache();
    for (int chunk = 0; chunk < 6; chunk++) {
        expect_offsets(cache, BLOCK);
        expect_offsets(cache, STAGED);
        stage(cache, STAGED, BLOCK, 1, 1);
        assert_ok(ckv_cache_commit(cache, STAGED, NULL));
    }
    ckv_cache_destroy(&cache);
}

/* Without own_tokens everything is written but the block's own slots; home slots and later blocks' copies are. */
static void own_slots_can_be_left_to_the_kernel(void **state)
{
    (void)state;
    ckv_cache *cache = open_cache();
    stage(cache, STAGED, BLOCK, 1, 0);
    for (int64_t block = 0; block < STAGED / BLOCK; block++) {
        float k[MAX_KEYS * DIM], v[MAX_KEYS * DIM];
        int64_t keys;
        assert_ok(ckv_cache_read_row(cache, 0, BLOCK, block, MAX_KEYS, k, v, &keys, NULL));
        assert_int_equal(keys, (block + 1) * BLOCK);
        float sum = 0;
        for (int64_t key = 0; key < keys - BLOCK; key++)
            sum += k[key * DIM] + v[key * DIM];
        assert_true(sum == (float)(keys - BLOCK) * (float)(keys - BLOCK + 1)); /* 1 + 2 + ..., in K and in V */
        for (int64_t i = (keys - BLOCK) * DIM; i < keys * DIM; i++)
            assert_true(isnan(k[i]) && isnan(v[i]));
    }
    ckv_cache_destroy(&cache);
}

static void rows_need_room(void **state)
{
    (void)state;
    ckv_cache *cache = open_cache();
    stage(cache, STAGED, STAGED, 1, 1);
    float k[STAGED * DIM], v[STAGED * DIM];
    memset(k, 0, sizeof k);
    memset(v, 0, sizeof v);
    int64_t keys = -1;
    assert_status(ckv_cache_read_row(cache, 0, STAGED, 0, STAGED - 1, k, v, &keys, NULL), CKV_ERROR_CAPACITY);
    assert_true(keys == -1 && k[0] == 0 && v[0] == 0);
    assert_ok(ckv_cache_read_row(cache, 0, STAGED, 0, 0, NULL, NULL, &keys, NULL));
    assert_int_equal(keys, STAGED);
    assert_ok(ckv_cache_read_row(cache, 0, STAGED, 0, STAGED, NULL, v, &keys, NULL));
    assert_true(k[0] == 0 && v[0] == 1 && v[STAGED * DIM - 1] == STAGED);
    assert_ok(ckv_cache_read_row(cache, 0, STAGED, 0, STAGED, k, v, &keys, NULL));
    assert_true(k[0] == 1 && k[STAGED * DIM - 1] == STAGED);
    ckv_cache_destroy(&cache);
}

static ckv_pool_config pool_for(const ckv_rollout_config *rollout, int64_t page, int64_t head_dim, int64_t spare_pages)
{
    ckv_rollout_size size;
    assert_ok(ckv_rollout_config_size(rollout, page, &size));
    ckv_pool_config pool = ckv_pool_config_default();
    pool.device = test_device();
    pool.layers = pool.kv_heads = 2;
    pool.head_dim = head_dim;
    pool.dtype = CKV_BF16;
    pool.tokens_per_page = page;
    pool.pool_tokens = size.pool_tokens + spare_pages * page;
    return pool;
}

static int64_t bytes_after_open(const ckv_rollout_config *rollout, const ckv_pool_config *pool)
{
    ckv_cache *cache;
    assert_ok(ckv_cache_create(pool, &cache));
    assert_ok(ckv_cache_open(cache, rollout, NULL));
    int64_t bytes = ckv_cache_device_bytes(cache);
    ckv_cache_destroy(&cache);
    return bytes;
}

static void state_bytes_are_what_open_takes(void **state)
{
    (void)state;
    static const struct {
        int64_t pin, window, staged, sizes[4];
        size_t num_sizes;
        int64_t page, head_dim, spare_pages;
    } geometries[] = {
        {5, 8, 6, {6, 2}, 2, 4, 4, 0},         {0, 0, 1, {1}, 1, 1, 8, 0},        {5, 8, 6, {2, 6, 2}, 3, 4, 256, 300},
        {7, 3, 13, {13, 5, 3, 1}, 4, 4, 8, 1}, {64, 640, 96, {96}, 1, 32, 64, 0}, {9, 70001, 500, {1}, 1, 16, 8, 9},
    };
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) {
        ckv_rollout_config rollout = rollout_config(geometries[i].pin, geometries[i].window, geometries[i].staged,
                                                    geometries[i].sizes, geometries[i].num_sizes);
        ckv_pool_config pool =
            pool_for(&rollout, geometries[i].page, geometries[i].head_dim, geometries[i].spare_pages);
        int64_t bytes = -1;
        assert_ok(ckv_rollout_state_bytes(&rollout, &pool, &bytes));
        assert_int_equal(bytes, bytes_after_open(&rollout, &pool));
    }
}

/* Whatever a pool or an open refuses. */
static void state_bytes_refuse_what_cannot_open(void **state)
{
    (void)state;
    const int64_t sizes[] = {STAGED, STAGED + 1};
    ckv_rollout_config rollout = rollout_config(PIN, WINDOW, STAGED, sizes, 1);
    ckv_pool_config pool = pool_for(&rollout, PAGE, DIM, 0);
    int64_t bytes = -1;
    pool.pool_tokens -= PAGE;
    assert_status(ckv_rollout_state_bytes(&rollout, &pool, &bytes), CKV_ERROR_CAPACITY);
    pool.pool_tokens++;
    assert_status(ckv_rollout_state_bytes(&rollout, &pool, &bytes), CKV_ERROR_INVALID);
    pool.pool_tokens = 0;
    assert_status(ckv_rollout_state_bytes(&rollout, &pool, &bytes), CKV_ERROR_INVALID);
    pool = pool_for(&rollout, PAGE, DIM, 0);
    rollout.num_causal_block_sizes = 2; /* one larger than a forward */
    assert_status(ckv_rollout_state_bytes(&rollout, &pool, &bytes), CKV_ERROR_INVALID);
    rollout.num_causal_block_sizes = 1;
    pool.tokens_per_page = 3;
    assert_status(ckv_rollout_state_bytes(&rollout, &pool, &bytes), CKV_ERROR_INVALID);
    assert_int_equal(bytes, -1);
    pool.tokens_per_page = PAGE;
    pool.device = NULL; /* the host */
    assert_ok(ckv_rollout_state_bytes(&rollout, &pool, &bytes));
    assert_int_equal(bytes, bytes_after_open(&rollout, &pool));
}

/* What follows the pages of a row belongs to nobody, however long the row is. */
static void rows_end_in_the_guard_page(void **state)
{
    (void)state;
    ckv_cache *cache = open_cache();
    int32_t guard_page = ckv_pool_get_view(ckv_cache_pool(cache)).guard_page;
    for (int chunk = 0; chunk < 6; chunk++) {
        ckv_block_view view;
        assert_ok(ckv_cache_block_view(cache, BLOCK, &view));
        int32_t *rows = malloc((size_t)(view.num_blocks * view.row_pages) * sizeof *rows), keys[STAGED / BLOCK];
        assert_non_null(rows);
        test_download(rows, view.rows, (size_t)(view.num_blocks * view.row_pages) * sizeof *rows);
        test_download(keys, view.seq_len_kv, sizeof keys);
        for (int64_t block = 0; block < view.num_blocks; block++)
            for (int64_t i = 0; i < view.row_pages; i++)
                assert_int_equal(rows[block * view.row_pages + i] == guard_page, i >= (keys[block] + PAGE - 1) / PAGE);
        free(rows);
        stage(cache, STAGED, STAGED, 1, 1);
        assert_ok(ckv_cache_commit(cache, STAGED, NULL));
    }
    ckv_cache_destroy(&cache);
}

static const ckv_test_case cases[] = {
    CKV_CASE(offsets_follow_rows),
    CKV_CASE(rows_end_in_the_guard_page),
    CKV_CASE(own_slots_can_be_left_to_the_kernel),
    CKV_CASE(rows_need_room),
    CKV_CASE(state_bytes_are_what_open_takes),
    CKV_CASE(state_bytes_refuse_what_cannot_open),
};

CKV_TEST_MAIN("cache_rows", cases)
