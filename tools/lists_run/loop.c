/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/folder.h"
#include "tools/lists_run/run.h"

#include "tools/common/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const int settle_poll_ms = 50;
static const double worker_margin_s = 15; /* past the deadline: more than a worker ever needs to end its job */

static volatile sig_atomic_t interruption;

static void on_interruption(int number)
{
    interruption = number;
}

/* --- Starting --- */

static const char *make_folder(run_state *run, const plan_case *one, size_t attempt)
{
    char file[200];
    if (!harness_file_name(one->name, file, sizeof file))
        snprintf(file, sizeof file, "case-%zu", one->order);
    const char *path = run->repeat > 1 ? arena_format(run->memory, "%s/cases/%s.%zu", run->out, file, attempt)
                                       : arena_format(run->memory, "%s/cases/%s", run->out, file);
    harness_folder_remove(path);
    return harness_folder_make(path) ? path : NULL;
}

/* What the case's processes find in their environment beside what CTest names. */
static const char *const *make_environment(run_state *run, const plan_case *one, const char *gpus)
{
    size_t count = 0;
    while (one->test->environment[count] != NULL)
        count++;
    const char **entries = arena_alloc(run->memory, (count + 4) * sizeof *entries);
    memcpy(entries, one->test->environment, count * sizeof *entries);
    if (run->has_seed)
        entries[count++] = arena_format(run->memory, "CKV_TEST_SEED=%" PRIu64, one->seed);
    if (gpus[0] != '\0') {
        entries[count++] = arena_format(run->memory, "CUDA_VISIBLE_DEVICES=%s", gpus);
        entries[count++] = arena_format(run->memory, "CKV_TEST_RANK_GPUS=%s", gpus);
    }
    return entries;
}

static void event_of_start(run_state *run, const run_attempt *attempt)
{
    json_t *event = json_pack("{s:o, s:I, s:i, s:s, s:o, s:f}", "case", run_text(attempt->of->name), "attempt",
                              (json_int_t)attempt->number, "ranks", attempt->of->test->ranks, "gpus", attempt->gpus,
                              "logs", run_text(attempt->folder), "deadline", attempt->of->timeout_s);
    run_event(run, "start", event);
}

/* The grant is given back when this fails. */
static bool start(run_state *run, plan_case *one, const slot_grant *grant)
{
    run_attempt *attempt = arena_alloc(run->memory, sizeof *attempt);
    *attempt = (run_attempt){.of = one, .number = one->started + 1, .grant = *grant, .started = run_now()};
    attempt->gpus = run_gpus_prepare(run, attempt);
    attempt->folder = make_folder(run, one, attempt->number);
    harness_case described = {.ranks = one->test->ranks,
                              .timeout_s = one->timeout_s,
                              .unrecorded = one->test->unrecorded,
                              .program = one->test->program,
                              .directory = one->test->directory,
                              .environment = make_environment(run, one, attempt->gpus)};
    one->started++;
    if (attempt->folder == NULL || !worker_start(&described, attempt->folder, &attempt->worker)) {
        harness_verdict *verdict = &attempt->result.verdict;
        verdict->code = HARNESS_ERROR;
        snprintf(verdict->reason, sizeof verdict->reason, "cannot start: %s", strerror(errno));
        slots_give(&run->slots, grant);
        return run_attempt_done(run, attempt);
    }
    event_of_start(run, attempt);
    attempt->next = run->running;
    run->running = attempt;
    run->num_running++;
    return true;
}

static bool not_placeable(run_state *run, plan_case *one)
{
    const char *reason = arena_format(run->memory, "it needs %d GPUs, more than this run may use", one->request.gpus);
    return run_case_not_run(run, one, RUN_INFRASTRUCTURE, reason);
}

/* What decides without running: true when it did. A GPU may be given up between two attempts. */
static bool is_settled_unrun(run_state *run, plan_case *one, bool *written)
{
    bool possible = one->test != NULL && slots_can_ever(&run->slots, &one->request);
    if (one->started > one->finished || (one->started > 0 && possible))
        return false;
    if (one->expected == ENTRY_SKIP)
        *written = run_case_not_run(run, one, RUN_SKIP, one->waived_by);
    else if (one->test == NULL)
        *written = run_case_not_run(run, one, RUN_SKIP, "this build leaves it out");
    else if (one->test->command == NULL)
        *written = run_case_not_run(run, one, RUN_INFRASTRUCTURE, "its program is not built");
    else if (!possible)
        *written = not_placeable(run, one);
    else
        return false;
    return true;
}

/* Go through what waits and start what fits; cases that cannot start now wait for their turn. Attempts of one case
 * follow each other: they may use the same files. */
static bool start_what_fits(run_state *run, size_t *num_waiting, bool *changed)
{
    size_t kept = 0;
    bool written = true;
    for (size_t i = 0; i < *num_waiting; i++) {
        plan_case *one = run->order[i];
        slot_grant grant;
        if (written && is_settled_unrun(run, one, &written)) {
            *changed = true;
            continue;
        }
        if (written && one->started == one->finished && slots_take(&run->slots, &one->request, &grant)) {
            written = start(run, one, &grant);
            *changed = true;
        }
        if (one->started < run->repeat)
            run->order[kept++] = one;
    }
    *num_waiting = kept;
    return written;
}

