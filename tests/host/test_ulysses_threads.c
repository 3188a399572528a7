/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded attention over the self and threads transports. */
#include "tests/support/case.h"

#include "tests/support/ulysses_cases.h"

enum { DEADLINE_MS = 20000 };

static void run(rank_body body)
{
    const char *failure = ranks_run_on_self(body);
    for (int ranks = 1; ranks <= 4 && failure[0] == '\0'; ranks++)
        failure = ranks_run_on_threads(ranks, DEADLINE_MS, body);
    if (failure[0] == '\0')
        failure = ranks_run_on_threads(8, DEADLINE_MS, body);
    if (failure[0] != '\0')
        fail_msg("%s", failure);
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run(ulysses_##name);                                                                                           \
    }
ULYSSES_CASES(DRIVE)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {ULYSSES_CASES(ROW)};

CKV_TEST_MAIN("ulysses_threads", cases)
