/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"

#include "kernels/common/launch.cuh"
#include "kernels/common/slot_check.cuh"
#include "lib/layout/pages.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace
{

/* A thread has LOADS vectors of K and as many of V on their way: 48 KB a multiprocessor at common sizes, in one wave
 * that leaves room for the next launch to come up. */
enum { THREADS = 256, LOADS = 2 };

/* What becomes of a vector on its way: nothing, */
template <typename VECTOR> struct copying {
    using source = VECTOR;
    using stored = VECTOR;
    static constexpr bool SCALES = false;

    __device__ static stored convert(const source &vector, float)
    {
        return vector;
    }
};

template <int BYTES> struct bytes_of;
template <> struct bytes_of<1> {
    using type = uint8_t;
};
template <> struct bytes_of<4> {
    using type = uint32_t;
};
template <> struct bytes_of<8> {
    using type = uint2;
};

template <typename T, int COUNT> struct alignas(COUNT * sizeof(T)) elements {
    T at[COUNT];
};

/* or COUNT elements become e4m3 codes. */
template <typename T, int COUNT> struct quantising {
    using source = elements<T, COUNT>;
    using stored = typename bytes_of<COUNT>::type;
    static constexpr bool SCALES = true;

    __device__ static stored convert(const source &vector, float factor)
    {
        constexpr int PAIRS = (COUNT + 1) / 2;
        union {
            __nv_fp8x2_storage_t pairs[PAIRS];
            stored all;
        } result;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const float2 pair =
                make_float2(static_cast<float>(vector.at[2 * i]) * factor,
                            COUNT > 1 ? static_cast<float>(vector.at[COUNT > 1 ? 2 * i + 1 : 0]) * factor : 0.0f);
            result.pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
        }
        return result.all;
    }
};

/* Where the vectors of one thread lie, in bytes from K and V of a token and from a slot; the first `count` exist. */
struct thread_vectors {
    int64_t k[LOADS], v[LOADS], plane[LOADS];
    float k_factor[LOADS], v_factor[LOADS]; /* 1 / scale */
    int count;
};

