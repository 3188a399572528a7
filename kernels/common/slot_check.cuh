/* SPDX-License-Identifier: Apache-2.0 */
/* Checked mode on a GPU: slot_check.h around a launch of a kernel that writes slots. */
#ifndef CKV_KERNELS_SLOT_CHECK_CUH
#define CKV_KERNELS_SLOT_CHECK_CUH

#include "kernels/common/slot_check.h"

/* Enqueue the search of faults in the lists of one launch; the first ever found stays in check->fault. Nothing is
 * enqueued when unchecked. `source_slots`: sources are slots, and must be inside the pool as well. */
ckv_status ckv_slot_check_cuda(const ckv_slot_check *check, const ckv_slot_list *lists, int num_lists,
                               int64_t num_slots, bool source_slots, ckv_stream stream);

#endif
