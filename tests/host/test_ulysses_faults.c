/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that fail one another over the threads transport, on both paths of the exchange. */
#include "tests/support/case.h"

#include "tests/support/ulysses_faults.h"
#include "tests/support/ulysses_party.h"

static void run(const char *exchange, rank_body body)
{
    party_uses.exchange = exchange;
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        const char *failure = ranks_run_on_threads(ranks, fault_deadline_ms, body);
        if (failure[0] != '\0')
            fail_msg("exchange %s: %s", exchange, failure);
    }
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run("sendrecv", ulysses_##name);                                                                               \
        run("fused", ulysses_##name);                                                                                  \
    }
ULYSSES_FAULTS(DRIVE)
DRIVE(rank_that_fails_inside_the_exchange)

static void exchange_whose_peer_comes_too_late(void **state)
{
    (void)state;
    run("fused", ulysses_exchange_whose_peer_comes_too_late);
}

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {
    ULYSSES_FAULTS(ROW) /* written once */
    CKV_CASE(rank_that_fails_inside_the_exchange),
    CKV_CASE(exchange_whose_peer_comes_too_late),
};

CKV_TEST_MAIN("ulysses_faults_threads", cases)
