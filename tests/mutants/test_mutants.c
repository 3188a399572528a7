/* SPDX-License-Identifier: Apache-2.0 */
/* Every mistake of mutants.h is noticed by the case that the table names: the case passes without the mistake, and with
 * it fails, crashes or does not end in time. Where a trace shows the mistake, `ckv repro shrink` makes that small. The
 * table is printed as it goes into docs/mutants.md. */
#include "tests/support/case.h"

#include "tests/mutants/mutants.h"
#include "tests/mutants/traces.h"
#include "tests/support/workplace.h"
#include "tools/harness/launch.h"
#include "tools/harness/process.h"

#include <ctype.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEADLINE_S = 60, FEW_TOKENS = 16, SMALL_PAGE = 4, LARGE_PAGE = 16 };

/* What a case believes its deadline to be: a quarter of it is how long its ranks wait for one that has failed. */
static const char case_timeout_s[] = "16";

typedef struct mutant {
    const char *class, *name, *what, *program, *killer, *trace;
} mutant;

#define TABLE_ROW(class, name, what, program, killer, trace) {#class, #name, what, program, killer, trace},
static const mutant mutants[] = {MUTANTS(TABLE_ROW)};
enum { NUM_MUTANTS = sizeof mutants / sizeof *mutants };

static harness_outcome run_killer(const mutant *m, const char *chosen)
{
    char program[512], killer[128];
    snprintf(program, sizeof program, "%s/%s", CKV_TESTS_DIR, m->program);
    snprintf(killer, sizeof killer, "%s", m->killer);
    char *argv[] = {program, killer, NULL};
    harness_launch launch;
    unsetenv("CKV_TEST_RECORD"); /* this case's own */
    assert_true(harness_launch_prepare(&launch, 1, argv));
    assert_true(harness_launch_setenv(&launch, "CKV_MUTANT", chosen));
    assert_true(harness_launch_setenv(&launch, "CKV_TEST_TIMEOUT", case_timeout_s));
    harness_outcome outcome = harness_run(&(harness_job){
        .argv = launch.argv, .environment = launch.environment, .log_path = "/dev/null", .timeout_s = DEADLINE_S});
    harness_launch_clear(&launch);
    if (outcome.start_errno != 0)
        fail_msg("%s does not start: %s", program, strerror(outcome.start_errno));
    return outcome;
}

/* It failed, crashed, or did not end in time; that it could not run, or had no such case, does not count. */
static int was_noticed(const harness_outcome *outcome)
{
    return outcome->timed_out || outcome->signal != 0 || outcome->exit_code == CKV_TEST_HANG ||
           outcome->exit_code == CKV_TEST_FAIL;
}

static void cases_pass_without_a_mutant(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_MUTANTS; i++) {
        int seen = 0;
        for (int j = 0; j < i; j++)
            seen |= strcmp(mutants[i].killer, mutants[j].killer) == 0 &&
                    strcmp(mutants[i].program, mutants[j].program) == 0;
        if (seen)
            continue;
        harness_outcome outcome = run_killer(&mutants[i], "");
        if (outcome.timed_out || outcome.exit_code != CKV_TEST_PASS)
            fail_msg("%s %s: exit code %d, signal %d without a mutant", mutants[i].program, mutants[i].killer,
                     outcome.exit_code, outcome.signal);
    }
}

/* --- Traces --- */

static bool shows_in_a_trace(const mutant *m)
{
    return m->trace[0] != '-';
}

static void put_trace(const workplace *place, const char *name, int64_t tokens_per_page)
{
    char path[128];
    problem why;
    trace *t = mutant_trace_make(tokens_per_page);
    assert_non_null(t);
    snprintf(path, sizeof path, "%s/%s", place->folder, name);
    if (!trace_write(t, path, &why))
        fail_msg("%s", why.text);
    trace_free(&t);
}

static void open_with_traces(workplace *place)
{
    workplace_open(place, "'" CKV_PROGRAM "'");
    put_trace(place, "small_pages", SMALL_PAGE);
    put_trace(place, "large_pages", LARGE_PAGE);
}

static void shrink(workplace *place, const char *chosen, const char *options)
{
    char command[256];
    assert_int_equal(setenv("CKV_MUTANT", chosen, 1), 0);
    snprintf(command, sizeof command, "repro shrink --seconds 30 %s", options);
    workplace_run(place, command);
    unsetenv("CKV_MUTANT");
}

/* Tokens of the smallest trace that the mutant fails; 0: it fails none. */
static int tokens_with(workplace *place, const mutant *m)
{
    int tokens = 0;
    shrink(place, m->name, m->trace);
    const char *result = strstr(place->out, "shrunk to ");
    if (place->code == 1 && result != NULL)
        sscanf(result, "shrunk to %d token", &tokens);
    return tokens;
}

static void traces_pass_without_a_mutant(void **state)
{
    (void)state;
    workplace place;
    open_with_traces(&place);
    for (int i = 0; i < NUM_MUTANTS; i++) {
        if (!shows_in_a_trace(&mutants[i]))
            continue;
        shrink(&place, "", mutants[i].trace);
        if (place.code != 0 || strstr(place.out, ": nothing to shrink\n") == NULL)
            fail_msg("%s: exit code %d: %s%s", mutants[i].trace, place.code, place.out, place.err);
    }
    workplace_close(&place);
}

