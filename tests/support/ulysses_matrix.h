/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks x tokens x heads x K/V heads x what padding holds x which chunk is padded x contexts x ..., as rows chosen so
 * that any two values that can meet do meet. P ranks are compared with one rank. The rows are the same everywhere; a
 * communicator runs those of its size. */
#ifndef CKV_TESTS_SUPPORT_ULYSSES_MATRIX_H
#define CKV_TESTS_SUPPORT_ULYSSES_MATRIX_H

#include "tests/support/ranks.h"

/* uneven_heads_are_refused: every combination of heads that does not go into the ranks.
 * every_heads_and_length: all that do, with every length; takes a quarter of a minute. */
#define ULYSSES_MATRIX(X)                                                                                              \
    X(any_two_values_meet)                                                                                             \
    X(uneven_heads_are_refused)                                                                                        \
    X(every_heads_and_length)

#define ULYSSES_DECLARE(name) void matrix_##name(ckv_comm *comm, rank_report *report);
ULYSSES_MATRIX(ULYSSES_DECLARE)
#undef ULYSSES_DECLARE

/* Every combination of ranks, heads, lengths, padding, padded chunks and contexts: some 7400 rows; takes minutes. */
void matrix_every_combination(ckv_comm *comm, rank_report *report);

#endif
