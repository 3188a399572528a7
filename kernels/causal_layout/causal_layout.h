/* SPDX-License-Identifier: Apache-2.0 */
/* causal_layout: advance a rollout by one commit, in one launch: write every kernel-facing tensor of its geometry in
 * place, and copy what the committed tokens need copied: the fixed region's tail when its page changed, and what
 * private pages hold of committed tokens. Where the rollout stands is device memory that the launch reads and advances,
 * so the arguments of a commit do not depend on its history and a captured commit replays. lib/layout/row_plan.h says
 * what a row holds, lib/layout/commit_plan.h what a commit drops. All pointers are device memory. */
#ifndef CKV_KERNELS_CAUSAL_LAYOUT_H
#define CKV_KERNELS_CAUSAL_LAYOUT_H

#include "kernels/common/slot_check.h"
#include "lib/layout/commit_plan.h"

#include <ckv/cache.h>
#include <ckv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Progress and table exist twice. A launch reads the current ones and writes the others, which are current afterwards:
 * no block of a grid waits for another, and none reads what another has overwritten.
 *
 * Which are current follows from `arrivals`. Every block of a grid of B reads it once, then adds one, modulo 2B: from
 * launch to launch it is 0, B, 0, ..., and a block that reads it inside a launch finds less than B more than at the
 * launch's begin. So progress[arrivals >= B] is current for the whole launch, and progress[arrivals != 0] between
 * launches. All launches over a state have the same B. */
typedef struct ckv_layout_state {
    int64_t pin_tokens;
    int64_t resident_pages;
    ckv_progress progress[2];
    uint32_t arrivals;
    uint32_t blocks; /* of the last launch's grid, for whoever looks: B */
} ckv_layout_state;

/* 0 or 1: which progress and which of the tables are current, between launches. */
static inline int32_t ckv_layout_current(const ckv_layout_state *state)
{
    return state->arrivals != 0;
}

/* Tensors of one causal block size. n = num_blocks, b = block_size, P = tokens_per_page. */
typedef struct ckv_causal_layout_size {
    int64_t block_size;
    int64_t num_blocks;
    int64_t private_pages;                /* of one block */
    int64_t row_pages;                    /* entries of a row */
    const int32_t *private_page_ids;      /* [n, private_pages]; read */
    int32_t *rows;                        /* [n, row_pages] */
    int32_t *kv_block_offsets;            /* [n, 2, row_pages] */
    int32_t *seq_len_kv;                  /* [n] */
    int64_t *own_slots;                   /* [n * b] */
    int64_t *current_private_source;      /* [n, 2*(P-1)] token of this forward, for scatter_kv_slots */
    int64_t *current_private_destination; /* [n, 2*(P-1)] slot; entries to spare repeat the block's first token, home */
} ckv_causal_layout_size;

typedef struct ckv_causal_layout_params {
    int64_t commit_tokens; /* at most max_staged more than the state has still to pin; 0: only write the tensors */
    int64_t tokens_per_page;
    int64_t window_tokens;
    int64_t max_staged_tokens;
    int32_t guard_page;
    ckv_layout_state *state;
    int32_t *tables; /* [2, table_pages]; the first resident_pages of each are used */
    int64_t table_pages;
    int64_t *staged_slots; /* [max_staged] */
    ckv_pool_view pool;
    int64_t layers, kv_heads;
    int64_t row_bytes;    /* one head vector */
    ckv_slot_check check; /* fault NULL: unchecked. Of the copies; ckv_slot_fault.entry counts them from the refill's */
    int32_t num_sizes;
    ckv_causal_layout_size sizes[CKV_MAX_CAUSAL_BLOCK_SIZES];
} ckv_causal_layout_params;

/* A copy from or to a slot outside the pool: the host twin refuses the commit (ERROR_INVALID, named with its entry)
 * before anything is written; a GPU skips the copy, and reports it when checked. */
ckv_status ckv_causal_layout_host(const ckv_causal_layout_params *params, ckv_stream stream);
ckv_status ckv_causal_layout_cuda(const ckv_causal_layout_params *params, ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
