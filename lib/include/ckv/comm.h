/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: who the ranks are and how bytes reach them. The Ulysses layer works over any of them. */
#ifndef CKV_COMM_H
#define CKV_COMM_H

#include <ckv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_comm ckv_comm;

/* One rank, no transport. ERROR_MEMORY. */
CKV_NODISCARD CKV_API ckv_status ckv_comm_create_self(ckv_comm **comm_out);

/* `ranks` communicators that talk to each other inside this process, one per thread; comms_out[r] is for the thread
 * that plays rank r. A rank that waits longer than timeout_ms (0: 60 s) for the others gets ERROR_TIMEOUT, and from
 * then on so does every rank. ERROR_INVALID, ERROR_MEMORY. */
CKV_NODISCARD CKV_API ckv_status ckv_comm_create_threads(int ranks, int64_t timeout_ms, ckv_comm **comms_out);

/* Each rank destroys its own. Accepts NULL and a pointer to NULL; never waits for other ranks. */
CKV_API void ckv_comm_destroy(ckv_comm **comm);

CKV_API int ckv_comm_rank(const ckv_comm *comm);
CKV_API int ckv_comm_size(const ckv_comm *comm);
CKV_API const char *ckv_comm_transport(const ckv_comm *comm); /* "self", "threads", "mpi"; static storage */

/* The operation this rank entered last, for whoever has to explain a hang. Readable from another thread or a signal
 * handler while the rank is stuck. */
typedef struct ckv_comm_record {
    const char *operation; /* "none", "agree", "all_to_all", ...; static storage */
    uint64_t sequence;     /* counts operations of this communicator from 1 */
    int64_t bytes;         /* this rank sends to others */
    int in_progress;
} ckv_comm_record;

CKV_API ckv_comm_record ckv_comm_last_operation(const ckv_comm *comm);

/* What has gone wrong outside any call: an exchange that was enqueued, or replayed from a graph, and did not finish; a
 * rank that died. Tensors that such an exchange should have filled hold anything. CKV_OK while all is well; else the
 * error that every further operation returns. ERROR_INVALID (NULL), ERROR_COMM, ERROR_TIMEOUT. */
CKV_NODISCARD CKV_API ckv_status ckv_comm_async_error(ckv_comm *comm);

/* Agree on a verdict: every rank hands in its own status and, when that is an error, its ckv_last_error(); every rank
 * returns the status of the lowest refusing rank and finds "rank N: ..." as its detail; CKV_OK when all are.
 * Collective; waits. ERROR_COMM, ERROR_TIMEOUT. */
CKV_NODISCARD CKV_API ckv_status ckv_comm_agree(ckv_comm *comm, ckv_status status);

/* Wait until every rank is here. ERROR_COMM, ERROR_TIMEOUT. */
CKV_NODISCARD CKV_API ckv_status ckv_comm_barrier(ckv_comm *comm);

/* `bytes` bytes of every rank, the same count on each, land in `all_out` in rank order: ranks * bytes. Host memory that
 * does not overlap. Collective; waits. ERROR_INVALID, ERROR_COMM, ERROR_TIMEOUT. */
CKV_NODISCARD CKV_API ckv_status ckv_comm_all_gather(ckv_comm *comm, const void *mine, int64_t bytes, void *all_out);

#ifdef __cplusplus
}
#endif
#endif
