/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a request between admission and removal: context steps, tokens appended and taken back. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Context ---- */

static bool has_scratch(const ckv_blocks *m, const live_request *r)
{
    for (int32_t i = 0; i < m->num_windows; i++)
        if (r->tables[i].scratch_first < r->tables[i].scratch_end)
            return true;
    return false;
}

static ckv_status check_prefill(const ckv_blocks *m, const live_request *r, int64_t to)
{
    if (r->kv >= r->prompt)
        return ckv_fail(CKV_ERROR_STATE, "prefill: the context of request %" PRId64 " is complete", r->id);
    if (to <= r->kv || to > r->prompt)
        return ckv_fail(CKV_ERROR_INVALID,
                        "prefill: request %" PRId64 " to %" PRId64 "; it must be more than %" PRId64
                        " and at most %" PRId64,
                        r->id, to, r->kv, r->prompt);
    if (to < r->prompt && (r->gen_init || has_scratch(m, r)))
        return ckv_fail(CKV_ERROR_INVALID, "prefill: the context of request %" PRId64 " must come in one step", r->id);
    if (m->recurrent != NONE && !ckv_state_is_real(m, r, (to - 1) / m->tokens_per_block))
        return ckv_fail(CKV_ERROR_INVALID,
                        "prefill: request %" PRId64 " keeps no recurrent state at %" PRId64
                        "; steps end at its snapshot points",
                        r->id, to);
    return CKV_OK;
}

ckv_status ckv_blocks_prefill(ckv_blocks *blocks, int64_t id, int64_t to)
{
    CKV_TRY(ckv_blocks_enter(blocks, "prefill"));
    live_request *r;
    ckv_status status = ckv_request_find(blocks, id, &r);
    if (status == CKV_OK)
        status = check_prefill(blocks, r, to);
    if (status == CKV_OK) {
        r->kv = to;
        blocks->num_context -= to == r->prompt;
        if (r->snapshots != NULL && to % blocks->tokens_per_block == 0)
            r->snapshots[to / blocks->tokens_per_block - 1] = 1;
        for (int32_t i = blocks->num_windows - 1; to == r->prompt && i >= 0; i--)
            ckv_window_drop_scratch(blocks, &blocks->windows[i], r);
    }
    return ckv_blocks_leave(blocks, status);
}

/* ---- Append ---- */

/* Blocks one window hands out and gets back while tokens are appended, before any of it happens. */
typedef struct forecast {
    const ckv_blocks *m;
    const window_state *w;
    const live_request *r;
    int64_t available, positions, removed;
    int64_t tail, tail_freed; /* the position of the copied tail and the blocks its leaving will free; NONE */
} forecast;

/* Primary blocks that become free when all beams leave a position of the table. */
static int64_t freed_by(const forecast *f, int64_t position)
{
    if (position >= f->r->tables[f->w->index].positions)
        return f->r->beam;
    if (position == f->tail)
        return f->tail_freed;
    const int32_t *entry = f->r->tables[f->w->index].ids + position * f->r->beam;
    int64_t freed = 0;
    for (int64_t beam = 0; beam < f->r->beam; beam++) {
        int64_t uses = 0, before = 0;
        for (int64_t other = 0; other < f->r->beam; other++) {
            uses += entry[other] == entry[beam];
            before += other < beam && entry[other] == entry[beam];
        }
        if (entry[beam] == NONE || before > 0)
            continue;
        const block_state *b = &f->w->blocks[entry[beam]];
        freed += b->refs == uses && b->pins == 0 && b->tier == CKV_BLOCKS_PRIMARY;
    }
    return freed;
}

/* Does the block's key promise the row to others? */
static bool promises(const ckv_blocks *m, const block_state *b, int64_t row)
{
    return b->node != NONE && m->trie.nodes[b->node].count > row;
}

/* The copies that the block of the next row needs. False: no block for one. */
static bool forecast_tail(forecast *f, int64_t position, int64_t row)
{
    const int32_t *entry = f->r->tables[f->w->index].ids + position * f->r->beam;
    int64_t freed = 0;
    for (int64_t beam = 0; beam < f->r->beam; beam++) {
        const block_state *b = &f->w->blocks[entry[beam]];
        int64_t refs = b->refs;
        for (int64_t other = 0; other < beam; other++)
            refs -= entry[other] == entry[beam]; /* copied already */
        if (promises(f->m, b, row) && (refs > 1 || b->pins > 0)) {
            if (f->available-- == 0)
                return false;
            freed++;
        } else {
            freed += refs == 1 && b->pins == 0 && b->tier == CKV_BLOCKS_PRIMARY;
        }
    }
    f->tail = position;
    f->tail_freed = freed;
    return true;
}

