/* SPDX-License-Identifier: Apache-2.0 */
/* ckv lists select, ckv lists why */
#include "tools/lists/names.h"
#include "tools/lists/options.h"
#include "tools/lists/selection.h"

#include "tools/common/suggest.h"

#include <string.h>

static const char select_doc[] =
    "Print the entries of a context that a machine runs, one per line, in the order of the lists, without markers "
    "and comments. What the machine has no fact for does not match and is named on standard error."
    "\vExamples:\n"
    "  ckv lists select --context l0_cpu --set stage=pre_merge\n"
    "  ckv lists facts >machine.json\n"
    "  ckv lists select --facts machine.json --context l0_dgx_b200\n"
    "\nExit status: 0 also when nothing is selected; 2 when a list, a fact or an option cannot be read.";

int lists_select(int argc, char **argv)
{
    struct argp argp = lists_options_argp;
    argp.doc = select_doc;
    lists_options options = {0};
    lists_job job;
    int code = cli_parse(&argp, argc, argv, &options);
    if (code == CLI_OK)
        code = lists_load(argv[0], &options, &job);
    if (code == CLI_OK) {
        diagnostics log = {.stream = stderr};
        selection chosen = select_entries(&options.memory, &log, job.context, &job.facts, options.lenient);
        for (size_t i = 0; i < chosen.count; i++)
            puts(chosen.entries[i]->text);
        code = lists_finish(argv[0]);
    }
    arena_free(&options.memory);
    return code;
}

typedef struct why_options {
    lists_options shared; /* first: also the input of the shared options */
    const char *entry;
} why_options;

static error_t parse_why(int key, char *argument, struct argp_state *state)
{
    why_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->shared;
        options->shared.any_context = true;
        return 0;
    case ARGP_KEY_ARG:
        if (options->entry != NULL)
            return cli_usage_error("unexpected argument '%s'; an entry with spaces needs quotes", argument);
        options->entry = argument;
        return 0;
    case ARGP_KEY_END:
        return options->entry != NULL ? 0 : cli_usage_error("ENTRY is missing: the test to explain");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child shared_child[] = {{&lists_options_argp, 0, NULL, 0}, {0}};

static const struct argp why_argp = {
    .parser = parse_why,
    .args_doc = "ENTRY",
    .children = shared_child,
    .doc = "Tell, for each block of a context (without --context: of all lists) that names ENTRY, whether it is "
           "selected for a machine, or the first key that fails with the machine's value and the list's. ENTRY is an "
           "entry as written, or the name of a test.\vExample:\n"
           "  ckv lists why --context l0_dgx_h200 ulysses.ranks_equal_one_rank-np2\n\n"
           "Exit status: 0 when a block names the entry; 2 when none does, or something cannot be read.",
};

static const list_entry *find_entry(const list_block *block, const char *wanted)
{
    for (const list_entry *entry = block->entries; entry != NULL; entry = entry->next)
        if (strcmp(entry->text, wanted) == 0 || name_matches(entry->target, wanted))
            return entry;
    return NULL;
}

static void explain(const list_block *block, const list_entry *entry, const fact_set *facts, bool lenient)
{
    printf("%s:%zu: ", block->source->name, entry->at.line);
    for (const list_condition *condition = block->conditions; condition != NULL; condition = condition->next) {
        match_result result = match_condition(condition, facts);
        if (result == MATCH_YES || (result == MATCH_UNKNOWN && lenient))
            continue;
        fputs("not selected: ", stdout);
        match_explain(stdout, condition, facts);
        printf(" (%s:%zu)\n", block->source->name, condition->at.line);
        return;
    }
    printf("selected (block %s:%zu)\n", block->source->name, block->at.line);
}

/* Blocks of the context that name the entry. */
static size_t explain_context(const list_context *context, const lists_job *job, const char *wanted, bool lenient,
                              suggestion *near)
{
    size_t blocks = 0;
    for (const list_block *block = context->blocks; block != NULL; block = block->next) {
        const list_entry *entry = find_entry(block, wanted);
        if (entry != NULL) {
            explain(block, entry, &job->facts, lenient);
            blocks++;
        }
        for (entry = block->entries; entry != NULL && blocks == 0; entry = entry->next)
            suggest_offer(near, entry->text);
    }
    return blocks;
}

static int explain_all(const char *program, const lists_job *job, const why_options *options, const char *wanted)
{
    suggestion near = suggest_begin(wanted);
    bool all = options->shared.context == NULL;
    size_t blocks = 0;
    for (const list_context *context = job->context; context != NULL; context = all ? context->next : NULL)
        blocks += explain_context(context, job, wanted, options->shared.lenient, &near);
    if (blocks > 0)
        return lists_finish(program);
    cli_error(program, "no block of %s%s%s names '%s'%s%s%s", all ? "any list" : "'",
              all ? "" : options->shared.context, all ? "" : "'", wanted, near.best != NULL ? "; did you mean '" : "",
              near.best != NULL ? near.best : "", near.best != NULL ? "'?" : "");
    return CLI_USAGE;
}

int lists_why(int argc, char **argv)
{
    why_options options = {0};
    lists_job job;
    list_entry wanted;
    entry_problem problem = {0, ""};
    int code = cli_parse(&why_argp, argc, argv, &options);
    if (code == CLI_OK && !entry_parse(&options.shared.memory, options.entry, &wanted, &problem)) {
        cli_error(argv[0], "ENTRY is '%s': %s", options.entry, problem.message);
        code = CLI_USAGE;
    }
    if (code == CLI_OK)
        code = lists_load(argv[0], &options.shared, &job);
    if (code == CLI_OK)
        code = explain_all(argv[0], &job, &options, wanted.text);
    arena_free(&options.shared.memory);
    return code;
}
