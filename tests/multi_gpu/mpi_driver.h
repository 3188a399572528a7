/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of tests/support that several ranks run over the mpi transport. */
#ifndef CKV_TESTS_MULTI_GPU_MPI_DRIVER_H
#define CKV_TESTS_MULTI_GPU_MPI_DRIVER_H

#include "tests/support/mpi_case.h"
#include "tests/support/ranks.h"

#include <ckv/mpi.h>

/* Run the body with a communicator over `mpi_comm`; the case fails as the body reports. */
static inline void mpi_run(const void *mpi_comm, int64_t timeout_ms, rank_body body)
{
    ckv_comm *comm = NULL;
    rank_report report = {0};
    assert_ok(ckv_comm_create_mpi(mpi_comm, timeout_ms, &comm));
    ckv_test_set_comm(comm);
    body(comm, &report);
    ckv_test_set_comm(NULL);
    ckv_comm_destroy(&comm);
    if (report.failed)
        fail_msg("%s", report.text);
}

#endif
