/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded attention of several ranks on one GPU, over the transport of tests/support/comm_ipc.h. Its messages cannot be
 * captured, its windows can. */
#include "tests/multi_gpu/gpu_driver.h"
#include "tests/multi_gpu/ulysses_graph.h"
#include "tests/support/comm_ipc.h"
#include "tests/support/device_memory.h"
#include "tests/support/ulysses_cases.h"
#include "tests/support/ulysses_party.h"

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        gpu_run_exchanges(comm_create_ipc, ulysses_##name);                                                            \
    }
ULYSSES_CASES(DRIVE)

#define DRIVE_FUSED(name)                                                                                              \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        party_uses = (party_setup){test_device(), ckv_test_backend(), "fused"};                                        \
        gpu_run(comm_create_ipc, GPU_DEADLINE_MS, ulysses_##name);                                                     \
    }
ULYSSES_GRAPH_CASES(DRIVE_FUSED)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {ULYSSES_CASES(ROW) ULYSSES_GRAPH_CASES(ROW)};

CKV_MPI_TEST_MAIN("ulysses_one_gpu", cases)
