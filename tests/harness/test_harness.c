/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher against real jobs with injected faults (faulty.c): the right verdict, in time, and no process left. */
#include "tests/harness/inner.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double fault_s = 5.0;      /* from a fault to the end of the case */
static const double start_s = 1.5;      /* a job to start, on a busy machine */
static const double hang_s = 1.0 + 3.5; /* the deadline, asking the ranks, killing them */

static inner_run run;

static void launch(const char *name, const char *fault, const char *ranks, const char *deadline)
{
    char records[128];
    snprintf(records, sizeof records, "%s/records", run.folder);
    inner_execute(&run, 1,
                  (const char *[]){CKV_CASE_LAUNCH, "--name", name, "--ranks", ranks, "--timeout", deadline,
                                   "--record-dir", records, "--", CKV_FAULTY, fault, NULL});
}

/* Run one case of faulty.c. `verdict` is a shell pattern of what follows the name in the last line. */
static void expect(const char *fault, const char *ranks, int code, const char *verdict)
{
    char name[128], pattern[512];
    snprintf(name, sizeof name, "faulty.%s", fault);
    snprintf(pattern, sizeof pattern, "%s: %s", name, verdict);
    inner_begin(&run);
    launch(name, fault, ranks, code == CKV_TEST_HANG ? "1" : "5");
    if (fnmatch(pattern, run.last_line, 0) != 0)
        fail_msg("the last line is '%s', not '%s'", run.last_line, pattern);
    assert_int_equal(run.outcome.exit_code, code);
    double limit = start_s + (code == CKV_TEST_HANG ? hang_s : fault_s);
    if (run.outcome.seconds > limit)
        fail_msg("took %.1f s, more than %.1f", run.outcome.seconds, limit);
    inner_end(&run);
}

static void passes(void **state)
{
    (void)state;
    expect("passes", "1", CKV_TEST_PASS, "PASS");
    expect("passes", "2", CKV_TEST_PASS, "PASS");
    expect("passes", "3", CKV_TEST_PASS, "PASS");
}

static void more_ranks_than_cores(void **state)
{
    (void)state;
    expect("passes", "5", CKV_TEST_PASS, "PASS");
}

/* Open MPI refuses root unless told otherwise, and the caller has not told it. */
static void root_without_flags(void **state)
{
    (void)state;
    unsetenv("OMPI_ALLOW_RUN_AS_ROOT");
    unsetenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM");
    expect("passes", "2", CKV_TEST_PASS, "PASS");
}

/* What a rank of another job inherits would send Open MPI's ranks to that job's mpirun. */
static void inherited_mpi_variables(void **state)
{
    (void)state;
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "7", 1);
    setenv("OMPI_MCA_orte_hnp_uri", "1.0;tcp://127.0.0.1:1", 1);
    setenv("OMPI_MCA_ess_base_jobid", "1", 1);
    setenv("PMIX_SERVER_URI2", "1.0;tcp4://127.0.0.1:1", 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    expect("passes", "2", CKV_TEST_PASS, "PASS");
    expect("passes", "1", CKV_TEST_PASS, "PASS");
}

static void failed_cases_leave_no_folder(void **state)
{
    (void)state;
    char folder[CKV_TEST_FOLDER_BYTES];
    inner_begin(&run);
    launch("faulty.fails_with_a_folder", "fails_with_a_folder", "1", "5");
    const char *named = strstr(run.output, "the folder was ");
    assert_non_null(named);
    assert_int_equal(sscanf(named, "the folder was %31s", folder), 1);
    assert_int_equal(strncmp(folder, "/tmp/ckv_test_", 14), 0);
    assert_int_not_equal(access(folder, F_OK), 0);
    inner_end(&run);
}

static void fails_before_barrier(void **state)
{
    (void)state;
    expect("fails_before_barrier", "2", CKV_TEST_FAIL, "FAIL (rank 1 failed: tests/harness/faulty.c:*: 0x2a != 0x2b)");
    expect("fails_before_barrier", "3", CKV_TEST_FAIL, "FAIL (rank 2 failed: *)");
    expect("fails_before_barrier", "1", CKV_TEST_FAIL, "FAIL (rank 0 failed: *)");
}

static void fails_before_check_point(void **state)
{
    (void)state;
    expect("fails_before_check_point", "3", CKV_TEST_FAIL,
           "FAIL (rank 2 failed: tests/harness/faulty.c:*: wrong on rank 2)");
    expect("different_check_points", "2", CKV_TEST_FAIL,
           "FAIL (rank * failed: the ranks are at different check points*");
}

