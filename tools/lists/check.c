/* SPDX-License-Identifier: Apache-2.0 */
/* ckv lists check: everything that is wrong with the lists and waivers of a folder. */
#include "tools/lists/options.h"
#include "tools/lists/waivers.h"

#include "tools/common/text_map.h"
#include "tools/lists/value.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MAX_SUGGESTIONS = 50, TESTS_MAX_BYTES = 64 * 1024 * 1024 };

typedef struct checker {
    arena memory;
    diagnostics log;
    list_set lists;
    name_table tests;
    size_t suggestions; /* made so far: each costs a walk over all tests */
} checker;

typedef struct occurrence {
    const list_block *block;
    const list_entry *entry;
    struct occurrence *earlier;
} occurrence;

static bool check_occurrence(checker *check, text_map *seen, const char *key, const list_block *block,
                             const list_entry *entry)
{
    void **place = text_map_at(&check->memory, seen, key);
    const occurrence *earlier = *place;
    while (earlier != NULL && earlier->block != block &&
           !match_compatible(earlier->block->conditions, block->conditions))
        earlier = earlier->earlier;
    if (earlier != NULL) {
        diag_error(&check->log, block->source, entry->at, "'%s' is selected twice for one machine: %s:%zu names it too",
                   key, earlier->block->source->name, earlier->entry->at.line);
        return false;
    }
    occurrence *now = arena_alloc(&check->memory, sizeof *now);
    *now = (occurrence){block, entry, *place};
    *place = now;
    return true;
}

static void check_no_test(checker *check, const list_block *block, const list_entry *entry)
{
    const char *near = NULL;
    if (check->suggestions++ < MAX_SUGGESTIONS)
        near = names_suggest(&check->memory, &check->tests, entry->target);
    diag_error(&check->log, block->source, entry->at, "no test is called '%s'%s%s%s", entry->target,
               near != NULL ? "; did you mean '" : "", near != NULL ? near : "", near != NULL ? "'?" : "");
}

/* An entry with options runs a part of what it names, so it repeats only an entry of the same text. */
static void check_entry(checker *check, text_map *seen, const list_block *block, const list_entry *entry)
{
    bool is_known = false, is_reported = false;
    name_search search = names_search(&check->tests, entry->target);
    for (test_name *test = names_next(&search); test != NULL; test = names_next(&search)) {
        test->is_listed = is_known = true;
        if (!entry->has_options && !is_reported)
            is_reported = !check_occurrence(check, seen, test->text, block, entry);
    }
    if (entry->has_options || !is_known)
        check_occurrence(check, seen, entry->text, block, entry);
    if (!is_known)
        check_no_test(check, block, entry);
}

typedef struct gpu_name {
    const char *name;
    const char *cpu; /* the only one it comes with; NULL: any */
} gpu_name;

static const gpu_name gpus[] = {{"A10", NULL},        {"A100", NULL},       {"A30", NULL},       {"A40", NULL},
                                {"L4", NULL},         {"L40S", NULL},       {"H20", NULL},       {"H100", NULL},
                                {"H200", NULL},       {"B100", NULL},       {"B200", NULL},      {"B300", NULL},
                                {"GH200", "aarch64"}, {"GB200", "aarch64"}, {"GB300", "aarch64"}};

static bool names_gpu(const list_condition *wildcard, const char *gpu)
{
    for (const list_operand *glob = wildcard->operands; glob != NULL; glob = glob->next) {
        size_t length = strlen(gpu), stars = strspn(glob->text, "*");
        if (strncasecmp(glob->text + stars, gpu, length) == 0 &&
            strspn(glob->text + stars + length, "*") == strlen(glob->text + stars + length))
            return true;
    }
    return false;
}

static bool matches_gpu(const list_condition *wildcard, const char *gpu)
{
    for (const list_operand *glob = wildcard->operands; glob != NULL; glob = glob->next)
        if (value_glob(glob->text, gpu))
            return true;
    return false;
}

/* Could the block's other keys hold on a machine with this CPU? */
static bool allows_cpu(const list_block *block, const char *cpu)
{
    fact cpu_fact = {"cpu", cpu, NULL};
    fact_set facts = {&cpu_fact};
    for (const list_condition *condition = block->conditions; condition != NULL; condition = condition->next)
        if (strcmp(condition->key, "cpu") == 0 && match_condition(condition, &facts) != MATCH_YES)
            return false;
    return true;
}

/* `*b200*` means B200 and takes GB200 too: a condition that names one GPU and matches another whose name contains it.
 */
static void check_gpu_overlap(checker *check, const list_block *block, const list_condition *condition)
{
    for (size_t named = 0; named < sizeof gpus / sizeof *gpus; named++) {
        if (!names_gpu(condition, gpus[named].name))
            continue;
        for (size_t other = 0; other < sizeof gpus / sizeof *gpus; other++) {
            const gpu_name *gpu = &gpus[other];
            if (other == named || strstr(gpu->name, gpus[named].name) == NULL || names_gpu(condition, gpu->name) ||
                !matches_gpu(condition, gpu->name) || (gpu->cpu != NULL && !allows_cpu(block, gpu->cpu)))
                continue;
            diag_warning(&check->log, block->source, condition->at, "the glob for %s also matches %s%s",
                         gpus[named].name, gpu->name,
                         gpu->cpu != NULL ? "; 'cpu: x86_64' keeps it out" : "; name it as well, or narrow the glob");
        }
    }
}

