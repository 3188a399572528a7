/* SPDX-License-Identifier: Apache-2.0 */
/* The registry: every device name this library has heard of, and the table where the build has one. */
#include "lib/device/device.h"

#include <ckv/qk_norm_rope.h>

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <string.h>

static const struct {
    const char *name;
    const ckv_device *device; /* NULL: not in this build */
} devices[] = {
    {"host", &ckv_device_host},
    {"strict", &ckv_device_strict},
#ifdef CKV_HAVE_CUDA
    {"cuda", &ckv_device_cuda},
#else
    {"cuda", NULL},
#endif
};

ckv_status ckv_device_find(const char *name, const ckv_device **device_out)
{
    if (device_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "device_find: device_out is NULL");
    for (size_t i = 0; name != NULL && i < sizeof devices / sizeof devices[0]; i++) {
        if (strcmp(name, devices[i].name) != 0)
            continue;
        if (devices[i].device == NULL)
            return ckv_fail(CKV_ERROR_UNSUPPORTED, "device '%s' is not in this build; it has: host, strict", name);
        CKV_TRY(devices[i].device->probe());
        *device_out = devices[i].device;
        return CKV_OK;
    }
    return ckv_fail(CKV_ERROR_INVALID, "device '%s' is not one of host, strict, cuda", name ? name : "(null)");
}

static const ckv_device *or_host(const ckv_device *device)
{
    return device != NULL ? device : &ckv_device_host;
}

ckv_status ckv_qk_norm_rope(const ckv_device *device, const ckv_qk_norm_rope_params *params, ckv_stream stream)
{
    if (params == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "qk_norm_rope: params is NULL");
    return or_host(device)->qk_norm_rope(params, stream);
}

ckv_status ckv_device_alloc(const ckv_device *device, size_t bytes, void **memory_out)
{
    if (memory_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "device_alloc: memory_out is NULL");
    return or_host(device)->alloc(bytes, memory_out);
}

void ckv_device_free(const ckv_device *device, void *memory)
{
    or_host(device)->free(memory);
}

static ckv_status check_copy(const char *operation, const void *destination, const void *source, size_t bytes)
{
    if (bytes > 0 && (destination == NULL || source == NULL))
        return ckv_fail(CKV_ERROR_INVALID, "%s of %zu bytes: destination and source must not be NULL", operation,
                        bytes);
    return CKV_OK;
}

ckv_status ckv_device_upload(const ckv_device *device, void *destination, const void *source, size_t bytes,
                             ckv_stream stream)
{
    CKV_TRY(check_copy("device_upload", destination, source, bytes));
    return or_host(device)->upload(destination, source, bytes, stream);
}

ckv_status ckv_device_download(const ckv_device *device, void *destination, const void *source, size_t bytes,
                               ckv_stream stream)
{
    CKV_TRY(check_copy("device_download", destination, source, bytes));
    return or_host(device)->download(destination, source, bytes, stream);
}

const char *ckv_device_name(const ckv_device *device)
{
    return device->name;
}

int64_t ckv_device_allocation_bytes(const ckv_device *device, int64_t bytes)
{
    int64_t units = bytes > 0 ? ckv_ceil_div_i64(bytes, device->granularity_bytes) : 1;
    int64_t taken;
    return ckv_mul_i64(units, device->granularity_bytes, &taken) ? taken : -1;
}

/* An event may go as soon as both sides are enqueued. */
ckv_status ckv_device_stream_follow(const ckv_device *device, ckv_stream stream, ckv_stream other)
{
    ckv_event event = NULL;
    if (stream == other)
        return CKV_OK;
    CKV_TRY(device->event_create(&event));
    ckv_status status = device->event_record(event, other);
    if (status == CKV_OK)
        status = device->event_wait(event, stream);
    device->event_destroy(event);
    return status;
}
