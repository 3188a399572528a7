/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/exchange_peers/exchange_peers.h"

#include "kernels/common/launch.cuh"

namespace
{

/* The number of blocks depends on nothing that could differ between ranks, and all of them fit on a GPU at once: a
 * block waits for its namesakes. A thread has LOADS vectors on their way. */
enum { THREADS = 512, BLOCKS = 128, LOADS = 4, WARPS = THREADS / ckv::WARP, TILE_VECTORS = LOADS * ckv::WARP };

static_assert(int(BLOCKS) <= int(CKV_PEER_MAX_BLOCKS) && int(CKV_MAX_PEERS) <= int(THREADS),
              "one flag a block, one thread a peer");

constexpr int POLLS_BETWEEN_LOOKS = 256; /* at the clock, and at host memory */

__device__ uint32_t load_acquire(const uint32_t *flag)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

__device__ uint64_t now_ns()
{
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

/* Thread p tells peer p that what this block wrote, and what was written before the launch, is there. */
__device__ void arrive(const ckv_exchange_peers_params &params, uint32_t epoch)
{
    if (static_cast<int>(threadIdx.x) >= params.ranks)
        return;
    uint32_t *flag = params.meeting.flags[threadIdx.x] + params.rank * CKV_PEER_MAX_BLOCKS + blockIdx.x;
    __threadfence_system();
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(epoch) : "memory");
}

__device__ void give_up(ckv_peer_signals *signals, uint32_t epoch)
{
    if (atomicCAS_system(&signals->timed_out, 0u, 1u) == 0u) {
        signals->missing_peer = threadIdx.x;
        signals->epoch = epoch;
    }
    __threadfence_system();
    *reinterpret_cast<volatile uint32_t *>(&signals->abort) = 1;
}

/* Thread p waits for peer p; a peer may be a launch ahead already. False on every thread when a peer does not come. */
__device__ bool await_peers(const ckv_exchange_peers_params &params, uint32_t epoch)
{
    bool there = true;
    if (static_cast<int>(threadIdx.x) < params.ranks) {
        const uint32_t *flag = params.meeting.flags[params.rank] + threadIdx.x * CKV_PEER_MAX_BLOCKS + blockIdx.x;
        ckv_peer_signals *signals = params.meeting.signals;
        uint64_t start = now_ns();
        for (int polls = 1; there && static_cast<int32_t>(load_acquire(flag) - epoch) < 0; polls++) {
            if (polls % POLLS_BETWEEN_LOOKS != 0)
                continue;
            bool late = now_ns() - start > static_cast<uint64_t>(params.meeting.timeout_ns);
            there = !late && *reinterpret_cast<volatile uint32_t *>(&signals->abort) == 0;
            if (late)
                give_up(signals, epoch);
        }
    }
    return __syncthreads_and(there);
}

/* Vectors of the tile'th tile of one slice: dense on the peer's side, wherever they lie in the shard. */
template <typename VECTOR, bool PULL>
__device__ void move_tile(const ckv_exchange_peers_params &params, const ckv_peer_tensor &tensor, int peer,
                          unsigned tile, unsigned vectors, unsigned row_vectors, unsigned slice_vectors)
{
    char *shard = static_cast<char *>(tensor.shard) +
                  (peer * tensor.heads / params.ranks + tensor.first_head) * tensor.head_stride_bytes;
    VECTOR *slice = reinterpret_cast<VECTOR *>(static_cast<char *>(params.peers[peer]) + tensor.offset_bytes +
                                               params.first_token * tensor.slice_heads * tensor.row_bytes);
    unsigned first = tile * TILE_VECTORS + threadIdx.x % ckv::WARP;
    VECTOR *strided[LOADS], held[LOADS];
#pragma unroll
    for (int n = 0; n < LOADS; n++) {
        unsigned vector = first + n * ckv::WARP, token = vector / slice_vectors;
        unsigned within = vector - token * slice_vectors, head = within / row_vectors;
        strided[n] =
            reinterpret_cast<VECTOR *>(shard + token * tensor.token_stride_bytes + head * tensor.head_stride_bytes) +
            (within - head * row_vectors);
        if (vector < vectors)
            held[n] = PULL ? slice[vector] : *strided[n];
    }
#pragma unroll
    for (int n = 0; n < LOADS; n++) {
        unsigned vector = first + n * ckv::WARP;
        if (vector < vectors)
            *(PULL ? strided[n] : slice + vector) = held[n];
    }
}

/* All tensors between this rank's shard and one peer, tile by tile over the warps of the grid. */
template <typename VECTOR, bool PULL> __device__ void move_slices(const ckv_exchange_peers_params &params, int peer)
{
    unsigned warps = gridDim.x * WARPS, warp = (threadIdx.x / ckv::WARP) * gridDim.x + blockIdx.x;
    for (int64_t i = 0; i < params.num_tensors; i++) {
        const ckv_peer_tensor &tensor = params.tensors[i];
        unsigned row_vectors = static_cast<unsigned>(tensor.row_bytes / static_cast<int64_t>(sizeof(VECTOR)));
        unsigned slice_vectors = static_cast<unsigned>(tensor.slice_heads) * row_vectors;
        unsigned vectors = static_cast<unsigned>(params.tokens) * slice_vectors;
        unsigned tiles = (vectors + TILE_VECTORS - 1) / TILE_VECTORS;
        for (unsigned tile = warp; tile < tiles; tile += warps)
            move_tile<VECTOR, PULL>(params, tensor, peer, tile, vectors, row_vectors, slice_vectors);
        warp = (warp + warps - tiles % warps) % warps; /* the next tensor goes on where this one ended */
    }
}

template <typename VECTOR, bool PULL> __device__ void move_remote_slices(const ckv_exchange_peers_params &params)
{
    for (int step = 1; step < params.ranks; step++)
        move_slices<VECTOR, PULL>(params, (params.rank + step) % params.ranks);
}

/* Grid: blocks in one dimension, as many on every rank; block: THREADS; no shared memory. Both sides and all strides
 * aligned to VECTOR. Every vector is read and written by one thread. The own slice is moved while flags travel. */
template <typename VECTOR, bool PULL>
__global__ void __launch_bounds__(THREADS, 2) exchange(const __grid_constant__ ckv_exchange_peers_params params)
{
    cudaGridDependencySynchronize();
    uint32_t epoch = *static_cast<volatile uint32_t *>(params.meeting.epochs + blockIdx.x) + 1;
    if (!PULL) {
        move_remote_slices<VECTOR, PULL>(params);
        __syncthreads();
    }
    arrive(params, epoch);
    move_slices<VECTOR, PULL>(params, params.rank);
    bool there = await_peers(params, epoch);
    if (PULL && there)
        move_remote_slices<VECTOR, PULL>(params);
    if (threadIdx.x == 0)
        params.meeting.epochs[blockIdx.x] = epoch;
}

using exchange_kernel = void (*)(ckv_exchange_peers_params);
const exchange_kernel kernels[2][ckv::NUM_VECTORS] = {
    {exchange<uint4, false>, exchange<uint2, false>, exchange<uint32_t, false>, exchange<uint16_t, false>,
     exchange<uint8_t, false>},
    {exchange<uint4, true>, exchange<uint2, true>, exchange<uint32_t, true>, exchange<uint16_t, true>,
     exchange<uint8_t, true>}};

/* Alike on every rank, so in bytes of the widest vectors, and of the rank that has most. */
unsigned blocks_of(const ckv_exchange_peers_params *params)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < params->num_tensors; i++)
        bytes += params->most_tokens * params->tensors[i].slice_heads * params->tensors[i].row_bytes;
    int64_t blocks =
        ckv::ceil_div(bytes * params->ranks, int64_t{THREADS} * LOADS * static_cast<int64_t>(sizeof(uint4)));
    return static_cast<unsigned>(blocks < 1 ? 1 : blocks < BLOCKS ? blocks : int64_t{BLOCKS});
}

} // namespace

