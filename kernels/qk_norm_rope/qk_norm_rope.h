/* SPDX-License-Identifier: Apache-2.0 */
/* qk_norm_rope: RMS norm and rotary embedding of a packed projection; ckv/qk_norm_rope.h has the contract. */
#ifndef CKV_KERNELS_QK_NORM_ROPE_H
#define CKV_KERNELS_QK_NORM_ROPE_H

#include <ckv/qk_norm_rope.h>

/* What every device refuses. */
ckv_status ckv_qk_norm_rope_check(const ckv_qk_norm_rope_params *params);

ckv_status ckv_qk_norm_rope_host(const ckv_qk_norm_rope_params *params, ckv_stream stream);
ckv_status ckv_qk_norm_rope_cuda(const ckv_qk_norm_rope_params *params, ckv_stream stream);

#endif
