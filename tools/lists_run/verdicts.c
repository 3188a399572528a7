/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/verdicts.h"

#include "tools/common/cli.h"

static const char *const names[RUN_NUM_VERDICTS] = {"pass", "skip",  "xfail", "fail",          "crash",
                                                    "hang", "flaky", "xpass", "infrastructure"};

const char *run_verdict_name(run_verdict verdict)
{
    return names[verdict];
}

run_verdict run_verdict_of(const harness_verdict *verdict)
{
    switch (verdict->code) {
    case HARNESS_PASS:
        return RUN_PASS;
    case HARNESS_SKIP:
        return RUN_SKIP;
    case HARNESS_HANG:
        return RUN_HANG;
    case HARNESS_FAIL:
        return verdict->crashed ? RUN_CRASH : RUN_FAIL;
    default: /* a program that refuses its arguments is not the one that was configured */
        return RUN_INFRASTRUCTURE;
    }
}

run_verdict run_verdict_combine(const run_tally attempts)
{
    static const run_verdict bad[] = {RUN_FAIL, RUN_CRASH, RUN_HANG};
    if (attempts[RUN_INFRASTRUCTURE] > 0)
        return RUN_INFRASTRUCTURE;
    bool good = attempts[RUN_PASS] > 0 || attempts[RUN_SKIP] > 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (attempts[bad[i]] > 0)
            return good ? RUN_FLAKY : bad[i];
    if (attempts[RUN_PASS] > 0 && attempts[RUN_SKIP] > 0)
        return RUN_FLAKY;
    return attempts[RUN_SKIP] > 0 ? RUN_SKIP : RUN_PASS;
}

run_verdict run_verdict_expect(run_verdict verdict, entry_verdict expected)
{
    if (expected == ENTRY_RUN || verdict == RUN_SKIP || verdict == RUN_INFRASTRUCTURE)
        return verdict;
    if (verdict == RUN_PASS)
        return expected == ENTRY_XFAIL ? RUN_XPASS : RUN_PASS;
    return RUN_XFAIL;
}

bool run_verdict_is_red(run_verdict verdict)
{
    return verdict >= RUN_FAIL;
}

int run_exit_code(const run_tally verdicts)
{
    if (verdicts[RUN_FAIL] + verdicts[RUN_CRASH] + verdicts[RUN_FLAKY] + verdicts[RUN_XPASS] > 0)
        return CLI_FAIL;
    if (verdicts[RUN_HANG] > 0)
        return HARNESS_HANG;
    return verdicts[RUN_INFRASTRUCTURE] > 0 ? CLI_INTERNAL : CLI_OK;
}
