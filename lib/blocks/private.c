/* SPDX-License-Identifier: Apache-2.0 */
/* A position of its own for every beam. */
#include "lib/blocks/blocks.h"

#include "lib/support/error.h"

#include <inttypes.h>

static bool needs_copy(const block_state *b, int64_t refs)
{
    return refs > 1 || b->pins > 0 || b->node != NONE;
}

/* Copies from the last beam on: is there a block for each when its turn comes? */
static bool suffices(const window_state *w, const int32_t *entry, int64_t beams)
{
    int64_t available = free_count(w, CKV_BLOCKS_PRIMARY);
    for (int64_t beam = beams - 1; beam >= 0; beam--) {
        const block_state *b = &w->blocks[entry[beam]];
        int64_t refs = b->refs;
        for (int64_t other = beam + 1; other < beams; other++)
            refs -= entry[other] == entry[beam];
        if (!needs_copy(b, refs))
            continue;
        if (available-- == 0)
            return false;
        available += refs == 1 && b->pins == 0 && b->tier == CKV_BLOCKS_PRIMARY;
    }
    return true;
}

static ckv_status make_private(ckv_blocks *m, window_state *w, int64_t id, int64_t index)
{
    live_request *r;
    CKV_TRY(ckv_request_find(m, id, &r));
    if (index < 0 || index >= r->tables[w->index].positions || *table_at(r, w, index) == NONE)
        return ckv_fail(CKV_ERROR_NOT_FOUND,
                        "make_private: request %" PRId64 " has no block at position %" PRId64 " of window %" PRId64, id,
                        index, w->info.window);
    if (ckv_request_is_scratch(r, w, index))
        return ckv_fail(CKV_ERROR_STATE, "make_private: position %" PRId64 " of request %" PRId64 " is scratch", index,
                        id);
    int32_t *entry = table_at(r, w, index);
    if (!suffices(w, entry, r->beam))
        return ckv_fail(CKV_ERROR_CAPACITY, "make_private: window %" PRId64 " has %" PRId64 " free blocks, too few",
                        w->info.window, free_count(w, CKV_BLOCKS_PRIMARY));
    for (int64_t beam = r->beam - 1; beam >= 0; beam--) {
        int32_t from = entry[beam];
        const block_state *b = &w->blocks[from];
        if (!needs_copy(b, b->refs))
            continue;
        entry[beam] = ckv_block_fresh_for(m, w, b->priority, b->duration_ms);
        ckv_block_ref(m, w, entry[beam], 1);
        ckv_block_copy(m, w, from, entry[beam], m->tokens_per_block);
        ckv_block_unref(m, w, from, 1);
    }
    return CKV_OK;
}

ckv_status ckv_blocks_make_private(ckv_blocks *blocks, int64_t id, int64_t wanted, int64_t index)
{
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "make_private", wanted, &w));
    return ckv_blocks_leave(blocks, make_private(blocks, w, id, index));
}
