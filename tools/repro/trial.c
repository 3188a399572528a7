/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/repro/trial.h"

#include "tools/repro/rank_run.h"
#include "tools/trace/trace_internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static size_t count_forwards(const trace *t, size_t end)
{
    size_t forwards = 0;
    for (size_t i = 0; i < end; i++)
        forwards += t->ops[i].kind == TRACE_FORWARD;
    return forwards;
}

static trace_op *last_forward(trace *t)
{
    size_t at = t->num_ops;
    while (at > 0 && t->ops[at - 1].kind != TRACE_FORWARD)
        at--;
    return at == 0 ? NULL : &t->ops[at - 1];
}

/* --- The model's mistake, made again --- */

/* The rows of tokens; those of padding are zero. */
static ckv_status imitate_rows(const history *h, const failure *like, float *values, problem *why)
{
    const trace_config *model = &h->trace->config;
    int64_t row_values = model->q_heads * model->head_dim;
    mistake copy = {.what = like->what, .has_distance = like->has_distance, .distance = like->distance};
    double *row = arena_alloc(h->memory, (size_t)row_values * sizeof *row);
    bool applies = false;
    for (int64_t i = 0; i < h->op->seq_len; i++) {
        bool applies_here;
        ckv_status status = imitate(h, i, &copy, row, &applies_here, why);
        if (status != CKV_OK)
            return status;
        applies |= applies_here;
        for (int64_t v = 0; v < row_values; v++)
            values[i * row_values + v] = (float)row[v];
    }
    if (applies)
        return CKV_OK;
    problem_format(why, "the mistake changes nothing here");
    return CKV_ERROR_INVALID;
}

ckv_status trial_imitate(const trial *c, trace *t, problem *why)
{
    trace_op *op = last_forward(t);
    history h;
    arena memory = {0};
    if (op == NULL || t->config.q_heads % c->ranks != 0) {
        problem_format(why, "no forward, or query heads that do not share out evenly");
        return CKV_ERROR_INVALID;
    }
    int64_t count = op->rows * t->config.q_heads * t->config.head_dim;
    float *values = arena_alloc(&memory, (size_t)count * sizeof *values);
    ckv_status status = history_open(&h, t, (int64_t)count_forwards(t, t->num_ops) - 1, c->ranks, &memory, why);
    if (status == CKV_OK)
        status = imitate_rows(&h, c->like, values, why);
    void *expected = NULL;
    if (status == CKV_OK)
        expected = trace_allocate(t, (size_t)count * ckv_dtype_bytes(t->config.dtype));
    if (expected != NULL) {
        ckv_convert_from_float(t->config.dtype, values, (size_t)count, expected);
        op->expected = expected;
    } else if (status == CKV_OK) {
        problem_format(why, "out of memory");
        status = CKV_ERROR_MEMORY;
    }
    history_close(&h);
    arena_free(&memory);
    return status;
}

/* --- What fails --- */

/* A wrong forward and the known mistakes that fit it, best first; static texts. */
typedef struct suspect {
    failure failure;
    const char *fits[8];
    size_t num_fits;
} suspect;

static void note_fits(suspect *s, const diagnosis *found, double tolerance)
{
    const size_t most = sizeof s->fits / sizeof s->fits[0];
    for (int64_t i = 0; i < found->num_mistakes && s->num_fits < most; i++)
        if (mistake_fits(found, &found->mistakes[i], tolerance))
            s->fits[s->num_fits++] = found->mistakes[i].what;
    if (s->num_fits == 0)
        return;
    const mistake *best = &found->mistakes[0];
    failure *f = &s->failure;
    f->is_known = strcmp(best->name, "key") != 0 || best->has_distance;
    snprintf(f->class, sizeof f->class, "%s", best->name);
    snprintf(f->what, sizeof f->what, "%s", best->what);
    f->has_distance = best->has_distance;
    f->distance = best->distance;
    f->residual = best->residual;
}

