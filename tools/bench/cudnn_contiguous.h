/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN over K/V that lie dense in memory: what the cache's paged attention is measured against. */
#ifndef CKV_TOOLS_BENCH_CUDNN_CONTIGUOUS_H
#define CKV_TOOLS_BENCH_CUDNN_CONTIGUOUS_H

#include <ckv/types.h>
#include <stdint.h>

typedef struct cudnn_contiguous_shape {
    ckv_dtype dtype;
    int64_t queries, keys, q_heads, kv_heads, head_dim;
    int64_t q_token_stride; /* in elements; heads follow each other */
} cudnn_contiguous_shape;

typedef struct cudnn_contiguous cudnn_contiguous;

/* One sequence: q [queries, q_heads, head_dim] with a stride of its own, out the same dense, k and v [keys, kv_heads,
 * head_dim] dense. Runs enqueue on `stream`, also while it is captured. Takes seconds. ERROR_UNSUPPORTED (this build
 * has no cuDNN, or cuDNN refuses), ERROR_MEMORY, ERROR_DEVICE. */
ckv_status cudnn_contiguous_create(const cudnn_contiguous_shape *shape, const void *q, const void *k, const void *v,
                                   void *out, ckv_stream stream, cudnn_contiguous **attention_out);
ckv_status cudnn_contiguous_run(const cudnn_contiguous *attention);
void cudnn_contiguous_destroy(cudnn_contiguous **attention); /* accepts NULL and a pointer to NULL */

/* The version of the library, as 1.2.3; "" without one. Static storage. */
const char *cudnn_version_text(void);

#endif