static void check_block(checker *check, const list_block *block)
{
    for (const list_condition *condition = block->conditions; condition != NULL; condition = condition->next) {
        if (condition->part == LIST_RANGES && !match_compatible(condition, condition))
            diag_error(&check->log, block->source, condition->at, "no value lies in this range");
        if (condition->part == LIST_WILDCARDS && strcmp(condition->key, "gpu") == 0)
            check_gpu_overlap(check, block, condition);
    }
}

static void check_lists(checker *check)
{
    for (const list_context *context = check->lists.contexts; context != NULL; context = context->next) {
        text_map seen = {0};
        for (const list_block *block = context->blocks; block != NULL; block = block->next) {
            check_block(check, block);
            for (const list_entry *entry = block->entries; entry != NULL; entry = entry->next)
                check_entry(check, &seen, block, entry);
        }
    }
    for (size_t i = 0; i < check->tests.count; i++)
        if (!check->tests.names[i].is_listed)
            diag_error(&check->log, check->tests.source, check->tests.names[i].at,
                       "no list names the test '%s': a line '- %s' does, or one of its suite",
                       check->tests.names[i].text, check->tests.names[i].text);
}

static bool check_waivers(checker *check, const list_reader *reader, const char *folder, waiver_day today)
{
    const char *path = arena_format(&check->memory, "%s/waives.txt", folder);
    struct stat info;
    if (stat(path, &info) != 0 && errno == ENOENT)
        return true;
    text_source source;
    if (!text_read(&check->memory, &check->log, path, TREE_MAX_BYTES, &source))
        return false;
    waivers_check(reader, &source, waivers_read(reader, &source), &check->tests, today);
    return true;
}

typedef struct check_options {
    const char *folder;
    const char *tests_file;
    waiver_day today;
} check_options;

static const struct argp_option check_option_table[] = {
    {"dir", 'd', "DIR", 0, "Folder of the lists and of waives.txt (default: " LISTS_DEFAULT_FOLDER ")", 1},
    {"tests", 't', "FILE", 0, "The tests that exist, one name a line", 1},
    {"today", 'T', "YYYY-MM-DD", 0, "The day that waivers are compared with (default: today, UTC)", 1},
    {0},
};

static error_t parse_check(int key, char *argument, struct argp_state *state)
{
    check_options *options = state->input;
    switch (key) {
    case 'd':
        options->folder = argument;
        return 0;
    case 't':
        options->tests_file = argument;
        return 0;
    case 'T':
        return waiver_parse_day(argument, &options->today)
                   ? 0
                   : cli_usage_error("--today is '%s'; it must be a date, YYYY-MM-DD", argument);
    case ARGP_KEY_END:
        return options->tests_file != NULL ? 0 : cli_usage_error("--tests FILE is missing: one test name a line");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp check_argp = {
    .options = check_option_table,
    .parser = parse_check,
    .doc = "Report everything that is wrong with the lists: unknown and duplicate keys, malformed entries, entries "
           "that name no test, tests that no list names, a test twice for one machine, and waivers that are expired, "
           "stale or without a reference.\vAn entry names the test of that name and every test that continues it with "
           "one of . : / [ or -npN, so a suite names its cases; with * or ? it is a glob.\n\n"
           "A waiver is one line of DIR/waives.txt:\n"
           "  [when(CONDITION)] case SKIP|XFAIL (reference) until YYYY-MM-DD by OWNER\n\n"
           "Exit status: 0 nothing is wrong (warnings do not count); 1 something is; 2 an option is wrong, or DIR or "
           "FILE cannot be read.",
};

static int run_check(const char *program, checker *check, const check_options *options)
{
    text_source source;
    check->log.stream = stderr;
    if (!text_read(&check->memory, &check->log, options->tests_file, TESTS_MAX_BYTES, &source))
        return CLI_USAGE;
    list_reader reader = {&check->memory, &check->log, false};
    struct stat info;
    bool is_there = stat(options->folder, &info) == 0;
    if (!is_there || !S_ISDIR(info.st_mode)) {
        cli_error(program, "%s: %s; --dir names the folder of lists", options->folder,
                  is_there ? "is not a folder" : strerror(errno));
        return CLI_USAGE;
    }
    check->log.stream = stdout;
    names_read(&check->memory, &check->log, &source, &check->tests);
    list_read_folder(&reader, options->folder, &check->lists);
    check_lists(check);
    check_waivers(check, &reader, options->folder, options->today);
    printf("%zu tests, %zu errors, %zu warnings\n", check->tests.count, check->log.errors, check->log.warnings);
    int code = lists_finish(program);
    return code == CLI_OK && check->log.errors > 0 ? CLI_FAIL : code;
}

int lists_check(int argc, char **argv)
{
    check_options options = {.folder = LISTS_DEFAULT_FOLDER, .today = waiver_day_of(time(NULL))};
    checker check = {0};
    int code = cli_parse(&check_argp, argc, argv, &options);
    if (code == CLI_OK)
        code = run_check(argv[0], &check, &options);
    arena_free(&check.memory);
    return code;
}
