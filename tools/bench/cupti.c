/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/cupti.h"

#include "lib/support/error.h"

#if CKV_HAVE_CUPTI
#include <cupti.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 1 << 20 };

static struct {
    void *library;
    CUptiResult (*enable)(CUpti_ActivityKind);
    CUptiResult (*disable)(CUpti_ActivityKind);
    CUptiResult (*flush)(uint32_t);
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult (*callbacks)(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
} cupti;

static cupti_span span; /* written by CUPTI's callbacks, which run inside flush() */

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_MEMSET};

/* POSIX lets an object pointer from dlsym carry a function; C does not let a cast say so. */
static bool load(const char *symbol, void *function_out)
{
    void *address = dlsym(cupti.library, symbol);
    memcpy(function_out, &address, sizeof address);
    return address != NULL;
}

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *max_records)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *bytes = *buffer == NULL ? 0 : BUFFER_BYTES;
    *max_records = 0;
}

static void add(uint64_t start, uint64_t end)
{
    if (start == 0 || end == 0) /* not recorded */
        return;
    if (span.activities == 0 || start < span.first_ns)
        span.first_ns = start;
    if (span.activities == 0 || end > span.last_ns)
        span.last_ns = end;
    span.activities++;
}

/* Where every version of the three records has its times. */
_Static_assert(offsetof(CUpti_ActivityMemcpy4, start) == offsetof(CUpti_ActivityKernel4, start) &&
                   offsetof(CUpti_ActivityMemset2, start) == offsetof(CUpti_ActivityKernel4, start) &&
                   offsetof(CUpti_ActivityMemcpy4, end) == offsetof(CUpti_ActivityKernel4, end) &&
                   offsetof(CUpti_ActivityMemset2, end) == offsetof(CUpti_ActivityKernel4, end),
               "a kernel's times stand elsewhere than a copy's");

static void read_record(const CUpti_Activity *record)
{
    uint64_t start, end;
    memcpy(&start, (const char *)record + offsetof(CUpti_ActivityKernel4, start), sizeof start);
    memcpy(&end, (const char *)record + offsetof(CUpti_ActivityKernel4, end), sizeof end);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (record->kind == kinds[i])
            add(start, end);
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)context, (void)stream, (void)size;
    CUpti_Activity *record = NULL;
    while (valid > 0 && cupti.next(buffer, valid, &record) == CUPTI_SUCCESS)
        read_record(record);
    free(buffer);
}

const char *cupti_load(void)
{
    if (cupti.library != NULL)
        return NULL;
    cupti.library = dlopen(CKV_CUPTI_NAME, RTLD_NOW | RTLD_LOCAL);
    if (cupti.library == NULL)
        cupti.library = dlopen(CKV_CUPTI_LIBRARY, RTLD_NOW | RTLD_LOCAL); /* where it was when this was built */
    if (cupti.library == NULL)
        return CKV_CUPTI_NAME " is not found";
    if (load("cuptiActivityEnable", &cupti.enable) && load("cuptiActivityDisable", &cupti.disable) &&
        load("cuptiActivityFlushAll", &cupti.flush) && load("cuptiActivityGetNextRecord", &cupti.next) &&
        load("cuptiActivityRegisterCallbacks", &cupti.callbacks) &&
        cupti.callbacks(give_buffer, take_buffer) == CUPTI_SUCCESS && cupti_trace(true) == CKV_OK &&
        cupti_trace(false) == CKV_OK)
        return NULL;
    dlclose(cupti.library);
    cupti.library = NULL;
    return CKV_CUPTI_NAME " does not record on this machine";
}

ckv_status cupti_trace(bool on)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        CUptiResult error = (on ? cupti.enable : cupti.disable)(kinds[i]);
        if (error != CUPTI_SUCCESS)
            return ckv_fail(CKV_ERROR_DEVICE, "CUPTI cannot %s tracing: error %d", on ? "begin" : "end", (int)error);
    }
    return CKV_OK;
}

static ckv_status flush(void)
{
    CUptiResult error = cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    return error == CUPTI_SUCCESS ? CKV_OK
                                  : ckv_fail(CKV_ERROR_DEVICE, "CUPTI hands out no records: error %d", (int)error);
}

ckv_status cupti_begin(void)
{
    CKV_TRY(flush());
    span = (cupti_span){0};
    return CKV_OK;
}

ckv_status cupti_end(cupti_span *span_out)
{
    CKV_TRY(flush());
    *span_out = span;
    return CKV_OK;
}
#else
const char *cupti_load(void)
{
    return "this build has no CUPTI";
}

ckv_status cupti_trace(bool on)
{
    (void)on;
    return ckv_fail(CKV_ERROR_UNSUPPORTED, "this build has no CUPTI");
}

ckv_status cupti_begin(void)
{
    return cupti_trace(true);
}

ckv_status cupti_end(cupti_span *span_out)
{
    (void)span_out;
    return cupti_trace(true);
}
#endif
