/* SPDX-License-Identifier: Apache-2.0 */
/* Every mistake of mutants.h is noticed by the case that the table names: the case passes without the mistake, and with
 * it fails, crashes or does not end in time. The table is printed as it goes into docs/mutants.md. */
#include "tests/support/case.h"

#include "tests/mutants/mutants.h"
#include "tools/harness/launch.h"
#include "tools/harness/process.h"

#include <ctype.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEADLINE_S = 60 };

/* What a case believes its deadline to be: a quarter of it is how long its ranks wait for one that has failed. */
static const char case_timeout_s[] = "16";

typedef struct mutant {
    const char *class, *name, *what, *program, *killer;
} mutant;

#define TABLE_ROW(class, name, what, program, killer) {#class, #name, what, program, killer},
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

static void every_mutant_is_killed(void **state)
{
    (void)state;
    int alive = 0;
    char survivors[512] = "";
    for (int i = 0; i < NUM_MUTANTS; i++) {
        const mutant *m = &mutants[i];
        harness_outcome outcome = run_killer(m, m->name);
        int noticed = was_noticed(&outcome);
        printf("| %s | `%s` | %s | %s`%s.%s` |\n", m->class, m->name, m->what, noticed ? "" : "alive after ",
               strstr(m->program, "/test_") + 6, m->killer);
        fflush(stdout);
        if (!noticed && ++alive < 8)
            snprintf(survivors + strlen(survivors), sizeof survivors - strlen(survivors), " %s", m->name);
    }
    if (alive > 0)
        fail_msg("%d of %d mutants are alive:%s", alive, NUM_MUTANTS, survivors);
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
    CKV_CASE(table_and_code_agree),
    CKV_CASE(cases_pass_without_a_mutant),
    CKV_CASE(every_mutant_is_killed),
};

CKV_TEST_MAIN("mutants", cases)
