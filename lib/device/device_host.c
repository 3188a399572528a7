/* SPDX-License-Identifier: Apache-2.0 */
/* The host as a device: row 0 of the registry, always built, and the oracle for the others. */
#include "kernels/causal_layout/causal_layout.h"
#include "kernels/copy_kv_slots/copy_kv_slots.h"
#include "kernels/exchange_heads/exchange_heads.h"
#include "kernels/exchange_peers/exchange_peers.h"
#include "kernels/qk_norm_rope/qk_norm_rope.h"
#include "kernels/rotate_rows/rotate_rows.h"
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "kernels/zero_row_tails/zero_row_tails.h"
#include "lib/device/device.h"
#include "lib/support/error.h"

#include <stdlib.h>
#include <string.h>

enum { HOST_ALIGNMENT = 64 }; /* a cache line; rows of SIMD loads start aligned */

static ckv_status host_alloc(size_t bytes, void **memory_out)
{
    int64_t taken = bytes <= INT64_MAX ? ckv_device_allocation_bytes(&ckv_device_host, (int64_t)bytes) : -1;
    void *memory = taken > 0 ? aligned_alloc(HOST_ALIGNMENT, (size_t)taken) : NULL;
    if (memory == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "host: cannot allocate %zu bytes", bytes);
    *memory_out = memory;
    return CKV_OK;
}

static void host_free(void *memory)
{
    free(memory);
}

static ckv_status host_copy(void *destination, const void *source, size_t bytes, ckv_stream stream)
{
    (void)stream;
    if (bytes > 0)
        memcpy(destination, source, bytes);
    return CKV_OK;
}

static ckv_status host_fill(void *destination, int byte, size_t bytes, ckv_stream stream)
{
    (void)stream;
    if (bytes > 0)
        memset(destination, byte, bytes);
    return CKV_OK;
}

static ckv_status host_fill_2d(void *destination, size_t pitch_bytes, int byte, size_t width_bytes, size_t height,
                               ckv_stream stream)
{
    for (size_t row = 0; row < height; row++)
        host_fill((char *)destination + row * pitch_bytes, byte, width_bytes, stream);
    return CKV_OK;
}

static ckv_status host_copy_2d(void *destination, size_t destination_pitch_bytes, const void *source,
                               size_t source_pitch_bytes, size_t width_bytes, size_t height, ckv_stream stream)
{
    for (size_t row = 0; row < height; row++)
        host_copy((char *)destination + row * destination_pitch_bytes, (const char *)source + row * source_pitch_bytes,
                  width_bytes, stream);
    return CKV_OK;
}

/* Everything has happened when a call returns: streams and events are nothing. */
static ckv_status host_stream_create(ckv_stream *stream_out)
{
    *stream_out = NULL;
    return CKV_OK;
}

static void host_stream_destroy(ckv_stream stream)
{
    (void)stream;
}

static ckv_status host_event_create(ckv_event *event_out)
{
    *event_out = NULL;
    return CKV_OK;
}

static void host_event_destroy(ckv_event event)
{
    (void)event;
}

static ckv_status host_event(ckv_event event, ckv_stream stream)
{
    (void)event;
    (void)stream;
    return CKV_OK;
}

static ckv_status host_event_done(ckv_event event, int *done_out)
{
    (void)event;
    *done_out = 1;
    return CKV_OK;
}

static ckv_status host_wait(ckv_stream stream)
{
    (void)stream;
    return CKV_OK;
}

static ckv_status host_is_capturing(ckv_stream stream, int *capturing_out)
{
    (void)stream;
    *capturing_out = 0;
    return CKV_OK;
}

static ckv_status host_probe(void)
{
    return CKV_OK;
}

const ckv_device ckv_device_host = {
    .name = "host",
    .host_addressable = 1,
    .probe = host_probe,
    .granularity_bytes = HOST_ALIGNMENT,
    .alloc = host_alloc,
    .free = host_free,
    .upload = host_copy,
    .download = host_copy,
    .fill = host_fill,
    .fill_2d = host_fill_2d,
    .wait = host_wait,
    .is_capturing = host_is_capturing,
    .alloc_host = host_alloc,
    .free_host = host_free,
    .copy_2d = host_copy_2d,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event,
    .event_wait = host_event,
    .event_done = host_event_done,
    .rotate_rows = ckv_rotate_rows_host,
    .scatter_kv_slots = ckv_scatter_kv_slots_host,
    .causal_layout = ckv_causal_layout_host,
    .copy_kv_slots = ckv_copy_kv_slots_host,
    .exchange_heads = ckv_exchange_heads_host,
    .exchange_peers = ckv_exchange_peers_host,
    .qk_norm_rope = ckv_qk_norm_rope_host,
    .zero_row_tails = ckv_zero_row_tails_host,
};
