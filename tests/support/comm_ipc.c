/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/comm_ipc.h"

#include "kernels/exchange_peers/exchange_peers.h"
#include "lib/device/cuda_status.h"
#include "lib/support/error.h"
#include "ulysses/comm.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

typedef struct ipc_transport {
    ckv_comm *host;
    int rank, size;
    int64_t timeout_ms;
    ckv_peer_signals *signals;
} ipc_transport;

static ckv_status ipc_all_to_all(void *transport, int64_t tensors, const ckv_comm_transfer *transfers)
{
    ipc_transport *self = transport;
    return ckv_comm_all_to_all(self->host, tensors, transfers);
}

static ckv_status copy(void *destination, const void *source, int64_t bytes, enum cudaMemcpyKind kind)
{
    return ckv_cuda_status(cudaMemcpy(destination, source, (size_t)bytes, kind), "cudaMemcpy");
}

/* The same transfers between host copies. */
static ckv_status carry(ipc_transport *self, int64_t count, const ckv_comm_transfer *transfers, ckv_comm_transfer *host)
{
    for (int64_t i = 0; i < count; i++) {
        char *memory = malloc((size_t)(transfers[i].send_bytes + transfers[i].receive_bytes) + 1);
        if (memory == NULL)
            return ckv_fail(CKV_ERROR_COMM, "ipc: out of host memory");
        host[i] = (ckv_comm_transfer){memory, transfers[i].send_bytes, memory + transfers[i].send_bytes,
                                      transfers[i].receive_bytes};
        CKV_TRY(copy(memory, transfers[i].send, transfers[i].send_bytes, cudaMemcpyDeviceToHost));
    }
    CKV_TRY(ckv_comm_all_to_all(self->host, count / self->size, host));
    for (int64_t i = 0; i < count; i++)
        CKV_TRY(copy(transfers[i].receive, host[i].receive, transfers[i].receive_bytes, cudaMemcpyHostToDevice));
    return ckv_cuda_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); /* the copies may still be on their way */
}

static ckv_status ipc_enqueue_all_to_all(void *transport, int64_t tensors, const ckv_comm_transfer *transfers,
                                         ckv_stream stream)
{
    ipc_transport *self = transport;
    int64_t count = tensors * self->size;
    ckv_comm_transfer *host = calloc((size_t)count, sizeof *host);
    if (host == NULL)
        return ckv_fail(CKV_ERROR_COMM, "ipc: out of host memory");
    ckv_status status = ckv_cuda_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (status == CKV_OK)
        status = carry(self, count, transfers, host);
    for (int64_t i = 0; i < count; i++)
        free((void *)(uintptr_t)host[i].send); /* NOLINT(performance-no-int-to-ptr) */
    free(host);
    return status;
}

static ckv_status ipc_window_supported(void *transport)
{
    (void)transport;
    return CKV_OK;
}

static ckv_status ipc_window_alloc(void *transport, size_t bytes, ckv_comm_window *window)
{
    (void)transport;
    return ckv_cuda_status(cudaMalloc(&window->memory, bytes), "cudaMalloc");
}

static ckv_status ipc_window_open(void *transport, size_t bytes, ckv_comm_window *window)
{
    ipc_transport *self = transport;
    cudaIpcMemHandle_t mine, *all = calloc((size_t)self->size, sizeof *all);
    (void)bytes;
    if (all == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "ipc: out of host memory");
    ckv_status status = ckv_cuda_status(cudaIpcGetMemHandle(&mine, window->memory), "cudaIpcGetMemHandle");
    if (status == CKV_OK)
        status = ckv_comm_all_gather(self->host, &mine, sizeof mine, all);
    for (int peer = 0; status == CKV_OK && peer < self->size; peer++) {
        window->peers[peer] = window->memory;
        if (peer != self->rank)
            status =
                ckv_cuda_status(cudaIpcOpenMemHandle(&window->peers[peer], all[peer], cudaIpcMemLazyEnablePeerAccess),
                                "cudaIpcOpenMemHandle");
    }
    free(all);
    return status;
}

/* The others' mappings keep what they still use. */
static void ipc_window_free(void *transport, ckv_comm_window *window)
{
    ipc_transport *self = transport;
    for (int peer = 0; peer < self->size; peer++)
        if (window->peers[peer] != NULL && peer != self->rank)
            cudaIpcCloseMemHandle(window->peers[peer]);
    cudaFree(window->memory);
}

static ckv_peer_signals *ipc_signals(void *transport, int64_t *timeout_ms_out)
{
    const ipc_transport *self = transport;
    *timeout_ms_out = self->timeout_ms;
    return self->signals;
}

static ckv_status ipc_async_error(void *transport)
{
    const ipc_transport *self = transport;
    if (!__atomic_load_n(&self->signals->abort, __ATOMIC_ACQUIRE))
        return CKV_OK;
    return ckv_fail(CKV_ERROR_TIMEOUT, "an exchange of rank %d waited %lld ms for rank %u", self->rank,
                    (long long)self->timeout_ms, self->signals->missing_peer);
}

static void ipc_destroy(void *transport)
{
    ipc_transport *self = transport;
    cudaFreeHost(self->signals);
    free(self);
}

static const ckv_comm_ops ipc_ops = {
    .transport = "ipc",
    .all_to_all = ipc_all_to_all,
    .device = "cuda",
    .enqueue_all_to_all = ipc_enqueue_all_to_all,
    .window_supported = ipc_window_supported,
    .window_alloc = ipc_window_alloc,
    .window_open = ipc_window_open,
    .window_free = ipc_window_free,
    .signals = ipc_signals,
    .async_error = ipc_async_error,
    .destroy = ipc_destroy,
};

ckv_status comm_create_ipc(ckv_comm *host, int64_t timeout_ms, ckv_comm **comm_out)
{
    ipc_transport *self = calloc(1, sizeof *self);
    void *signals = NULL;
    if (self == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "ipc: out of host memory");
    ckv_status status =
        ckv_cuda_status(cudaHostAlloc(&signals, sizeof *self->signals, cudaHostAllocMapped), "cudaHostAlloc");
    if (status != CKV_OK) {
        free(self);
        return status;
    }
    memset(signals, 0, sizeof *self->signals);
    *self = (ipc_transport){host, ckv_comm_rank(host), ckv_comm_size(host), timeout_ms, signals};
    return ckv_comm_create_on(&ipc_ops, self, self->rank, self->size, comm_out);
}
