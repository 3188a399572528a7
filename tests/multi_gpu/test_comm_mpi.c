/* SPDX-License-Identifier: Apache-2.0 */
/* The mpi transport. Calls of MPI by this program and the library go through the counters below. */
#include "tests/multi_gpu/mpi_driver.h"

#include "tests/support/comm_conformance.h"
#include "ulysses/comm.h"

#include <mpi.h>
#include <string.h>

enum { LONG_MS = 30000 };

static int mpi_calls;

int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *duplicate, MPI_Request *request)
{
    mpi_calls++;
    return PMPI_Comm_idup(comm, duplicate, request);
}

int MPI_Isend(const void *buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request)
{
    mpi_calls++;
    return PMPI_Isend(buffer, count, type, peer, tag, comm, request);
}

int MPI_Irecv(void *buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request)
{
    mpi_calls++;
    return PMPI_Irecv(buffer, count, type, peer, tag, comm, request);
}

int MPI_Testall(int count, MPI_Request requests[], int *complete, MPI_Status statuses[])
{
    mpi_calls++;
    return PMPI_Testall(count, requests, complete, statuses);
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        mpi_run(ckv_test_mpi_comm(), LONG_MS, conform_##name);                                                         \
    }
COMM_CONFORMANCE(DRIVE)

/* One rank has nobody to wait for. */
static void agree_times_out(void **state)
{
    (void)state;
    mpi_run(ckv_test_mpi_comm(), COMM_SHORT_MS,
            ckv_test_ranks() > 1 ? conform_agree_times_out : conform_agree_passes_when_all_pass);
}

static void all_to_all_times_out(void **state)
{
    (void)state;
    mpi_run(ckv_test_mpi_comm(), COMM_SHORT_MS,
            ckv_test_ranks() > 1 ? conform_all_to_all_times_out : conform_agree_passes_when_all_pass);
}

static void for_ever_is_a_wait(void **state)
{
    (void)state;
    mpi_run(ckv_test_mpi_comm(), INT64_MAX, conform_barrier_waits_for_the_last);
}

static void names_itself(void **state)
{
    (void)state;
    ckv_comm *comm = NULL;
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), 0, &comm));
    assert_int_equal(ckv_comm_size(comm), ckv_test_ranks());
    assert_int_equal(ckv_comm_rank(comm), ckv_test_rank());
    assert_string_equal(ckv_comm_transport(comm), ckv_test_ranks() > 1 ? "mpi" : "self");
    ckv_comm_destroy(&comm);
    assert_null(comm);
}

/* Only rank 0 makes and uses a one-rank communicator; the job's is out of it. Kills: duplicating one rank, and an
 * operation that goes through MPI all the same. */
static void one_rank_makes_no_mpi_calls(void **state)
{
    (void)state;
    if (ckv_test_rank() != 0)
        return;
    MPI_Comm self = MPI_COMM_SELF;
    ckv_comm *comm = NULL;
    rank_report report = {0};
    mpi_calls = 0;
    assert_ok(ckv_comm_create_mpi(&self, 0, &comm));
    conform_many_operations_stay_in_step(comm, &report);
    ckv_comm_destroy(&comm);
    if (report.failed)
        fail_msg("%s", report.text);
    assert_int_equal(mpi_calls, 0);
}

/* The counters of the case above do count. */
static void several_ranks_go_through_mpi(void **state)
{
    (void)state;
    mpi_calls = 0;
    mpi_run(ckv_test_mpi_comm(), LONG_MS, conform_agree_passes_when_all_pass);
    assert_true(ckv_test_ranks() > 1 ? mpi_calls > 0 : mpi_calls == 0);
}

/* A receive the caller posted for anybody and any tag on its own communicator sees nothing of ours. */
static void caller_communicator_stays_its_own(void **state)
{
    (void)state;
    MPI_Request request;
    char byte = 7;
    int complete = 1;
    MPI_Comm mine = *(const MPI_Comm *)ckv_test_mpi_comm();
    MPI_Irecv(&byte, 1, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, mine, &request);
    mpi_run(ckv_test_mpi_comm(), LONG_MS, conform_many_operations_stay_in_step);
    MPI_Test(&request, &complete, MPI_STATUS_IGNORE);
    if (!complete) {
        MPI_Cancel(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    assert_false(complete);
    assert_int_equal(byte, 7);
}

/* The last rank destroys long after the others, who must not wait for it. */
static void destroy_never_waits(void **state)
{
    (void)state;
    ckv_comm *comm = NULL, *watch = NULL;
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), LONG_MS, &comm));
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), LONG_MS, &watch));
    int last = ckv_comm_rank(comm) == ckv_comm_size(comm) - 1;
    if (!last)
        ckv_comm_destroy(&comm);
    assert_ok(ckv_comm_barrier(watch)); /* reached by the last rank before its destroy: deadlock if destroy waits */
    if (last)
        ckv_comm_destroy(&comm);
    ckv_comm_destroy(&watch);
}

static void refuses_bad_arguments(void **state)
{
    (void)state;
    MPI_Comm none = MPI_COMM_NULL;
    ckv_comm *comm = NULL;
    assert_status(ckv_comm_create_mpi(NULL, 0, &comm), CKV_ERROR_INVALID);
    assert_status(ckv_comm_create_mpi(ckv_test_mpi_comm(), 0, NULL), CKV_ERROR_INVALID);
    assert_status(ckv_comm_create_mpi(ckv_test_mpi_comm(), -1, &comm), CKV_ERROR_INVALID);
    assert_status(ckv_comm_create_mpi(&none, 0, &comm), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "MPI_COMM_NULL"));
    assert_null(comm);
}

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {
    COMM_CONFORMANCE(ROW) /* written once */
    CKV_CASE(agree_times_out),
    CKV_CASE(all_to_all_times_out),
    CKV_CASE(for_ever_is_a_wait),
    CKV_CASE(names_itself),
    CKV_CASE(one_rank_makes_no_mpi_calls),
    CKV_CASE(several_ranks_go_through_mpi),
    CKV_CASE(caller_communicator_stays_its_own),
    CKV_CASE(destroy_never_waits),
    CKV_CASE(refuses_bad_arguments),
};

CKV_MPI_TEST_MAIN("comm_mpi", cases)
