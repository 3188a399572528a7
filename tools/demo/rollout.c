/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/demo/rollout.h"

#include "tools/demo/model.h"

#include <math.h>
#include <stdlib.h>

typedef struct rollout_run {
    const demo_plan *plan;
    session *session;
    int64_t step;      /* forwards so far: what makes each one's values new */
    int64_t committed; /* tokens */
    void *q, *k, *v;   /* of the longest forward */
    demo_outcome outcome;
} rollout_run;

static int64_t chunk_frames(const demo_plan *plan, int64_t chunk)
{
    return chunk == 0 ? plan->geometry->first_chunk_frames : plan->geometry->chunk_frames;
}

static int64_t longest_chunk_tokens(const demo_plan *plan)
{
    int64_t first = chunk_frames(plan, 0), later = chunk_frames(plan, 1);
    return (first > later ? first : later) * plan->frame_tokens;
}

int64_t demo_num_chunks(const demo_plan *plan)
{
    /* Frames that end up in the fixed region or in the window of a block; a prompt is no frame. */
    int64_t pinned =
        plan->geometry->pin_is_prompt ? 0 : (plan->pin_tokens + plan->frame_tokens - 1) / plan->frame_tokens;
    int64_t frames = pinned + plan->geometry->window_frames - chunk_frames(plan, 0);
    int64_t later = chunk_frames(plan, 1);
    return 1 + (frames + later - 1) / later + plan->slides;
}

static void fill(rollout_run *run, int tensor, int64_t layer, int64_t tokens, void *out)
{
    const demo_plan *plan = run->plan;
    demo_model_fill(tensor, layer, run->step, run->committed, tokens, tensor == DEMO_Q ? plan->q_heads : plan->kv_heads,
                    plan->head_dim, plan->dtype, out);
}

static void record(demo_outcome *outcome, const session_result *result, int64_t tokens)
{
    outcome->forwards++;
    outcome->padded_forwards += result->padded_tokens != tokens;
    outcome->wrong += !result->output_ok;
    outcome->max_error = fmax(outcome->max_error, result->output.error);
    outcome->page_aligned_error = fmax(outcome->page_aligned_error, result->page_aligned_error);
    outcome->tolerance = fmax(outcome->tolerance, result->tolerance);
    outcome->attention_seconds += result->seconds;
}

/* One step of the model: attention in every layer. */
static ckv_status run_step(rollout_run *run, int64_t tokens, int64_t causal_block_size, problem *why)
{
    run->step++;
    for (int64_t layer = 0; layer < run->plan->layers; layer++) {
        fill(run, DEMO_Q, layer, tokens, run->q);
        fill(run, DEMO_K, layer, tokens, run->k);
        fill(run, DEMO_V, layer, tokens, run->v);
        session_forward forward = {.layer = layer,
                                   .rows = tokens,
                                   .seq_len = tokens,
                                   .causal_block_size = causal_block_size,
                                   .q = run->q,
                                   .k = run->k,
                                   .v = run->v};
        session_result result;
        ckv_status status = session_run_forward(run->session, &forward, &result, why);
        if (status != CKV_OK)
            return status;
        record(&run->outcome, &result, tokens);
    }
    return CKV_OK;
}

static ckv_status commit(rollout_run *run, int64_t tokens, problem *why)
{
    run->committed += tokens;
    return session_commit(run->session, tokens, why);
}

static ckv_status run_chunk(rollout_run *run, int64_t chunk, problem *why)
{
    const demo_plan *plan = run->plan;
    int64_t tokens = chunk_frames(plan, chunk) * plan->frame_tokens;
    ckv_status status = CKV_OK;
    for (int64_t i = 0; i < plan->denoising_forwards && status == CKV_OK; i++)
        status = run_step(run, tokens, tokens, why);
    if (status == CKV_OK)
        status = run_step(run, tokens, plan->geometry->clean_in_frames ? plan->frame_tokens : tokens, why);
    return status == CKV_OK ? commit(run, tokens, why) : status;
}