static void exits_in_the_middle(void **state)
{
    (void)state;
    expect("exits_with_0", "2", CKV_TEST_FAIL, "FAIL (rank 1 failed: exit() inside the case*");
    expect("vanishes", "2", CKV_TEST_FAIL, "FAIL (rank 1 left in the middle of the case*");
    expect("exits_with_77", "2", CKV_TEST_FAIL, "FAIL (rank 1 left in the middle of the case*");
    expect("exits_with_77", "1", CKV_TEST_FAIL, "FAIL (rank 0 left in the middle of the case (exit code 77))");
}

static void skips_only_together(void **state)
{
    (void)state;
    expect("skips_on_all", "2", CKV_TEST_SKIP, "SKIP (no <device> & \"no\" reason)");
    expect("skips_on_one", "2", CKV_TEST_FAIL, "FAIL (rank * failed: *skipped on this rank, but*");
    expect("skips_by_cmocka", "1", CKV_TEST_FAIL, "FAIL (rank 0 failed: left through CMocka's skip()*");
}

static void crashes(void **state)
{
    (void)state;
    expect("aborts", "2", CKV_TEST_FAIL, "FAIL (rank 1 died of SIGABRT)");
    expect("segfaults", "2", CKV_TEST_FAIL, "FAIL (rank 1 died of SIGSEGV)");
    expect("segfaults", "1", CKV_TEST_FAIL, "FAIL (rank 0 died of SIGSEGV)");
    expect("overflows_the_stack", "2", CKV_TEST_FAIL, "FAIL (rank 1 died of SIGSEGV)");
    expect("is_killed", "2", CKV_TEST_FAIL, "FAIL (rank 1 left in the middle of the case (exit code 137))");
}

static void cmocka_is_not_trusted(void **state)
{
    (void)state;
    expect("asserts_on_a_thread", "1", CKV_TEST_FAIL, "FAIL (rank 0 failed: exit() inside the case*");
    expect("leaks_a_block", "1", CKV_TEST_FAIL, "FAIL (rank 0 failed: *leaked 1 block*");
    expect("no_such_case", "1", CKV_TEST_USAGE, "ERROR (the program refused its arguments)");
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    setenv("CMOCKA_MESSAGE_OUTPUT", "XML", 1);
    expect("fails_before_barrier", "1", CKV_TEST_FAIL, "FAIL (rank 0 failed: *0x2a != 0x2b)");
}

static void spins_outside_a_collective(void **state)
{
    (void)state;
    expect("spins", "2", CKV_TEST_HANG, "HANG (hang: rank 0 *, rank 1 not in a known collective)");
}

static void hangs_in_a_collective(void **state)
{
    (void)state;
    expect("waits_in_barrier", "2", CKV_TEST_HANG, "HANG (hang: rank 0 *, rank 1 *)");
    expect("waits_for_spinner", "2", CKV_TEST_HANG, "HANG (hang: rank 0 *, rank 1 not in a known collective)");
}

/* The reason names the collective, when the case has named its communicator. */
static void names_the_collective(void **state)
{
    (void)state;
    expect("waits_in_second_barrier", "2", CKV_TEST_HANG,
           "HANG (hang: rank 0 in barrier #2 (* bytes), rank 1 after barrier #1 (* bytes))");
    expect("aborts_after_barrier", "2", CKV_TEST_FAIL, "FAIL (rank 1 died of SIGABRT after barrier #1 (* bytes))");
}

static void stopped_process(void **state)
{
    (void)state;
    expect("is_stopped", "1", CKV_TEST_HANG, "HANG (hang: rank 0 stopped)");
    expect("is_stopped", "2", CKV_TEST_HANG, "HANG (hang: rank 0 *, rank 1 stopped)");
}

static void mpirun_killed(void **state)
{
    (void)state;
    expect("kills_mpirun", "2", CKV_TEST_INFRASTRUCTURE, "ERROR (mpirun died of SIGKILL)");
}

/* Nobody is left to judge, but the case's processes must go, too: inner_execute looks for them. */
static void launcher_killed(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        inner_begin(&run);
        launch("faulty.kills_the_launcher", "kills_the_launcher", ranks == 1 ? "1" : "2", "5");
        assert_int_equal(run.outcome.signal, 9);
        inner_end(&run);
    }
}

static void process_left_behind(void **state)
{
    (void)state;
    expect("leaves_a_process", "2", CKV_TEST_FAIL, "FAIL (left running: faulty (*))");
}

static void output_without_newline(void **state)
{
    (void)state;
    expect("prints_without_newline", "2", CKV_TEST_FAIL, "FAIL (rank * failed: *: with <angle>, & and \"quotes\")");
    assert_non_null(strstr(run.output, "\n[rank 0] no newline from rank 0"));
    assert_non_null(strstr(run.output, "\n[rank 1] no newline from rank 1"));
    assert_non_null(strstr(run.output, "\nreproduce: CKV_TEST_SEED=1 "));
}

