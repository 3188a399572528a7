/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/copy_kv_slots/copy_kv_slots.h"

#include "lib/support/error.h"

#include <inttypes.h>
#include <string.h>

static int64_t slot_offset(const ckv_copy_kv_slots_params *params, int64_t slot)
{
    return slot / params->tokens_per_page * params->pool.page_stride +
           slot % params->tokens_per_page * params->pool.slot_stride;
}

static void copy_slot(const ckv_copy_kv_slots_params *params, int64_t source, int64_t destination)
{
    int64_t from = slot_offset(params, source);
    int64_t to = slot_offset(params, destination);
    for (int64_t layer = 0; layer < params->layers; layer++) {
        for (int64_t kv = 0; kv < 2; kv++) {
            char *plane = (char *)params->pool.base + layer * params->pool.layer_stride + kv * params->pool.kv_stride;
            for (int64_t head = 0; head < params->kv_heads; head++, plane += params->pool.head_stride)
                memcpy(plane + to, plane + from, (size_t)params->row_bytes);
        }
    }
}

ckv_status ckv_copy_kv_slots_host(const ckv_copy_kv_slots_params *params, ckv_stream stream)
{
    (void)stream;
    int64_t num_slots = params->pool.total_pages * params->tokens_per_page;
    for (int64_t i = 0; i < params->entries; i++)
        if (params->source[i] >= num_slots || params->destination[i] >= num_slots)
            return ckv_fail(CKV_ERROR_INVALID,
                            "copy_kv_slots: entry %" PRId64 " copies slot %" PRId64 " to %" PRId64
                            "; the pool has %" PRId64 " slots",
                            i, params->source[i], params->destination[i], num_slots);
    const ckv_slot_list list = {params->entries, params->source, params->destination, 0, 1};
    CKV_TRY(ckv_slot_check_host("copy_kv_slots", &params->check, &list, 1));
    for (int64_t i = 0; i < params->entries; i++)
        if (params->source[i] >= 0 && params->destination[i] >= 0)
            copy_slot(params, params->source[i], params->destination[i]);
    return CKV_OK;
}
