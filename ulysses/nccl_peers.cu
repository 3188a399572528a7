/* SPDX-License-Identifier: Apache-2.0 */
#include "ulysses/nccl_peers.h"

#include "lib/device/cuda_status.h"
#include "lib/support/error.h"

#if CKV_NCCL_HAS_WINDOWS
#include <cuda_runtime.h>
#include <nccl_device.h>

namespace
{

/* Grid: one block of `ranks` threads; thread r writes addresses[r]. */
__global__ void read_addresses(ncclWindow_t window, void **addresses)
{
    addresses[threadIdx.x] = ncclGetLsaPointer(window, 0, static_cast<int>(threadIdx.x));
}

} // namespace

int ckv_nccl_near_ranks(ncclComm_t comm)
{
    return ncclTeamLsa(comm).nRanks;
}

ckv_status ckv_nccl_peer_addresses(ncclWindow_t window, int ranks, void **peers_out)
{
    void **addresses = nullptr;
    size_t bytes = static_cast<size_t>(ranks) * sizeof *addresses;
    CKV_TRY(ckv_cuda_status(cudaMalloc(&addresses, bytes), "cudaMalloc"));
    read_addresses<<<1, static_cast<unsigned>(ranks)>>>(window, addresses);
    ckv_status status = ckv_cuda_status(cudaGetLastError(), "read_addresses: launch");
    if (status == CKV_OK)
        status = ckv_cuda_status(cudaMemcpy(peers_out, addresses, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    cudaFree(addresses);
    return status;
}
#endif