static bool forecast_token(forecast *f, int64_t tokens)
{
    const ckv_blocks *m = f->m;
    int64_t step = m->tokens_per_block, sinks = f->w->info.sink_blocks;
    int64_t keep = f->w->recent + step + m->config.max_rewind;
    while (f->w->info.sliding && tokens - (sinks + f->removed) * step >= keep)
        f->available += freed_by(f, sinks + f->removed++);
    if ((tokens - 1) % step == 0) {
        f->positions++;
        if (!f->w->info.recurrent)
            f->available -= f->r->beam;
        else if (f->positions == f->r->tables[f->w->index].positions + 1)
            f->available -= ckv_state_split(m, f->r);
        return f->available >= 0;
    }
    bool first = tokens == f->r->num_tokens + 1;
    return !first || f->w->info.recurrent || forecast_tail(f, (tokens - 1) / step, (tokens - 1) % step);
}

static ckv_status check_append(const ckv_blocks *m, const live_request *r, int64_t num_tokens)
{
    if (m->config.geometry.cache == CKV_BLOCKS_CROSS)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "append: a cross cache does not grow");
    if (r->kv < r->prompt)
        return ckv_fail(CKV_ERROR_STATE, "append: the context of request %" PRId64 " is at %" PRId64 " of %" PRId64,
                        r->id, r->kv, r->prompt);
    if (num_tokens > m->max_seq_len - r->num_tokens)
        return ckv_fail(CKV_ERROR_CAPACITY,
                        "append: request %" PRId64 " has %" PRId64 " tokens, %" PRId64
                        " more exceed max_seq_len %" PRId64,
                        r->id, r->num_tokens, num_tokens, m->max_seq_len);
    for (int32_t i = 0; i < m->num_windows; i++) {
        const window_state *w = &m->windows[i];
        const struct table *table = &r->tables[i];
        forecast f = {m, w, r, free_count(w, CKV_BLOCKS_PRIMARY), table->positions, table->removed, NONE, 0};
        for (int64_t n = 1; n <= num_tokens; n++)
            if (!forecast_token(&f, r->num_tokens + n))
                return ckv_fail(CKV_ERROR_CAPACITY,
                                "append: window %" PRId64 " has %" PRId64 " free blocks, too few for %" PRId64
                                " tokens of request %" PRId64,
                                w->info.window, free_count(w, CKV_BLOCKS_PRIMARY), num_tokens, r->id);
    }
    return CKV_OK;
}

static int32_t fresh_for_growth(ckv_blocks *m, window_state *w, int64_t priority, int64_t duration_ms)
{
    int32_t id = ckv_block_fresh_for(m, w, priority, duration_ms);
    ckv_block_ref(m, w, id, 1);
    w->counters.gen_alloc++;
    return id;
}

/* A position behind the last one. */
static void add_position(ckv_blocks *m, window_state *w, live_request *r)
{
    struct table *table = &r->tables[w->index];
    int32_t *entry = table_at(r, w, table->positions++);
    for (int64_t beam = 0; beam < r->beam; beam++)
        entry[beam] = fresh_for_growth(m, w, r->decode_priority, r->decode_duration_ms);
}

/* The block that will receive `row` must not promise it to others: it leaves the trie, or a copy takes its place. */
static void own_tail(ckv_blocks *m, window_state *w, live_request *r, int64_t position, int64_t row)
{
    int32_t *entry = table_at(r, w, position);
    for (int64_t beam = 0; beam < r->beam; beam++) {
        int32_t id = entry[beam];
        const block_state *b = &w->blocks[id];
        if (!promises(m, b, row))
            continue;
        if (b->refs == 1 && b->pins == 0) {
            ckv_block_forget(m, w, id);
            continue;
        }
        int64_t priority, duration;
        ckv_request_retention(m, r, position, &priority, &duration);
        if (priority == NONE) {
            priority = b->priority;
            duration = b->duration_ms;
        }
        entry[beam] = fresh_for_growth(m, w, priority, duration);
        ckv_block_copy(m, w, id, entry[beam], row);
        ckv_block_unref(m, w, id, 1);
    }
}

static void append_token(ckv_blocks *m, live_request *r, int32_t token)
{
    r->kv = r->num_tokens;
    r->tokens[r->num_tokens] = token;
    if (r->extra != NULL)
        r->extra[r->num_tokens] = 0;
    int64_t row = r->num_tokens % m->tokens_per_block, position = r->num_tokens / m->tokens_per_block;
    r->num_tokens++;
    for (int32_t i = m->num_windows - 1; i >= 0; i--) {
        window_state *w = &m->windows[i];
        if (w->info.sliding)
            ckv_window_slide(m, w, r);
        if (row == 0 && w->info.recurrent)
            ckv_state_grow(m, r);
        else if (row == 0)
            add_position(m, w, r);
        else if (!w->info.recurrent)
            own_tail(m, w, r, position, row);
    }
}

static void forget_packed(live_request *r)
{
    free(r->packed);
    r->packed = NULL;
}

