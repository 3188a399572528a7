/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of a small model with one mistake in its attention, padding or window: computed here from plain lists of keys,
 * so that they share nothing with the cache, the reference or the mistakes that `ckv explain` tries. */
#ifndef CKV_TESTS_SUPPORT_SLIP_TRACE_H
#define CKV_TESTS_SUPPORT_SLIP_TRACE_H

#include "tools/trace/trace.h"

/* After a prompt, every chunk has one padding row, for two ranks. */
enum {
    SLIP_Q_HEADS = 4,
    SLIP_KV_HEADS = 2,
    SLIP_DIM = 8,
    SLIP_PROMPT = 3,
    SLIP_TOKENS = 5,
    SLIP_ROWS = 6,
    SLIP_CHUNKS = 4,
    SLIP_WINDOW = 8,
    SLIP_PAGE = 4,
};

typedef enum slip {
    SLIP_NONE,
    SLIP_PADDING_READ,
    SLIP_PADDING_ZERO,
    SLIP_PADDING_LEFT,
    SLIP_COMMIT_FIRST,
    SLIP_COMMIT_ALL,
    SLIP_COMMIT_ZEROS,
    SLIP_MASKED,
    SLIP_LATE,
    SLIP_EARLY,
    SLIP_PAGE_START,
    SLIP_LATER_BLOCKS,
    SLIP_NO_CACHE,
    SLIP_SHARD_LENGTH,
    SLIP_TRANSPOSED,
    SLIP_NEIGHBOUR,
    SLIP_REVERSED,
    SLIP_GROUPS,
    SLIP_CONTEXT,
    SLIP_MISSING,
    SLIP_NONSENSE,
    SLIP_NO_PIN,
    SLIP_PIN_COUNTS,
    SLIP_OWN_COUNTS,
    SLIP_CHUNK_EARLY,
    SLIP_FIRST_WINDOW,
    SLIP_STALE_STEP, /* every chunk has two forwards: numbers double */
} slip;

/* The trace, for the caller to free; fails the case when it cannot be made. `block` is the causal block size: all
 * tokens of a chunk, or 1. */
trace *slip_trace_make(slip of, int block, bool with_expected);

/* The same as file `t` of a workplace's folder. */
void slip_trace_write(const char *folder, slip of, int block, bool with_expected);

#endif
