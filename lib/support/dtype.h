/* SPDX-License-Identifier: Apache-2.0 */
/* One element at a time; ckv_convert_* of ckv/types.h loop over these. */
#ifndef CKV_SUPPORT_DTYPE_H
#define CKV_SUPPORT_DTYPE_H

#include <ckv/types.h>
#include <string.h>

static inline uint32_t ckv_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float ckv_bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float ckv_bf16_to_float(uint16_t value)
{
    return ckv_bits_float((uint32_t)value << 16);
}

static inline uint16_t ckv_float_to_bf16(float value)
{
    uint32_t bits = ckv_float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* NaN: keep the sign, make it quiet */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float ckv_fp16_to_float(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t exponent = value >> 10 & 0x1fu;
    uint32_t mantissa = value & 0x3ffu;
    if (exponent == 0x1fu)
        return ckv_bits_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0)
        return ckv_bits_float(sign | (exponent + 112u) << 23 | mantissa << 13);
    float magnitude = (float)mantissa * 0x1p-24f; /* zero and subnormals */
    return sign ? -magnitude : magnitude;
}

static inline uint16_t ckv_float_to_fp16(float value)
{
    uint32_t bits = ckv_float_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u); /* NaN */
    if (magnitude >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
    if (magnitude < 0x38800000u) {
        /* Subnormal in fp16: adding 0.5 leaves the value rounded to 2^-24 in the low bits of the sum. */
        float shifted = ckv_bits_float(magnitude) + 0.5f;
        return (uint16_t)(sign | (ckv_float_bits(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

/* e4m3: four bits of exponent with a bias of 7, three of mantissa, no infinity; all ones is NaN. */
static inline float ckv_e4m3_to_float(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t exponent = code >> 3 & 0xfu;
    uint32_t mantissa = code & 7u;
    if ((code & 0x7fu) == 0x7fu)
        return ckv_bits_float(sign | 0x7fc00000u);
    if (exponent != 0)
        return ckv_bits_float(sign | (exponent + 120u) << 23 | mantissa << 20);
    float magnitude = (float)mantissa * 0x1p-9f; /* zero and subnormals */
    return sign ? -magnitude : magnitude;
}

/* As a GPU does it: a NaN loses its sign. */
static inline uint8_t ckv_float_to_e4m3(float value)
{
    uint32_t bits = ckv_float_bits(value);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return 0x7fu;
    if (magnitude >= 0x43e00000u)
        return (uint8_t)(sign | 0x7eu); /* 448 and more */
    if (magnitude < 0x3c800000u) {
        /* Subnormal in e4m3: adding 2^14 leaves the value rounded to 2^-9 in the low bits of the sum. */
        float shifted = ckv_bits_float(magnitude) + 0x1p14f;
        return (uint8_t)(sign | (ckv_float_bits(shifted) - 0x46800000u));
    }
    uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    return (uint8_t)(sign | (rounded - 0x3c000000u) >> 20);
}

/* Whether callers' tensors may have it. */
static inline int ckv_dtype_is_tensor(ckv_dtype dtype)
{
    return ckv_dtype_bytes(dtype) != 0 && dtype != CKV_FP8_E4M3;
}

#endif
