/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/choose.h"

#include <math.h>

enum { MAX_FORWARDS = 2000, MAX_WRONG = 200, CHANGE_BYTES = 18, BLOCK_BYTES = 48, MAX_BLOCKS = 128 };

static const double STATE_BYTES = 1.2e6; /* of all states and layouts together */

/* Bytes of one state and its layout, about: cells that change between commits, and blocks. */
static double state_bytes(const trace *t, const trace_op *op)
{
    ckv_rollout_config config = ckv_rollout_config_default();
    config.pin_tokens = op->pin_tokens;
    config.window_tokens = op->window_tokens;
    config.max_staged_tokens = op->max_staged_tokens;
    config.causal_block_sizes = op->causal_block_sizes;
    config.num_causal_block_sizes = op->num_causal_block_sizes;
    ckv_rollout_size size;
    if (ckv_rollout_config_size(&config, t->config.tokens_per_page, &size) != CKV_OK)
        return STATE_BYTES;
    double pages = (double)(size.private_tokens + 2 * op->max_staged_tokens) / (double)t->config.tokens_per_page + 4;
    int64_t blocks = 1;
    for (size_t i = 0; i < op->num_causal_block_sizes; i++)
        if (op->max_staged_tokens / op->causal_block_sizes[i] > blocks)
            blocks = op->max_staged_tokens / op->causal_block_sizes[i];
    return CHANGE_BYTES * fmin(pages, 2048) + BLOCK_BYTES * fmin((double)blocks, MAX_BLOCKS);
}

static bool is_right(const rank_run *run, size_t forward)
{
    return run->results[forward].output_ok && run->results[forward].expected_ok;
}

/* Forwards between two commits stage the same tokens and share what there is to show. */
static size_t count_groups(const trace *t, double *bytes_out)
{
    size_t groups = 0;
    bool is_new = true;
    *bytes_out = 1;
    for (size_t i = 0; i < t->num_ops; i++) {
        bool is_forward = t->ops[i].kind == TRACE_FORWARD;
        groups += is_forward && is_new;
        is_new = !is_forward;
        if (t->ops[i].kind == TRACE_OPEN)
            *bytes_out = fmax(*bytes_out, state_bytes(t, &t->ops[i]));
    }
    return groups;
}

size_t choose_forwards(const trace *t, const rank_run *run, bool *shown_out)
{
    double bytes;
    size_t groups = count_groups(t, &bytes), most = (size_t)fmax(STATE_BYTES / bytes, 16);
    size_t group_stride = (groups + most - 1) / most, stride = (run->forwards + MAX_FORWARDS - 1) / MAX_FORWARDS;
    size_t most_wrong = most < MAX_WRONG ? most : MAX_WRONG, wrong = 0, shown = 0, forward = 0, group = 0;
    bool is_new = false;
    for (size_t i = 0; i < t->num_ops; i++) {
        if (t->ops[i].kind != TRACE_FORWARD) {
            is_new = true;
            continue;
        }
        group += is_new && forward > 0;
        is_new = false;
        bool in_turn = group % group_stride == 0 && forward % stride == 0;
        shown_out[forward] = is_right(run, forward) ? in_turn : in_turn || wrong++ < most_wrong;
        shown += shown_out[forward++];
    }
    return shown;
}
