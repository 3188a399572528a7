/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/copy_kv_slots/copy_kv_slots.h"

#include "kernels/common/launch.cuh"
#include "kernels/common/slot_check.cuh"
#include "lib/layout/pages.h"

namespace
{

/* TILE entries are looked at together. BLOCKS_PER_SM blocks of THREADS, each thread with LOADS vectors of 16 bytes on
 * their way, are 64 KB in flight on a multiprocessor, several times what the memory's latency needs. */
enum { THREADS = 512, TILE = THREADS, WARPS = THREADS / ckv::WARP, BLOCKS_PER_SM = 2, LOADS = 4 };
enum { GROUP = LOADS * ckv::WARP }; /* vectors a warp copies at a time */

/* What the kernel needs, in units it does not have to derive. */
struct copy_args {
    char *base;
    int64_t layer_stride, page_stride, kv_stride, head_stride, slot_stride;
    int64_t tokens_per_page, num_slots, entries;
    const int64_t *source, *destination;
    unsigned heads, row_vectors, layers;
    unsigned groups; /* of vectors in K and V of all heads of one slot and layer */
};

/* Byte offsets of the tile's used entries, dense and in order. */
struct tile_entries {
    int64_t from[TILE], to[TILE];
    int warp_count[WARPS];
};

__device__ int64_t slot_offset(const copy_args &args, int64_t slot)
{
    return ckv_page_of(slot, args.tokens_per_page) * args.page_stride +
           ckv_in_page(slot, args.tokens_per_page) * args.slot_stride;
}

/* Fill `entries`; the number of them. All threads of the block. */
__device__ unsigned take_tile(const copy_args &args, int64_t first, tile_entries *entries)
{
    int64_t i = first + threadIdx.x;
    int64_t from = i < args.entries ? args.source[i] : -1;
    int64_t to = i < args.entries ? args.destination[i] : -1;
    bool used = from >= 0 && from < args.num_slots && to >= 0 && to < args.num_slots;
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
    if (used) {
        int at = before + __popc(used_lanes & ((1u << lane) - 1));
        entries->from[at] = slot_offset(args, from);
        entries->to[at] = slot_offset(args, to);
    }
    __syncthreads();
    return static_cast<unsigned>(total);
}

/* Offsets, from a slot of a layer, of this lane's vectors of a group; -1 past the last. */
template <typename VECTOR> __device__ void take_group(const copy_args &args, unsigned group, int64_t (&offset)[LOADS])
{
    unsigned vectors = 2 * args.heads * args.row_vectors;
    for (unsigned n = 0; n < LOADS; n++) {
        unsigned vector = group * GROUP + n * ckv::WARP + threadIdx.x % ckv::WARP;
        unsigned row = vector / args.row_vectors;
        offset[n] = vector < vectors ? row / args.heads * args.kv_stride + row % args.heads * args.head_stride +
                                           static_cast<int64_t>(vector % args.row_vectors * sizeof(VECTOR))
                                     : -1;
    }
}

/* Grid: as many blocks as run at once, whatever the work; block: THREADS in one dimension; shared memory: 8 KB, static.
 * Base and strides aligned to VECTOR. A piece of work is one group of vectors of one entry in one layer; warps take
 * pieces one grid apart, entries innermost, so that unused entries cost nothing, every warp gets as many bytes, and
 * neighbouring warps work on neighbouring slots. A piece is read and written by one warp, each vector by one lane. */
template <typename VECTOR>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) copy_slots(const __grid_constant__ copy_args args)
{
    __shared__ tile_entries entries;
    cudaGridDependencySynchronize(); /* the lists may come from the kernel before */
    unsigned warps = gridDim.x * WARPS;
    unsigned pieces_of_entry = args.layers * args.groups;
    for (int64_t first = 0; first < args.entries; first += TILE) {
        unsigned used = take_tile(args, first, &entries);
        unsigned entry = blockIdx.x * WARPS + threadIdx.x / ckv::WARP, piece = 0;
        int64_t offset[LOADS];
        unsigned group_of_offset = ~0u;
        if (used > 0) {
            piece = entry / used;
            entry %= used;
        }
        for (; used > 0 && piece < pieces_of_entry; entry += warps % used, piece += warps / used) {
            if (entry >= used) {
                entry -= used;
                if (++piece >= pieces_of_entry)
                    break;
            }
            unsigned group = piece / args.layers, layer = piece - group * args.layers;
            if (group != group_of_offset)
                take_group<VECTOR>(args, group, offset);
            group_of_offset = group;
            char *layer_base = args.base + layer * args.layer_stride;
            const char *from = layer_base + entries.from[entry];
            char *to = layer_base + entries.to[entry];
            VECTOR held[LOADS];
#pragma unroll
            for (int n = 0; n < LOADS; n++)
                if (offset[n] >= 0)
                    held[n] = *reinterpret_cast<const VECTOR *>(from + offset[n]);
#pragma unroll
            for (int n = 0; n < LOADS; n++)
                if (offset[n] >= 0)
                    *reinterpret_cast<VECTOR *>(to + offset[n]) = held[n];
        }
        __syncthreads(); /* nobody reads the tile any more */
    }
}

