/* SPDX-License-Identifier: Apache-2.0 */
/* One CUDA device: the caller's current one. The runtime is linked statically and finds the driver when it is first
 * called, so the library starts on machines without one. Nothing here waits but download and wait. */
#include "kernels/causal_layout/causal_layout.h"
#include "kernels/copy_kv_slots/copy_kv_slots.h"
#include "kernels/exchange_heads/exchange_heads.h"
#include "kernels/exchange_peers/exchange_peers.h"
#include "kernels/qk_norm_rope/qk_norm_rope.h"
#include "kernels/rotate_rows/rotate_rows.h"
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "kernels/zero_row_tails/zero_row_tails.h"
#include "lib/device/cuda_status.h"
#include "lib/device/device.h"
#include "lib/support/error.h"

/* What cudaMalloc takes from the driver at a time: a request of whole units shares none with another. */
#define GRANULARITY_BYTES ((int64_t)2 << 20)

enum { MAX_PITCH_BYTES = INT32_MAX }; /* of a 2-D fill in the runtime; layers of a large pool are further apart */

ckv_status ckv_cuda_status(cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return CKV_OK;
    ckv_record_error("%s: %d %s: %s", call, (int)error, cudaGetErrorName(error), cudaGetErrorString(error));
    cudaGetLastError(); /* recorded here; the next call must not report it again */
    switch (error) {
    case cudaErrorMemoryAllocation:
        return CKV_ERROR_MEMORY;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorStubLibrary:
    case cudaErrorNoKernelImageForDevice:
        return CKV_ERROR_UNSUPPORTED;
    default:
        return CKV_ERROR_DEVICE;
    }
}

static ckv_status cuda_probe(void)
{
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaSuccess && devices > 0)
        return CKV_OK;
    if (error == cudaSuccess)
        error = cudaErrorNoDevice;
    cudaGetLastError();
    return ckv_fail(CKV_ERROR_UNSUPPORTED, "device 'cuda' cannot be used here: cudaGetDeviceCount: %d %s: %s",
                    (int)error, cudaGetErrorName(error), cudaGetErrorString(error));
}

static ckv_status cuda_alloc(size_t bytes, void **memory_out)
{
    int64_t taken = bytes <= INT64_MAX ? ckv_device_allocation_bytes(&ckv_device_cuda, (int64_t)bytes) : -1;
    void *memory = NULL;
    cudaError_t error = taken > 0 ? cudaMalloc(&memory, (size_t)taken) : cudaErrorMemoryAllocation;
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return ckv_fail(CKV_ERROR_MEMORY, "cuda: cannot allocate %zu bytes (cudaMalloc: %d %s)", bytes, (int)error,
                        cudaGetErrorName(error));
    }
    CKV_TRY(ckv_cuda_status(error, "cudaMalloc"));
    *memory_out = memory;
    return CKV_OK;
}

static void cuda_free(void *memory)
{
    cudaFree(memory); /* nobody to tell; a sticky error shows in the next call */
}

/* From pageable memory the runtime copies the source aside before it returns. From pinned memory it would not, so the
 * source is only reusable then because the stream has caught up. */
static ckv_status cuda_upload(void *destination, const void *source, size_t bytes, ckv_stream stream)
{
    if (bytes == 0)
        return CKV_OK;
    struct cudaPointerAttributes attributes;
    CKV_TRY(ckv_cuda_status(cudaPointerGetAttributes(&attributes, source), "cudaPointerGetAttributes"));
    CKV_TRY(ckv_cuda_status(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyHostToDevice, stream),
                            "cudaMemcpyAsync to the device"));
    if (attributes.type != cudaMemoryTypeUnregistered)
        return ckv_cuda_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return CKV_OK;
}

static ckv_status cuda_download(void *destination, const void *source, size_t bytes, ckv_stream stream)
{
    if (bytes == 0)
        return CKV_OK;
    CKV_TRY(ckv_cuda_status(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, stream),
                            "cudaMemcpyAsync to the host"));
    return ckv_cuda_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

static ckv_status cuda_fill(void *destination, int byte, size_t bytes, ckv_stream stream)
{
    if (bytes == 0)
        return CKV_OK;
    return ckv_cuda_status(cudaMemsetAsync(destination, byte, bytes, stream), "cudaMemsetAsync");
}

