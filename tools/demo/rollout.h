/* SPDX-License-Identifier: Apache-2.0 */
/* One model's rollout through the cache, every forward compared with the exact window. */
#ifndef CKV_TOOLS_DEMO_ROLLOUT_H
#define CKV_TOOLS_DEMO_ROLLOUT_H

#include "tools/common/geometries.h"
#include "tools/trace/problem.h"
#include "tools/trace/session.h"

#include <ckv/comm.h>

/* A published geometry and how much of the model around it the CPU leaves out. */
typedef struct demo_plan {
    const model_geometry *geometry;
    int64_t frame_tokens; /* the geometry's, or those of another resolution */
    int64_t pin_tokens;
    int64_t q_heads, kv_heads, head_dim, layers;
    ckv_dtype dtype;
    int64_t tokens_per_page;
    int64_t denoising_forwards;
    int64_t slides; /* chunks after the window is full */
    int64_t sample_rows;
} demo_plan;

typedef struct demo_outcome {
    int64_t chunks, forwards, padded_forwards, wrong;
    int64_t evicted_pages;
    int64_t keys; /* of the last block */
    double max_error, page_aligned_error, tolerance;
    double attention_seconds;
} demo_outcome;

/* Chunks the rollout will take, the first one included. */
int64_t demo_num_chunks(const demo_plan *plan);

/* Called after each chunk, on every rank. */
typedef void (*demo_progress)(void *context, int64_t chunk, int64_t chunks);

/* Collective. The same status on every rank; the outcome is complete on success only. */
ckv_status demo_run(ckv_comm *comm, const demo_plan *plan, demo_progress progress, void *context,
                    demo_outcome *outcome_out, problem *why);

#endif
