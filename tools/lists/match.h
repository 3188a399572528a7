/* SPDX-License-Identifier: Apache-2.0 */
/* Does a condition hold for a machine? */
#ifndef CKV_LISTS_MATCH_H
#define CKV_LISTS_MATCH_H

#include "tools/lists/facts.h"
#include "tools/lists/list_file.h"

typedef enum match_result {
    MATCH_YES,
    MATCH_NO,
    MATCH_UNKNOWN,    /* the machine has no such fact */
    MATCH_NOT_NUMBER, /* a range over a fact that is not a number: does not hold */
} match_result;

/* One key. */
match_result match_condition(const list_condition *condition, const fact_set *facts);

/* All keys: NO when one of them does not hold, otherwise UNKNOWN when a fact is missing, otherwise YES. */
match_result match_all(const list_condition *conditions, const fact_set *facts);

/* "ranges.system_gpu_count: this machine has 1, the list asks for gte 4 lte 4" */
void match_explain(FILE *stream, const list_condition *condition, const fact_set *facts);

/* False only when no machine can satisfy both: an empty range, different terms, globs that share no text as far as can
 * be seen (`*h100*` and `*b200*`). */
bool match_compatible(const list_condition *a, const list_condition *b);

#endif
