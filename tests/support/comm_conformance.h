/* SPDX-License-Identifier: Apache-2.0 */
/* What every transport has to do, written once. A driver makes communicators and runs each body on every rank. */
#ifndef CKV_TESTS_SUPPORT_COMM_CONFORMANCE_H
#define CKV_TESTS_SUPPORT_COMM_CONFORMANCE_H

#include "tests/support/ranks.h"

#define COMM_CONFORMANCE(X)                                                                                            \
    X(knows_rank_and_size)                                                                                             \
    X(agree_passes_when_all_pass)                                                                                      \
    X(agree_takes_the_lowest_refusing_rank)                                                                            \
    X(agree_names_facts_that_differ)                                                                                   \
    X(refusal_comes_before_facts)                                                                                      \
    X(barrier_waits_for_the_last)                                                                                      \
    X(every_byte_reaches_its_rank)                                                                                     \
    X(one_group_carries_tensors_of_any_size)                                                                           \
    X(long_messages_arrive_whole)                                                                                      \
    X(all_gather_keeps_rank_order)                                                                                     \
    X(many_operations_stay_in_step)                                                                                    \
    X(records_the_last_operation)

#define COMM_CONFORMANCE_DECLARE(name) void conform_##name(ckv_comm *comm, rank_report *report);
COMM_CONFORMANCE(COMM_CONFORMANCE_DECLARE)
#undef COMM_CONFORMANCE_DECLARE

/* These need a communicator of their own, made with COMM_SHORT_MS, and two ranks or more: the last rank stays away from
 * the second operation. Afterwards the communicator is of no more use. */
enum { COMM_SHORT_MS = 1000 };

void conform_agree_times_out(ckv_comm *comm, rank_report *report);
void conform_all_to_all_times_out(ckv_comm *comm, rank_report *report);

#endif
