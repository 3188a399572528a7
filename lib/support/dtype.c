/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/support/dtype.h"

#include "lib/support/error.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [CKV_FP32] = {"fp32", 4},
    [CKV_BF16] = {"bf16", 2},
    [CKV_FP16] = {"fp16", 2},
    [CKV_FP8_E4M3] = {"fp8_e4m3", 1},
};

static const size_t num_dtypes = sizeof dtypes / sizeof dtypes[0];

size_t ckv_dtype_bytes(ckv_dtype dtype)
{
    return (size_t)dtype < num_dtypes ? dtypes[dtype].bytes : 0;
}

const char *ckv_dtype_name(ckv_dtype dtype)
{
    return (size_t)dtype < num_dtypes ? dtypes[dtype].name : "unknown";
}

ckv_status ckv_dtype_from_name(const char *name, ckv_dtype *dtype_out)
{
    if (dtype_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "dtype_from_name: dtype_out is NULL");
    for (size_t i = 0; name != NULL && i < num_dtypes; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *dtype_out = (ckv_dtype)i;
            return CKV_OK;
        }
    }
    return ckv_fail(CKV_ERROR_INVALID, "dtype '%s' is not one of fp32, bf16, fp16, fp8_e4m3", name ? name : "(null)");
}

ckv_status ckv_tensor_dtype_from_name(const char *name, ckv_dtype *dtype_out)
{
    ckv_dtype dtype;
    if (dtype_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "tensor_dtype_from_name: dtype_out is NULL");
    if (ckv_dtype_from_name(name, &dtype) != CKV_OK || !ckv_dtype_is_tensor(dtype))
        return ckv_fail(CKV_ERROR_INVALID, "dtype '%s' is not one of fp32, bf16, fp16", name ? name : "(null)");
    *dtype_out = dtype;
    return CKV_OK;
}

void ckv_convert_to_float(ckv_dtype dtype, const void *source, size_t count, float *destination)
{
    const uint16_t *half = source;
    const uint8_t *codes = source;
    switch (dtype) {
    case CKV_FP32:
        memcpy(destination, source, count * sizeof *destination);
        return;
    case CKV_BF16:
        for (size_t i = 0; i < count; i++)
            destination[i] = ckv_bf16_to_float(half[i]);
        return;
    case CKV_FP16:
        for (size_t i = 0; i < count; i++)
            destination[i] = ckv_fp16_to_float(half[i]);
        return;
    case CKV_FP8_E4M3:
        for (size_t i = 0; i < count; i++)
            destination[i] = ckv_e4m3_to_float(codes[i]);
        return;
    }
}

void ckv_convert_from_float(ckv_dtype dtype, const float *source, size_t count, void *destination)
{
    uint16_t *half = destination;
    uint8_t *codes = destination;
    switch (dtype) {
    case CKV_FP32:
        memcpy(destination, source, count * sizeof *source);
        return;
    case CKV_BF16:
        for (size_t i = 0; i < count; i++)
            half[i] = ckv_float_to_bf16(source[i]);
        return;
    case CKV_FP16:
        for (size_t i = 0; i < count; i++)
            half[i] = ckv_float_to_fp16(source[i]);
        return;
    case CKV_FP8_E4M3:
        for (size_t i = 0; i < count; i++)
            codes[i] = ckv_float_to_e4m3(source[i]);
        return;
    }
}
