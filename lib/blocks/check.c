/* SPDX-License-Identifier: Apache-2.0 */
/* Every invariant, recounted from scratch. Slow on purpose: nothing is taken from what the operations keep up to date.
 */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>

#define VIOLATED(...) ckv_fail(CKV_ERROR_INTERNAL, "blocks check: " __VA_ARGS__)

typedef struct count {
    int32_t refs, pins, listed;
} count;

/* ---- Holds ---- */

static ckv_status count_tables(const ckv_blocks *m, const window_state *w, count *counts)
{
    for (int64_t i = 0; i < m->num_live; i++) {
        const live_request *r = m->live[i];
        const struct table *table = &r->tables[w->index];
        if (table->positions != ckv_ceil_div_i64(r->num_tokens, m->tokens_per_block))
            return VIOLATED("request %" PRId64 " of %" PRId64 " tokens has %" PRId64 " positions in window %" PRId64,
                            r->id, r->num_tokens, table->positions, w->info.window);
        for (int64_t n = 0; n < table->positions * r->beam; n++) {
            int32_t id = table->ids[n];
            if (id < NONE || id >= w->total)
                return VIOLATED("request %" PRId64 " names block %d in window %" PRId64, r->id, id, w->info.window);
            if (id != NONE)
                counts[id].refs++;
        }
    }
    return CKV_OK;
}

static void count_pins(const ckv_blocks *m, const window_state *w, count *counts)
{
    for (uint64_t i = 0; i < m->pins.capacity; i++) {
        const id_map_entry *entry = &m->pins.entries[i];
        if (entry->used && entry->value >> 32 == w->index)
            counts[(uint32_t)entry->value].pins++;
    }
}

static ckv_status check_holds(const window_state *w, const count *counts)
{
    for (int32_t id = 0; id < w->total; id++) {
        const block_state *b = &w->blocks[id];
        if (b->refs != counts[id].refs || b->pins != counts[id].pins)
            return VIOLATED("block %d of window %" PRId64 " counts %d references and %d pins, there are %d and %d", id,
                            w->info.window, b->refs, b->pins, counts[id].refs, counts[id].pins);
        if (is_held(b) != (b->list == NO_LIST))
            return VIOLATED("block %d of window %" PRId64 " is %s", id, w->info.window,
                            is_held(b) ? "held and in a free list" : "neither held nor free");
        if (b->marks != 0 || b->last_partial != NONE)
            return VIOLATED("block %d of window %" PRId64 " carries marks between operations", id, w->info.window);
    }
    return CKV_OK;
}

/* ---- Lists ---- */

static ckv_status check_list(const window_state *w, int tier, int list, count *counts, int64_t *length_out)
{
    const free_lists *lists = &w->free[tier];
    int32_t before = NONE;
    int64_t length = 0;
    for (int32_t id = lists->head[list]; id != NONE; before = id, id = w->blocks[id].next, length++) {
        const block_state *b = &w->blocks[id];
        if (b->tier != tier || b->list != list || b->prev != before || counts[id].listed++ > 0)
            return VIOLATED("block %d of window %" PRId64 " is out of place in list %d of tier %d", id, w->info.window,
                            list, tier);
        if (list == EMPTY_LIST ? b->node != NONE : b->node == NONE || b->priority != list)
            return VIOLATED("block %d of window %" PRId64 " with priority %d and node %d is in list %d", id,
                            w->info.window, b->priority, b->node, list);
    }
    bool marked = (lists->nonempty[list / 64] >> list % 64 & 1) != 0;
    if (lists->tail[list] != before || marked != (length > 0))
        return VIOLATED("list %d of tier %d in window %" PRId64 " has a wrong end or mark", list, tier, w->info.window);
    *length_out = length;
    return CKV_OK;
}

