/* SPDX-License-Identifier: Apache-2.0 */
/* ckv lists run over real jobs with injected faults: each ends in the right verdict within its deadline, the others are
 * not disturbed, nothing is left, and the results tell it. */
#include "tests/harness/junit_file.h"
#include "tests/harness/mini.h"

#include "tools/harness/shared_files.h"
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double fault_s = 5.0;      /* from a fault to the end of the case */
static const double hang_s = 2.0 + 3.5; /* the deadline, asking the ranks, killing them */

static inner_run run;

#define COUNT(cases) (sizeof(cases) / sizeof *(cases))

static bool is_noted(const shared_files *files, const char *path)
{
    for (size_t i = 0; i < files->count; i++)
        if (strcmp(files->path[i], path) == 0)
            return true;
    return false;
}

/* MPI's files in shared memory that no living process has mapped, as far as they are not among `earlier`. Other jobs
 * come and go meanwhile. */
static void note_abandoned(const shared_files *earlier, shared_files *abandoned)
{
    static shared_files mapped;
    DIR *processes = opendir("/proc"), *folder = opendir("/dev/shm");
    assert_true(processes != NULL && folder != NULL);
    mapped.count = abandoned->count = 0;
    for (struct dirent *entry; (entry = readdir(processes)) != NULL;)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            shared_files_note(&mapped, &(harness_process){.pid = atoi(entry->d_name)}, 1);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[SHARED_PATH_BYTES];
        snprintf(path, sizeof path, "/dev/shm/%.100s", entry->d_name);
        if (strncmp(entry->d_name, "vader_segment.", 14) == 0 && !is_noted(&mapped, path) &&
            (earlier == NULL || !is_noted(earlier, path)) && abandoned->count < SHARED_MAX_FILES)
            memcpy(abandoned->path[abandoned->count++], path, sizeof path);
    }
    closedir(processes);
    closedir(folder);
}

/* A job that is just ending may hold some for a moment. */
static void expect_none_abandoned(const shared_files *earlier)
{
    static shared_files left;
    const struct timespec pause = {.tv_nsec = 100000000};
    note_abandoned(earlier, &left);
    for (int turn = 0; turn < 30 && left.count > 0; turn++) {
        nanosleep(&pause, NULL);
        note_abandoned(earlier, &left);
    }
    if (left.count > 0)
        fail_msg("%zu files are left in shared memory, such as %s", left.count, left.path[0]);
}

static void expect_last_line(const char *line)
{
    if (strcmp(run.last_line, line) != 0)
        fail_msg("the last line is '%s', not '%s'", run.last_line, line);
}

static void read_junit(junit_file *file)
{
    char path[256];
    snprintf(path, sizeof path, "%s/out/junit.xml", run.folder);
    junit_file_read(path, file);
    assert_int_equal(file->count, file->tests);
}

/* --- Verdicts --- */

