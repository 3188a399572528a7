/* SPDX-License-Identifier: Apache-2.0 */
/* waives.txt: cases that are expected to fail or must not run, for a reason and until a day. One a line:
 *     [when(condition)] case SKIP|XFAIL|UNSTABLE (reference) until YYYY-MM-DD by OWNER [# comment]
 * `case` is one test or a glob (`cache.*`); `condition` is that of a list in YAML's flow form:
 *     when(wildcards: {gpu: '*b200*'}, ranges: {system_gpu_count: {gte: 4}}) */
#ifndef CKV_LISTS_WAIVERS_H
#define CKV_LISTS_WAIVERS_H

#include "tools/lists/list_file.h"
#include "tools/lists/names.h"

#include <time.h>

/* Days since 1970-01-01. */
typedef long waiver_day;

typedef struct waiver {
    const char *target;
    entry_verdict verdict;
    const char *reference;
    waiver_day until; /* last day on which it counts */
    const char *until_text;
    const char *owner;
    list_condition *conditions;
    text_position at;
    struct waiver *next;
} waiver;

/* A date of the calendar, "YYYY-MM-DD". */
bool waiver_parse_day(const char *text, waiver_day *day_out);
waiver_day waiver_day_of(time_t now);

/* Faults are counted in reader->log; what could be read is returned in the order of lines. */
waiver *waivers_read(const list_reader *reader, const text_source *source);

/* Counts as errors: expired, naming no test, the same case twice for one machine. Warns of those that end soon. */
void waivers_check(const list_reader *reader, const text_source *source, const waiver *waivers, const name_table *tests,
                   waiver_day today);

#endif
