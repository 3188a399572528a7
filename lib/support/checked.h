/* SPDX-License-Identifier: Apache-2.0 */
/* Integer arithmetic that says when it does not fit, and rounding. */
#ifndef CKV_SUPPORT_CHECKED_H
#define CKV_SUPPORT_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool ckv_add_i64(int64_t a, int64_t b, int64_t *sum_out)
{
    return !__builtin_add_overflow(a, b, sum_out);
}

static inline bool ckv_mul_i64(int64_t a, int64_t b, int64_t *product_out)
{
    return !__builtin_mul_overflow(a, b, product_out);
}

/* a >= 0, b > 0 */
static inline int64_t ckv_ceil_div_i64(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static inline int64_t ckv_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t ckv_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline bool ckv_is_power_of_two(int64_t value)
{
    return value > 0 && (value & (value - 1)) == 0;
}

#endif
