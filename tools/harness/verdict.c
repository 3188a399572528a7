/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/verdict.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 256 };

/* One rank's record, boiled down. */
typedef struct rank_report {
    bool started;
    int pid;
    int world; /* number of ranks this rank sees */
    char seed[24];
    bool spoke;        /* something after "start" tells how far it came */
    char verdict[8];   /* of the "end", "" without one */
    double fatal_at;   /* when it failed or crashed first, in seconds of CLOCK_MONOTONIC; 0 if it did neither */
    char failure[512]; /* "file:line: message" */
    char signal[16];   /* "SIGSEGV", when that was what came first */
    char skip[512];
    bool hung;      /* it noticed a hang itself */
    char where[96]; /* "in barrier #2 (64 bytes)"; "" when unknown */
} rank_report;

const char *harness_verdict_name(int code)
{
    switch (code) {
    case HARNESS_PASS:
        return "PASS";
    case HARNESS_FAIL:
        return "FAIL";
    case HARNESS_HANG:
        return "HANG";
    case HARNESS_SKIP:
        return "SKIP";
    default:
        return "ERROR";
    }
}

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

static long long number_of(const json_t *event, const char *key)
{
    return (long long)json_integer_value(json_object_get(event, key));
}

static void read_operation(const json_t *event, rank_report *report)
{
    if (json_object_get(event, "sequence") == NULL)
        return;
    if (number_of(event, "sequence") == 0)
        snprintf(report->where, sizeof report->where, "before any collective");
    else
        snprintf(report->where, sizeof report->where, "%s %s #%lld (%lld bytes)",
                 number_of(event, "in_progress") ? "in" : "after", text_of(event, "operation"),
                 number_of(event, "sequence"), number_of(event, "bytes"));
}

static void read_start(const json_t *event, rank_report *report)
{
    report->started = true;
    report->pid = (int)number_of(event, "pid");
    report->world = (int)number_of(event, "ranks");
    snprintf(report->seed, sizeof report->seed, "%s", text_of(event, "seed"));
}

static void read_event(const json_t *event, rank_report *report)
{
    const char *kind = text_of(event, "event");
    if (strcmp(kind, "start") == 0) {
        read_start(event, report);
        return;
    }
    report->spoke = true;
    if (strcmp(kind, "end") == 0)
        snprintf(report->verdict, sizeof report->verdict, "%s", text_of(event, "verdict"));
    else if (strcmp(kind, "skip") == 0)
        snprintf(report->skip, sizeof report->skip, "%s", text_of(event, "message"));
    if (report->fatal_at > 0)
        return; /* what follows a failure is its consequence */
    read_operation(event, report);
    report->hung = report->hung || strcmp(kind, "hang") == 0;
    if (strcmp(kind, "failure") == 0 || strcmp(kind, "signal") == 0)
        report->fatal_at = json_number_value(json_object_get(event, "time"));
    if (strcmp(kind, "failure") == 0) {
        const char *where = text_of(event, "where");
        snprintf(report->failure, sizeof report->failure, "%s%s%s", where, where[0] ? ": " : "",
                 text_of(event, "message"));
    }
    snprintf(report->signal, sizeof report->signal, "%s", text_of(event, "signal"));
}

/* A line that does not parse was cut by a dying rank: what stands before it counts. */
static void read_report(const char *record_path, int rank, rank_report *report)
{
    char path[4096];
    char *line = NULL;
    size_t capacity = 0;
    *report = (rank_report){0};
    snprintf(path, sizeof path, "%s.rank%d", record_path, rank);
    FILE *file = fopen(path, "re");
    while (file != NULL && getline(&line, &capacity, file) > 0) {
        json_t *event = json_loads(line, 0, NULL);
        if (json_is_object(event))
            read_event(event, report);
        json_decref(event);
    }
    free(line);
    if (file != NULL)
        fclose(file);
}

static int read_reports(const char *record_path, int ranks, rank_report *reports)
{
    int count = ranks < MAX_RANKS ? ranks : MAX_RANKS;
    for (int rank = 0; rank < count; rank++)
        read_report(record_path, rank, &reports[rank]);
    return count;
}

