/* SPDX-License-Identifier: Apache-2.0 */
/* Cases that go wrong on purpose, on the last rank or everywhere; test_harness.c and test_outer_job.c run them and
 * expect the right verdict. */
#include "tests/support/mpi_case.h"

#include "tools/harness/process_tree.h"
#include <ckv/mpi.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_last(void)
{
    return ckv_test_rank() == ckv_test_ranks() - 1;
}

static void barrier(void)
{
    const MPI_Comm *comm = ckv_test_mpi_comm();
    MPI_Barrier(*comm);
}

static _Noreturn void spin(void)
{
    static atomic_int forever = 1;
    while (atomic_load(&forever))
        ;
    abort();
}

static void passes(void **state)
{
    (void)state;
    barrier();
    ckv_test_check_point("middle");
    barrier();
}

static void fails_before_barrier(void **state)
{
    (void)state;
    if (is_last())
        assert_int_equal(6 * 7, 43);
    barrier();
}

static void fails_with_a_folder(void **state)
{
    (void)state;
    char folder[CKV_TEST_FOLDER_BYTES];
    ckv_test_folder(folder);
    fail_msg("the folder was %s", folder);
}

static void fails_before_check_point(void **state)
{
    (void)state;
    if (is_last())
        fail_msg("wrong on rank %d", ckv_test_rank());
    ckv_test_check_point("before the barrier");
    barrier();
}

static void different_check_points(void **state)
{
    (void)state;
    ckv_test_check_point(is_last() ? "there" : "here");
}

static void exits_with_0(void **state)
{
    (void)state;
    if (is_last())
        exit(0);
    barrier();
}

static void vanishes(void **state)
{
    (void)state;
    if (is_last())
        _exit(0);
    barrier();
}

static void exits_with_77(void **state)
{
    (void)state;
    if (is_last())
        _exit(77);
    barrier();
}

static void skips_on_one(void **state)
{
    (void)state;
    if (is_last())
        ckv_test_skip("this rank does not like it");
}

static void skips_on_all(void **state)
{
    (void)state;
    ckv_test_skip("no <device> & \"no\" reason");
}

static void skips_by_cmocka(void **state)
{
    (void)state;
    skip();
}

static void aborts(void **state)
{
    (void)state;
    if (is_last())
        abort();
    barrier();
}

static void segfaults(void **state)
{
    (void)state;
    if (is_last()) {
        volatile char *forbidden = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *forbidden = 1;
    }
    barrier();
}

/* the endless recursion is wanted */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winfinite-recursion"
static int recurse(const volatile int *depth)
{
    volatile int below = *depth + 1;
    return recurse(&below) + below;
}
#pragma GCC diagnostic pop

static void overflows_the_stack(void **state)
{
    (void)state;
    volatile int depth = 0;
    if (is_last())
        recurse(&depth);
    barrier();
}

static void is_killed(void **state)
{
    (void)state;
    if (is_last())
        raise(SIGKILL);
    barrier();
}

static void spins(void **state)
{
    (void)state;
    if (is_last())
        spin();
}

static void waits_in_barrier(void **state)
{
    (void)state;
    if (!is_last())
        barrier();
}

static void waits_for_spinner(void **state)
{
    (void)state;
    if (is_last())
        spin();
    barrier();
}

/* One barrier that all reach, then one that the last rank never does. */
static ckv_comm *pass_one_barrier(void)
{
    ckv_comm *comm = NULL;
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), 0, &comm));
    ckv_test_set_comm(comm);
    assert_ok(ckv_comm_barrier(comm));
    return comm;
}

static void waits_in_second_barrier(void **state)
{
    (void)state;
    ckv_comm *comm = pass_one_barrier();
    if (is_last())
        spin();
    assert_ok(ckv_comm_barrier(comm));
}

static void aborts_after_barrier(void **state)
{
    (void)state;
    ckv_comm *comm = pass_one_barrier();
    if (is_last())
        abort();
    assert_ok(ckv_comm_barrier(comm));
}

