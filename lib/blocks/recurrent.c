/* SPDX-License-Identifier: Apache-2.0 */
/* The window of recurrent-state layers: one block holds the state after all tokens so far, snapshots hold earlier ones,
 * all other positions are holes. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>

bool ckv_state_is_snapshot(const ckv_blocks *m, const live_request *r, int64_t position)
{
    int64_t end = (position + 1) * m->tokens_per_block;
    if (!m->config.reuse || end > r->prompt)
        return false;
    bool last_full = r->prompt % m->tokens_per_block != 0 && position == r->prompt / m->tokens_per_block - 1;
    return end % m->config.snapshot_interval == 0 || (m->config.save_last_snapshot && last_full);
}

bool ckv_state_is_real(const ckv_blocks *m, const live_request *r, int64_t position)
{
    return position == ckv_ceil_div_i64(r->prompt, m->tokens_per_block) - 1 || ckv_state_is_snapshot(m, r, position);
}

int64_t ckv_state_split(const ckv_blocks *m, const live_request *r)
{
    const window_state *w = &m->windows[m->recurrent];
    const struct table *table = &r->tables[w->index];
    const int32_t *last = &table->ids[(table->positions - 1) * r->beam];
    int64_t shared = 0;
    for (int64_t beam = 1; beam < r->beam; beam++)
        shared += last[beam] == last[0];
    return shared;
}

/* The state moves to a new last position and leaves a hole. Beams that shared it part: the first keeps the block. */
void ckv_state_grow(ckv_blocks *m, live_request *r)
{
    window_state *w = &m->windows[m->recurrent];
    struct table *table = &r->tables[w->index];
    int32_t *before = table_at(r, w, table->positions - 1), *after = before + r->beam;
    table->positions++;
    for (int64_t beam = 0; beam < r->beam; beam++) {
        after[beam] = before[beam];
        if (beam == 0 || before[beam] != after[0])
            continue;
        after[beam] = ckv_block_fresh_for(m, w, r->decode_priority, r->decode_duration_ms);
        ckv_block_ref(m, w, after[beam], 1);
        w->counters.gen_alloc++;
        ckv_block_copy(m, w, before[beam], after[beam], m->tokens_per_block);
        ckv_block_unref(m, w, before[beam], 1);
    }
    for (int64_t beam = 0; beam < r->beam; beam++)
        before[beam] = NONE;
}

ckv_status ckv_state_check_rewind(const ckv_blocks *m, const live_request *r, int64_t tokens)
{
    if (r->beam > 1)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "rewind: request %" PRId64 " has recurrent state and %" PRId64 " beams",
                        r->id, r->beam);
    const struct table *table = &r->tables[m->recurrent];
    for (int64_t k = ckv_ceil_div_i64(tokens, m->tokens_per_block) - 1; k < table->positions - 1; k++)
        if (table->ids[k] != NONE)
            return ckv_fail(CKV_ERROR_STATE,
                            "rewind: request %" PRId64 " has a snapshot of its state at block %" PRId64, r->id, k);
    return CKV_OK;
}

void ckv_state_rewind(ckv_blocks *m, live_request *r, int64_t tokens)
{
    struct table *table = &r->tables[m->recurrent];
    int64_t positions = ckv_ceil_div_i64(tokens, m->tokens_per_block);
    int32_t state = table->ids[table->positions - 1];
    table->positions = positions;
    table->ids[positions - 1] = state;
}

/* Copies into the block that each beam continues in; how many. */
static int64_t carry(ckv_blocks *m, live_request *r, int64_t capacity, int64_t (*copies_out)[2])
{
    if (m->recurrent == NONE || r->kv == 0 || r->kv >= r->prompt || r->kv % m->tokens_per_block != 0)
        return 0;
    window_state *w = &m->windows[m->recurrent];
    int64_t at = r->kv / m->tokens_per_block, positions = r->tables[w->index].positions, count = 0;
    int32_t from = *table_at(r, w, at - 1), before = NONE;
    while (at < positions && *table_at(r, w, at) == NONE)
        at++;
    for (int64_t beam = 0; from != NONE && at < positions && beam < r->beam; beam++) {
        int32_t to = table_at(r, w, at)[beam];
        if (to == before)
            continue;
        before = to;
        ckv_block_copy(m, w, from, to, m->tokens_per_block);
        if (count < capacity) {
            copies_out[count][0] = from;
            copies_out[count][1] = to;
        }
        count++;
    }
    return count;
}

ckv_status ckv_blocks_carry_state(ckv_blocks *blocks, int64_t id, int64_t capacity, int64_t (*copies_out)[2],
                                  int64_t *count_out)
{
    if (count_out == NULL || (copies_out == NULL && capacity > 0))
        return ckv_fail(CKV_ERROR_INVALID, "carry_state: an _out pointer is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "carry_state"));
    live_request *r;
    ckv_status status = ckv_request_find(blocks, id, &r);
    if (status == CKV_OK)
        *count_out = carry(blocks, r, capacity, copies_out);
    return ckv_blocks_leave(blocks, status);
}

ckv_status ckv_blocks_snapshot_points(ckv_blocks *blocks, int64_t id, const ckv_blocks_request *request,
                                      int64_t capacity, int64_t *points_out, int64_t *count_out)
{
    if (count_out == NULL || (points_out == NULL && capacity > 0))
        return ckv_fail(CKV_ERROR_INVALID, "snapshot_points: an _out pointer is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "snapshot_points"));
    live_request *r;
    bool temporary;
    ckv_status status = ckv_request_borrow(blocks, id, request, &r, &temporary);
    if (status != CKV_OK)
        return ckv_blocks_leave(blocks, status);
    int64_t count = 0, step = blocks->tokens_per_block;
    for (int64_t end = step; blocks->recurrent != NONE && end < r->prompt; end += step) {
        if (end <= r->kv || !ckv_state_is_snapshot(blocks, r, end / step - 1))
            continue;
        if (count < capacity)
            points_out[count] = end;
        count++;
    }
    *count_out = count;
    if (temporary)
        ckv_request_destroy(blocks, r);
    return ckv_blocks_leave(blocks, CKV_OK);
}
