/* SPDX-License-Identifier: Apache-2.0 */
/* Random tensors of any dtype, and a comparison in double, for tests. */
#ifndef CKV_TESTS_SUPPORT_RANDOM_DATA_H
#define CKV_TESTS_SUPPORT_RANDOM_DATA_H

#include "tests/support/case.h"
#include "tests/support/random.h"

#include <ckv/types.h>
#include <math.h>

/* CMocka's assert_float_equal compares floats. A NaN is near nothing. */
#define assert_near(actual, expected, tolerance)                                                                       \
    do {                                                                                                               \
        double near_actual_ = (actual), near_expected_ = (expected), near_tolerance_ = (tolerance);                    \
        if (!(fabs(near_actual_ - near_expected_) <= near_tolerance_))                                                 \
            fail_msg("%s is %.17g, not within %g of %.17g", #actual, near_actual_, near_tolerance_, near_expected_);   \
    } while (0)

static inline void set_element(ckv_dtype dtype, void *tensor, int64_t index, float value)
{
    ckv_convert_from_float(dtype, &value, 1, (char *)tensor + index * (int64_t)ckv_dtype_bytes(dtype));
}

static inline float get_element(ckv_dtype dtype, const void *tensor, int64_t index)
{
    float value = 0;
    ckv_convert_to_float(dtype, (const char *)tensor + index * (int64_t)ckv_dtype_bytes(dtype), 1, &value);
    return value;
}

static inline void fill_random(ckv_random *random, ckv_dtype dtype, void *tensor, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        set_element(dtype, tensor, i, ckv_random_float(random));
}

static inline void fill_value(ckv_dtype dtype, void *tensor, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++)
        set_element(dtype, tensor, i, value);
}

#endif
