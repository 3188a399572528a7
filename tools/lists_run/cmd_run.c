/* SPDX-License-Identifier: Apache-2.0 */
/* ckv lists run */
#include "tools/common/cli.h"
#include "tools/common/suggest.h"
#include "tools/lists/durations.h"
#include "tools/lists/value.h"
#include "tools/lists_run/run.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { MAX_SHARDS = 4096, MAX_REPEAT = 100000, MAX_JOBS = 4096, TESTS_MAX_BYTES = 64 * 1024 * 1024, MAX_ONLY = 256 };

typedef struct run_options {
    lists_options shared; /* first: also the input of the shared options */
    const char *build_folder, *cases_file, *out, *durations_path;
    int64_t jobs, gpu_slots, repeat, shards, shard, heartbeat_s;
    bool has_seed, shuffle, dry_run, partial, nonempty;
    uint64_t seed, shuffle_seed;
    waiver_day today;
    char *only[MAX_ONLY + 1];
    size_t num_only;
} run_options;

enum {
    OPTION_REPEAT = 0x100,
    OPTION_HEARTBEAT,
    OPTION_GPU_SLOTS,
    OPTION_SHUFFLE,
    OPTION_SEED,
    OPTION_CASES,
    OPTION_DRY_RUN,
    OPTION_PARTIAL,
    OPTION_NONEMPTY,
    OPTION_TODAY
};

static const struct argp_option option_table[] = {
    {"build", 'b', "DIR", 0, "The build folder whose CTest says how each case is run", 0},
    {"cases", OPTION_CASES, "FILE", 0, "What 'ctest --show-only=json-v1' printed, instead of asking CTest", 0},
    {"out", 'o', "DIR", 0, "Folder of the results (default: results in the build folder)", 0},
    {"jobs", 'j', "N", 0, "How many CPUs cases may take together (default: those of this process)", 0},
    {"gpu-slots", OPTION_GPU_SLOTS, "N", 0, "How many cases may share a GPU (default: 1)", 0},
    {"repeat", OPTION_REPEAT, "N", 0, "Run each case N times; one that does not end the same each time is flaky", 0},
    {"shuffle", OPTION_SHUFFLE, "SEED", 0, "Random order, from a number or 'random'", 0},
    {"seed", OPTION_SEED, "SEED", 0, "A seed of its own for each case, from a number or 'random'", 0},
    {"shards", 'N', "N", 0, "Run only one of N parts of about the same duration", 0},
    {"shard", 'I', "I", 0, "Which one, from 1", 0},
    {"durations", 'D', "PATH", 0,
     "Seconds of past runs: durations.json of a run, or a folder of them by hardware (default: the last run's)", 0},
    {"partial", OPTION_PARTIAL, NULL, 0, "The build leaves parts out on purpose: what it has no case for is skipped",
     0},
    {"nonempty", OPTION_NONEMPTY, NULL, 0, "A list that selects nothing on this machine is an error", 0},
    {"dry-run", OPTION_DRY_RUN, NULL, 0, "Print the cases and what each needs, and run nothing", 0},
    {"heartbeat", OPTION_HEARTBEAT, "SECONDS", 0, "How often to name the running cases (default: 60)", 0},
    {"today", OPTION_TODAY, "YYYY-MM-DD", 0, "The day that waivers are compared with (default: today, UTC)", 0},
    {0},
};

/* A number, or "random". */
static error_t parse_seed(const char *option, const char *text, uint64_t *seed_out)
{
    if (strcmp(text, "random") == 0)
        return getrandom(seed_out, sizeof *seed_out, 0) == (ssize_t)sizeof *seed_out
                   ? 0
                   : cli_usage_error("%s: the system gives no random number", option);
    char *end;
    errno = 0;
    *seed_out = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0)
        return cli_usage_error("%s is '%s'; it must be an unsigned 64-bit integer, or 'random'", option, text);
    return 0;
}

static error_t parse_end(const run_options *options)
{
    if (options->build_folder == NULL && options->cases_file == NULL)
        return cli_usage_error("--build DIR is missing: the build folder that has the cases");
    if (options->build_folder == NULL && options->out == NULL && !options->dry_run)
        return cli_usage_error("--out DIR is missing: the folder of the results");
    if ((options->shards == 0) != (options->shard == 0) || options->shard > options->shards)
        return cli_usage_error("--shards N and --shard I belong together, I from 1 to N");
    return 0;
}