static const struct {
    mini_case of;
    const char *verdict, *reason;
} faults[] = {
    {MINI("passes", "passes", 2), "pass", ""},
    {MINI("crowded", "passes", 5), "pass", ""},
    {MINI("fails", "fails_before_barrier", 2), "fail", "rank 1 failed: tests/harness/faulty.c:*: 0x2a != 0x2b"},
    {MINI("fails_3", "fails_before_barrier", 3), "fail", "rank 2 failed: *"},
    {MINI("exits_0", "exits_with_0", 2), "fail", "rank 1 failed: exit() inside the case*"},
    {MINI("exits_77", "exits_with_77", 2), "fail", "rank 1 left in the middle of the case*"},
    {MINI("skips", "skips_on_all", 2), "skip", "no <device> & \"no\" reason"},
    {MINI("skips_on_one", "skips_on_one", 2), "fail", "rank * failed: *skipped on this rank, but*"},
    {MINI("aborts", "aborts", 2), "crash", "rank 1 died of SIGABRT"},
    {MINI("segfaults", "segfaults", 3), "crash", "rank 2 died of SIGSEGV"},
    {MINI("is_killed", "is_killed", 2), "crash", "rank 1 left in the middle of the case (exit code 137)"},
    {MINI("spins", "spins", 2), "hang", "hang: rank 0 *, rank 1 not in a known collective"},
    {MINI("in_barrier", "waits_in_second_barrier", 2), "hang",
     "hang: rank 0 in barrier #2 (* bytes), rank 1 after barrier #1 (* bytes)"},
    {MINI("stopped", "is_stopped", 2), "hang", "hang: rank 0 *, rank 1 stopped"},
    {MINI("mpirun_killed", "kills_mpirun", 2), "infrastructure", "mpirun died of SIGKILL"},
    {MINI("launcher_killed", "kills_the_launcher", 2), "infrastructure", "its launcher died (signal 9)"},
    {MINI("leaves_a_process", "leaves_a_process", 2), "fail", "left running: faulty (*)"},
    {MINI("no_newline", "prints_without_newline", 2), "fail", "rank * failed: *with <angle>, & and *"},
    {MINI("<&\"'$(x)", "passes", 2), "pass", ""},
    {MINI("no_such_case", "no_such_case", 1), "infrastructure", "the program refused its arguments"},
    {MINI("shell_crash", "!kill -11 $$", 1), "crash", "killed by SIGSEGV"},
};

static bool is_hang(size_t fault)
{
    return strcmp(faults[fault].verdict, "hang") == 0;
}

/* All at once, more than the machine has CPUs: they mostly wait. */
static void every_fault_has_its_verdict(void **state)
{
    (void)state;
    mini_case cases[COUNT(faults)];
    for (size_t i = 0; i < COUNT(faults); i++) {
        cases[i] = faults[i].of;
        if (is_hang(i))
            cases[i].deadline = "2";
    }
    unsetenv("OMPI_ALLOW_RUN_AS_ROOT");
    unsetenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM");
    setenv("PMIX_SERVER_URI2", "1.0;tcp4://127.0.0.1:1", 1); /* of another job */
    static shared_files earlier;
    note_abandoned(NULL, &earlier);
    mini_begin(&run, cases, COUNT(cases), "15");
    mini_run(&run, "", "-j6");
    assert_int_equal(run.outcome.exit_code, 1);
    /* a job without a fault tells how fast this machine is, with all the others running */
    const json_t *sound = mini_event(&run, "case", "mini.crowded");
    double start_s = 1.5 + 2 * json_number_value(json_object_get(sound, "duration"));
    for (size_t i = 0; i < COUNT(faults); i++) {
        char name[64];
        snprintf(name, sizeof name, "mini.%s", faults[i].of.name);
        mini_expect(&run, faults[i].of.name, faults[i].verdict, faults[i].reason);
        double seconds = json_number_value(json_object_get(mini_event(&run, "case", name), "duration"));
        bool is_fault = faults[i].reason[0] != '\0';
        double limit = !is_fault ? 15 : start_s + (is_hang(i) ? hang_s : fault_s);
        if (seconds > limit)
            fail_msg("%s took %.1f s, more than %.1f", name, seconds, limit);
    }
    expect_last_line("3 passed, 17 failed, 1 skipped");
    assert_non_null(strstr(run.output, "\n7 fail, 4 crash, 3 hang, 3 infrastructure\n"));
    expect_none_abandoned(&earlier);
    mini_end(&run);
}

static void stopped_launcher_is_ended(void **state)
{
    (void)state;
    static const mini_case cases[] = {MINI("stopped", "stops_the_launcher", 2), MINI("sound", "passes", 2)};
    mini_begin(&run, cases, COUNT(cases), "5");
    mini_run(&run, "", "-j4");
    mini_expect(&run, "stopped", "infrastructure", "its launcher died (signal 9)");
    mini_expect(&run, "sound", "pass", "");
    mini_end(&run);
}