static ckv_status check_lists(const window_state *w, count *counts)
{
    for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++) {
        int64_t sum = 0, length = 0;
        for (int list = 0; list < NUM_LISTS; list++) {
            CKV_TRY(check_list(w, tier, list, counts, &length));
            sum += length;
        }
        if (sum != w->free[tier].count || length != w->free[tier].empty) /* the last list is the empty one */
            return VIOLATED("tier %d of window %" PRId64 " counts %d free and %d empty blocks, there are %" PRId64
                            " and %" PRId64,
                            tier, w->info.window, w->free[tier].count, w->free[tier].empty, sum, length);
    }
    for (int32_t id = 0; id < w->total; id++)
        if (counts[id].listed != (w->blocks[id].list != NO_LIST))
            return VIOLATED("block %d of window %" PRId64 " is in %d lists", id, w->info.window, counts[id].listed);
    return CKV_OK;
}

static ckv_status check_deadlines(const window_state *w)
{
    int32_t timed = 0;
    for (int32_t id = 0; id < w->total; id++) {
        const block_state *b = &w->blocks[id];
        bool listed = b->heap_at != NONE;
        timed += listed;
        if (listed && (b->heap_at >= w->num_deadlines || w->deadlines[b->heap_at] != id || b->list == NO_LIST))
            return VIOLATED("block %d of window %" PRId64 " has a deadline out of place", id, w->info.window);
        if (listed != (b->deadline_ms != NO_DEADLINE))
            return VIOLATED("block %d of window %" PRId64 " has half a deadline", id, w->info.window);
    }
    if (timed != w->num_deadlines)
        return VIOLATED("window %" PRId64 " has %d deadlines, its blocks %d", w->info.window, w->num_deadlines, timed);
    for (int32_t at = 1; at < w->num_deadlines; at++)
        if (w->blocks[w->deadlines[at]].deadline_ms < w->blocks[w->deadlines[(at - 1) / 2]].deadline_ms)
            return VIOLATED("window %" PRId64 " has deadlines out of order", w->info.window);
    return CKV_OK;
}

/* ---- Slots ---- */

static ckv_status check_slots(const window_state *w)
{
    uint8_t *seen = calloc((uint32_t)w->total, 1);
    if (seen == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "blocks check: out of host memory");
    ckv_status status = CKV_OK;
    for (int32_t id = 0; status == CKV_OK && id < w->total; id++) {
        const block_state *b = &w->blocks[id];
        int64_t primary = w->info.blocks[CKV_BLOCKS_PRIMARY];
        bool valid = b->tier < CKV_BLOCKS_TIERS && b->slot >= 0 && b->slot < w->info.blocks[b->tier];
        int64_t at = valid ? b->slot + (b->tier == CKV_BLOCKS_HOST ? primary : 0) : 0;
        if (!valid || seen[at]++ > 0)
            status = VIOLATED("block %d of window %" PRId64 " has slot %d of tier %d, as another one or none", id,
                              w->info.window, b->slot, b->tier);
    }
    free(seen);
    return status;
}

/* ---- Trie ---- */

static ckv_status check_node(const ckv_blocks *m, int32_t node)
{
    const trie *t = &m->trie;
    const trie_node *n = &t->nodes[node];
    int32_t values = node == TRIE_ROOT ? 1 : 0;
    for (int32_t i = 0; i < m->num_windows; i++) {
        int32_t id = trie_value(t, node, i);
        if (id == NONE)
            continue;
        values++;
        if (id >= m->windows[i].total || m->windows[i].blocks[id].node != node)
            return VIOLATED("node %d names block %d, which does not name it", node, id);
    }
    if (values != n->num_values || (values == 0 && n->first_child == TRIE_NONE))
        return VIOLATED("node %d counts %d values, has %d, and %s children", node, n->num_values, values,
                        n->first_child == TRIE_NONE ? "no" : "some");
    if (node != TRIE_ROOT && n->count < t->tokens_per_block && n->first_child != TRIE_NONE)
        return VIOLATED("node %d has a partial key and children", node);
    key_view key = trie_key(t, node);
    if (node != TRIE_ROOT && trie_find(t, n->parent, &key, n->digest) != node)
        return VIOLATED("node %d is not found under its key", node);
    return CKV_OK;
}

