/* SPDX-License-Identifier: Apache-2.0 */
/* What the backends of the CUDA device ask of a call alike. `backend` is the name in messages. */
#ifndef CKV_ATTENTION_CUDA_ARGS_H
#define CKV_ATTENTION_CUDA_ARGS_H

#include <ckv/attention.h>

enum { CKV_CUDA_ALIGNMENT = 16 }; /* of q and out, bytes */

ckv_status ckv_cuda_current_device(int *device_id_out);

/* Compute capability: 900 for 9.0. */
ckv_status ckv_cuda_architecture(int device_id, int *architecture_out);

/* ERROR_UNSUPPORTED unless the cache is on the CUDA device and nothing but the window is asked for. */
ckv_status ckv_cuda_check_options(const char *backend, const ckv_attention_args *args);

/* In elements. A stride over one element only may be anything: then the dense one stands for it. */
typedef struct ckv_cuda_strides {
    int64_t q_token, q_head, out_token, out_head;
} ckv_cuda_strides;
ckv_cuda_strides ckv_cuda_used_strides(const ckv_attention_args *args);

/* ERROR_UNSUPPORTED unless those are positive and keep vectors of q and out aligned. */
ckv_status ckv_cuda_check_strides(const char *backend, const ckv_attention_args *args);

/* ERROR_INVALID unless every tensor is this device's memory and aligned: a kernel that reads the wrong memory takes the
 * whole process down. */
ckv_status ckv_cuda_check_addresses(const ckv_attention_args *args, int device_id);

#endif
