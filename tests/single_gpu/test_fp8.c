/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of fp8_e4m3 without attention: scales, what writes make of values, and that nothing else changes a code. */
#include "lib/support/dtype.h"
#include "tests/support/device_memory.h"
#include "tests/support/random_data.h"

#include <ckv/cache.h>

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, BLOCK = 2, MAX_VALUES = 4096 };

typedef struct cached {
    ckv_pool_config pool;
    ckv_cache *cache;
} cached;

static const ckv_dtype TENSORS[] = {CKV_FP32, CKV_BF16, CKV_FP16};

static ckv_pool_config pool_of(ckv_dtype pages, ckv_dtype tensors, int64_t kv_heads, int64_t head_dim)
{
    ckv_pool_config pool = ckv_pool_config_default();
    pool.device = test_device();
    pool.layers = LAYERS;
    pool.kv_heads = kv_heads;
    pool.head_dim = head_dim;
    pool.dtype = pages;
    pool.tensor_dtype = tensors;
    pool.tokens_per_page = 4;
    pool.pool_tokens = 64;
    return pool;
}

static cached new_cached(ckv_dtype tensors, int64_t kv_heads, int64_t head_dim)
{
    cached c = {.pool = pool_of(CKV_FP8_E4M3, tensors, kv_heads, head_dim)};
    assert_ok(ckv_cache_create(&c.pool, &c.cache));
    return c;
}

static void open_cached(cached *c)
{
    static const int64_t sizes[] = {BLOCK};
    ckv_rollout_config rollout = ckv_rollout_config_default();
    rollout.pin_tokens = 1;
    rollout.window_tokens = 6;
    rollout.max_staged_tokens = 4;
    rollout.causal_block_sizes = sizes;
    rollout.num_causal_block_sizes = 1;
    assert_ok(ckv_cache_open(c->cache, &rollout, NULL));
}

/* Of head h of a layer, K (0) or V (1); no two are equal. Powers of two bring a value in bf16 for every code. */
static float scale_of(int64_t layer, int64_t kv, int64_t head, int power_of_two)
{
    return power_of_two ? ldexpf(1, (int)(head + 2 * kv - 4 * layer - 5))
                        : (float)(1 + head + 3 * kv + 7 * layer) / 300;
}

static void set_scales(const cached *c, int power_of_two)
{
    float scales[2][8];
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        for (int64_t i = 0; i < 2 * c->pool.kv_heads; i++)
            scales[i % 2][i / 2] = scale_of(layer, i % 2, i / 2, power_of_two);
        assert_ok(ckv_pool_set_scales(ckv_cache_pool(c->cache), layer, scales[0], scales[1]));
    }
}

/* Stage BLOCK tokens, K and V each [BLOCK, kv_heads, head_dim] in float; they become the tensor dtype on the way. */
static void stage(const cached *c, int64_t layer, const float *k, const float *v)
{
    const size_t count = (size_t)(BLOCK * c->pool.kv_heads * c->pool.head_dim);
    const size_t bytes = count * ckv_dtype_bytes(c->pool.tensor_dtype);
    char narrow[2][MAX_VALUES * sizeof(float)];
    assert_true(count <= MAX_VALUES);
    ckv_convert_from_float(c->pool.tensor_dtype, k, count, narrow[0]);
    ckv_convert_from_float(c->pool.tensor_dtype, v, count, narrow[1]);
    void *device_k = test_upload(narrow[0], bytes), *device_v = test_upload(narrow[1], bytes);
    const ckv_kv kv = ckv_kv_dense(device_k, device_v, c->pool.kv_heads, c->pool.head_dim);
    assert_ok(ckv_cache_write_staged(c->cache, layer, BLOCK, BLOCK, &kv, 1, NULL));
    assert_ok(test_device()->wait(NULL));
    test_device()->free(device_k);
    test_device()->free(device_v);
}

