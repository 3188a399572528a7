/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of attention. */
#ifndef CKV_LIB_ATTENTION_H
#define CKV_LIB_ATTENTION_H

#include <ckv/attention.h>

/* Everything ckv_attention refuses before it touches the cache or `out`, and nothing else: after CKV_OK only memory or
 * the device can fail. Tensors are not read. */
CKV_NODISCARD ckv_status ckv_attention_validate(const ckv_attention_args *args);

/* The part of it that does not look at tensors, which need not be there yet. */
CKV_NODISCARD ckv_status ckv_attention_validate_sizes(const ckv_attention_args *args);

/* ckv_attention when home and own slots hold K and V of the call already; kv is still read for copies of them. */
CKV_NODISCARD ckv_status ckv_attention_staged(const ckv_attention_args *args, ckv_stream stream);

/* The part of it that looks at where tensors lie: none missing, none misaligned, no two results in one place. For any
 * rows and q_heads; the cache must be there. */
CKV_NODISCARD ckv_status ckv_attention_check_tensors(const ckv_attention_args *args);

#endif
