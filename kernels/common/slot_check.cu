/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/common/slot_check.cuh"

#include "kernels/common/launch.cuh"

namespace
{

enum { THREADS = 256, BLOCKS = 256 };

/* Grid: any, block: any, one dimension; no shared memory; 8-byte alignment. A thread takes entries one grid apart.
 * Claiming writes check.fault and check.claims, releasing (claim 0) sets the same claims back to zero. */
template <bool CLAIM>
__global__ void __launch_bounds__(THREADS)
    visit_slots(ckv_slot_check check, ckv_slot_list list, int64_t num_slots, bool source_slots)
{
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < list.entries; i += step) {
        int64_t source = list.sources != nullptr ? list.sources[i] : i;
        int64_t slot = list.destinations[i];
        if (list.skip_negatives && (source < 0 || slot < 0))
            continue;
        bool outside = slot < 0 || slot >= num_slots;
        bool source_outside = source_slots && source >= num_slots;
        if (CLAIM && (outside || source_outside))
            ckv::report_slot(check, CKV_SLOT_FAULT_OUTSIDE, outside ? list.number : ckv::SLOT_LIST_SOURCE, i,
                             outside ? slot : source);
        if (outside)
            continue;
        auto *claim = reinterpret_cast<unsigned long long *>(&check.claims[slot]);
        auto mine = static_cast<unsigned long long>(source) + 1;
        if (!CLAIM) {
            *claim = 0;
            continue;
        }
        unsigned long long holder = atomicCAS(claim, 0ull, mine);
        if (holder != 0 && holder != mine)
            ckv::report_slot(check, CKV_SLOT_FAULT_TWICE, list.number, i, slot);
    }
}

} // namespace

ckv_status ckv_slot_check_cuda(const ckv_slot_check *check, const ckv_slot_list *lists, int num_lists,
                               int64_t num_slots, bool source_slots, ckv_stream stream)
{
    if (check->fault == nullptr || check->claims == nullptr)
        return CKV_OK;
    for (int n = 0; n < num_lists; n++)
        visit_slots<true><<<BLOCKS, THREADS, 0, stream>>>(*check, lists[n], num_slots, source_slots);
    for (int n = 0; n < num_lists; n++)
        visit_slots<false><<<BLOCKS, THREADS, 0, stream>>>(*check, lists[n], num_slots, source_slots);
    return ckv_cuda_status(cudaGetLastError(), "slot_check: launch");
}
