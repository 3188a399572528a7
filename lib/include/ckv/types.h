/* SPDX-License-Identifier: Apache-2.0 */
/* Element types, streams, devices, and strided K/V. */
#ifndef CKV_TYPES_H
#define CKV_TYPES_H

#include <ckv/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A CUDA stream (the type behind cudaStream_t); NULL, and ignored, on the host device. */
typedef struct CUstream_st *ckv_stream;

/* fp8_e4m3 is for pages alone (ckv/pool.h); tensors are of the others. */
typedef enum ckv_dtype { CKV_FP32 = 0, CKV_BF16 = 1, CKV_FP16 = 2, CKV_FP8_E4M3 = 3 } ckv_dtype;

/* Bytes of one element; 0 for an unknown dtype. */
CKV_API size_t ckv_dtype_bytes(ckv_dtype dtype);

/* "fp32", "bf16", "fp16", "fp8_e4m3"; "unknown" otherwise. Static storage. */
CKV_API const char *ckv_dtype_name(ckv_dtype dtype);

/* The dtype of a name. ERROR_INVALID, with the known names in the detail. */
CKV_NODISCARD CKV_API ckv_status ckv_dtype_from_name(const char *name, ckv_dtype *dtype_out);

/* The same of a dtype that tensors may have: not fp8_e4m3. */
CKV_NODISCARD CKV_API ckv_status ckv_tensor_dtype_from_name(const char *name, ckv_dtype *dtype_out);

/* Convert `count` elements in host memory. Narrowing rounds to nearest even; NaN stays NaN; fp16 overflows to infinity,
 * fp8_e4m3 saturates at 448. */
CKV_API void ckv_convert_to_float(ckv_dtype dtype, const void *source, size_t count, float *destination);
CKV_API void ckv_convert_from_float(ckv_dtype dtype, const float *source, size_t count, void *destination);

/* Where memory lives and kernels run. Devices are static objects of the library; nothing to release. */
typedef struct ckv_device ckv_device;

/* The device called `name`: "host"; "cuda"; "strict", the host with memory that crashes whoever touches it outside a
 * device's operation, which finds missing copies without a GPU. ERROR_INVALID for a name nobody knows,
 * ERROR_UNSUPPORTED for a device this build or machine lacks; the detail lists what there is. */
CKV_NODISCARD CKV_API ckv_status ckv_device_find(const char *name, const ckv_device **device_out);

/* Static storage. */
CKV_API const char *ckv_device_name(const ckv_device *device);

/* Memory of a device (NULL: host), for programs that do not speak its own API. alloc leaves contents undefined;
 * ERROR_MEMORY. free accepts NULL. upload enqueues on `stream` and may be given `source` again when it returns;
 * download waits. ERROR_DEVICE. */
CKV_NODISCARD CKV_API ckv_status ckv_device_alloc(const ckv_device *device, size_t bytes, void **memory_out);
CKV_API void ckv_device_free(const ckv_device *device, void *memory);
CKV_NODISCARD CKV_API ckv_status ckv_device_upload(const ckv_device *device, void *destination, const void *source,
                                                   size_t bytes, ckv_stream stream);
CKV_NODISCARD CKV_API ckv_status ckv_device_download(const ckv_device *device, void *destination, const void *source,
                                                     size_t bytes, ckv_stream stream);

/* K and V of consecutive tokens, [tokens, kv_heads, head_dim] each, in memory the device reads. head_dim is contiguous;
 * strides are in elements and free, zero and negative included, so a slice of a fused QKV projection needs no copy. */
typedef struct ckv_kv {
    const void *k;
    const void *v;
    int64_t k_token_stride, k_head_stride;
    int64_t v_token_stride, v_head_stride;
} ckv_kv;

/* Dense [tokens, kv_heads, head_dim] K and V. */
static inline ckv_kv ckv_kv_dense(const void *k, const void *v, int64_t kv_heads, int64_t head_dim)
{
    ckv_kv kv = {k, v, kv_heads * head_dim, head_dim, kv_heads * head_dim, head_dim};
    return kv;
}

#ifdef __cplusplus
}
#endif
#endif
