/* SPDX-License-Identifier: Apache-2.0 */
/* Thread block: 8 warps of 16 packed rows each. K and V of a tile of keys are gathered, vector by vector, into shared
 * memory; what is past the row's end or past head_dim comes as zeros. Plain and correct; no copy overlaps with the
 * products, and nothing is shared out further than a thread block a tile of rows. */
#include "kernels/common/launch.cuh"
#include "kernels/paged_attention/codes.cuh"
#include "kernels/paged_attention/fragment.cuh"

namespace
{

using namespace ckv;

enum { KEYS = 64, THREADS = TILE_ROWS / 16 * WARP };

template <typename T> __device__ __forceinline__ void multiply(float *d, const uint32_t *a, uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ __forceinline__ void multiply<__half>(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices, transposed; lane l names row l % 8 of matrix l / 8. */
__device__ __forceinline__ void load_transposed(uint32_t (&b)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
}

/* A tile of K or V; rows are padded by a vector so that a column of them lies in different banks. */
template <int DIM> struct tile_memory {
    static constexpr int ROW = DIM + 8;
    alignas(16) uint16_t k[KEYS][ROW], v[KEYS][ROW];
};

/* Eight elements of K or V as T, `column` a multiple of eight. */
template <typename T, bool CODES> __device__ __forceinline__ uint4 load_vector(const char *row, int column)
{
    if constexpr (CODES)
        return widen<T>(*reinterpret_cast<const uint2 *>(row + column));
    else
        return *reinterpret_cast<const uint4 *>(row + column * 2);
}

template <typename T, int DIM, bool CODES>
__device__ __forceinline__ void load_tile(const ckv_paged_attention_params &call, const attention_tile &tile, int first,
                                          tile_memory<DIM> *memory)
{
    constexpr int VECTORS = DIM / 8;
    const int32_t *pages = call.rows + static_cast<int64_t>(tile.block) * call.row_pages;
    for (int i = threadIdx.x; i < KEYS * VECTORS; i += THREADS) {
        const int slot = i / VECTORS, column = i % VECTORS * 8, key = first + slot;
        uint4 k{}, v{};
        if (key < tile.keys && column < call.head_dim) {
            const char *source = static_cast<const char *>(call.kv) +
                                 pages[key / call.tokens_per_page] * call.page_stride +
                                 tile.kv_head * call.head_stride + key % call.tokens_per_page * call.slot_stride;
            k = load_vector<T, CODES>(source, column);
            v = load_vector<T, CODES>(source + call.kv_stride, column);
        }
        *reinterpret_cast<uint4 *>(&memory->k[slot][column]) = k;
        *reinterpret_cast<uint4 *>(&memory->v[slot][column]) = v;
    }
}

/* The warp's 16 rows of Q as first operands. */
template <typename T, int DIM>
__device__ __forceinline__ void load_queries(const ckv_paged_attention_params &call, const attention_tile &tile,
                                             uint32_t (&queries)[DIM / 16][4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = tile.first_row + fragment_row(threadIdx.x) + 8 * r;
        const bool there = row < packed_rows(call);
        const T *source = query_row<T>(call, place_of(call, tile, there ? row : 0)) + fragment_column(threadIdx.x);
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
            queries[i / 2][r + i % 2 * 2] =
                there && 8 * i < call.head_dim ? *reinterpret_cast<const uint32_t *>(source + 8 * i) : 0;
    }
}

template <typename T, int DIM>
__device__ __forceinline__ void multiply_keys(const tile_memory<DIM> &memory, const uint32_t (&queries)[DIM / 16][4],
                                              fragment<T, KEYS, DIM> *f)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) {
        const uint16_t *row = memory.k[8 * i + lane / 4] + lane % 4 * 2;
        f->scores[4 * i] = f->scores[4 * i + 1] = f->scores[4 * i + 2] = f->scores[4 * i + 3] = 0;
#pragma unroll
        for (int j = 0; j < DIM / 16; j++)
            multiply<T>(f->scores + 4 * i, queries[j], *reinterpret_cast<const uint32_t *>(row + 16 * j),
                        *reinterpret_cast<const uint32_t *>(row + 16 * j + 8));
    }
}

template <typename T, int DIM>
__device__ __forceinline__ void multiply_values(const tile_memory<DIM> &memory, fragment<T, KEYS, DIM> *f)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) {
#pragma unroll
        for (int j = 0; j < DIM / 16; j++) {
            uint32_t b[4];
            load_transposed(b, &memory.v[16 * i + lane % 16][16 * j + lane / 16 * 8]);
            multiply<T>(f->values + 8 * j, f->weights + 4 * i, b[0], b[1]);
            multiply<T>(f->values + 8 * j + 4, f->weights + 4 * i, b[2], b[3]);
        }
    }
}

/* Grid: a thread block a tile. */
template <typename T, int DIM, bool CODES>
__global__ void __launch_bounds__(THREADS) attend(const __grid_constant__ ckv_paged_attention_params call)
{
    __shared__ tile_memory<DIM> memory;
    const attention_tile tile = tile_of(call, ceil_div_int(packed_rows(call), TILE_ROWS), blockIdx.x);
    const int thread = threadIdx.x;
    const float scale = CODES ? call.scale * call.k_scales[tile.kv_head] : call.scale;
    const float scale_log2 = scale * static_cast<float>(M_LOG2E);
    uint32_t queries[DIM / 16][4];
    fragment<T, KEYS, DIM> f;
    load_queries<T, DIM>(call, tile, queries);
    f.clear();
    for (int first = 0; first < tile.keys; first += KEYS) {
        load_tile<T, DIM, CODES>(call, tile, first, &memory);
        __syncthreads();
        multiply_keys<T, DIM>(memory, queries, &f);
        if (tile.keys - first < KEYS)
            f.mask(thread, tile.keys - first);
        f.softmax(0, scale_log2);
        f.softmax(1, scale_log2);
        f.rescale();
        multiply_values<T, DIM>(memory, &f);
        __syncthreads();
    }
    f.finish();
    const float row_scales[2] = {scale, scale};
    f.template store<T>(call, tile, thread, call.head_dim, row_scales, CODES ? call.v_scales[tile.kv_head] : 1);
}

using kernel = void (*)(ckv_paged_attention_params);
template <bool CODES>
constexpr kernel kernels[2][2] = {{attend<__nv_bfloat16, 64, CODES>, attend<__nv_bfloat16, 128, CODES>},
                                  {attend<__half, 64, CODES>, attend<__half, 128, CODES>}};

} // namespace

ckv_status ckv_paged_attention_portable_cuda(const ckv_paged_attention_params *params, ckv_stream stream)
{
    const int type = params->dtype == CKV_FP16, wide = params->head_dim > 64;
    const kernel attends = params->k_scales != nullptr ? kernels<true>[type][wide] : kernels<false>[type][wide];
    attends<<<static_cast<unsigned>(count_tiles(*params)), THREADS, 0, stream>>>(*params);
    return ckv_cuda_status(cudaGetLastError(), "paged_attention: launch");
}
