/* SPDX-License-Identifier: Apache-2.0 */
/* The nccl transport; in libckv_nccl, so that libckv itself needs no NCCL. */
#ifndef CKV_NCCL_H
#define CKV_NCCL_H

#include <ckv/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_nccl_config {
    size_t struct_size; /* sizeof(ckv_nccl_config) */
    int64_t timeout_ms; /* how long one exchange, or one step of setting up, may wait for other ranks; 0: 60 s */
} ckv_nccl_config;

/* struct_size set, everything else zero. */
CKV_API ckv_nccl_config ckv_nccl_config_default(void);

/* A communicator for memory of CUDA devices, on top of `host` (of any transport; borrowed, must outlive it), over which
 * ranks find each other, agree, and name what went wrong. Collective over it. Each rank brings the CUDA device that is
 * current on the calling thread; no two may bring the same one. `config` may be NULL.
 *
 * Exchanges are enqueued and wait for nobody on the host. A thread of the communicator watches them: when one takes
 * longer than timeout_ms, NCCL reports an error, or a rank's process ends, the communicator is aborted on every rank of
 * the machine, kernels that wait for peers end, and ckv_comm_async_error tells which rank and operation.
 * ERROR_INVALID (two ranks on one device, with both named), ERROR_UNSUPPORTED (no usable device; ranks with different
 * NCCL versions), ERROR_COMM, ERROR_TIMEOUT, ERROR_MEMORY, ERROR_DEVICE; the same on every rank. */
CKV_NODISCARD CKV_API ckv_status ckv_comm_create_nccl(ckv_comm *host, const ckv_nccl_config *config,
                                                      ckv_comm **comm_out);

#ifdef __cplusplus
}
#endif
#endif
