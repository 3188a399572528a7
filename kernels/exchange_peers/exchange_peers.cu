/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/exchange_peers/exchange_peers.h"

#include "kernels/common/divisor.cuh"
#include "kernels/common/launch.cuh"

namespace
{

/* The number of blocks depends on nothing that could differ between ranks, and all of them fit on a GPU at once: a
 * remote block waits for its namesakes. A thread has LOADS vectors on their way. */
enum {
    THREADS = 512,
    BLOCKS = 132,
    LOADS = 4,
    PAGE_LOADS = 2,
    WARPS = THREADS / ckv::WARP,
    TILE_VECTORS = LOADS * ckv::WARP
};

static_assert(int(BLOCKS) <= int(CKV_PEER_MAX_BLOCKS), "one flag a block");
static_assert(int(CKV_MAX_PEERS) <= int(THREADS), "one thread a peer");

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

__device__ bool serves_a_peer(const ckv_exchange_peers_params &params)
{
    return static_cast<int>(threadIdx.x) < params.ranks && static_cast<int>(threadIdx.x) != params.rank;
}

/* Thread p tells peer p that what this block wrote, and what was written before the launch, is there. */
__device__ void arrive(const ckv_exchange_peers_params &params, uint32_t epoch)
{
    if (!serves_a_peer(params))
        return;
    uint32_t *flag = params.meeting.flags[threadIdx.x] + params.rank * CKV_PEER_MAX_BLOCKS + blockIdx.x;
    asm volatile("fence.acq_rel.sys;" ::: "memory");
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

/* Thread p waits for peer p; a peer may be a launch ahead already. False on every thread when a peer does not come. The
 * clock starts at the first look at it, which costs time. */
__device__ bool await_peers(const ckv_exchange_peers_params &params, uint32_t epoch)
{
    bool there = true;
    if (serves_a_peer(params)) {
        const uint32_t *flag = params.meeting.flags[params.rank] + threadIdx.x * CKV_PEER_MAX_BLOCKS + blockIdx.x;
        ckv_peer_signals *signals = params.meeting.signals;
        uint64_t start = 0;
        for (int polls = 1; there && static_cast<int32_t>(load_acquire(flag) - epoch) < 0; polls++) {
            if (polls % POLLS_BETWEEN_LOOKS != 0)
                continue;
            uint64_t now = now_ns();
            start = start == 0 ? now : start;
            bool late = now - start > static_cast<uint64_t>(params.meeting.timeout_ns);
            there = !late && *reinterpret_cast<volatile uint32_t *>(&signals->abort) == 0;
            if (late)
                give_up(signals, epoch);
        }
    }
    return __syncthreads_and(there);
}

/* A tensor in vectors: of a head, and of one token in a slice. */
struct tensor_vectors {
    ckv::divisor row, slice;
    unsigned row_count, slice_count;
};

struct vector_plan {
    tensor_vectors tensors[CKV_EXCHANGE_MAX_TENSORS];
    unsigned remote_blocks;
};

/* One vector of a slice. */
struct vector_place {
    unsigned token, head, within;
};

__device__ vector_place place_of(const tensor_vectors &v, unsigned vector)
{
    vector_place place;
    place.token = ckv::divide(vector, v.slice);
    unsigned in_token = vector - place.token * v.slice_count;
    place.head = ckv::divide(in_token, v.row);
    place.within = in_token - place.head * v.row_count;
    return place;
}

/* Where the tokens of `rank` lie in the slice of `peer`. */
template <typename VECTOR>
__device__ VECTOR *slice_of(const ckv_exchange_peers_params &params, const ckv_peer_tensor &tensor, int peer, int rank)
{
    return reinterpret_cast<VECTOR *>(static_cast<char *>(params.peers[peer]) + tensor.offset_bytes +
                                      ckv_peer_first_token(&params, rank) * tensor.slice_heads * tensor.row_bytes);
}

/* The tiles of this warp among those of all tensors of a rank's tokens, one tensor after the other; the same tile falls
 * to the same block on the rank that sends it and on the one that gets it. work(tensor, first vector, vectors). */
template <typename WORK>
__device__ void for_each_tile(const ckv_exchange_peers_params &params, const vector_plan &plan, int rank,
                              unsigned block, unsigned blocks, const WORK &work)
{
    unsigned warps = blocks * WARPS, tile = (threadIdx.x / ckv::WARP) * blocks + block;
    unsigned tokens = static_cast<unsigned>(ckv_peer_tokens(&params, rank));
    for (int i = 0; i < static_cast<int>(params.num_tensors); i++) {
        unsigned vectors = tokens * plan.tensors[i].slice_count;
        unsigned tiles = (vectors + TILE_VECTORS - 1) / TILE_VECTORS;
        for (; tile < tiles; tile += warps)
            work(i, tile * TILE_VECTORS + threadIdx.x % ckv::WARP, vectors);
        tile -= tiles;
    }
}

/* LOADS vectors between a shard, where they lie anyhow, and the peer's side, where they are dense. */
template <typename VECTOR, bool PULL>
__device__ void move_vectors(const ckv_peer_tensor &tensor, const tensor_vectors &v, char *shard, VECTOR *slice,
                             unsigned first, unsigned vectors)
{
    VECTOR *strided[LOADS], held[LOADS];
#pragma unroll
    for (int n = 0; n < LOADS; n++) {
        unsigned vector = first + n * ckv::WARP;
        vector_place place = place_of(v, vector);
        strided[n] = reinterpret_cast<VECTOR *>(shard + place.token * tensor.token_stride_bytes +
                                                place.head * tensor.head_stride_bytes) +
                     place.within;
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

/* All tensors between this rank's shard and one peer. */
template <typename VECTOR, bool PULL>
__device__ void move_slices(const ckv_exchange_peers_params &params, const vector_plan &plan, int peer, unsigned block,
                            unsigned blocks)
{
    for_each_tile(params, plan, params.rank, block, blocks, [&](int i, unsigned first, unsigned vectors) {
        const ckv_peer_tensor &tensor = params.tensors[i];
        unsigned first_head =
            static_cast<unsigned>(peer) * static_cast<unsigned>(tensor.heads) / static_cast<unsigned>(params.ranks) +
            static_cast<unsigned>(tensor.first_head);
        move_vectors<VECTOR, PULL>(tensor, plan.tensors[i],
                                   static_cast<char *>(tensor.shard) + first_head * tensor.head_stride_bytes,
                                   slice_of<VECTOR>(params, tensor, peer, params.rank), first, vectors);
    });
}

/* Where a vector goes whose place in slot 0 is `plane`; nullptr: nowhere. */
__device__ char *in_slot(const ckv_peer_pages &pages, char *plane, int64_t slot)
{
    if (slot < 0 || slot >= pages.num_slots)
        return nullptr;
    return plane + ckv_page_of(slot, pages.tokens_per_page) * pages.page_stride +
           ckv_in_page(slot, pages.tokens_per_page) * pages.slot_stride;
}

/* PAGE_LOADS vectors on to the pages; their slots take the registers that more would need. */
template <typename VECTOR>
__device__ void page_vectors(const ckv_peer_pages &pages, void *tensor_plane, const tensor_vectors &v,
                             const VECTOR *slice, int64_t first_token, unsigned first, unsigned vectors)
{
    VECTOR held[PAGE_LOADS];
    char *home[PAGE_LOADS], *own[PAGE_LOADS];
#pragma unroll
    for (int n = 0; n < PAGE_LOADS; n++) {
        unsigned vector = first + n * ckv::WARP;
        vector_place place = place_of(v, vector);
        int64_t token = first_token + place.token;
        bool real = vector < vectors && token < pages.tokens;
        char *plane = static_cast<char *>(tensor_plane) + place.head * pages.head_stride +
                      static_cast<int64_t>(place.within) * static_cast<int64_t>(sizeof(VECTOR));
        home[n] = real ? in_slot(pages, plane, pages.home[token]) : nullptr;
        own[n] = real ? in_slot(pages, plane, pages.own[token]) : nullptr;
        if (real)
            held[n] = slice[vector];
    }
#pragma unroll
    for (int n = 0; n < PAGE_LOADS; n++) {
        if (home[n] != nullptr)
            *reinterpret_cast<VECTOR *>(home[n]) = held[n];
        if (own[n] != nullptr)
            *reinterpret_cast<VECTOR *>(own[n]) = held[n];
    }
}

/* What came from `rank`, on to the pages: of a peer, what this block's namesake there has sent; of this rank, what the
 * same threads have just moved. */
template <typename VECTOR>
__device__ void fill_pages(const ckv_exchange_peers_params &params, const vector_plan &plan, int rank, unsigned block,
                           unsigned blocks)
{
    for_each_tile(params, plan, rank, block, blocks, [&](int i, unsigned first, unsigned vectors) {
        const ckv_peer_tensor &tensor = params.tensors[i];
        if (tensor.plane == nullptr)
            return;
        const VECTOR *slice = slice_of<VECTOR>(params, tensor, params.rank, rank);
#pragma unroll 1
        for (unsigned n = 0; n < LOADS; n += PAGE_LOADS)
            page_vectors(params.pages, tensor.plane, plan.tensors[i], slice, ckv_peer_first_token(&params, rank),
                         first + n * ckv::WARP, vectors);
    });
}

/* What the first `remote_blocks` blocks do: all that concerns other ranks. */
template <typename VECTOR, bool PULL>
__device__ void serve_peers(const ckv_exchange_peers_params &params, const vector_plan &plan)
{
    uint32_t epoch = *static_cast<volatile uint32_t *>(params.meeting.epochs + blockIdx.x) + 1;
    for (int step = 1; !PULL && step < params.ranks; step++)
        move_slices<VECTOR, PULL>(params, plan, (params.rank + step) % params.ranks, blockIdx.x, plan.remote_blocks);
    __syncthreads();
    arrive(params, epoch);
    bool there = await_peers(params, epoch);
    for (int step = 1; there && step < params.ranks; step++) {
        int peer = (params.rank + step) % params.ranks;
        if (PULL)
            move_slices<VECTOR, PULL>(params, plan, peer, blockIdx.x, plan.remote_blocks);
        else if (params.pages.tokens > 0)
            fill_pages<VECTOR>(params, plan, peer, blockIdx.x, plan.remote_blocks);
    }
    if (threadIdx.x == 0)
        params.meeting.epochs[blockIdx.x] = epoch;
}

/* Grid: remote blocks and then local ones in one dimension, as many on every rank; block: THREADS; no shared memory.
 * Both sides and all strides aligned to VECTOR. Every vector is read and written by one thread of the grid. The next
 * launch may take its place while this one runs; it waits for the end. */
template <typename VECTOR, bool PULL>
__global__ void __launch_bounds__(THREADS, 2)
    exchange(const __grid_constant__ ckv_exchange_peers_params params, const __grid_constant__ vector_plan plan)
{
    ckv::await_earlier_launch();
    ckv::let_later_launch_start();
    if (blockIdx.x < plan.remote_blocks) {
        serve_peers<VECTOR, PULL>(params, plan);
        return;
    }
    unsigned block = blockIdx.x - plan.remote_blocks, blocks = gridDim.x - plan.remote_blocks;
    move_slices<VECTOR, PULL>(params, plan, params.rank, block, blocks);
    if (!PULL && params.pages.tokens > 0)
        fill_pages<VECTOR>(params, plan, params.rank, block, blocks);
}

using exchange_kernel = void (*)(ckv_exchange_peers_params, vector_plan);
const exchange_kernel kernels[2][ckv::NUM_VECTORS] = {
    {exchange<uint4, false>, exchange<uint2, false>, exchange<uint32_t, false>, exchange<uint16_t, false>,
     exchange<uint8_t, false>},
    {exchange<uint4, true>, exchange<uint2, true>, exchange<uint32_t, true>, exchange<uint16_t, true>,
     exchange<uint8_t, true>}};

/* Alike on every rank, so in bytes of the widest vectors, and of the rank that has most. */
int64_t blocks_of(const ckv_exchange_peers_params *params)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < params->num_tensors; i++)
        bytes += ckv_peer_tokens(params, 0) * params->tensors[i].slice_heads * params->tensors[i].row_bytes;
    int64_t blocks =
        ckv::ceil_div(bytes * params->ranks, int64_t{THREADS} * LOADS * static_cast<int64_t>(sizeof(uint4)));
    return blocks < 2 ? 2 : blocks < BLOCKS ? blocks : int64_t{BLOCKS};
}

/* The own slice takes a quarter of the blocks that its share of the bytes would: memory is that much faster than links,
 * and more blocks than this do not make the links faster. */
int64_t remote_blocks_of(const ckv_exchange_peers_params *params, int64_t blocks)
{
    int64_t local = blocks * 16 / (33 * params->ranks);
    return blocks - (local > 1 ? local : 1);
}

/* Everything that must be aligned, as one number. */
uint64_t alignment_bits(const ckv_exchange_peers_params *params)
{
    uint64_t all = 0;
    for (int64_t i = 0; i < params->num_tensors; i++) {
        const ckv_peer_tensor &tensor = params->tensors[i];
        all |= ckv::bits(tensor.shard) | ckv::bits(tensor.token_stride_bytes) | ckv::bits(tensor.head_stride_bytes) |
               ckv::bits(tensor.offset_bytes) | ckv::bits(tensor.row_bytes) | ckv::bits(tensor.plane);
    }
    const ckv_peer_pages &pages = params->pages;
    return all | ckv::bits(pages.page_stride) | ckv::bits(pages.head_stride) | ckv::bits(pages.slot_stride);
}

} // namespace

ckv_status ckv_exchange_peers_cuda(const ckv_exchange_peers_params *params, ckv_stream stream)
{
    int row = ckv::vector_row(alignment_bits(params));
    int64_t blocks = blocks_of(params);
    vector_plan plan{};
    plan.remote_blocks = static_cast<unsigned>(remote_blocks_of(params, blocks));
    for (int64_t i = 0; i < params->num_tensors; i++) {
        const ckv_peer_tensor &tensor = params->tensors[i];
        int64_t row_vectors = tensor.row_bytes / ckv::vector_bytes(row),
                slice_vectors = tensor.slice_heads * row_vectors;
        int64_t vectors = (ckv_peer_tokens(params, 0) + 1) * slice_vectors;
        if (vectors > INT32_MAX - TILE_VECTORS)
            return ckv_fail(CKV_ERROR_UNSUPPORTED,
                            "exchange_peers: %" PRId64 " vectors of %" PRId64 " bytes between two ranks are too many",
                            vectors, ckv::vector_bytes(row));
        plan.tensors[i].row_count = static_cast<unsigned>(row_vectors);
        plan.tensors[i].slice_count = static_cast<unsigned>(slice_vectors);
        plan.tensors[i].row = ckv::divisor_of(plan.tensors[i].row_count);
        plan.tensors[i].slice = ckv::divisor_of(plan.tensors[i].slice_count);
    }
    cudaLaunchAttribute attribute{};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    CKV_TRY(ckv::allow_overlap(&config, &attribute));
    return ckv_cuda_status(cudaLaunchKernelEx(&config, kernels[params->pull != 0][row], *params, plan),
                           "exchange_peers: launch");
}
