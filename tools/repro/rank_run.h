/* SPDX-License-Identifier: Apache-2.0 */
/* A trace on a number of ranks inside this process, each a thread. */
#ifndef CKV_TOOLS_REPRO_RANK_RUN_H
#define CKV_TOOLS_REPRO_RANK_RUN_H

#include "tools/common/cli.h"
#include "tools/trace/replay.h"

typedef struct rank_run {
    size_t forwards, wrong;
    session_result *results; /* [forwards]; what they gathered is in `outputs` */
    void **outputs;          /* [forwards], each [rows, q_heads, head_dim] of its op */
} rank_run;

typedef struct rank_run_options {
    int ranks;
    double tolerance;     /* as in session_config */
    const char *exchange; /* as there; NULL: auto */
} rank_run_options;

/* The cause names the op that was refused. rank_run_free in any case. */
ckv_status rank_run_trace(const trace *t, const rank_run_options *options, rank_run *run_out, problem *why);
void rank_run_free(rank_run *run);

/* The same as one rank of `comm`, which is borrowed; every rank keeps what came out. Collective. */
ckv_status rank_run_on(ckv_comm *comm, const trace *t, const rank_run_options *options, rank_run *run_out,
                       problem *why);

/* Forwards whose outputs differ by more than both may be off; the largest difference, infinite where one is NaN. */
size_t rank_run_compare(const trace *t, const rank_run *many, const rank_run *one, double *largest_out);

/* For argp parsers: --tolerance. */
error_t repro_parse_tolerance(const char *text, double *tolerance_out);

#endif