/* The prompt is written in pieces that fit the buffers of a forward. */
static ckv_status write_prompt(rollout_run *run, problem *why)
{
    int64_t left = run->plan->geometry->pin_is_prompt ? run->plan->pin_tokens : 0;
    while (left > 0) {
        int64_t tokens = left < longest_chunk_tokens(run->plan) ? left : longest_chunk_tokens(run->plan);
        for (int64_t layer = 0; layer < run->plan->layers; layer++) {
            fill(run, DEMO_K, layer, tokens, run->k);
            fill(run, DEMO_V, layer, tokens, run->v);
            ckv_status status = session_write_range(run->session, layer, run->committed, tokens, run->k, run->v, why);
            if (status != CKV_OK)
                return status;
        }
        ckv_status status = commit(run, tokens, why);
        if (status != CKV_OK)
            return status;
        left -= tokens;
    }
    return CKV_OK;
}

static ckv_status run_chunks(rollout_run *run, demo_progress progress, void *context, problem *why)
{
    int64_t chunks = demo_num_chunks(run->plan);
    ckv_status status = write_prompt(run, why);
    for (int64_t chunk = 0; chunk < chunks && status == CKV_OK; chunk++) {
        status = run_chunk(run, chunk, why);
        progress(context, chunk + 1, chunks);
    }
    ckv_cache_state state = session_state(run->session);
    run->outcome.chunks = chunks;
    run->outcome.evicted_pages = (state.committed_tokens - state.staging_offset) / run->plan->tokens_per_page;
    run->outcome.keys = state.fixed_tokens + state.window_tokens + longest_chunk_tokens(run->plan);
    return status;
}

static ckv_status open_session(ckv_comm *comm, const demo_plan *plan, session **session_out, problem *why)
{
    int64_t sizes[] = {chunk_frames(plan, 0) * plan->frame_tokens, chunk_frames(plan, 1) * plan->frame_tokens,
                       plan->frame_tokens};
    ckv_rollout_config rollout = ckv_rollout_config_default();
    rollout.pin_tokens = plan->pin_tokens;
    rollout.window_tokens = plan->geometry->window_frames * plan->frame_tokens;
    rollout.max_staged_tokens = longest_chunk_tokens(plan);
    rollout.causal_block_sizes = sizes;
    rollout.num_causal_block_sizes = plan->geometry->clean_in_frames ? 3 : 2;
    ckv_rollout_size size;
    ckv_status status = ckv_rollout_config_size(&rollout, plan->tokens_per_page, &size);
    if (status != CKV_OK) {
        problem_format(why, "%s", ckv_last_error());
        return status;
    }
    session_config config = session_config_default();
    config.model = (trace_config){.layers = plan->layers,
                                  .q_heads = plan->q_heads,
                                  .kv_heads = plan->kv_heads,
                                  .head_dim = plan->head_dim,
                                  .dtype = plan->dtype,
                                  .tokens_per_page = plan->tokens_per_page};
    config.pool_tokens = size.pool_tokens;
    config.sample_rows = plan->sample_rows;
    config.measure_page_aligned = true;
    status = session_create(comm, &config, session_out, why);
    return status == CKV_OK ? session_open(*session_out, &rollout, why) : status;
}

ckv_status demo_run(ckv_comm *comm, const demo_plan *plan, demo_progress progress, void *context,
                    demo_outcome *outcome_out, problem *why)
{
    rollout_run run = {.plan = plan};
    size_t token_bytes = (size_t)plan->head_dim * ckv_dtype_bytes(plan->dtype);
    size_t tokens = (size_t)longest_chunk_tokens(plan);
    run.q = malloc(tokens * (size_t)plan->q_heads * token_bytes);
    run.k = malloc(tokens * (size_t)plan->kv_heads * token_bytes);
    run.v = malloc(tokens * (size_t)plan->kv_heads * token_bytes);
    ckv_status status = run.q && run.k && run.v ? CKV_OK : CKV_ERROR_MEMORY;
    if (status != CKV_OK)
        problem_format(why, "out of memory for a forward of %zu tokens", tokens);
    status = session_agree(comm, status, why);
    if (status == CKV_OK)
        status = open_session(comm, plan, &run.session, why);
    if (status == CKV_OK)
        status = run_chunks(&run, progress, context, why);
    if (status == CKV_OK)
        *outcome_out = run.outcome;
    session_destroy(&run.session);
    free(run.q);
    free(run.k);
    free(run.v);
    return status;
}
