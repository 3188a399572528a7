/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded attention over the self and threads transports, on both paths of the exchange. */
#include "tests/support/case.h"

#include "tests/support/ulysses_cases.h"
#include "tests/support/ulysses_host_cases.h"
#include "tests/support/ulysses_party.h"

enum { DEADLINE_MS = 20000 };

static void run(rank_body body)
{
    static const char *const exchanges[] = {"sendrecv", "fused"};
    static const int ranks[] = {1, 2, 3, 4, 8};
    party_uses.exchange = exchanges[0];
    const char *failure = ranks_run_on_self(body);
    for (int i = 0; i < 2 && failure[0] == '\0'; i++) {
        party_uses.exchange = exchanges[i];
        for (int j = 0; j < 5 && failure[0] == '\0'; j++)
            failure = ranks_run_on_threads(ranks[j], ranks_patience_ms(DEADLINE_MS), body);
    }
    if (failure[0] != '\0')
        fail_msg("exchange %s: %s", party_uses.exchange, failure);
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run(ulysses_##name);                                                                                           \
    }
ULYSSES_CASES(DRIVE)
ULYSSES_HOST_CASES(DRIVE)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {ULYSSES_CASES(ROW) ULYSSES_HOST_CASES(ROW)};

CKV_TEST_MAIN("ulysses_threads", cases)
