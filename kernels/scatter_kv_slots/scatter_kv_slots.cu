/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"

#include "kernels/common/launch.cuh"
#include "kernels/common/slot_check.cuh"
#include "lib/layout/pages.h"

namespace
{

/* A thread has LOADS vectors of K and as many of V on their way: 48 KB a multiprocessor at common sizes, in one wave
 * that leaves room for the next launch to come up. */
enum { THREADS = 256, LOADS = 2 };

/* Where the vectors of one thread lie, in bytes from K and V of a token and from a slot; the first `count` exist. */
struct thread_vectors {
    int64_t k[LOADS], v[LOADS], plane[LOADS];
    int count;
};

template <typename VECTOR>
__device__ thread_vectors take_vectors(const ckv_scatter_kv_slots_params &params, unsigned first, unsigned row_vectors)
{
    thread_vectors vectors;
    vectors.count = 0;
    for (int n = 0; n < LOADS; n++) {
        unsigned vector = first + n * blockDim.x;
        unsigned head = vector / row_vectors;
        int64_t within = static_cast<int64_t>(vector - head * row_vectors) * sizeof(VECTOR);
        vectors.k[n] = head * params.k_head_stride + within;
        vectors.v[n] = head * params.v_head_stride + within;
        vectors.plane[n] = head * params.head_stride + within;
        vectors.count += head < params.kv_heads;
    }
    return vectors;
}

template <typename VECTOR> __device__ void read_vectors(const void *token, const int64_t *at, int count, VECTOR *held)
{
#pragma unroll
    for (int n = 0; n < LOADS; n++)
        if (token != nullptr && n < count)
            held[n] = *reinterpret_cast<const VECTOR *>(static_cast<const char *>(token) + at[n]);
}

template <typename VECTOR>
__device__ void write_vectors(void *plane, int64_t slot_offset, const int64_t *at, int count, const VECTOR *held)
{
#pragma unroll
    for (int n = 0; n < LOADS; n++)
        if (n < count)
            *reinterpret_cast<VECTOR *>(static_cast<char *>(plane) + slot_offset + at[n]) = held[n];
}

template <typename VECTOR>
__device__ void write_slot(const ckv_scatter_kv_slots_params &params, int64_t slot, const thread_vectors &vectors,
                           const VECTOR *k, const VECTOR *v)
{
    if (slot < 0 || slot >= params.num_slots)
        return;
    int64_t offset = ckv_page_of(slot, params.tokens_per_page) * params.page_stride +
                     ckv_in_page(slot, params.tokens_per_page) * params.slot_stride;
    if (params.k != nullptr)
        write_vectors(params.k_plane, offset, vectors.plane, vectors.count, k);
    if (params.v != nullptr)
        write_vectors(params.v_plane, offset, vectors.plane, vectors.count, v);
}

template <typename VECTOR>
__device__ void scatter_entry(const ckv_scatter_kv_slots_params &params, int64_t entry, const thread_vectors &vectors)
{
    int64_t slot = params.destination[entry];
    int64_t slot2 = params.destination2 != nullptr ? params.destination2[entry] : -1;
    int64_t token = params.source_index != nullptr ? params.source_index[entry] : entry;
    VECTOR k[LOADS], v[LOADS];
    const char *k_token = static_cast<const char *>(params.k), *v_token = static_cast<const char *>(params.v);
    if (k_token != nullptr)
        k_token += token * params.k_token_stride;
    if (v_token != nullptr)
        v_token += token * params.v_token_stride;
    read_vectors(k_token, vectors.k, vectors.count, k);
    read_vectors(v_token, vectors.v, vectors.count, v);
    write_slot(params, slot, vectors, k, v);
    write_slot(params, slot2, vectors, k, v);
}

/* Grid: blocks of entries in one dimension, stepping over the rest; block: (x, y), x threads for the vectors of one
 * entry, y entries; no shared memory. Planes, sources and all strides aligned to VECTOR. A thread reads a vector of K
 * and one of V once and writes each to at most two slots; entries that share a slot write the same value. */
template <typename VECTOR>
__global__ void __launch_bounds__(THREADS)
    scatter_slots(const __grid_constant__ ckv_scatter_kv_slots_params params, unsigned row_vectors)
{
    thread_vectors vectors = take_vectors<VECTOR>(params, threadIdx.x, row_vectors);
    cudaGridDependencySynchronize(); /* nothing that another kernel writes is read, or reads is written, before this */
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
    unsigned all = static_cast<unsigned>(params.kv_heads) * row_vectors;
    for (unsigned first = threadIdx.x;;) {
        for (int64_t entry = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; entry < params.entries;
             entry += step)
            scatter_entry<VECTOR>(params, entry, vectors);
        first += LOADS * blockDim.x;
        if (first >= all)
            return;
        vectors = take_vectors<VECTOR>(params, first, row_vectors);
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
    int64_t x = ckv::ceil_div(ckv::ceil_div(vectors, LOADS), ckv::WARP) * ckv::WARP;
    if (x > THREADS)
        x = THREADS;
    cudaLaunchAttribute attribute = ckv::overlapping();
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3(static_cast<unsigned>(x), static_cast<unsigned>(THREADS / x));
    config.gridDim = dim3(ckv::grid_of(ckv::ceil_div(params->entries, config.blockDim.y)));
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return ckv_cuda_status(cudaLaunchKernelEx(&config, kernels[row], *params, static_cast<unsigned>(row_vectors)),
                           "scatter_kv_slots: launch");
}