/* Children without multimodal items are in the search tree, in order, and each knows the oldest below it. */
static ckv_status check_order(const trie *t, int32_t parent)
{
    int64_t children = 0, ordered = 0;
    int32_t before = TRIE_NONE;
    for (int32_t child = t->nodes[parent].first_child; child != TRIE_NONE; child = t->nodes[child].next_sibling)
        children += t->nodes[child].num_mm == 0;
    for (int32_t node = trie_order_first(t, parent); node != TRIE_NONE; node = trie_order_next(t, node)) {
        ordered++;
        for (int32_t i = 0; i < t->num_windows; i++)
            if (t->oldest[(int64_t)node * t->num_windows + i] != trie_order_recount(t, node, i))
                return VIOLATED("node %d does not know the oldest below it", node);
        key_view key = trie_key(t, node);
        if (t->nodes[node].parent != parent || (before != TRIE_NONE && !trie_order_precedes(t, before, &key)))
            return VIOLATED("node %d is out of order below node %d", node, parent);
        before = node;
    }
    if (ordered != children)
        return VIOLATED("%" PRId64 " children of node %d are in order, there are %" PRId64, ordered, parent, children);
    return CKV_OK;
}

static ckv_status check_trie(const ckv_blocks *m)
{
    const trie *t = &m->trie;
    int64_t live = 0;
    for (int32_t node = 0; node < t->used; node++) {
        if (node != TRIE_ROOT && t->nodes[node].parent == TRIE_NONE)
            continue;
        live += node != TRIE_ROOT;
        CKV_TRY(check_node(m, node));
        CKV_TRY(check_order(t, node));
        uint64_t last = 0;
        for (int32_t child = t->nodes[node].first_child; child != TRIE_NONE; child = t->nodes[child].next_sibling) {
            if (t->nodes[child].parent != node || t->nodes[child].serial < last)
                return VIOLATED("node %d is out of place among the children of node %d", child, node);
            last = t->nodes[child].serial;
        }
    }
    if (live != t->live)
        return VIOLATED("the trie counts %" PRId64 " nodes, there are %" PRId64, t->live, live);
    for (int32_t i = 0; i < m->num_windows; i++) {
        const window_state *w = &m->windows[i];
        for (int32_t id = 0; id < w->total; id++)
            if (w->blocks[id].node != NONE && value_of(m, w->blocks[id].node, w) != id)
                return VIOLATED("block %d of window %" PRId64 " names a node that does not name it", id,
                                w->info.window);
    }
    return CKV_OK;
}

/* ---- Requests ---- */

/* Rows still to be written belong to the request alone. */
static ckv_status check_writable(const ckv_blocks *m, const window_state *w, const live_request *r)
{
    const struct table *table = &r->tables[w->index];
    int64_t step = m->tokens_per_block, uses = r->kv < r->prompt ? r->beam : 1;
    for (int64_t k = r->kv / step; !w->info.recurrent && k < table->positions; k++) {
        for (int64_t beam = 0; beam < r->beam; beam++) {
            int32_t id = table->ids[k * r->beam + beam];
            if (id == NONE || ckv_request_is_scratch(r, w, k))
                continue;
            const block_state *b = &w->blocks[id];
            int64_t first = ckv_max_i64(r->kv - k * step, 0);
            bool writes = k * step + first < r->num_tokens;
            if (writes && b->node != NONE && m->trie.nodes[b->node].count > first)
                return VIOLATED("request %" PRId64 " will write row %" PRId64 " of block %d, which its key promises",
                                r->id, first, id);
            if (writes && b->refs > uses)
                return VIOLATED("request %" PRId64 " will write into block %d, which %d positions share", r->id, id,
                                b->refs);
        }
    }
    return CKV_OK;
}

