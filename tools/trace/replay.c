/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/replay.h"

#include <unistd.h>

static ckv_rollout_config rollout_config(const trace_op *op)
{
    ckv_rollout_config config = ckv_rollout_config_default();
    config.pin_tokens = op->pin_tokens;
    config.window_tokens = op->window_tokens;
    config.max_staged_tokens = op->max_staged_tokens;
    config.causal_block_sizes = op->causal_block_sizes;
    config.num_causal_block_sizes = op->num_causal_block_sizes;
    return config;
}

/* Bytes an open rollout takes, roughly: the pool and the table rows of every causal block. */
static double rollout_bytes(const trace_config *model, const trace_op *op, const ckv_rollout_size *size)
{
    double token_bytes = 2.0 * (double)(model->layers * model->kv_heads) * (double)model->head_dim *
                         (double)ckv_dtype_bytes(model->dtype);
    double bytes = (double)size->pool_tokens * token_bytes;
    for (size_t i = 0; i < op->num_causal_block_sizes; i++) {
        int64_t blocks = op->max_staged_tokens / op->causal_block_sizes[i];
        int64_t row_tokens = size->resident_tokens + 3 * model->tokens_per_page + op->causal_block_sizes[i];
        int64_t row_pages = row_tokens / model->tokens_per_page;
        bytes += 3 * sizeof(int32_t) * (double)blocks * (double)row_pages;
    }
    return bytes;
}

ckv_status replay_pool_tokens(const trace *t, int ranks, int64_t *pool_tokens_out, size_t *op_out, problem *why)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    int64_t pool_tokens = t->config.tokens_per_page; /* a pool has at least a page */
    for (size_t i = 0; i < t->num_ops; i++) {
        const trace_op *op = &t->ops[i];
        if (op->kind != TRACE_OPEN)
            continue;
        *op_out = i;
        ckv_rollout_config config = rollout_config(op);
        ckv_rollout_size size;
        ckv_status status = ckv_rollout_config_size(&config, t->config.tokens_per_page, &size);
        if (status != CKV_OK) {
            problem_format(why, "%s", ckv_last_error());
            return status;
        }
        double bytes = rollout_bytes(&t->config, op, &size) / ranks;
        if (bytes > memory) {
            problem_format(why, "this geometry needs %.3g GiB on each rank, this machine has %.3g GiB", bytes / 0x1p30,
                           memory / 0x1p30);
            return CKV_ERROR_CAPACITY;
        }
        if (size.pool_tokens > pool_tokens)
            pool_tokens = size.pool_tokens;
    }
    *pool_tokens_out = pool_tokens;
    return CKV_OK;
}

static ckv_status replay_forward(session *s, const trace_op *op, session_result *result_out, problem *why)
{
    session_forward forward = {
        .layer = op->layer,
        .rows = op->rows,
        .seq_len = op->seq_len,
        .causal_block_size = op->causal_block_size,
        .q = op->q,
        .k = op->k,
        .v = op->v,
        .expected = op->expected,
    };
    return session_run_forward(s, &forward, result_out, why);
}

ckv_status replay_op(session *s, const trace_op *op, session_result *result_out, problem *why)
{
    ckv_rollout_config config;
    switch (op->kind) {
    case TRACE_OPEN:
        config = rollout_config(op);
        return session_open(s, &config, why);
    case TRACE_WRITE_RANGE:
        return session_write_range(s, op->layer, op->start, op->tokens, op->k, op->v, why);
    case TRACE_ZERO_VALUES:
        return session_zero_values(s, op->layer, op->start, op->tokens, why);
    case TRACE_FORWARD:
        return replay_forward(s, op, result_out, why);
    case TRACE_COMMIT:
        return session_commit(s, op->tokens, why);
    case TRACE_CLOSE:
        break;
    }
    return session_close(s, why);
}
