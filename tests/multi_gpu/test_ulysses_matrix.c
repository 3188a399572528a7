/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix of sharded attention over the mpi transport: the rows of this number of ranks. */
#include "tests/multi_gpu/mpi_driver.h"

#include "tests/support/ulysses_matrix.h"
#include "tests/support/ulysses_party.h"

enum { DEADLINE_MS = 60000 };

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        party_uses.exchange = "sendrecv";                                                                              \
        mpi_run(ckv_test_mpi_comm(), DEADLINE_MS, matrix_##name);                                                      \
    }
ULYSSES_MATRIX(DRIVE)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {ULYSSES_MATRIX(ROW)};

CKV_MPI_TEST_MAIN("ulysses_matrix", cases)
