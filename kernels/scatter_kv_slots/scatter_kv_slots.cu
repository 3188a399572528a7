/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"

#include "kernels/common/launch.cuh"
#include "kernels/common/slot_check.cuh"
#include "lib/layout/pages.h"

namespace
{

enum { THREADS = 256 };

template <typename VECTOR>
__device__ void write_slot(const ckv_scatter_kv_slots_params &params, const int64_t *list, int64_t entry,
                           int64_t offset, const VECTOR &k, const VECTOR &v)
{
    if (list == nullptr)
        return;
    int64_t slot = list[entry];
    if (slot < 0 || slot >= params.num_slots)
        return;
    offset += ckv_page_of(slot, params.tokens_per_page) * params.page_stride +
              ckv_in_page(slot, params.tokens_per_page) * params.slot_stride;
    if (params.k != nullptr)
        *reinterpret_cast<VECTOR *>(static_cast<char *>(params.k_plane) + offset) = k;
    if (params.v != nullptr)
        *reinterpret_cast<VECTOR *>(static_cast<char *>(params.v_plane) + offset) = v;
}

/* Grid: blocks of entries in one dimension, stepping over the rest; block: (x, y), x threads for the vectors of one
 * entry, y entries; no shared memory. Planes, sources and all strides aligned to VECTOR. A thread reads a vector of K
 * and one of V once and writes each to at most two slots; entries that share a slot write the same value. */
template <typename VECTOR>
__global__ void __launch_bounds__(THREADS)
    scatter_slots(const __grid_constant__ ckv_scatter_kv_slots_params params, unsigned row_vectors)
{
    unsigned vectors = static_cast<unsigned>(params.kv_heads) * row_vectors;
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
    for (int64_t entry = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; entry < params.entries;
         entry += step) {
        int64_t token = params.source_index != nullptr ? params.source_index[entry] : entry;
        const char *k_token = static_cast<const char *>(params.k) + token * params.k_token_stride;
        const char *v_token = static_cast<const char *>(params.v) + token * params.v_token_stride;
        for (unsigned vector = threadIdx.x; vector < vectors; vector += blockDim.x) {
            unsigned head = vector / row_vectors;
            int64_t within = static_cast<int64_t>(vector - head * row_vectors) * sizeof(VECTOR);
            VECTOR k = {}, v = {};
            if (params.k != nullptr)
                k = *reinterpret_cast<const VECTOR *>(k_token + head * params.k_head_stride + within);
            if (params.v != nullptr)
                v = *reinterpret_cast<const VECTOR *>(v_token + head * params.v_head_stride + within);
            int64_t offset = head * params.head_stride + within;
            write_slot(params, params.destination, entry, offset, k, v);
            write_slot(params, params.destination2, entry, offset, k, v);
        }
    }
}

using scatter_kernel = void (*)(ckv_scatter_kv_slots_params, unsigned);
const scatter_kernel kernels[ckv::NUM_VECTORS] = {scatter_slots<uint4>, scatter_slots<uint2>, scatter_slots<uint32_t>,
                                                  scatter_slots<uint16_t>, scatter_slots<uint8_t>};

/* A tensor that is left alone does not narrow the vector. */
uint64_t alignment_bits(const ckv_scatter_kv_slots_params *params)
{
    uint64_t all = ckv::bits(params->page_stride) | ckv::bits(params->head_stride) | ckv::bits(params->slot_stride) |
                   ckv::bits(params->row_bytes);
    if (params->k != nullptr)
        all |= ckv::bits(params->k_plane) | ckv::bits(params->k) | ckv::bits(params->k_token_stride) |
               ckv::bits(params->k_head_stride);
    if (params->v != nullptr)
        all |= ckv::bits(params->v_plane) | ckv::bits(params->v) | ckv::bits(params->v_token_stride) |
               ckv::bits(params->v_head_stride);
    return all;
}

} // namespace

ckv_status ckv_scatter_kv_slots_cuda(const ckv_scatter_kv_slots_params *params, ckv_stream stream)
{
    if (params->entries <= 0 || (params->k == nullptr && params->v == nullptr))
        return CKV_OK;
    const ckv_slot_list lists[] = {{params->entries, params->source_index, params->destination, 0, 0},
                                   {params->entries, params->source_index, params->destination2, 1, 0}};
    CKV_TRY(ckv_slot_check_cuda(&params->check, lists, params->destination2 != nullptr ? 2 : 1, params->num_slots,
                                false, stream));
    int row = ckv::vector_row(alignment_bits(params));
    int64_t row_vectors = params->row_bytes / ckv::vector_bytes(row);
    int64_t vectors = params->kv_heads * row_vectors;
    if (vectors > INT32_MAX)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "scatter_kv_slots: %" PRId64 " heads of %" PRId64 " bytes are too many",
                        params->kv_heads, params->row_bytes);
    int64_t x = ckv::ceil_div(vectors, ckv::WARP) * ckv::WARP;
    if (x > THREADS)
        x = THREADS;
    dim3 block(static_cast<unsigned>(x), static_cast<unsigned>(THREADS / x));
    kernels[row]<<<ckv::grid_of(ckv::ceil_div(params->entries, block.y)), block, 0, stream>>>(
        *params, static_cast<unsigned>(row_vectors));
    return ckv_cuda_status(cudaGetLastError(), "scatter_kv_slots: launch");
}
