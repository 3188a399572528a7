/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/run.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_LOG_BYTES = 16 * 1024, SHOWN_RUNNING = 8 };

/* One line without control characters: reasons come from programs. */
static void print_plain(const char *text)
{
    for (; *text != '\0'; text++)
        putchar(iscntrl((unsigned char)*text) ? '?' : *text);
}

const char *run_repro_line(const run_state *run, const plan_case *one)
{
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL)
        return "";
    const ctest_case *test = one->test;
    if (test->directory != NULL) {
        fputs("cd", stream);
        harness_print_argument(stream, test->directory);
        fputs(" && ", stream);
    }
    fputs("env", stream);
    if (one->seed_used[0] != '\0')
        fprintf(stream, " CKV_TEST_SEED=%s", one->seed_used);
    if (one->gpus_used[0] != '\0')
        fprintf(stream, " CUDA_VISIBLE_DEVICES=%s", one->gpus_used);
    for (const char *const *entry = test->environment; *entry != NULL; entry++)
        harness_print_argument(stream, *entry);
    for (char *const *argument = test->command; *argument != NULL; argument++)
        harness_print_argument(stream, *argument);
    fclose(stream);
    const char *line = arena_copy(run->memory, text, bytes);
    free(text);
    return line;
}

void run_report_start(const run_state *run)
{
    size_t gpus = 0;
    for (int i = 0; i < run->slots.num_gpus; i++)
        gpus += !run->slots.retired[i];
    printf("%s: %zu cases, %zu attempt%s each; %d at a time, %zu GPUs; results in %s\n", run->context, run->plan.count,
           run->repeat, run->repeat == 1 ? "" : "s", run->slots.cpus, gpus, run->out);
    fflush(stdout);
}

static void print_failure(const run_state *run, const plan_case *one)
{
    if (one->folder != NULL) {
        char *path = NULL;
        if (asprintf(&path, "%s/" HARNESS_MERGED, one->folder) >= 0) {
            puts("--- output:");
            fflush(stdout);
            harness_print_tail(stdout, path, SHOWN_LOG_BYTES);
        }
        free(path);
        printf("--- logs: %s\n", one->folder);
    }
    if (one->test != NULL && one->test->command != NULL)
        printf("--- reproduce: %s\n", run_repro_line(run, one));
}

void run_report_case(const run_state *run, const plan_case *one)
{
    if (one->test == NULL && one->verdict == RUN_SKIP)
        return; /* told in one line at the end */
    printf("[%zu/%zu] %-5s %s (%.2f s)%s", run->finished, run->plan.count, run_verdict_name(one->verdict), one->name,
           one->seconds, one->reason[0] != '\0' ? ": " : "");
    print_plain(one->reason);
    putchar('\n');
    if (run_verdict_is_red(one->verdict))
        print_failure(run, one);
    fflush(stdout);
}

void run_report_heartbeat(const run_state *run)
{
    size_t shown = 0;
    printf("... %.0f s, %zu of %zu cases done, running:", run_now() - run->started, run->finished, run->plan.count);
    for (const run_attempt *one = run->running; one != NULL && shown < SHOWN_RUNNING; one = one->next, shown++)
        printf("%s %s (%.0f s%s)", shown > 0 ? "," : "", one->of->name, run_now() - one->started,
               one->ended ? ", waiting for GPU memory" : "");
    puts(run->num_running > shown ? ", ..." : "");
    fflush(stdout);
}

static void print_left_out(const run_state *run)
{
    size_t count = 0;
    for (size_t i = 0; i < run->plan.count; i++)
        count += run->plan.cases[i].test == NULL && run->plan.cases[i].verdict == RUN_SKIP;
    if (count > 0)
        printf("%zu cases are skipped because this build leaves them out\n", count);
}

static void print_others(const run_state *run)
{
    const char *before = "";
    for (int verdict = RUN_XFAIL; verdict < RUN_NUM_VERDICTS; verdict++) {
        if (run->tally[verdict] == 0)
            continue;
        printf("%s%zu %s", before, run->tally[verdict], run_verdict_name((run_verdict)verdict));
        before = ", ";
    }
    if (before[0] != '\0')
        putchar('\n');
}

void run_report_end(const run_state *run)
{
    size_t red = 0;
    print_left_out(run);
    for (int verdict = 0; verdict < RUN_NUM_VERDICTS; verdict++)
        red += run_verdict_is_red((run_verdict)verdict) ? run->tally[verdict] : 0;
    if (red > 0)
        puts("Not green:");
    for (size_t i = 0; i < run->plan.count; i++) {
        const plan_case *one = &run->plan.cases[i];
        if (!run_verdict_is_red(one->verdict))
            continue;
        printf("  %-5s %s%s", run_verdict_name(one->verdict), one->name, one->reason[0] != '\0' ? ": " : "");
        print_plain(one->reason);
        putchar('\n');
    }
    print_others(run);
    printf("%zu passed, %zu failed, %zu skipped\n", run->tally[RUN_PASS], red, run->tally[RUN_SKIP]);
    fflush(stdout);
}
