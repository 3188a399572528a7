/* SPDX-License-Identifier: Apache-2.0 */
/* ckv lists: its commands, and ckv lists facts. */
#include "tools/lists/options.h"

#include "tools/common/suggest.h"

#include <stdlib.h>
#include <string.h>

static const struct argp facts_argp = {
    .doc = "Print this machine as one flat JSON object, the facts that conditions of lists are compared with. GPUs are "
           "asked of the NVIDIA driver; without it there are none. What could not be found out is null.\vKeep the "
           "output to select for this machine from elsewhere:\n"
           "  ckv lists facts > machine.json\n"
           "  ckv lists select --facts machine.json --context l0_cpu\n",
};

int lists_facts(int argc, char **argv)
{
    int code = cli_parse(&facts_argp, argc, argv, NULL);
    if (code != CLI_OK)
        return code;
    json_t *facts = facts_probe(stderr);
    char *text = facts == NULL ? NULL : json_dumps(facts, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    json_decref(facts);
    if (text == NULL) {
        cli_error(argv[0], "out of memory");
        return CLI_INTERNAL;
    }
    puts(text);
    free(text);
    return lists_finish(argv[0]);
}

static const cli_command commands[] = {
    {"facts", "this machine as JSON", lists_facts},
    {"select", "the entries that a machine runs", lists_select},
    {"why", "why an entry is selected for a machine, or not", lists_why},
    {"check", "everything that is wrong with the lists and waivers", lists_check},
    {"shard", "a balanced part of the selection", lists_shard},
    {"run", "run the selection as tests of a build folder", lists_run},
    {NULL, NULL, NULL},
};

static void print_help(FILE *stream)
{
    fputs("Usage: ckv lists COMMAND [OPTION...]\n\n"
          "A test list says which tests run on which machine. Lists are YAML files in the\n"
          "grammar of TensorRT-LLM's test-db: a context holds blocks, a block holds a\n"
          "condition on facts of the machine and the tests to run where it holds.\n\n"
          "Commands:\n",
          stream);
    for (const cli_command *command = commands; command->name != NULL; command++)
        fprintf(stream, "  %-8s %s\n", command->name, command->summary);
    fputs("\n'ckv lists COMMAND --help' explains a command.\n"
          "What runs here before a merge:\n"
          "  ckv lists select --dir test_lists --context l0_cpu --set stage=pre_merge\n"
          "  ckv lists run --dir test_lists --context l0_cpu --set stage=pre_merge --build build/cpu\n",
          stream);
}

int cmd_lists(int argc, char **argv)
{
    if (argc < 2) {
        cli_error(argv[0], "a command is missing; see '%s --help'", argv[0]);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "-?") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return CLI_OK;
    }
    suggestion near = suggest_begin(argv[1]);
    for (const cli_command *command = commands; command->name != NULL; command++) {
        if (strcmp(argv[1], command->name) == 0) {
            char name[64];
            snprintf(name, sizeof name, "%s %s", argv[0], command->name);
            argv[1] = name;
            return command->run(argc - 1, argv + 1);
        }
        suggest_offer(&near, command->name);
    }
    cli_error(argv[0], "unknown command '%s'%s%s%s; see '%s --help'", argv[1],
              near.best != NULL ? ", did you mean '" : "", near.best != NULL ? near.best : "",
              near.best != NULL ? "'?" : "", argv[0]);
    return CLI_USAGE;
}
