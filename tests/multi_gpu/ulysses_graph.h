/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded attention in CUDA graphs; bodies for transports whose exchange can be captured. */
#ifndef CKV_TESTS_MULTI_GPU_ULYSSES_GRAPH_H
#define CKV_TESTS_MULTI_GPU_ULYSSES_GRAPH_H

#include "tests/support/ranks.h"

#define ULYSSES_GRAPH_CASES(X)                                                                                         \
    X(captured_forward_replays_across_commits)                                                                         \
    X(capture_before_the_first_forward_is_refused)

#define ULYSSES_GRAPH_DECLARE(name) void ulysses_##name(ckv_comm *comm, rank_report *report);
ULYSSES_GRAPH_CASES(ULYSSES_GRAPH_DECLARE)
#undef ULYSSES_GRAPH_DECLARE

#endif