static error_t parse_more(int key, char *argument, run_options *options)
{
    switch (key) {
    case OPTION_SHUFFLE:
        options->shuffle = true;
        return parse_seed("--shuffle", argument, &options->shuffle_seed);
    case OPTION_GPU_SLOTS:
        return cli_parse_integer("--gpu-slots", argument, 1, MAX_JOBS, &options->gpu_slots);
    case OPTION_SEED:
        options->has_seed = true;
        return parse_seed("--seed", argument, &options->seed);
    case 'N':
        return cli_parse_integer("--shards", argument, 1, MAX_SHARDS, &options->shards);
    case 'I':
        return cli_parse_integer("--shard", argument, 1, MAX_SHARDS, &options->shard);
    case OPTION_TODAY:
        return waiver_parse_day(argument, &options->today)
                   ? 0
                   : cli_usage_error("--today is '%s'; it must be a date, YYYY-MM-DD", argument);
    case ARGP_KEY_ARG:
        if (options->num_only == MAX_ONLY)
            return cli_usage_error("more than %d names of cases; use a glob", (int)MAX_ONLY);
        options->only[options->num_only++] = argument;
        return 0;
    case ARGP_KEY_END:
        return parse_end(options);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    run_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->shared;
        return 0;
    case 'b':
        options->build_folder = argument;
        return 0;
    case OPTION_CASES:
        options->cases_file = argument;
        return 0;
    case 'o':
        options->out = argument;
        return 0;
    case 'D':
        options->durations_path = argument;
        return 0;
    case 'j':
        return cli_parse_integer("--jobs", argument, 1, MAX_JOBS, &options->jobs);
    case OPTION_REPEAT:
        return cli_parse_integer("--repeat", argument, 1, MAX_REPEAT, &options->repeat);
    case OPTION_HEARTBEAT:
        return cli_parse_integer("--heartbeat", argument, 1, 86400, &options->heartbeat_s);
    case OPTION_PARTIAL:
        options->partial = true;
        return 0;
    case OPTION_NONEMPTY:
        options->nonempty = true;
        return 0;
    case OPTION_DRY_RUN:
        options->dry_run = true;
        return 0;
    default:
        return parse_more(key, argument, options);
    }
}

static const struct argp_child shared_child[] = {{&lists_options_argp, 0, NULL, 0}, {0}};

static const struct argp run_argp = {
    .options = option_table,
    .parser = parse_option,
    .args_doc = "[CASE...]",
    .children = shared_child,
    .doc = "Run the cases that a context selects for this machine, as the tests of a build folder. CASE keeps those of "
           "that name: a case, a suite, or a glob."
           "\vEach case runs under a launcher of its own, with a deadline, and nothing of it is left behind. Cases run "
           "beside each other as CPUs and GPUs allow; each rank has a GPU of its own, connected by NVLink where that "
           "is possible.\n\n"
           "The folder of the results receives junit.xml, events.jsonl, durations.json, facts.json and the logs of "
           "each case. The last line is 'N passed, N failed, N skipped'.\n\nExamples:\n"
           "  ckv lists run --context l0_cpu --set stage=pre_merge --build build/cpu\n"
           "  ckv lists run -c l0_cpu -s stage=pre_merge -b build/cpu --repeat 20 'ulysses.*-np2'\n"
           "\nExit status: 0 green, also when the list selects nothing here; 1 a case failed, crashed, was flaky or "
           "passed against a waiver; 2 an option, a list or a fact cannot be read, or an entry names no case; 3 only "
           "the machinery failed; 4 cases only hung.\n",
};

/* --- Preparing --- */

/* Names of cases that exist: test_cases.txt of the build folder holds those that the build leaves out too. */
static bool read_names(arena *memory, diagnostics *log, const run_options *options, const ctest_table *tests,
                       name_table *names)
{
    text_source *source = arena_alloc(memory, sizeof *source); /* the table keeps it */
    const char *path =
        options->build_folder ? arena_format(memory, "%s/test_cases.txt", options->build_folder) : "no build folder";
    if (options->build_folder != NULL && access(path, F_OK) == 0) {
        if (!text_read(memory, log, path, TESTS_MAX_BYTES, source))
            return false;
    } else {
        size_t bytes = 0;
        for (size_t i = 0; i < tests->count; i++)
            bytes += strlen(tests->cases[i].name) + 1;
        char *text = arena_alloc(memory, bytes + 1), *at = text;
        for (size_t i = 0; i < tests->count; i++)
            at += sprintf(at, "%s\n", tests->cases[i].name);
        *source = (text_source){options->cases_file ? options->cases_file : options->build_folder, text, bytes};
    }
    names_read(memory, log, source, names);
    return log->errors == 0;
}