static void expect_code(const mini_case *one, int code)
{
    mini_begin(&run, one, 1, "1");
    mini_run(&run, "", "");
    assert_int_equal(run.outcome.exit_code, code);
    mini_end(&run);
}

static void exit_codes_tell_the_kind(void **state)
{
    (void)state;
    expect_code(&(mini_case)MINI("x", "!exit 0", 1), 0);
    expect_code(&(mini_case)MINI("x", "!exit 5", 1), 1);
    expect_code(&(mini_case)MINI("x", "!sleep 30", 1), 4);
    expect_code(&(mini_case)MINI("x", "kills_mpirun", 2), 3);
    expect_code(&(mini_case)MINI("x", "!exit 77", 1), 1); /* nothing ran */
}

/* --- What the list says --- */

static void expectations_and_waivers(void **state)
{
    (void)state;
    static const mini_case cases[] = {
        MINI("good", "!exit 0", 1),
        MINI_WITH("bad", "!exit 1", 1, NULL, "XFAIL (known)"),
        MINI_WITH("better", "!exit 0", 1, NULL, "XFAIL (known)"),
        MINI_WITH("never", "!exit 1", 1, NULL, "SKIP (broken)"),
        MINI_WITH("odd", "!exit 1", 1, NULL, "UNSTABLE (weather)"),
        MINI("waived", "!exit 1", 1),
        MINI("elsewhere", "!exit 1", 1),
        MINI("expired", "!exit 1", 1),
        MINI_WITH("must", "!exit 77", 1, NULL, "REQUIRED"),
        MINI("may", "!exit 77", 1),
    };
    mini_begin(&run, cases, COUNT(cases), "5");
    mini_put(&run, "waives.txt",
             "mini.waived XFAIL (bug 1) until 2030-01-01 by me\n"
             "when(terms: {color: red}) mini.elsewhere SKIP (bug 2) until 2030-01-01 by me\n"
             "mini.expired SKIP (bug 3) until 2029-12-31 by me\n");
    mini_run(&run, "", "--today 2030-01-01 --set color=blue");
    mini_expect(&run, "good", "pass", "");
    mini_expect(&run, "bad", "xfail", "fail as expected (known): exit code 1");
    mini_expect(&run, "better", "xpass", "*drop the waiver (known)");
    mini_expect(&run, "never", "skip", "broken");
    mini_expect(&run, "odd", "xfail", "fail as expected (weather): exit code 1");
    mini_expect(&run, "waived", "xfail", "fail as expected (bug 1, until 2030-01-01 by me): exit code 1");
    mini_expect(&run, "elsewhere", "fail", "exit code 1");
    mini_expect(&run, "expired", "fail", "exit code 1");
    mini_expect(&run, "must", "fail", "the list requires it here, but it was skipped");
    mini_expect(&run, "may", "skip", "");
    assert_non_null(strstr(run.output, "waives.txt:3:1: warning: the waiver of 'mini.expired' by me expired"));
    expect_last_line("1 passed, 4 failed, 2 skipped");
    assert_int_equal(run.outcome.exit_code, 1);
    mini_end(&run);
}

static void flaky_is_a_verdict(void **state)
{
    (void)state;
    static const mini_case cases[] = {
        MINI("steady", "!exit 0", 1),
        MINI("wavers", "!test -e again && exit 0; : >again; echo first; exit 1", 1),
        MINI_WITH("known", "!test -e known && exit 0; : >known; exit 1", 1, NULL, "UNSTABLE (weather)"),
    };
    mini_begin(&run, cases, COUNT(cases), "5");
    mini_run(&run, "", "--repeat 3 -j1");
    mini_expect(&run, "steady", "pass", "");
    mini_expect(&run, "wavers", "flaky", "2 of 3 attempts passed: exit code 1");
    mini_expect(&run, "known", "xfail", "flaky as expected (weather): *");
    assert_int_equal(run.outcome.exit_code, 1);
    junit_file file;
    read_junit(&file);
    const junit_file_case *one = junit_file_find(&file, "mini.mini.wavers");
    assert_string_equal(one->element, "failure");
    assert_string_equal(one->output, "first\n"); /* of the attempt that failed */
    junit_file_free(&file);
    mini_end(&run);
}

