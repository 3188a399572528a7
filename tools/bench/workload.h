/* SPDX-License-Identifier: Apache-2.0 */
/* A rollout of the benchmark's geometry on this rank: random data, a cache whose window is full, forwards over it, and
 * the exact-window reference of some layers beside it. Errors are said by ckv_last_error(). */
#ifndef CKV_TOOLS_BENCH_WORKLOAD_H
#define CKV_TOOLS_BENCH_WORKLOAD_H

#include "tools/bench/timing.h"

#include <ckv/attention.h>
#include <ckv/reference.h>
#include <ckv/ulysses.h>

enum { WORKLOAD_MAX_CHECKED = 2, WORKLOAD_MAX_BLOCK_SIZES = 8 };

typedef struct bench_workload_config {
    const bench_options *options;
    bench_timer *timer;
    int64_t window_frames, page, layers;
    int64_t block_sizes[WORKLOAD_MAX_BLOCK_SIZES]; /* causal blocks of a forward; the chunk itself need not be named */
    size_t num_block_sizes;
    int64_t chunks_past_window; /* committed after the window was full; 0: the page table is still in order */
} bench_workload_config;

/* The geometry of `options` as a model uses it: all layers and the whole window; frames as causal blocks where its
 * clean forward has them. */
bench_workload_config bench_workload_of_model(const bench_options *options, bench_timer *timer,
                                              int64_t chunks_past_window);

/* What a benchmark may read; only workload.c and check.c write it. */
typedef struct bench_workload {
    bench_workload_config config;
    int rank, ranks;
    int64_t q_heads, kv_heads, head_dim; /* of all ranks */
    int64_t rank_kv_heads;
    int64_t chunk_tokens, window_tokens;
    int64_t rows, first_row; /* of this rank's shard, padding included */
    ckv_cache *cache;
    ckv_ulysses *ulysses; /* NULL with one rank */

    ckv_reference **references; /* [kv_heads]: one for each, with the query heads that read it, so that they run side by
                                   side */
    int64_t checked[WORKLOAD_MAX_CHECKED]; /* cache layers the reference keeps: the first and the last */
    int64_t num_checked;

    char *host_data, *device_data; /* the same random elements; a chunk's q, k, v of a layer begin somewhere in it */
    int64_t data_elements, qkv_elements;
    uint64_t chunk;    /* of which q, k, v the next forward is; fixed addresses until bench_workload_next_data */
    uint64_t *pending; /* chunks that the cache has committed and the reference has not */
    size_t num_pending;
    void *device_out; /* [rows, q_heads, head_dim] */
} bench_workload;

/* Allocate, and roll until the window is full. */
ckv_status bench_workload_create(const bench_workload_config *config, bench_workload **workload_out);
void bench_workload_destroy(bench_workload **workload); /* accepts NULL and a pointer to NULL */

/* Packed [chunk_tokens, q_heads + 2 * kv_heads, head_dim] of all ranks, in host memory and on the device. */
const void *bench_workload_host_qkv(const bench_workload *workload, int64_t layer);
const void *bench_workload_device_qkv(const bench_workload *workload, int64_t layer);

/* K/V heads in such a tensor, from `first` on; and those of this rank. */
ckv_kv bench_workload_kv(const bench_workload *workload, const void *qkv, int64_t first);
ckv_kv bench_workload_rank_kv(const bench_workload *workload, const void *qkv);

/* Keys a causal block sees. */
int64_t bench_workload_keys(const bench_workload *workload, int64_t block);

/* Some layers' attention of the next chunk; a bench_work is bench_forward_run. */
typedef struct bench_forward {
    const bench_workload *workload;
    int64_t first_layer, num_layers;
    int64_t block; /* causal block size */
    const char *backend;
} bench_forward;

ckv_attention_args bench_forward_args(const bench_forward *forward, int64_t layer);
ckv_status bench_forward_run(void *forward, ckv_stream stream);

/* Stage the next chunk in every layer without attending. */
ckv_status bench_workload_stage(bench_workload *workload, int64_t block);

/* The cache has committed the chunk. The reference does later, all at once, since its copies leave nothing in the CPU's
 * caches: call bench_workload_follow before the next check. */
ckv_status bench_workload_committed(bench_workload *workload);
ckv_status bench_workload_follow(bench_workload *workload);

/* Other q, k, v from now on. */
void bench_workload_next_data(bench_workload *workload);

#endif
