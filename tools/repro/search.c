/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/repro/search.h"

#include "tools/common/cli.h"
#include "tools/repro/padded_case.h"
#include "tools/repro/rank_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct options {
    int64_t seed, seconds, cases;
    double tolerance;
} options;

static const char doc[] =
    "Draw padded first chunks at random (ranks, tokens, chunks, window, pin, heads, head_dim, layers, dtype, pages, "
    "what padding holds) and run each as ckv repro padded-first-chunk does, until the time is up.\v"
    "Every case that is wrong or refused is printed as the command that runs it alone. The same seed draws the same "
    "cases in the same order; at least one runs.\n\n"
    "Exit status: 0 all right, 1 something is wrong, 2 usage, 3 the machine failed.";

enum { KEY_SEED = 256, KEY_SECONDS, KEY_CASES, KEY_TOLERANCE };

static const struct argp_option option_table[] = {
    {"seed", KEY_SEED, "S", 0, "where to start (default 1)", 0},
    {"seconds", KEY_SECONDS, "N", 0, "start no case after that long (default 10)", 0},
    {"cases", KEY_CASES, "N", 0, "nor after that many (default: any number)", 0},
    {"tolerance", KEY_TOLERANCE, "T", 0, "largest difference that is right (default: as ckv replay)", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    options *o = state->input;
    switch (key) {
    case KEY_SEED:
        return cli_parse_integer("--seed", text, 0, INT32_MAX, &o->seed);
    case KEY_SECONDS:
        return cli_parse_integer("--seconds", text, 0, 1 << 20, &o->seconds);
    case KEY_CASES:
        return cli_parse_integer("--cases", text, 1, INT32_MAX, &o->cases);
    case KEY_TOLERANCE:
        return repro_parse_tolerance(text, &o->tolerance);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int64_t draw(unsigned short state[3], int64_t minimum, int64_t maximum)
{
    return minimum + nrand48(state) % (maximum - minimum + 1);
}

static padded_case draw_case(unsigned short state[3])
{
    padded_case c = {.ranks = draw(state, 2, 6), .chunks = draw(state, 1, 4), .pin_tokens = draw(state, 0, 9)};
    do
        c.tokens = draw(state, 1, 24);
    while (c.tokens % c.ranks == 0);
    c.chunk_tokens = draw(state, 1, 24);
    c.window_tokens = draw(state, 0, 60);
    c.fill = (padded_fill)draw(state, PADDED_RANDOM, PADDED_INF);
    c.seed = draw(state, 0, INT32_MAX);
    c.model = (trace_config){.layers = draw(state, 1, 2),
                             .kv_heads = c.ranks * draw(state, 1, 2),
                             .head_dim = 8 * draw(state, 1, 4),
                             .dtype = (ckv_dtype)draw(state, CKV_FP32, CKV_FP16),
                             .tokens_per_page = (int64_t)1 << draw(state, 0, 4)};
    c.model.q_heads = c.model.kv_heads * draw(state, 1, 3);
    return c;
}

static void print_command(const padded_case *c, double tolerance, const char *what)
{
    const trace_config *model = &c->model;
    printf("%s: ckv repro padded-first-chunk --ranks %" PRId64 " --tokens %" PRId64 " --chunk-tokens %" PRId64
           " --chunks %" PRId64 " --window %" PRId64 " --pin %" PRId64 " --q-heads %" PRId64 " --kv-heads %" PRId64
           " --head-dim %" PRId64 " --layers %" PRId64 " --dtype %s --tokens-per-page %" PRId64
           " --padding %s --seed %" PRId64,
           what, c->ranks, c->tokens, c->chunk_tokens, c->chunks, c->window_tokens, c->pin_tokens, model->q_heads,
           model->kv_heads, model->head_dim, model->layers, ckv_dtype_name(model->dtype), model->tokens_per_page,
           padded_fill_name(c->fill), c->seed);
    if (tolerance >= 0)
        printf(" --tolerance %.17g", tolerance);
    printf("\n");
}

static ckv_status run_case(const padded_case *c, double tolerance, bool *right_out, problem *why)
{
    rank_run many = {0}, one = {0};
    const rank_run_options on_all = {(int)c->ranks, tolerance, NULL}, on_one = {1, tolerance, NULL};
    trace *t = padded_case_make(c);
    if (t == NULL) {
        problem_format(why, "out of memory");
        return CKV_ERROR_MEMORY;
    }
    ckv_status status = rank_run_trace(t, &on_all, &many, why);
    if (status == CKV_OK)
        status = rank_run_trace(t, &on_one, &one, why);
    double largest;
    *right_out = status == CKV_OK && many.wrong + one.wrong + rank_run_compare(t, &many, &one, &largest) == 0;
    rank_run_free(&many);
    rank_run_free(&one);
    trace_free(&t);
    return status;
}

static bool is_refusal(ckv_status status)
{
    return status == CKV_ERROR_INVALID || status == CKV_ERROR_UNSUPPORTED || status == CKV_ERROR_CAPACITY ||
           status == CKV_ERROR_STATE;
}

int repro_search(int argc, char **argv)
{
    static const struct argp argp = {option_table, parse_option, NULL, doc, NULL, NULL, NULL};
    options o = {.seed = 1, .seconds = 10, .cases = INT32_MAX, .tolerance = -1};
    int code = cli_parse(&argp, argc, argv, &o);
    if (code != CLI_OK)
        return code;
    unsigned short state[3] = {0x330e, (unsigned short)(o.seed & 0xffff), (unsigned short)(o.seed >> 16)};
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    int64_t cases = 0, wrong = 0;
    do {
        padded_case c = draw_case(state);
        problem why;
        bool right = false;
        ckv_status status = run_case(&c, o.tolerance, &right, &why);
        if (status != CKV_OK && !is_refusal(status)) {
            cli_error(argv[0], "%s", why.text);
            return CLI_INTERNAL;
        }
        if (!right)
            print_command(&c, o.tolerance, status == CKV_OK ? "wrong" : why.text);
        wrong += !right;
        cases++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec < o.seconds && cases < o.cases);
    printf("%" PRId64 " cases, %" PRId64 " wrong\n", cases, wrong);
    return wrong == 0 ? CLI_OK : CLI_FAIL;
}
