/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rotate_rows/rotate_rows.h"

#include "kernels/common/launch.cuh"

namespace
{

enum { THREADS = 256 };

/* Swap the elements of [begin, end) end for end; all threads of the block. */
template <typename WORD> __device__ void reverse(char *row, int64_t begin, int64_t end, int element_words)
{
    int64_t pairs = (end - begin) / 2;
    for (int64_t i = threadIdx.x; i < pairs; i += blockDim.x) {
        WORD *left = reinterpret_cast<WORD *>(row) + (begin + i) * element_words;
        WORD *right = reinterpret_cast<WORD *>(row) + (end - 1 - i) * element_words;
        for (int word = 0; word < element_words; word++) {
            WORD held = left[word];
            left[word] = right[word];
            right[word] = held;
        }
    }
    __syncthreads();
}

/* Grid: a block for a row, stepping over the rest; block: any number of threads up to THREADS; no shared memory. Data,
 * stride and elements aligned to WORD. A row is read and written by its block alone: reversed as a whole, then both
 * parts. 0 < shift < columns. */
template <typename WORD>
__global__ void __launch_bounds__(THREADS)
    rotate(const __grid_constant__ ckv_rotate_rows_params params, int64_t shift, int element_words)
{
    for (int64_t i = blockIdx.x; i < params.rows; i += gridDim.x) {
        char *row = static_cast<char *>(params.data) + i * params.row_stride_bytes;
        reverse<WORD>(row, 0, params.columns, element_words);
        reverse<WORD>(row, 0, shift, element_words);
        reverse<WORD>(row, shift, params.columns, element_words);
    }
}

using rotate_kernel = void (*)(ckv_rotate_rows_params, int64_t, int);
const rotate_kernel kernels[ckv::NUM_VECTORS] = {rotate<uint4>, rotate<uint2>, rotate<uint32_t>, rotate<uint16_t>,
                                                 rotate<uint8_t>};

} // namespace

ckv_status ckv_rotate_rows_cuda(const ckv_rotate_rows_params *params, ckv_stream stream)
{
    int64_t bytes = params->element_bytes;
    if (bytes < 1 || bytes > 16 || (bytes & (bytes - 1)) != 0)
        return ckv_fail(CKV_ERROR_INVALID, "rotate_rows: element_bytes is %" PRId64 "; it must be 1, 2, 4, 8 or 16",
                        bytes);
    if (params->rows < 0 || params->columns < 0)
        return ckv_fail(CKV_ERROR_INVALID, "rotate_rows: shape [%" PRId64 ", %" PRId64 "] is negative", params->rows,
                        params->columns);
    if (params->rows == 0 || params->columns <= 1)
        return CKV_OK;
    int64_t shift = params->shift % params->columns;
    if (shift < 0)
        shift += params->columns;
    if (shift == 0)
        return CKV_OK;
    int row = ckv::vector_row(ckv::bits(params->data) | ckv::bits(bytes) | ckv::bits(params->row_stride_bytes));
    int64_t threads = ckv::ceil_div(params->columns / 2, ckv::WARP) * ckv::WARP;
    if (threads > THREADS)
        threads = THREADS;
    int words = static_cast<int>(bytes / ckv::vector_bytes(row));
    kernels[row]<<<ckv::grid_of(params->rows), static_cast<unsigned>(threads), 0, stream>>>(*params, shift, words);
    return ckv_cuda_status(cudaGetLastError(), "rotate_rows: launch");
}
