/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded attention on a GPU a rank, over the nccl transport. */
#include "tests/multi_gpu/gpu_driver.h"
#include "tests/multi_gpu/ulysses_graph.h"
#include "tests/support/ulysses_cases.h"

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        gpu_take_own();                                                                                                \
        gpu_run_exchanges(gpu_create_nccl, ulysses_##name);                                                            \
    }
ULYSSES_CASES(DRIVE)
ULYSSES_GRAPH_CASES(DRIVE)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {ULYSSES_CASES(ROW) ULYSSES_GRAPH_CASES(ROW)};

CKV_MPI_TEST_MAIN("ulysses_nccl", cases)
