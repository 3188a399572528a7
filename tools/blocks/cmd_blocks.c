/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/blocks/run.h"
#include "tools/common/cli.h"
#include "tools/common/json_lines.h"

#include <stdlib.h>

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    const char **script = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (*script != NULL)
            return cli_usage_error("one script at a time: '%s'", value);
        *script = value;
        return 0;
    case ARGP_KEY_END:
        return *script == NULL ? cli_usage_error("the script is missing") : 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .parser = parse_option,
    .args_doc = "SCRIPT.jsonl",
    .doc =
        "Run a script of block-manager operations in host memory and print what happened."
        "\vSCRIPT.jsonl holds one JSON object a line; '-' is standard input. 'init' makes a manager; then add, "
        "prefill, "
        "append, rewind, store_context, remove, pin, find, truncate, offload, stats, events, check and others. For "
        "example:\n\n"
        "{\"op\":\"init\",\"tokens_per_block\":4,\"max_seq_len\":32,\"blocks\":[6,0]}\n"
        "{\"op\":\"add\",\"requests\":[{\"id\":1,\"range\":[1,9]}]}\n"
        "{\"op\":\"prefill\",\"id\":1}\n"
        "{\"op\":\"remove\",\"id\":1}\n"
        "{\"op\":\"add\",\"requests\":[{\"id\":2,\"range\":[1,11]}]}\n\n"
        "docs/FORMATS.md has every op with its fields, docs/blocks.md explains the manager.\n\n"
        "Every line is answered by one JSON object: what the operation did, or its refusal, which changed nothing.\n\n"
        "Exit status: 0 the script ran to its end, 2 it could not be read, 3 the output could not be written.",
};

int cmd_blocks(int argc, char **argv)
{
    const char *script = NULL;
    int result = cli_parse(&argp, argc, argv, &script);
    if (result != CLI_OK)
        return result;
    json_lines_error error;
    char *text;
    size_t bytes;
    if (!json_lines_read_file(script, &text, &bytes, &error)) {
        cli_error(argv[0], "%s", error.text);
        return CLI_USAGE;
    }
    blocks_run run;
    blocks_run_init(&run);
    bool written = blocks_run_text(&run, text, bytes, stdout) && fflush(stdout) == 0 && !ferror(stdout);
    blocks_run_free(&run);
    free(text);
    if (written)
        return CLI_OK;
    cli_error(argv[0], "the output could not be written");
    return CLI_INTERNAL;
}
