/* SPDX-License-Identifier: Apache-2.0 */
/* What sharded attention has to do, written once; each body runs on every rank of any transport. */
#ifndef CKV_TESTS_SUPPORT_ULYSSES_CASES_H
#define CKV_TESTS_SUPPORT_ULYSSES_CASES_H

#include "tests/support/ranks.h"

#define ULYSSES_CASES(X)                                                                                               \
    X(stamps_come_back_to_their_place)                                                                                 \
    X(ranks_equal_one_rank)                                                                                            \
    X(padded_first_chunk_then_sliding_window)                                                                          \
    X(clean_pass_in_unaligned_blocks)                                                                                  \
    X(every_chunk_padded)                                                                                              \
    X(wrong_cache_heads_on_one_rank)                                                                                   \
    X(per_rank_seq_len_is_refused)                                                                                     \
    X(refusal_of_one_rank_is_everybodys)                                                                               \
    X(ranks_that_differ_are_refused)                                                                                   \
    X(ranks_with_other_histories_are_refused)                                                                          \
    X(failure_after_the_exchange_is_agreed)                                                                            \
    X(two_contexts_live_side_by_side)                                                                                  \
    X(uneven_heads_are_refused_at_creation)                                                                            \
    X(configs_that_differ_are_refused)

#define ULYSSES_DECLARE(name) void ulysses_##name(ckv_comm *comm, rank_report *report);
ULYSSES_CASES(ULYSSES_DECLARE)
#undef ULYSSES_DECLARE

#endif
