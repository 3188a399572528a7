/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine is seen to reach: nothing faster is expected of an operation than its bytes and operations at these
 * rates. */
#ifndef CKV_TOOLS_BENCH_CEILINGS_H
#define CKV_TOOLS_BENCH_CEILINGS_H

#include "tools/bench/timing.h"

/* 0: could not be measured, and a fact says why. */
typedef struct bench_ceilings {
    double copy_bytes_per_us;     /* read and written, by a copy of large buffers */
    double operations_per_us;     /* a matrix product on a GPU; multiply-adds in AVX2 registers on the host */
    double off_rank_bytes_per_us; /* that leave a rank, by copies into another rank's memory, of all ranks at once */
} bench_ceilings;

/* The fastest run of each, which is a row. Collective. */
ckv_status bench_ceilings_measure(const bench_options *options, bench_timer *timer, bench_results *results,
                                  bench_ceilings *ceilings_out);

#endif
