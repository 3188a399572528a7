/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/causal_layout/causal_layout_parts.h"

ckv_status ckv_causal_layout_host(const ckv_causal_layout_params *params, ckv_stream stream)
{
    (void)stream;
    ckv_layout_step step = ckv_layout_step_make(params, params->state->current);
    for (int part = 0; part < CKV_LAYOUT_PARTS; part++) {
        ckv_layout_write_shared(params, &step, part, 0, 1);
        for (int32_t s = 0; s < params->num_sizes; s++)
            for (int64_t block = 0; block < params->sizes[s].num_blocks; block++)
                ckv_layout_write_block(params, &step, &params->sizes[s], block, part, 0, 1);
    }
    params->state->current = 1 - params->state->current;
    return CKV_OK;
}
