/* SPDX-License-Identifier: Apache-2.0 */
/* Checked mode on a GPU: slot_check.h around a launch of a kernel that writes slots. */
#ifndef CKV_KERNELS_SLOT_CHECK_CUH
#define CKV_KERNELS_SLOT_CHECK_CUH

#include "kernels/common/slot_check.h"

/* Enqueue the search of faults in the lists of one launch; the first ever found stays in check->fault. Nothing is
 * enqueued when unchecked. `source_slots`: sources are slots, and must be inside the pool as well. */
ckv_status ckv_slot_check_cuda(const ckv_slot_check *check, const ckv_slot_list *lists, int num_lists,
                               int64_t num_slots, bool source_slots, ckv_stream stream);

namespace ckv
{

enum { SLOT_LIST_DESTINATION = 0, SLOT_LIST_DESTINATION2 = 1, SLOT_LIST_SOURCE = 2 };

/* Leave a fault behind, unless there is one already or nobody checks. */
__device__ inline void report_slot(const ckv_slot_check &check, int kind, int list, int64_t entry, int64_t slot)
{
    if (check.fault == nullptr || atomicCAS(&check.fault->kind, CKV_SLOT_FAULT_NONE, kind) != CKV_SLOT_FAULT_NONE)
        return;
    check.fault->list = list;
    check.fault->entry = entry;
    check.fault->slot = slot;
}

} // namespace ckv

#endif
