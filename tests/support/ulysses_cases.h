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
    X(kv_heads_fewer_than_ranks)                                                                                       \
    X(unpadded_shards_of_any_length)                                                                                   \
    X(overlap_parts_change_nothing)                                                                                    \
    X(replicated_context_enters_once)                                                                                  \
    X(pages_of_fp8)                                                                                                    \
    X(exchange_memory_grows)                                                                                           \
    X(slow_rank_is_waited_for)                                                                                         \
    /* refusals */                                                                                                     \
    X(per_rank_seq_len_is_refused)                                                                                     \
    X(refusal_of_one_rank_is_everybodys)                                                                               \
    X(ranks_that_differ_are_refused)                                                                                   \
    X(ranks_with_other_histories_are_refused)                                                                          \
    X(unpadded_rows_are_checked)                                                                                       \
    X(replicated_context_is_checked)                                                                                   \
    /* contexts */                                                                                                     \
    X(two_contexts_live_side_by_side)                                                                                  \
    X(contexts_differ_in_sharding_and_path)                                                                            \
    X(exchange_says_which_and_why)                                                                                     \
    X(wrong_wishes_are_refused)                                                                                        \
    X(uneven_heads_are_refused_at_creation)                                                                            \
    X(configs_that_differ_are_refused)

#define ULYSSES_DECLARE(name) void ulysses_##name(ckv_comm *comm, rank_report *report);
ULYSSES_CASES(ULYSSES_DECLARE)
#undef ULYSSES_DECLARE

#endif
