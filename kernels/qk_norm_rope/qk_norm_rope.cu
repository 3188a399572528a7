/* SPDX-License-Identifier: Apache-2.0 */
extern "C" {
#include "kernels/qk_norm_rope/qk_norm_rope.h"
}

#include "kernels/common/launch.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace
{

constexpr int WARP = ckv::WARP;
constexpr int WARPS = 8;

__device__ float warp_sum(float value)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

template <typename T> __device__ float head_square_sum(const T *vector, int64_t head_dim, int lane)
{
    float sum = 0;
    for (int64_t i = lane; i < head_dim; i += WARP) {
        float x = static_cast<float>(vector[i]);
        sum += x * x;
    }
    return warp_sum(sum);
}

/* Grid: a block a token. Block: WARPS warps; a warp takes every WARPS-th head, Q then K, and its lanes the rotary
 * pairs, so that a thread reads and writes the same two elements. Shared memory: one float a warp and group, for
 * CKV_NORM_ALL. */
template <typename T> __global__ void __launch_bounds__(WARPS *WARP) qk_norm_rope(ckv_qk_norm_rope_params p)
{
    __shared__ float partial[2][WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t half = p.head_dim / 2, heads = p.q_heads + p.kv_heads;
    T *token = static_cast<T *>(p.qkv) + static_cast<int64_t>(blockIdx.x) * p.token_stride;
    const float *cosines = p.cosines + blockIdx.x * half, *sines = p.sines + blockIdx.x * half;

    if (p.norm == CKV_NORM_ALL) {
        float sums[2] = {0, 0};
        for (int64_t head = warp; head < heads; head += WARPS)
            sums[head >= p.q_heads] += head_square_sum(token + head * p.head_stride, p.head_dim, lane);
        if (lane == 0) {
            partial[0][warp] = sums[0];
            partial[1][warp] = sums[1];
        }
        __syncthreads();
    }
    for (int64_t head = warp; head < heads; head += WARPS) {
        const bool is_k = head >= p.q_heads;
        T *vector = token + head * p.head_stride;
        float sum = 0;
        if (p.norm == CKV_NORM_ALL)
            for (int i = 0; i < WARPS; i++)
                sum += partial[is_k][i];
        else
            sum = head_square_sum(vector, p.head_dim, lane);
        const int64_t normed = p.norm == CKV_NORM_ALL ? (is_k ? p.kv_heads : p.q_heads) * p.head_dim : p.head_dim;
        const float factor = rsqrtf(sum / static_cast<float>(normed) + p.epsilon);
        const float *weight = is_k ? p.k_weight : p.q_weight;
        if (weight != nullptr && p.norm == CKV_NORM_ALL)
            weight += (is_k ? head - p.q_heads : head) * p.head_dim;
        for (int64_t i = lane; i < half; i += WARP) {
            const int64_t a = p.pairs == CKV_ROPE_HALVES ? i : 2 * i,
                          b = p.pairs == CKV_ROPE_HALVES ? i + half : 2 * i + 1;
            const float x = static_cast<float>(vector[a]) * factor * (weight != nullptr ? weight[a] : 1.0f);
            const float y = static_cast<float>(vector[b]) * factor * (weight != nullptr ? weight[b] : 1.0f);
            vector[a] = static_cast<T>(x * cosines[i] - y * sines[i]);
            vector[b] = static_cast<T>(y * cosines[i] + x * sines[i]);
        }
    }
}

using kernel = void (*)(ckv_qk_norm_rope_params);
const kernel kernels[] = {qk_norm_rope<float>, qk_norm_rope<__nv_bfloat16>, qk_norm_rope<__half>}; /* by ckv_dtype */

} // namespace

ckv_status ckv_qk_norm_rope_cuda(const ckv_qk_norm_rope_params *params, ckv_stream stream)
{
    CKV_TRY(ckv_qk_norm_rope_check(params));
    if (params->tokens == 0 || params->q_heads + params->kv_heads == 0)
        return CKV_OK;
    kernels[params->dtype]<<<ckv::grid_of(params->tokens), WARPS * WARP, 0, stream>>>(*params);
    return ckv_cuda_status(cudaGetLastError(), "qk_norm_rope: launch");
}
