/* SPDX-License-Identifier: Apache-2.0 */
/* exchange_heads: the layout half of a Ulysses exchange, packing or unpacking up to three tensors (q, k, v) in one
 * launch. A tensor is [tokens, heads, head_dim] with free strides; its packed form is [chunks][tokens of a chunk][heads
 * of a chunk][head_dim], contiguous per chunk, a chunk being what one peer sends or receives: the same tokens, its own
 * heads. Chunks may share heads when packing. */
#ifndef CKV_KERNELS_EXCHANGE_HEADS_H
#define CKV_KERNELS_EXCHANGE_HEADS_H

#include <ckv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CKV_EXCHANGE_MAX_TENSORS = 3 };

typedef struct ckv_exchange_tensor {
    void *tensor; /* strided side; read when packing, written when unpacking */
    int64_t token_stride_bytes, head_stride_bytes;
    void *packed;               /* dense side */
    int64_t chunk_stride_bytes; /* between chunks of the packed side */
    int64_t chunk_tokens, chunk_heads;
    int64_t heads; /* of the tensor: chunk c's first one is c * heads / chunks, plus first_head */
    int64_t first_head;
    int64_t row_bytes; /* one head vector */
} ckv_exchange_tensor;

typedef struct ckv_exchange_heads_params {
    int pack; /* 1: tensor -> packed, 0: packed -> tensor */
    int64_t chunks;
    int64_t num_tensors;
    ckv_exchange_tensor tensors[CKV_EXCHANGE_MAX_TENSORS];
} ckv_exchange_heads_params;

ckv_status ckv_exchange_heads_host(const ckv_exchange_heads_params *params, ckv_stream stream);
ckv_status ckv_exchange_heads_cuda(const ckv_exchange_heads_params *params, ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
