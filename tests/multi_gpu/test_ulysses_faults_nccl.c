/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that fail one another, each on a GPU of its own; the GPUs work again afterwards. */
#include "tests/multi_gpu/gpu_driver.h"
#include "tests/support/device_memory.h"
#include "tests/support/ulysses_cases.h"
#include "tests/support/ulysses_faults.h"
#include "tests/support/ulysses_party.h"

enum { DEADLINE_MS = 5000 }; /* a rank may have to compile a kernel */

static void run(rank_body body)
{
    static const char *const exchanges[] = {"sendrecv", "fused"};
    gpu_take_own();
    fault_deadline_ms = DEADLINE_MS;
    for (int i = 0; i < 2; i++) {
        party_uses = (party_setup){test_device(), ckv_test_backend(), exchanges[i]};
        gpu_run(gpu_create_nccl, DEADLINE_MS, body);
        ckv_test_check_point("the next case begins");
        gpu_run(gpu_create_nccl, GPU_DEADLINE_MS, ulysses_every_chunk_padded);
    }
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run(ulysses_##name);                                                                                           \
    }
ULYSSES_FAULTS(DRIVE)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {ULYSSES_FAULTS(ROW)};

CKV_MPI_TEST_MAIN("ulysses_faults_nccl", cases)
