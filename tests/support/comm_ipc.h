/* SPDX-License-Identifier: Apache-2.0 */
/* A transport for device memory between processes that share one GPU, which NCCL refuses: CUDA's memory handles for
 * windows, and host memory for messages, so that what several ranks do on a GPU can be tested where there is one. Its
 * messages wait; they cannot be captured. */
#ifndef CKV_TESTS_SUPPORT_COMM_IPC_H
#define CKV_TESTS_SUPPORT_COMM_IPC_H

#include <ckv/comm.h>

/* Collective over `host` (borrowed; must outlive it); on the current device of the calling thread. */
ckv_status comm_create_ipc(ckv_comm *host, int64_t timeout_ms, ckv_comm **comm_out);

#endif
