/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun -np 2 ctest, literally, over a small folder of tests that pass, fail, crash, hang and kill their launcher. */
#include "tests/harness/inner.h"

#include "tools/harness/folder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inner_run run;
static const char hanging[] = "waits_for_spinner"; /* the only fault whose deadline must pass */

/* Write the CTestTestfile.cmake that CMake would have generated for these cases of faulty.c. */
static void write_tests(const char *const *faults)
{
    char path[256], text[16384];
    size_t length = 0;
    for (; *faults != NULL; faults++) {
        length += (size_t)snprintf(text + length, sizeof text - length,
                                   "add_test(mini.%s \"%s\" --name mini.%s --ranks 2 --timeout %d --record-dir"
                                   " \"%s/records\" -- \"%s\" %s)\n"
                                   "set_tests_properties(mini.%s PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77)\n",
                                   *faults, CKV_CASE_LAUNCH, *faults, strcmp(*faults, hanging) == 0 ? 2 : 15,
                                   run.folder, CKV_FAULTY, *faults, *faults);
        assert_true(length < sizeof text);
    }
    snprintf(path, sizeof path, "%s/CTestTestfile.cmake", run.folder);
    assert_true(harness_file_write(path, text));
}

/* mpirun -np 2 ctest; what each rank prints goes to its own file. `before` is shell that each rank runs first. mpirun
 * ends a job a second after a rank left with an error; on a busy machine the other CTest may need longer for its last
 * lines, so each rank waits for both. */
static void run_ctests(const char *before, const char *options)
{
    char script[1024];
    snprintf(script, sizeof script,
             "cd '%s' && %s { '%s' --output-on-failure %s > ctest.$OMPI_COMM_WORLD_RANK 2>&1; code=$?;"
             " : > done.$OMPI_COMM_WORLD_RANK; tries=0;"
             " until [ -e done.0 ] && [ -e done.1 ] || [ $tries -ge 100 ]; do sleep 0.1; tries=$((tries + 1)); done;"
             " exit $code; }",
             run.folder, before, CKV_CTEST, options);
    inner_execute(&run, 2, (const char *[]){"sh", "-c", script, NULL});
}

/* Both ranks' CTest must have said this, `times` times. */
static void expect_on_both(const char *line, int times)
{
    for (int rank = 0; rank < 2; rank++) {
        char name[32];
        snprintf(name, sizeof name, "ctest.%d", rank);
        char *text = inner_read(&run, name);
        int count = 0;
        for (const char *at = text; (at = strstr(at, line)) != NULL; at += strlen(line))
            count++;
        if (count != times)
            print_message("rank %d:\n%s\n", rank, text);
        free(text);
        if (count != times)
            fail_msg("rank %d's CTest says '%s' %d times, not %d", rank, line, count, times);
    }
}

static void all_pass(void **state)
{
    (void)state;
    inner_begin(&run);
    write_tests((const char *const[]){"passes", "waits_a_moment", "prints", NULL});
    run_ctests("", "-V");
    expect_on_both("100% tests passed", 1); /* newer CTests do not add that none failed */
    expect_on_both("mini.passes: PASS\n", 1);
    assert_int_equal(run.outcome.exit_code, 0);
    inner_end(&run);
}

static void failures_and_crashes(void **state)
{
    (void)state;
    inner_begin(&run);
    write_tests((const char *const[]){"passes", "fails_before_barrier", "segfaults", "skips_on_all", "exits_with_77",
                                      "prints", NULL});
    run_ctests("", "");
    expect_on_both("50% tests passed, 3 tests failed out of 6", 1);
    expect_on_both("mini.fails_before_barrier: FAIL (rank 1 failed: tests/harness/faulty.c:", 1);
    expect_on_both("mini.segfaults: FAIL (rank 1 died of SIGSEGV)", 1);
    expect_on_both("mini.skips_on_all (Skipped)", 1);
    assert_true(run.outcome.exit_code != 0);
    assert_true(run.outcome.seconds < 20);
    inner_end(&run);
}

static void repeats_pair_up(void **state)
{
    (void)state;
    inner_begin(&run);
    write_tests((const char *const[]){"passes", "fails_every_second_time", "prints", NULL});
    run_ctests("", "--repeat until-fail:2");
    expect_on_both("67% tests passed, 1 tests failed out of 3", 1);
    expect_on_both("mini.fails_every_second_time: FAIL", 1);
    inner_end(&run);
}

static void parallel_ctests(void **state)
{
    (void)state;
    inner_begin(&run);
    write_tests((const char *const[]){"passes", "waits_a_moment", "aborts", "prints", "skips_on_all", NULL});
    run_ctests("", "-j2");
    expect_on_both("80% tests passed, 1 tests failed out of 5", 1);
    expect_on_both("mini.aborts: FAIL (rank 1 died of SIGABRT)", 1);
    inner_end(&run);
}

static void hang_ends_on_both(void **state)
{
    (void)state;
    inner_begin(&run);
    write_tests((const char *const[]){hanging, "passes", NULL});
    run_ctests("", "");
    expect_on_both("50% tests passed, 1 tests failed out of 2", 1);
    expect_on_both("mini.waits_for_spinner: HANG (hang: rank 0", 1);
    inner_end(&run);
}

/* A folder as an earlier job would have left it whose mpirun had the same process id: in `sh -c`, $PPID is mpirun. */
static void stale_verdicts(void **state)
{
    (void)state;
    inner_begin(&run);
    write_tests((const char *const[]){"aborts", NULL});
    run_ctests("mkdir -p records/job-$PPID-1 && echo '0 ' > records/job-$PPID-1/mini.aborts.1.verdict &&"
               " echo '0 ' > records/mini.aborts.1.verdict &&",
               "");
    expect_on_both("0% tests passed, 1 tests failed out of 1", 1);
    expect_on_both("mini.aborts: FAIL (rank 1 died of SIGABRT)", 1);
    inner_end(&run);
}

static void leader_dies(void **state)
{
    (void)state;
    inner_begin(&run);
    write_tests((const char *const[]){"kills_the_launcher", "passes", NULL});
    run_ctests("", "");
    expect_on_both("50% tests passed, 1 tests failed out of 2", 1);
    char *follower = inner_read(&run, "ctest.1");
    bool told = strstr(follower, "mini.kills_the_launcher: ERROR (rank 0 died without a verdict)") != NULL;
    free(follower);
    assert_true(told);
    assert_true(run.outcome.seconds < 10);
    inner_end(&run);
}

static const ckv_test_case cases[] = {
    CKV_CASE(all_pass),          CKV_CASE(failures_and_crashes), CKV_CASE(repeats_pair_up), CKV_CASE(parallel_ctests),
    CKV_CASE(hang_ends_on_both), CKV_CASE(stale_verdicts),       CKV_CASE(leader_dies),
};

CKV_TEST_MAIN("outer_job", cases)
