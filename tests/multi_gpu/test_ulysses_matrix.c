/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix of sharded attention over the mpi transport: the rows of this number of ranks. */
#include "tests/support/mpi_case.h"

#include "tests/support/ulysses_matrix.h"
#include "tests/support/ulysses_party.h"

#include <ckv/mpi.h>

enum { DEADLINE_MS = 60000 };

static void run(rank_body body)
{
    ckv_comm *comm = NULL;
    rank_report report = {0};
    party_uses.exchange = "sendrecv";
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), DEADLINE_MS, &comm));
    ckv_test_set_comm(comm);
    body(comm, &report);
    ckv_test_set_comm(NULL);
    ckv_comm_destroy(&comm);
    if (report.failed)
        fail_msg("%s", report.text);
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run(matrix_##name);                                                                                            \
    }
ULYSSES_MATRIX(DRIVE)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {ULYSSES_MATRIX(ROW)};

CKV_MPI_TEST_MAIN("ulysses_matrix", cases)
