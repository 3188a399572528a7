/* SPDX-License-Identifier: Apache-2.0 */
/* ckv demo: the main job on real geometries, small enough for a CPU. */
#include "tools/common/cli.h"
#include "tools/common/launch_env.h"
#include "tools/demo/rollout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KEY_DENOISING = 256, KEY_SLIDES, KEY_HEAD_DIM, KEY_LAYERS, KEY_DTYPE, KEY_PAGE };

typedef struct demo_options {
    const char *geometry; /* NULL: all */
    int64_t denoising_forwards, slides, head_dim, layers, tokens_per_page;
    ckv_dtype dtype;
} demo_options;

static const struct argp_option option_table[] = {
    {"geometry", 'g', "NAME", 0, "cosmos3-nano or longlive (default: both)", 0},
    {"slides", KEY_SLIDES, "N", 0, "Chunks after the window is full (default 3)", 0},
    {"denoising-forwards", KEY_DENOISING, "N", 0, "Before each chunk's clean forward (default 1; the models use 4)", 0},
    {"head-dim", KEY_HEAD_DIM, "N", 0, "Elements of a head vector (default 64; the models use 128)", 0},
    {"layers", KEY_LAYERS, "N", 0, "Layers (default 1; the models have 30 and 36)", 0},
    {"dtype", KEY_DTYPE, "NAME", 0, "fp32 (default), bf16 or fp16", 0},
    {"tokens-per-page", KEY_PAGE, "N", 0, "A power of two (default 32)", 0},
    {0},
};

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    demo_options *options = state->input;
    switch (key) {
    case 'g':
        options->geometry = value;
        return 0;
    case KEY_SLIDES:
        return cli_parse_integer("--slides", value, 0, 1000, &options->slides);
    case KEY_DENOISING:
        return cli_parse_integer("--denoising-forwards", value, 0, 100, &options->denoising_forwards);
    case KEY_HEAD_DIM:
        return cli_parse_integer("--head-dim", value, 1, 1024, &options->head_dim);
    case KEY_LAYERS:
        return cli_parse_integer("--layers", value, 1, 1000, &options->layers);
    case KEY_DTYPE:
        return ckv_tensor_dtype_from_name(value, &options->dtype) == CKV_OK
                   ? 0
                   : cli_usage_error("--dtype: %s", ckv_last_error());
    case KEY_PAGE:
        return cli_parse_integer("--tokens-per-page", value, 1, 4096, &options->tokens_per_page);
    case ARGP_KEY_ARG:
        return cli_usage_error("unexpected argument '%s'", value);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table,
    .parser = parse_option,
    .doc =
        "Roll video models through the cache, chunk after chunk, and compare every forward with the exact window."
        "\vThe geometries are published ones (frames, chunks, prompt or sink, window), longlive at 464 x 816 so that "
        "a frame is an odd number of tokens; heads, layers and head_dim are reduced so that a CPU can do it, and "
        "tensors are random. Under a launcher the ranks share the work by "
        "Ulysses: "
        "mpirun -np 2 ckv demo.\n\n"
        "The last columns are the point: the error against the exact window is rounding; a window rounded down to a "
        "page lets in older keys and is off by far more.\n\n"
        "Exit status: 0 every forward is right, 1 one is wrong, 2 usage.",
};

/* LongLive runs at 464 x 816 here: 29 x 51 tokens, an odd number, so that every chunk has to be padded on 2 ranks. */
static const struct {
    const char *name;
    int64_t frame_tokens; /* 0: the published ones */
    int64_t q_heads, kv_heads;
} demos[] = {
    {"cosmos3-nano", 0, 4, 2},
    {"longlive", 1479, 2, 2},
};

enum { NUM_DEMOS = sizeof demos / sizeof demos[0] };

static demo_plan make_plan(const demo_options *options, size_t i)
{
    const model_geometry *geometry = geometry_find(demos[i].name);
    int64_t frame_tokens = demos[i].frame_tokens > 0 ? demos[i].frame_tokens : geometry->frame_tokens;
    return (demo_plan){.geometry = geometry,
                       .frame_tokens = frame_tokens,
                       .pin_tokens = geometry->pin_is_prompt
                                         ? geometry->pin_tokens
                                         : geometry->pin_tokens / geometry->frame_tokens * frame_tokens,
                       .q_heads = demos[i].q_heads,
                       .kv_heads = demos[i].kv_heads,
                       .head_dim = options->head_dim,
                       .layers = options->layers,
                       .dtype = options->dtype,
                       .tokens_per_page = options->tokens_per_page,
                       .denoising_forwards = options->denoising_forwards,
                       .slides = options->slides,
                       .sample_rows = 4};
}

typedef struct progress_bar {
    const char *name;
    int visible;
    struct timespec started;
} progress_bar;

static void show_progress(void *context, int64_t chunk, int64_t chunks)
{
    enum { WIDTH = 40 };
    const progress_bar *bar = context;
    if (!bar->visible)
        return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int done = (int)(chunk * WIDTH / chunks);
    fprintf(stderr, "\r%-14s [%.*s%*s] chunk %" PRId64 " of %" PRId64 ", %lld s ", bar->name, done,
            "########################################", WIDTH - done, "", chunk, chunks,
            (long long)(now.tv_sec - bar->started.tv_sec));
    if (chunk == chunks)
        fprintf(stderr, "\r%*s\r", 90, "");
}

