/* SPDX-License-Identifier: Apache-2.0 */
/* copy_kv_slots: copy pool slots to pool slots, all layers, K and V, all heads. An entry with a negative source or
 * destination is skipped. No entry's destination is another entry's source. */
#ifndef CKV_KERNELS_COPY_KV_SLOTS_H
#define CKV_KERNELS_COPY_KV_SLOTS_H

#include <ckv/pool.h>

typedef struct ckv_copy_kv_slots_params {
    ckv_pool_view pool;
    int64_t tokens_per_page;
    int64_t layers, kv_heads;
    int64_t row_bytes; /* one head vector */
    int64_t entries;
    const int64_t *source;      /* [entries] slot ids */
    const int64_t *destination; /* [entries] slot ids */
} ckv_copy_kv_slots_params;

/* Host twin: ERROR_INVALID for a slot out of range (named with its entry), before anything is written. */
ckv_status ckv_copy_kv_slots_host(const ckv_copy_kv_slots_params *params, ckv_stream stream);

#endif
