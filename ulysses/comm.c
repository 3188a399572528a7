/* SPDX-License-Identifier: Apache-2.0 */
/* Everything about a communicator that no transport has to repeat: verdicts, barriers, the record of the last
 * operation, and that nothing works after a failure. */
#include "ulysses/comm.h"

#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DETAIL_BYTES = 480 };

/* What one rank tells the others; fixed size, so that a rank can refuse whatever the others are about to say. */
typedef struct verdict {
    ckv_status status;
    char detail[DETAIL_BYTES];
    int64_t values[CKV_COMM_MAX_FACTS];
} verdict;

struct ckv_comm {
    const ckv_comm_ops *ops;
    void *transport;
    int rank, size;
    ckv_status failure; /* once set, every operation returns it */
    char cause[DETAIL_BYTES];
    const char *failed_when; /* "in" the recorded operation, or "after" it */
    verdict mine;
    verdict *verdicts;         /* [size] */
    ckv_comm_transfer *gather; /* [size] */

    /* Read from other threads and signal handlers, so no lock: each field is current, the four together may not be. */
    _Atomic(const char *) operation;
    _Atomic uint64_t sequence;
    _Atomic int64_t bytes;
    atomic_int in_progress;
};

ckv_status ckv_comm_create_on(const ckv_comm_ops *ops, void *transport, int rank, int size, ckv_comm **comm_out)
{
    ckv_comm *comm = calloc(1, sizeof *comm);
    verdict *verdicts = calloc((size_t)size, sizeof *verdicts);
    ckv_comm_transfer *gather = calloc((size_t)size, sizeof *gather);
    if (comm == NULL || verdicts == NULL || gather == NULL) {
        free(gather);
        free(verdicts);
        free(comm);
        ops->destroy(transport);
        return ckv_fail(CKV_ERROR_MEMORY, "%s: cannot allocate a communicator of %d ranks", ops->transport, size);
    }
    comm->ops = ops;
    comm->transport = transport;
    comm->rank = rank;
    comm->size = size;
    comm->verdicts = verdicts;
    comm->gather = gather;
    atomic_init(&comm->operation, "none");
    atomic_init(&comm->sequence, 0);
    atomic_init(&comm->bytes, 0);
    atomic_init(&comm->in_progress, 0);
    *comm_out = comm;
    return CKV_OK;
}

void ckv_comm_destroy(ckv_comm **comm)
{
    if (comm == NULL || *comm == NULL)
        return;
    (*comm)->ops->destroy((*comm)->transport);
    free((*comm)->gather);
    free((*comm)->verdicts);
    free(*comm);
    *comm = NULL;
}

int ckv_comm_rank(const ckv_comm *comm)
{
    return comm->rank;
}

int ckv_comm_size(const ckv_comm *comm)
{
    return comm->size;
}

const char *ckv_comm_transport(const ckv_comm *comm)
{
    return comm->ops->transport;
}

ckv_comm_record ckv_comm_last_operation(const ckv_comm *comm)
{
    ckv_comm_record record = {
        .operation = atomic_load(&comm->operation),
        .sequence = atomic_load(&comm->sequence),
        .bytes = atomic_load(&comm->bytes),
        .in_progress = atomic_load(&comm->in_progress),
    };
    return record;
}

ckv_status ckv_comm_async_error(ckv_comm *comm)
{
    if (comm == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "async_error: comm is NULL");
    if (comm->failure != CKV_OK)
        return ckv_fail(comm->failure, "rank %d: this communicator failed %s %s, operation %llu: %s", comm->rank,
                        comm->failed_when, atomic_load(&comm->operation),
                        (unsigned long long)atomic_load(&comm->sequence), comm->cause);
    return comm->ops->async_error != NULL ? comm->ops->async_error(comm->transport) : CKV_OK;
}

/* The first failure, with its detail, stands. */
static void keep_failure(ckv_comm *comm, ckv_status status, const char *when)
{
    if (comm->failure != CKV_OK)
        return;
    comm->failure = status;
    comm->failed_when = when;
    snprintf(comm->cause, sizeof comm->cause, "%s", ckv_last_error());
}

