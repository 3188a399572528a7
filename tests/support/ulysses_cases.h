/* SPDX-License-Identifier: Apache-2.0 */
/* What sharded attention has to do, written once; each body runs on every rank of any transport, on the device, the
 * backend and the exchange of party_uses. */
#ifndef CKV_TESTS_SUPPORT_ULYSSES_CASES_H
#define CKV_TESTS_SUPPORT_ULYSSES_CASES_H

#include "tests/support/ranks.h"

#define ULYSSES_CASES(X)                                                                                               \
    /* the five scenarios that show the bugs of sharded video rollouts */                                              \
    X(rollout_through_rotations)                                                                                       \
    X(clean_pass_in_four_unaligned_blocks)                                                                             \
    X(padded_first_chunk_then_sliding_window)                                                                          \
    X(head_count_guard)                                                                                                \
    X(attention_with_44_then_11_tokens)                                                                                \
    /* results */                                                                                                      \
    X(stamps_come_back_to_their_place)                                                                                 \
    X(ranks_equal_one_rank)                                                                                            \
    X(every_chunk_padded)                                                                                              \
    /* refusals */                                                                                                     \
    X(per_rank_seq_len_is_refused)                                                                                     \
    X(refusal_of_one_rank_is_everybodys)                                                                               \
    X(ranks_that_differ_are_refused)                                                                                   \
    X(ranks_with_other_histories_are_refused)                                                                          \
    /* contexts */                                                                                                     \
    X(two_contexts_live_side_by_side)                                                                                  \
    X(uneven_heads_are_refused_at_creation)                                                                            \
    X(configs_that_differ_are_refused)

#define ULYSSES_DECLARE(name) void ulysses_##name(ckv_comm *comm, rank_report *report);
ULYSSES_CASES(ULYSSES_DECLARE)
#undef ULYSSES_DECLARE

#endif
