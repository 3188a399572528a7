/* SPDX-License-Identifier: Apache-2.0 */
/* Run a trace to its end on one rank's communicator and keep what came out. No asserts: threads may call it. */
#ifndef CKV_TESTS_SUPPORT_TRACE_RUN_H
#define CKV_TESTS_SUPPORT_TRACE_RUN_H

#include "tools/trace/replay.h"

enum { TRACE_RUN_MAX_FORWARDS = 64 };

typedef struct trace_outcome {
    ckv_status status;
    problem why;
    char exchange[16]; /* that ran */
    size_t forwards, wrong;
    session_result results[TRACE_RUN_MAX_FORWARDS];
    void *outputs[TRACE_RUN_MAX_FORWARDS]; /* [rows, q_heads, head_dim] of the trace; owned */
} trace_outcome;

typedef struct trace_run_options {
    session_config session; /* model, pool and gathering are set by trace_run */
    int64_t
        reference_window; /* negative: the trace's. Else the reference's alone, so that the cache is the one wrong */
} trace_run_options;

trace_run_options trace_run_options_default(void);

/* NULL: all default. */
void trace_run(const trace *t, ckv_comm *comm, const trace_run_options *options, trace_outcome *outcome);

void trace_outcome_free(trace_outcome *outcome);

#endif
