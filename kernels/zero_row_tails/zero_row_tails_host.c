/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/zero_row_tails/zero_row_tails.h"

#include <string.h>

ckv_status ckv_zero_row_tails_host(const ckv_zero_row_tails_params *params, ckv_stream stream)
{
    (void)stream;
    for (int64_t block = 0; block < params->num_blocks; block++) {
        int64_t last = params->seq_len_kv[block] - 1; /* key */
        int64_t page = params->rows[block * params->row_pages + last / params->tokens_per_page];
        for (int64_t slot = last % params->tokens_per_page + 1; slot < params->tokens_per_page; slot++)
            for (int64_t head = 0; head < params->kv_heads; head++)
                memset((char *)params->v_plane + page * params->page_stride + head * params->head_stride +
                           slot * params->slot_stride,
                       0, (size_t)params->row_bytes);
    }
    return CKV_OK;
}
