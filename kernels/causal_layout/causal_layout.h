/* SPDX-License-Identifier: Apache-2.0 */
/* causal_layout: write every kernel-facing tensor of a geometry from the page table, in place. Reads the table after
 * its rotation; lib/layout/row_plan.h says what a row holds. All pointers are device memory. */
#ifndef CKV_KERNELS_CAUSAL_LAYOUT_H
#define CKV_KERNELS_CAUSAL_LAYOUT_H

#include <ckv/cache.h>

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
    int64_t *committed_private_source;    /* [n, 3*(P-1)] slot, for copy_kv_slots; -1 where unused */
    int64_t *committed_private_destination; /* [n, 3*(P-1)] slot; -1 where unused */
} ckv_causal_layout_size;

typedef struct ckv_causal_layout_params {
    int64_t tokens_per_page;
    int64_t fixed_tokens;
    int64_t staging_offset;
    int64_t window_tokens;
    int64_t max_staged_tokens;
    int64_t resident_pages;
    int64_t dropped_pages; /* by the rotation just done; 0: none, and refill_tokens is 0 */
    int64_t refill_tokens;
    int32_t guard_page;
    const int32_t *table;        /* [resident_pages]; read */
    int64_t *staged_slots;       /* [max_staged] */
    int64_t *refill_source;      /* [P-1], for copy_kv_slots; -1 where unused */
    int64_t *refill_destination; /* [P-1] */
    int32_t num_sizes;
    ckv_causal_layout_size sizes[CKV_MAX_CAUSAL_BLOCK_SIZES];
} ckv_causal_layout_params;

ckv_status ckv_causal_layout_host(const ckv_causal_layout_params *params, ckv_stream stream);

#endif
