/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/repro/cmd_shrink.h"

#include "tools/common/cli.h"
#include "tools/common/launch_env.h"
#include "tools/common/out_file.h"
#include "tools/repro/case_text.h"
#include "tools/repro/rank_run.h"
#include "tools/repro/reduce.h"
#include "tools/repro/shrink.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

typedef struct options {
    const char *trace, *out, *case_file, *exchange;
    int64_t ranks, seconds;
    double tolerance;
} options;

static const char doc[] =
    "Make a failing trace smaller while it fails in the same way.\v"
    "The first forward that ckv replay would call wrong has to stay wrong: in ckv's own output; or in the one that the "
    "model recorded (NAME.expected), with the same known mistake as ckv explain names. That mistake is then made again "
    "in every smaller trace, whose expected output the model never computed; when no known mistake fits, the recorded "
    "output stays as it is and only what does not matter to it goes. A call that fails for no fault of the trace, and "
    "a crash, are failures too.\n\n"
    "Tries run on the host. Alone, P ranks are threads, and every try a process; under a launcher (mpirun -np P) its "
    "ranks run the tries. Lines say what became smaller, the last two from what to what and how it fails. --case "
    "writes a test case with the tensors in it, for tests/support/recorded_calls.h.\n\n"
    "Exit status: 0 nothing is wrong, so there is nothing to shrink and nothing is written; 1 it fails, and was "
    "shrunk; 2 the trace cannot be run; 3 the machine failed.";

enum { KEY_CASE = 256, KEY_SECONDS, KEY_TOLERANCE, KEY_EXCHANGE };

