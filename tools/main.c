/* SPDX-License-Identifier: Apache-2.0 */
/* The ckv program: one command per file. */
#include "tools/common/cli.h"
#include "tools/common/suggest.h"

#include <ckv/version.h>
#include <stdio.h>
#include <string.h>

static const cli_command commands[] = {
    {"demo", "roll video models through the cache and check every forward", cmd_demo},
    {"replay", "run a recorded trace and compare every forward with the exact window", cmd_replay},
    {"explain", "say which keys a row of a trace should read, and which known mistake fits", cmd_explain},
    {"report", "make a page of a trace: pages, keys, errors, shards and what explains them", cmd_report},
    {"repro", "build a padded first chunk, run it on several ranks and on one; shrink a failing trace", cmd_repro},
    {"window", "run cache operations and print which tokens each block reads", cmd_window},
    {"blocks", "run block-manager operations: prefix reuse, windows, eviction, offload", cmd_blocks},
    {"size", "tokens and bytes a geometry needs; the largest window that fits", cmd_size},
    {"bench", "measure attention, commits, writes and exchanges on this machine", cmd_bench},
    {"lists", "test lists: select for a machine, explain, check, shard and run", cmd_lists},
    {NULL, NULL, NULL},
};

static void print_help(FILE *stream)
{
    fputs("Usage: ckv COMMAND [OPTION...]\n\n"
          "Causal K/V cache for autoregressive video models.\n\n"
          "Commands:\n",
          stream);
    for (const cli_command *command = commands; command->name != NULL; command++)
        fprintf(stream, "  %-8s %s\n", command->name, command->summary);
    fputs("\n'ckv COMMAND --help' explains a command. New here? Try 'ckv demo'.\n", stream);
}

static int run_command(const cli_command *command, int argc, char **argv)
{
    char name[64];
    snprintf(name, sizeof name, "ckv %s", command->name);
    argv[1] = name;
    return command->run(argc - 1, argv + 1);
}

static int refuse_command(const char *name)
{
    suggestion near = suggest_begin(name);
    for (const cli_command *command = commands; command->name != NULL; command++)
        suggest_offer(&near, command->name);
    if (near.best != NULL)
        cli_error("ckv", "unknown command '%s', did you mean '%s'?", name, near.best);
    else
        cli_error("ckv", "unknown command '%s'; see 'ckv --help'", name);
    return CLI_USAGE;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        cli_error("ckv", "a command is missing; see 'ckv --help'");
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("ckv %s\n", ckv_version());
        return CLI_OK;
    }
    for (const cli_command *command = commands; command->name != NULL; command++)
        if (strcmp(argv[1], command->name) == 0)
            return run_command(command, argc, argv);
    return refuse_command(argv[1]);
}

int main(int argc, char **argv)
{
    cli_hold_descriptors();
    return cli_finish("ckv", run(argc, argv));
}
