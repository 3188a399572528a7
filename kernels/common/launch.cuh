/* SPDX-License-Identifier: Apache-2.0 */
/* What launchers share: choosing the widest vector, sizing grids, checking launches. */
#ifndef CKV_KERNELS_LAUNCH_CUH
#define CKV_KERNELS_LAUNCH_CUH

#include "lib/device/cuda_status.h"
#include "lib/support/error.h"

#include <ckv/types.h>
#include <cuda_runtime.h>

#include <cinttypes>

namespace ckv
{

enum { NUM_VECTORS = 5, WARP = 32 };

/* Row n of every table of kernels by vector: 16, 8, 4, 2 and 1 bytes. */
inline int vector_row(uint64_t addresses_and_strides)
{
    for (int row = 0; row < NUM_VECTORS - 1; row++)
        if (addresses_and_strides % (16u >> row) == 0)
            return row;
    return NUM_VECTORS - 1;
}

inline int64_t vector_bytes(int row)
{
    return 16 >> row;
}

inline uint64_t bits(const void *address)
{
    return reinterpret_cast<uintptr_t>(address);
}

inline uint64_t bits(int64_t stride)
{
    return static_cast<uint64_t>(stride);
}

/* a >= 0, b > 0 */
inline int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Blocks for `count` pieces of work in a grid's first dimension; kernels step over what does not fit. */
inline unsigned grid_of(int64_t count)
{
    return static_cast<unsigned>(count < INT32_MAX ? count : INT32_MAX);
}

/* The current device's. */
inline ckv_status multiprocessors(int *count_out)
{
    int device;
    CKV_TRY(ckv_cuda_status(cudaGetDevice(&device), "cudaGetDevice"));
    return ckv_cuda_status(cudaDeviceGetAttribute(count_out, cudaDevAttrMultiProcessorCount, device),
                           "cudaDeviceGetAttribute");
}

/* The launch may start while the kernel before it on the stream still runs, on GPUs that can (9.0 and newer); it waits
 * for that kernel with await_earlier_launch(). The attribute has to live as long as the config. */
inline ckv_status allow_overlap(cudaLaunchConfig_t *config, cudaLaunchAttribute *attribute)
{
    int device, major;
    CKV_TRY(ckv_cuda_status(cudaGetDevice(&device), "cudaGetDevice"));
    CKV_TRY(ckv_cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                            "cudaDeviceGetAttribute"));
    attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute->val.programmaticStreamSerializationAllowed = 1;
    config->attrs = attribute;
    config->numAttrs = major >= 9 ? 1 : 0;
    return CKV_OK;
}

__device__ inline void await_earlier_launch()
{
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

/* The launch behind this one need not wait for its end to take its place. */
__device__ inline void let_later_launch_start()
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

} // namespace ckv

#endif