/* The text of a case fails as long as the mistake is there. */
static void a_shrunk_case_fails_with_its_mutant_alone(void **state)
{
    (void)state;
    static const char *const rows[][2] = {{"window_one_token_short", "small_pages"},
                                          {"context_of_the_first_rank", "small_pages --ranks 2"}};
    workplace place;
    open_with_traces(&place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char options[96];
        snprintf(options, sizeof options, "%s --case case.c", rows[i][1]);
        place.program = "'" CKV_PROGRAM "'";
        shrink(&place, rows[i][0], options);
        assert_int_equal(place.code, 1);
        place.program = CKV_CASE_COMPILER;
        workplace_expect(&place, "-o case case.c " CKV_CASE_LIBRARIES, 0, "", "");
        place.program = "env -u CKV_TEST_RECORD ./case";
        workplace_expect(&place, "", 0, NULL, NULL);
        assert_int_equal(setenv("CKV_MUTANT", rows[i][0], 1), 0);
        workplace_expect(&place, "", 1, NULL, NULL);
        unsetenv("CKV_MUTANT");
    }
    workplace_close(&place);
}

/* --- The table --- */

static void print_row(const mutant *m, int noticed, int tokens)
{
    printf("| %s | `%s` | %s | %s`%s.%s` | ", m->class, m->name, m->what, noticed ? "" : "alive after ",
           strstr(m->program, "/test_") + 6, m->killer);
    if (shows_in_a_trace(m))
        printf("%d token%s |\n", tokens, tokens == 1 ? "" : "s");
    else
        printf("- %s |\n", m->trace + 1);
    fflush(stdout);
}

static void every_mutant_is_killed(void **state)
{
    (void)state;
    int bad = 0;
    char names[512] = "";
    workplace place;
    open_with_traces(&place);
    for (int i = 0; i < NUM_MUTANTS; i++) {
        const mutant *m = &mutants[i];
        harness_outcome outcome = run_killer(m, m->name);
        int noticed = was_noticed(&outcome), tokens = shows_in_a_trace(m) ? tokens_with(&place, m) : 0;
        print_row(m, noticed, tokens);
        bool is_small = !shows_in_a_trace(m) || (tokens > 0 && tokens <= FEW_TOKENS);
        if (!(noticed && is_small) && ++bad < 8)
            snprintf(names + strlen(names), sizeof names - strlen(names), " %s", m->name);
    }
    workplace_close(&place);
    if (bad > 0)
        fail_msg("%d of %d mutants are alive, or their traces are not small:%s", bad, NUM_MUTANTS, names);
}

/* --- The table and the code name the same mutants --- */

static int in_code[NUM_MUTANTS];
static char unknown[128];

/* The name in the next CKV_MUTANT(name) or CKV_MUTATE(name, ...) after `text`; NULL when there is none. */
static const char *next_name(const char *text, char *name, size_t bytes)
{
    const char *at = text;
    while ((at = strstr(at, "CKV_MUTA")) != NULL && strncmp(at, "CKV_MUTANT(", 11) != 0 &&
           strncmp(at, "CKV_MUTATE(", 11) != 0)
        at++;
    if (at == NULL)
        return NULL;
    at += 11;
    size_t length = 0;
    while ((isalnum((unsigned char)at[length]) || at[length] == '_') && length + 1 < bytes)
        length++;
    snprintf(name, length + 1, "%s", at);
    return at;
}

static void find_names(const char *text)
{
    char name[96];
    for (const char *at = text; (at = next_name(at, name, sizeof name)) != NULL;) {
        int known = 0;
        for (int i = 0; i < NUM_MUTANTS; i++)
            if (strcmp(name, mutants[i].name) == 0)
                known = in_code[i] = 1;
        if (!known)
            snprintf(unknown, sizeof unknown, "%s", name);
    }
}

static int look_into(const char *path, const struct stat *status, int type)
{
    const char *end = strrchr(path, '.');
    if (type != FTW_F || end == NULL || strstr(path, "/support/mutant.h") != NULL ||
        (strcmp(end, ".c") != 0 && strcmp(end, ".h") != 0))
        return 0;
    char *text = calloc((size_t)status->st_size + 1, 1);
    FILE *file = fopen(path, "r");
    int read = file != NULL && text != NULL && fread(text, 1, (size_t)status->st_size, file) == (size_t)status->st_size;
    if (read)
        find_names(text);
    if (file != NULL)
        fclose(file);
    free(text);
    return !read;
}

static void table_and_code_agree(void **state)
{
    (void)state;
    static const char *const folders[] = {"lib", "kernels", "ulysses"};
    for (int i = 0; i < 3; i++) {
        char folder[512];
        snprintf(folder, sizeof folder, "%s/%s", CKV_SOURCE_DIR, folders[i]);
        assert_int_equal(ftw(folder, look_into, 8), 0);
    }
    if (unknown[0] != '\0')
        fail_msg("the code has a mutant '%s' that the table does not name", unknown);
    for (int i = 0; i < NUM_MUTANTS; i++)
        if (!in_code[i])
            fail_msg("the table names a mutant '%s' that the code does not have", mutants[i].name);
}

static const ckv_test_case cases[] = {
    CKV_CASE(table_and_code_agree),         CKV_CASE(cases_pass_without_a_mutant),
    CKV_CASE(traces_pass_without_a_mutant), CKV_CASE(a_shrunk_case_fails_with_its_mutant_alone),
    CKV_CASE(every_mutant_is_killed),
};

CKV_TEST_MAIN("mutants", cases)
