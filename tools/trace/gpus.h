/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU for every rank. */
#ifndef CKV_TOOLS_GPUS_H
#define CKV_TOOLS_GPUS_H

#include "tools/trace/problem.h"

#include <ckv/comm.h>

/* Make a GPU current: the ranks of a machine take those they see in turn. With several ranks *comm_out is then a
 * communicator that moves device memory, on top of `host`, which must outlive it; with one it is NULL. Collective, the
 * same status and cause on every rank. ERROR_UNSUPPORTED (this build has no CUDA or no NCCL; no usable GPU),
 * ERROR_INVALID (fewer GPUs than ranks), ERROR_COMM, ERROR_TIMEOUT, ERROR_MEMORY, ERROR_DEVICE. */
ckv_status gpus_connect(ckv_comm *host, ckv_comm **comm_out, problem *why);

#endif
