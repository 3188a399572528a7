/* SPDX-License-Identifier: Apache-2.0 */
/* The self and threads transports. */
#include "tests/support/case.h"

#include "lib/support/error.h"
#include "tests/support/comm_conformance.h"
#include "ulysses/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG_MS = 30000, MAX_RANKS = 8 };

static void assert_passed(const char *failure)
{
    if (failure[0] != '\0')
        fail_msg("%s", failure);
}

static void on_every_transport(rank_body body)
{
    assert_passed(ranks_run_on_self(body));
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++)
        assert_passed(ranks_run_on_threads(ranks, LONG_MS, body));
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        on_every_transport(conform_##name);                                                                            \
    }
COMM_CONFORMANCE(DRIVE)

static void agree_times_out(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_threads(ranks, COMM_SHORT_MS, conform_agree_times_out));
}

static void all_to_all_times_out(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        assert_passed(ranks_run_on_threads(ranks, COMM_SHORT_MS, conform_all_to_all_times_out));
}

/* One that comes after the others gave up is told the same. */
static void latecomer_times_out_too(void **state)
{
    (void)state;
    ckv_comm *comms[2];
    assert_ok(ckv_comm_create_threads(2, 50, comms));
    assert_status(ckv_comm_barrier(comms[0]), CKV_ERROR_TIMEOUT);
    assert_status(ckv_comm_barrier(comms[1]), CKV_ERROR_TIMEOUT);
    assert_non_null(strstr(ckv_last_error(), "not there: rank 1"));
    ckv_comm_destroy(&comms[0]);
    ckv_comm_destroy(&comms[1]);
}

static void destroy_instead(ckv_comm *comm)
{
    ckv_comm_destroy(&comm);
}

static void give_up_instead(ckv_comm *comm)
{
    assert_status(ckv_comm_break(comm, ckv_fail(CKV_ERROR_MEMORY, "no room for 7 tokens")), CKV_ERROR_MEMORY);
    assert_status(ckv_comm_barrier(comm), CKV_ERROR_MEMORY);
    assert_non_null(strstr(ckv_last_error(), "failed after none, operation 0: no room for 7 tokens"));
    ckv_comm_destroy(&comm);
}

static void *wait_for_others(void *argument)
{
    ckv_comm *comm = argument;
    char *said = NULL;
    if (ckv_comm_barrier(comm) != CKV_OK)
        said = strdup(ckv_last_error());
    ckv_comm_destroy(&comm);
    return said;
}

/* The last of the ranks does something else while the others wait, or before they do. */
static void expect_told(int ranks, int before, void (*instead)(ckv_comm *comm), const char *what)
{
    ckv_comm *comms[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    assert_ok(ckv_comm_create_threads(ranks, INT64_MAX, comms)); /* a deadline would never come */
    if (before)
        instead(comms[ranks - 1]);
    for (int rank = 0; rank < ranks - 1; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, wait_for_others, comms[rank]), 0);
    if (!before)
        instead(comms[ranks - 1]);
    for (int rank = 0; rank < ranks - 1; rank++) {
        void *said = NULL;
        pthread_join(threads[rank], &said);
        assert_non_null(said);
        if (strstr(said, what) == NULL)
            fail_msg("'%s' is not in: %s", what, (const char *)said);
        free(said);
    }
}

static void nobody_waits_for_one_who_does_not_come(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++) {
        char left[64], gave_up[64];
        snprintf(left, sizeof left, "rank %d has destroyed its communicator", ranks - 1);
        snprintf(gave_up, sizeof gave_up, "rank %d: no room for 7 tokens", ranks - 1);
        for (int before = 0; before < 2; before++) {
            expect_told(ranks, before, destroy_instead, left);
            expect_told(ranks, before, give_up_instead, gave_up);
        }
    }
}

static void mismatched_sizes(ckv_comm *comm, rank_report *report)
{
    char memory[64] = "";
    ckv_comm_transfer transfers[MAX_RANKS];
    for (int peer = 0; peer < ckv_comm_size(comm); peer++) {
        ckv_comm_transfer transfer = {memory, 16, memory + 32, ckv_comm_rank(comm) == 1 && peer == 0 ? 8 : 16};
        transfers[peer] = transfer;
    }
    RANK_STATUS(report, ckv_comm_all_to_all(comm, 1, transfers), CKV_ERROR_COMM);
    RANK_DETAIL(report, "rank 0 sent 16 bytes to rank 1, which expects 8");
    RANK_STATUS(report, ckv_comm_barrier(comm), CKV_ERROR_COMM);
}

/* All ranks learn of it, not only the one that noticed. */
static void sizes_that_differ_fail_on_every_rank(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= MAX_RANKS; ranks++)
        assert_passed(ranks_run_on_threads(ranks, LONG_MS, mismatched_sizes));
}