ckv_status ckv_blocks_append(ckv_blocks *blocks, int64_t id, const int32_t *tokens, int64_t num_tokens)
{
    if (num_tokens < 0 || (tokens == NULL && num_tokens > 0))
        return ckv_fail(CKV_ERROR_INVALID, "append: %" PRId64 " tokens, or the list is NULL", num_tokens);
    CKV_TRY(ckv_blocks_enter(blocks, "append"));
    live_request *r;
    ckv_status status = ckv_request_find(blocks, id, &r);
    if (status == CKV_OK)
        status = check_append(blocks, r, num_tokens);
    if (status == CKV_OK)
        status = ckv_request_reserve(blocks, r, r->num_tokens + num_tokens);
    if (status == CKV_OK)
        forget_packed(r);
    for (int64_t i = 0; status == CKV_OK && i < num_tokens; i++)
        append_token(blocks, r, tokens[i]);
    return ckv_blocks_leave(blocks, status);
}

/* ---- Rewind ---- */

static ckv_status check_rewind(const ckv_blocks *m, const live_request *r, int64_t n)
{
    if (m->config.geometry.cache == CKV_BLOCKS_CROSS)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "rewind: a cross cache does not shrink");
    if (n < 0 || n > r->num_tokens - r->prompt)
        return ckv_fail(CKV_ERROR_INVALID,
                        "rewind: request %" PRId64 " has %" PRId64 " tokens behind its prompt, not %" PRId64, r->id,
                        r->num_tokens - r->prompt, n);
    int64_t left = r->num_tokens - n;
    for (int32_t i = 0; n > 0 && i < m->num_windows; i++) {
        const window_state *w = &m->windows[i];
        int64_t end = (w->info.sink_blocks + r->tables[i].removed) * m->tokens_per_block;
        if (w->info.recurrent)
            CKV_TRY(ckv_state_check_rewind(m, r, left));
        if (w->info.sliding && r->tables[i].removed > 0 && end > left - w->recent)
            return ckv_fail(CKV_ERROR_STATE,
                            "rewind: request %" PRId64 " with %" PRId64 " tokens needs tokens before %" PRId64
                            ", which window %" PRId64 " has dropped; raise max_rewind",
                            r->id, left, end, w->info.window);
    }
    return CKV_OK;
}

static void pop_positions(ckv_blocks *m, window_state *w, live_request *r, int64_t positions)
{
    struct table *table = &r->tables[w->index];
    while (table->positions > positions) {
        int32_t *entry = table_at(r, w, --table->positions);
        for (int64_t beam = r->beam - 1; beam >= 0; beam--)
            ckv_block_unref(m, w, entry[beam], 1);
    }
}

static void rewind_tokens(ckv_blocks *m, live_request *r, int64_t n)
{
    if (n == 0)
        return;
    r->num_tokens -= n;
    r->kv = ckv_min_i64(r->kv, r->num_tokens);
    forget_packed(r);
    for (int32_t i = m->num_windows - 1; i >= 0; i--) {
        if (m->windows[i].info.recurrent)
            ckv_state_rewind(m, r, r->num_tokens);
        else
            pop_positions(m, &m->windows[i], r, ckv_ceil_div_i64(r->num_tokens, m->tokens_per_block));
    }
}

ckv_status ckv_blocks_rewind(ckv_blocks *blocks, int64_t id, int64_t n, int *known_out)
{
    if (known_out == NULL || n < 0)
        return ckv_fail(CKV_ERROR_INVALID, "rewind by %" PRId64 " tokens, or known_out is NULL", n);
    CKV_TRY(ckv_blocks_enter(blocks, "rewind"));
    int64_t *at = id_map_find(&blocks->by_id, (uint64_t)id);
    ckv_status status = CKV_OK;
    if (at != NULL) {
        status = check_rewind(blocks, blocks->live[*at], n);
        if (status == CKV_OK)
            rewind_tokens(blocks, blocks->live[*at], n);
    }
    if (status == CKV_OK)
        *known_out = at != NULL;
    return ckv_blocks_leave(blocks, status);
}

/* ---- Remove ---- */

ckv_status ckv_blocks_remove(ckv_blocks *blocks, int64_t id, int store, int64_t *stored_out)
{
    CKV_TRY(ckv_blocks_enter(blocks, "remove"));
    live_request *r;
    ckv_status status = ckv_request_find(blocks, id, &r);
    if (stored_out != NULL && status == CKV_OK)
        memset(stored_out, 0, (size_t)blocks->num_windows * sizeof *stored_out);
    if (status == CKV_OK && store && r->beam == 1 && blocks->recurrent == NONE)
        status = ckv_request_store(blocks, r, STORE_TAIL, stored_out, NULL);
    if (status == CKV_OK) {
        ckv_request_release(blocks, r);
        blocks->num_context -= r->kv < r->prompt;
        blocks->live[r->live_at] = blocks->live[--blocks->num_live];
        blocks->live[r->live_at]->live_at = r->live_at;
        *id_map_find(&blocks->by_id, (uint64_t)blocks->live[r->live_at]->id) = r->live_at;
        id_map_remove(&blocks->by_id, (uint64_t)id);
        ckv_request_destroy(blocks, r);
    }
    return ckv_blocks_leave(blocks, status);
}
