/* SPDX-License-Identifier: Apache-2.0 */
/* A large matrix product by cuDNN: what the tensor cores of this machine are seen to reach. */
#ifndef CKV_TOOLS_BENCH_CUDNN_MATMUL_H
#define CKV_TOOLS_BENCH_CUDNN_MATMUL_H

#include <ckv/types.h>

typedef struct cudnn_matmul cudnn_matmul;

/* Of two bf16 matrices of n x n, dense, the second one's columns, into a third; summed in fp32. Runs enqueue on
 * `stream`. Takes seconds. ERROR_UNSUPPORTED (this build has no cuDNN, or cuDNN refuses), ERROR_MEMORY, ERROR_DEVICE.
 */
ckv_status cudnn_matmul_create(int64_t n, const void *a, const void *b, void *c, ckv_stream stream,
                               cudnn_matmul **matmul_out);
ckv_status cudnn_matmul_run(void *matmul, ckv_stream stream); /* a bench_work */
void cudnn_matmul_destroy(cudnn_matmul **matmul);

#endif
