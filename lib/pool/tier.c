/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/pool/tier.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <string.h>

static ckv_status zero(const ckv_tier *tier, size_t bytes)
{
    if (tier->on_host) {
        memset(tier->memory, 0, bytes);
        return CKV_OK;
    }
    CKV_TRY(tier->device->fill(tier->memory, 0, bytes, NULL));
    return tier->device->wait(NULL);
}

ckv_status ckv_tier_create(const ckv_device *device, int on_host, int64_t slots, int64_t slot_bytes, ckv_tier *tier_out)
{
    ckv_tier tier = {device, on_host, NULL, slots, slot_bytes};
    int64_t bytes;
    if (!ckv_mul_i64(slots + 1, slot_bytes, &bytes) || (uint64_t)bytes > SIZE_MAX)
        return ckv_fail(CKV_ERROR_INVALID, "%" PRId64 " slots of %" PRId64 " bytes do not fit 64 bits", slots,
                        slot_bytes);
    if (slots > 0) {
        void *memory = NULL;
        CKV_TRY(on_host ? device->alloc_host((size_t)bytes, &memory) : device->alloc((size_t)bytes, &memory));
        tier.memory = memory;
        ckv_status status = zero(&tier, (size_t)bytes);
        if (status != CKV_OK) {
            ckv_tier_free(&tier);
            return status;
        }
    }
    *tier_out = tier;
    return CKV_OK;
}

void ckv_tier_free(ckv_tier *tier)
{
    if (tier->memory != NULL)
        (tier->on_host ? tier->device->free_host : tier->device->free)(tier->memory);
    *tier = (ckv_tier){0};
}
