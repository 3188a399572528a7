/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"

#include "lib/support/dtype.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <string.h>

static ckv_status check_slots(const ckv_scatter_kv_slots_params *params, const int64_t *slots)
{
    for (int64_t i = 0; slots != NULL && i < params->entries; i++)
        if (slots[i] < 0 || slots[i] >= params->num_slots)
            return ckv_fail(CKV_ERROR_INVALID,
                            "scatter_kv_slots: entry %" PRId64 " writes slot %" PRId64 "; slots are 0 to %" PRId64, i,
                            slots[i], params->num_slots - 1);
    return CKV_OK;
}

static void quantise(ckv_dtype dtype, const void *source, float scale, int64_t count, uint8_t *codes)
{
    const float factor = 1 / scale;
    for (int64_t i = 0; i < count; i++) {
        float value;
        ckv_convert_to_float(dtype, (const char *)source + i * (int64_t)ckv_dtype_bytes(dtype), 1, &value);
        codes[i] = ckv_float_to_e4m3(value * factor);
    }
}

static void write_vector(const ckv_scatter_kv_slots_params *params, void *plane, int64_t slot, const char *source,
                         int64_t source_head_stride, const float *scales)
{
    char *destination = (char *)plane + slot / params->tokens_per_page * params->page_stride +
                        slot % params->tokens_per_page * params->slot_stride;
    for (int64_t head = 0; head < params->kv_heads; head++, destination += params->head_stride)
        if (scales == NULL)
            memcpy(destination, source + head * source_head_stride, (size_t)params->row_bytes);
        else
            quantise(params->source_dtype, source + head * source_head_stride, scales[head], params->row_bytes,
                     (uint8_t *)destination);
}

ckv_status ckv_scatter_kv_slots_host(const ckv_scatter_kv_slots_params *params, ckv_stream stream)
{
    (void)stream;
    CKV_TRY(check_slots(params, params->destination));
    CKV_TRY(check_slots(params, params->destination2));
    const ckv_slot_list lists[] = {{params->entries, params->source_index, params->destination, 0, 0},
                                   {params->entries, params->source_index, params->destination2, 1, 0}};
    CKV_TRY(ckv_slot_check_host("scatter_kv_slots", &params->check, lists, params->destination2 != NULL ? 2 : 1));
    for (int64_t i = 0; i < params->entries; i++) {
        int64_t token = params->source_index != NULL ? params->source_index[i] : i;
        const char *k = params->k != NULL ? (const char *)params->k + token * params->k_token_stride : NULL;
        const char *v = params->v != NULL ? (const char *)params->v + token * params->v_token_stride : NULL;
        const int64_t *destinations[] = {params->destination, params->destination2};
        for (int d = 0; d < 2; d++) {
            if (destinations[d] == NULL)
                continue;
            if (k != NULL)
                write_vector(params, params->k_plane, destinations[d][i], k, params->k_head_stride, params->k_scales);
            if (v != NULL)
                write_vector(params, params->v_plane, destinations[d][i], v, params->v_head_stride, params->v_scales);
        }
    }
    return CKV_OK;
}
