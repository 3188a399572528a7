/* SPDX-License-Identifier: Apache-2.0 */
/* ckv report: a trace as a page to look at. */
#include "tools/common/cli.h"
#include "tools/common/launch_env.h"
#include "tools/common/out_file.h"
#include "tools/report/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_RANKS = 64 };

typedef struct options {
    const char *trace, *out;
    int64_t ranks;
} options;

static const char doc[] =
    "Make one HTML page of a recorded trace: what the cache held, what each forward should have read and did, where "
    "its output is off, and which known mistake explains that.\v"
    "The trace is replayed on P ranks, each a thread of this process, and compared with the exact window as ckv replay "
    "does; what is wrong is explained as ckv explain does. The page needs no network and no other file. It opens at "
    "the first wrong forward; arrow keys go to others. A large trace is thinned, right forwards first.\n\n"
    "Under a launcher P is the number of its ranks, and the first one does the work.\n\n"
    "Exit status: 0 all right, 1 something is wrong (the page is written), 2 the trace or the options cannot be used, "
    "3 the machine failed.";

static const struct argp_option option_table[] = {
    {"output", 'o', "REPORT.html", 0, "the page to write", 0},
    {"ranks", 'p', "P", 0, "ranks that shard every forward (default: what the launcher started, else 1)", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    options *o = state->input;
    switch (key) {
    case 'o':
        o->out = text;
        return 0;
    case 'p':
        return cli_parse_integer("--ranks", text, 1, MAX_RANKS, &o->ranks);
    case ARGP_KEY_ARG:
        if (o->trace != NULL)
            return cli_usage_error("one trace at a time: '%s' is too many", text);
        o->trace = text;
        return 0;
    case ARGP_KEY_END:
        if (o->trace == NULL)
            return cli_usage_error("the trace is missing");
        if (o->out == NULL)
            return cli_usage_error("the page to write is missing, -o REPORT.html");
        if (o->ranks > MAX_RANKS)
            return cli_usage_error("%" PRId64 " ranks, %d at most; give --ranks", o->ranks, (int)MAX_RANKS);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int fail(const char *argv0, ckv_status status, const problem *why)
{
    cli_error(argv0, "%s", why->text);
    bool is_refusal = status == CKV_ERROR_INVALID || status == CKV_ERROR_STATE || status == CKV_ERROR_CAPACITY ||
                      status == CKV_ERROR_UNSUPPORTED;
    return is_refusal ? CLI_USAGE : CLI_INTERNAL;
}

static int make_page(const char *argv0, const options *o, const trace *t, const rank_run *run)
{
    json_t *report = NULL;
    problem why;
    const char *slash = strrchr(o->trace, '/'); /* the page may go to others, whom the folder does not concern */
    ckv_status status = report_collect(t, slash == NULL ? o->trace : slash + 1, run, o->ranks, &report, &why);
    if (status == CKV_OK && !report_write(report, o->out, &why))
        status = CKV_ERROR_INVALID;
    if (status != CKV_OK) {
        json_decref(report);
        return fail(argv0, status, &why);
    }
    json_int_t wrong = json_integer_value(json_object_get(report, "num_wrong"));
    json_decref(report);
    printf("%s: %zu forwards, %zu ok, %" JSON_INTEGER_FORMAT " wrong\n", o->out, run->forwards,
           run->forwards - (size_t)wrong, wrong);
    return wrong == 0 ? CLI_OK : CLI_FAIL;
}

/* Before the work, not after it. */
static bool check_output(const options *o, problem *why)
{
    if (is_one_file(o->out, o->trace))
        return problem_set(why, "-o %s is the trace itself; give another file", o->out);
    return out_file_check(o->out, why);
}

static int run_report(const char *argv0, const options *o)
{
    trace *t = NULL;
    problem why;
    if (!check_output(o, &why) || !trace_read(o->trace, &t, &why))
        return fail(argv0, CKV_ERROR_INVALID, &why);
    rank_run run;
    ckv_status status = rank_run_trace(t, &(rank_run_options){.ranks = (int)o->ranks, .tolerance = -1}, &run, &why);
    int code;
    if (status == CKV_OK) {
        code = make_page(argv0, o, t, &run);
    } else {
        problem cause = why;
        problem_format(&why, "%s: %s", o->trace, cause.text);
        code = fail(argv0, status, &why);
    }
    rank_run_free(&run);
    trace_free(&t);
    return code;
}

int cmd_report(int argc, char **argv)
{
    static const struct argp argp = {option_table, parse_option, "TRACE.safetensors", doc, NULL, NULL, NULL};
    options o = {.ranks = launch_env_size()};
    int code = launch_parse(&argp, argc, argv, &o);
    return code == CLI_OK && launch_env_rank() == 0 ? run_report(argv[0], &o) : code;
}
