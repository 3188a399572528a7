/* SPDX-License-Identifier: Apache-2.0 */
/* What the library asks of a device: memory, copies, and the cache's kernels. One static const table each; a device
 * that is not built has no row. Everything that takes a stream enqueues on it and does not wait, except where it says
 * so. */
#ifndef CKV_LIB_DEVICE_H
#define CKV_LIB_DEVICE_H

#include <ckv/types.h>

struct ckv_rotate_rows_params;
struct ckv_scatter_kv_slots_params;
struct ckv_causal_layout_params;
struct ckv_copy_kv_slots_params;
struct ckv_exchange_heads_params;
struct ckv_exchange_peers_params;
struct ckv_qk_norm_rope_params;
struct ckv_zero_row_tails_params;

/* A CUDA event (the type behind cudaEvent_t); NULL, and ignored, where streams are. */
typedef struct CUevent_st *ckv_event;

struct ckv_device {
    const char *name;
    int host_addressable; /* the host may read and write this memory */

    ckv_status (*probe)(void); /* OK, or ERROR_UNSUPPORTED with the reason: can this machine run it? */

    /* Memory. An allocation takes the requested bytes rounded up to the granularity, no more and no less. alloc leaves
     * contents undefined; ERROR_MEMORY names the bytes. free accepts NULL. */
    int64_t granularity_bytes;
    ckv_status (*alloc)(size_t bytes, void **memory_out);
    void (*free)(void *memory);

    /* upload and download may be called with any host memory; when upload returns, `source` may be reused. */
    ckv_status (*upload)(void *destination, const void *source, size_t bytes, ckv_stream stream);
    ckv_status (*download)(void *destination, const void *source, size_t bytes, ckv_stream stream); /* waits */
    ckv_status (*fill)(void *destination, int byte, size_t bytes, ckv_stream stream);
    ckv_status (*fill_2d)(void *destination, size_t pitch_bytes, int byte, size_t width_bytes, size_t height,
                          ckv_stream stream);
    ckv_status (*wait)(ckv_stream stream);

    /* Whether what is enqueued on the stream now is recorded into a graph instead of run. */
    ckv_status (*is_capturing)(ckv_stream stream, int *capturing_out);

    /* Host memory that copies to and from the device need not wait for; NULL is freed too. ERROR_MEMORY. */
    ckv_status (*alloc_host)(size_t bytes, void **memory_out);
    void (*free_host)(void *memory);

    /* `height` rows of `width_bytes` between memory of alloc and alloc_host, in any direction; no overlap. */
    ckv_status (*copy_2d)(void *destination, size_t destination_pitch_bytes, const void *source,
                          size_t source_pitch_bytes, size_t width_bytes, size_t height, ckv_stream stream);

    /* Streams of the library's own, and points in them: event_record marks what is enqueued so far, event_wait keeps
     * the stream from going on before the point marked last. */
    ckv_status (*stream_create)(ckv_stream *stream_out);
    void (*stream_destroy)(ckv_stream stream);
    ckv_status (*event_create)(ckv_event *event_out);
    void (*event_destroy)(ckv_event event);
    ckv_status (*event_record)(ckv_event event, ckv_stream stream);
    ckv_status (*event_wait)(ckv_event event, ckv_stream stream);
    ckv_status (*event_done)(ckv_event event, int *done_out); /* has the stream come to the point? does not wait */

    /* Kernels; kernels/<op>/<op>.h has the contract of each. */
    ckv_status (*rotate_rows)(const struct ckv_rotate_rows_params *params, ckv_stream stream);
    ckv_status (*scatter_kv_slots)(const struct ckv_scatter_kv_slots_params *params, ckv_stream stream);
    ckv_status (*causal_layout)(const struct ckv_causal_layout_params *params, ckv_stream stream);
    ckv_status (*copy_kv_slots)(const struct ckv_copy_kv_slots_params *params, ckv_stream stream);
    ckv_status (*exchange_heads)(const struct ckv_exchange_heads_params *params, ckv_stream stream);
    ckv_status (*exchange_peers)(const struct ckv_exchange_peers_params *params, ckv_stream stream); /* or NULL */
    ckv_status (*qk_norm_rope)(const struct ckv_qk_norm_rope_params *params, ckv_stream stream);
    ckv_status (*zero_row_tails)(const struct ckv_zero_row_tails_params *params, ckv_stream stream);
};

/* What alloc(bytes) takes of the device's memory; -1 when that does not fit 64 bits. */
int64_t ckv_device_allocation_bytes(const ckv_device *device, int64_t bytes);

/* What is enqueued on `stream` from now on waits for what is on `other` by now; nothing when they are one. */
CKV_NODISCARD ckv_status ckv_device_stream_follow(const ckv_device *device, ckv_stream stream, ckv_stream other);

extern const ckv_device ckv_device_host;
extern const ckv_device ckv_device_strict;
extern const ckv_device ckv_device_cuda; /* in builds with CUDA */

#endif
