/* SPDX-License-Identifier: Apache-2.0 */
/* zero_row_tails: make V zero in the slots of a row's last page that lie past its keys. For attention kernels that work
 * in tiles and multiply the V of keys past the end with weights of zero: whatever those slots hold, NaN included, then
 * has no influence. The last page of a row is the block's own, so nobody else reads these slots. */
#ifndef CKV_KERNELS_ZERO_ROW_TAILS_H
#define CKV_KERNELS_ZERO_ROW_TAILS_H

#include <ckv/types.h>

typedef struct ckv_zero_row_tails_params {
    void *v_plane; /* of one layer: page p, head h, slot s at + p * page_stride + h * head_stride + s * slot_stride,
                      bytes */
    int64_t page_stride, head_stride, slot_stride;
    int64_t tokens_per_page; /* a power of two */
    int64_t kv_heads;
    int64_t row_bytes; /* one head vector */
    int64_t num_blocks;
    int64_t row_pages;
    const int32_t *rows;       /* [num_blocks, row_pages] */
    const int32_t *seq_len_kv; /* [num_blocks], each at least 1 */
} ckv_zero_row_tails_params;

/* No blocks: nothing to do, no launch. */
ckv_status ckv_zero_row_tails_host(const ckv_zero_row_tails_params *params, ckv_stream stream);
ckv_status ckv_zero_row_tails_cuda(const ckv_zero_row_tails_params *params, ckv_stream stream);

#endif