using copy_kernel = void (*)(copy_args);
const copy_kernel kernels[ckv::NUM_VECTORS] = {copy_slots<uint4>, copy_slots<uint2>, copy_slots<uint32_t>,
                                               copy_slots<uint16_t>, copy_slots<uint8_t>};

ckv_status make_args(const ckv_copy_kv_slots_params *params, int64_t vector_bytes, copy_args *args_out)
{
    const ckv_pool_view &pool = params->pool;
    int64_t vectors = 2 * params->kv_heads * (params->row_bytes / vector_bytes);
    int64_t groups = ckv::ceil_div(vectors, GROUP);
    if (vectors > INT32_MAX || params->layers * groups > INT32_MAX)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "copy_kv_slots: %" PRId64 " layers of %" PRId64 " heads of %" PRId64 " bytes are too many",
                        params->layers, params->kv_heads, params->row_bytes);
    *args_out = {static_cast<char *>(pool.base),
                 pool.layer_stride,
                 pool.page_stride,
                 pool.kv_stride,
                 pool.head_stride,
                 pool.slot_stride,
                 params->tokens_per_page,
                 pool.total_pages * params->tokens_per_page,
                 params->entries,
                 params->source,
                 params->destination,
                 static_cast<unsigned>(params->kv_heads),
                 static_cast<unsigned>(params->row_bytes / vector_bytes),
                 static_cast<unsigned>(params->layers),
                 static_cast<unsigned>(groups)};
    return CKV_OK;
}

} // namespace

ckv_status ckv_copy_kv_slots_cuda(const ckv_copy_kv_slots_params *params, ckv_stream stream)
{
    if (params->entries <= 0)
        return CKV_OK;
    const ckv_pool_view &pool = params->pool;
    const ckv_slot_list list = {params->entries, params->source, params->destination, 0, 1};
    CKV_TRY(ckv_slot_check_cuda(&params->check, &list, 1, pool.total_pages * params->tokens_per_page, true, stream));
    int row = ckv::vector_row(ckv::bits(pool.base) | ckv::bits(pool.layer_stride) | ckv::bits(pool.page_stride) |
                              ckv::bits(pool.kv_stride) | ckv::bits(pool.head_stride) | ckv::bits(pool.slot_stride) |
                              ckv::bits(params->row_bytes));
    copy_args args;
    CKV_TRY(make_args(params, ckv::vector_bytes(row), &args));
    int processors;
    CKV_TRY(ckv::multiprocessors(&processors));
    cudaLaunchAttribute attribute = ckv::overlapping();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(processors * BLOCKS_PER_SM));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return ckv_cuda_status(cudaLaunchKernelEx(&config, kernels[row], args), "copy_kv_slots: launch");
}
