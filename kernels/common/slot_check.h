/* SPDX-License-Identifier: Apache-2.0 */
/* Checked mode of the kernels that write pool slots: a slot outside the pool, and one slot written with two values, are
 * found and named with their entry. Host twins refuse the call; on a GPU nobody waits for the answer, so the first
 * fault stays in device memory until it is read. A slot outside the pool is never written, checked or not. */
#ifndef CKV_KERNELS_SLOT_CHECK_H
#define CKV_KERNELS_SLOT_CHECK_H

#include <ckv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CKV_SLOT_FAULT_NONE = 0, CKV_SLOT_FAULT_OUTSIDE = 1, CKV_SLOT_FAULT_TWICE = 2 };

typedef struct ckv_slot_fault {
    int32_t kind;
    int32_t list; /* 0: destination, 1: destination2, 2: source */
    int64_t entry;
    int64_t slot;
} ckv_slot_fault;

typedef struct ckv_slot_check {
    ckv_slot_fault *fault; /* NULL: unchecked */
    int64_t *claims;       /* [num_slots] 1 + the source of the entry that writes a slot; zero between launches */
} ckv_slot_check;

/* One list of a launch, as the checks see it. */
typedef struct ckv_slot_list {
    int64_t entries;
    const int64_t *sources; /* what identifies an entry's value; NULL: its index */
    const int64_t *destinations;
    int32_t number;     /* for ckv_slot_fault.list */
    int skip_negatives; /* an entry with a negative source or destination is unused */
} ckv_slot_list;

/* ERROR_INVALID when two entries of the lists, or of one, write one slot from different sources. Slots must be inside
 * the pool. Nothing when the check has no claims. */
ckv_status ckv_slot_check_host(const char *kernel, const ckv_slot_check *check, const ckv_slot_list *lists,
                               int num_lists);

#ifdef __cplusplus
}
#endif
#endif
