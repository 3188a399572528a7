/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of a context that a machine runs. */
#ifndef CKV_LISTS_SELECTION_H
#define CKV_LISTS_SELECTION_H

#include "tools/lists/match.h"

typedef struct selection {
    const list_entry **entries; /* in the order of files and lines, each text once */
    size_t count;
} selection;

/* What is odd goes to log as warnings: facts that are missing or not numbers although nothing else speaks against the
 * block, and entries that are selected twice. */
selection select_entries(arena *memory, diagnostics *log, const list_context *context, const fact_set *facts,
                         bool lenient);

#endif
