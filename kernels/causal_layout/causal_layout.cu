/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/causal_layout/causal_layout_parts.h"
#include "kernels/common/launch.cuh"

namespace
{

/* A part of a causal block is written by SHARES thread blocks: at common sizes a thread writes an element or two, and
 * the launch takes a few latencies of the memory. */
enum { THREADS = 512, SHARES = 4 };

/* Read which half of the state is current, and let the last block of the grid to have done so turn it over. */
__device__ int32_t take_current(ckv_layout_state *state)
{
    __shared__ int32_t shared_current;
    if (threadIdx.x == 0)
        shared_current = *static_cast<volatile int32_t *>(&state->current);
    __syncthreads();
    int32_t current = shared_current;
    if (threadIdx.x == 0) {
        unsigned last = gridDim.x * gridDim.y - 1;
        __threadfence();                               /* the read comes before the arrival */
        if (atomicInc(&state->arrivals, last) == last) /* which sets it back to zero */
            *static_cast<volatile int32_t *>(&state->current) = 1 - current;
    }
    return current;
}

/* Grid: x is what belongs to no causal block, then every causal block of every size; y the SHARES of each part. Block:
 * THREADS in one dimension; shared memory: 4 bytes, static; every tensor aligned to its elements. Each thread block
 * reads the current progress and table and the private pages. x = 0 writes the next progress and table, staged_slots
 * and the refill lists; another x the tensors of its causal block; the last thread block to have read state->current
 * turns it over. */
__global__ void __launch_bounds__(THREADS) write_layout(const __grid_constant__ ckv_causal_layout_params params)
{
    cudaTriggerProgrammaticLaunchCompletion(); /* the copies may take their places; they wait for the end of this */
    ckv_layout_step step = ckv_layout_step_make(&params, take_current(params.state));
    int part = static_cast<int>(blockIdx.y / SHARES);
    int64_t worker = blockIdx.y % SHARES * THREADS + threadIdx.x;
    if (blockIdx.x == 0) {
        ckv_layout_write_shared(&params, &step, part, worker, SHARES * THREADS);
        return;
    }
    int64_t block = blockIdx.x - 1;
    int s = 0;
    while (block >= params.sizes[s].num_blocks)
        block -= params.sizes[s++].num_blocks;
    ckv_layout_write_block(&params, &step, &params.sizes[s], block, part, worker, SHARES * THREADS);
}

} // namespace

ckv_status ckv_causal_layout_cuda(const ckv_causal_layout_params *params, ckv_stream stream)
{
    const int64_t most = INT32_MAX / (CKV_LAYOUT_PARTS * SHARES); /* arrivals are counted in 32 bits */
    int64_t blocks = 1;
    for (int32_t s = 0; s < params->num_sizes; s++)
        blocks += params->sizes[s].num_blocks;
    if (blocks > most)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "causal_layout: %" PRId64 " causal blocks exceed a grid", blocks - 1);
    dim3 grid(static_cast<unsigned>(blocks), CKV_LAYOUT_PARTS * SHARES);
    write_layout<<<grid, THREADS, 0, stream>>>(*params);
    return ckv_cuda_status(cudaGetLastError(), "causal_layout: launch");
}
