/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of one machine see of each other in shared memory: between threads, and between processes of which one is
 * killed. */
#include "tests/support/case.h"

#include "tests/support/comm_pipe.h"
#include "tests/support/ranks.h"
#include "ulysses/board.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { LONG_MS = 30000, SHORT_MS = 300, PATIENCE_MS = 10000 };

static void assert_passed(const char *failure)
{
    if (failure[0] != '\0')
        fail_msg("%s", failure);
}

/* Every body runs on threads and on processes: a board knows no difference. */
static void on_ranks(rank_body body)
{
    for (int ranks = 1; ranks <= 4; ranks++) {
        assert_passed(ranks_run_on_threads(ranks, ranks_patience_ms(LONG_MS), body));
        assert_passed(ranks_run_on_processes(ranks, ranks_patience_ms(LONG_MS), body));
    }
}

static ckv_comm_record record_of(const char *operation, uint64_t sequence, int in_progress)
{
    return (ckv_comm_record){.operation = operation, .sequence = sequence, .in_progress = in_progress};
}

static int is_last(const ckv_comm *comm)
{
    return ckv_comm_rank(comm) == ckv_comm_size(comm) - 1;
}

/* --- Showing --- */

#define CHECK_TEXT(report, board, rank, ...)                                                                           \
    do {                                                                                                               \
        char expected_[128], found_[128];                                                                              \
        snprintf(expected_, sizeof expected_, __VA_ARGS__);                                                            \
        ckv_board_describe(board, rank, found_, sizeof found_);                                                        \
        if (strcmp(found_, expected_) != 0) {                                                                          \
            rank_fail(report, __FILE__, __LINE__, "\"%s\", not \"%s\"", found_, expected_);                            \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

/* What every rank finds written of every rank; NULL: nothing. Collective. */
static void look(ckv_comm *comm, rank_report *report, const ckv_board *board, const int *processes, const char *does)
{
    RANK_OK(report, ckv_comm_barrier(comm));
    for (int peer = 0; peer < ckv_comm_size(comm); peer++) {
        if (does == NULL)
            CHECK_TEXT(report, board, peer, "rank %d (process %d) has begun nothing", peer, processes[peer]);
        else
            CHECK_TEXT(report, board, peer, "rank %d (process %d) %s, operation %d", peer, processes[peer], does,
                       10 + peer);
    }
    RANK_OK(report, ckv_comm_barrier(comm));
}

static void show_and_look(ckv_comm *comm, rank_report *report)
{
    int processes[8], mine = (int)getpid();
    uint64_t sequence = (uint64_t)ckv_comm_rank(comm) + 10;
    ckv_board *board = NULL;
    RANK_OK(report, ckv_board_open(comm, &board));
    RANK_CHECK(report, board != NULL);
    RANK_OK(report, ckv_comm_all_gather(comm, &mine, sizeof mine, processes));
    RANK_STEP(report, look(comm, report, board, processes, NULL));
    ckv_comm_record record = record_of("exchange there", sequence, 1);
    ckv_board_show(board, &record);
    RANK_STEP(report, look(comm, report, board, processes, "is in exchange there"));
    record.in_progress = 0;
    ckv_board_show(board, &record);
    RANK_STEP(report, look(comm, report, board, processes, "has done its part of exchange there"));
    ckv_board_close(&board);
    RANK_CHECK(report, board == NULL);
    ckv_board_close(&board);
}

static void all_ranks_see_what_each_shows(void **state)
{
    (void)state;
    on_ranks(show_and_look);
}

/* Longer than there is room for: cut, and still a text. */
static void show_a_long_name(ckv_comm *comm, rank_report *report)
{
    char whole[128], cut[20];
    ckv_board *board = NULL;
    ckv_comm_record record = record_of("an operation whose name is longer than any of ours is", 3, 1);
    RANK_OK(report, ckv_board_open(comm, &board));
    ckv_board_show(board, &record);
    CHECK_TEXT(report, board, 0, "rank 0 (process %d) is in an operation whose name is long, operation 3",
               (int)getpid());
    ckv_board_describe(board, 0, whole, sizeof whole);
    ckv_board_describe(board, 0, cut, sizeof cut);
    RANK_CHECK(report, strlen(cut) == sizeof cut - 1 && strncmp(cut, whole, sizeof cut - 1) == 0);
    ckv_board_close(&board);
}

static void long_names_are_cut(void **state)
{
    (void)state;
    assert_passed(ranks_run_on_threads(1, LONG_MS, show_a_long_name));
}

/* --- Failures --- */

/* The last rank's comes first, then all others' at once. */
static void fail_one_after_another(ckv_comm *comm, rank_report *report)
{
    char detail[600], shown[8];
    ckv_board *board = NULL;
    RANK_OK(report, ckv_board_open(comm, &board));
    RANK_OK(report, ckv_board_failure(board));
    RANK_OK(report, ckv_comm_barrier(comm));
    memset(detail, 'x', sizeof detail - 1);
    detail[sizeof detail - 1] = '\0';
    memcpy(detail, "rank", 4);
    if (is_last(comm))
        ckv_board_fail(board, CKV_ERROR_TIMEOUT, detail);
    RANK_OK(report, ckv_comm_barrier(comm));
    ckv_board_fail(board, CKV_ERROR_COMM, "a later one");
    RANK_STATUS(report, ckv_board_failure(board), CKV_ERROR_TIMEOUT);
    snprintf(shown, sizeof shown, "%s", ckv_last_error());
    RANK_CHECK(report, strcmp(shown, "rankxxx") == 0);
    RANK_CHECK(report, strlen(ckv_last_error()) < 500); /* cut, and ended */
    RANK_OK(report, ckv_comm_barrier(comm));
    ckv_board_close(&board);
}

static void first_failure_stands_for_all(void **state)
{
    (void)state;
    on_ranks(fail_one_after_another);
}

/* All at once: one of them stands, whole, and the same on every rank. */
static void fail_at_once(ckv_comm *comm, rank_report *report)
{
    enum { ROUNDS = 20 };
    int rank = ckv_comm_rank(comm), ranks = ckv_comm_size(comm);
    for (int round = 0; round < ROUNDS; round++) {
        char mine[64] = "", all[8][64];
        ckv_board *board = NULL;
        RANK_OK(report, ckv_board_open(comm, &board));
        snprintf(mine, sizeof mine, "failure of rank %d", rank);
        ckv_board_fail(board, CKV_ERROR_COMM, mine);
        RANK_OK(report, ckv_comm_barrier(comm));
        RANK_STATUS(report, ckv_board_failure(board), CKV_ERROR_COMM);
        snprintf(mine, sizeof mine, "%s", ckv_last_error());
        RANK_OK(report, ckv_comm_all_gather(comm, mine, sizeof mine, all));
        int stands = all[0][sizeof "failure of rank" - 1 + 1] - '0';
        RANK_CHECK(report, stands >= 0 && stands < ranks);
        for (int peer = 0; peer < ranks; peer++)
            RANK_CHECK(report, strcmp(all[peer], all[0]) == 0);
        ckv_board_close(&board);
    }
}

static void failures_at_once_are_one(void **state)
{
    (void)state;
    on_ranks(fail_at_once);
}

/* --- Ranks that end --- */

static int await_end(int rank)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    for (int waited = 0; waited < PATIENCE_MS && !rank_has_ended(rank); waited++)
        nanosleep(&moment, NULL);
    return rank_has_ended(rank);
}

/* Whoever is alive is not dead, closed its board or not; the last rank is, from the first look on. */
static void kill_before_it_leaves(ckv_comm *comm, rank_report *report)
{
    int last = ckv_comm_size(comm) - 1;
    ckv_board *board = NULL;
    RANK_OK(report, ckv_board_open(comm, &board));
    RANK_CHECK(report, ckv_board_find_dead(board) == -1);
    ckv_comm_record record = record_of("barrier", 7, 1);
    ckv_board_show(board, &record);
    int mine = (int)getpid(), processes[8];
    RANK_OK(report, ckv_comm_all_gather(comm, &mine, sizeof mine, processes));
    if (ckv_comm_rank(comm) == last)
        rank_die();
    RANK_CHECK(report, await_end(last));
    RANK_CHECK(report, ckv_board_find_dead(board) == last);
    CHECK_TEXT(report, board, last, "rank %d (process %d) is in barrier, operation 7", last, processes[last]);
    ckv_board_close(&board);
}

static void killed_rank_is_found(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_processes(ranks, LONG_MS, kill_before_it_leaves));
}

