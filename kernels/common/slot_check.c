/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/common/slot_check.h"

#include "lib/support/error.h"

#include <inttypes.h>

static int64_t source_of(const ckv_slot_list *list, int64_t entry)
{
    return list->sources != NULL ? list->sources[entry] : entry;
}

static int unused(const ckv_slot_list *list, int64_t entry)
{
    return list->skip_negatives && (list->destinations[entry] < 0 || source_of(list, entry) < 0);
}

/* The first entry whose slot another entry has claimed for another value, or -1. */
static int64_t claim(const ckv_slot_check *check, const ckv_slot_list *list)
{
    for (int64_t i = 0; i < list->entries; i++) {
        if (unused(list, i))
            continue;
        int64_t *holder = &check->claims[list->destinations[i]];
        if (*holder != 0 && *holder != 1 + source_of(list, i))
            return i;
        *holder = 1 + source_of(list, i);
    }
    return -1;
}

ckv_status ckv_slot_check_host(const char *kernel, const ckv_slot_check *check, const ckv_slot_list *lists,
                               int num_lists)
{
    if (check->claims == NULL)
        return CKV_OK;
    ckv_status status = CKV_OK;
    for (int n = 0; n < num_lists && status == CKV_OK; n++) {
        int64_t entry = claim(check, &lists[n]);
        if (entry >= 0)
            status = ckv_fail(CKV_ERROR_INVALID,
                              "%s: entry %" PRId64 " writes slot %" PRId64 ", which another entry writes with another "
                              "value",
                              kernel, entry, lists[n].destinations[entry]);
    }
    for (int n = 0; n < num_lists; n++)
        for (int64_t i = 0; i < lists[n].entries; i++)
            if (!unused(&lists[n], i))
                check->claims[lists[n].destinations[i]] = 0;
    return status;
}
