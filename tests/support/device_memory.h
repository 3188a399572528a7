/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays on the device a case runs on, moved explicitly, so that a case is the same for host and GPU. */
#ifndef CKV_TESTS_SUPPORT_DEVICE_MEMORY_H
#define CKV_TESTS_SUPPORT_DEVICE_MEMORY_H

#include "lib/device/device.h"
#include "tests/support/case.h"

#include <ckv/cache.h>

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

/* Member by member: padding between them may differ. */
static inline int same_state(const ckv_cache_state *a, const ckv_cache_state *b)
{
    return a->is_open == b->is_open && a->pin_tokens == b->pin_tokens && a->window_tokens == b->window_tokens &&
           a->max_staged_tokens == b->max_staged_tokens && a->fixed_tokens == b->fixed_tokens &&
           a->history_tokens == b->history_tokens && a->staging_offset == b->staging_offset &&
           a->committed_tokens == b->committed_tokens && a->resident_tokens == b->resident_tokens;
}

#endif
