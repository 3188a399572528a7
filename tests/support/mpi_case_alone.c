/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_case.h in a build without MPI: the same suites, on one rank. */
#include "tests/support/mpi_case.h"

int ckv_test_rank(void)
{
    return 0;
}

int ckv_test_ranks(void)
{
    return 1;
}

const void *ckv_test_mpi_comm(void)
{
    return NULL;
}

void ckv_test_check_point(const char *name)
{
    (void)name;
}

int ckv_test_mpi_main(const char *suite, const ckv_test_case *cases, size_t num_cases, int argc, char **argv)
{
    return ckv_test_main(suite, cases, num_cases, argc, argv);
}
