/* SPDX-License-Identifier: Apache-2.0 */
/* lib/support: element types, status, checked arithmetic. */
#include "tests/support/case.h"

#include "lib/support/checked.h"
#include "lib/support/dtype.h"
#include "lib/support/error.h"
#include <ckv/ckv.h>
#include <float.h>
#include <math.h>
#include <pthread.h>

static void bf16_keeps_every_value(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float value = ckv_bf16_to_float((uint16_t)bits);
        if (!isnan(value))
            assert_int_equal(ckv_float_to_bf16(value), bits);
    }
}

static void fp16_keeps_every_value(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float value = ckv_fp16_to_float((uint16_t)bits);
        if (!isnan(value))
            assert_int_equal(ckv_float_to_fp16(value), bits);
    }
    assert_float_equal(ckv_fp16_to_float(0x3c00), 1.0f, 0);
    assert_float_equal(ckv_fp16_to_float(0x7bff), 65504.0f, 0);
    assert_float_equal(ckv_fp16_to_float(0x0001), 0x1p-24f, 0);
    assert_true(isinf(ckv_fp16_to_float(0xfc00)));
}

static void rounds_to_nearest_even(void **state)
{
    (void)state;
    /* halfway between two values goes to the even one; a bit beyond halfway does not */
    assert_int_equal(ckv_float_to_bf16(0x1.01p0f), 0x3f80);
    assert_int_equal(ckv_float_to_bf16(0x1.03p0f), 0x3f82);
    assert_int_equal(ckv_float_to_bf16(0x1.010002p0f), 0x3f81);
    assert_int_equal(ckv_float_to_fp16(0x1.002p0f), 0x3c00);
    assert_int_equal(ckv_float_to_fp16(0x1.006p0f), 0x3c02);
    assert_int_equal(ckv_float_to_fp16(0x1.002002p0f), 0x3c01);
    assert_int_equal(ckv_float_to_bf16(0x1.fffffep127f), 0x7f80); /* the largest float rounds to infinity */
}

static void fp16_overflow_and_subnormals(void **state)
{
    (void)state;
    assert_int_equal(ckv_float_to_fp16(65519.0f), 0x7bff);
    assert_int_equal(ckv_float_to_fp16(65520.0f), 0x7c00);
    assert_int_equal(ckv_float_to_fp16(-1e30f), 0xfc00);
    assert_int_equal(ckv_float_to_fp16(INFINITY), 0x7c00);
    assert_int_equal(ckv_float_to_fp16(-0.0f), 0x8000);
    assert_int_equal(ckv_float_to_fp16(0x1p-25f), 0x0000); /* half of the smallest value: to even, zero */
    assert_int_equal(ckv_float_to_fp16(0x1.8p-25f), 0x0001);
    assert_int_equal(ckv_float_to_fp16(0x1.8p-24f), 0x0002);
    assert_int_equal(ckv_float_to_fp16(0x1.ffep-15f), 0x0400); /* rounds up to the smallest normal value */
}

static void nan_stays_nan(void **state)
{
    (void)state;
    static const uint32_t patterns[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        float value = ckv_bits_float(patterns[i]);
        assert_true(isnan(ckv_bf16_to_float(ckv_float_to_bf16(value))));
        assert_true(isnan(ckv_fp16_to_float(ckv_float_to_fp16(value))));
        assert_int_equal(ckv_float_to_bf16(value) >> 15, patterns[i] >> 31);
        assert_int_equal(ckv_float_to_fp16(value) >> 15, patterns[i] >> 31);
    }
}

/* Against the format's definition, not its bits. */
static void e4m3_codes_are_what_they_are_worth(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        const int exponent = code >> 3 & 0xf, mantissa = code & 7;
        const double magnitude = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
        const float value = ckv_e4m3_to_float((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(value));
            assert_int_equal(ckv_float_to_e4m3(value), 0x7f);
            continue;
        }
        assert_true((double)fabsf(value) == magnitude && !!signbit(value) == code >> 7);
        assert_int_equal(ckv_float_to_e4m3(value), code);
    }
    assert_int_equal(ckv_float_to_e4m3(INFINITY), 0x7e);
    assert_int_equal(ckv_float_to_e4m3(-FLT_MAX), 0xfe);
}