/* A stage that no block knows selects nothing, and would be green for ever; so would the list of a machine whose driver
 * is gone. */
static bool check_empty(const char *program, const run_options *options, const list_context *context)
{
    for (const fact *one = options->shared.overrides.first; one != NULL; one = one->next) {
        bool is_term = false, is_known = false;
        suggestion near = suggest_begin(one->text);
        for (const list_block *block = context->blocks; block != NULL; block = block->next)
            for (const list_condition *key = block->conditions; key != NULL; key = key->next)
                if (key->part == LIST_TERMS && strcmp(key->key, one->key) == 0 && key->operands != NULL) {
                    is_term = true;
                    is_known = is_known || value_equal(key->operands->text, one->text);
                    suggest_offer(&near, key->operands->text);
                }
        if (!is_term || is_known)
            continue;
        cli_error(program, "nothing is selected: no block of '%s' has the %s '%s'%s%s%s", context->name, one->key,
                  one->text, near.best != NULL ? "; did you mean '" : "", near.best != NULL ? near.best : "",
                  near.best != NULL ? "'?" : "");
        return false;
    }
    const char *nothing = "selects nothing on this machine; 'ckv lists why' tells for each entry";
    if (options->nonempty) {
        cli_error(program, "'%s' %s", context->name, nothing);
        return false;
    }
    fprintf(stderr, "note: '%s' %s\n", context->name, nothing);
    return true;
}

static const char *out_folder(arena *memory, const run_options *options)
{
    if (options->out != NULL || options->build_folder == NULL)
        return options->out;
    return arena_format(memory, "%s/results", options->build_folder);
}

/* Those asked for; otherwise those of the last run with the same folder of results, if they can be read. */
static bool read_durations(arena *memory, diagnostics *log, const run_options *options, const fact_set *facts,
                           fact_set *durations)
{
    const char *out = out_folder(memory, options);
    if (options->durations_path != NULL) {
        const char *file = durations_file(memory, options->durations_path, facts);
        return file == NULL || durations_read(memory, log, file, durations);
    }
    const char *last = out != NULL ? arena_format(memory, "%s/durations.json", out) : "";
    diagnostics ignored = {.stream = log->stream};
    if (access(last, R_OK) == 0 && !durations_read(memory, &ignored, last, durations))
        *durations = (fact_set){NULL};
    return true;
}

static int make_plan(const char *program, run_options *options, lists_job *job, fact_set *durations, plan *plan_out)
{
    arena *memory = &options->shared.memory;
    diagnostics log = {.stream = stderr};
    ctest_table tests;
    name_table names;
    text_source source;
    int code = lists_load(program, &options->shared, job);
    if (code != CLI_OK)
        return code;
    bool read = options->cases_file != NULL ? text_read(memory, &log, options->cases_file, TESTS_MAX_BYTES, &source)
                                            : ctest_ask(memory, &log, options->build_folder, &source);
    if (!read || !ctest_read(memory, &log, &source, &tests) || !read_names(memory, &log, options, &tests, &names) ||
        !read_durations(memory, &log, options, &job->facts, durations))
        return CLI_USAGE;
    selection chosen = select_entries(memory, &log, job->context, &job->facts, options->shared.lenient);
    if (chosen.count == 0 && !check_empty(program, options, job->context))
        return CLI_USAGE;
    plan_input input = {.folder = options->shared.folder,
                        .facts = &job->facts,
                        .selected = &chosen,
                        .names = &names,
                        .tests = &tests,
                        .durations = durations,
                        .today = options->today,
                        .only = options->only,
                        .partial = options->partial,
                        .has_seed = options->has_seed,
                        .seed = options->seed};
    return plan_make(memory, &log, &input, plan_out) ? CLI_OK : CLI_USAGE;
}

static int usable_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* --- Running --- */

