/* SPDX-License-Identifier: Apache-2.0 */
/* The pure model of a rollout: sizes of a geometry, and what a commit does to the resident tokens. Integers only. */
#ifndef CKV_LAYOUT_GEOMETRY_H
#define CKV_LAYOUT_GEOMETRY_H

#include "lib/layout/commit_plan.h"

#include <ckv/cache.h>
#include <stdbool.h>

/* Most tokens, pages or slots the library handles; products of two still fit 64 bits, page ids fit 32. */
#define CKV_MAX_TOKENS ((int64_t)1 << 40)

/* A validated, normalised geometry: block sizes distinct and ascending. pin_tokens is not part of it. */
typedef struct ckv_geometry {
    int64_t tokens_per_page;
    int64_t window_tokens;
    int64_t max_staged_tokens;
    int32_t num_sizes;
    int64_t sizes[CKV_MAX_CAUSAL_BLOCK_SIZES];
} ckv_geometry;

/* ERROR_INVALID names the value. */
ckv_status ckv_geometry_init(const ckv_rollout_config *config, int64_t tokens_per_page, ckv_geometry *geometry_out);

bool ckv_geometry_equal(const ckv_geometry *a, const ckv_geometry *b);

/* Index of a block size, or -1. */
int32_t ckv_geometry_find_size(const ckv_geometry *geometry, int64_t causal_block_size);

/* floor(max_staged / size) */
int64_t ckv_geometry_num_blocks(const ckv_geometry *geometry, int32_t size);

/* Private pages of one block of that size: three partial pages at most, plus the block. */
int64_t ckv_geometry_private_pages(const ckv_geometry *geometry, int32_t size);

/* Private pages of all blocks of all sizes. ERROR_INVALID on overflow. */
ckv_status ckv_geometry_total_private_pages(const ckv_geometry *geometry, int64_t *pages_out);

/* Pages for resident tokens: pin + window + max_staged, and a spare for stale tokens and an unaligned fixed end. */
int64_t ckv_geometry_resident_pages(const ckv_geometry *geometry, int64_t pin_tokens);

/* What a commit of `tokens` does. ERROR_INVALID with the numbers. */
ckv_status ckv_commit_plan_make(const ckv_geometry *geometry, int64_t pin_tokens, const ckv_progress *before,
                                int64_t tokens, ckv_commit_plan *plan_out);

#endif
