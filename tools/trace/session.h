/* SPDX-License-Identifier: Apache-2.0 */
/* A rollout that checks itself: a cache, Ulysses attention over it and the exact-window reference, driven in step on
 * one rank or many. Behind `ckv replay` and `ckv demo`.
 *
 * Every call is collective over the communicator, and every rank hands in the same full tensors, in host memory; a rank
 * copies its part to the session's device and what that computed back. When a call fails it fails on all ranks with the
 * same status and cause, and the session can only be destroyed. */
#ifndef CKV_TOOLS_SESSION_H
#define CKV_TOOLS_SESSION_H

#include "tools/trace/problem.h"
#include "tools/trace/trace.h"

#include <ckv/cache.h>
#include <ckv/comm.h>
#include <ckv/reference.h>
#include <stdbool.h>

typedef struct session session;

typedef struct session_config {
    trace_config model;
    int64_t pool_tokens;
    const char *device;   /* NULL: host */
    const char *backend;  /* NULL: auto */
    const char *exchange; /* as in ckv_ulysses_config */
    double tolerance;     /* largest difference that is right; negative: session_default_tolerance of each forward */
    int64_t sample_rows;  /* rows per causal block compared with the reference; 0: all */
    bool measure_page_aligned; /* also find the error of a window rounded down to a page */
    bool gather_output;
} session_config;

/* Tolerance -1, everything else zero. */
session_config session_config_default(void);

/* Rounding the output alone costs at most half a unit in the last place of the largest |value|, and an implementation
 * also rounds on the way there: fp16 and bf16 get four such halves (2^-9 and 2^-6 of the largest value), fp32 gets 1e-4
 * of it, for sums over thousands of keys in float. */
double session_default_tolerance(ckv_dtype dtype, double largest_value);

/* `comm` is borrowed, must outlive the session, and with several ranks moves memory of the device. ERROR_INVALID,
 * ERROR_UNSUPPORTED (device, backend, exchange, head counts), ERROR_MEMORY, ERROR_COMM, ERROR_TIMEOUT. */
ckv_status session_create(ckv_comm *comm, const session_config *config, session **session_out, problem *why);

/* Accepts NULL and a pointer to NULL; not collective. */
void session_destroy(session **s);

/* As the calls of ckv/cache.h; positions are resident ones. K and V dense, [tokens, kv_heads of all ranks, head_dim].
 */
ckv_status session_open(session *s, const ckv_rollout_config *config, problem *why);
ckv_status session_write_range(session *s, int64_t layer, int64_t start, int64_t tokens, const void *k, const void *v,
                               problem *why);
ckv_status session_zero_values(session *s, int64_t layer, int64_t start, int64_t tokens, problem *why);
ckv_status session_commit(session *s, int64_t tokens, problem *why);
ckv_status session_close(session *s, problem *why);

ckv_cache_state session_state(const session *s);

/* As ckv_ulysses_exchange. */
const char *session_exchange(const session *s, const char **why_not_fused_out);

typedef struct session_forward {
    int64_t layer;
    int64_t rows; /* of the tensors; rows at and past seq_len are padding */
    int64_t seq_len;
    int64_t causal_block_size; /* 0: one block */
    const void *q;             /* [rows, q_heads, head_dim], dense */
    const void *k, *v;         /* [rows, kv_heads, head_dim], dense */
    const void *expected;      /* NULL, or [rows, q_heads, head_dim]: compared too, padding rows excepted */
} session_forward;

/* The largest difference of one comparison and where it is. NaN against a number counts as infinite. */
typedef struct session_difference {
    double error;
    int64_t row, head, channel;
    int rank; /* computed this head's attention */
    double observed, wanted;
} session_difference;

typedef struct session_result {
    int64_t padded_tokens;     /* rows that ran, over all ranks */
    int64_t causal_block_size; /* as resolved */
    double tolerance;
    session_difference output;   /* what the ranks computed against the exact window */
    session_difference expected; /* the recorded output against the exact window; all zero without one */
    bool output_ok, expected_ok;
    double page_aligned_error;       /* 0 unless measured */
    ckv_key_explanation explanation; /* of the comparison that failed, the first of the two; else CKV_KEY_NONE */
    double seconds;                  /* in attention, exchange and download included; the slowest rank's */
    const void *gathered;            /* NULL, or [rows, q_heads, head_dim]; the session's, until its next forward */
} session_result;

/* Attend, sharded as a sequence-parallel model would: rank r gets rows [r*n, (r+1)*n) with n = ceil(seq_len / ranks).
 * Padding rows come from the tensors as far as they have them; the rest are NaN. One rank keeps all the padding there
 * is. A wrong result is not a failure. */
ckv_status session_run_forward(session *s, const session_forward *forward, session_result *result_out, problem *why);

/* Agree on a verdict: every rank returns the status of the lowest rank that failed, and its cause. Collective. */
ckv_status session_agree(ckv_comm *comm, ckv_status status, problem *why);

#endif