/* --- Results --- */

static const mini_case noisy[] = {
    MINI("bytes", "!printf '<a> & ]]> \\001\\377\\303(\\355\\240\\200 \\360\\237\\230\\200\\n'; exit 1", 1),
    MINI("ranks", "prints", 3),
    MINI("<&\"'$(x)", "!exit 0", 1),
    MINI("silent", "!exit 0", 1),
};

static void junit_holds_anything(void **state)
{
    (void)state;
    mini_begin(&run, noisy, COUNT(noisy), "5");
    mini_run(&run, "mkdir out && echo '<stale' >out/junit.xml && echo stale >out/events.jsonl &&", "");
    junit_file file;
    read_junit(&file);
    assert_string_equal(file.suite, "mini");
    assert_int_equal(file.failures, 1);
    assert_true(file.properties > 10);
    const junit_file_case *one = junit_file_find(&file, "mini.mini.bytes");
    assert_string_equal(one->element, "failure");
    assert_string_equal(one->output, "<a> & ]]> \\x01\\xff\\xc3(\\xed\\xa0\\x80 \xF0\x9F\x98\x80\n");
    one = junit_file_find(&file, "mini.mini.ranks");
    assert_non_null(strstr(one->output, "[rank 0] rank 0 of 3\n"));
    assert_non_null(strstr(one->output, "[rank 2] rank 2 of 3\n"));
    assert_non_null(junit_file_find(&file, "mini.mini.<&\"'$(x)"));
    junit_file_free(&file);
    mini_end(&run);
}

/* Found at the end, when every case has passed. */
static void results_that_cannot_be_written_are_told(void **state)
{
    (void)state;
    static const mini_case one = MINI("silent", "!exit 0", 1);
    mini_begin(&run, &one, 1, "5");
    mini_run(&run, "mkdir -p out/durations.json &&", "");
    assert_int_equal(run.outcome.exit_code, 3);
    assert_non_null(strstr(run.output, "results cannot be written to "));
    assert_non_null(strstr(run.output, "/out: Is a directory\n"));
    inner_execute(&run, 1, (const char *[]){"sh", "-c", "ls \"$1\"/out | grep tmp", "sh", run.folder, NULL});
    assert_int_equal(run.outcome.exit_code, 1); /* nothing half written */
    mini_end(&run);
}

static void repro_line_repeats_the_failure(void **state)
{
    (void)state;
    static const mini_case one =
        MINI_WITH("odd 'name", "!echo \"seed $CKV_TEST_SEED\"; exit 9", 1, "ENVIRONMENT A=b", NULL);
    char script[8192];
    inner_run *again = calloc(1, sizeof *again);
    assert_non_null(again);
    mini_begin(&run, &one, 1, "5");
    mini_put(&run, "mini.yml", "version: 0.0.1\nmini:\n- tests: ['mini.*']\n");
    mini_run(&run, "", "--seed 42");
    const json_t *event = mini_event(&run, "case", "mini.odd 'name");
    const char *seed = json_string_value(json_object_get(event, "seed"));
    const char *line = json_string_value(json_object_get(event, "reproduce"));
    assert_non_null(seed);
    assert_non_null(strstr(run.output, line));
    inner_begin(again);
    snprintf(script, sizeof script, "%s", line);
    inner_execute(again, 1, (const char *[]){"sh", "-c", script, NULL});
    assert_int_equal(again->outcome.exit_code, 1);
    snprintf(script, sizeof script, "\nseed %s\n", seed);
    assert_non_null(strstr(again->output, script));
    inner_end(again);
    free(again);
    mini_end(&run);
}