/* The codes of the first block's row; the number of its keys. */
static int64_t read_codes(const cached *c, int64_t layer, uint8_t *k, uint8_t *v)
{
    int64_t keys;
    assert_ok(ckv_cache_read_row(c->cache, layer, BLOCK, 0, MAX_VALUES / (c->pool.kv_heads * c->pool.head_dim), k, v,
                                 &keys, NULL));
    return keys;
}

static uint8_t kept_code(int code)
{
    return (code & 0x7f) == 0x7f ? 0x7f : (uint8_t)code; /* a NaN loses its sign */
}

/* Every code comes back from its value, staged and committed, in every dtype of tensors. */
static void every_code_round_trips(void **state)
{
    (void)state;
    static float k[BLOCK * 256], v[BLOCK * 256];
    static uint8_t k_codes[MAX_VALUES], v_codes[MAX_VALUES];
    for (int i = 0; i < 3; i++) {
        cached c = new_cached(TENSORS[i], 1, 256);
        set_scales(&c, 1);
        open_cached(&c);
        for (int64_t layer = 0; layer < LAYERS; layer++) {
            for (int j = 0; j < BLOCK * 256; j++) {
                k[j] = ckv_e4m3_to_float((uint8_t)j) * scale_of(layer, 0, 0, 1);
                v[j] = ckv_e4m3_to_float((uint8_t)(255 - j)) * scale_of(layer, 1, 0, 1);
            }
            stage(&c, layer, k, v);
        }
        for (int committed = 0; committed < 2; committed++) {
            for (int64_t layer = 0; layer < LAYERS; layer++) {
                assert_int_equal(read_codes(&c, layer, k_codes, v_codes), BLOCK * (1 + committed));
                for (int j = 0; j < BLOCK * 256; j++) { /* committed ones come before the block's own */
                    assert_int_equal(k_codes[j], kept_code(j % 256));
                    assert_int_equal(v_codes[j], kept_code(255 - j % 256));
                }
            }
            assert_ok(ckv_cache_commit(c.cache, BLOCK, NULL));
        }
        ckv_cache_destroy(&c.cache);
    }
}

/* To the nearest code, ties to the even one, and never past 448; the GPU and the host do it alike. */
static void values_are_rounded_and_saturate(void **state)
{
    (void)state;
    static const struct {
        float value, code;
    } rounded[] = {{17, 16},
                   {19, 20},
                   {-17.01f, -18},
                   {448, 448},
                   {449, 448},
                   {463, 448},
                   {465, 448},
                   {1e30f, 448},
                   {-1e30f, -448},
                   {INFINITY, 448},
                   {-INFINITY, -448},
                   {0x1p-9f, 0x1p-9f},
                   {0x1p-10f, 0},
                   {0x1.8p-9f, 0x1p-8f},
                   {0x1.1p-10f, 0x1p-9f},
                   {-0x1p-11f, -0.0f},
                   {0x1.fp-7f, 0x1p-6f},
                   {0.3f, 0.3125f}};
    enum { COUNT = sizeof rounded / sizeof rounded[0] };
    cached c = new_cached(CKV_FP32, 1, COUNT);
    float values[BLOCK * COUNT];
    uint8_t k[MAX_VALUES], v[MAX_VALUES];
    open_cached(&c); /* scales are 1 */
    for (int i = 0; i < BLOCK * COUNT; i++)
        values[i] = rounded[i % COUNT].value;
    stage(&c, 1, values, values);
    read_codes(&c, 1, k, v);
    for (int i = 0; i < BLOCK * COUNT; i++) {
        const float stored = ckv_e4m3_to_float(k[i]), expected = rounded[i % COUNT].code;
        if (stored != expected || signbit(stored) != signbit(expected) || v[i] != k[i])
            fail_msg("%g is stored as %g instead of %g", (double)values[i], (double)stored, (double)expected);
    }
    ckv_cache_destroy(&c.cache);
}

