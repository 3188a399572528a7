/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of devices, and that strict memory is what it claims. */
#include "lib/device/device.h"
#include "tests/support/case.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void known_names_are_found_or_refused_with_a_reason(void **state)
{
    (void)state;
    const ckv_device *device = NULL;
    static const char *const always[] = {"host", "strict"};
    for (int i = 0; i < 2; i++) {
        assert_ok(ckv_device_find(always[i], &device));
        assert_string_equal(ckv_device_name(device), always[i]);
    }
    const ckv_device *cuda = NULL;
    ckv_status status = ckv_device_find("cuda", &cuda);
    if (status == CKV_OK) {
        assert_string_equal(ckv_device_name(cuda), "cuda");
    } else { /* not built, no driver or no GPU */
        assert_int_equal(status, CKV_ERROR_UNSUPPORTED);
        assert_non_null(strstr(ckv_last_error(), "cuda"));
        assert_null(cuda);
    }
    assert_status(ckv_device_find("gpu", &device), CKV_ERROR_INVALID);
    assert_status(ckv_device_find(NULL, &device), CKV_ERROR_INVALID);
}

static void allocations_are_whole_units(void **state)
{
    (void)state;
    static const char *const names[] = {"host", "strict"};
    for (int i = 0; i < 2; i++) {
        const ckv_device *device;
        assert_ok(ckv_device_find(names[i], &device));
        int64_t unit = device->granularity_bytes;
        assert_int_equal(ckv_device_allocation_bytes(device, 0), unit);
        assert_int_equal(ckv_device_allocation_bytes(device, 1), unit);
        assert_int_equal(ckv_device_allocation_bytes(device, unit), unit);
        assert_int_equal(ckv_device_allocation_bytes(device, unit + 1), 2 * unit);
        assert_int_equal(ckv_device_allocation_bytes(device, INT64_MAX), -1);
        void *memory = NULL;
        assert_status(device->alloc(SIZE_MAX, &memory), CKV_ERROR_MEMORY);
        assert_status(device->alloc(SIZE_MAX / 4, &memory), CKV_ERROR_MEMORY);
        assert_null(memory);
        device->free(NULL);
    }
}

/* The signal that ends a child which reads `address`; 0 when none does. */
static int signal_of_reading(const volatile char *address)
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        _exit(*address == 0 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void strict_memory_crashes_outside_operations(void **state)
{
    (void)state;
    const ckv_device *strict = &ckv_device_strict;
    char pattern[5000], back[sizeof pattern];
    memset(pattern, 7, sizeof pattern);
    void *memory;
    assert_ok(strict->alloc(sizeof pattern, &memory));
    assert_int_not_equal(signal_of_reading(memory), 0);
    assert_ok(strict->upload(memory, pattern, sizeof pattern, NULL));
    assert_ok(strict->fill(memory, 7, 10, NULL));
    assert_int_not_equal(signal_of_reading((char *)memory + sizeof pattern - 1), 0);
    assert_ok(strict->download(back, memory, sizeof back, NULL));
    assert_memory_equal(back, pattern, sizeof back);
    assert_int_not_equal(signal_of_reading(memory), 0);
    strict->free(memory);
}

static const ckv_test_case cases[] = {
    CKV_CASE(known_names_are_found_or_refused_with_a_reason),
    CKV_CASE(allocations_are_whole_units),
    CKV_CASE(strict_memory_crashes_outside_operations),
};

CKV_TEST_MAIN("device", cases)
