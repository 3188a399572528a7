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

ckv_status ckv_qk_norm_rope(const ckv_device *device, const ckv_qk_norm_rope_params *params, ckv_stream stream)
{
    return (device != NULL ? device : &ckv_device_host)->qk_norm_rope(params, stream);
}

ckv_status ckv_device_alloc(const ckv_device *device, size_t bytes, void **memory_out)
{
    return device->alloc(bytes, memory_out);
}

void ckv_device_free(const ckv_device *device, void *memory)
{
    device->free(memory);
}

ckv_status ckv_device_upload(const ckv_device *device, void *destination, const void *source, size_t bytes,
                             ckv_stream stream)
{
    return device->upload(destination, source, bytes, stream);
}

ckv_status ckv_device_download(const ckv_device *device, void *destination, const void *source, size_t bytes,
                               ckv_stream stream)
{
    return device->download(destination, source, bytes, stream);
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
