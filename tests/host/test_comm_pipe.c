/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are forked processes: their transport, and that whoever runs them notices how they end. */
#include "tests/support/case.h"

#include "tests/support/comm_conformance.h"
#include "tests/support/comm_pipe.h"
#include "ulysses/comm.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONG_MS = 30000 };

static void assert_passed(const char *failure)
{
    if (failure[0] != '\0')
        fail_msg("%s", failure);
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        for (int ranks = 1; ranks <= 5; ranks++)                                                                       \
            assert_passed(ranks_run_on_processes(ranks, ranks_patience_ms(LONG_MS), conform_##name));                  \
    }
COMM_CONFORMANCE(DRIVE)

static void agree_times_out(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_processes(ranks, COMM_SHORT_MS, conform_agree_times_out));
}

static void all_to_all_times_out(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_processes(ranks, COMM_SHORT_MS, conform_all_to_all_times_out));
}

static void mismatch_sizes(ckv_comm *comm, rank_report *report)
{
    char memory[64] = "";
    ckv_comm_transfer transfers[2];
    for (int peer = 0; peer < 2; peer++)
        transfers[peer] = (ckv_comm_transfer){memory, 16, memory + 32, ckv_comm_rank(comm) == 1 && peer == 0 ? 8 : 16};
    ckv_status status = ckv_comm_all_to_all(comm, 1, transfers);
    if (ckv_comm_rank(comm) == 0)
        return; /* its own part was right */
    RANK_CHECK(report, status == CKV_ERROR_COMM);
    RANK_DETAIL(report, "rank 0 sent 16 bytes to rank 1, which expects 8");
}

static void sizes_that_differ_fail(void **state)
{
    (void)state;
    assert_passed(ranks_run_on_processes(2, LONG_MS, mismatch_sizes));
}

/* Every rank writes into every rank's part, of two windows. */
static void write_into_windows(ckv_comm *comm, rank_report *report)
{
    int rank = ckv_comm_rank(comm), ranks = ckv_comm_size(comm);
    ckv_comm_window windows[2], none;
    for (int i = 0; i < 2; i++) {
        RANK_OK(report, ckv_comm_window_create(comm, 5000, &windows[i]));
        RANK_CHECK(report, windows[i].peers[rank] == windows[i].memory);
        for (int peer = 0; peer < ranks; peer++)
            ((char *)windows[i].peers[peer])[4990 + rank] = (char)(10 * i + rank + 1);
    }
    RANK_OK(report, ckv_comm_barrier(comm));
    for (int i = 0; i < 2; i++) {
        for (int peer = 0; peer < ranks; peer++)
            RANK_CHECK(report, ((char *)windows[i].memory)[4990 + peer] == 10 * i + peer + 1);
        ckv_comm_window_destroy(comm, &windows[i]);
    }
    RANK_STATUS(report, ckv_comm_window_create(comm, COMM_PIPE_WINDOW_BYTES, &none), CKV_ERROR_MEMORY);
    RANK_OK(report, ckv_comm_barrier(comm));
}

static void windows_reach_every_rank(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_processes(ranks, LONG_MS, write_into_windows));
}

/* --- How processes end --- */

/* The grace is over long before the deadline. */
static void lose_the_last(ckv_comm *comm, rank_report *report)
{
    int last = ckv_comm_size(comm) - 1;
    RANK_OK(report, ckv_comm_barrier(comm));
    if (ckv_comm_rank(comm) == last)
        rank_die();
    RANK_STATUS(report, ckv_comm_barrier(comm), CKV_ERROR_TIMEOUT);
    RANK_DETAIL(report, "rank 2 (gone)");
    RANK_CHECK(report, rank_has_ended(last) && !rank_has_ended(ckv_comm_rank(comm)));
}

static void killed_rank_does_not_come(void **state)
{
    (void)state;
    assert_passed(ranks_run_on_processes(3, LONG_MS, lose_the_last));
}

static void end_by_signal(ckv_comm *comm, rank_report *report)
{
    (void)report;
    if (ckv_comm_rank(comm) == 1)
        raise(SIGKILL);
}

static void end_by_exit(ckv_comm *comm, rank_report *report)
{
    (void)report;
    if (ckv_comm_rank(comm) == 1)
        _exit(3);
}

static void report_failure(ckv_comm *comm, rank_report *report)
{
    RANK_CHECK(report, ckv_comm_rank(comm) != 1);
}

static void unexpected_ends_are_failures(void **state)
{
    (void)state;
    assert_non_null(strstr(ranks_run_on_processes(2, LONG_MS, end_by_signal), "rank 1 of 2: "));
    assert_non_null(strstr(ranks_run_on_processes(2, LONG_MS, end_by_signal), "signal 9 ended its process"));
    assert_non_null(strstr(ranks_run_on_processes(2, LONG_MS, end_by_exit), "its process ended with 3"));
    assert_non_null(strstr(ranks_run_on_processes(2, LONG_MS, report_failure), "ckv_comm_rank(comm) != 1"));
}

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {
    COMM_CONFORMANCE(ROW) /* written once */
    CKV_CASE(agree_times_out),
    CKV_CASE(all_to_all_times_out),
    CKV_CASE(sizes_that_differ_fail),
    CKV_CASE(windows_reach_every_rank),
    CKV_CASE(killed_rank_does_not_come),
    CKV_CASE(unexpected_ends_are_failures),
};

CKV_TEST_MAIN("comm_pipe", cases)
