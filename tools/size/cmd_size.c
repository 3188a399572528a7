/* SPDX-License-Identifier: Apache-2.0 */
/* ckv size: what a geometry needs before anything is allocated. */
#include "tools/common/cli.h"
#include "tools/common/geometries.h"

#include <ckv/cache.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_PIN = 256,
    KEY_WINDOW,
    KEY_STAGED,
    KEY_BLOCKS,
    KEY_LAYERS,
    KEY_KV_HEADS,
    KEY_HEAD_DIM,
    KEY_DTYPE,
    KEY_PAGE,
    KEY_RANKS,
    KEY_DEVICE,
    KEY_BUDGET,
    KEY_JSON,
};

typedef struct size_options {
    ckv_pool_config pool;
    ckv_rollout_config rollout;
    int64_t block_sizes[CKV_MAX_CAUSAL_BLOCK_SIZES];
    int64_t ranks;
    const char *device;
    int64_t budget_bytes; /* 0: not asked */
    int json;
} size_options;

static const struct argp_option option_table[] = {
    {"geometry", 'g', "NAME", 0, "Start from a published model geometry (see below); later options override it", 0},
    {"pin-tokens", KEY_PIN, "N", 0, "Tokens of the fixed region (default 0)", 1},
    {"window-tokens", KEY_WINDOW, "N", 0, "History a causal block sees", 1},
    {"max-staged-tokens", KEY_STAGED, "N", 0, "Most tokens one forward stages", 1},
    {"causal-block-sizes", KEY_BLOCKS, "N,N,...", 0, "Declared causal block sizes", 1},
    {"layers", KEY_LAYERS, "N", 0, "Layers", 2},
    {"kv-heads", KEY_KV_HEADS, "N", 0, "K/V heads of the model, before sharding", 2},
    {"head-dim", KEY_HEAD_DIM, "N", 0, "Elements of a head vector", 2},
    {"dtype", KEY_DTYPE, "NAME", 0, "What pages hold: fp32, bf16 (default), fp16 or fp8_e4m3", 2},
    {"tokens-per-page", KEY_PAGE, "N", 0, "A power of two (default 32)", 2},
    {"ranks", KEY_RANKS, "N", 0, "Ranks that share the K/V heads (default 1); figures are for one rank", 2},
    {"device", KEY_DEVICE, "NAME", 0, "Whose allocator rounds the bytes: host (default) or cuda", 2},
    {"budget", KEY_BUDGET, "BYTES", 0, "Also print the largest window whose pool fits; suffixes KiB, MiB, GiB", 3},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object", 3},
    {0},
};

static error_t set_geometry(size_options *options, const char *name)
{
    const model_geometry *geometry = geometry_find(name);
    if (geometry == NULL)
        return cli_usage_error("--geometry is '%s'; it must be one of %s", name, geometry_names());
    options->pool.layers = geometry->layers;
    options->pool.kv_heads = geometry->kv_heads;
    options->pool.head_dim = geometry->head_dim;
    options->rollout.pin_tokens = geometry->pin_tokens;
    options->rollout.window_tokens = geometry->window_frames * geometry->frame_tokens;
    options->rollout.max_staged_tokens = geometry_chunk_tokens(geometry);
    options->block_sizes[0] = geometry->first_chunk_frames * geometry->frame_tokens;
    options->block_sizes[1] = geometry->chunk_frames * geometry->frame_tokens;
    options->rollout.num_causal_block_sizes = 2;
    if (geometry->clean_in_frames)
        options->block_sizes[options->rollout.num_causal_block_sizes++] = geometry->frame_tokens;
    return 0;
}

static error_t set_block_sizes(size_options *options, char *text)
{
    size_t count = 0;
    char *rest = text;
    for (char *part = strsep(&rest, ","); part != NULL; part = strsep(&rest, ",")) {
        if (count == CKV_MAX_CAUSAL_BLOCK_SIZES)
            return cli_usage_error("--causal-block-sizes holds more than %d sizes", CKV_MAX_CAUSAL_BLOCK_SIZES);
        error_t error = cli_parse_integer("--causal-block-sizes", part, 1, INT64_MAX, &options->block_sizes[count++]);
        if (error != 0)
            return error;
    }
    options->rollout.num_causal_block_sizes = count;
    return 0;
}

