/* SPDX-License-Identifier: Apache-2.0 */
/* The shape, the forward and the rollout that cases start from when those do not matter. */
#ifndef CKV_TESTS_SUPPORT_ULYSSES_USUAL_H
#define CKV_TESTS_SUPPORT_ULYSSES_USUAL_H

#include "tests/support/ulysses_party.h"

static inline party_shape small_shape(int ranks)
{
    return (party_shape){
        .q_heads = 2 * ranks,
        .kv_heads = ranks,
        .head_dim = 8,
        .dtype = CKV_FP32,
        .tokens_per_page = 4,
        .pin_tokens = 3,
        .window_tokens = 14,
        .max_staged_tokens = 44,
        .sizes = {11, 44, 43},
    };
}

/* Padded on 2, 3, 4 and 8 ranks. */
static const party_forward usual = {.layer = 1, .seq_len = 11, .causal_block_size = 11, .padding = PADDING_RANDOM};

static inline void still_works(party *p, rank_report *report)
{
    RANK_STEP(report, party_run(p, report, &usual));
    RANK_STEP(report, party_commit(p, report, 11));
}

/* A rollout with something in it. */
static inline void open_usual(party *p, rank_report *report, ckv_comm *comm)
{
    party_shape shape = small_shape(ckv_comm_size(comm));
    RANK_STEP(report, party_open(p, report, comm, &shape));
    still_works(p, report);
}

#endif
