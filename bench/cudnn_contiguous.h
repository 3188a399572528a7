/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN over K/V that lie dense in memory: what the cache's paged attention is measured against. */
#ifndef CKV_BENCH_CUDNN_CONTIGUOUS_H
#define CKV_BENCH_CUDNN_CONTIGUOUS_H

#include <cudnn.h>
#include <stdint.h>

typedef struct cudnn_contiguous {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t plan, pack;
    float scale;
    void *workspace;
} cudnn_contiguous;

/* One sequence, bf16: q and out [queries, q_heads, head_dim], k and v [keys, kv_heads, head_dim], all dense. Ends the
 * program when cuDNN refuses. */
void cudnn_contiguous_open(cudnn_contiguous *attention, cudnnHandle_t handle, int64_t queries, int64_t keys,
                           int64_t q_heads, int64_t kv_heads, int64_t head_dim, const void *q, const void *k,
                           const void *v, void *out);
void cudnn_contiguous_run(const cudnn_contiguous *attention);

#endif