/* Heads of any size and every dtype: code = e4m3(value * (1 / scale)), by the scale of layer and head. */
static void codes_follow_the_scales(void **state)
{
    (void)state;
    static const int64_t dims[] = {1, 3, 8, 20, 64, 136};
    ckv_random random = {ckv_test_seed()};
    static float values[2][MAX_VALUES];
    static uint8_t codes[2][MAX_VALUES];
    for (size_t i = 0; i < 3 * sizeof dims / sizeof dims[0]; i++) {
        cached c = new_cached(TENSORS[i % 3], 3, dims[i / 3]);
        const int64_t count = BLOCK * c.pool.kv_heads * c.pool.head_dim;
        set_scales(&c, 0);
        open_cached(&c);
        for (int64_t layer = 0; layer < LAYERS; layer++) {
            for (int64_t j = 0; j < 2 * count; j++) {
                float *value = &values[j % 2][j / 2], narrow;
                ckv_convert_from_float(c.pool.tensor_dtype, (float[]){8 * ckv_random_float(&random)}, 1, &narrow);
                ckv_convert_to_float(c.pool.tensor_dtype, &narrow, 1, value);
            }
            stage(&c, layer, values[0], values[1]);
            assert_int_equal(read_codes(&c, layer, codes[0], codes[1]), BLOCK);
            for (int64_t j = 0; j < 2 * count; j++) {
                const int64_t kv = j % 2, at = j / 2, head = at / c.pool.head_dim % c.pool.kv_heads;
                assert_int_equal(codes[kv][at], ckv_float_to_e4m3(values[kv][at] * (1 / scale_of(layer, kv, head, 0))));
            }
        }
        ckv_cache_destroy(&c.cache);
    }
}

/* write_range reaches the same codes as staging, zero_values makes codes of zero. */
static void edits_store_codes(void **state)
{
    (void)state;
    cached c = new_cached(CKV_BF16, 2, 16);
    enum { COUNT = BLOCK * 2 * 16 };
    float values[COUNT];
    uint16_t narrow[COUNT];
    uint8_t k[2][MAX_VALUES], v[2][MAX_VALUES];
    set_scales(&c, 0);
    open_cached(&c);
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)(i - 20) / 32;
    stage(&c, 1, values, values);
    read_codes(&c, 1, k[0], v[0]);
    assert_ok(ckv_cache_commit(c.cache, BLOCK, NULL));
    assert_ok(ckv_cache_zero_values(c.cache, 1, 0, BLOCK, NULL));
    read_codes(&c, 1, k[1], v[1]);
    for (int i = 0; i < COUNT; i++)
        assert_true(k[1][i] == k[0][i] && v[1][i] == 0);
    ckv_convert_from_float(CKV_BF16, values, COUNT, narrow);
    void *device = test_upload(narrow, sizeof narrow);
    const ckv_kv kv = ckv_kv_dense(device, device, 2, 16);
    assert_ok(ckv_cache_write_range(c.cache, 1, 0, BLOCK, &kv, NULL));
    read_codes(&c, 1, k[1], v[1]);
    assert_memory_equal(k[1], k[0], COUNT);
    assert_memory_equal(v[1], v[0], COUNT);
    test_device()->free(device);
    ckv_cache_destroy(&c.cache);
}

static void expect_scales(const ckv_pool *pool, int64_t layer, float k0, float k1, float v0, float v1)
{
    float k[2], v[2];
    assert_ok(ckv_pool_get_scales(pool, layer, k, v));
    assert_true(k[0] == k0 && k[1] == k1 && v[0] == v0 && v[1] == v1);
}