static ckv_status cuda_fill_2d(void *destination, size_t pitch_bytes, int byte, size_t width_bytes, size_t height,
                               ckv_stream stream)
{
    if (width_bytes == 0 || height == 0)
        return CKV_OK;
    if (height == 1 || pitch_bytes == width_bytes)
        return cuda_fill(destination, byte, width_bytes * height, stream);
    for (size_t row = 0; pitch_bytes > MAX_PITCH_BYTES && row < height; row++)
        CKV_TRY(cuda_fill((char *)destination + row * pitch_bytes, byte, width_bytes, stream));
    if (pitch_bytes > MAX_PITCH_BYTES)
        return CKV_OK;
    return ckv_cuda_status(cudaMemset2DAsync(destination, pitch_bytes, byte, width_bytes, height, stream),
                           "cudaMemset2DAsync");
}

static ckv_status cuda_alloc_host(size_t bytes, void **memory_out)
{
    void *memory = NULL;
    cudaError_t error = cudaMallocHost(&memory, bytes > 0 ? bytes : 1);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return ckv_fail(CKV_ERROR_MEMORY, "cuda: cannot pin %zu bytes of host memory (cudaMallocHost: %d %s)", bytes,
                        (int)error, cudaGetErrorName(error));
    }
    CKV_TRY(ckv_cuda_status(error, "cudaMallocHost"));
    *memory_out = memory;
    return CKV_OK;
}

static void cuda_free_host(void *memory)
{
    if (memory != NULL)
        cudaFreeHost(memory);
}

static ckv_status cuda_copy_2d(void *destination, size_t destination_pitch_bytes, const void *source,
                               size_t source_pitch_bytes, size_t width_bytes, size_t height, ckv_stream stream)
{
    if (width_bytes == 0 || height == 0)
        return CKV_OK;
    if (height == 1 || (destination_pitch_bytes == width_bytes && source_pitch_bytes == width_bytes))
        return ckv_cuda_status(cudaMemcpyAsync(destination, source, width_bytes * height, cudaMemcpyDefault, stream),
                               "cudaMemcpyAsync");
    return ckv_cuda_status(cudaMemcpy2DAsync(destination, destination_pitch_bytes, source, source_pitch_bytes,
                                             width_bytes, height, cudaMemcpyDefault, stream),
                           "cudaMemcpy2DAsync");
}

/* Not ordered with the legacy default stream: waits are the caller's to state. */
static ckv_status cuda_stream_create(ckv_stream *stream_out)
{
    return ckv_cuda_status(cudaStreamCreateWithFlags(stream_out, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

static void cuda_stream_destroy(ckv_stream stream)
{
    if (stream != NULL)
        cudaStreamDestroy(stream);
}

static ckv_status cuda_event_create(ckv_event *event_out)
{
    return ckv_cuda_status(cudaEventCreateWithFlags(event_out, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

static void cuda_event_destroy(ckv_event event)
{
    if (event != NULL)
        cudaEventDestroy(event);
}

static ckv_status cuda_event_record(ckv_event event, ckv_stream stream)
{
    return ckv_cuda_status(cudaEventRecord(event, stream), "cudaEventRecord");
}

static ckv_status cuda_event_wait(ckv_event event, ckv_stream stream)
{
    return ckv_cuda_status(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

static ckv_status cuda_event_done(ckv_event event, int *done_out)
{
    cudaError_t error = cudaEventQuery(event);
    *done_out = error == cudaSuccess;
    if (error == cudaErrorNotReady) {
        cudaGetLastError(); /* an answer, no failure */
        return CKV_OK;
    }
    return ckv_cuda_status(error, "cudaEventQuery");
}

static ckv_status cuda_wait(ckv_stream stream)
{
    return ckv_cuda_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

static ckv_status cuda_is_capturing(ckv_stream stream, int *capturing_out)
{
    enum cudaStreamCaptureStatus capture;
    CKV_TRY(ckv_cuda_status(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing"));
    *capturing_out = capture != cudaStreamCaptureStatusNone;
    return CKV_OK;
}

const ckv_device ckv_device_cuda = {
    .name = "cuda",
    .host_addressable = 0,
    .probe = cuda_probe,
    .granularity_bytes = GRANULARITY_BYTES,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .fill = cuda_fill,
    .fill_2d = cuda_fill_2d,
    .wait = cuda_wait,
    .is_capturing = cuda_is_capturing,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .copy_2d = cuda_copy_2d,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_done = cuda_event_done,
    .rotate_rows = ckv_rotate_rows_cuda,
    .scatter_kv_slots = ckv_scatter_kv_slots_cuda,
    .causal_layout = ckv_causal_layout_cuda,
    .copy_kv_slots = ckv_copy_kv_slots_cuda,
    .exchange_heads = ckv_exchange_heads_cuda,
    .exchange_peers = ckv_exchange_peers_cuda,
    .qk_norm_rope = ckv_qk_norm_rope_cuda,
    .zero_row_tails = ckv_zero_row_tails_cuda,
};