/* --- Ending --- */

static bool finish(run_state *run, run_attempt *attempt)
{
    for (run_attempt **link = &run->running; *link != NULL; link = &(*link)->next) {
        if (*link != attempt)
            continue;
        *link = attempt->next;
        break;
    }
    run->num_running--;
    slots_give(&run->slots, &attempt->grant);
    return run_attempt_done(run, attempt);
}

/* A worker that does not do its part (its case may have stopped it) is ended; worker_finish sees to its processes. */
static void end_overdue(const run_attempt *attempt)
{
    if (!attempt->ended && run_now() > attempt->started + attempt->of->timeout_s + worker_margin_s)
        kill(attempt->worker.pid, SIGKILL);
}

/* Wait until a worker ends, `limit_ms` passes or a signal comes, and take over what has ended. */
static bool collect(run_state *run, int limit_ms, bool *changed)
{
    struct pollfd *ends = calloc(run->num_running + 1, sizeof *ends);
    run_attempt **attempts = calloc(run->num_running + 1, sizeof(run_attempt *));
    size_t count = 0;
    bool written = ends != NULL && attempts != NULL;
    for (run_attempt *one = run->running; written && one != NULL; one = one->next) {
        attempts[count] = one;
        ends[count++] = (struct pollfd){.fd = one->ended ? -1 : one->worker.fd, .events = POLLIN};
        limit_ms = one->ended && settle_poll_ms < limit_ms ? settle_poll_ms : limit_ms;
        end_overdue(one);
    }
    if (written && poll(ends, (nfds_t)count, limit_ms) < 0 && errno != EINTR)
        written = false;
    for (size_t i = 0; written && i < count; i++) {
        if (!attempts[i]->ended && ends[i].revents != 0) {
            attempts[i]->result = worker_finish(&attempts[i]->worker);
            attempts[i]->ended = true;
        }
        if (!attempts[i]->ended || !run_gpus_settled(run, attempts[i]))
            continue;
        written = finish(run, attempts[i]);
        *changed = true;
    }
    free(ends);
    free(attempts);
    return written;
}

static bool write_results(run_state *run)
{
    const char **names = calloc(run->num_running + 1, sizeof *names);
    size_t count = 0;
    for (const run_attempt *one = run->running; names != NULL && one != NULL; one = one->next)
        names[count++] = one->of->name;
    bool written = names != NULL && junit_write(run->junit, names, count);
    free(names);
    return written;
}

static void interrupt(run_state *run)
{
    run->interrupted = true;
    printf("interrupted: the running cases are ended\n");
    fflush(stdout);
    for (const run_attempt *one = run->running; one != NULL; one = one->next)
        if (!one->ended)
            worker_interrupt(&one->worker);
}

static void heartbeat(run_state *run, double *next)
{
    if (run_now() < *next)
        return;
    *next = run_now() + run->heartbeat_s;
    json_t *names = json_array();
    for (const run_attempt *one = run->running; one != NULL; one = one->next)
        json_array_append_new(names, run_text(one->of->name));
    run_event(run, "heartbeat",
              json_pack("{s:o, s:I, s:I}", "running", names, "done", (json_int_t)run->finished, "of",
                        (json_int_t)run->plan.count));
    run_report_heartbeat(run);
}

/* Cases that an interruption kept from ending. */
static bool give_up_rest(run_state *run)
{
    bool written = true;
    for (size_t i = 0; written && i < run->plan.count; i++) {
        plan_case *one = &run->plan.cases[i];
        if (one->started < run->repeat && one->finished < run->repeat && one->verdict == RUN_PASS)
            written = run_case_not_run(run, one, RUN_INFRASTRUCTURE, "not run: the run was interrupted");
    }
    return written;
}

static bool run_loop(run_state *run)
{
    size_t num_waiting = run->plan.count;
    double next_heartbeat = run_now() + run->heartbeat_s;
    bool written = write_results(run), changed = false;
    while (written && (num_waiting > 0 || run->running != NULL)) {
        if (interruption && !run->interrupted)
            interrupt(run);
        if (run->interrupted)
            num_waiting = 0;
        else
            written = start_what_fits(run, &num_waiting, &changed);
        if (written && changed)
            written = write_results(run);
        changed = false;
        if (written && run->running != NULL)
            written = collect(run, 1000, &changed);
        heartbeat(run, &next_heartbeat);
    }
    return written && (!run->interrupted || give_up_rest(run)) && write_results(run);
}

bool run_all(run_state *run)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_interruption};
    interruption = 0;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (run_loop(run))
        return true;
    cli_error("ckv lists run", "results cannot be written to %s: %s", run->out, strerror(errno));
    for (const run_attempt *one = run->running; one != NULL; one = one->next)
        if (!one->ended)
            worker_interrupt(&one->worker);
    for (run_attempt *one = run->running; one != NULL; one = one->next)
        if (!one->ended)
            worker_finish(&one->worker);
    return false;
}
