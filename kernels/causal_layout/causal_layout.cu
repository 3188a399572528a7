/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/causal_layout/causal_layout_parts.h"
#include "kernels/common/launch.cuh"

namespace
{

enum { THREADS = 1024 };

/* Read which half of the state is current, and let the last block of the grid to have done so turn it over. */
__device__ int32_t take_current(ckv_layout_state *state)
{
    __shared__ int32_t shared_current;
    if (threadIdx.x == 0)
        shared_current = *static_cast<volatile int32_t *>(&state->current);
    __syncthreads();
    int32_t current = shared_current;
    if (threadIdx.x == 0) {
        __threadfence(); /* the read comes before the arrival */
        if (atomicInc(&state->arrivals, gridDim.x - 1) == gridDim.x - 1)
            *static_cast<volatile int32_t *>(&state->current) = 1 - current;
    }
    return current;
}

/* Grid: one block for the shared tensors, then one for every causal block of every size; block: THREADS in one
 * dimension; shared memory: 4 bytes, static; every tensor aligned to its elements. Each block reads the current
 * progress and table and the private pages. Block 0 writes the next progress and table, staged_slots and refill lists;
 * another block the tensors of its causal block; the last block to have read state->current turns it over. */
__global__ void __launch_bounds__(THREADS) write_layout(const __grid_constant__ ckv_causal_layout_params params)
{
    cudaTriggerProgrammaticLaunchCompletion(); /* the copies may take their places; they wait for the end of this */
    ckv_layout_step step = ckv_layout_step_make(&params, take_current(params.state));
    if (blockIdx.x == 0) {
        ckv_layout_write_shared(&params, &step, threadIdx.x, THREADS);
        return;
    }
    int64_t block = blockIdx.x - 1;
    int s = 0;
    while (block >= params.sizes[s].num_blocks)
        block -= params.sizes[s++].num_blocks;
    ckv_layout_write_block(&params, &step, &params.sizes[s], block, threadIdx.x, THREADS);
}

} // namespace

ckv_status ckv_causal_layout_cuda(const ckv_causal_layout_params *params, ckv_stream stream)
{
    int64_t blocks = 1;
    for (int32_t s = 0; s < params->num_sizes; s++)
        blocks += params->sizes[s].num_blocks;
    if (blocks > INT32_MAX)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "causal_layout: %" PRId64 " causal blocks exceed a grid", blocks);
    write_layout<<<static_cast<unsigned>(blocks), THREADS, 0, stream>>>(*params);
    return ckv_cuda_status(cudaGetLastError(), "causal_layout: launch");
}
