/* SPDX-License-Identifier: Apache-2.0 */
/* Cases that call the CUDA runtime themselves. */
#ifndef CKV_TESTS_SINGLE_GPU_CUDA_CASE_H
#define CKV_TESTS_SINGLE_GPU_CUDA_CASE_H

#include "tests/support/case.h"

#include <cuda_runtime_api.h>

#define assert_cuda(call)                                                                                              \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess)                                                                                     \
            fail_msg("%s: %s", #call, cudaGetErrorName(error_));                                                       \
    } while (0)

#endif
