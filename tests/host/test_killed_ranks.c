/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are killed, and ranks that fail one another, each a process of its own; on both paths of the exchange. */
#include "tests/support/case.h"

#include "tests/support/killed_ranks.h"
#include "tests/support/ulysses_faults.h"
#include "tests/support/ulysses_party.h"

static void run(const char *exchange, rank_body body)
{
    party_uses.exchange = killed_uses.exchange = exchange;
    for (int ranks = 2; ranks <= 3; ranks++) {
        const char *failure = ranks_run_on_processes(ranks, fault_deadline_ms, body);
        if (failure[0] != '\0')
            fail_msg("exchange %s: %s", exchange, failure);
    }
}

#define DRIVE_BODY(name, body)                                                                                         \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run("sendrecv", body);                                                                                         \
        run("fused", body);                                                                                            \
    }
#define DRIVE_KILLED(name) DRIVE_BODY(name, killed_##name)
#define DRIVE_FAULT(name) DRIVE_BODY(name, ulysses_##name)
KILLED_RANKS(DRIVE_KILLED)
ULYSSES_FAULTS(DRIVE_FAULT)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {KILLED_RANKS(ROW) ULYSSES_FAULTS(ROW)};

CKV_TEST_MAIN("killed_ranks", cases)
