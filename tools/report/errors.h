/* SPDX-License-Identifier: Apache-2.0 */
/* The exact window of every forward of a trace, and how far outputs are off from it, by row and head. */
#ifndef CKV_TOOLS_REPORT_ERRORS_H
#define CKV_TOOLS_REPORT_ERRORS_H

#include "tools/report/walk.h"

#include <ckv/reference.h>

typedef struct exact {
    const trace *trace;
    ckv_reference *reference;
    double *out; /* [seq_len, q_heads, head_dim] of the last forward */
} exact;

/* exact_destroy in any case. */
ckv_status exact_create(exact *e, const trace *t, problem *why);
void exact_destroy(exact *e);

/* Run one op; a forward without an output only stages. `w` stands before it and says which tokens lie where. */
ckv_status exact_op(exact *e, const walk *w, const trace_op *op, bool with_output, problem *why);

/* Largest differences of an output, [rows, q_heads, head_dim] in the trace's dtype, from the last forward: by row and
 * head, [rows, q_heads]. Padding rows should be zero. */
void exact_compare(const exact *e, const trace_op *op, const void *output, double *errors_out);

/* For the heat map, at most `max_cells` cells: {"rows", "heads" (of a cell), "levels"}, one character a cell, row after
 * row, for the largest error in it. '0' is none; a step is a factor of sqrt(2); from 'L' on it is more than the
 * tolerance; 'z' is a million times that, or no number. */
json_t *heat_map(const trace_op *op, int64_t heads, const double *errors, double tolerance, int64_t max_cells);

#endif
