/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_kv_slots: write K/V vectors of one layer into pool slots. Entry e reads token source_index[e] (or e) once and
 * writes it to destination[e] and, if given, destination2[e], for every head: byte by byte, or with scales as e4m3. */
#ifndef CKV_KERNELS_SCATTER_KV_SLOTS_H
#define CKV_KERNELS_SCATTER_KV_SLOTS_H

#include "kernels/common/slot_check.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_scatter_kv_slots_params {
    void *k_plane; /* slot address: plane + slot / tokens_per_page * page_stride + slot % tokens_per_page * slot_stride
                      + head * head_stride, in bytes */
    void *v_plane;
    int64_t page_stride, head_stride, slot_stride;
    int64_t tokens_per_page; /* a power of two */
    int64_t num_slots;       /* valid slots are 0..num_slots-1 */
    int64_t kv_heads;
    int64_t row_bytes;                     /* one head vector in a slot */
    ckv_dtype source_dtype;                /* of k and v, where there are scales */
    const float *k_scales, *v_scales;      /* NULL: slots hold what k and v hold; else [kv_heads] on the device: slots
                                              hold the e4m3 codes of value * (1 / scale), saturated */
    const void *k;                         /* NULL: leave K alone */
    const void *v;                         /* NULL: leave V alone */
    int64_t k_token_stride, k_head_stride; /* bytes, any sign, zero allowed */
    int64_t v_token_stride, v_head_stride;
    int64_t entries;
    const int64_t *source_index; /* [entries] token of each entry; NULL: 0, 1, 2, ... */
    const int64_t *destination;  /* [entries] slot ids; no two entries write one slot with different values */
    const int64_t *destination2; /* [entries] or NULL */
    ckv_slot_check check;        /* all NULL: unchecked */
} ckv_scatter_kv_slots_params;

/* The host twin refuses a slot out of range (ERROR_INVALID, named with its entry) before anything is written; a GPU
 * skips it, and reports it when checked. */
ckv_status ckv_scatter_kv_slots_host(const ckv_scatter_kv_slots_params *params, ckv_stream stream);
ckv_status ckv_scatter_kv_slots_cuda(const ckv_scatter_kv_slots_params *params, ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
