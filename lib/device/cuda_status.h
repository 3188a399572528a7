/* SPDX-License-Identifier: Apache-2.0 */
/* From the CUDA runtime's errors to ours, in one place. */
#ifndef CKV_LIB_CUDA_STATUS_H
#define CKV_LIB_CUDA_STATUS_H

#include <ckv/status.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* CKV_OK, or the error's status with the detail "call: code name: text". ERROR_MEMORY, ERROR_UNSUPPORTED (no driver, no
 * device, no code for this one), else ERROR_DEVICE. Exported for libckv_nccl. */
CKV_API ckv_status ckv_cuda_status(cudaError_t error, const char *call);

#ifdef __cplusplus
}
#endif
#endif
