/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix of sharded attention on a GPU a rank over the nccl transport: the rows of this number of ranks, each over
 * the exchange that it names. */
#include "tests/multi_gpu/gpu_driver.h"
#include "tests/support/device_memory.h"
#include "tests/support/ulysses_matrix.h"
#include "tests/support/ulysses_party.h"

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        gpu_take_own();                                                                                                \
        party_uses = (party_setup){test_device(), ckv_test_backend(), NULL};                                           \
        gpu_run(gpu_create_nccl, GPU_DEADLINE_MS, matrix_##name);                                                      \
    }
ULYSSES_MATRIX(DRIVE)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {ULYSSES_MATRIX(ROW)};

CKV_MPI_TEST_MAIN("ulysses_matrix_nccl", cases)
