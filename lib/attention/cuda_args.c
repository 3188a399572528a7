/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/attention/cuda_args.h"

#include "lib/device/cuda_status.h"
#include "lib/device/device.h"
#include "lib/pool/pool.h"
#include "lib/support/error.h"

#include <inttypes.h>

static const ckv_pool_config *pool_config(const ckv_attention_args *args)
{
    return ckv_pool_get_config(ckv_cache_pool(args->cache));
}

ckv_status ckv_cuda_current_device(int *device_id_out)
{
    return ckv_cuda_status(cudaGetDevice(device_id_out), "cudaGetDevice");
}

ckv_status ckv_cuda_architecture(int device_id, int *architecture_out)
{
    int major = 0, minor = 0;
    CKV_TRY(ckv_cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_id),
                            "cudaDeviceGetAttribute"));
    CKV_TRY(ckv_cuda_status(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_id),
                            "cudaDeviceGetAttribute"));
    *architecture_out = 10 * (10 * major + minor);
    return CKV_OK;
}

ckv_status ckv_cuda_check_options(const char *backend, const ckv_attention_args *args)
{
    const ckv_device *device = ckv_pool_device(ckv_cache_pool(args->cache));
    if (device != &ckv_device_cuda)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "attention: backend %s works on device cuda, not %s", backend,
                        ckv_device_name(device));
    if (args->mask != CKV_MASK_NONE)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend %s takes no mask with a cache: the rows already hold exactly the window",
                        backend);
    if (args->quantization != CKV_QUANT_NONE)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend %s takes no quantization with a cache: pages hold %s", backend,
                        ckv_dtype_name(pool_config(args)->dtype));
    return CKV_OK;
}

static int64_t used_stride(int64_t stride, int64_t count, int64_t dense)
{
    return count > 1 ? stride : dense;
}

ckv_cuda_strides ckv_cuda_used_strides(const ckv_attention_args *args)
{
    const int64_t dim = pool_config(args)->head_dim, token = args->q_heads * dim;
    return (ckv_cuda_strides){
        .q_token = used_stride(args->q_token_stride, args->seq_len, token),
        .q_head = used_stride(args->q_head_stride, args->q_heads, dim),
        .out_token = used_stride(args->out_token_stride, args->seq_len, token),
        .out_head = used_stride(args->out_head_stride, args->q_heads, dim),
    };
}

ckv_status ckv_cuda_check_strides(const char *backend, const ckv_attention_args *args)
{
    const ckv_cuda_strides used = ckv_cuda_used_strides(args);
    const struct {
        const char *name;
        int64_t stride;
    } strides[] = {{"q_token_stride", used.q_token},
                   {"q_head_stride", used.q_head},
                   {"out_token_stride", used.out_token},
                   {"out_head_stride", used.out_head}};
    const int64_t step = CKV_CUDA_ALIGNMENT / (int64_t)ckv_dtype_bytes(ckv_pool_config_tensor_dtype(pool_config(args)));
    for (size_t i = 0; args->q_heads > 0 && i < sizeof strides / sizeof strides[0]; i++)
        if (strides[i].stride <= 0 || strides[i].stride % step != 0)
            return ckv_fail(CKV_ERROR_UNSUPPORTED,
                            "attention: backend %s takes positive strides in steps of %" PRId64
                            " elements (%d bytes), but %s is %" PRId64,
                            backend, step, CKV_CUDA_ALIGNMENT, strides[i].name, strides[i].stride);
    return CKV_OK;
}

static ckv_status check_address(const char *name, const void *address, int alignment, int device_id)
{
    struct cudaPointerAttributes attributes;
    CKV_TRY(ckv_cuda_status(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes"));
    if (attributes.type != cudaMemoryTypeManaged &&
        (attributes.type != cudaMemoryTypeDevice || attributes.device != device_id))
        return ckv_fail(CKV_ERROR_INVALID, "attention: %s at %p is not memory of CUDA device %d", name, address,
                        device_id);
    if ((uintptr_t)address % (uintptr_t)alignment != 0)
        return ckv_fail(CKV_ERROR_INVALID, "attention: %s at %p is not aligned to %d bytes", name, address, alignment);
    return CKV_OK;
}

ckv_status ckv_cuda_check_addresses(const ckv_attention_args *args, int device_id)
{
    const int element_bytes = (int)ckv_dtype_bytes(ckv_pool_config_tensor_dtype(pool_config(args)));
    CKV_TRY(check_address("q", args->q, CKV_CUDA_ALIGNMENT, device_id));
    CKV_TRY(check_address("kv.k", args->kv.k, element_bytes, device_id));
    CKV_TRY(check_address("kv.v", args->kv.v, element_bytes, device_id));
    CKV_TRY(check_address("out", args->out, CKV_CUDA_ALIGNMENT, device_id));
    return args->lse != NULL ? check_address("lse", args->lse, (int)sizeof *args->lse, device_id) : CKV_OK;
}
