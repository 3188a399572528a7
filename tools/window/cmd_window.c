/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/cli.h"
#include "tools/window/window.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct window_options {
    const char *device;
    int64_t layer;
    const char *script;
} window_options;

static const struct argp_option option_table[] = {
    {"device", 'd', "NAME", 0, "Where the cache lives: host (default) or cuda", 0},
    {"layer", 'l', "N", 0, "Layer whose keys are printed (default 0); all layers must agree", 0},
    {0},
};

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    window_options *options = state->input;
    switch (key) {
    case 'd':
        options->device = value;
        return 0;
    case 'l':
        return cli_parse_integer("--layer", value, 0, INT32_MAX, &options->layer);
    case ARGP_KEY_ARG:
        if (options->script != NULL)
            return cli_usage_error("one script at a time: '%s'", value);
        options->script = value;
        return 0;
    case ARGP_KEY_END:
        return options->script == NULL ? cli_usage_error("the script is missing") : 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table,
    .parser = parse_option,
    .args_doc = "SCRIPT.jsonl",
    .doc = "Run a script of cache operations and print, for every forward, which tokens each causal block reads."
           "\vSCRIPT.jsonl holds one JSON object a line; '-' is standard input. The first op is \"create\", then open, "
           "write_range, zero_values, forward, commit, close, comment. For example:\n\n"
           "{\"op\":\"create\",\"layers\":1,\"kv_heads\":1,\"head_dim\":16,\"dtype\":\"fp32\",\n"
           " \"tokens_per_page\":4,\"pool_tokens\":76}   (one line in the script)\n"
           "{\"op\":\"open\",\"window_tokens\":8,\"max_staged_tokens\":6,\"causal_block_sizes\":[6]}\n"
           "{\"op\":\"forward\",\"tokens\":6,\"causal_block_size\":6}\n"
           "{\"op\":\"commit\",\"tokens\":6}\n\n"
           "docs/FORMATS.md has every op with its fields.\n\n"
           "Each output line is a JSON object: the keys and values of every block as [token id, version], decoded from "
           "the stored K and V; the state after other operations; or the refusal of an operation, which changed "
           "nothing.\n\n"
           "Exit status: 0 the script ran to its end, 2 it could not be read, 3 internal error.",
};

static int check_layer(const window_script *script, int64_t layer)
{
    int64_t layers = script->ops[0].pool.layers;
    if (layer == 0 || layer < layers)
        return CLI_OK;
    cli_error("ckv window", "--layer is %" PRId64 "; the script's cache has layers 0 to %" PRId64, layer, layers - 1);
    return CLI_USAGE;
}

int cmd_window(int argc, char **argv)
{
    window_options options = {.device = "host"};
    int result = cli_parse(&argp, argc, argv, &options);
    if (result != CLI_OK)
        return result;
    const ckv_device *device;
    if (ckv_device_find(options.device, &device) != CKV_OK) {
        cli_error(argv[0], "--device: %s", ckv_last_error());
        return CLI_USAGE;
    }
    json_lines_error error;
    char *text;
    size_t bytes;
    if (!json_lines_read_file(options.script, &text, &bytes, &error)) {
        cli_error(argv[0], "%s", error.text);
        return CLI_USAGE;
    }
    window_script script;
    bool parsed = window_script_parse(options.script, text, bytes, &script, &error);
    free(text);
    if (!parsed) {
        cli_error(argv[0], "%s", error.text);
        return CLI_USAGE;
    }
    result = check_layer(&script, options.layer);
    if (result == CLI_OK)
        result = window_script_run(&script, device, options.layer, stdout);
    if (result == CLI_OK && (fflush(stdout) != 0 || ferror(stdout))) {
        cli_error(argv[0], "the output could not be written");
        result = CLI_INTERNAL;
    }
    window_script_free(&script);
    return result;
}
