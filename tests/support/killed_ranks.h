/* SPDX-License-Identifier: Apache-2.0 */
/* A rank whose process is killed around an exchange; bodies for ranks_run_on_processes, at two ranks or more. The last
 * rank dies. The others have to learn of it in time: the call that needs that rank fails, or ckv_comm_async_error
 * tells; what they have on their stream ends; nothing works from then on, and says so at once. */
#ifndef CKV_TESTS_SUPPORT_KILLED_RANKS_H
#define CKV_TESTS_SUPPORT_KILLED_RANKS_H

#include "tests/support/ranks.h"

/* A driver sets it before the ranks start. */
typedef struct killed_setup {
    const char *exchange; /* "sendrecv" or "fused" */
    int watched;          /* the transport sees processes end: ERROR_COMM with the process and what it did last.
                             Otherwise what runs into the deadline is ERROR_TIMEOUT with the rank. */
} killed_setup;

extern killed_setup killed_uses;

enum { KILLED_PATIENCE_MS = 5000 };

#define KILLED_RANKS(X)                                                                                                \
    X(before_its_part)                                                                                                 \
    X(while_others_wait_for_it)                                                                                        \
    X(while_it_waits_for_others)                                                                                       \
    X(afterwards)                                                                                                      \
    X(at_any_moment)                                                                                                   \
    X(with_many_enqueued)                                                                                              \
    X(while_others_agree)

#define KILLED_DECLARE(name) void killed_##name(ckv_comm *comm, rank_report *report);
KILLED_RANKS(KILLED_DECLARE)
#undef KILLED_DECLARE

/* Nobody dies: exchanges work, here and now. */
void killed_nobody(ckv_comm *comm, rank_report *report);

#endif