static void is_stopped(void **state)
{
    (void)state;
    if (is_last())
        raise(SIGSTOP);
    barrier();
}

/* Its mpirun is the parent, its launcher the parent's parent; without mpirun both are the launcher. */
static pid_t launcher_pid(void)
{
    harness_process parent;
    if (!harness_process_read(getppid(), &parent))
        abort();
    return ckv_test_ranks() > 1 ? parent.parent : parent.pid;
}

static void kills_mpirun(void **state)
{
    (void)state;
    if (is_last())
        kill(getppid(), SIGKILL);
    spin();
}

static void kills_the_launcher(void **state)
{
    (void)state;
    if (is_last())
        kill(launcher_pid(), SIGKILL);
    spin();
}

static void stops_the_launcher(void **state)
{
    (void)state;
    if (is_last())
        kill(launcher_pid(), SIGSTOP);
    spin();
}

static void *assert_elsewhere(void *unused)
{
    assert_null(unused);
    assert_non_null(unused);
    return unused;
}

static void asserts_on_a_thread(void **state)
{
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, assert_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
}

static void leaks_a_block(void **state)
{
    (void)state;
    assert_non_null(test_malloc(16));
}

static void leaves_a_process(void **state)
{
    (void)state;
    if (is_last() && fork() == 0) {
        setsid();
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    barrier();
}

static void prints(void **state)
{
    (void)state;
    printf("rank %d of %d\n", ckv_test_rank(), ckv_test_ranks());
}

static void prints_gpu(void **state)
{
    (void)state;
    const char *gpu = getenv("CUDA_VISIBLE_DEVICES");
    printf("%s\n", gpu != NULL ? gpu : "everything");
}

static void waits_a_moment(void **state)
{
    (void)state;
    sleep(1);
}

/* Remembers in the folder it runs in. */
static void fails_every_second_time(void **state)
{
    (void)state;
    static const char marker[] = "has_run_once";
    int again = access(marker, F_OK) == 0;
    ckv_test_check_point("everybody has looked");
    if (ckv_test_rank() == 0)
        fclose(fopen(marker, "w"));
    assert_false(again);
}

static void prints_without_newline(void **state)
{
    (void)state;
    printf("no newline from rank %d", ckv_test_rank());
    fail_msg("with <angle>, & and \"quotes\"");
}

static const ckv_test_case cases[] = {
    CKV_CASE(passes),
    CKV_CASE(fails_before_barrier),
    CKV_CASE(fails_with_a_folder),
    CKV_CASE(fails_before_check_point),
    CKV_CASE(different_check_points),
    CKV_CASE(exits_with_0),
    CKV_CASE(vanishes),
    CKV_CASE(exits_with_77),
    CKV_CASE(skips_on_one),
    CKV_CASE(skips_on_all),
    CKV_CASE(skips_by_cmocka),
    CKV_CASE(aborts),
    CKV_CASE(segfaults),
    CKV_CASE(overflows_the_stack),
    CKV_CASE(is_killed),
    CKV_CASE(spins),
    CKV_CASE(waits_in_barrier),
    CKV_CASE(waits_for_spinner),
    CKV_CASE(waits_in_second_barrier),
    CKV_CASE(aborts_after_barrier),
    CKV_CASE(is_stopped),
    CKV_CASE(kills_mpirun),
    CKV_CASE(kills_the_launcher),
    CKV_CASE(stops_the_launcher),
    CKV_CASE(asserts_on_a_thread),
    CKV_CASE(leaks_a_block),
    CKV_CASE(leaves_a_process),
    CKV_CASE(prints),
    CKV_CASE(prints_gpu),
    CKV_CASE(waits_a_moment),
    CKV_CASE(fails_every_second_time),
    CKV_CASE(prints_without_newline),
};

CKV_MPI_TEST_MAIN("faulty", cases)
