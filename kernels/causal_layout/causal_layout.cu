/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/causal_layout/causal_layout_parts.h"
#include "kernels/common/slot_check.cuh"
#include "kernels/common/slot_copy.cuh"

#include <cstddef>

namespace
{

/* Copies take the time, so they start at once, computing from the state alone which they are, while a few more blocks
 * write the tensors: a part of a causal block is written by SHARES of them, at common sizes an element or two a thread.
 * All of them run at once. */
enum { THREADS = 512, TILE = THREADS, WARPS = THREADS / ckv::WARP, BLOCKS_PER_SM = 2, SHARES = 4 };
enum { BLOCKS_OF_PARTS = CKV_LAYOUT_PARTS * SHARES };

enum { STATE_WORDS = sizeof(ckv_layout_state) / sizeof(uint32_t) };
enum { ARRIVALS_WORD = offsetof(ckv_layout_state, arrivals) / sizeof(uint32_t) };
static_assert(static_cast<int>(STATE_WORDS) <= static_cast<int>(ckv::WARP), "a warp reads the state at once");

/* Some runs, one a lane of a warp. */
struct run_list {
    ckv_layout_run runs[ckv::WARP];
    unsigned end[ckv::WARP]; /* copies of the listed runs up to and with this one */
};

struct block_memory {
    ckv_layout_state state;
    ckv_layout_step step;
    run_list list;
    ckv::slot_copy tile[TILE];
};

/* Bring the tables near while the state is on its way: which is current is not known yet. Every block a line. */
__device__ void prefetch_tables(const ckv_causal_layout_params &params)
{
    const int64_t line = 128 / sizeof(int32_t);
    int64_t at = blockIdx.x * line;
    if (at < 2 * params.table_pages)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(params.tables + at));
    for (int32_t s = 0; s < params.num_sizes; s++)
        if (at < params.sizes[s].num_blocks * params.sizes[s].private_pages)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(params.sizes[s].private_page_ids + at));
}

/* Read the state, all of it at one time of waiting, arrive, and derive the step. One warp. */
__device__ void take_step(const ckv_causal_layout_params &params, block_memory *shared)
{
    if (threadIdx.x < STATE_WORDS) {
        const volatile uint32_t *words = reinterpret_cast<const volatile uint32_t *>(params.state);
        reinterpret_cast<uint32_t *>(&shared->state)[threadIdx.x] = words[threadIdx.x];
        if (threadIdx.x == ARRIVALS_WORD) /* after this thread's read of the same word */
            atomicInc(&params.state->arrivals, 2 * gridDim.x - 1);
    }
    __syncwarp();
    ckv_layout_step step = ckv_layout_step_make(&params, &shared->state, shared->state.arrivals >= gridDim.x);
    if (threadIdx.x == 0)
        shared->step = step;
    __syncwarp();
}

/* List runs first, first + 1, ... One warp. */
__device__ void take_runs(const ckv_causal_layout_params &params, const ckv_layout_step &step, int64_t first,
                          int64_t num_runs, run_list *list)
{
    ckv_layout_run run = {0, 0, 0, 0, 0};
    if (first + threadIdx.x < num_runs)
        run = ckv_layout_run_make(&params, &step, first + threadIdx.x);
    unsigned end = static_cast<unsigned>(run.count);
    for (unsigned distance = 1; distance < ckv::WARP; distance *= 2) {
        unsigned before = __shfl_up_sync(~0u, end, distance);
        end += threadIdx.x >= distance ? before : 0;
    }
    list->runs[threadIdx.x] = run;
    list->end[threadIdx.x] = end;
}

/* The n-th copy of the listed runs, number `entry` of all. */
__device__ ckv::slot_copy listed_copy(const ckv_causal_layout_params &params, const ckv::slot_copier &copier,
                                      const block_memory &shared, unsigned n, int64_t entry)
{
    unsigned at = 0; /* ends ascend: the first beyond n */
    for (unsigned distance = ckv::WARP / 2; distance > 0; distance /= 2)
        at += shared.list.end[at + distance - 1] <= n ? distance : 0;
    const ckv_layout_run &run = shared.list.runs[at];
    ckv_layout_copy copy =
        ckv_layout_copy_make(&params, &shared.step, &run, n - (shared.list.end[at] - static_cast<unsigned>(run.count)));
    bool inside = ckv::is_slot(copier, copy.destination);
    if (inside && ckv::is_slot(copier, copy.source))
        return {ckv::slot_offset(copier, copy.source), ckv::slot_offset(copier, copy.destination)};
    ckv::report_slot(params.check, CKV_SLOT_FAULT_OUTSIDE, inside ? ckv::SLOT_LIST_SOURCE : ckv::SLOT_LIST_DESTINATION,
                     entry, inside ? copy.source : copy.destination);
    return {-1, -1};
}