static const struct argp_option option_table[] = {
    {"out", 'o', "SMALL.safetensors", 0, "write the small trace", 0},
    {"case", KEY_CASE, "CASE.c", 0, "write it as a test case", 0},
    {"ranks", 'p', "P", 0, "ranks that replay it, and the model ran on (default 1; under a launcher: its)", 0},
    {"exchange", KEY_EXCHANGE, "NAME", 0, "how ranks exchange heads: auto (default), sendrecv, fused", 0},
    {"seconds", KEY_SECONDS, "N", 0, "start no try after that long (default 60)", 0},
    {"tolerance", KEY_TOLERANCE, "T", 0, "largest difference that is right (default: as ckv replay)", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    options *o = state->input;
    switch (key) {
    case 'o':
        o->out = text;
        return 0;
    case KEY_CASE:
        o->case_file = text;
        return 0;
    case 'p':
        return cli_parse_integer("--ranks", text, 1, 64, &o->ranks);
    case KEY_EXCHANGE:
        o->exchange = text;
        return strcmp(text, "auto") == 0 || strcmp(text, "sendrecv") == 0 || strcmp(text, "fused") == 0
                   ? 0
                   : cli_usage_error("--exchange is '%s'; it must be auto, sendrecv or fused", text);
    case KEY_SECONDS:
        return cli_parse_integer("--seconds", text, 1, 1 << 20, &o->seconds);
    case KEY_TOLERANCE:
        return repro_parse_tolerance(text, &o->tolerance);
    case ARGP_KEY_ARG:
        if (o->trace != NULL)
            return cli_usage_error("one trace at a time: '%s' is too many", text);
        o->trace = text;
        return 0;
    case ARGP_KEY_NO_ARGS:
        return cli_usage_error("the trace is missing");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int refuse(const shrinker *s, const char *argv0, int code, const problem *why)
{
    if (s->speaks)
        cli_error(argv0, "%s", why->text);
    return code;
}

/* What the first run says when there is nothing to shrink; CLI_FAIL when there is. */
static int judge(const shrinker *s, const char *argv0, const options *o)
{
    const failure *f = &s->target;
    problem why;
    switch (f->kind) {
    case FAILURE_NONE:
        if (s->speaks)
            printf("%" PRId64 " forwards, nothing wrong on %d rank%s: nothing to shrink\n", shrink_size(s).forwards,
                   s->trial.ranks, s->trial.ranks == 1 ? "" : "s");
        return CLI_OK;
    case FAILURE_REFUSED:
        problem_format(&why, "%s: %s", o->trace, f->why.text);
        return refuse(s, argv0, CLI_USAGE, &why);
    case FAILURE_LATE:
        problem_format(&why, "%s: the trace does not end within %" PRId64 " s; give more --seconds", o->trace,
                       o->seconds);
        return refuse(s, argv0, CLI_INTERNAL, &why);
    case FAILURE_UNKNOWN:
        problem_format(&why, "%s: %s", o->trace, f->why.text);
        return refuse(s, argv0, CLI_INTERNAL, &why);
    default:
        return CLI_FAIL;
    }
}

static bool write_small(const shrinker *s, const options *o, problem *why)
{
    if (!trace_name_apart(s->best))
        return problem_set(why, "out of memory");
    return trace_write(s->best, o->out, why);
}

static bool write_case(const shrinker *s, const options *o, problem *why)
{
    out_file file;
    if (!out_file_open(o->case_file, &file, why))
        return false;
    case_text_print(file.stream, s->best, s->trial.ranks, &s->found, o->trace);
    return out_file_close(&file, true, why);
}

static void print_result(const shrinker *s, const trace_size *before)
{
    trace_size after = shrink_size(s);
    printf("shrunk to %" PRId64 " token%s in %" PRId64 " tries and %.1f s%s", after.tokens,
           after.tokens == 1 ? "" : "s", s->tries, seconds_now() - s->started_s,
           s->is_late ? ", which was all the time" : "");
    if (memcmp(before, &after, sizeof after) != 0)
        printf(": ");
    shrink_print_change(stdout, before, &after);
    printf("\n");
    failure_print(&s->found);
}

static int fail_ranks(const char *argv0, const ckv_comm *comm, ckv_status status, const char *why)
{
    if (launch_speaks(comm, status))
        cli_error(argv0, "the ranks failed: %s", why);
    return CLI_INTERNAL;
}

static int shrink(shrinker *s, const char *argv0, const options *o, ckv_comm *comm)
{
    problem why;
    double start = seconds_now();
    s->target = trial_run(&s->trial, s->best);
    s->meeting = session_agree(comm, CKV_OK, &why);
    if (s->meeting != CKV_OK) /* a rank is gone, which is no failure of the trace */
        return fail_ranks(argv0, comm, s->meeting, why.text);
    int code = judge(s, argv0, o);
    if (code != CLI_FAIL)
        return code;
    if (s->speaks)
        failure_print(&s->target);
    trace_size before = shrink_size(s);
    s->trial.limit_s = 2 + 10 * (seconds_now() - start); /* what takes longer than that is no smaller case */
    shrink_run(s);
    if (s->meeting != CKV_OK)
        return fail_ranks(argv0, comm, s->meeting, ckv_last_error());
    if (!s->speaks)
        return CLI_FAIL;
    print_result(s, &before);
    if (o->out == NULL && o->case_file == NULL)
        printf("nothing is written: -o names a file for the small trace, --case one for a test case\n");
    bool ok = (o->out == NULL || write_small(s, o, &why)) && (o->case_file == NULL || write_case(s, o, &why));
    return ok ? CLI_FAIL : refuse(s, argv0, CLI_USAGE, &why);
}

/* What would only be told when all the work is done. */
static bool check_outputs(const shrinker *s, const options *o, problem *why)
{
    const struct {
        const char *option, *path;
    } outputs[] = {{"--out", o->out}, {"--case", o->case_file}};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (outputs[i].path != NULL && is_one_file(outputs[i].path, o->trace))
            return problem_set(why, "%s %s is the trace itself; give another file", outputs[i].option, outputs[i].path);
    if (o->out != NULL && o->case_file != NULL && is_one_file(o->out, o->case_file))
        return problem_set(why, "--out and --case are both %s; give two files", o->out);
    if (!s->speaks)
        return true;
    return (o->out == NULL || safetensors_check_writable(o->out, why)) &&
           (o->case_file == NULL || out_file_check(o->case_file, why));
}

/* Under a launcher the ranks leave together, so all must have read the trace. */
static int run(const char *argv0, const options *o, ckv_comm *comm)
{
    int launched = ckv_comm_size(comm);
    shrinker s = {.speaks = ckv_comm_rank(comm) == 0, .seconds = (double)o->seconds};
    problem why;
    if (launched > 1 && o->ranks != 0 && o->ranks != launched) {
        problem_format(&why, "--ranks %" PRId64 ": the launcher started %d", o->ranks, launched);
        return refuse(&s, argv0, CLI_USAGE, &why);
    }
    s.trial = (trial){.ranks = launched > 1    ? launched
                               : o->ranks == 0 ? 1
                                               : (int)o->ranks,
                      .comm = launched > 1 ? comm : NULL,
                      .tolerance = o->tolerance,
                      .exchange = o->exchange,
                      .limit_s = (double)o->seconds};
    bool is_read = check_outputs(&s, o, &why) && trace_read(o->trace, &s.best, &why);
    ckv_status status = session_agree(comm, is_read ? CKV_OK : CKV_ERROR_INVALID, &why);
    int code = status == CKV_OK              ? shrink(&s, argv0, o, comm)
               : status == CKV_ERROR_INVALID ? refuse(&s, argv0, CLI_USAGE, &why)
                                             : fail_ranks(argv0, comm, status, why.text);
    trace_free(&s.best);
    return code;
}

int repro_shrink(int argc, char **argv)
{
    static const struct argp argp = {option_table, parse_option, "TRACE.safetensors", doc, NULL, NULL, NULL};
    options o = {.seconds = 60, .tolerance = -1};
    int parsed = launch_parse(&argp, argc, argv, &o);
    ckv_comm *comm;
    int code = launch_start(argv[0], &comm);
    if (code != CLI_OK)
        return code;
    code = parsed == CLI_OK ? run(argv[0], &o, comm) : parsed;
    return launch_end(&comm, code);
}