/* Scales are constants while there are slots to write. */
template <typename MOVE>
__device__ thread_vectors take_vectors(const ckv_scatter_kv_slots_params &params, unsigned first, unsigned row_vectors)
{
    thread_vectors vectors;
    vectors.count = 0;
    for (int n = 0; n < LOADS; n++) {
        unsigned vector = first + n * blockDim.x;
        unsigned head = vector / row_vectors;
        int64_t within = vector - head * row_vectors;
        vectors.k[n] = head * params.k_head_stride + within * static_cast<int64_t>(sizeof(typename MOVE::source));
        vectors.v[n] = head * params.v_head_stride + within * static_cast<int64_t>(sizeof(typename MOVE::source));
        vectors.plane[n] = head * params.head_stride + within * static_cast<int64_t>(sizeof(typename MOVE::stored));
        vectors.count += head < params.kv_heads;
        const bool scales = MOVE::SCALES && head < params.kv_heads;
        vectors.k_factor[n] = scales ? 1 / params.k_scales[head] : 1;
        vectors.v_factor[n] = scales ? 1 / params.v_scales[head] : 1;
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

template <typename MOVE>
__device__ void scatter_entry(const ckv_scatter_kv_slots_params &params, int64_t entry, const thread_vectors &vectors)
{
    int64_t slot = params.destination[entry];
    int64_t slot2 = params.destination2 != nullptr ? params.destination2[entry] : -1;
    int64_t token = params.source_index != nullptr ? params.source_index[entry] : entry;
    typename MOVE::source k_read[LOADS], v_read[LOADS];
    typename MOVE::stored k[LOADS], v[LOADS];
    const char *k_token = static_cast<const char *>(params.k), *v_token = static_cast<const char *>(params.v);
    if (k_token != nullptr)
        k_token += token * params.k_token_stride;
    if (v_token != nullptr)
        v_token += token * params.v_token_stride;
    read_vectors(k_token, vectors.k, vectors.count, k_read);
    read_vectors(v_token, vectors.v, vectors.count, v_read);
#pragma unroll
    for (int n = 0; n < LOADS; n++) { /* behind all reads, so that they are in flight together */
        k[n] = MOVE::convert(k_read[n], vectors.k_factor[n]);
        v[n] = MOVE::convert(v_read[n], vectors.v_factor[n]);
    }
    write_slot(params, slot, vectors, k, v);
    write_slot(params, slot2, vectors, k, v);
}

/* Grid: blocks of entries in one dimension, stepping over the rest; block: (x, y), x threads for the vectors of one
 * entry, y entries; no shared memory. Sources and their strides aligned to a vector as it is read, planes and theirs as
 * it is stored. A thread reads a vector of K and one of V once and writes each to at most two slots; entries that share
 * a slot write the same value. */
template <typename MOVE>
__global__ void __launch_bounds__(THREADS)
    scatter_slots(const __grid_constant__ ckv_scatter_kv_slots_params params, unsigned row_vectors)
{
    thread_vectors vectors = take_vectors<MOVE>(params, threadIdx.x, row_vectors);
    ckv::await_earlier_launch(); /* nothing that another kernel writes is read, or reads is written, before this */
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
    unsigned all = static_cast<unsigned>(params.kv_heads) * row_vectors;
    for (unsigned first = threadIdx.x;;) {
        for (int64_t entry = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; entry < params.entries;
             entry += step)
            scatter_entry<MOVE>(params, entry, vectors);
        first += LOADS * blockDim.x;
        if (first >= all)
            return;
        vectors = take_vectors<MOVE>(params, first, row_vectors);
    }
}

struct variant {
    void (*scatter)(ckv_scatter_kv_slots_params, unsigned);
    int64_t stored_bytes; /* of a vector */
};

template <typename MOVE> constexpr variant make_variant()
{
    return {scatter_slots<MOVE>, sizeof(typename MOVE::stored)};
}

const variant copies[ckv::NUM_VECTORS] = {make_variant<copying<uint4>>(), make_variant<copying<uint2>>(),
                                          make_variant<copying<uint32_t>>(), make_variant<copying<uint16_t>>(),
                                          make_variant<copying<uint8_t>>()};

/* By ckv_dtype: 16 bytes at a time, and an element. */
const variant conversions[][2] = {
    {make_variant<quantising<float, 4>>(), make_variant<quantising<float, 1>>()},
    {make_variant<quantising<__nv_bfloat16, 8>>(), make_variant<quantising<__nv_bfloat16, 1>>()},
    {make_variant<quantising<__half, 8>>(), make_variant<quantising<__half, 1>>()}};

/* A tensor that is left alone does not narrow the vector. */
uint64_t source_bits(const ckv_scatter_kv_slots_params *params)
{
    uint64_t all = 0;
    if (params->k != nullptr)
        all |= ckv::bits(params->k) | ckv::bits(params->k_token_stride) | ckv::bits(params->k_head_stride);
    if (params->v != nullptr)
        all |= ckv::bits(params->v) | ckv::bits(params->v_token_stride) | ckv::bits(params->v_head_stride);
    return all;
}

uint64_t slot_bits(const ckv_scatter_kv_slots_params *params)
{
    uint64_t all = ckv::bits(params->page_stride) | ckv::bits(params->head_stride) | ckv::bits(params->slot_stride) |
                   ckv::bits(params->row_bytes);
    if (params->k != nullptr)
        all |= ckv::bits(params->k_plane);
    if (params->v != nullptr)
        all |= ckv::bits(params->v_plane);
    return all;
}

const variant &choose_variant(const ckv_scatter_kv_slots_params *params)
{
    if (params->k_scales == nullptr)
        return copies[ckv::vector_row(source_bits(params) | slot_bits(params))];
    const variant *of_type = conversions[params->source_dtype];
    const bool wide = source_bits(params) % 16 == 0 && slot_bits(params) % of_type[0].stored_bytes == 0;
    return of_type[wide ? 0 : 1];
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
    const variant &chosen = choose_variant(params);
    int64_t row_vectors = params->row_bytes / chosen.stored_bytes;
    int64_t vectors = params->kv_heads * row_vectors;
    if (vectors > INT32_MAX)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "scatter_kv_slots: %" PRId64 " heads of %" PRId64 " bytes are too many",
                        params->kv_heads, params->row_bytes);
    int64_t x = ckv::ceil_div(ckv::ceil_div(vectors, LOADS), ckv::WARP) * ckv::WARP;
    if (x > THREADS)
        x = THREADS;
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3(static_cast<unsigned>(x), static_cast<unsigned>(THREADS / x));
    config.gridDim = dim3(ckv::grid_of(ckv::ceil_div(params->entries, config.blockDim.y)));
    config.stream = stream;
    CKV_TRY(ckv::allow_overlap(&config, &attribute));
    return ckv_cuda_status(cudaLaunchKernelEx(&config, chosen.scatter, *params, static_cast<unsigned>(row_vectors)),
                           "scatter_kv_slots: launch");
}