ckv_status ckv_comm_enter(ckv_comm *comm, const char *operation, int64_t bytes)
{
    ckv_status status = ckv_comm_async_error(comm);
    if (status != CKV_OK) {
        char detail[DETAIL_BYTES];
        snprintf(detail, sizeof detail, "%s", ckv_last_error());
        keep_failure(comm, status, "after");
        return ckv_fail(status, "%s: %s", operation, detail);
    }
    atomic_store(&comm->operation, operation);
    atomic_store(&comm->sequence, atomic_load(&comm->sequence) + 1);
    atomic_store(&comm->bytes, bytes);
    atomic_store(&comm->in_progress, 1);
    return CKV_OK;
}

ckv_status ckv_comm_leave(ckv_comm *comm, ckv_status status)
{
    atomic_store(&comm->in_progress, 0);
    if (status == CKV_OK)
        return CKV_OK;
    keep_failure(comm, status, "in");
    return ckv_fail(status, "%s on rank %d, operation %llu: %s", atomic_load(&comm->operation), comm->rank,
                    (unsigned long long)atomic_load(&comm->sequence), comm->cause);
}

ckv_status ckv_comm_break(ckv_comm *comm, ckv_status status)
{
    if (status != CKV_OK && comm->failure == CKV_OK) {
        keep_failure(comm, status, "after");
        if (comm->ops->give_up != NULL)
            comm->ops->give_up(comm->transport, status, comm->cause);
    }
    return status;
}

static int64_t bytes_to_others(const ckv_comm *comm, int64_t tensors, const ckv_comm_transfer *transfers)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < tensors * comm->size; i++)
        bytes += i % comm->size == comm->rank ? 0 : transfers[i].send_bytes;
    return bytes;
}

/* One recorded trip through the transport. */
static ckv_status operate(ckv_comm *comm, const char *operation, int64_t tensors, const ckv_comm_transfer *transfers)
{
    CKV_TRY(ckv_comm_enter(comm, operation, bytes_to_others(comm, tensors, transfers)));
    return ckv_comm_leave(comm, comm->ops->all_to_all(comm->transport, tensors, transfers));
}

/* Every rank's `mine` lands in `all`, in rank order. */
static ckv_status allgather(ckv_comm *comm, const char *operation, const void *mine, void *all, int64_t bytes)
{
    for (int peer = 0; peer < comm->size; peer++) {
        ckv_comm_transfer transfer = {mine, bytes, (char *)all + peer * bytes, bytes};
        comm->gather[peer] = transfer;
    }
    return operate(comm, operation, 1, comm->gather);
}

ckv_status ckv_comm_all_to_all(ckv_comm *comm, int64_t tensors, const ckv_comm_transfer *transfers)
{
    return operate(comm, "all_to_all", tensors, transfers);
}

const char *ckv_comm_device(const ckv_comm *comm)
{
    return comm->ops->device != NULL ? comm->ops->device : "host";
}

ckv_status ckv_comm_enqueue_all_to_all(ckv_comm *comm, int64_t tensors, const ckv_comm_transfer *transfers,
                                       ckv_stream stream)
{
    if (comm->ops->enqueue_all_to_all == NULL)
        return ckv_comm_all_to_all(comm, tensors, transfers);
    CKV_TRY(ckv_comm_enter(comm, "all_to_all", bytes_to_others(comm, tensors, transfers)));
    return ckv_comm_leave(comm, comm->ops->enqueue_all_to_all(comm->transport, tensors, transfers, stream));
}

static ckv_status window_supported(const ckv_comm *comm)
{
    if (comm->ops->window_supported == NULL)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "transport %s has no memory that other ranks can address",
                        comm->ops->transport);
    return comm->ops->window_supported(comm->transport);
}

