/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded attention over the mpi transport. */
#include "tests/multi_gpu/mpi_driver.h"

#include "tests/support/ulysses_cases.h"
#include "tests/support/ulysses_host_cases.h"

#include <mpi.h>

enum { DEADLINE_MS = 20000 };

static int mpi_messages;

int MPI_Isend(const void *buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request)
{
    mpi_messages++;
    return PMPI_Isend(buffer, count, type, peer, tag, comm, request);
}

int MPI_Irecv(void *buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request)
{
    mpi_messages++;
    return PMPI_Irecv(buffer, count, type, peer, tag, comm, request);
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        mpi_run(ckv_test_mpi_comm(), DEADLINE_MS, ulysses_##name);                                                     \
    }
ULYSSES_CASES(DRIVE)
ULYSSES_HOST_CASES(DRIVE)

/* Only rank 0 has a context of one rank; the job takes no part and no message is sent. Then all ranks share one.
 * Catches: a one-rank context that falls back to the job's communicator. */
static void one_rank_leaves_the_job_alone(void **state)
{
    (void)state;
    MPI_Comm self = MPI_COMM_SELF;
    mpi_messages = 0;
    if (ckv_test_rank() == 0)
        mpi_run(&self, DEADLINE_MS, ulysses_padded_first_chunk_then_sliding_window);
    assert_int_equal(mpi_messages, 0);
    mpi_run(ckv_test_mpi_comm(), DEADLINE_MS, ulysses_every_chunk_padded);
    assert_true(ckv_test_ranks() > 1 ? mpi_messages > 0 : mpi_messages == 0);
}

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {
    ULYSSES_CASES(ROW)      /* written once */
    ULYSSES_HOST_CASES(ROW) /* of host memory */
    CKV_CASE(one_rank_leaves_the_job_alone),
};

CKV_MPI_TEST_MAIN("ulysses", cases)
