/* SPDX-License-Identifier: Apache-2.0 */
/* ckv lists shard */
#include "tools/lists/durations.h"
#include "tools/lists/options.h"
#include "tools/lists/selection.h"

enum { MAX_SHARDS = 4096 };

typedef struct shard_options {
    lists_options shared;
    int64_t shards;
    int64_t shard;
    const char *durations_file;
} shard_options;

static const struct argp_option shard_option_table[] = {
    {"shards", 'N', "N", 0, "How many shards there are", 0},
    {"shard", 'I', "I", 0, "Which one to print, from 1", 0},
    {"durations", 'D', "FILE", 0,
     "Seconds of past runs: a JSON object from an entry or a test to its seconds, or a folder of them, one for each "
     "class of hardware (h200x8.json)",
     0},
    {0},
};

static error_t parse_shard(int key, char *argument, struct argp_state *state)
{
    shard_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->shared;
        return 0;
    case 'N':
        return cli_parse_integer("--shards", argument, 1, MAX_SHARDS, &options->shards);
    case 'I':
        return cli_parse_integer("--shard", argument, 1, MAX_SHARDS, &options->shard);
    case 'D':
        options->durations_file = argument;
        return 0;
    case ARGP_KEY_END:
        if (options->shards == 0 || options->shard == 0)
            return cli_usage_error("--shards N and --shard I are needed");
        if (options->shard > options->shards)
            return cli_usage_error("--shard is %lld; there are %lld shards", (long long)options->shard,
                                   (long long)options->shards);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child shared_child[] = {{&lists_options_argp, 0, NULL, 0}, {0}};

static const struct argp shard_argp = {
    .options = shard_option_table,
    .parser = parse_shard,
    .children = shared_child,
    .doc = "Split what 'ckv lists select' prints into N shards of about the same duration, and print shard I. The "
           "shards are "
           "disjoint, and together they are the selection; the plan goes to standard error."
           "\vAn entry without a duration counts as the average of those that have one. A suite's duration is the sum "
           "of its "
           "tests'.\n\nExample:\n"
           "  ckv lists shard --shards 4 --shard 1 --context l0_cpu -D seconds.json\n",
};

static void print_shard(arena *memory, const selection *chosen, const fact_set *durations, size_t shards, size_t shard)
{
    shard_piece *pieces = arena_alloc(memory, chosen->count * sizeof *pieces);
    shard_load *loads = arena_alloc(memory, shards * sizeof *loads);
    for (size_t i = 0; i < chosen->count; i++)
        pieces[i] = (shard_piece){.seconds = durations_of_entry(durations, chosen->entries[i]), .order = i};
    shard_split(pieces, chosen->count, loads, shards);
    for (size_t i = 0; i < chosen->count; i++)
        if (pieces[i].shard == shard)
            puts(chosen->entries[i]->text);
    shard_print_plan(stderr, loads, shards, shard, "entries");
}

int lists_shard(int argc, char **argv)
{
    shard_options options = {0};
    diagnostics log = {.stream = stderr};
    fact_set durations = {NULL};
    lists_job job;
    arena *memory = &options.shared.memory;
    int code = cli_parse(&shard_argp, argc, argv, &options);
    if (code == CLI_OK)
        code = lists_load(argv[0], &options.shared, &job);
    const char *file = code == CLI_OK && options.durations_file != NULL
                           ? durations_file(memory, options.durations_file, &job.facts)
                           : NULL;
    if (file != NULL && !durations_read(memory, &log, file, &durations))
        code = CLI_USAGE;
    if (code == CLI_OK) {
        selection chosen = select_entries(memory, &log, job.context, &job.facts, options.shared.lenient);
        print_shard(memory, &chosen, &durations, (size_t)options.shards, (size_t)options.shard - 1);
        code = lists_finish(argv[0]);
    }
    arena_free(memory);
    return code;
}
