/* SPDX-License-Identifier: Apache-2.0 */
/* What became of a case: from how its job ended and from what its ranks recorded (tests/support/record.h). */
#ifndef CKV_HARNESS_VERDICT_H
#define CKV_HARNESS_VERDICT_H

#include "tools/harness/process.h"
#include <stdbool.h>

/* Exit codes of a case, of a test program and of ckv_case_launch. */
enum {
    HARNESS_PASS = 0,
    HARNESS_FAIL = 1,
    HARNESS_USAGE = 2,
    HARNESS_ERROR = 3, /* the machinery failed, not the case */
    HARNESS_HANG = 4,
    HARNESS_SKIP = 77,
};

typedef struct harness_verdict {
    int code;
    bool crashed;      /* a failure by a signal that nobody of the harness sent */
    char reason[1024]; /* one line; "" for a plain pass */
    char seed[24];     /* "" when no rank came that far */
} harness_verdict;

/* "PASS", "FAIL", "ERROR", "HANG", "SKIP". */
const char *harness_verdict_name(int code);

/* Judge the records `record_path`.rankN of `ranks` ranks. The reason names the rank that was the cause: the one with
 * the earliest failure or fatal signal, not those that died of it. */
harness_verdict harness_judge(const char *record_path, int ranks, const harness_outcome *outcome);

/* Judge a program that keeps no records: by its exit code. */
harness_verdict harness_judge_program(const harness_outcome *outcome);

/* Some rank has recorded a failure or a fatal signal: the end is near, or overdue. */
bool harness_records_doomed(const char *record_path, int ranks);

#endif