/* In good order, and killed only then; its memory stays for the others. */
static void kill_after_it_left(ckv_comm *comm, rank_report *report)
{
    int last = ckv_comm_size(comm) - 1;
    ckv_board *board = NULL;
    RANK_OK(report, ckv_board_open(comm, &board));
    if (ckv_comm_rank(comm) == last) {
        ckv_board_fail(board, CKV_ERROR_COMM, "its last words");
        ckv_board_close(&board);
        rank_die();
    }
    RANK_CHECK(report, await_end(last));
    RANK_CHECK(report, ckv_board_find_dead(board) == -1);
    RANK_STATUS(report, ckv_board_failure(board), CKV_ERROR_COMM);
    RANK_DETAIL(report, "its last words");
    ckv_board_close(&board);
}

static void rank_that_left_is_not_found(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_processes(ranks, LONG_MS, kill_after_it_left));
}

/* Rank 0's process holds the file; the others do not need it any more. */
static void kill_the_first(ckv_comm *comm, rank_report *report)
{
    ckv_board *board = NULL;
    RANK_OK(report, ckv_board_open(comm, &board));
    RANK_OK(report, ckv_comm_barrier(comm));
    if (ckv_comm_rank(comm) == 0)
        rank_die();
    RANK_CHECK(report, await_end(0));
    RANK_CHECK(report, ckv_board_find_dead(board) == 0);
    ckv_board_fail(board, CKV_ERROR_COMM, "rank 0 has ended");
    RANK_STATUS(report, ckv_board_failure(board), CKV_ERROR_COMM);
    ckv_board_close(&board);
}