/* Whatever the transport would do: a rank whose operation failed is out. */
static void nothing_works_after_a_failure(void **state)
{
    (void)state;
    ckv_comm *comm = NULL;
    char memory[16] = "";
    const ckv_comm_transfer mismatched = {memory, 8, memory + 8, 4};
    assert_ok(ckv_comm_create_self(&comm));
    assert_ok(ckv_comm_barrier(comm));
    assert_status(ckv_comm_all_to_all(comm, 1, &mismatched), CKV_ERROR_COMM);
    assert_status(ckv_comm_barrier(comm), CKV_ERROR_COMM);
    assert_non_null(strstr(ckv_last_error(), "failed in all_to_all, operation 2"));
    assert_status(ckv_comm_agree(comm, CKV_OK), CKV_ERROR_COMM);
    ckv_comm_destroy(&comm);
}

static void *wait_in_barrier(void *comm)
{
    return ckv_comm_barrier(comm) == CKV_OK ? comm : NULL;
}

/* Read from another thread while the rank is stuck. */
static void record_shows_a_stuck_rank(void **state)
{
    (void)state;
    ckv_comm *comms[2];
    pthread_t thread;
    assert_ok(ckv_comm_create_threads(2, LONG_MS, comms));
    assert_string_equal(ckv_comm_last_operation(comms[0]).operation, "none");
    assert_int_equal(pthread_create(&thread, NULL, wait_in_barrier, comms[0]), 0);
    while (!ckv_comm_last_operation(comms[0]).in_progress)
        ;
    ckv_comm_record record = ckv_comm_last_operation(comms[0]);
    assert_string_equal(record.operation, "barrier");
    assert_int_equal(record.sequence, 1);
    assert_int_equal(record.bytes, 1);
    assert_ok(ckv_comm_barrier(comms[1]));
    void *result = NULL;
    pthread_join(thread, &result);
    assert_ptr_equal(result, comms[0]);
    ckv_comm_destroy(&comms[0]);
    ckv_comm_destroy(&comms[1]);
}

static void destroy_takes_anything_and_never_waits(void **state)
{
    (void)state;
    ckv_comm *comms[3], *none = NULL;
    ckv_comm_destroy(NULL);
    ckv_comm_destroy(&none);
    assert_ok(ckv_comm_create_threads(3, LONG_MS, comms));
    for (int rank = 2; rank >= 0; rank--) {
        ckv_comm_destroy(&comms[rank]);
        assert_null(comms[rank]);
        ckv_comm_destroy(&comms[rank]);
    }
}

/* What a kernel waits is counted in nanoseconds, from a clock that has run for years. */
static void for_ever_is_a_wait(void **state)
{
    (void)state;
    assert_passed(ranks_run_on_threads(3, INT64_MAX, conform_barrier_waits_for_the_last));
    ckv_comm *comm;
    int64_t wait_ms;
    assert_ok(ckv_comm_create_threads(1, INT64_MAX, &comm));
    assert_non_null(ckv_comm_signals(comm, &wait_ms));
    assert_in_range(wait_ms, LONG_MS, INT64_MAX / 2 / 1000000);
    ckv_comm_destroy(&comm);
}

static void gather_refuses_more_than_64_bits(void **state)
{
    (void)state;
    ckv_comm *comms[3];
    char byte = 0;
    assert_ok(ckv_comm_create_threads(3, LONG_MS, comms));
    for (int rank = 0; rank < 3; rank++) {
        assert_status(ckv_comm_all_gather(comms[rank], &byte, INT64_MAX / 3 + 1, &byte), CKV_ERROR_INVALID);
        assert_ok(ckv_comm_async_error(comms[rank])); /* nothing was begun */
    }
    for (int rank = 0; rank < 3; rank++)
        ckv_comm_destroy(&comms[rank]);
}

static void refuses_bad_arguments(void **state)
{
    (void)state;
    ckv_comm *comm = NULL;
    assert_status(ckv_comm_create_self(NULL), CKV_ERROR_INVALID);
    assert_status(ckv_comm_create_threads(0, 0, &comm), CKV_ERROR_INVALID);
    assert_status(ckv_comm_create_threads(1, -1, &comm), CKV_ERROR_INVALID);
    assert_status(ckv_comm_create_threads(1, 0, NULL), CKV_ERROR_INVALID);
    assert_status(ckv_comm_agree(NULL, CKV_OK), CKV_ERROR_INVALID);
    assert_status(ckv_comm_barrier(NULL), CKV_ERROR_INVALID);
    assert_null(comm);
}

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {
    COMM_CONFORMANCE(ROW) /* written once */
    CKV_CASE(agree_times_out),
    CKV_CASE(all_to_all_times_out),
    CKV_CASE(latecomer_times_out_too),
    CKV_CASE(nobody_waits_for_one_who_does_not_come),
    CKV_CASE(sizes_that_differ_fail_on_every_rank),
    CKV_CASE(nothing_works_after_a_failure),
    CKV_CASE(record_shows_a_stuck_rank),
    CKV_CASE(destroy_takes_anything_and_never_waits),
    CKV_CASE(for_ever_is_a_wait),
    CKV_CASE(gather_refuses_more_than_64_bits),
    CKV_CASE(refuses_bad_arguments),
};

CKV_TEST_MAIN("comm", cases)
