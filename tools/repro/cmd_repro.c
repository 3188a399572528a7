/* SPDX-License-Identifier: Apache-2.0 */
/* ckv repro: build a known hard case, run it on several ranks and on one, compare. */
#include "tools/common/cli.h"
#include "tools/common/suggest.h"
#include "tools/repro/cmd_shrink.h"
#include "tools/repro/padded_case.h"
#include "tools/repro/rank_run.h"
#include "tools/repro/search.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char case_name[] = "padded-first-chunk";

typedef struct options {
    const char *name, *write;
    padded_case c; /* 0 in what depends on other options, -1 in window_tokens, until all are read */
    double tolerance;
} options;

static const char doc[] =
    "Build a rollout whose first chunk needs padding to be shared by P ranks, run it on P ranks and on one in this "
    "process, and compare both with the exact window and with each other.\v"
    "A chunk takes two forwards in every layer, the second of which is committed. Later chunks need no padding unless "
    "--chunk-tokens says so. --write keeps the case as a trace with the output of one rank as NAME.expected: run it in "
    "another implementation, or replay it under a launcher. 'ckv repro search --help' draws such cases at random,\n"
    "'ckv repro shrink --help' makes a failing trace small.\n\n"
    "Exit status: 0 all right, 1 something is wrong, 2 usage or a case that cannot run, 3 the machine failed.";

enum {
    KEY_CHUNKS = 256,
    KEY_CHUNK_TOKENS,
    KEY_PIN,
    KEY_Q_HEADS,
    KEY_KV_HEADS,
    KEY_HEAD_DIM,
    KEY_LAYERS,
    KEY_DTYPE,
    KEY_PAGE,
    KEY_PADDING,
    KEY_SEED,
    KEY_TOLERANCE,
};

static const struct argp_option option_table[] = {
    {"ranks", 'p', "P", 0, "ranks, each a thread (default 2)", 0},
    {"tokens", 't', "N", 0, "of the first chunk (default 11); P must not divide them", 0},
    {"chunk-tokens", KEY_CHUNK_TOKENS, "N", 0, "of every later chunk (default: --tokens and its padding)", 0},
    {"chunks", KEY_CHUNKS, "N", 0, "chunks in all (default 4)", 0},
    {"window", 'w', "N", 0, "tokens a chunk sees before its own (default: two chunks)", 0},
    {"pin", KEY_PIN, "N", 0, "first tokens that stay (default 0)", 0},
    {"q-heads", KEY_Q_HEADS, "N", 0, "query heads (default: two a K/V head)", 0},
    {"kv-heads", KEY_KV_HEADS, "N", 0, "K/V heads (default: one a rank)", 0},
    {"head-dim", KEY_HEAD_DIM, "N", 0, "elements of a head vector (default 16)", 0},
    {"layers", KEY_LAYERS, "N", 0, "layers (default 1)", 0},
    {"dtype", KEY_DTYPE, "NAME", 0, "fp32 (default), bf16 or fp16", 0},
    {"tokens-per-page", KEY_PAGE, "N", 0, "a power of two (default 4)", 0},
    {"padding", KEY_PADDING, "WHAT", 0, "what padding rows hold: random (default), zero, nan or inf", 0},
    {"seed", KEY_SEED, "S", 0, "of the tensors (default 1)", 0},
    {"tolerance", KEY_TOLERANCE, "T", 0, "largest difference that is right (default: as ckv replay)", 0},
    {"write", 'o', "TRACE.safetensors", 0, "keep the case as a trace", 0},
    {0}};

static error_t parse_fill(const char *text, padded_fill *fill_out)
{
    for (int fill = PADDED_RANDOM; fill <= PADDED_INF; fill++) {
        if (strcmp(text, padded_fill_name((padded_fill)fill)) != 0)
            continue;
        *fill_out = (padded_fill)fill;
        return 0;
    }
    return cli_usage_error("--padding is '%s'; it must be random, zero, nan or inf", text);
}

