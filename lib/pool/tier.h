/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of equal slots, on the device or on its side of the host, with a guard slot behind the last one that belongs
 * to nobody. Who holds which slot is the caller's business. */
#ifndef CKV_LIB_POOL_TIER_H
#define CKV_LIB_POOL_TIER_H

#include "lib/device/device.h"

typedef struct ckv_tier {
    const ckv_device *device;
    int on_host;
    char *memory; /* NULL without slots */
    int64_t slots, slot_bytes;
} ckv_tier;

/* Zeroed slots; waits. ERROR_INVALID when the bytes do not fit 64 bits, ERROR_MEMORY. */
ckv_status ckv_tier_create(const ckv_device *device, int on_host, int64_t slots, int64_t slot_bytes,
                           ckv_tier *tier_out);

/* Accepts a zeroed tier. */
void ckv_tier_free(ckv_tier *tier);

static inline char *ckv_tier_slot(const ckv_tier *tier, int64_t slot)
{
    return tier->memory + slot * tier->slot_bytes;
}

#endif
