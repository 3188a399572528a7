/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/exchange_heads/exchange_heads.h"

#include "kernels/common/launch.cuh"

namespace
{

enum { THREADS = 256 };

/* Grid: (tokens of all chunks, stepping over the rest; tensors); block: (x, y), x threads for the vectors of one token
 * of a chunk, y tokens; no shared memory. Both sides and all strides aligned to VECTOR. Every vector is read and
 * written by one thread. */
template <typename VECTOR>
__global__ void __launch_bounds__(THREADS) exchange(const __grid_constant__ ckv_exchange_heads_params params)
{
    const ckv_exchange_tensor &tensor = params.tensors[blockIdx.y];
    unsigned row_vectors = static_cast<unsigned>(tensor.row_bytes / static_cast<int64_t>(sizeof(VECTOR)));
    unsigned vectors = static_cast<unsigned>(tensor.chunk_heads) * row_vectors;
    int64_t tokens = params.chunks * tensor.chunk_tokens;
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; i < tokens; i += step) {
        int64_t chunk = i / tensor.chunk_tokens, token = i - chunk * tensor.chunk_tokens;
        char *packed = static_cast<char *>(tensor.packed) + chunk * tensor.chunk_stride_bytes +
                       token * tensor.chunk_heads * tensor.row_bytes;
        int64_t first_head = chunk * tensor.heads / params.chunks + tensor.first_head;
        char *strided = static_cast<char *>(tensor.tensor) + token * tensor.token_stride_bytes +
                        first_head * tensor.head_stride_bytes;
        for (unsigned vector = threadIdx.x; vector < vectors; vector += blockDim.x) {
            unsigned head = vector / row_vectors;
            auto *dense = reinterpret_cast<VECTOR *>(packed) + vector;
            auto *row = reinterpret_cast<VECTOR *>(strided + head * tensor.head_stride_bytes) + vector % row_vectors;
            if (params.pack)
                *dense = *row;
            else
                *row = *dense;
        }
    }
}

using exchange_kernel = void (*)(ckv_exchange_heads_params);
const exchange_kernel kernels[ckv::NUM_VECTORS] = {exchange<uint4>, exchange<uint2>, exchange<uint32_t>,
                                                   exchange<uint16_t>, exchange<uint8_t>};

} // namespace

ckv_status ckv_exchange_heads_cuda(const ckv_exchange_heads_params *params, ckv_stream stream)
{
    uint64_t all = 0;
    int64_t tokens = 0, row_bytes = 0;
    for (int64_t i = 0; i < params->num_tensors; i++) {
        const ckv_exchange_tensor &tensor = params->tensors[i];
        all |= ckv::bits(tensor.tensor) | ckv::bits(tensor.packed) | ckv::bits(tensor.token_stride_bytes) |
               ckv::bits(tensor.head_stride_bytes) | ckv::bits(tensor.chunk_stride_bytes) | ckv::bits(tensor.row_bytes);
        int64_t chunk_row_bytes = tensor.chunk_heads * tensor.row_bytes;
        if (tensor.chunk_tokens > tokens)
            tokens = tensor.chunk_tokens;
        if (chunk_row_bytes > row_bytes)
            row_bytes = chunk_row_bytes;
    }
    if (params->chunks <= 0 || tokens <= 0 || row_bytes <= 0)
        return CKV_OK;
    int row = ckv::vector_row(all);
    int64_t vectors = row_bytes / ckv::vector_bytes(row);
    if (vectors > INT32_MAX)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "exchange_heads: %" PRId64 " bytes of a token are too many", row_bytes);
    int64_t x = ckv::ceil_div(vectors, ckv::WARP) * ckv::WARP;
    if (x > THREADS)
        x = THREADS;
    dim3 block(static_cast<unsigned>(x), static_cast<unsigned>(THREADS / x));
    dim3 grid(ckv::grid_of(ckv::ceil_div(params->chunks * tokens, block.y)),
              static_cast<unsigned>(params->num_tensors));
    kernels[row]<<<grid, block, 0, stream>>>(*params);
    return ckv_cuda_status(cudaGetLastError(), "exchange_heads: launch");
}