static error_t parse_number(int key, const char *text, padded_case *c)
{
    const struct {
        int key;
        const char *name;
        int64_t minimum, maximum;
        int64_t *value;
    } numbers[] = {
        {'p', "--ranks", 2, 64, &c->ranks},
        {'t', "--tokens", 1, 1 << 20, &c->tokens},
        {KEY_CHUNK_TOKENS, "--chunk-tokens", 1, 1 << 20, &c->chunk_tokens},
        {KEY_CHUNKS, "--chunks", 1, 1000, &c->chunks},
        {'w', "--window", 0, 1 << 20, &c->window_tokens},
        {KEY_PIN, "--pin", 0, 1 << 20, &c->pin_tokens},
        {KEY_Q_HEADS, "--q-heads", 1, 1024, &c->model.q_heads},
        {KEY_KV_HEADS, "--kv-heads", 1, 1024, &c->model.kv_heads},
        {KEY_HEAD_DIM, "--head-dim", 1, 1024, &c->model.head_dim},
        {KEY_LAYERS, "--layers", 1, 1000, &c->model.layers},
        {KEY_PAGE, "--tokens-per-page", 1, 4096, &c->model.tokens_per_page},
        {KEY_SEED, "--seed", 0, INT32_MAX, &c->seed},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].key == key)
            return cli_parse_integer(numbers[i].name, text, numbers[i].minimum, numbers[i].maximum, numbers[i].value);
    return ARGP_ERR_UNKNOWN;
}

static error_t refuse_name(const char *text)
{
    static const char *const known[] = {case_name, "search", "shrink", NULL};
    const char *near = suggest_from(text, known);
    if (near != NULL)
        return cli_usage_error("unknown case '%s', did you mean '%s'?", text, near);
    return cli_usage_error("unknown case '%s'; there is '%s'", text, case_name);
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    options *o = state->input;
    switch (key) {
    case KEY_DTYPE:
        return ckv_tensor_dtype_from_name(text, &o->c.model.dtype) == CKV_OK
                   ? 0
                   : cli_usage_error("--dtype: %s", ckv_last_error());
    case KEY_PADDING:
        return parse_fill(text, &o->c.fill);
    case KEY_TOLERANCE:
        return repro_parse_tolerance(text, &o->tolerance);
    case 'o':
        o->write = text;
        return 0;
    case ARGP_KEY_ARG:
        if (o->name != NULL)
            return cli_usage_error("one case at a time: '%s' is too many", text);
        o->name = text;
        return strcmp(text, case_name) == 0 ? 0 : refuse_name(text);
    case ARGP_KEY_NO_ARGS:
        return cli_usage_error("the case is missing; there is '%s'", case_name);
    default:
        return text == NULL ? ARGP_ERR_UNKNOWN : parse_number(key, text, &o->c);
    }
}

/* Fill in what depends on other options, and refuse what is no such case. */
static bool complete(padded_case *c, problem *why)
{
    if (c->tokens % c->ranks == 0)
        return problem_set(why,
                           "%" PRId64 " tokens need no padding on %" PRId64
                           " ranks; take a --tokens that --ranks does not divide",
                           c->tokens, c->ranks);
    if (c->chunk_tokens == 0)
        c->chunk_tokens = padded_case_rows(c, c->tokens);
    if (c->window_tokens < 0)
        c->window_tokens = 2 * c->chunk_tokens;
    if (c->model.kv_heads == 0)
        c->model.kv_heads = c->ranks;
    if (c->model.q_heads == 0)
        c->model.q_heads = 2 * c->model.kv_heads;
    double bytes = padded_case_bytes(c);
    if (bytes > 0x1p30)
        return problem_set(why, "this case has %.3g GiB of tensors, 1 at most; take fewer tokens, chunks or heads",
                           bytes / 0x1p30);
    return true;
}

static void print_case(const padded_case *c)
{
    const trace_config *model = &c->model;
    printf("%s: %" PRId64 " tokens on %" PRId64 " ranks (padded %" PRId64 ", padding %s), then %" PRId64
           " chunks of %" PRId64 "; window %" PRId64 ", pinned %" PRId64 "\n",
           case_name, c->tokens, c->ranks, padded_case_rows(c, c->tokens), padded_fill_name(c->fill), c->chunks - 1,
           c->chunk_tokens, c->window_tokens, c->pin_tokens);
    printf("  %" PRId64 " query and %" PRId64 " K/V heads of %" PRId64 ", %" PRId64 " layers, %s, pages of %" PRId64
           " tokens, seed %" PRId64 "\n",
           model->q_heads, model->kv_heads, model->head_dim, model->layers, ckv_dtype_name(model->dtype),
           model->tokens_per_page, c->seed);
}