ckv_status ckv_comm_window_create(ckv_comm *comm, size_t bytes, ckv_comm_window *window_out)
{
    ckv_comm_window window = {.peers = calloc((size_t)comm->size, sizeof *window.peers)};
    ckv_status status = window_supported(comm);
    if (status == CKV_OK && window.peers == NULL)
        status = ckv_fail(CKV_ERROR_MEMORY, "a window of %d ranks: out of host memory", comm->size);
    if (status == CKV_OK)
        status = comm->ops->window_alloc(comm->transport, bytes, &window);
    status = ckv_comm_agree(comm, status);
    if (status == CKV_OK)
        status = ckv_comm_agree(comm, comm->ops->window_open(comm->transport, bytes, &window));
    if (status == CKV_OK)
        *window_out = window;
    else
        ckv_comm_window_destroy(comm, &window);
    return status;
}

void ckv_comm_window_destroy(ckv_comm *comm, ckv_comm_window *window)
{
    if (window->memory != NULL)
        comm->ops->window_free(comm->transport, window);
    free(window->peers);
    *window = (ckv_comm_window){0};
}

struct ckv_peer_signals *ckv_comm_signals(const ckv_comm *comm, int64_t *timeout_ms_out)
{
    return comm->ops->signals(comm->transport, timeout_ms_out);
}

ckv_status ckv_comm_barrier(ckv_comm *comm)
{
    if (comm == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "barrier: comm is NULL");
    char here = 0;
    return allgather(comm, "barrier", &here, comm->verdicts, sizeof here);
}

ckv_status ckv_comm_all_gather(ckv_comm *comm, const void *mine, int64_t bytes, void *all_out)
{
    if (comm == NULL || bytes < 0 || (bytes > 0 && (mine == NULL || all_out == NULL)))
        return ckv_fail(CKV_ERROR_INVALID, "all_gather: comm, mine or all_out is NULL, or bytes %lld is negative",
                        (long long)bytes);
    if (bytes > INT64_MAX / comm->size)
        return ckv_fail(CKV_ERROR_INVALID, "all_gather: %lld bytes of each of %d ranks do not fit 64 bits",
                        (long long)bytes, comm->size);
    return allgather(comm, "all_gather", mine, all_out, bytes);
}

ckv_status ckv_comm_agree(ckv_comm *comm, ckv_status status)
{
    if (comm == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "agree: comm is NULL");
    return ckv_comm_agree_on(comm, status, NULL, 0);
}

static ckv_status compare_facts(const ckv_comm *comm, const ckv_comm_fact *facts, size_t count)
{
    for (size_t i = 0; i < CKV_MUTATE(differences_unnoticed, 0, count); i++)
        for (int rank = 1; rank < comm->size; rank++)
            if (comm->verdicts[rank].values[i] != comm->verdicts[0].values[i])
                return ckv_fail(CKV_ERROR_INVALID,
                                "ranks differ in %s: %lld on rank 0, %lld on rank %d; it must be the same on all",
                                facts[i].name, (long long)comm->verdicts[0].values[i],
                                (long long)comm->verdicts[rank].values[i], rank);
    return CKV_OK;
}

ckv_status ckv_comm_agree_on(ckv_comm *comm, ckv_status status, const ckv_comm_fact *facts, size_t count)
{
    if (count > CKV_COMM_MAX_FACTS)
        return ckv_fail(CKV_ERROR_INTERNAL, "agree: %zu facts, at most %d", count, CKV_COMM_MAX_FACTS);
    memset(&comm->mine, 0, sizeof comm->mine);
    comm->mine.status = status;
    if (status != CKV_OK)
        snprintf(comm->mine.detail, sizeof comm->mine.detail, "%s", ckv_last_error());
    for (size_t i = 0; i < count; i++)
        comm->mine.values[i] = facts[i].value;
    CKV_TRY(allgather(comm, "agree", &comm->mine, comm->verdicts, sizeof comm->mine));
    for (int rank = 0; rank < comm->size; rank++)
        if (comm->verdicts[rank].status != CKV_OK)
            return ckv_fail(comm->verdicts[rank].status, "rank %d: %s", rank, comm->verdicts[rank].detail);
    return compare_facts(comm, facts, count);
}
