/* SPDX-License-Identifier: Apache-2.0 */
/* ckv report: everything there is to show of a trace, and the page that shows it. */
#ifndef CKV_TOOLS_REPORT_H
#define CKV_TOOLS_REPORT_H

#include "tools/repro/rank_run.h"

#include <jansson.h>

/* What the page's script draws (its object is described in page.js): the trace, its replay on `ranks` ranks, each
 * wrong forward explained as `ckv explain` does. A new reference. `name` is what the trace is called. */
ckv_status report_collect(const trace *t, const char *name, const rank_run *run, int64_t ranks, json_t **report_out,
                          problem *why);

/* Write the page whole or not at all. */
bool report_write(const json_t *report, const char *path, problem *why);

/* A number that may be none: JSON has neither NaN nor infinity, and gets their names. */
json_t *report_number(double value);

#endif
