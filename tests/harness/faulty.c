/* SPDX-License-Identifier: Apache-2.0 */
/* Cases that go wrong on purpose, on the last rank or everywhere; driven by run_faults. Not in the list of tests. */
#include "tests/support/mpi_case.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef CKV_HAVE_MPI
#include <mpi.h>
#endif

static int is_last(void)
{
    return ckv_test_rank() == ckv_test_ranks() - 1;
}

static void barrier(void)
{
#ifdef CKV_HAVE_MPI
    const MPI_Comm *comm = ckv_test_mpi_comm();
    MPI_Barrier(*comm);
#endif
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
        int *volatile nowhere = NULL;
        *nowhere = 1;
    }
    barrier();
}

/* gcc sees the endless recursion that is wanted here */
#pragma GCC diagnostic push
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Winfinite-recursion"
#elif defined(__clang__)
#pragma GCC diagnostic ignored "-Winfinite-recursion"
#endif
static int recurse(volatile int *depth)
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

static void is_stopped(void **state)
{
    (void)state;
    if (is_last())
        raise(SIGSTOP);
    barrier();
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

static void prints_without_newline(void **state)
{
    (void)state;
    printf("no newline from rank %d", ckv_test_rank());
    fail_msg("with <angle>, & and \"quotes\"");
}

static const ckv_test_case cases[] = {
    CKV_CASE(passes),
    CKV_CASE(fails_before_barrier),
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
    CKV_CASE(is_stopped),
    CKV_CASE(leaves_a_process),
    CKV_CASE(prints_without_newline),
};

CKV_MPI_TEST_MAIN("faulty", cases)