static error_t set_budget(size_options *options, const char *text)
{
    static const struct {
        const char *suffix;
        int64_t bytes;
    } units[] = {{"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    char *suffix;
    errno = 0;
    intmax_t count = strtoimax(text, &suffix, 10);
    for (size_t i = 0; i < sizeof units / sizeof units[0] && errno == 0 && suffix != text; i++) {
        if (strcmp(suffix, units[i].suffix) == 0 && count >= 1 && count <= INT64_MAX / units[i].bytes) {
            options->budget_bytes = count * units[i].bytes;
            return 0;
        }
    }
    return cli_usage_error(
        "--budget is '%s'; it must be a positive integer of bytes, or of KiB, MiB or GiB with that suffix", text);
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    size_options *options = state->input;
    switch (key) {
    case 'g':
        return set_geometry(options, value);
    case KEY_PIN:
        return cli_parse_integer("--pin-tokens", value, 0, INT64_MAX, &options->rollout.pin_tokens);
    case KEY_WINDOW:
        return cli_parse_integer("--window-tokens", value, 0, INT64_MAX, &options->rollout.window_tokens);
    case KEY_STAGED:
        return cli_parse_integer("--max-staged-tokens", value, 1, INT64_MAX, &options->rollout.max_staged_tokens);
    case KEY_BLOCKS:
        return set_block_sizes(options, value);
    case KEY_LAYERS:
        return cli_parse_integer("--layers", value, 1, INT64_MAX, &options->pool.layers);
    case KEY_KV_HEADS:
        return cli_parse_integer("--kv-heads", value, 1, INT64_MAX, &options->pool.kv_heads);
    case KEY_HEAD_DIM:
        return cli_parse_integer("--head-dim", value, 1, INT64_MAX, &options->pool.head_dim);
    case KEY_DTYPE:
        return ckv_dtype_from_name(value, &options->pool.dtype) == CKV_OK
                   ? 0
                   : cli_usage_error("--dtype: %s", ckv_last_error());
    case KEY_PAGE:
        return cli_parse_integer("--tokens-per-page", value, 1, INT64_MAX, &options->pool.tokens_per_page);
    case KEY_RANKS:
        return cli_parse_integer("--ranks", value, 1, INT32_MAX, &options->ranks);
    case KEY_DEVICE:
        options->device = value;
        return 0;
    case KEY_BUDGET:
        return set_budget(options, value);
    case KEY_JSON:
        options->json = 1;
        return 0;
    case ARGP_KEY_ARG:
        return cli_usage_error("unexpected argument '%s'", value);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const char doc_format[] =
    "Tokens and bytes that a geometry needs: K/V pool and rollout state; and the largest window that fits a budget."
    "\vFor example: ckv size --geometry cosmos3-nano --ranks 2 --budget 40GiB\n\n"
    "Exit status: 0 printed, 1 not even a window of 0 fits the budget, 2 the options make no sense.\n\n"
    "Geometries: %s";

typedef struct size_figures {
    ckv_rollout_size tokens;
    int64_t pool_bytes;
    int64_t state_bytes;       /* kernel-facing tensors besides the pool */
    int64_t max_window_tokens; /* -1: not asked */
} size_figures;

static ckv_status compute(size_options *options, size_figures *figures)
{
    options->rollout.causal_block_sizes = options->block_sizes;
    ckv_status status = ckv_rollout_config_size(&options->rollout, options->pool.tokens_per_page, &figures->tokens);
    if (status == CKV_OK) {
        options->pool.pool_tokens = figures->tokens.pool_tokens;
        status = ckv_pool_config_bytes(&options->pool, &figures->pool_bytes);
    }
    if (status == CKV_OK)
        status = ckv_rollout_state_bytes(&options->rollout, &options->pool, &figures->state_bytes);
    figures->max_window_tokens = -1;
    if (status == CKV_OK && options->budget_bytes > 0)
        status = ckv_rollout_max_window(&options->rollout, &options->pool, options->budget_bytes,
                                        &figures->max_window_tokens);
    return status;
}

static void print_json(const size_options *options, const size_figures *figures)
{
    json_t *object = json_pack("{sI sI sI sI sI sI}", "resident_tokens", (json_int_t)figures->tokens.resident_tokens,
                               "private_tokens", (json_int_t)figures->tokens.private_tokens, "pool_tokens",
                               (json_int_t)figures->tokens.pool_tokens, "pool_pages",
                               (json_int_t)(figures->tokens.pool_tokens / options->pool.tokens_per_page), "pool_bytes",
                               (json_int_t)figures->pool_bytes, "state_bytes", (json_int_t)figures->state_bytes);
    if (figures->max_window_tokens >= 0) {
        json_object_set_new(object, "budget_bytes", json_integer(options->budget_bytes));
        json_object_set_new(object, "max_window_tokens", json_integer(figures->max_window_tokens));
    }
    json_dumpf(object, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(object);
}

/* Models name a size more than once (first chunk, clean frame); it costs its copies once. */
static bool is_first_of_its_size(const size_options *options, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (options->block_sizes[k] == options->block_sizes[i])
            return false;
    return true;
}

static void print_text(const size_options *options, const size_figures *figures)
{
    const ckv_rollout_size *tokens = &figures->tokens;
    int64_t page = options->pool.tokens_per_page;
    printf("resident  %12" PRId64 " tokens  %8" PRId64 " pages  (pin %" PRId64 " + window %" PRId64 " + staged %" PRId64
           ", and a spare page)\n",
           tokens->resident_tokens, tokens->resident_tokens / page, options->rollout.pin_tokens,
           options->rollout.window_tokens, options->rollout.max_staged_tokens);
    printf("private   %12" PRId64 " tokens  %8" PRId64 " pages  (copies for blocks of", tokens->private_tokens,
           tokens->private_tokens / page);
    for (size_t i = 0; i < options->rollout.num_causal_block_sizes; i++)
        if (is_first_of_its_size(options, i))
            printf("%s %" PRId64, i > 0 ? "," : "", options->block_sizes[i]);
    printf(")\npool      %12" PRId64 " tokens  %8" PRId64 " pages\n", tokens->pool_tokens, tokens->pool_tokens / page);
    printf("memory    %12.1f MiB on each rank (%" PRId64 " bytes: %" PRId64 " layers, K and V, %" PRId64
           " heads of %" PRId64 ", %s, guard page included)\n",
           (double)figures->pool_bytes / (1 << 20), figures->pool_bytes, options->pool.layers, options->pool.kv_heads,
           options->pool.head_dim, ckv_dtype_name(options->pool.dtype));
    printf("state     %12" PRId64 " bytes on each rank besides the pool (rows, slots and tables that kernels read)\n",
           figures->state_bytes);
    if (figures->max_window_tokens >= 0)
        printf("budget    %12" PRId64 " tokens of window at most in %" PRId64 " bytes\n", figures->max_window_tokens,
               options->budget_bytes);
}

int cmd_size(int argc, char **argv)
{
    size_options options = {
        .pool = ckv_pool_config_default(), .rollout = ckv_rollout_config_default(), .ranks = 1, .device = "host"};
    options.pool.dtype = options.pool.tensor_dtype = CKV_BF16;
    options.pool.tokens_per_page = 32;
    char doc[1024];
    snprintf(doc, sizeof doc, doc_format, geometry_names());
    const struct argp argp = {.options = option_table, .parser = parse_option, .doc = doc};
    int result = cli_parse(&argp, argc, argv, &options);
    if (result != CLI_OK)
        return result;
    if (options.rollout.max_staged_tokens == 0 || options.pool.layers == 0) {
        cli_error(argv[0], "a --geometry is missing, or all of its sizes; see '%s --help'", argv[0]);
        return CLI_USAGE;
    }
    if (options.pool.kv_heads % options.ranks != 0) {
        cli_error(argv[0], "%" PRId64 " K/V heads cannot be shared evenly by %" PRId64 " ranks", options.pool.kv_heads,
                  options.ranks);
        return CLI_USAGE;
    }
    options.pool.kv_heads /= options.ranks;
    if (ckv_device_find(options.device, &options.pool.device) != CKV_OK) {
        cli_error(argv[0], "--device: %s", ckv_last_error());
        return CLI_USAGE;
    }
    size_figures figures;
    ckv_status status = compute(&options, &figures);
    if (status != CKV_OK) {
        cli_error(argv[0], "%s; see '%s --help'", ckv_last_error(), argv[0]);
        return status == CKV_ERROR_CAPACITY ? CLI_FAIL : CLI_USAGE;
    }
    if (options.json)
        print_json(&options, &figures);
    else
        print_text(&options, &figures);
    return CLI_OK;
}
