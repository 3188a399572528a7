/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that fail one another over the mpi transport. */
#include "tests/multi_gpu/mpi_driver.h"

#include "tests/support/ulysses_faults.h"

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        mpi_run(ckv_test_mpi_comm(), fault_deadline_ms, ulysses_##name);                                               \
    }
ULYSSES_FAULTS(DRIVE)
DRIVE(rank_that_fails_inside_the_exchange)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {
    ULYSSES_FAULTS(ROW) /* written once */
    CKV_CASE(rank_that_fails_inside_the_exchange),
};

CKV_MPI_TEST_MAIN("ulysses_faults", cases)
