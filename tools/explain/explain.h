/* SPDX-License-Identifier: Apache-2.0 */
/* What `ckv explain` says of one row of a forward, as numbers and as text. */
#ifndef CKV_TOOLS_EXPLAIN_H
#define CKV_TOOLS_EXPLAIN_H

#include "tools/explain/mistakes.h"

#include <stdbool.h>
#include <stdio.h>

/* An output of the whole forward: [rows, q_heads, head_dim] in the trace's dtype, or NULL; and what to call it. */
typedef struct explain_output {
    const char *name; /* "recorded" */
    const void *values;
} explain_output;

typedef struct explain_verdict {
    diagnosis found; /* its window in any case, the rest if there is an output */
    double tolerance;
    bool is_wrong;
    const mistake *fitting;      /* the best of the mistakes, if it fits; else NULL */
    history_keys extra, missing; /* what it reads and should not; what it should read and does not */
} explain_verdict;

/* Locate the row's keys and, where there is an output, compare it. A history explains one row of a causal block only.
 * Everything lives in the history's memory. As diagnose, and ERROR_INTERNAL when the cache holds not the window. */
ckv_status explain_row(const history *h, int64_t row, const explain_output *output, explain_verdict *verdict_out,
                       problem *why);

void explain_print(FILE *out, const history *h, int64_t row, const explain_output *output,
                   const explain_verdict *verdict);

#endif