static void print_run(const char *name, const rank_run *run)
{
    double error = 0;
    size_t first = run->forwards;
    for (size_t i = 0; i < run->forwards; i++) {
        error = fmax(error, run->results[i].output.error);
        if (first == run->forwards && !run->results[i].output_ok)
            first = i;
    }
    printf("%s: %zu forwards, %zu wrong, off by %.2g from the exact window\n", name, run->forwards, run->wrong, error);
    if (first == run->forwards)
        return;
    const session_difference *worst = &run->results[first].output;
    printf("  forward %zu: row %" PRId64 " head %" PRId64 " channel %" PRId64 " rank %d: %.6g instead of %.6g\n", first,
           worst->row, worst->head, worst->channel, worst->rank, worst->observed, worst->wanted);
}

static bool write_case(trace *t, const rank_run *one, const char *path, problem *why)
{
    size_t forward = 0;
    for (size_t i = 0; i < t->num_ops; i++)
        if (t->ops[i].kind == TRACE_FORWARD)
            t->ops[i].expected = one->outputs[forward++];
    return trace_write(t, path, why);
}

static int fail(const char *argv0, const problem *why, ckv_status status)
{
    cli_error(argv0, "%s", why->text);
    bool is_refusal = status == CKV_ERROR_INVALID || status == CKV_ERROR_UNSUPPORTED || status == CKV_ERROR_CAPACITY;
    return is_refusal ? CLI_USAGE : CLI_INTERNAL;
}

static int run_case(const char *argv0, const options *o, trace *t)
{
    rank_run many, one = {0};
    const rank_run_options on_all = {(int)o->c.ranks, o->tolerance, NULL}, on_one = {1, o->tolerance, NULL};
    problem why;
    ckv_status status = rank_run_trace(t, &on_all, &many, &why);
    if (status == CKV_OK)
        status = rank_run_trace(t, &on_one, &one, &why);
    int code = status == CKV_OK ? CLI_OK : fail(argv0, &why, status);
    if (code == CLI_OK && o->write != NULL && !write_case(t, &one, o->write, &why))
        code = fail(argv0, &why, CKV_ERROR_INVALID);
    if (code == CLI_OK) {
        char name[32];
        snprintf(name, sizeof name, "%" PRId64 " ranks", o->c.ranks);
        print_case(&o->c);
        print_run(name, &many);
        print_run("1 rank", &one);
        double largest;
        size_t apart = rank_run_compare(t, &many, &one, &largest);
        printf("between them: off by %.2g, padding rows included\n", largest);
        bool ok = many.wrong + one.wrong + apart == 0;
        printf("verdict: %s\n", ok ? "right" : "wrong");
        code = ok ? CLI_OK : CLI_FAIL;
    }
    rank_run_free(&many);
    rank_run_free(&one);
    return code;
}

int cmd_repro(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "search") == 0) {
        char name[] = "ckv repro search";
        argv[1] = name;
        return repro_search(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "shrink") == 0) {
        char name[] = "ckv repro shrink";
        argv[1] = name;
        return repro_shrink(argc - 1, argv + 1);
    }
    static const struct argp argp = {option_table, parse_option, case_name, doc, NULL, NULL, NULL};
    options o = {.c = {.ranks = 2, .tokens = 11, .chunks = 4, .window_tokens = -1, .seed = 1}, .tolerance = -1};
    o.c.model = (trace_config){.layers = 1, .head_dim = 16, .dtype = CKV_FP32, .tokens_per_page = 4};
    problem why;
    int code = cli_parse(&argp, argc, argv, &o);
    if (code != CLI_OK)
        return code;
    if (!complete(&o.c, &why) || (o.write != NULL && !safetensors_check_writable(o.write, &why)))
        return fail(argv[0], &why, CKV_ERROR_INVALID);
    trace *t = padded_case_make(&o.c);
    if (t == NULL) {
        problem_format(&why, "out of memory");
        return fail(argv[0], &why, CKV_ERROR_MEMORY);
    }
    code = run_case(argv[0], &o, t);
    trace_free(&t);
    return code;
}
