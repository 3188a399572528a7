/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays on the device a case runs on, moved explicitly, so that a case is the same for host and GPU. */
#ifndef CKV_TESTS_SUPPORT_DEVICE_MEMORY_H
#define CKV_TESTS_SUPPORT_DEVICE_MEMORY_H

#include "lib/device/device.h"
#include "tests/support/case.h"

#include <string.h>

/* The device of the case; a case for a device that this machine lacks is skipped, with the reason. */
static inline const ckv_device *test_device(void)
{
    const ckv_device *device;
    ckv_status status = ckv_device_find(ckv_test_device(), &device);
    if (status == CKV_ERROR_UNSUPPORTED)
        ckv_test_skip("%s", ckv_last_error());
    assert_ok(status);
    return device;
}

/* Kernels are host twins, which check their lists before anything is written and refuse at once. */
static inline int test_kernels_refuse(void)
{
    return strcmp(ckv_device_name(test_device()), "cuda") != 0;
}

/* A device copy of host bytes; to be freed with test_device()->free. */
static inline void *test_upload(const void *source, size_t bytes)
{
    void *memory;
    assert_ok(test_device()->alloc(bytes, &memory));
    assert_ok(test_device()->upload(memory, source, bytes, NULL));
    return memory;
}

static inline void test_download(void *destination, const void *source, size_t bytes)
{
    assert_ok(test_device()->download(destination, source, bytes, NULL));
}

#endif
