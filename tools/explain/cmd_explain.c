/* SPDX-License-Identifier: Apache-2.0 */
/* ckv explain: which keys a row of a recorded forward should have read, where they lie, and which known mistake fits.
 */
#include "tools/common/cli.h"
#include "tools/explain/mistakes.h"
#include "tools/trace/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct options {
    const char *trace;
    int64_t forward, row, ranks;
} options;

static const char doc[] =
    "Say which keys a row of a recorded forward should have read, and which known mistake its output fits.\v"
    "Keys are listed with the page and slot where ckv's row finds them, the forward that wrote them, the rank that "
    "held "
    "them and their version. Then the recorded output (NAME.expected) of the row is compared with the exact window "
    "and with known mistakes, each built into a dense reference: padding attended, committed or left in the output, "
    "windows moved by padding or to a page, shards and heads mixed up, seq_len of one shard, context counted once per "
    "rank, one key more or less. Best fit first; the residual is the largest difference left.\n\n"
    "Rotary positions are applied before a trace is taken, so a mistake there does not show here.\n\n"
    "Exit status: 0 the output is right (or none was recorded), 1 it is wrong, 2 the trace or the options cannot be "
    "used, 3 the machine failed.";

static const struct argp_option option_table[] = {
    {"forward", 'f', "N", 0, "forward to explain, counted from 0 as ckv replay does", 0},
    {"row", 'r', "R", 0, "row of its tensors, counted from 0", 0},
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
        if (o->forward < 0 || o->row < 0)
            return cli_usage_error("--%s is missing", o->forward < 0 ? "forward" : "row");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Keys one after the other in ids or rows, pages and slots, of one write. */
static bool continues(const history_key *a, const history_key *b)
{
    return (a->id < 0 ? b->id < 0 : b->id == a->id + 1) && b->row == a->row + 1 && a->forward == b->forward &&
           a->rank == b->rank && a->version == b->version && a->page == b->page &&
           (a->page < 0 || b->slot == a->slot + 1) && a->count == b->count;
}

static void print_range(const char *name, int64_t first, int64_t last)
{
    if (first == last)
        printf("%s %" PRId64, name, first);
    else
        printf("%ss %" PRId64 "-%" PRId64, name, first, last);
}

static void print_run(const history_key *first, const history_key *last)
{
    printf("  ");
    if (first->id >= 0)
        print_range("token", first->id, last->id);
    else
        print_range("padding row", first->row, last->row);
    if (first->page >= 0) {
        printf(", page %" PRId64 " ", first->page);
        print_range("slot", first->slot, last->slot);
    }
    if (first->forward >= 0)
        printf(", of forward %" PRId64 " rank %" PRId64, first->forward, first->rank);
    else
        printf(", written on every rank");
    if (first->version > 0)
        printf(", version %" PRId64, first->version);
    if (first->count > 1)
        printf(", %" PRId64 " times", first->count);
    printf("\n");
}

static void print_keys(const history_keys *keys)
{
    for (int64_t i = 0; i < keys->count;) {
        int64_t end = i + 1;
        while (end < keys->count && continues(keys->keys[end - 1], keys->keys[end]))
            end++;
        print_run(keys->keys[i], keys->keys[end - 1]);
        i = end;
    }
}

static void count_keys(const history_keys *keys, int64_t by)
{
    for (int64_t i = 0; i < keys->count; i++)
        keys->keys[i]->count += by;
}

/* Keys of `keys` that are not in `others`, or in it less often. */
static void print_difference(const history *h, const char *title, const history_keys *keys, const history_keys *others)
{
    history_keys more = {0};
    count_keys(keys, 1);
    count_keys(others, -1);
    for (int64_t i = 0; i < keys->count; i++)
        if (keys->keys[i]->count > 0 && (i == 0 || keys->keys[i] != keys->keys[i - 1]))
            history_add(h->memory, &more, keys->keys[i]);
    if (more.count > 0)
        printf("%s\n", title);
    print_keys(&more);
    count_keys(keys, -1);
    count_keys(others, 1);
}

static void load_row(const history *h, int64_t row, float *values)
{
    const trace_config *model = &h->trace->config;
    size_t count = (size_t)(model->q_heads * model->head_dim);
    ckv_convert_to_float(model->dtype,
                         (const char *)h->op->expected + (size_t)row * count * ckv_dtype_bytes(model->dtype), count,
                         values);
}

static double tolerance(const history *h, const diagnosis *found)
{
    return session_default_tolerance(h->trace->config.dtype, found->largest);
}

static bool fits(const history *h, const diagnosis *found, const mistake *candidate)
{
    return mistake_fits(found, candidate, tolerance(h, found));
}

static void print_verdict(const history *h, const diagnosis *found)
{
    enum { SHOWN = 5 };
    printf("recorded output: off by %.2g at head %" PRId64 " (rank %" PRId64 ") channel %" PRId64
           ": %.6g instead of %.6g; tolerance %.2g\n",
           found->error, found->head, found->head * h->ranks / h->trace->config.q_heads, found->channel,
           found->observed, found->wanted, tolerance(h, found));
    printf("residual  class    mistake\n");
    for (int64_t i = 0; i < found->num_mistakes && i < SHOWN; i++) {
        const mistake *candidate = &found->mistakes[i];
        printf("%-9.2g %-8s %s%s\n", candidate->residual, candidate->name, candidate->what,
               fits(h, found, candidate) ? "" : " (does not fit)");
    }
    if (found->num_mistakes == 0 || !fits(h, found, &found->mistakes[0])) {
        printf("verdict: wrong, and no known mistake fits\n");
        return;
    }
    const mistake *best = &found->mistakes[0];
    printf("verdict: %s: %s\n", best->name, best->what);
    print_difference(h, "read, but should not have been:", &best->keys, &found->window);
    print_difference(h, "not read, but should have been:", &found->window, &best->keys);
}

static ckv_status explain_row(const history *h, int64_t row, diagnosis *found, problem *why)
{
    history_keys window = history_window(h, row);
    ckv_status status = history_locate(h, row, &window, why);
    if (status != CKV_OK)
        return status;
    int64_t block = (row < h->op->seq_len ? row : h->op->seq_len - 1) / h->block_size;
    printf("forward %" PRId64 ": layer %" PRId64 ", %" PRId64 " tokens (padded %" PRId64 "), %" PRId64
           " committed before; row %" PRId64 "%s\n",
           h->forward, h->op->layer, h->op->seq_len, h->padded_tokens, h->committed, row,
           row < h->op->seq_len ? "" : " is padding: it reads nothing and comes back zero");
    if (row < h->op->seq_len) {
        printf("block %" PRId64 " of %" PRId64 " tokens should read %" PRId64 " keys:\n", block, h->block_size,
               window.count);
        print_keys(&window);
    }
    if (h->op->expected == NULL) {
        printf("no output was recorded (%s.expected): nothing to explain\n", h->op->tensor);
        return CKV_OK;
    }
    const trace_config *model = &h->trace->config;
    float *observed = arena_alloc(h->memory, (size_t)(model->q_heads * model->head_dim) * sizeof *observed);
    load_row(h, row, observed);
    status = diagnose(h, row, &window, observed, found, why);
    if (status == CKV_OK && found->error > tolerance(h, found))
        print_verdict(h, found);
    else if (status == CKV_OK)
        printf("recorded output: right, off by %.2g; tolerance %.2g\n", found->error, tolerance(h, found));
    return status;
}

static int fail(const char *argv0, const char *path, const problem *why, ckv_status status)
{
    cli_error(argv0, "%s: %s", path, why->text);
    return status == CKV_ERROR_MEMORY || status == CKV_ERROR_INTERNAL ? CLI_INTERNAL : CLI_USAGE;
}

static int explain(const char *argv0, const options *o, const trace *t, arena *memory)
{
    history h;
    problem why;
    diagnosis found = {0};
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
    if (status == CKV_OK)
        status = explain_row(&h, o->row, &found, &why);
    history_close(&h);
    if (status != CKV_OK)
        return fail(argv0, o->trace, &why, status);
    return found.error > 0 && found.error > tolerance(&h, &found) ? CLI_FAIL : CLI_OK;
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
    arena memory = {0};
    code = explain(argv[0], &o, t, &memory);
    arena_free(&memory);
    trace_free(&t);
    return code;
}