static void print_plan(const demo_plan *plan, int ranks)
{
    const model_geometry *geometry = plan->geometry;
    printf("%s: frames of %" PRId64 " tokens, first chunk %" PRId64 " frame%s, then %" PRId64 "; %s of %" PRId64
           " tokens; window of %" PRId64 " frames\n",
           geometry->name, plan->frame_tokens, geometry->first_chunk_frames,
           geometry->first_chunk_frames == 1 ? "" : "s", geometry->chunk_frames,
           geometry->pin_is_prompt ? "prompt" : "sink", plan->pin_tokens, geometry->window_frames);
    printf("  here: %" PRId64 " of %" PRId64 " query heads, %" PRId64 " of %" PRId64 " K/V heads, head_dim %" PRId64
           " of %" PRId64 ", %" PRId64 " of %" PRId64 " layers, %" PRId64 "+1 of %" PRId64
           "+1 forwards a chunk, %s, %d rank%s\n",
           plan->q_heads, geometry->q_heads, plan->kv_heads, geometry->kv_heads, plan->head_dim, geometry->head_dim,
           plan->layers, geometry->layers, plan->denoising_forwards, geometry->denoising_forwards,
           ckv_dtype_name(plan->dtype), ranks, ranks == 1 ? "" : "s");
}

static void print_table(const demo_outcome outcomes[NUM_DEMOS], const int ran[NUM_DEMOS])
{
    printf("\n%-14s %7s %9s %7s %8s %8s %12s %14s %12s\n", "geometry", "chunks", "forwards", "padded", "keys",
           "evicted", "error", "page-aligned", "ms/forward");
    printf("%-14s %7s %9s %7s %8s %8s %12s %14s %12s\n", "", "", "", "", "at most", "pages", "exact window",
           "window error", "(attention)");
    for (size_t i = 0; i < NUM_DEMOS; i++) {
        const demo_outcome *o = &outcomes[i];
        if (ran[i])
            printf("%-14s %7" PRId64 " %9" PRId64 " %7" PRId64 " %8" PRId64 " %8" PRId64 " %12.2e %14.2e %12.1f\n",
                   demos[i].name, o->chunks, o->forwards, o->padded_forwards, o->keys, o->evicted_pages, o->max_error,
                   o->page_aligned_error, 1e3 * o->attention_seconds / (double)o->forwards);
    }
}

/* The exit code, the same on every rank; `speaks` prints the verdict. */
static int verdict(const demo_outcome outcomes[NUM_DEMOS], int speaks)
{
    int64_t forwards = 0, wrong = 0;
    for (size_t i = 0; i < NUM_DEMOS; i++) {
        forwards += outcomes[i].forwards;
        wrong += outcomes[i].wrong;
    }
    if (speaks)
        printf("\n%" PRId64 " forwards, %" PRId64 " ok, %" PRId64 " wrong: %s\n", forwards, forwards - wrong, wrong,
               wrong == 0 ? "every block read exactly its window" : "some block did not read exactly its window");
    return wrong == 0 ? CLI_OK : CLI_FAIL;
}

static int run_demos(const demo_options *options, ckv_comm *comm, const char *argv0)
{
    int speaks = ckv_comm_rank(comm) == 0;
    demo_outcome outcomes[NUM_DEMOS] = {{0}};
    int ran[NUM_DEMOS] = {0};
    for (size_t i = 0; i < NUM_DEMOS; i++) {
        if (options->geometry != NULL && strcmp(options->geometry, demos[i].name) != 0)
            continue;
        demo_plan plan = make_plan(options, i);
        progress_bar bar = {.name = demos[i].name, .visible = speaks && isatty(STDERR_FILENO)};
        clock_gettime(CLOCK_MONOTONIC, &bar.started);
        if (speaks)
            print_plan(&plan, ckv_comm_size(comm));
        fflush(stdout);
        problem why;
        ckv_status status = demo_run(comm, &plan, show_progress, &bar, &outcomes[i], &why);
        if (status != CKV_OK && launch_speaks(comm, status))
            cli_error(argv0, "%s: %s", demos[i].name, why.text);
        if (status != CKV_OK)
            return status == CKV_ERROR_INVALID || status == CKV_ERROR_UNSUPPORTED ? CLI_USAGE : CLI_INTERNAL;
        ran[i] = 1;
    }
    if (speaks)
        print_table(outcomes, ran);
    return verdict(outcomes, speaks);
}

static int check_geometry(const demo_options *options, const char *argv0, int speaks)
{
    for (size_t i = 0; i < NUM_DEMOS; i++)
        if (options->geometry == NULL || strcmp(options->geometry, demos[i].name) == 0)
            return CLI_OK;
    if (speaks)
        cli_error(argv0, "--geometry is '%s'; it must be cosmos3-nano or longlive; see '%s --help'", options->geometry,
                  argv0);
    return CLI_USAGE;
}

int cmd_demo(int argc, char **argv)
{
    demo_options options = {
        .denoising_forwards = 1, .slides = 3, .head_dim = 64, .layers = 1, .tokens_per_page = 32, .dtype = CKV_FP32};
    int result = launch_parse(&argp, argc, argv, &options);
    if (result == CLI_OK)
        result = check_geometry(&options, argv[0], launch_env_rank() == 0);
    ckv_comm *comm = NULL;
    int started = launch_start(argv[0], &comm);
    if (started != CLI_OK)
        return started;
    if (result == CLI_OK)
        result = run_demos(&options, comm, argv[0]);
    return launch_end(&comm, result);
}