/* Programs that know nothing of records are judged by their exit code. */
static void unrecorded_programs(void **state)
{
    (void)state;
    static const struct {
        const char *script, *last_line;
        int code;
    } programs[] = {
        {"exit 0", "x: PASS", CKV_TEST_PASS},
        {"exit 77", "x: SKIP", CKV_TEST_SKIP},
        {"exit 3", "x: FAIL (exit code 3)", CKV_TEST_FAIL},
        {"kill -9 $$", "x: FAIL (killed by SIGKILL)", CKV_TEST_FAIL},
        {"sleep 30 & exit 0", "x: FAIL (left running: sleep (*))", CKV_TEST_FAIL},
        {"sleep 30; exit 0", "x: HANG (did not end in time)", CKV_TEST_HANG},
    };
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        inner_begin(&run);
        inner_execute(&run, 1,
                      (const char *[]){CKV_CASE_LAUNCH, "--name", "x", "--timeout", "0.5", "--unrecorded",
                                       "--record-dir", run.folder, "--", "sh", "-c", programs[i].script, NULL});
        if (fnmatch(programs[i].last_line, run.last_line, 0) != 0)
            fail_msg("'%s' ends with '%s', not '%s'", programs[i].script, run.last_line, programs[i].last_line);
        assert_int_equal(run.outcome.exit_code, programs[i].code);
        inner_end(&run);
    }
}

static void hostile_names(void **state)
{
    (void)state;
    inner_begin(&run);
    launch("a/../<&\"'$(x)", "passes", "2", "5");
    assert_string_equal(run.last_line, "a/../<&\"'$(x): PASS");
    launch("a/../<&\"'$(x)", "aborts", "1", "5");
    assert_string_equal(run.last_line, "a/../<&\"'$(x): FAIL (rank 0 died of SIGABRT)");
    assert_non_null(strstr(run.output, "--name 'a/../<&\"'\\''$(x)' --ranks 1"));
    inner_end(&run);
}

static void launcher_refuses_arguments(void **state)
{
    (void)state;
    static const char *const refused[][8] = {
        {CKV_CASE_LAUNCH, NULL},
        {CKV_CASE_LAUNCH, "--name", "x", NULL},
        {CKV_CASE_LAUNCH, "--name", "x", "--ranks", "0", "--", "true", NULL},
        {CKV_CASE_LAUNCH, "--name", "x", "--ranks", "two", "--", "true", NULL},
        {CKV_CASE_LAUNCH, "--name", "x", "--timeout", "-1", "--", "true", NULL},
        {CKV_CASE_LAUNCH, "--nmae", "x", "--", "true", NULL},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        inner_begin(&run);
        inner_execute(&run, 1, refused[i]);
        assert_int_equal(run.outcome.exit_code, CKV_TEST_USAGE);
        assert_null(strchr(run.output, '\n')); /* one line */
        inner_end(&run);
    }
    inner_begin(&run);
    inner_execute(
        &run, 1,
        (const char *[]){CKV_CASE_LAUNCH, "--name", "x", "--record-dir", run.folder, "--", "/no/such/program", NULL});
    assert_string_equal(run.last_line, "x: ERROR (cannot start: No such file or directory)");
    assert_int_equal(run.outcome.exit_code, CKV_TEST_INFRASTRUCTURE);
    inner_end(&run);
}

static const ckv_test_case cases[] = {
    CKV_CASE(passes),
    CKV_CASE(more_ranks_than_cores),
    CKV_CASE(root_without_flags),
    CKV_CASE(inherited_mpi_variables),
    CKV_CASE(failed_cases_leave_no_folder),
    CKV_CASE(fails_before_barrier),
    CKV_CASE(fails_before_check_point),
    CKV_CASE(exits_in_the_middle),
    CKV_CASE(skips_only_together),
    CKV_CASE(crashes),
    CKV_CASE(cmocka_is_not_trusted),
    CKV_CASE(spins_outside_a_collective),
    CKV_CASE(hangs_in_a_collective),
    CKV_CASE(names_the_collective),
    CKV_CASE(stopped_process),
    CKV_CASE(mpirun_killed),
    CKV_CASE(launcher_killed),
    CKV_CASE(process_left_behind),
    CKV_CASE(output_without_newline),
    CKV_CASE(unrecorded_programs),
    CKV_CASE(hostile_names),
    CKV_CASE(launcher_refuses_arguments),
};

CKV_TEST_MAIN("harness", cases)
