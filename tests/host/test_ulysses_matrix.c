/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix of sharded attention over threads; a row says which exchange it takes. */
#include "tests/support/case.h"

#include "tests/support/ulysses_matrix.h"

enum { DEADLINE_MS = 60000 };

static void run(rank_body body)
{
    static const int ranks[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++) {
        const char *failure = ranks_run_on_threads(ranks[i], DEADLINE_MS, body);
        if (failure[0] != '\0')
            fail_msg("%s", failure);
    }
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run(matrix_##name);                                                                                            \
    }
ULYSSES_MATRIX(DRIVE)
DRIVE(every_combination)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {
    ULYSSES_MATRIX(ROW) /* written once */
    CKV_CASE(every_combination),
};

CKV_TEST_MAIN("ulysses_matrix_threads", cases)
