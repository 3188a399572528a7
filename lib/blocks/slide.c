/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that leave a request: out of a sliding window, after scratch, at its end. */
#include "lib/blocks/blocks.h"

#include "lib/support/mutant.h"

/* A position becomes a hole, its blocks are released, first beam first. */
static void open_hole(ckv_blocks *m, window_state *w, live_request *r, int64_t position)
{
    int32_t *entry = table_at(r, w, position);
    for (int64_t beam = 0; beam < r->beam; beam++) {
        int32_t id = entry[beam];
        entry[beam] = NONE;
        if (id == NONE)
            continue;
        w->blocks[id].duration_ms = CKV_BLOCKS_NO_DURATION; /* it keeps its priority, for good */
        ckv_block_unref(m, w, id, 1);
    }
}

void ckv_window_slide(ckv_blocks *m, window_state *w, live_request *r)
{
    struct table *table = &r->tables[w->index];
    int64_t keep = w->recent + CKV_MUTATE(slid_one_block_early, 0, m->tokens_per_block) + m->config.max_rewind;
    while (r->num_tokens - (w->info.sink_blocks + table->removed) * m->tokens_per_block >= keep)
        open_hole(m, w, r, w->info.sink_blocks + table->removed++);
}

void ckv_window_drop_scratch(ckv_blocks *m, window_state *w, live_request *r)
{
    struct table *table = &r->tables[w->index];
    if (table->scratch_first == table->scratch_end)
        return;
    for (int64_t k = table->scratch_end - 1; k >= table->scratch_first; k--)
        open_hole(m, w, r, k);
    for (int64_t k = w->info.sink_blocks; k < table->scratch_first; k++)
        open_hole(m, w, r, k);
    table->removed = table->scratch_end - w->info.sink_blocks;
    table->scratch_first = table->scratch_end = 0;
}

void ckv_request_release(ckv_blocks *m, live_request *r)
{
    for (int32_t i = m->num_windows - 1; i >= 0; i--) {
        window_state *w = &m->windows[i];
        for (int64_t k = r->tables[i].positions - 1; k >= 0; k--) {
            for (int64_t beam = r->beam - 1; beam >= 0; beam--) {
                int32_t id = table_at(r, w, k)[beam];
                if (id != NONE)
                    ckv_block_unref(m, w, id, 1);
            }
        }
        r->tables[i].positions = 0;
    }
}