/* A warp's share of the copies. The first runs are listed. */
template <typename VECTOR>
__device__ void make_copies(const ckv_causal_layout_params &params, const ckv::slot_copier &copier,
                            const ckv::copy_share &share, block_memory *shared)
{
    int64_t num_runs = ckv_layout_num_runs(&params), done = 0;
    for (int64_t first = 0; first < num_runs; first += ckv::WARP) {
        if (first > 0) {
            __syncthreads(); /* nobody reads list or tile any more */
            if (threadIdx.x < ckv::WARP)
                take_runs(params, shared->step, first, num_runs, &shared->list);
            __syncthreads();
        }
        unsigned copies = shared->list.end[ckv::WARP - 1];
        for (unsigned n = 0; n < copies; n += TILE) {
            if (n > 0)
                __syncthreads(); /* nobody reads the tile any more */
            unsigned in_tile = copies - n < TILE ? copies - n : TILE;
            if (threadIdx.x < in_tile)
                shared->tile[threadIdx.x] =
                    listed_copy(params, copier, *shared, n + threadIdx.x, done + n + threadIdx.x);
            __syncthreads();
            ckv::copy_slots<VECTOR>(copier, share, in_tile, [&](unsigned i) { return shared->tile[i]; });
        }
        done += copies;
    }
}

/* Share `number` of the tensors: those of no causal block come first, then every causal block of every size. */
__device__ void write_share(const ckv_causal_layout_params &params, const ckv_layout_step &step, unsigned number)
{
    int64_t block = number / BLOCKS_OF_PARTS;
    int part = static_cast<int>(number % BLOCKS_OF_PARTS / SHARES);
    int64_t worker = number % SHARES * THREADS + threadIdx.x;
    if (block == 0) {
        if (part == 0 && worker == 0)
            params.state->blocks = gridDim.x;
        ckv_layout_write_shared(&params, &step, part, worker, SHARES * THREADS);
        return;
    }
    int s = 0;
    for (block--; block >= params.sizes[s].num_blocks; s++)
        block -= params.sizes[s].num_blocks;
    ckv_layout_write_block(&params, &step, &params.sizes[s], block, part, worker, SHARES * THREADS);
}

/* Grid: copy_blocks that copy, then BLOCKS_OF_PARTS for what belongs to no causal block and for every causal block, the
 * same number in every launch over a state; block: THREADS in one dimension; shared memory: 10 KB, static; every tensor
 * aligned to its elements, the pool's base and strides to VECTOR. Every block reads the current progress and table and
 * the private pages; nobody writes those. The first block of tensors writes the next progress. */
template <typename VECTOR>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    advance(const __grid_constant__ ckv_causal_layout_params params, const __grid_constant__ ckv::slot_copier copier,
            unsigned copy_blocks)
{
    __shared__ block_memory shared;
    bool copies = blockIdx.x < copy_blocks;
    unsigned warp = threadIdx.x / ckv::WARP;
    if (warp == 0) {
        take_step(params, &shared);
        if (copies)
            take_runs(params, shared.step, 0, ckv_layout_num_runs(&params), &shared.list);
    } else if (threadIdx.x == ckv::WARP) {
        prefetch_tables(params);
    }
    ckv::copy_share share = ckv::take_share(copier, warp * copy_blocks + blockIdx.x, copy_blocks * WARPS);
    __syncthreads();
    if (copies)
        make_copies<VECTOR>(params, copier, share, &shared);
    else
        write_share(params, shared.step, blockIdx.x - copy_blocks);
}

using advance_kernel = void (*)(ckv_causal_layout_params, ckv::slot_copier, unsigned);
const advance_kernel kernels[ckv::NUM_VECTORS] = {advance<uint4>, advance<uint2>, advance<uint32_t>, advance<uint16_t>,
                                                  advance<uint8_t>};

} // namespace

ckv_status ckv_causal_layout_cuda(const ckv_causal_layout_params *params, ckv_stream stream)
{
    const int64_t most = INT32_MAX / 2 / BLOCKS_OF_PARTS; /* arrivals of two launches are counted in 32 bits */
    int64_t blocks = 1 + ckv_layout_num_blocks(params);
    if (blocks > most)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "causal_layout: %" PRId64 " causal blocks exceed a grid", blocks - 1);
    ckv::slot_copier copier;
    CKV_TRY(ckv::make_slot_copier(params->pool, params->tokens_per_page, params->layers, params->kv_heads,
                                  params->row_bytes, &copier));
    int processors;
    CKV_TRY(ckv::multiprocessors(&processors));
    int64_t tensor_blocks = blocks * BLOCKS_OF_PARTS;
    int64_t copy_blocks = processors * BLOCKS_PER_SM - tensor_blocks;
    if (copy_blocks < processors)
        copy_blocks = processors;
    kernels[ckv::copy_vector_row(
        params->pool, params->row_bytes)]<<<static_cast<unsigned>(copy_blocks + tensor_blocks), THREADS, 0, stream>>>(
        *params, copier, static_cast<unsigned>(copy_blocks));
    return ckv_cuda_status(cudaGetLastError(), "causal_layout: launch");
}
