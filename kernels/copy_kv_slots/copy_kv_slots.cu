/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/copy_kv_slots/copy_kv_slots.h"

#include "kernels/common/slot_check.cuh"
#include "kernels/common/slot_copy.cuh"

namespace
{

/* TILE entries are looked at together. */
enum { THREADS = 512, TILE = THREADS, WARPS = THREADS / ckv::WARP, BLOCKS_PER_SM = 2 };

/* The tile's used entries, dense and in order. */
struct tile_entries {
    ckv::slot_copy copy[TILE];
    int warp_count[WARPS];
};

/* Fill `entries`; the number of them. All threads of the block. */
__device__ unsigned take_tile(const ckv::slot_copier &copier, const int64_t *source, const int64_t *destination,
                              int64_t remaining, tile_entries *entries)
{
    int64_t from = threadIdx.x < remaining ? source[threadIdx.x] : -1;
    int64_t to = threadIdx.x < remaining ? destination[threadIdx.x] : -1;
    bool used = ckv::is_slot(copier, from) && ckv::is_slot(copier, to);
    unsigned warp = threadIdx.x / ckv::WARP, lane = threadIdx.x % ckv::WARP;
    unsigned used_lanes = __ballot_sync(~0u, used);
    if (lane == 0)
        entries->warp_count[warp] = __popc(used_lanes);
    __syncthreads();
    int before = 0, total = 0;
    for (unsigned w = 0; w < WARPS; w++) {
        before += w < warp ? entries->warp_count[w] : 0;
        total += entries->warp_count[w];
    }
    if (used)
        entries->copy[before + __popc(used_lanes & ((1u << lane) - 1))] = {ckv::slot_offset(copier, from),
                                                                           ckv::slot_offset(copier, to)};
    __syncthreads();
    return static_cast<unsigned>(total);
}

/* Grid: as many blocks as run at once, whatever the work; block: THREADS in one dimension; shared memory: 8 KB, static.
 * Base and strides aligned to VECTOR. Unused entries cost nothing: the used ones of a tile are shared out among all
 * warps of the grid, few to warps of different blocks. */
template <typename VECTOR>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    copy_listed(const __grid_constant__ ckv::slot_copier copier, const int64_t *source, const int64_t *destination,
                int64_t entries)
{
    __shared__ tile_entries tile;
    ckv::copy_share share =
        ckv::take_share(copier, threadIdx.x / ckv::WARP * gridDim.x + blockIdx.x, gridDim.x * WARPS);
    for (int64_t first = 0; first < entries; first += TILE) {
        unsigned used = take_tile(copier, source + first, destination + first, entries - first, &tile);
        ckv::copy_slots<VECTOR>(copier, share, used, [](unsigned n) { return tile.copy[n]; });
        __syncthreads(); /* nobody reads the tile any more */
    }
}

using copy_kernel = void (*)(ckv::slot_copier, const int64_t *, const int64_t *, int64_t);
const copy_kernel kernels[ckv::NUM_VECTORS] = {copy_listed<uint4>, copy_listed<uint2>, copy_listed<uint32_t>,
                                               copy_listed<uint16_t>, copy_listed<uint8_t>};

} // namespace

ckv_status ckv_copy_kv_slots_cuda(const ckv_copy_kv_slots_params *params, ckv_stream stream)
{
    if (params->entries <= 0)
        return CKV_OK;
    const ckv_pool_view &pool = params->pool;
    const ckv_slot_list list = {params->entries, params->source, params->destination, 0, 1};
    CKV_TRY(ckv_slot_check_cuda(&params->check, &list, 1, pool.total_pages * params->tokens_per_page, true, stream));
    ckv::slot_copier copier;
    CKV_TRY(ckv::make_slot_copier(pool, params->tokens_per_page, params->layers, params->kv_heads, params->row_bytes,
                                  &copier));
    int processors;
    CKV_TRY(ckv::multiprocessors(&processors));
    unsigned blocks = static_cast<unsigned>(processors * BLOCKS_PER_SM);
    kernels[ckv::copy_vector_row(pool, params->row_bytes)]<<<blocks, THREADS, 0, stream>>>(
        copier, params->source, params->destination, params->entries);
    return ckv_cuda_status(cudaGetLastError(), "copy_kv_slots: launch");
}