static void bad_scales_change_nothing(void **state)
{
    (void)state;
    cached c = new_cached(CKV_BF16, 2, 16);
    ckv_pool *pool = ckv_cache_pool(c.cache);
    expect_scales(pool, 0, 1, 1, 1, 1);
    expect_scales(pool, 1, 1, 1, 1, 1);
    assert_ok(ckv_pool_set_scales(pool, 1, (float[]){2, 3}, (float[]){4, 5}));
    assert_ok(ckv_pool_set_scales(pool, 1, NULL, (float[]){6, 7}));
    assert_ok(ckv_pool_set_scales(pool, 1, (float[]){8, 9}, NULL));
    const float bad[] = {0, -0.0f, -1, INFINITY, -INFINITY, NAN, 0x1p-130f};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_status(ckv_pool_set_scales(pool, 1, (float[]){1, bad[i]}, (float[]){1, 1}), CKV_ERROR_INVALID);
        assert_non_null(strstr(ckv_last_error(), "K scale of head 1"));
        assert_status(ckv_pool_set_scales(pool, 1, (float[]){1, 1}, (float[]){bad[i], 1}), CKV_ERROR_INVALID);
        assert_non_null(strstr(ckv_last_error(), "V scale of head 0"));
    }
    assert_status(ckv_pool_set_scales(pool, LAYERS, bad, bad), CKV_ERROR_INVALID);
    assert_status(ckv_pool_set_scales(pool, -1, bad, bad), CKV_ERROR_INVALID);
    assert_status(ckv_pool_set_scales(NULL, 0, bad, bad), CKV_ERROR_INVALID);
    assert_status(ckv_pool_get_scales(pool, LAYERS, NULL, NULL), CKV_ERROR_INVALID);
    open_cached(&c);
    assert_status(ckv_pool_set_scales(pool, 1, (float[]){1, 1}, NULL), CKV_ERROR_STATE);
    assert_non_null(strstr(ckv_last_error(), "close"));
    expect_scales(pool, 1, 8, 9, 6, 7);
    expect_scales(pool, 0, 1, 1, 1, 1);
    ckv_cache_close(c.cache);
    assert_ok(ckv_pool_set_scales(pool, 1, (float[]){1, 2}, NULL));
    expect_scales(pool, 1, 1, 2, 6, 7);
    ckv_cache_destroy(&c.cache);
}

static void other_pages_have_no_scales(void **state)
{
    (void)state;
    ckv_pool_config config = pool_of(CKV_BF16, CKV_FP32, 2, 16);
    ckv_pool *pool;
    assert_ok(ckv_pool_create(&config, &pool));
    assert_null(ckv_pool_get_view(pool).scales);
    assert_int_equal(ckv_pool_config_tensor_dtype(ckv_pool_get_config(pool)), CKV_BF16);
    assert_status(ckv_pool_set_scales(pool, 0, (float[]){1, 1}, NULL), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "bf16"));
    ckv_pool_destroy(&pool);
    config = pool_of(CKV_FP8_E4M3, CKV_FP8_E4M3, 2, 16);
    assert_status(ckv_pool_create(&config, &pool), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "tensor_dtype"));
}

/* A byte an element, and four a scale. */
static void bytes_are_counted(void **state)
{
    (void)state;
    const ckv_pool_config narrow = pool_of(CKV_FP8_E4M3, CKV_BF16, 2, 64), wide = pool_of(CKV_BF16, CKV_BF16, 2, 64);
    int64_t narrow_bytes, wide_bytes;
    ckv_pool *pool;
    assert_ok(ckv_pool_config_bytes(&narrow, &narrow_bytes));
    assert_ok(ckv_pool_config_bytes(&wide, &wide_bytes));
    const int64_t elements = (int64_t)LAYERS * 2 * 2 * 64 * (64 + 4), scales = (int64_t)LAYERS * 2 * 2 * 4;
    assert_int_equal(narrow_bytes, ckv_device_allocation_bytes(test_device(), elements + scales));
    assert_int_equal(wide_bytes, ckv_device_allocation_bytes(test_device(), 2 * elements));
    assert_ok(ckv_pool_create(&narrow, &pool));
    assert_int_equal(ckv_pool_bytes(pool), narrow_bytes);
    ckv_pool_destroy(&pool);
}

static const ckv_test_case cases[] = {
    CKV_CASE(every_code_round_trips), CKV_CASE(values_are_rounded_and_saturate), CKV_CASE(codes_follow_the_scales),
    CKV_CASE(edits_store_codes),      CKV_CASE(bad_scales_change_nothing),       CKV_CASE(other_pages_have_no_scales),
    CKV_CASE(bytes_are_counted),
};
CKV_TEST_MAIN("fp8", cases)