/* --- Runners that end early --- */

static const mini_case slow[] = {
    MINI("quick", "!exit 0", 1),
    MINI("endless", "spins", 2),
    MINI_WITH("later", "!exit 0", 1, "RUN_SERIAL ON", NULL),
};

/* What `before` does in the background to the runner, which then replaces the shell. */
static void run_and_signal(const char *name)
{
    char before[256];
    snprintf(before, sizeof before, "{ (sleep 2; kill -%s $$) & } && exec", name);
    mini_begin(&run, slow, COUNT(slow), "20");
    mini_run(&run, before, "-j3");
}

static void killed_runner_leaves_its_results(void **state)
{
    (void)state;
    run_and_signal("KILL");
    assert_int_equal(run.outcome.signal, SIGKILL);
    junit_file file;
    read_junit(&file);
    assert_string_equal(junit_file_find(&file, "mini.mini.quick")->element, "");
    const junit_file_case *one = junit_file_find(&file, "mini.mini.endless");
    assert_string_equal(one->element, "error");
    assert_non_null(strstr(one->message, "unfinished"));
    junit_file_free(&file);
    mini_end(&run);
}

static void interrupted_runner_says_so(void **state)
{
    (void)state;
    run_and_signal("TERM");
    assert_int_equal(run.outcome.exit_code, 3);
    mini_expect(&run, "quick", "pass", "");
    mini_expect(&run, "endless", "infrastructure", "interrupted");
    mini_expect(&run, "later", "infrastructure", "not run: the run was interrupted");
    expect_last_line("1 passed, 2 failed, 0 skipped");
    junit_file file;
    read_junit(&file);
    assert_int_equal(file.errors, 2);
    junit_file_free(&file);
    mini_end(&run);
}

static void long_silence_is_broken(void **state)
{
    (void)state;
    static const mini_case cases[] = {MINI("first", "!sleep 1.6", 1), MINI("second", "!sleep 1.6", 1)};
    mini_begin(&run, cases, COUNT(cases), "5");
    mini_run(&run, "", "-j2 --heartbeat 1");
    assert_non_null(strstr(run.output, "... 1 s, 0 of 2 cases done, running: mini."));
    const json_t *names = json_object_get(mini_event(&run, "heartbeat", NULL), "running");
    assert_int_equal(json_array_size(names), 2);
    mini_end(&run);
}

static void refuses_to_run_in_ranks(void **state)
{
    (void)state;
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    mini_begin(&run, slow, 1, "5");
    char script[512];
    snprintf(script, sizeof script,
             "cd '%s' && OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 '%s' lists run --dir . -c mini -b .", run.folder,
             CKV_PROGRAM);
    inner_execute(&run, 1, (const char *[]){"sh", "-c", script, NULL});
    assert_int_equal(run.outcome.exit_code, 2);
    assert_non_null(strstr(run.last_line, "rank 1 of an MPI job; run it once, without mpirun"));
    mini_end(&run);
}

static const ckv_test_case cases[] = {
    CKV_CASE(every_fault_has_its_verdict),
    CKV_CASE(stopped_launcher_is_ended),
    CKV_CASE(exit_codes_tell_the_kind),
    CKV_CASE(expectations_and_waivers),
    CKV_CASE(flaky_is_a_verdict),
    CKV_CASE(junit_holds_anything),
    CKV_CASE(results_that_cannot_be_written_are_told),
    CKV_CASE(repro_line_repeats_the_failure),
    CKV_CASE(killed_runner_leaves_its_results),
    CKV_CASE(interrupted_runner_says_so),
    CKV_CASE(long_silence_is_broken),
    CKV_CASE(refuses_to_run_in_ranks),
};

CKV_TEST_MAIN("run", cases)
