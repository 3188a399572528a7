/* SPDX-License-Identifier: Apache-2.0 */
/* Which forwards a page shows: all, unless that would make it too large to open. */
#ifndef CKV_TOOLS_REPORT_CHOOSE_H
#define CKV_TOOLS_REPORT_CHOOSE_H

#include "tools/repro/rank_run.h"

#include <stdbool.h>

/* `shown_out` has a place for every forward. Wrong ones first, then right ones spread evenly over the commits.
 * How many. */
size_t choose_forwards(const trace *t, const rank_run *run, bool *shown_out);

#endif