ckv_status ckv_exchange_peers_cuda(const ckv_exchange_peers_params *params, ckv_stream stream)
{
    uint64_t all = 0;
    for (int64_t i = 0; i < params->num_tensors; i++) {
        const ckv_peer_tensor &tensor = params->tensors[i];
        all |= ckv::bits(tensor.shard) | ckv::bits(tensor.token_stride_bytes) | ckv::bits(tensor.head_stride_bytes) |
               ckv::bits(tensor.offset_bytes) | ckv::bits(tensor.row_bytes);
    }
    int row = ckv::vector_row(all);
    for (int64_t i = 0; i < params->num_tensors; i++) {
        const ckv_peer_tensor &tensor = params->tensors[i];
        int64_t vectors = params->most_tokens * tensor.slice_heads * (tensor.row_bytes / ckv::vector_bytes(row));
        if (vectors > INT32_MAX - TILE_VECTORS)
            return ckv_fail(CKV_ERROR_UNSUPPORTED,
                            "exchange_peers: %" PRId64 " vectors of %" PRId64 " bytes between two ranks are too many",
                            vectors, ckv::vector_bytes(row));
    }
    cudaLaunchAttribute attribute = ckv::overlapping();
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks_of(params));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return ckv_cuda_status(cudaLaunchKernelEx(&config, kernels[params->pull != 0][row], *params),
                           "exchange_peers: launch");
}
