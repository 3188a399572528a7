/* SPDX-License-Identifier: Apache-2.0 */
extern "C" {
#include "kernels/zero_row_tails/zero_row_tails.h"
}

#include "kernels/common/launch.cuh"

namespace
{

constexpr int THREADS = 256;

/* Grid: a thread block a causal block. Threads take vectors of the tail, heads outermost, then slots, then the vector.
 */
template <typename VECTOR>
__global__ void __launch_bounds__(THREADS)
    zero_tails(const __grid_constant__ ckv_zero_row_tails_params params, int row_vectors)
{
    const int64_t last = params.seq_len_kv[blockIdx.x] - 1;
    const int64_t page = params.rows[blockIdx.x * params.row_pages + last / params.tokens_per_page];
    const int first_slot = static_cast<int>(last & (params.tokens_per_page - 1)) + 1;
    const int slots = static_cast<int>(params.tokens_per_page) - first_slot;
    const int vectors = static_cast<int>(params.kv_heads) * slots * row_vectors;
    char *plane = static_cast<char *>(params.v_plane) + page * params.page_stride;
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        const int row = i / row_vectors;
        char *vector = plane + row / slots * params.head_stride + (first_slot + row % slots) * params.slot_stride;
        reinterpret_cast<VECTOR *>(vector)[i % row_vectors] = VECTOR{};
    }
}

using kernel = void (*)(ckv_zero_row_tails_params, int);
const kernel kernels[ckv::NUM_VECTORS] = {zero_tails<uint4>, zero_tails<uint2>, zero_tails<uint32_t>,
                                          zero_tails<uint16_t>, zero_tails<uint8_t>};

} // namespace

ckv_status ckv_zero_row_tails_cuda(const ckv_zero_row_tails_params *params, ckv_stream stream)
{
    if (params->num_blocks <= 0 || params->tokens_per_page == 1)
        return CKV_OK;
    int row =
        ckv::vector_row(ckv::bits(params->v_plane) | ckv::bits(params->page_stride) | ckv::bits(params->head_stride) |
                        ckv::bits(params->slot_stride) | ckv::bits(params->row_bytes));
    int row_vectors = static_cast<int>(params->row_bytes / ckv::vector_bytes(row));
    kernels[row]<<<ckv::grid_of(params->num_blocks), THREADS, 0, stream>>>(*params, row_vectors);
    return ckv_cuda_status(cudaGetLastError(), "zero_row_tails: launch");
}