/* Everything between two neighbours goes to the nearer one, the middle to the even one. */
static void e4m3_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (int code = 0; code < 0x7e; code++) {
        const float low = ckv_e4m3_to_float((uint8_t)code), high = ckv_e4m3_to_float((uint8_t)(code + 1));
        const float middle = (low + high) / 2; /* exact */
        assert_int_equal(ckv_float_to_e4m3(middle), code + code % 2);
        assert_int_equal(ckv_float_to_e4m3(nextafterf(middle, 0)), code);
        assert_int_equal(ckv_float_to_e4m3(nextafterf(middle, 1e9f)), code + 1);
        assert_int_equal(ckv_float_to_e4m3(-middle), 0x80 | (code + code % 2));
    }
}

static void converts_arrays(void **state)
{
    (void)state;
    static const ckv_dtype dtypes[] = {CKV_FP32, CKV_BF16, CKV_FP16};
    const float source[] = {0.0f, -1.5f, 0.25f, 96.0f, INFINITY};
    for (size_t i = 0; i < 3; i++) {
        float there_and_back[6] = {[5] = 7.0f};
        uint32_t narrow[6] = {0};
        ckv_convert_from_float(dtypes[i], source, 5, narrow);
        ckv_convert_to_float(dtypes[i], narrow, 5, there_and_back);
        assert_memory_equal(source, there_and_back, sizeof source);
        assert_float_equal(there_and_back[5], 7.0f, 0);
        assert_int_equal(((const unsigned char *)narrow)[5 * ckv_dtype_bytes(dtypes[i])], 0);
    }
}

static void dtype_names(void **state)
{
    (void)state;
    static const ckv_dtype dtypes[] = {CKV_FP32, CKV_BF16, CKV_FP16, CKV_FP8_E4M3};
    for (size_t i = 0; i < 4; i++) {
        ckv_dtype found = (ckv_dtype)-1;
        assert_ok(ckv_dtype_from_name(ckv_dtype_name(dtypes[i]), &found));
        assert_int_equal(found, dtypes[i]);
    }
    ckv_dtype untouched = CKV_FP16;
    assert_status(ckv_dtype_from_name("int8", &untouched), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "'int8' is not one of fp32, bf16, fp16"));
    assert_status(ckv_dtype_from_name(NULL, &untouched), CKV_ERROR_INVALID);
    assert_int_equal(untouched, CKV_FP16);
    assert_ok(ckv_tensor_dtype_from_name("bf16", &untouched));
    assert_int_equal(untouched, CKV_BF16);
    assert_status(ckv_tensor_dtype_from_name("fp8_e4m3", &untouched), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "'fp8_e4m3' is not one of fp32, bf16, fp16"));
    assert_int_equal(untouched, CKV_BF16);
    assert_int_equal(ckv_dtype_bytes(CKV_FP8_E4M3), 1);
    assert_int_equal(ckv_dtype_bytes((ckv_dtype)4), 0);
    assert_string_equal(ckv_dtype_name((ckv_dtype)-1), "unknown");
}

