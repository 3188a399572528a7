/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of tests/support that several ranks run on GPUs. */
#ifndef CKV_TESTS_MULTI_GPU_GPU_DRIVER_H
#define CKV_TESTS_MULTI_GPU_GPU_DRIVER_H

#include "tests/support/mpi_case.h"
#include "tests/support/ranks.h"

enum { GPU_DEADLINE_MS = 30000 };

/* A communicator of device memory over one of the host's. Collective. */
typedef ckv_status (*gpu_transport)(ckv_comm *host, int64_t timeout_ms, ckv_comm **comm_out);

/* NCCL's, and the one of tests/support/comm_ipc.h. */
ckv_status gpu_create_nccl(ckv_comm *host, int64_t timeout_ms, ckv_comm **comm_out);

/* Skip the case on a machine with fewer GPUs. */
void gpu_need(int gpus);

/* Make a GPU of its own current on every rank; the case is skipped where there are too few. */
void gpu_take_own(void);

/* Make one GPU current on all ranks; before anything of the process starts CUDA. */
void gpu_share_one(void);

/* Run the body with a communicator for the case; it fails as the body reports. */
void gpu_run(gpu_transport transport, int64_t timeout_ms, rank_body body);

/* The same once for each path of the exchange, on the device and the backend of the case. */
void gpu_run_exchanges(gpu_transport transport, rank_body body);

#endif
