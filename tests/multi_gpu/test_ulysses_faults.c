/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that fail one another over the mpi transport. */
#include "tests/support/mpi_case.h"

#include "tests/support/ulysses_faults.h"

#include <ckv/mpi.h>

static void run(rank_body body)
{
    ckv_comm *comm = NULL;
    rank_report report = {0};
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), fault_deadline_ms, &comm));
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
        run(ulysses_##name);                                                                                           \
    }
ULYSSES_FAULTS(DRIVE)
DRIVE(rank_that_fails_inside_the_exchange)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {
    ULYSSES_FAULTS(ROW) /* written once */
    CKV_CASE(rank_that_fails_inside_the_exchange),
};

CKV_MPI_TEST_MAIN("ulysses_faults", cases)
