/* SPDX-License-Identifier: Apache-2.0 */
/* When kernels, copies and fills ran on the GPU, by CUPTI, which is loaded when it is there. One tracer a process. */
#ifndef CKV_TOOLS_BENCH_CUPTI_H
#define CKV_TOOLS_BENCH_CUPTI_H

#include <ckv/status.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct cupti_span {
    uint64_t first_ns, last_ns; /* start of the first activity, end of the last */
    int64_t activities;
} cupti_span;

/* NULL, or why there is none. */
const char *cupti_load(void);

/* Record or not; not at first. ERROR_DEVICE. */
ckv_status cupti_trace(bool on);

/* Forget what was recorded until now, and what was recorded since then. Nothing may run on the device at either. */
ckv_status cupti_begin(void);
ckv_status cupti_end(cupti_span *span_out);

#endif
