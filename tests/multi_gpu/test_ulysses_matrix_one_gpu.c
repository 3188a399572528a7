/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix of sharded attention on several ranks on one GPU: the rows of this number of ranks, each over the
 * exchange that it names. */
#include "tests/multi_gpu/gpu_driver.h"
#include "tests/support/comm_ipc.h"
#include "tests/support/device_memory.h"
#include "tests/support/ulysses_matrix.h"
#include "tests/support/ulysses_party.h"

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        party_uses = (party_setup){test_device(), ckv_test_backend(), NULL};                                           \
        gpu_run(comm_create_ipc, GPU_DEADLINE_MS, matrix_##name);                                                      \
    }
ULYSSES_MATRIX(DRIVE)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {ULYSSES_MATRIX(ROW)};

CKV_MPI_TEST_MAIN("ulysses_matrix_one_gpu", cases)
