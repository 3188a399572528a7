/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory between GPUs. What ranks say to each other on the host goes over another communicator; exchanges are
 * NCCL's grouped send and receive, or kernels of ours over windows that NCCL maps.
 *
 * Nothing here waits for another rank without a deadline. NCCL's communicator does not block: its calls are polled. On
 * a failure it is aborted by whoever notices first, or at the end while windows need it (ckv_nccl_fail); it is looked
 * at under the lock that every call of NCCL is made under. */
#include <ckv/nccl.h>

#include "lib/device/cuda_status.h"
#include "lib/support/error.h"
#include "ulysses/nccl_peers.h"
#include "ulysses/nccl_transport.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POLL_US = 20, UUID_BYTES = 16 };

static ckv_status nccl_status(ncclResult_t result, const char *call)
{
    if (result == ncclSuccess)
        return CKV_OK;
    return ckv_fail(CKV_ERROR_COMM, "%s: %s", call, ncclGetErrorString(result));
}

/* What NCCL has come to with what it was asked for; a call that returned success may still go on. */
static ncclResult_t state_of(const ckv_nccl_transport *self, ncclResult_t result)
{
    ncclResult_t state = ncclInternalError;
    if (result != ncclSuccess && result != ncclInProgress)
        return result;
    return ncclCommGetAsyncError(self->nccl, &state) == ncclSuccess ? state : ncclInternalError;
}

/* Wait until NCCL has done on the host what it was asked for. Called with the lock held; lets go of it between looks.
 */
static ckv_status await_nccl(ckv_nccl_transport *self, ncclResult_t result, const char *call)
{
    int64_t deadline_ms = ckv_nccl_now_ms() + self->timeout_ms;
    while ((result = state_of(self, result)) == ncclInProgress) {
        if (ckv_nccl_now_ms() > deadline_ms)
            return ckv_fail(CKV_ERROR_TIMEOUT, "%s: rank %d waited %lld ms for the others", call, self->rank,
                            (long long)self->timeout_ms);
        pthread_mutex_unlock(&self->lock);
        usleep(POLL_US);
        pthread_mutex_lock(&self->lock);
        if (self->failure != CKV_OK)
            return ckv_fail(self->failure, "%s: %s", call, self->detail);
    }
    return nccl_status(result, call);
}

static ckv_status nccl_all_to_all(void *transport, int64_t tensors, const ckv_comm_transfer *transfers)
{
    ckv_nccl_transport *self = transport;
    ckv_status status = ckv_comm_all_to_all(self->host, tensors, transfers);
    if (status == CKV_OK)
        return CKV_OK;
    char detail[CKV_NCCL_DETAIL_BYTES];
    snprintf(detail, sizeof detail, "%s", ckv_last_error());
    CKV_TRY(ckv_nccl_failure(self)); /* the watch may know better why nobody came */
    ckv_nccl_fail(self, status, detail);
    return ckv_fail(status, "%s", detail);
}

/* Every transfer of every tensor as one group. Called with the lock held. */
static ncclResult_t enqueue_group(const ckv_nccl_transport *self, int64_t tensors, const ckv_comm_transfer *transfers,
                                  ckv_stream stream)
{
    ncclResult_t result = ncclGroupStart();
    for (int64_t i = 0; i < tensors * self->size && result == ncclSuccess; i++) {
        int peer = (int)(i % self->size);
        if (transfers[i].send_bytes > 0)
            result = ncclSend(transfers[i].send, (size_t)transfers[i].send_bytes, ncclUint8, peer, self->nccl, stream);
        if (result == ncclSuccess && transfers[i].receive_bytes > 0)
            result =
                ncclRecv(transfers[i].receive, (size_t)transfers[i].receive_bytes, ncclUint8, peer, self->nccl, stream);
    }
    ncclResult_t end = ncclGroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? end : result;
}

/* What shows on the device that an exchange is there. */
static ckv_status take_slot(ckv_nccl_transport *self, uint32_t **busy_out)
{
    pthread_mutex_lock(&self->lock);
    ckv_status status = self->failure != CKV_OK ? ckv_fail(self->failure, "%s", self->detail) : CKV_OK;
    if (status == CKV_OK) {
        int slot = (int)(self->exchanges++ % CKV_NCCL_SLOTS);
        self->operation[slot] = self->top != NULL ? ckv_comm_last_operation(self->top).sequence : 0;
        *busy_out = &self->words->busy[slot];
    }
    pthread_mutex_unlock(&self->lock);
    return status;
}

static ckv_status enqueue_locked(ckv_nccl_transport *self, int64_t tensors, const ckv_comm_transfer *transfers,
                                 ckv_stream stream)
{
    if (self->failure != CKV_OK)
        return ckv_fail(self->failure, "%s", self->detail);
    return await_nccl(self, enqueue_group(self, tensors, transfers, stream), "NCCL send and receive");
}

