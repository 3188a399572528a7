/* SPDX-License-Identifier: Apache-2.0 */
/* Small uploads that nobody waits for: each goes through host memory of its own until it is done, so that as many steps
 * may be in flight as there are. */
#ifndef CKV_BLOCKS_STAGING_H
#define CKV_BLOCKS_STAGING_H

#include "lib/device/device.h"

typedef struct staging_buffer {
    int32_t *memory;
    int64_t capacity;
    ckv_event done;
} staging_buffer;

typedef struct staging {
    staging_buffer *buffers;
    int64_t count;
} staging;

/* Enqueue `count` numbers, `replacement` for negative ones. */
ckv_status ckv_staging_upload(staging *s, const ckv_device *device, const int64_t *values, int64_t count,
                              int32_t replacement, int32_t *destination, ckv_stream stream);

/* Everything must be done. */
void ckv_staging_free(staging *s, const ckv_device *device);

#endif
