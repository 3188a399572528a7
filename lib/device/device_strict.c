/* SPDX-License-Identifier: Apache-2.0 */
/* The host device with memory that only its own operations may touch: every block is its own pages, without access
 * outside an operation. Code that forgets a copy crashes here as it would with a GPU's memory. */
#include "lib/device/device.h"
#include "lib/support/error.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE_BYTES = 4096 };

typedef struct block {
    struct block *next;
    char *memory;
    size_t bytes;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while anything is accessible */
static block *blocks;

static ckv_status set_access(const block *b, int access)
{
    if (mprotect(b->memory, b->bytes, access) != 0)
        return ckv_fail(CKV_ERROR_DEVICE, "strict: mprotect of %zu bytes failed", b->bytes);
    return CKV_OK;
}

/* Allow or forbid access to the block that holds `address`; NULL: to all of them. */
static ckv_status set_access_of(const void *address, int access)
{
    for (const block *b = blocks; b != NULL; b = b->next) {
        if (address == NULL)
            CKV_TRY(set_access(b, access));
        else if ((const char *)address >= b->memory && (const char *)address < b->memory + b->bytes)
            return set_access(b, access);
    }
    return CKV_OK;
}

/* Run `expression` with that memory accessible. */
#define WITH_ACCESS(address, expression)                                                                               \
    do {                                                                                                               \
        pthread_mutex_lock(&lock);                                                                                     \
        ckv_status status_ = set_access_of(address, PROT_READ | PROT_WRITE);                                           \
        if (status_ == CKV_OK)                                                                                         \
            status_ = (expression);                                                                                    \
        ckv_status closed_ = set_access_of(address, PROT_NONE);                                                        \
        pthread_mutex_unlock(&lock);                                                                                   \
        return status_ != CKV_OK ? status_ : closed_;                                                                  \
    } while (0)

static ckv_status strict_alloc(size_t bytes, void **memory_out)
{
    int64_t taken = bytes <= INT64_MAX ? ckv_device_allocation_bytes(&ckv_device_strict, (int64_t)bytes) : -1;
    block *b = malloc(sizeof *b);
    void *memory =
        taken > 0 && b != NULL ? mmap(NULL, (size_t)taken, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        free(b);
        return ckv_fail(CKV_ERROR_MEMORY, "strict: cannot allocate %zu bytes", bytes);
    }
    pthread_mutex_lock(&lock);
    *b = (block){.next = blocks, .memory = memory, .bytes = (size_t)taken};
    blocks = b;
    pthread_mutex_unlock(&lock);
    *memory_out = memory;
    return CKV_OK;
}

static void strict_free(void *memory)
{
    pthread_mutex_lock(&lock);
    for (block **link = &blocks; memory != NULL && *link != NULL; link = &(*link)->next) {
        block *b = *link;
        if (b->memory != memory)
            continue;
        *link = b->next;
        munmap(b->memory, b->bytes);
        free(b);
        break;
    }
    pthread_mutex_unlock(&lock);
}

static ckv_status strict_upload(void *destination, const void *source, size_t bytes, ckv_stream stream)
{
    WITH_ACCESS(destination, ckv_device_host.upload(destination, source, bytes, stream));
}

static ckv_status strict_download(void *destination, const void *source, size_t bytes, ckv_stream stream)
{
    WITH_ACCESS(source, ckv_device_host.download(destination, source, bytes, stream));
}

static ckv_status strict_fill(void *destination, int byte, size_t bytes, ckv_stream stream)
{
    WITH_ACCESS(destination, ckv_device_host.fill(destination, byte, bytes, stream));
}

static ckv_status strict_fill_2d(void *destination, size_t pitch_bytes, int byte, size_t width_bytes, size_t height,
                                 ckv_stream stream)
{
    WITH_ACCESS(destination, ckv_device_host.fill_2d(destination, pitch_bytes, byte, width_bytes, height, stream));
}

static ckv_status strict_copy_2d(void *destination, size_t destination_pitch_bytes, const void *source,
                                 size_t source_pitch_bytes, size_t width_bytes, size_t height, ckv_stream stream)
{
    WITH_ACCESS(NULL, ckv_device_host.copy_2d(destination, destination_pitch_bytes, source, source_pitch_bytes,
                                              width_bytes, height, stream));
}

/* Host memory, streams and events are the host's: what is to be found here is a device address in the wrong hands. */
static ckv_status strict_alloc_host(size_t bytes, void **memory_out)
{
    return ckv_device_host.alloc_host(bytes, memory_out);
}

static void strict_free_host(void *memory)
{
    ckv_device_host.free_host(memory);
}

static ckv_status strict_stream_create(ckv_stream *stream_out)
{
    return ckv_device_host.stream_create(stream_out);
}

static void strict_stream_destroy(ckv_stream stream)
{
    ckv_device_host.stream_destroy(stream);
}

static ckv_status strict_event_create(ckv_event *event_out)
{
    return ckv_device_host.event_create(event_out);
}

static void strict_event_destroy(ckv_event event)
{
    ckv_device_host.event_destroy(event);
}

static ckv_status strict_event(ckv_event event, ckv_stream stream)
{
    return ckv_device_host.event_record(event, stream);
}

static ckv_status strict_event_done(ckv_event event, int *done_out)
{
    return ckv_device_host.event_done(event, done_out);
}

static ckv_status strict_wait(ckv_stream stream)
{
    return ckv_device_host.wait(stream);
}

static ckv_status strict_is_capturing(ckv_stream stream, int *capturing_out)
{
    return ckv_device_host.is_capturing(stream, capturing_out);
}

static ckv_status strict_probe(void)
{
    return CKV_OK;
}

#define STRICT_KERNEL(op)                                                                                              \
    static ckv_status strict_##op(const struct ckv_##op##_params *params, ckv_stream stream)                           \
    {                                                                                                                  \
        WITH_ACCESS(NULL, ckv_device_host.op(params, stream));                                                         \
    }

STRICT_KERNEL(rotate_rows)
STRICT_KERNEL(scatter_kv_slots)
STRICT_KERNEL(causal_layout)
STRICT_KERNEL(copy_kv_slots)
STRICT_KERNEL(exchange_heads)
STRICT_KERNEL(qk_norm_rope)
STRICT_KERNEL(zero_row_tails)

const ckv_device ckv_device_strict = {
    .name = "strict",
    .host_addressable = 0,
    .probe = strict_probe,
    .granularity_bytes = PAGE_BYTES,
    .alloc = strict_alloc,
    .free = strict_free,
    .upload = strict_upload,
    .download = strict_download,
    .fill = strict_fill,
    .fill_2d = strict_fill_2d,
    .wait = strict_wait,
    .is_capturing = strict_is_capturing,
    .alloc_host = strict_alloc_host,
    .free_host = strict_free_host,
    .copy_2d = strict_copy_2d,
    .stream_create = strict_stream_create,
    .stream_destroy = strict_stream_destroy,
    .event_create = strict_event_create,
    .event_destroy = strict_event_destroy,
    .event_record = strict_event,
    .event_wait = strict_event,
    .event_done = strict_event_done,
    .rotate_rows = strict_rotate_rows,
    .scatter_kv_slots = strict_scatter_kv_slots,
    .causal_layout = strict_causal_layout,
    .copy_kv_slots = strict_copy_kv_slots,
    .exchange_heads = strict_exchange_heads,
    .qk_norm_rope = strict_qk_norm_rope,
    .zero_row_tails = strict_zero_row_tails,
};