/* Which known mistakes the worst row of the recorded output fits; none is no failure. */
static void name_mistake(const trial *c, const trace *t, suspect *s)
{
    if (t->config.q_heads % c->ranks != 0)
        return;
    history h;
    problem why;
    diagnosis found = {0};
    arena memory = {0};
    const failure *f = &s->failure;
    const trace_op *op = &t->ops[f->op];
    size_t count = (size_t)(t->config.q_heads * t->config.head_dim);
    float *observed = arena_alloc(&memory, count * sizeof *observed);
    size_t skip = (size_t)f->worst.row * count * ckv_dtype_bytes(t->config.dtype);
    ckv_convert_to_float(t->config.dtype, (const char *)op->expected + skip, count, observed);
    ckv_status status = history_open(&h, t, (int64_t)f->forward, c->ranks, &memory, &why);
    if (status == CKV_OK) {
        history_keys window = history_window(&h, f->worst.row);
        status = history_locate(&h, f->worst.row, &window, &why);
        if (status == CKV_OK)
            status = diagnose(&h, f->worst.row, &window, observed, &found, &why);
    }
    if (status == CKV_OK)
        note_fits(s, &found, session_default_tolerance(t->config.dtype, found.largest));
    history_close(&h);
    arena_free(&memory);
}

/* Forward number `forward`, op `op`, if it is wrong. */
static failure failure_of(const trace *t, size_t op, size_t forward, const session_result *result)
{
    failure f = {.kind = FAILURE_NONE};
    if (result->output_ok && result->expected_ok)
        return f;
    f.kind = result->output_ok ? FAILURE_EXPECTED : FAILURE_OUTPUT;
    f.op = op;
    f.forward = forward;
    f.worst = result->output_ok ? result->expected : result->output;
    f.tolerance = result->tolerance;
    f.is_padding = f.worst.row >= t->ops[op].seq_len;
    f.is_nan = isnan(f.worst.observed);
    return f;
}

/* The first wrong forwards, at most `most`; those whose expected output is wrong are named. */
static size_t look_for_wrong(const trial *c, const trace *t, const rank_run *run, suspect *wrong, size_t most)
{
    size_t forward = 0, count = 0;
    for (size_t i = 0; i < t->num_ops && forward < run->forwards && count < most; i++) {
        if (t->ops[i].kind != TRACE_FORWARD)
            continue;
        wrong[count] = (suspect){.failure = failure_of(t, i, forward, &run->results[forward])};
        if (wrong[count].failure.kind == FAILURE_EXPECTED)
            name_mistake(c, t, &wrong[count]);
        count += wrong[count].failure.kind != FAILURE_NONE;
        forward++;
    }
    return count;
}

static bool fits(const suspect *s, const char *what)
{
    for (size_t i = 0; i < s->num_fits; i++)
        if (strcmp(s->fits[i], what) == 0)
            return true;
    return false;
}

/* Early forwards often fit several mistakes that later ones tell apart: the one that fits most of them, where it fits
 * best first. Ckv's own output comes before. */
static failure choose(const suspect *wrong, size_t count)
{
    size_t best = 0, best_votes = 0;
    for (size_t i = 0; i < count; i++) {
        const failure *f = &wrong[i].failure;
        size_t votes = 0;
        if (f->kind == FAILURE_OUTPUT)
            return *f;
        for (size_t j = 0; j < count && f->is_known; j++)
            votes += fits(&wrong[j], f->what);
        if (votes > best_votes) {
            best = i;
            best_votes = votes;
        }
    }
    return wrong[best].failure;
}

/* A trace that asks for too much or the wrong thing, or something that broke. */
static failure_kind kind_of(ckv_status status)
{
    switch (status) {
    case CKV_ERROR_INVALID:
    case CKV_ERROR_STATE:
    case CKV_ERROR_CAPACITY:
    case CKV_ERROR_UNSUPPORTED:
        return FAILURE_REFUSED;
    case CKV_ERROR_MEMORY:
        return FAILURE_UNKNOWN;
    default:
        return FAILURE_STATUS;
    }
}