static int print_plan(const char *program, const run_state *run)
{
    for (size_t i = 0; i < run->plan.count; i++) {
        const plan_case *one = run->order[i];
        printf("%s", one->name);
        if (one->test == NULL)
            printf("  # this build leaves it out");
        else if (one->expected == ENTRY_SKIP)
            printf("  # skipped: %s", one->waived_by);
        else
            printf("  # %d ranks, %d GPUs, %g s%s%s%s", one->test->ranks, one->request.gpus, one->timeout_s,
                   one->request.alone ? ", alone" : "", one->entry->required ? ", required" : "",
                   one->expected != ENTRY_RUN ? ", expected to fail" : "");
        putchar('\n');
    }
    return lists_finish(program);
}

/* Cases were selected and none of them ran: that is not green. A shard may have got only such cases. */
static int exit_code(const run_state *run, const run_options *options)
{
    if (run->interrupted)
        return CLI_INTERNAL;
    int code = run_exit_code(run->tally);
    if (code != CLI_OK || run->tally[RUN_SKIP] < run->plan.count || run->plan.count == 0 || options->shards > 0)
        return code;
    printf("nothing ran: all %zu cases were skipped\n", run->plan.count);
    return CLI_FAIL;
}

/* What was asked of chance and of this part, for the results. */
static const junit_property *make_notes(arena *memory, const run_options *options)
{
    junit_property *notes = arena_alloc(memory, 4 * sizeof *notes);
    size_t count = 0;
    if (options->has_seed)
        notes[count++] = (junit_property){"seed", arena_format(memory, "%" PRIu64, options->seed)};
    if (options->shuffle)
        notes[count++] = (junit_property){"shuffle", arena_format(memory, "%" PRIu64, options->shuffle_seed)};
    if (options->shards > 0)
        notes[count++] =
            (junit_property){"shard", arena_format(memory, "%" PRId64 " of %" PRId64, options->shard, options->shards)};
    return notes;
}

static int run_plan(const char *program, run_state *run, const run_options *options, const fact_set *facts,
                    const fact_set *durations)
{
    if (!run_preflight(program, run, facts))
        return CLI_USAGE;
    run->notes = make_notes(run->memory, options);
    if (!run_results_open(run, out_folder(run->memory, options), facts)) {
        cli_error(program, "the folder of the results, %s: %s", out_folder(run->memory, options), strerror(errno));
        return CLI_INTERNAL;
    }
    run_report_start(run);
    bool written = run_all(run);
    if (written && !run_results_durations(run, durations)) {
        cli_error(program, "results cannot be written to %s: %s", run->out, strerror(errno));
        written = false;
    }
    int code = written ? exit_code(run, options) : CLI_INTERNAL;
    run_results_close(run, code);
    run_report_end(run);
    int printed = lists_finish(program);
    return printed != CLI_OK ? printed : code;
}

static int run_context(const char *program, run_options *options)
{
    arena *memory = &options->shared.memory;
    fact_set durations = {NULL};
    lists_job job;
    run_state *run = arena_alloc(memory, sizeof *run);
    *run = (run_state){.memory = memory,
                       .context = options->shared.context,
                       .build_folder = options->build_folder ? options->build_folder : "",
                       .repeat = (size_t)options->repeat,
                       .heartbeat_s = (double)options->heartbeat_s,
                       .has_seed = options->has_seed,
                       .seed = options->seed,
                       .partial = options->partial,
                       .started = run_now()};
    int code = make_plan(program, options, &job, &durations, &run->plan);
    if (code != CLI_OK)
        return code;
    if (options->shards > 0)
        plan_shard(memory, &run->plan, (size_t)options->shards, (size_t)options->shard - 1, stderr);
    run->order = plan_order(memory, &run->plan, options->shuffle, options->shuffle_seed);
    if (options->dry_run)
        return print_plan(program, run);
    run->slots.cpus = run->slots.free_cpus = options->jobs > 0 ? (int)options->jobs : usable_cpus();
    run->slots.slots_per_gpu = (int)options->gpu_slots;
    run_gpus_find(run, stderr);
    code = run_plan(program, run, options, &job.facts, &durations);
    nvml_watch_close(run->watch);
    return code;
}

int lists_run(int argc, char **argv)
{
    run_options options = {.repeat = 1, .gpu_slots = 1, .heartbeat_s = 60, .today = waiver_day_of(time(NULL))};
    int code = cli_parse(&run_argp, argc, argv, &options);
    if (code == CLI_OK)
        code = run_context(argv[0], &options);
    arena_free(&options.shared.memory);
    return code;
}
