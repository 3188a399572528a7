/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/options.h"

#include "tools/common/suggest.h"

#include <errno.h>
#include <string.h>

enum { FACTS_MAX_BYTES = 1024 * 1024 };

static const struct argp_option shared_options[] = {
    {"dir", 'd', "DIR", 0, "Folder of the lists: every .yml and .yaml in it (default: " LISTS_DEFAULT_FOLDER ")", 1},
    {"context", 'c', "NAME", 0, "The context to take from them, such as l0_cpu", 1},
    {"facts", 'f', "FILE", 0, "A machine as a flat JSON object, instead of this one (see 'ckv lists facts')", 1},
    {"set", 's', "KEY=VALUE", 0, "Add a fact or replace one, such as stage=pre_merge; may be repeated", 1},
    {"lenient", 'l', NULL, 0, "A fact that is missing matches, and unknown keys in a list are only warned about", 1},
    {0},
};

static error_t set_fact(lists_options *options, const char *text)
{
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals == text)
        return cli_usage_error("--set is '%s'; it must be KEY=VALUE, such as stage=pre_merge", text);
    if (!facts_is_plain(text))
        return cli_usage_error("--set is '%s'; a fact is a text of one line", text);
    facts_set(&options->memory, &options->overrides, arena_copy(&options->memory, text, (size_t)(equals - text)),
              equals + 1);
    return 0;
}

static error_t parse_shared(int key, char *argument, struct argp_state *state)
{
    lists_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        options->folder = LISTS_DEFAULT_FOLDER;
        return 0;
    case 'd':
        options->folder = argument;
        return 0;
    case 'c':
        options->context = argument;
        return 0;
    case 'f':
        options->facts_file = argument;
        return 0;
    case 's':
        return set_fact(options, argument);
    case 'l':
        options->lenient = true;
        return 0;
    case ARGP_KEY_END:
        return options->context != NULL || options->any_context ? 0 : cli_usage_error("--context NAME is missing");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp lists_options_argp = {.options = shared_options, .parser = parse_shared};

static bool load_facts(lists_options *options, diagnostics *log, fact_set *facts)
{
    arena *memory = &options->memory;
    if (options->facts_file != NULL) {
        text_source source;
        if (!text_read(memory, log, options->facts_file, FACTS_MAX_BYTES, &source) ||
            !facts_read_json(memory, log, &source, facts))
            return false;
    } else {
        json_t *machine = facts_probe(log->stream);
        bool ok = machine != NULL && facts_from_json(memory, machine, facts);
        json_decref(machine);
        if (!ok)
            return false;
    }
    for (const fact *one = options->overrides.first; one != NULL; one = one->next)
        facts_set(memory, facts, one->key, one->text);
    return true;
}

static int unknown_context(const char *program, const lists_options *options, const list_set *lists)
{
    suggestion near = suggest_begin(options->context);
    for (const list_context *context = lists->contexts; context != NULL; context = context->next)
        suggest_offer(&near, context->name);
    cli_error(program, "no list in %s has the context '%s'%s%s%s", options->folder, options->context,
              near.best != NULL ? "; did you mean '" : "", near.best != NULL ? near.best : "",
              near.best != NULL ? "'?" : "");
    return CLI_USAGE;
}

int lists_load(const char *program, lists_options *options, lists_job *job_out)
{
    diagnostics log = {.stream = stderr};
    list_reader reader = {&options->memory, &log, options->lenient};
    list_set lists = {NULL, NULL};
    lists_job job = {NULL, {NULL}};
    if (!load_facts(options, &log, &job.facts) || !list_read_folder(&reader, options->folder, &lists) || log.errors > 0)
        return CLI_USAGE;
    job.context = options->context != NULL ? list_find(&lists, options->context) : lists.contexts;
    if (job.context == NULL)
        return unknown_context(program, options, &lists);
    *job_out = job;
    return CLI_OK;
}

int lists_finish(const char *program)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return CLI_OK;
    cli_error(program, "standard output: %s", strerror(errno));
    return CLI_INTERNAL;
}