/* CUDA makes who enqueues wait when a stream holds very much that cannot begin. So that is done without the lock, or
 * the watch could not end what the stream waits for. */
static ckv_status nccl_enqueue_all_to_all(void *transport, int64_t tensors, const ckv_comm_transfer *transfers,
                                          ckv_stream stream)
{
    ckv_nccl_transport *self = transport;
    uint32_t *busy;
    CKV_TRY(take_slot(self, &busy));
    CKV_TRY(ckv_cuda_status(cudaMemsetAsync(busy, 1, sizeof *busy, stream), "cudaMemsetAsync"));
    pthread_mutex_lock(&self->lock);
    ckv_status status = enqueue_locked(self, tensors, transfers, stream);
    pthread_mutex_unlock(&self->lock);
    CKV_TRY(status);
    return ckv_cuda_status(cudaMemsetAsync(busy, 0, sizeof *busy, stream), "cudaMemsetAsync");
}

static ckv_peer_signals *nccl_signals(void *transport, int64_t *timeout_ms_out)
{
    const ckv_nccl_transport *self = transport;
    *timeout_ms_out = self->timeout_ms;
    return &self->words->signals;
}

static ckv_status nccl_async_error(void *transport)
{
    return ckv_nccl_failure(transport);
}

/* --- Windows --- */

#if CKV_NCCL_HAS_WINDOWS

static ckv_status nccl_window_supported(void *transport)
{
    ckv_nccl_transport *self = transport;
    int version = 0, near_ranks = 0;
    ncclGetVersion(&version);
    if (version < 22800)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "NCCL %d.%d has no windows that kernels can use; 2.28 has",
                        version / 10000, version / 100 % 100);
    pthread_mutex_lock(&self->lock);
    ckv_status status = self->failure != CKV_OK ? ckv_fail(self->failure, "%s", self->detail) : CKV_OK;
    if (status == CKV_OK)
        near_ranks = ckv_nccl_near_ranks(self->nccl);
    pthread_mutex_unlock(&self->lock);
    CKV_TRY(status);
    if (near_ranks != self->size)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "rank %d addresses the memory of %d of %d ranks", self->rank, near_ranks,
                        self->size);
    return CKV_OK;
}

static ckv_status nccl_window_alloc(void *transport, size_t bytes, ckv_comm_window *window)
{
    (void)transport;
    void *memory = NULL;
    if (ncclMemAlloc(&memory, bytes) != ncclSuccess) {
        cudaGetLastError();
        return ckv_fail(CKV_ERROR_MEMORY, "ncclMemAlloc: cannot allocate %zu bytes that other ranks can address",
                        bytes);
    }
    window->memory = memory;
    return CKV_OK;
}

static ckv_status nccl_window_open(void *transport, size_t bytes, ckv_comm_window *window)
{
    ckv_nccl_transport *self = transport;
    ncclWindow_t handle = NULL;
    pthread_mutex_lock(&self->lock);
    ckv_status status = self->failure != CKV_OK ? ckv_fail(self->failure, "%s", self->detail) : CKV_OK;
    if (status == CKV_OK)
        status = await_nccl(self,
                            ncclCommWindowRegister(self->nccl, window->memory, bytes, &handle, NCCL_WIN_COLL_SYMMETRIC),
                            "ncclCommWindowRegister");
    self->windows += status == CKV_OK && handle != NULL;
    pthread_mutex_unlock(&self->lock);
    CKV_TRY(status);
    window->handle = handle;
    if (handle == NULL)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "NCCL registers no windows here (rank %d)", self->rank);
    CKV_TRY(ckv_nccl_peer_addresses(handle, self->size, window->peers));
    window->peers[self->rank] = window->memory; /* NCCL maps it a second time */
    return CKV_OK;
}

/* After a failure the windows stay registered until NCCL's communicator goes. */
static void nccl_window_free(void *transport, ckv_comm_window *window)
{
    ckv_nccl_transport *self = transport;
    pthread_mutex_lock(&self->lock);
    if (window->handle != NULL && self->failure == CKV_OK) {
        (void)await_nccl(self, ncclCommWindowDeregister(self->nccl, window->handle), "ncclCommWindowDeregister");
        self->windows--;
    }
    pthread_mutex_unlock(&self->lock);
    ncclMemFree(window->memory);
}

#else

static ckv_status nccl_window_supported(void *transport)
{
    (void)transport;
    return ckv_fail(CKV_ERROR_UNSUPPORTED, "built with NCCL %d.%d, which has no windows; 2.28 has", NCCL_MAJOR,
                    NCCL_MINOR);
}

#endif

/* --- Making and ending --- */