static void board_outlives_its_first_rank(void **state)
{
    (void)state;
    assert_passed(ranks_run_on_processes(2, LONG_MS, kill_the_first));
}

/* --- Opening --- */

static int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

static void open_and_count(ckv_comm *comm, rank_report *report)
{
    int before = open_files();
    for (int round = 0; round < 3; round++) {
        ckv_board *board = NULL;
        RANK_OK(report, ckv_board_open(comm, &board));
        RANK_CHECK(report, open_files() == before + ckv_comm_size(comm)); /* one a process, and nothing of the memory */
        RANK_OK(report, ckv_comm_barrier(comm));
        ckv_board_close(&board);
        RANK_CHECK(report, open_files() == before);
    }
}

static void closing_leaves_no_file_open(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_processes(ranks, LONG_MS, open_and_count));
}

/* The last rank can open no file, so it cannot have a board: nobody has one, and that is no error. */
static void open_without_files(ckv_comm *comm, rank_report *report)
{
    struct rlimit usual, none;
    ckv_board *board = NULL;
    int before = open_files();
    RANK_CHECK(report, getrlimit(RLIMIT_NOFILE, &usual) == 0);
    none = usual;
    none.rlim_cur = 0;
    if (is_last(comm))
        RANK_CHECK(report, setrlimit(RLIMIT_NOFILE, &none) == 0);
    RANK_OK(report, ckv_board_open(comm, &board));
    RANK_CHECK(report, setrlimit(RLIMIT_NOFILE, &usual) == 0);
    RANK_CHECK(report, board == NULL);
    RANK_CHECK(report, open_files() == before);
    RANK_OK(report, ckv_comm_barrier(comm));
}

static void all_ranks_have_one_or_none(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_processes(ranks, LONG_MS, open_without_files));
}

/* What a container without the right to look into other processes does: rank 0 has its memory, the others cannot reach
 * it. The sanitizers look into this process, afterwards. */
static void open_without_rights(ckv_comm *comm, rank_report *report)
{
    enum { NOBODY = 65534 };
    ckv_board *board = NULL;
    int before = open_files();
    if (ckv_comm_rank(comm) == 0)
        RANK_CHECK(report, prctl(PR_SET_DUMPABLE, 0) == 0);
    else if (geteuid() == 0)
        RANK_CHECK(report, setresuid(NOBODY, NOBODY, NOBODY) == 0);
    RANK_OK(report, ckv_comm_barrier(comm));
    RANK_OK(report, ckv_board_open(comm, &board));
    RANK_CHECK(report, board == NULL);
    RANK_CHECK(report, prctl(PR_SET_DUMPABLE, 1) == 0);
    RANK_CHECK(report, open_files() == before);
}

static void one_without_is_none_for_all(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_processes(ranks, LONG_MS, open_without_rights));
}

static void open_without_the_last(ckv_comm *comm, rank_report *report)
{
    ckv_board *board = NULL;
    int before = open_files();
    if (is_last(comm))
        rank_die();
    RANK_STATUS(report, ckv_board_open(comm, &board), CKV_ERROR_TIMEOUT);
    RANK_CHECK(report, board == NULL && open_files() == before);
}

static void missing_rank_is_an_error(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_processes(ranks, SHORT_MS, open_without_the_last));
}

static const ckv_test_case cases[] = {
    CKV_CASE(all_ranks_see_what_each_shows), CKV_CASE(long_names_are_cut),
    CKV_CASE(first_failure_stands_for_all),  CKV_CASE(failures_at_once_are_one),
    CKV_CASE(killed_rank_is_found),          CKV_CASE(rank_that_left_is_not_found),
    CKV_CASE(board_outlives_its_first_rank), CKV_CASE(closing_leaves_no_file_open),
    CKV_CASE(all_ranks_have_one_or_none),    CKV_CASE(one_without_is_none_for_all),
    CKV_CASE(missing_rank_is_an_error),
};

CKV_TEST_MAIN("board", cases)
