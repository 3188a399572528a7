/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a forward read exactly its window: some rows of every head against the reference in double precision. */
#ifndef CKV_TOOLS_BENCH_CHECK_H
#define CKV_TOOLS_BENCH_CHECK_H

#include "tools/bench/workload.h"

typedef struct bench_check
    bench_check; /* what one layer's output should be, for the next chunk in blocks of one size */

typedef struct bench_verdict {
    double error, tolerance; /* over all ranks; the error is infinite where a value is not a number */
    bool ok;
} bench_verdict;

/* `checked` is an index into the workload's checked layers. Takes seconds at a large geometry, on every CPU. */
ckv_status bench_check_create(const bench_workload *workload, int64_t checked, int64_t block, bench_check **check_out);
void bench_check_destroy(bench_check **check); /* accepts NULL and a pointer to NULL */

/* The largest error of a window that begins at the start of its first page. As slow. */
ckv_status bench_check_page_aligned(const bench_check *check, double *error_out);

/* Run `work`, which must write `out`, [rows, q_heads, head_dim] on the device; compare what was written. */
ckv_status bench_check_run(const bench_check *check, bench_work work, void *argument, void *out,
                           bench_verdict *verdict_out);

/* Every checked layer of a forward in blocks of `block`, by a backend: the worst. */
ckv_status bench_check_forward(const bench_workload *workload, int64_t block, const char *backend,
                               bench_verdict *verdict_out);

/* The row says how far off the result is; failed when that is too far. Returns verdict->ok. */
bool bench_verdict_to_row(const bench_verdict *verdict, bench_row *row);

#endif
