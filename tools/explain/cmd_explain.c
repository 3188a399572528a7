/* SPDX-License-Identifier: Apache-2.0 */
/* ckv explain: which keys a row of a recorded forward should have read, where they lie, and which known mistake fits.
 */
#include "tools/common/cli.h"
#include "tools/explain/explain.h"
#include "tools/repro/rank_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct options {
    const char *trace;
    int64_t forward, row, ranks;
} options;

static const char doc[] =
    "Say which keys a row of a recorded forward should have read, and which known mistake its output fits.\vWithout "
    "--forward it is the first wrong one, without --row the row that is furthest off. Keys are listed with the page "
    "and slot where ckv's row finds them, the forward that wrote them, the rank that held them and their version. "
    "Then the recorded output (NAME.expected) of the row is compared with the exact window and with known mistakes, "
    "each built into a dense reference: padding attended, committed or left in the output, windows moved by padding "
    "or to a page, shards and heads mixed up, seq_len of one shard, context counted once per rank, one key more or "
    "less. Best fit first; the residual is the largest difference left.\n\n"
    "Rotary positions are applied before a trace is taken, so a mistake there does not show here.\n\n"
    "Exit status: 0 the output is right (or none was recorded), 1 it is wrong, 2 the trace or the options cannot be "
    "used, 3 the machine failed.";

static const struct argp_option option_table[] = {
    {"forward", 'f', "N", 0, "forward to explain, counted from 0 as ckv replay does (default: the first wrong one)", 0},
    {"row", 'r', "R", 0, "row of its tensors, counted from 0 (default: the worst one)", 0},
    {"ranks", 'p', "P", 0, "ranks the model ran on (default 1): mistakes of sharding are tried for P", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    options *o = state->input;
    switch (key) {
    case 'f':
        return cli_parse_integer("--forward", text, 0, INT64_MAX, &o->forward);
    case 'r':
        return cli_parse_integer("--row", text, 0, INT64_MAX, &o->row);
    case 'p':
        return cli_parse_integer("--ranks", text, 1, 4096, &o->ranks);
    case ARGP_KEY_ARG:
        if (o->trace != NULL)
            return cli_usage_error("one trace at a time: '%s' is too many", text);
        o->trace = text;
        return 0;
    case ARGP_KEY_END:
        if (o->trace == NULL)
            return cli_usage_error("the trace is missing");
        if (o->forward < 0 && o->row >= 0)
            return cli_usage_error("--forward is missing: --row is one of its rows");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int fail(const char *argv0, const char *path, const problem *why, ckv_status status)
{
    cli_error(argv0, "%s: %s", path, why->text);
    return status == CKV_ERROR_MEMORY || status == CKV_ERROR_INTERNAL ? CLI_INTERNAL : CLI_USAGE;
}

/* What was not asked for: the first forward whose recorded output is wrong, or -1 where none is, and the row that is
 * furthest off. What is refused of a forward that was asked for, history_open says. */
static ckv_status choose(options *o, const trace *t, size_t *forwards_out, problem *why)
{
    rank_run run;
    ckv_status status = rank_run_trace(t, &(rank_run_options){.ranks = 1, .tolerance = -1}, &run, why);
    for (size_t i = 0; i < run.forwards && o->forward < 0; i++)
        if (!run.results[i].expected_ok)
            o->forward = (int64_t)i;
    if (o->forward >= 0)
        o->row = (uint64_t)o->forward < run.forwards ? run.results[o->forward].expected.row : 0;
    *forwards_out = run.forwards;
    rank_run_free(&run);
    return o->forward >= 0 ? CKV_OK : status;
}

static int explain(const char *argv0, const options *o, const trace *t, arena *memory)
{
    history h;
    problem why;
    explain_verdict verdict = {0};
    if (t->config.q_heads % o->ranks != 0) {
        problem_format(&why, "--ranks %" PRId64 ": %" PRId64 " query heads do not share out evenly", o->ranks,
                       t->config.q_heads);
        return fail(argv0, o->trace, &why, CKV_ERROR_INVALID);
    }
    ckv_status status = history_open(&h, t, o->forward, o->ranks, memory, &why);
    if (status == CKV_OK && o->row >= h.op->rows) {
        problem_format(&why, "--row %" PRId64 ": forward %" PRId64 " has %" PRId64 " rows, counted from 0", o->row,
                       o->forward, h.op->rows);
        status = CKV_ERROR_INVALID;
    }
    explain_output recorded = {"recorded", status == CKV_OK ? h.op->expected : NULL};
    if (status == CKV_OK)
        status = explain_row(&h, o->row, &recorded, &verdict, &why);
    if (status == CKV_OK)
        explain_print(stdout, &h, o->row, &recorded, &verdict);
    history_close(&h);
    if (status != CKV_OK)
        return fail(argv0, o->trace, &why, status);
    return verdict.is_wrong ? CLI_FAIL : CLI_OK;
}

int cmd_explain(int argc, char **argv)
{
    static const struct argp argp = {option_table, parse_option, "TRACE.safetensors", doc, NULL, NULL, NULL};
    options o = {.forward = -1, .row = -1, .ranks = 1};
    int code = cli_parse(&argp, argc, argv, &o);
    if (code != CLI_OK)
        return code;
    trace *t = NULL;
    problem why;
    if (!trace_read(o.trace, &t, &why)) {
        cli_error(argv[0], "%s", why.text);
        return CLI_USAGE;
    }
    size_t forwards = 0;
    ckv_status status = o.row < 0 ? choose(&o, t, &forwards, &why) : CKV_OK;
    arena memory = {0};
    if (status != CKV_OK)
        code = fail(argv[0], o.trace, &why, status);
    else if (o.forward >= 0)
        code = explain(argv[0], &o, t, &memory);
    else
        printf("%zu forwards, no recorded output is wrong: --forward and --row name a row to show\n", forwards);
    arena_free(&memory);
    trace_free(&t);
    return code;
}
