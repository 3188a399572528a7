/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/run.h"

#include <inttypes.h>
#include <string.h>

static bool is_worse(run_verdict verdict, const run_tally attempts)
{
    for (int worse = (int)verdict; worse < RUN_NUM_VERDICTS; worse++)
        if (attempts[worse] > 0)
            return false;
    return true;
}

/* "" for null. */
static const char *number_text(arena *memory, bool known, long long number)
{
    return known ? arena_format(memory, "%lld", number) : NULL;
}

static bool write_junit_case(run_state *run, const plan_case *one, const char *repro)
{
    const ctest_case *test = one->test;
    size_t attempts = one->finished;
    const junit_property properties[] = {
        {"ranks", number_text(run->memory, test != NULL, test != NULL ? test->ranks : 0)},
        {"gpus", one->gpus_used[0] != '\0' ? one->gpus_used : NULL},
        {"seed", one->seed_used[0] != '\0' ? one->seed_used : NULL},
        {"attempts", number_text(run->memory, attempts > 1, (long long)attempts)},
        {"passed_attempts", number_text(run->memory, attempts > 1, (long long)one->attempts[RUN_PASS])},
        {"waived_by", one->waived_by},
        {"logs", one->folder},
        {NULL, NULL},
    };
    junit_case result = {.name = one->name,
                         .verdict = one->verdict,
                         .message = one->reason,
                         .details = run_verdict_is_red(one->verdict) ? repro : NULL,
                         .seconds = one->seconds,
                         .properties = properties};
    if (one->folder != NULL)
        result.log_path = arena_format(run->memory, "%s/" HARNESS_MERGED, one->folder);
    return junit_add(run->junit, &result);
}

static bool conclude(run_state *run, plan_case *one)
{
    const char *repro = one->test != NULL && one->test->command != NULL ? run_repro_line(run, one) : NULL;
    run->tally[one->verdict]++;
    run->finished++;
    json_t *event = json_pack("{s:o, s:s, s:o, s:f, s:I, s:I}", "case", run_text(one->name), "verdict",
                              run_verdict_name(one->verdict), "reason", run_text(one->reason), "duration", one->seconds,
                              "attempts", (json_int_t)one->finished, "passed", (json_int_t)one->attempts[RUN_PASS]);
    if (event != NULL && one->seed_used[0] != '\0')
        json_object_set_new(event, "seed", run_text(one->seed_used));
    if (event != NULL && repro != NULL && run_verdict_is_red(one->verdict))
        json_object_set_new(event, "reproduce", run_text(repro));
    run_event(run, "case", event);
    run_report_case(run, one);
    return write_junit_case(run, one, repro);
}

/* A case that its list requires here must not skip itself, nor be missing. */
static void require(run_state *run, plan_case *one)
{
    if (one->verdict != RUN_SKIP || !one->entry->required || one->expected != ENTRY_RUN)
        return;
    if (one->test == NULL && run->partial)
        return;
    one->verdict = RUN_FAIL;
    one->reason = arena_format(run->memory, "the list requires it here, but it was skipped%s%s",
                               one->reason[0] != '\0' ? ": " : "", one->reason);
}

bool run_case_not_run(run_state *run, plan_case *one, run_verdict verdict, const char *reason)
{
    one->verdict = verdict;
    one->reason = reason;
    require(run, one);
    return conclude(run, one);
}

static const char *explain(run_state *run, const plan_case *one, run_verdict plain)
{
    switch (one->verdict) {
    case RUN_XPASS:
        return arena_format(run->memory, "it passed although it is expected to fail; drop the waiver (%s)",
                            one->waived_by);
    case RUN_XFAIL:
        return arena_format(run->memory, "%s as expected (%s): %s", run_verdict_name(plain), one->waived_by,
                            one->reason);
    case RUN_FLAKY:
        return arena_format(run->memory, "%zu of %zu attempts passed: %s", one->attempts[RUN_PASS], one->finished,
                            one->reason);
    default:
        return one->reason;
    }
}

static void event_of_attempt(run_state *run, const run_attempt *attempt, run_verdict verdict)
{
    const worker_result *result = &attempt->result;
    json_t *event = json_pack("{s:o, s:I, s:s, s:o, s:f, s:o, s:i}", "case", run_text(attempt->of->name), "attempt",
                              (json_int_t)attempt->number, "verdict", run_verdict_name(verdict), "reason",
                              run_text(result->verdict.reason), "duration", result->seconds, "seed",
                              run_text(result->verdict.seed), "shared_files_removed", result->num_shared_removed);
    run_event(run, "end", event);
}

bool run_attempt_done(run_state *run, run_attempt *attempt)
{
    plan_case *one = attempt->of;
    const harness_verdict *verdict = &attempt->result.verdict;
    run_verdict got = run_verdict_of(verdict);
    event_of_attempt(run, attempt, got);
    if (one->finished == 0 || (got != RUN_PASS && is_worse(got, one->attempts))) { /* the worst attempt is told */
        one->reason = arena_copy(run->memory, verdict->reason, strlen(verdict->reason));
        one->seed_used = arena_copy(run->memory, verdict->seed, strlen(verdict->seed));
        if (verdict->seed[0] == '\0' && run->has_seed)
            one->seed_used = arena_format(run->memory, "%" PRIu64, one->seed);
        one->gpus_used = attempt->gpus;
        one->folder = attempt->folder;
    }
    one->attempts[got]++;
    one->finished++;
    one->seconds += attempt->result.seconds;
    if (one->finished < run->repeat)
        return true;
    run_verdict plain = run_verdict_combine(one->attempts);
    one->verdict = run_verdict_expect(plain, one->expected);
    one->reason = explain(run, one, plain);
    require(run, one);
    return conclude(run, one);
}