static void transport_free(ckv_nccl_transport *self)
{
    if (!ckv_nccl_unwatch(self))
        return; /* the thread still uses it */
    ckv_board_close(&self->board);
    if (self->nccl != NULL)
        ncclCommAbort(self->nccl); /* unlike destroy it does not wait for the other ranks */
    cudaFreeHost(self->words);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static void nccl_destroy(void *transport)
{
    transport_free(transport);
}

static void nccl_give_up(void *transport, ckv_status status, const char *detail)
{
    ckv_nccl_transport *self = transport;
    char named[CKV_NCCL_DETAIL_BYTES];
    snprintf(named, sizeof named, "rank %d: %s", self->rank, detail);
    ckv_nccl_fail(self, status, named);
}

static const ckv_comm_ops nccl_ops = {
    .transport = "nccl",
    .all_to_all = nccl_all_to_all,
    .device = "cuda",
    .enqueue_all_to_all = nccl_enqueue_all_to_all,
    .window_supported = nccl_window_supported,
#if CKV_NCCL_HAS_WINDOWS
    .window_alloc = nccl_window_alloc,
    .window_open = nccl_window_open,
    .window_free = nccl_window_free,
#endif
    .signals = nccl_signals,
    .async_error = nccl_async_error,
    .give_up = nccl_give_up,
    .destroy = nccl_destroy,
};

static ckv_status check_arguments(ckv_comm *host, const ckv_nccl_config *config, ckv_comm *const *comm_out)
{
    if (host == NULL || comm_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "comm_create_nccl: %s is NULL", host == NULL ? "host" : "comm_out");
    if (config == NULL)
        return CKV_OK;
    if (config->struct_size != sizeof *config)
        return ckv_fail(CKV_ERROR_INVALID, "comm_create_nccl: struct_size is not sizeof(ckv_nccl_config); start from "
                                           "ckv_nccl_config_default()");
    if (config->timeout_ms < 0)
        return ckv_fail(CKV_ERROR_INVALID, "comm_create_nccl: timeout_ms is %lld; it must be 0 or more",
                        (long long)config->timeout_ms);
    return CKV_OK;
}

/* Who a rank is to the others. */
typedef struct identity {
    unsigned char uuid[UUID_BYTES];
    int32_t device, version;
} identity;

static ckv_status identify(ckv_nccl_transport *self, identity *mine)
{
    struct cudaDeviceProp properties;
    int version = 0;
    CKV_TRY(ckv_cuda_status(cudaGetDevice(&self->device), "cudaGetDevice"));
    CKV_TRY(ckv_cuda_status(cudaGetDeviceProperties(&properties, self->device), "cudaGetDeviceProperties"));
    CKV_TRY(nccl_status(ncclGetVersion(&version), "ncclGetVersion"));
    memcpy(mine->uuid, &properties.uuid, UUID_BYTES);
    mine->device = self->device;
    mine->version = version;
    void *words = NULL;
    CKV_TRY(ckv_cuda_status(cudaHostAlloc(&words, sizeof *self->words, cudaHostAllocMapped), "cudaHostAlloc"));
    memset(words, 0, sizeof *self->words);
    self->words = words;
    return CKV_OK;
}

/* The same on every rank, since all look at the same. */
static ckv_status check_identities(const identity *all, int size)
{
    for (int rank = 0; rank < size; rank++) {
        if (all[rank].version != all[0].version)
            return ckv_fail(CKV_ERROR_UNSUPPORTED, "comm_create_nccl: rank 0 has NCCL %d, rank %d has %d",
                            all[0].version, rank, all[rank].version);
        for (int other = 0; other < rank; other++)
            if (memcmp(all[rank].uuid, all[other].uuid, UUID_BYTES) == 0)
                return ckv_fail(CKV_ERROR_INVALID,
                                "comm_create_nccl: ranks %d and %d both use the GPU that is CUDA device %d of rank %d; "
                                "give each rank its own (cudaSetDevice, or CUDA_VISIBLE_DEVICES)",
                                other, rank, all[other].device, other);
    }
    return CKV_OK;
}

/* Rank 0's name for the communicator reaches everybody. */
static ckv_status share_id(ckv_comm *host, ncclUniqueId *all)
{
    ncclUniqueId mine;
    memset(&mine, 0, sizeof mine);
    ckv_status status = ckv_comm_rank(host) == 0 ? nccl_status(ncclGetUniqueId(&mine), "ncclGetUniqueId") : CKV_OK;
    CKV_TRY(ckv_comm_agree(host, status));
    return ckv_comm_all_gather(host, &mine, sizeof mine, all);
}

static ckv_status meet_others(ckv_nccl_transport *self, identity *all, ncclUniqueId *ids)
{
    ckv_comm *host = self->host;
    identity mine = {0};
    CKV_TRY(ckv_comm_agree(host, identify(self, &mine)));
    CKV_TRY(ckv_comm_all_gather(host, &mine, sizeof mine, all));
    CKV_TRY(check_identities(all, self->size));
    CKV_TRY(share_id(host, ids));
    ncclConfig_t nccl_config = NCCL_CONFIG_INITIALIZER;
    nccl_config.blocking = 0;
    pthread_mutex_lock(&self->lock);
    ncclResult_t result = ncclCommInitRankConfig(&self->nccl, self->size, ids[0], self->rank, &nccl_config);
    ckv_status status = await_nccl(self, result, "ncclCommInitRankConfig");
    pthread_mutex_unlock(&self->lock);
    CKV_TRY(ckv_comm_agree(host, status));
    return ckv_board_open(host, &self->board);
}

/* NCCL connects two ranks when they first talk, which a stream that is being captured could not. */
static ckv_status talk_to_everybody(ckv_comm *comm, ckv_nccl_transport *self, char *memory,
                                    ckv_comm_transfer *transfers)
{
    cudaStream_t stream;
    for (int peer = 0; peer < self->size; peer++)
        transfers[peer] = (ckv_comm_transfer){memory + peer, 1, memory + self->size + peer, 1};
    CKV_TRY(ckv_cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
    ckv_status status = ckv_comm_enqueue_all_to_all(comm, 1, transfers, stream);
    cudaError_t state = cudaErrorNotReady;
    while (status == CKV_OK && (state = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        usleep(POLL_US);
        status = ckv_comm_async_error(comm);
    }
    if (status == CKV_OK)
        status = ckv_cuda_status(state, "cudaStreamQuery");
    cudaStreamDestroy(stream);
    return status;
}

static ckv_status warm_up(ckv_comm *comm, ckv_nccl_transport *self)
{
    void *memory = NULL;
    ckv_comm_transfer *transfers = calloc((size_t)self->size, sizeof *transfers);
    ckv_status status = ckv_cuda_status(cudaMalloc(&memory, 2 * (size_t)self->size), "cudaMalloc");
    if (status == CKV_OK && transfers == NULL)
        status = ckv_fail(CKV_ERROR_MEMORY, "nccl: out of host memory for %d ranks", self->size);
    status = ckv_comm_agree(self->host, status);
    if (status == CKV_OK)
        status = ckv_comm_agree(self->host, talk_to_everybody(comm, self, memory, transfers));
    cudaFree(memory);
    free(transfers);
    return status;
}

/* The transport, connected but not yet under a communicator. Collective. */
static ckv_status transport_create(ckv_comm *host, int64_t timeout_ms, ckv_nccl_transport **transport_out)
{
    size_t size = (size_t)ckv_comm_size(host);
    ckv_nccl_transport *self = calloc(1, sizeof *self);
    identity *all = calloc(size, sizeof *all);
    ncclUniqueId *ids = calloc(size, sizeof *ids);
    ckv_status status = CKV_OK;
    if (self == NULL || all == NULL || ids == NULL)
        status = ckv_fail(CKV_ERROR_MEMORY, "nccl: out of host memory for %zu ranks", size);
    status = ckv_comm_agree(host, status);
    if (status == CKV_OK) {
        self->host = host;
        self->rank = ckv_comm_rank(host);
        self->size = (int)size;
        self->timeout_ms = timeout_ms;
        pthread_mutex_init(&self->lock, NULL);
        status = meet_others(self, all, ids);
    }
    free(ids);
    free(all);
    if (status == CKV_OK)
        *transport_out = self;
    else if (self != NULL && self->host != NULL)
        transport_free(self);
    else
        free(self);
    return status;
}

ckv_nccl_config ckv_nccl_config_default(void)
{
    return (ckv_nccl_config){.struct_size = sizeof(ckv_nccl_config)};
}

ckv_status ckv_comm_create_nccl(ckv_comm *host, const ckv_nccl_config *config, ckv_comm **comm_out)
{
    ckv_status status = check_arguments(host, config, comm_out);
    if (host == NULL)
        return status;
    CKV_TRY(ckv_comm_agree(host, status));
    ckv_nccl_transport *self = NULL;
    ckv_comm *comm = NULL;
    CKV_TRY(transport_create(host, ckv_comm_wait_ms(config ? config->timeout_ms : 0), &self));
    status = ckv_comm_create_on(&nccl_ops, self, self->rank, self->size, &comm);
    if (status == CKV_OK) {
        self->top = comm;
        status = ckv_nccl_watch(self);
    }
    status = ckv_comm_agree(host, status);
    if (status == CKV_OK)
        status = warm_up(comm, self);
    if (status == CKV_OK)
        *comm_out = comm;
    else
        ckv_comm_destroy(&comm);
    return status;
}
