/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the nccl transport that NCCL offers to device code only. */
#ifndef CKV_ULYSSES_NCCL_PEERS_H
#define CKV_ULYSSES_NCCL_PEERS_H

#include <ckv/status.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Windows and addresses of peers came with NCCL 2.28. */
#define CKV_NCCL_HAS_WINDOWS (NCCL_VERSION_CODE >= 22800)

#if CKV_NCCL_HAS_WINDOWS
/* How many ranks, this one included, have memory that this one can address. */
int ckv_nccl_near_ranks(ncclComm_t comm);

/* The addresses at which the current device reaches each rank's part of a window; all ranks are in one NVLink domain.
 * Waits. ERROR_MEMORY, ERROR_DEVICE. */
CKV_NODISCARD ckv_status ckv_nccl_peer_addresses(ncclWindow_t window, int ranks, void **peers_out);
#endif

#ifdef __cplusplus
}
#endif
#endif