static failure run_here(const trial *c, trace *t)
{
    enum { VOTES = 16 };
    failure f = {.kind = FAILURE_NONE};
    suspect wrong[VOTES];
    const rank_run_options options = {c->ranks, c->tolerance, c->exchange};
    rank_run run = {0};
    f.status = c->like != NULL ? trial_imitate(c, t, &f.why) : CKV_OK;
    if (f.status == CKV_OK)
        f.status = c->comm != NULL ? rank_run_on(c->comm, t, &options, &run, &f.why)
                                   : rank_run_trace(t, &options, &run, &f.why);
    if (f.status != CKV_OK)
        f.kind = kind_of(f.status);
    size_t count = look_for_wrong(c, t, &run, wrong, VOTES); /* before the call that failed, if one did */
    if (count > 0)
        f = choose(wrong, count);
    rank_run_free(&run);
    return f;
}

/* --- A process of its own --- */

/* Nobody watches the limit of a process whose parent is gone. */
static void end_with(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it was gone before */
        _exit(1);
}

static _Noreturn void run_child(const trial *c, trace *t, int pipe_end)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
        signal(crashes[i], SIG_DFL); /* whatever the parent makes of them */
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0)
        dup2(nowhere, STDERR_FILENO); /* what a crash says */
    failure f = run_here(c, t);
    ssize_t written = write(pipe_end, &f, sizeof f);
    _exit(written == (ssize_t)sizeof f ? 0 : 1);
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A failure is smaller than a pipe's buffer, so it comes whole or not at all. */
static failure wait_for(pid_t child, int pipe_end, double limit_s)
{
    failure f = {.kind = FAILURE_LATE};
    double end = seconds_now() + limit_s;
    struct pollfd ready = {.fd = pipe_end, .events = POLLIN};
    int polled;
    do {
        double left = end - seconds_now();
        polled = poll(&ready, 1, left > 0 ? (int)fmin(left * 1e3, 1e9) + 1 : 0);
    } while (polled < 0 && seconds_now() < end);
    bool came = polled > 0 && read(pipe_end, &f, sizeof f) == (ssize_t)sizeof f;
    if (polled <= 0)
        kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    if (polled > 0 && !came)
        f = (failure){.kind = FAILURE_CRASH, .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
    return f;
}

failure trial_run(const trial *c, trace *t)
{
    if (c->comm != NULL)
        return run_here(c, t);
    int ends[2];
    failure f = {.kind = FAILURE_UNKNOWN};
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) != 0) {
        problem_format(&f.why, "no pipe to a process can be made");
        return f;
    }
    pid_t self = getpid(), child = fork();
    if (child == 0) {
        end_with(self);
        run_child(c, t, ends[1]);
    }
    close(ends[1]);
    if (child > 0)
        f = wait_for(child, ends[0], c->limit_s);
    else
        problem_format(&f.why, "no process can be started");
    close(ends[0]);
    return f;
}

void failure_print(const failure *f)
{
    switch (f->kind) {
    case FAILURE_OUTPUT:
    case FAILURE_EXPECTED:
        printf("forward %zu row %" PRId64 " head %" PRId64 " channel %" PRId64 " rank %d: %s %.6g instead of %.6g",
               f->forward, f->worst.row, f->worst.head, f->worst.channel, f->worst.rank,
               f->kind == FAILURE_OUTPUT ? "ckv computes" : "the recorded output (.expected) is", f->worst.observed,
               f->worst.wanted);
        if (f->what[0] != '\0')
            printf("; %s: %s", f->class, f->what);
        else if (f->kind == FAILURE_EXPECTED)
            printf("; no known mistake fits");
        break;
    case FAILURE_STATUS:
        printf("%s: %s", ckv_status_name(f->status), f->why.text);
        break;
    case FAILURE_CRASH:
        printf("the process ends by signal %d", f->signal);
        break;
    case FAILURE_NONE:
    case FAILURE_REFUSED:
    case FAILURE_LATE:
    case FAILURE_UNKNOWN:
        printf("%s", f->why.text);
        break;
    }
    printf("\n");
}
