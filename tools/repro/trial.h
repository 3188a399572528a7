/* SPDX-License-Identifier: Apache-2.0 */
/* One try of a trace: run it on some ranks and say how it fails. */
#ifndef CKV_TOOLS_REPRO_TRIAL_H
#define CKV_TOOLS_REPRO_TRIAL_H

#include "tools/explain/mistakes.h"
#include "tools/trace/session.h"

typedef enum failure_kind {
    FAILURE_NONE,
    FAILURE_OUTPUT,   /* what the ranks computed is not the exact window */
    FAILURE_EXPECTED, /* what the model recorded is not */
    FAILURE_STATUS,   /* a call fails, and not for what the trace asks */
    FAILURE_CRASH,    /* the process ended */
    FAILURE_REFUSED,  /* the trace cannot be run */
    FAILURE_LATE,     /* no end within the limit */
    FAILURE_UNKNOWN,  /* it could not be tried: memory, processes */
} failure_kind;

/* The failure of a run: the first one, or among forwards whose recorded output is wrong the first with the mistake that
 * most of them fit. Plain memory, which travels between processes. */
typedef struct failure {
    failure_kind kind;
    size_t op, forward; /* that is wrong, as an op and counted among forwards */
    session_difference worst;
    double tolerance;
    bool is_padding; /* the worst row is one */
    bool is_nan;
    ckv_status status;
    int signal; /* of a crash; 0: it exited */
    problem why;
    bool is_known; /* a known mistake fits what was recorded: */
    char class[16];
    char what[200];
    bool has_distance; /* as in a mistake */
    int64_t distance;
    double residual;
} failure;

typedef struct trial {
    int ranks;
    ckv_comm *comm;   /* NULL: threads, in a process of their own so that a crash is a result too */
    double tolerance; /* as in session_config */
    const char *exchange;
    double limit_s;      /* of a process of its own */
    const failure *like; /* NULL, or a known mistake, with which the last forward's expected output is made first */
} trial;

failure trial_run(const trial *c, trace *t);

/* Only make the expected output of the last forward. ERROR_INVALID when the mistake changes nothing there. */
ckv_status trial_imitate(const trial *c, trace *t, problem *why);

/* One line: what is wrong, where, and which mistake fits. */
void failure_print(const failure *f);

#endif
