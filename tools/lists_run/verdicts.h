/* SPDX-License-Identifier: Apache-2.0 */
/* What a case of a run came to: one attempt, several, and against what its list expects. */
#ifndef CKV_LISTS_RUN_VERDICTS_H
#define CKV_LISTS_RUN_VERDICTS_H

#include "tools/harness/verdict.h"
#include "tools/lists/entry.h"

typedef enum run_verdict {
    RUN_PASS,
    RUN_SKIP,
    RUN_XFAIL, /* failed, as the list or a waiver expects */
    RUN_FAIL,
    RUN_CRASH,
    RUN_HANG,
    RUN_FLAKY,          /* not the same in every attempt */
    RUN_XPASS,          /* passed, although it is expected to fail */
    RUN_INFRASTRUCTURE, /* could not be judged: the machinery failed */
    RUN_NUM_VERDICTS
} run_verdict;

typedef size_t run_tally[RUN_NUM_VERDICTS];

/* "pass", "skip", "xfail", "fail", ... */
const char *run_verdict_name(run_verdict verdict);

/* Of one attempt. */
run_verdict run_verdict_of(const harness_verdict *verdict);

/* Of all attempts of a case. */
run_verdict run_verdict_combine(const run_tally attempts);

/* SKIP does not come here: such a case is not run. Infrastructure is never expected. */
run_verdict run_verdict_expect(run_verdict verdict, entry_verdict expected);

/* The run is not green with this. */
bool run_verdict_is_red(run_verdict verdict);

/* 0 nothing is red; 1 cases failed, crashed, were flaky or passed unexpectedly; 4 cases only hung; 3 only the machinery
 * failed. */
int run_exit_code(const run_tally verdicts);

#endif
