/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the nccl transport: what its calls and its watch share. */
#ifndef CKV_ULYSSES_NCCL_TRANSPORT_H
#define CKV_ULYSSES_NCCL_TRANSPORT_H

#include "kernels/exchange_peers/exchange_peers.h"
#include "ulysses/board.h"
#include "ulysses/comm.h"

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

enum { CKV_NCCL_SLOTS = 64, CKV_NCCL_DETAIL_BYTES = 400 };

/* Pinned memory that the device writes while the host looks on. */
typedef struct ckv_nccl_words {
    ckv_peer_signals signals;
    uint32_t busy[CKV_NCCL_SLOTS]; /* not zero while an exchange is on the device */
} ckv_nccl_words;

typedef struct ckv_nccl_transport {
    ckv_comm *host;      /* borrowed */
    const ckv_comm *top; /* the communicator over this transport, once there is one */
    int rank, size, device;
    int64_t timeout_ms;
    ckv_nccl_words *words;
    ckv_board *board; /* NULL when ranks are on several machines */

    pthread_mutex_t lock; /* held through every call of NCCL; guards what follows */
    ncclComm_t nccl;      /* NULL before it is there, and once it is aborted */
    int windows;          /* open ones, which kernels may still write to when NCCL is of no more use */
    ckv_status failure;
    char detail[CKV_NCCL_DETAIL_BYTES];
    uint64_t exchanges;                 /* enqueued */
    uint64_t operation[CKV_NCCL_SLOTS]; /* of the top communicator, that last took the slot */

    pthread_t watcher;
    int watched;
    atomic_int stop;
    int64_t busy_since_ms[CKV_NCCL_SLOTS]; /* the watcher's; 0: not busy */
} ckv_nccl_transport;

int64_t ckv_nccl_now_ms(void);

/* The first failure of this rank stands: kernels that wait for peers end, and the other ranks are told. NCCL's
 * communicator is aborted when its own work is stuck on the device, or nothing else needs it; while windows are open it
 * is kept otherwise, since kernels that are enqueued already write to them. Called again, it looks again. Not under the
 * lock. */
void ckv_nccl_fail(ckv_nccl_transport *self, ckv_status status, const char *detail);

/* CKV_OK, or the failure; looks at the signals first, so that a wait that has just run out is not missed. */
CKV_NODISCARD ckv_status ckv_nccl_failure(ckv_nccl_transport *self);

/* Start and stop the thread that watches. ERROR_MEMORY. Stopping tells whether it stopped: a thread that is stuck in
 * NCCL keeps the transport. */
CKV_NODISCARD ckv_status ckv_nccl_watch(ckv_nccl_transport *self);
int ckv_nccl_unwatch(ckv_nccl_transport *self);

#endif
