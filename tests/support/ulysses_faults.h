/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that fail one another. Each body needs two ranks or more and a communicator of its own with the deadline
 * fault_deadline_ms, which is of no more use afterwards. The last rank is the one that fails; the case ends on all of
 * them within the deadline, and what they hold is given back. */
#ifndef CKV_TESTS_SUPPORT_ULYSSES_FAULTS_H
#define CKV_TESTS_SUPPORT_ULYSSES_FAULTS_H

#include "tests/support/ranks.h"

/* A second; a driver whose ranks may be further apart by themselves sets more, before any rank starts. */
extern int64_t fault_deadline_ms;

#define ULYSSES_FAULTS(X)                                                                                              \
    X(rank_that_stays_away)                                                                                            \
    X(rank_that_leaves)

#define ULYSSES_DECLARE(name) void ulysses_##name(ckv_comm *comm, rank_report *report);
ULYSSES_FAULTS(ULYSSES_DECLARE)
#undef ULYSSES_DECLARE

/* Host memory only: the device's table is tampered with. The second is about the fused exchange. */
void ulysses_rank_that_fails_inside_the_exchange(ckv_comm *comm, rank_report *report);
void ulysses_exchange_whose_peer_comes_too_late(ckv_comm *comm, rank_report *report);

#endif
