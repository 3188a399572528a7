/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/trace_run.h"

#include "tools/trace/session_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool keep_output(const trace *t, const trace_op *op, trace_outcome *outcome)
{
    size_t bytes = (size_t)(op->rows * t->config.q_heads * t->config.head_dim) * ckv_dtype_bytes(t->config.dtype);
    void *copy = malloc(bytes);
    if (copy != NULL)
        memcpy(copy, outcome->results[outcome->forwards].gathered, bytes);
    outcome->outputs[outcome->forwards] = copy;
    return copy != NULL;
}

trace_run_options trace_run_options_default(void)
{
    trace_run_options options = {.session = session_config_default(), .reference_window = -1};
    return options;
}

void trace_run(const trace *t, ckv_comm *comm, const trace_run_options *options, trace_outcome *outcome)
{
    memset(outcome, 0, sizeof *outcome);
    const trace_run_options defaults = trace_run_options_default();
    if (options == NULL)
        options = &defaults;
    session_config config = options->session;
    config.model = t->config;
    config.gather_output = true;
    size_t at = 0;
    session *s = NULL;
    outcome->status = replay_pool_tokens(t, ckv_comm_size(comm), &config.pool_tokens, &at, &outcome->why);
    if (outcome->status == CKV_OK)
        outcome->status = session_create(comm, &config, &s, &outcome->why);
    if (outcome->status == CKV_OK)
        snprintf(outcome->exchange, sizeof outcome->exchange, "%s", session_exchange(s, NULL));
    for (size_t i = 0; i < t->num_ops && outcome->status == CKV_OK; i++) {
        session_result *result = &outcome->results[outcome->forwards];
        outcome->status = replay_op(s, &t->ops[i], result, &outcome->why);
        if (outcome->status == CKV_OK && t->ops[i].kind == TRACE_OPEN && options->reference_window >= 0)
            outcome->status = ckv_reference_open(s->reference, t->ops[i].pin_tokens, options->reference_window);
        if (outcome->status != CKV_OK || t->ops[i].kind != TRACE_FORWARD)
            continue;
        if (!keep_output(t, &t->ops[i], outcome))
            outcome->status = CKV_ERROR_MEMORY;
        outcome->wrong += !(result->output_ok && result->expected_ok);
        if (++outcome->forwards == TRACE_RUN_MAX_FORWARDS)
            break;
    }
    session_destroy(&s);
}

void trace_outcome_free(trace_outcome *outcome)
{
    for (size_t i = 0; i < outcome->forwards; i++)
        free(outcome->outputs[i]);
    memset(outcome, 0, sizeof *outcome);
}