static void status_names(void **state)
{
    (void)state;
#define EXPECT_STATUS(name, value, message)                                                                            \
    assert_int_equal(CKV_##name, value);                                                                               \
    assert_string_equal(ckv_status_name(CKV_##name), #name);                                                           \
    assert_string_equal(ckv_status_message(CKV_##name), message);
    CKV_STATUS_LIST(EXPECT_STATUS)
#undef EXPECT_STATUS
    assert_string_equal(ckv_status_name((ckv_status)-1000), "UNKNOWN");
    assert_string_equal(ckv_status_name((ckv_status)1), "UNKNOWN");
}

static void *fail_elsewhere(void *detail_out)
{
    const char *before = ckv_last_error();
    *(size_t *)detail_out = strlen(before);
    return ckv_fail(CKV_ERROR_STATE, "of the other thread") == CKV_ERROR_STATE ? detail_out : NULL;
}

static void last_error_is_per_thread(void **state)
{
    (void)state;
    assert_int_equal(ckv_fail(CKV_ERROR_MEMORY, "%d pages of %s", 3, "this thread"), CKV_ERROR_MEMORY);
    size_t length = 1;
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &length), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &length);
    assert_int_equal(length, 0);
    assert_string_equal(ckv_last_error(), "3 pages of this thread");
}

static void checked_arithmetic(void **state)
{
    (void)state;
    int64_t result = 0;
    assert_true(ckv_add_i64(INT64_MAX - 1, 1, &result));
    assert_true(result == INT64_MAX);
    assert_false(ckv_add_i64(INT64_MAX, 1, &result));
    assert_false(ckv_add_i64(INT64_MIN, -1, &result));
    assert_true(ckv_mul_i64(INT64_C(3037000499), INT64_C(3037000499), &result));
    assert_false(ckv_mul_i64(INT64_C(3037000500), INT64_C(3037000500), &result));
    assert_false(ckv_mul_i64(INT64_MIN, -1, &result));
    assert_true(ckv_ceil_div_i64(0, 32) == 0 && ckv_ceil_div_i64(1, 32) == 1 && ckv_ceil_div_i64(32, 32) == 1);
    assert_true(ckv_ceil_div_i64(INT64_MAX, 2) == INT64_C(0x4000000000000000));
    assert_true(ckv_is_power_of_two(1) && ckv_is_power_of_two(INT64_C(1) << 62));
    assert_false(ckv_is_power_of_two(0) || ckv_is_power_of_two(-4) || ckv_is_power_of_two(12));
}

/* Engine authors forget a pointer now and then: a status with a line of detail, not a crash. */
static void null_is_refused(void **state)
{
    (void)state;
    const int64_t sizes[] = {4};
    ckv_rollout_config rollout = ckv_rollout_config_default();
    rollout.max_staged_tokens = 4;
    rollout.causal_block_sizes = sizes;
    rollout.num_causal_block_sizes = 1;
    ckv_pool_config pool = ckv_pool_config_default();
    pool.layers = pool.kv_heads = pool.head_dim = 1;
    pool.tokens_per_page = 4;
    pool.pool_tokens = 64;
    ckv_cache *cache = NULL;
    int64_t number;
    assert_int_equal(ckv_cache_create(&pool, &cache), CKV_OK);
    assert_int_equal(ckv_cache_open(cache, &rollout, NULL), CKV_OK);
    const ckv_status statuses[] = {
        ckv_dtype_from_name("fp32", NULL),
        ckv_device_find("host", NULL),
        ckv_pool_config_bytes(&pool, NULL),
        ckv_pool_create(&pool, NULL),
        ckv_rollout_config_size(&rollout, 4, NULL),
        ckv_rollout_config_size(NULL, 4, &(ckv_rollout_size){0}),
        ckv_rollout_max_window(&rollout, &pool, 1 << 20, NULL),
        ckv_rollout_max_window(&rollout, NULL, 1 << 20, &number),
        ckv_rollout_max_window(NULL, &pool, 1 << 20, &number),
        ckv_cache_create(&pool, NULL),
        ckv_cache_create(NULL, &cache),
        ckv_cache_open(NULL, &rollout, NULL),
        ckv_cache_block_view(cache, 4, NULL),
        ckv_cache_read_row(cache, 0, 4, 0, 0, NULL, NULL, NULL, NULL),
        ckv_cache_commit(NULL, 1, NULL),
        ckv_cache_check(NULL, NULL),
        ckv_attention(NULL, NULL),
    };
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        assert_int_equal(statuses[i], CKV_ERROR_INVALID);
    ckv_cache_destroy(&cache);
}

static const ckv_test_case cases[] = {
    CKV_CASE(bf16_keeps_every_value),
    CKV_CASE(fp16_keeps_every_value),
    CKV_CASE(rounds_to_nearest_even),
    CKV_CASE(fp16_overflow_and_subnormals),
    CKV_CASE(nan_stays_nan),
    CKV_CASE(e4m3_codes_are_what_they_are_worth),
    CKV_CASE(e4m3_rounds_to_nearest_even),
    CKV_CASE(converts_arrays),
    CKV_CASE(dtype_names),
    CKV_CASE(status_names),
    CKV_CASE(last_error_is_per_thread),
    CKV_CASE(checked_arithmetic),
    CKV_CASE(null_is_refused),
};

CKV_TEST_MAIN("support", cases)
