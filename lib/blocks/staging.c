/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/blocks/staging.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <stdlib.h>

enum { LEAST_CAPACITY = 256 };

/* A buffer whose last upload is done, or a new one. */
static ckv_status find_buffer(staging *s, const ckv_device *device, staging_buffer **buffer_out)
{
    for (int64_t i = 0; i < s->count; i++) {
        int done;
        CKV_TRY(device->event_done(s->buffers[i].done, &done));
        if (done) {
            *buffer_out = &s->buffers[i];
            return CKV_OK;
        }
    }
    staging_buffer *buffers = realloc(s->buffers, (size_t)(s->count + 1) * sizeof *buffers);
    if (buffers == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "staging: out of host memory");
    s->buffers = buffers;
    staging_buffer fresh = {.capacity = 0};
    CKV_TRY(device->event_create(&fresh.done));
    s->buffers[s->count] = fresh;
    *buffer_out = &s->buffers[s->count++];
    return CKV_OK;
}

static ckv_status reserve(staging_buffer *buffer, const ckv_device *device, int64_t count)
{
    if (count <= buffer->capacity)
        return CKV_OK;
    int64_t capacity = ckv_max_i64(ckv_max_i64(count, 2 * buffer->capacity), LEAST_CAPACITY);
    void *memory = NULL;
    CKV_TRY(device->alloc_host((size_t)capacity * sizeof *buffer->memory, &memory));
    device->free_host(buffer->memory);
    buffer->memory = memory;
    buffer->capacity = capacity;
    return CKV_OK;
}

ckv_status ckv_staging_upload(staging *s, const ckv_device *device, const int64_t *values, int64_t count,
                              int32_t replacement, int32_t *destination, ckv_stream stream)
{
    staging_buffer *buffer;
    size_t bytes = (size_t)count * sizeof *destination;
    if (count == 0)
        return CKV_OK;
    CKV_TRY(find_buffer(s, device, &buffer));
    CKV_TRY(reserve(buffer, device, count));
    for (int64_t i = 0; i < count; i++)
        buffer->memory[i] = values[i] < 0 ? replacement : (int32_t)values[i];
    CKV_TRY(device->copy_2d(destination, bytes, buffer->memory, bytes, bytes, 1, stream));
    return device->event_record(buffer->done, stream);
}

void ckv_staging_free(staging *s, const ckv_device *device)
{
    for (int64_t i = 0; i < s->count; i++) {
        device->event_destroy(s->buffers[i].done);
        device->free_host(s->buffers[i].memory);
    }
    free(s->buffers);
    *s = (staging){NULL, 0};
}
