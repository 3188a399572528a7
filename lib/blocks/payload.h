/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind the blocks: pools of slots in two tiers, and the copies between slots. */
#ifndef CKV_BLOCKS_PAYLOAD_H
#define CKV_BLOCKS_PAYLOAD_H

#include <ckv/blocks.h>

struct window_state;
typedef struct payload payload;

/* The first `rows` token rows of one slot into another one of the same window. */
typedef struct payload_copy {
    int32_t window;
    int32_t from_tier, from_slot;
    int32_t to_tier, to_slot;
    int32_t rows; /* 0: all */
} payload_copy;

/* Memory for every block of the windows. Waits. */
ckv_status ckv_payload_create(const ckv_device *device, const struct window_state *windows, int32_t num_windows,
                              int64_t row_bytes, int64_t tokens_per_block, payload **payload_out);
void ckv_payload_destroy(payload **p); /* waits for copies */

/* Decide a copy; the caller's lock orders the calls. */
void ckv_payload_add(payload *p, payload_copy copy);

/* Number of the last copy decided; 0 without memory. Under the caller's lock. */
uint64_t ckv_payload_ticket(const payload *p);

/* Enqueue every copy up to the ticket, in the order they were decided. Not under the caller's lock. */
ckv_status ckv_payload_run(payload *p, uint64_t ticket);

#endif
