/* SPDX-License-Identifier: Apache-2.0 */
/* copy_kv_slots: copy pool slots to pool slots, all layers, K and V, all heads. An entry with a negative source or
 * destination is skipped. No entry's destination is another entry's source. */
#ifndef CKV_KERNELS_COPY_KV_SLOTS_H
#define CKV_KERNELS_COPY_KV_SLOTS_H

#include "kernels/common/slot_check.h"

#include <ckv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_copy_kv_slots_params {
    ckv_pool_view pool;
    int64_t tokens_per_page;
    int64_t layers, kv_heads;
    int64_t row_bytes; /* one head vector */
    int64_t entries;
    const int64_t *source;      /* [entries] slot ids */
    const int64_t *destination; /* [entries] slot ids */
    ckv_slot_check check;       /* all NULL: unchecked */
} ckv_copy_kv_slots_params;

/* The host twin refuses a slot out of range (ERROR_INVALID, named with its entry) before anything is written; a GPU
 * skips it, and reports it when checked. */
ckv_status ckv_copy_kv_slots_host(const ckv_copy_kv_slots_params *params, ckv_stream stream);
ckv_status ckv_copy_kv_slots_cuda(const ckv_copy_kv_slots_params *params, ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