bool harness_records_doomed(const char *record_path, int ranks)
{
    rank_report report;
    for (int rank = 0; rank < ranks; rank++) {
        read_report(record_path, rank, &report);
        if (report.fatal_at > 0)
            return true;
    }
    return false;
}

static bool decide(harness_verdict *verdict, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Always true: a rule that applied. The reason stays one line. */
static bool decide(harness_verdict *verdict, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(verdict->reason, sizeof verdict->reason, format, arguments);
    va_end(arguments);
    for (char *c = verdict->reason; *c != '\0'; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    verdict->code = code;
    return true;
}

static const char *signal_name(int number)
{
    static char name[16];
    const char *abbreviation = sigabbrev_np(number);
    snprintf(name, sizeof name, "SIG%s", abbreviation ? abbreviation : "?");
    return name;
}

/* How the first process ended, for a reason. */
static const char *ending(const harness_outcome *outcome)
{
    static char text[32];
    if (outcome->signal)
        snprintf(text, sizeof text, "killed by %s", signal_name(outcome->signal));
    else
        snprintf(text, sizeof text, "exit code %d", outcome->exit_code);
    return text;
}

/* mpirun and shells report a signal as an exit code. */
static bool died_of_signal(const harness_outcome *outcome)
{
    return outcome->signal != 0 || outcome->exit_code > 128;
}

/* --- The rules, in order; each says whether it applied. --- */

static bool judge_machinery(harness_verdict *verdict, int ranks, const harness_outcome *outcome)
{
    if (outcome->start_errno != 0)
        return decide(verdict, HARNESS_ERROR, "cannot start: %s", strerror(outcome->start_errno));
    if (outcome->interrupted)
        return decide(verdict, HARNESS_ERROR, "interrupted");
    if (ranks > 1 && outcome->signal != 0 && !outcome->timed_out && !outcome->cut_short)
        return decide(verdict, HARNESS_ERROR, "mpirun died of %s", signal_name(outcome->signal));
    return false;
}

static bool judge_fatal(harness_verdict *verdict, const rank_report *reports, int ranks)
{
    int cause = -1;
    for (int rank = 0; rank < ranks; rank++)
        if (reports[rank].fatal_at > 0 && (cause < 0 || reports[rank].fatal_at < reports[cause].fatal_at))
            cause = rank;
    if (cause < 0)
        return false;
    const rank_report *report = &reports[cause];
    verdict->crashed = report->signal[0] != '\0';
    if (verdict->crashed)
        return decide(verdict, HARNESS_FAIL, "rank %d died of %s%s%s", cause, report->signal,
                      report->where[0] ? " " : "", report->where);
    return decide(verdict, HARNESS_FAIL, "rank %d failed: %s", cause, report->failure);
}

static const char *rank_state(const rank_report *report, const harness_outcome *outcome)
{
    for (int i = 0; i < outcome->num_stopped; i++)
        if (report->started && report->pid == outcome->stopped[i])
            return "stopped";
    if (!report->started)
        return "not started";
    if (report->verdict[0] != '\0' && !report->hung)
        return "finished";
    if (report->where[0] != '\0')
        return report->where;
    return report->spoke ? "not in a known collective" : "silent";
}

static bool judge_hang(harness_verdict *verdict, const rank_report *reports, int ranks, const harness_outcome *outcome)
{
    bool hung = outcome->timed_out;
    for (int rank = 0; rank < ranks; rank++)
        hung = hung || reports[rank].hung;
    if (!hung)
        return false;
    char states[900] = "";
    size_t length = 0;
    for (int rank = 0; rank < ranks && length < sizeof states; rank++)
        length += (size_t)snprintf(states + length, sizeof states - length, "%s rank %d %s", rank ? "," : "", rank,
                                   rank_state(&reports[rank], outcome));
    return decide(verdict, HARNESS_HANG, "hang:%s", states);
}

static bool judge_start(harness_verdict *verdict, const rank_report *reports, int ranks, const harness_outcome *outcome)
{
    for (int rank = 0; rank < ranks; rank++) {
        if (!reports[rank].started && outcome->exit_code == HARNESS_USAGE)
            return decide(verdict, HARNESS_USAGE, "the program refused its arguments");
        if (!reports[rank].started)
            return decide(verdict, HARNESS_ERROR, "rank %d never started the case (%s)", rank, ending(outcome));
        if (reports[rank].world != ranks)
            return decide(verdict, HARNESS_ERROR,
                          "rank %d sees %d ranks instead of %d: is the program built for another MPI than mpirun?",
                          rank, reports[rank].world, ranks);
    }
    return false;
}

/* A rank without an end either vanished, or was taken down and could still say so. */
static bool judge_unfinished(harness_verdict *verdict, const rank_report *reports, int ranks,
                             const harness_outcome *outcome)
{
    for (int rank = 0; rank < ranks; rank++) {
        if (reports[rank].spoke)
            continue;
        verdict->crashed = died_of_signal(outcome);
        return decide(verdict, HARNESS_FAIL, "rank %d left in the middle of the case (%s)", rank, ending(outcome));
    }
    for (int rank = 0; rank < ranks; rank++)
        if (reports[rank].verdict[0] == '\0')
            return decide(verdict, HARNESS_ERROR, "rank %d was terminated from outside (%s)", rank, ending(outcome));
    return false;
}

static void judge_verdicts(harness_verdict *verdict, const rank_report *reports, int ranks,
                           const harness_outcome *outcome)
{
    int skipped = 0;
    for (int rank = 0; rank < ranks; rank++) {
        skipped += strcmp(reports[rank].verdict, "skip") == 0;
        if (strcmp(reports[rank].verdict, "fail") == 0) {
            decide(verdict, HARNESS_FAIL, "rank %d failed", rank);
            return;
        }
    }
    if (skipped != 0 && skipped != ranks)
        decide(verdict, HARNESS_FAIL, "%d of %d ranks skipped", skipped, ranks);
    else if (outcome->num_left > 0)
        decide(verdict, HARNESS_FAIL, "left running: %s", outcome->left);
    else if (skipped == ranks)
        decide(verdict, HARNESS_SKIP, "%s", reports[0].skip);
    else if (outcome->exit_code != 0)
        decide(verdict, HARNESS_FAIL, "%s after every rank had passed", ending(outcome));
    else
        decide(verdict, HARNESS_PASS, "%s", "");
}

harness_verdict harness_judge(const char *record_path, int ranks, const harness_outcome *outcome)
{
    static rank_report reports[MAX_RANKS];
    harness_verdict verdict = {.code = HARNESS_ERROR};
    int count = read_reports(record_path, ranks, reports);
    snprintf(verdict.seed, sizeof verdict.seed, "%s", reports[0].seed);
    if (!judge_machinery(&verdict, ranks, outcome) && !judge_fatal(&verdict, reports, count) &&
        !judge_hang(&verdict, reports, count, outcome) && !judge_start(&verdict, reports, count, outcome) &&
        !judge_unfinished(&verdict, reports, count, outcome))
        judge_verdicts(&verdict, reports, count, outcome);
    return verdict;
}

harness_verdict harness_judge_program(const harness_outcome *outcome)
{
    harness_verdict verdict = {.code = HARNESS_ERROR};
    if (judge_machinery(&verdict, 1, outcome))
        return verdict;
    verdict.crashed = !outcome->timed_out && died_of_signal(outcome);
    if (outcome->timed_out)
        decide(&verdict, HARNESS_HANG, "did not end in time");
    else if (outcome->num_left > 0)
        decide(&verdict, HARNESS_FAIL, "left running: %s", outcome->left);
    else if (outcome->exit_code == HARNESS_SKIP)
        decide(&verdict, HARNESS_SKIP, "%s", "");
    else if (outcome->exit_code != HARNESS_PASS)
        decide(&verdict, HARNESS_FAIL, "%s", ending(outcome));
    else
        decide(&verdict, HARNESS_PASS, "%s", "");
    return verdict;
}
