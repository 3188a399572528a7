/* SPDX-License-Identifier: Apache-2.0 */
/* Cases that run on several ranks under mpirun, and on one without it. MPI is initialised once for all cases.
 *
 * After every case, and at each check point, the ranks agree on the verdict. A rank that has failed waits a second for
 * the others and then aborts the job; a rank that has not waits until the deadline of the case (CKV_TEST_TIMEOUT, 60 s)
 * and then records where it stands and aborts. So a case ends, whatever its ranks wait for. Built without MPI there is
 * one rank and no MPI communicator. */
#ifndef CKV_TESTS_SUPPORT_MPI_CASE_H
#define CKV_TESTS_SUPPORT_MPI_CASE_H

#include "tests/support/case.h"

#define CKV_MPI_TEST_MAIN(suite, cases)                                                                                \
    int main(int argc, char **argv)                                                                                    \
    {                                                                                                                  \
        return ckv_test_mpi_main(suite, cases, sizeof(cases) / sizeof *(cases), argc, argv);                           \
    }

int ckv_test_mpi_main(const char *suite, const ckv_test_case *cases, size_t num_cases, int argc, char **argv);

int ckv_test_rank(void);
int ckv_test_ranks(void);

/* Pointer to an MPI_Comm over all ranks, for this case alone, as ckv_comm_create_mpi takes it; NULL without MPI. */
const void *ckv_test_mpi_comm(void);

/* Collective: leave the case as failed if it has failed on any rank so far; the name must be the same on every rank.
 * Put one before an operation that must not be entered when another rank will not come. */
void ckv_test_check_point(const char *name);

#endif
