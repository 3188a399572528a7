/* SPDX-License-Identifier: Apache-2.0 */
/* What one thread holds of a tile of scores and of results, in the layout of the matrix instructions (mma.sync and
 * wgmma agree): a warp has 16 packed rows, a thread rows lane / 4 and 8 more, and of every 8 columns the two from lane
 * % 4 * 2 on. Entry 4 * i + 2 * r + c of an array: columns' eighth i, row r of the two, column c of the two. */
#ifndef CKV_KERNELS_PAGED_ATTENTION_FRAGMENT_CUH
#define CKV_KERNELS_PAGED_ATTENTION_FRAGMENT_CUH

#include "kernels/paged_attention/schedule.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

namespace ckv
{

__device__ __forceinline__ int fragment_row(int thread)
{
    return thread / 32 * 16 + thread % 32 / 4;
}

__device__ __forceinline__ int fragment_column(int thread)
{
    return thread % 4 * 2;
}

/* Two floats as the two halves of a register, the first one low. */
template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high)
{
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
template <> __device__ __forceinline__ uint32_t pack<__half>(float low, float high)
{
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The same value in the four threads of a row. */
__device__ __forceinline__ float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float row_sum(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/* A packed row's place in q, out and lse. */
struct row_place {
    int64_t token;
    int head;
};

__device__ __forceinline__ row_place place_of(const ckv_paged_attention_params &call, const attention_tile &tile,
                                              int row)
{
    const int group = call.q_heads / call.kv_heads, token = row / group;
    return {static_cast<int64_t>(tile.block) * call.block_size + token, tile.kv_head * group + row - token * group};
}

template <typename T>
__device__ __forceinline__ const T *query_row(const ckv_paged_attention_params &call, const row_place &place)
{
    return static_cast<const T *>(call.q) + place.token * call.q_token_stride + place.head * call.q_head_stride;
}

template <typename T>
__device__ __forceinline__ T *out_row(const ckv_paged_attention_params &call, const row_place &place)
{
    return static_cast<T *>(call.out) + place.token * call.out_token_stride + place.head * call.out_head_stride;
}

/* KEYS scores and DIM results of two rows; weights are rounded to T. */
template <typename T, int KEYS, int DIM> struct fragment {
    float scores[KEYS / 2], values[DIM / 2];
    uint32_t weights[KEYS / 4];
    float maximum[2], sum[2]; /* of all scores so far; of this thread's weights so far */
    float shrink[2];          /* what the tile's new maximum makes of all before */

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < DIM / 2; i++)
            values[i] = 0;
        maximum[0] = maximum[1] = -INFINITY;
        sum[0] = sum[1] = 0;
    }

    /* Keys from `keys` on count for nothing. */
    __device__ __forceinline__ void mask(int thread, int keys)
    {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            if (i / 4 * 8 + fragment_column(thread) + i % 2 >= keys)
                scores[i] = -INFINITY;
    }

    /* The tile's maximum of row r joins; weights are powers of two of scaled scores less the result, which is 0 while
     * all scores of the row are -inf. */
    __device__ __forceinline__ float take_maximum(int r, float scale_log2)
    {
        float even = maximum[r], odd = scores[2 * r + 1];
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++) {
            even = fmaxf(even, scores[4 * i + 2 * r]);
            odd = fmaxf(odd, scores[4 * i + 2 * r + 1]);
        }
        const float top = row_max(fmaxf(even, odd));
        const float offset = top == -INFINITY ? 0 : top * scale_log2;
        shrink[r] = exp2_fast(fmaf(maximum[r], scale_log2, -offset));
        maximum[r] = top;
        return offset;
    }

    /* Scores of row r become weights before rounding. */
    __device__ __forceinline__ void weigh(int r, float scale_log2, float offset)
    {
        float even = sum[r] * shrink[r], odd = 0;
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++) {
            float *pair = scores + 4 * i + 2 * r;
            pair[0] = exp2_fast(fmaf(pair[0], scale_log2, -offset));
            pair[1] = exp2_fast(fmaf(pair[1], scale_log2, -offset));
            even += pair[0];
            odd += pair[1];
        }
        sum[r] = even + odd;
    }

    __device__ __forceinline__ void round_weights(int r)
    {
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
            weights[2 * i + r] = pack<T>(scores[4 * i + 2 * r], scores[4 * i + 2 * r + 1]);
    }

    /* All of it, of row r. */
    __device__ __forceinline__ void softmax(int r, float scale_log2)
    {
        weigh(r, scale_log2, take_maximum(r, scale_log2));
        round_weights(r);
    }

    /* Results follow the maximum, which moves rarely after the first tiles. */
    __device__ __forceinline__ void rescale()
    {
        if (!__any_sync(0xffffffff, shrink[0] != 1 || shrink[1] != 1))
            return;
#pragma unroll
        for (int i = 0; i < DIM / 2; i++)
            values[i] *= shrink[i / 2 % 2];
    }

    /* The sums of whole rows. */
    __device__ __forceinline__ void finish()
    {
        sum[0] = row_sum(sum[0]);
        sum[1] = row_sum(sum[1]);
    }

    /* Results of `thread` of the tile; its rows past the block's are nobody's. `scale` is that of each row's scores. */
    template <typename OUT>
    __device__ __forceinline__ void store(const ckv_paged_attention_params &call, const attention_tile &tile,
                                          int thread, int head_dim, const float (&scale)[2], float value_scale) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = tile.first_row + fragment_row(thread) + 8 * r;
            if (row >= packed_rows(call))
                continue;
            const row_place place = place_of(call, tile, row);
            OUT *out = out_row<OUT>(call, place) + fragment_column(thread);
            const float share = value_scale / sum[r];
#pragma unroll
            for (int i = 0; i < DIM / 8; i++)
                if (8 * i < head_dim)
                    *reinterpret_cast<uint32_t *>(out + 8 * i) =
                        pack<OUT>(values[4 * i + 2 * r] * share, values[4 * i + 2 * r + 1] * share);
            if (call.lse != nullptr && thread % 4 == 0)
                call.lse[place.token * call.q_heads + place.head] = fmaf(maximum[r], scale[r], logf(sum[r]));
        }
    }
};

} // namespace ckv

#endif
