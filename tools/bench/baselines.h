/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over the same keys without the cache's pages, or without the library: what a forward is compared with. */
#ifndef CKV_TOOLS_BENCH_BASELINES_H
#define CKV_TOOLS_BENCH_BASELINES_H

#include "tools/bench/workload.h"

typedef struct bench_baselines bench_baselines;

/* Of layer 0 of the next chunk as one causal block, on one rank. The keys are those of the cache's own row, dense.
 * ERROR_UNSUPPORTED without cuDNN. */
ckv_status bench_baselines_create(const bench_workload *workload, bench_baselines **baselines_out);
void bench_baselines_destroy(bench_baselines **baselines); /* accepts NULL and a pointer to NULL */

/* Where they write, [chunk_tokens, q_heads, head_dim]. */
void *bench_baselines_out(const bench_baselines *baselines);

/* Works. The resident window lies in one buffer: nothing is moved. */
ckv_status bench_contiguous_run(void *baselines, ckv_stream stream);

/* History and the chunk's K and V are put into one buffer first, as a model without a cache does in every forward. */
ckv_status bench_concatenate_run(void *baselines, ckv_stream stream);

/* cuDNN over the cache's pages, called directly: what ckv_attention adds is the difference. Nothing is staged. */
typedef struct bench_paged bench_paged;
ckv_status bench_paged_create(const bench_workload *workload, int64_t block, bench_paged **paged_out);
void bench_paged_destroy(bench_paged **paged); /* accepts NULL and a pointer to NULL */
ckv_status bench_paged_run(void *paged, ckv_stream stream);

#endif