/* What the next token attends to is there. */
static ckv_status check_reach(const ckv_blocks *m, const window_state *w, const live_request *r)
{
    const struct table *table = &r->tables[w->index];
    bool complete = r->kv >= r->prompt;
    for (int64_t k = 0; complete && k < table->positions; k++) {
        bool last = k == table->positions - 1;
        bool seen = w->info.recurrent ? last
                                      : !w->info.sliding || k < w->info.sink_blocks ||
                                            (k + 1) * m->tokens_per_block > r->num_tokens - w->recent;
        for (int64_t beam = 0; seen && beam < r->beam; beam++)
            if (table->ids[k * r->beam + beam] == NONE)
                return VIOLATED("request %" PRId64 " of %" PRId64 " tokens has a hole at %" PRId64
                                " of window %" PRId64,
                                r->id, r->num_tokens, k, w->info.window);
    }
    return CKV_OK;
}

static ckv_status check_requests(const ckv_blocks *m)
{
    int64_t context = 0;
    for (int64_t i = 0; i < m->num_live; i++) {
        const live_request *r = m->live[i];
        const int64_t *at = id_map_find(&m->by_id, (uint64_t)r->id);
        if (at == NULL || *at != i || r->live_at != i)
            return VIOLATED("request %" PRId64 " is not found under its id", r->id);
        if (r->kv < 0 || r->kv > r->num_tokens || r->prompt > r->num_tokens)
            return VIOLATED("request %" PRId64 " has %" PRId64 " tokens, %" PRId64 " of them written", r->id,
                            r->num_tokens, r->kv);
        context += r->kv < r->prompt;
        for (int32_t n = 0; n < m->num_windows; n++) {
            CKV_TRY(check_writable(m, &m->windows[n], r));
            CKV_TRY(check_reach(m, &m->windows[n], r));
        }
    }
    if (context != m->num_context)
        return VIOLATED("%" PRId64 " contexts are counted, there are %" PRId64, m->num_context, context);
    return CKV_OK;
}

static ckv_status check_counters(const ckv_blocks *m)
{
    for (int32_t i = 0; i < m->num_windows; i++) {
        const ckv_blocks_counters *c = &m->windows[i].counters;
        if (c->reused != c->full_reused + c->partial_reused || c->alloc_new > c->alloc_total)
            return VIOLATED("counters of window %" PRId64 " do not add up", m->windows[i].info.window);
    }
    if (m->records.limit >= 0 && m->records.count > m->records.limit)
        return VIOLATED("%" PRId64 " records are kept, limit %" PRId64, m->records.count, m->records.limit);
    return CKV_OK;
}

static ckv_status check_window(const ckv_blocks *m, const window_state *w)
{
    count *counts = calloc((uint32_t)w->total, sizeof *counts);
    if (counts == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "blocks check: out of host memory");
    ckv_status status = count_tables(m, w, counts);
    count_pins(m, w, counts);
    if (status == CKV_OK)
        status = check_holds(w, counts);
    if (status == CKV_OK)
        status = check_lists(w, counts);
    if (status == CKV_OK)
        status = check_deadlines(w);
    if (status == CKV_OK)
        status = check_slots(w);
    free(counts);
    return status;
}

static ckv_status check_all(const ckv_blocks *m)
{
    for (int32_t i = 0; i < m->num_windows; i++)
        CKV_TRY(check_window(m, &m->windows[i]));
    CKV_TRY(check_trie(m));
    CKV_TRY(check_requests(m));
    return check_counters(m);
}

ckv_status ckv_blocks_check(ckv_blocks *blocks)
{
    CKV_TRY(ckv_blocks_enter(blocks, "check"));
    return ckv_blocks_leave(blocks, check_all(blocks));
}
