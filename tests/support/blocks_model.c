/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks, lists, trie and events of the slow block manager. */
#include "tests/support/blocks_model.h"

#include <string.h>

void bm_open(bm *m, const ckv_blocks_config *config, const ckv_blocks_window *windows, int num_windows)
{
    memset(m, 0, sizeof *m);
    m->config = *config;
    m->step = (int)config->geometry.tokens_per_block;
    m->num_windows = num_windows;
    m->recurrent = -1;
    m->next_serial = 1;
    for (int i = 0; i < num_windows; i++) {
        bm_window *w = &m->windows[i];
        w->window = windows[i].window;
        w->sliding = windows[i].sliding;
        w->recurrent = windows[i].recurrent;
        w->recent = windows[i].window - (w->sliding ? config->geometry.sink_tokens : 0);
        w->sinks = (int)windows[i].sink_blocks;
        w->block_bytes = windows[i].block_bytes;
        w->layers = (int)windows[i].num_layers;
        if (w->recurrent)
            m->recurrent = i;
        for (int tier = 0; tier < 2; tier++)
            w->counts[tier] = (int)windows[i].blocks[tier];
        w->total = w->counts[0] + w->counts[1];
        for (int b = 0; b < w->total; b++) {
            int tier = b >= w->counts[0];
            w->blocks[b] = (bm_block){.tier = tier,
                                      .slot = tier ? b - w->counts[0] : b,
                                      .priority = 35,
                                      .node = -1,
                                      .duration = -1,
                                      .deadline = -1,
                                      .order = b};
        }
    }
}

bm_request *bm_find(bm *m, int64_t id)
{
    for (int i = 0; i < BM_REQUESTS; i++)
        if (m->requests[i].used && m->requests[i].id == id)
            return &m->requests[i];
    return NULL;
}

bool bm_is_free(const bm_block *b)
{
    return b->refs == 0 && b->pins == 0 && !b->claimed;
}

int bm_count_free(const bm_window *w, int tier, bool empty_only)
{
    int count = 0;
    for (int b = 0; b < w->total; b++)
        count += bm_is_free(&w->blocks[b]) && w->blocks[b].tier == tier && !(empty_only && w->blocks[b].node >= 0);
    return count;
}

void bm_sample(bm *m)
{
    for (int i = 0; i < m->num_windows; i++)
        for (int tier = 0; tier < 2; tier++) {
            int64_t used = m->windows[i].counts[tier] - bm_count_free(&m->windows[i], tier, false);
            if (used > m->windows[i].peak_used[tier])
                m->windows[i].peak_used[tier] = used;
        }
}

/* ---- Events ---- */

static bm_event *emit(bm *m, int type, int w)
{
    bm_event *event = &m->events[m->num_events++ % BM_EVENTS];
    *event = (bm_event){.type = type, .window = w, .first = m->num_paths};
    return event;
}

static void emit_removed(bm *m, int w)
{
    bm_window *window = &m->windows[w];
    if (window->num_removed == 0)
        return;
    bm_event *event = emit(m, CKV_BLOCKS_REMOVED, w);
    for (int i = 0; i < window->num_removed; i++)
        m->paths[m->num_paths++ % BM_PATHS] = window->removed[i];
    event->count = window->num_removed;
    window->num_removed = 0;
}

void bm_flush(bm *m)
{
    for (int i = 0; i < m->num_windows; i++)
        emit_removed(m, i);
}

void bm_emit_updated(bm *m, int type, int w, int node, int64_t before, int64_t after)
{
    bm_event *event = emit(m, type, w);
    event->path = m->nodes[node].path;
    event->before = before;
    event->after = after;
}

void bm_emit_stored(bm *m, int w, const int *nodes, int count)
{
    if (count == 0)
        return;
    emit_removed(m, w);
    bm_event *event = emit(m, CKV_BLOCKS_STORED, w);
    int parent = m->nodes[nodes[0]].parent;
    event->has_parent = parent >= 0;
    event->parent = parent >= 0 ? m->nodes[parent].path : 0;
    event->count = count;
    for (int i = 0; i < count; i++) {
        const bm_block *b = &m->windows[w].blocks[m->nodes[nodes[i]].values[w]];
        int at = m->num_paths++ % BM_PATHS;
        m->paths[at] = m->nodes[nodes[i]].path;
        m->path_levels[at] = b->tier;
        m->path_priorities[at] = b->priority;
    }
}

/* ---- Trie ---- */

uint64_t bm_path(uint64_t parent, const bm_key *key)
{
    uint64_t hash = parent * 31 + 17;
    const uint64_t words[] = {(uint64_t)key->count, (uint64_t)key->space,   (uint64_t)key->num_mm,
                              key->extra_used,      (uint64_t)key->mm_hash, (uint64_t)key->mm_before};
    for (int i = 0; i < 6; i++)
        hash = (hash ^ words[i]) * 0x100000001b3u + (hash >> 41);
    for (int i = 0; i < key->count; i++) {
        hash = (hash ^ (uint32_t)key->tokens[i]) * 0x9e3779b97f4a7c15u + (hash >> 37);
        hash = (hash ^ (uint64_t)key->extra[i]) * 0x100000001b3u + (hash >> 33);
    }
    return hash;
}

bm_key bm_make_key(const bm *m, const bm_request *r, int start, int count)
{
    bm_key key = {.count = count, .space = r->space, .extra_used = r->extra_used};
    (void)m;
    for (int i = 0; i < count; i++) {
        key.tokens[i] = r->tokens[start + i];
        key.extra[i] = r->extra_used ? r->extra[start + i] : 0;
    }
    if (r->has_mm && r->mm.position < start + count && r->mm.position + r->mm.length > start) {
        key.num_mm = 1;
        key.mm_hash = (int64_t)r->mm.hash;
        key.mm_before = r->mm.position < start ? start - r->mm.position : 0;
    }
    return key;
}

bool bm_same_key(const bm_key *a, const bm_key *b)
{
    if (a->count != b->count || a->space != b->space || a->extra_used != b->extra_used || a->num_mm != b->num_mm ||
        a->mm_hash != b->mm_hash || a->mm_before != b->mm_before)
        return false;
    for (int i = 0; i < a->count; i++)
        if (a->tokens[i] != b->tokens[i] || a->extra[i] != b->extra[i])
            return false;
    return true;
}

int bm_child(const bm *m, int parent, const bm_key *key)
{
    for (int n = 0; n < m->num_nodes; n++)
        if (m->nodes[n].used && m->nodes[n].parent == parent && bm_same_key(&m->nodes[n].key, key))
            return n;
    return -1;
}

int bm_add_node(bm *m, int parent, const bm_key *key)
{
    int n = 0;
    while (m->nodes[n].used)
        n++;
    if (n >= m->num_nodes)
        m->num_nodes = n + 1;
    m->nodes[n] = (bm_node){.used = true, .parent = parent, .key = *key, .serial = m->serials++};
    m->nodes[n].path = bm_path(parent >= 0 ? m->nodes[parent].path : 1, key);
    for (int i = 0; i < BM_WINDOWS; i++)
        m->nodes[n].values[i] = -1;
    return n;
}

static bool is_bare(const bm *m, int node)
{
    for (int i = 0; i < BM_WINDOWS; i++)
        if (m->nodes[node].values[i] >= 0)
            return false;
    for (int n = 0; n < m->num_nodes; n++)
        if (m->nodes[n].used && m->nodes[n].parent == node)
            return false;
    return true;
}

void bm_prune(bm *m, int node)
{
    while (node >= 0 && is_bare(m, node)) {
        m->nodes[node].used = false;
        node = m->nodes[node].parent;
    }
    while (m->num_nodes > 0 && !m->nodes[m->num_nodes - 1].used)
        m->num_nodes--;
}

/* ---- Blocks ---- */

void bm_forget(bm *m, int w, int block)
{
    bm_window *window = &m->windows[w];
    int node = window->blocks[block].node;
    window->removed[window->num_removed++] = m->nodes[node].path;
    window->blocks[block].node = -1;
    m->nodes[node].values[w] = -1;
    bm_prune(m, node);
}

/* Into the lists: empty ones in front of everything, cached ones at the back of their priority. */
void bm_release(bm *m, int w, int block)
{
    bm_block *b = &m->windows[w].blocks[block];
    b->claimed = false;
    b->deadline = -1;
    if (b->node < 0) {
        b->priority = 35;
        b->duration = -1;
        b->order = --m->front;
        return;
    }
    b->order = ++m->back;
    b->released = ++m->releases;
    if (b->duration >= 0 && b->priority != 35)
        b->deadline = m->now + b->duration;
}

void bm_unref(bm *m, int w, int block)
{
    bm_block *b = &m->windows[w].blocks[block];
    b->refs--;
    if (b->refs == 0 && b->pins == 0)
        bm_release(m, w, block);
}

/* The next block to hand out: empty before cached, then the lowest priority, then the order in the list. */
static int cheapest(const bm_window *w, int tier)
{
    int best = -1;
    for (int b = 0; b < w->total; b++) {
        const bm_block *x = &w->blocks[b];
        if (!bm_is_free(x) || x->tier != tier)
            continue;
        if (best < 0) {
            best = b;
            continue;
        }
        const bm_block *y = &w->blocks[best];
        int rank_x = x->node < 0 ? -1 : x->priority, rank_y = y->node < 0 ? -1 : y->priority;
        if (rank_x < rank_y || (rank_x == rank_y && x->order < y->order))
            best = b;
    }
    return best;
}

static void exchange(bm_block *a, bm_block *b)
{
    int tier = a->tier, slot = a->slot;
    a->tier = b->tier;
    a->slot = b->slot;
    b->tier = tier;
    b->slot = slot;
}

static void move_to_host(bm *m, int w, int block, int host)
{
    bm_window *window = &m->windows[w];
    window->blocks[host].claimed = true;
    if (window->blocks[host].node >= 0) {
        bm_forget(m, w, host);
        window->counters.host_dropped_blocks++;
        window->counters.host_dropped_bytes += window->block_bytes;
    }
    window->blocks[host].deadline = -1;
    exchange(&window->blocks[block], &window->blocks[host]);
    window->counters.offload_blocks++;
    window->counters.offload_bytes += window->block_bytes;
    if (window->blocks[block].node >= 0)
        bm_emit_updated(m, CKV_BLOCKS_LEVEL_UPDATED, w, window->blocks[block].node, 0, 1);
}

int bm_fresh(bm *m, int w)
{
    bm_window *window = &m->windows[w];
    int victim = cheapest(window, 0);
    if (victim < 0) {
        m->out_of_blocks = true;
        return -1;
    }
    bm_block *v = &window->blocks[victim];
    int host = cheapest(window, 1), fresh = victim;
    bool cached = v->node >= 0;
    bool keep = cached && host >= 0 && v->priority >= m->config.offload_min_priority &&
                (window->blocks[host].node < 0 || window->blocks[host].priority <= v->priority);
    if (keep) {
        move_to_host(m, w, victim, host);
        v->order = ++m->back;
        fresh = host;
    } else {
        v->claimed = true;
        v->deadline = -1;
        if (cached)
            bm_forget(m, w, victim);
    }
    window->blocks[fresh].claimed = true;
    window->blocks[fresh].priority = 35;
    window->blocks[fresh].duration = -1;
    bm_sample(m);
    return fresh;
}

int bm_fresh_for(bm *m, int w, int64_t priority, int64_t duration)
{
    bm_window *window = &m->windows[w];
    bool empty = bm_count_free(window, 0, true) > 0;
    int block = bm_fresh(m, w);
    if (block < 0)
        return -1;
    window->counters.alloc_total++;
    window->counters.alloc_new += empty;
    window->blocks[block].priority = (int)priority;
    window->blocks[block].duration = duration;
    return block;
}

void bm_onboard(bm *m, int w, int block)
{
    bm_window *window = &m->windows[w];
    if (window->blocks[block].tier == 0)
        return;
    int fresh = bm_fresh(m, w);
    if (fresh < 0)
        return;
    exchange(&window->blocks[block], &window->blocks[fresh]);
    window->counters.onboard_blocks++;
    window->counters.onboard_bytes += window->block_bytes;
    if (window->blocks[block].node >= 0)
        bm_emit_updated(m, CKV_BLOCKS_LEVEL_UPDATED, w, window->blocks[block].node, 1, 0);
    bm_release(m, w, fresh);
}

void bm_copy(bm *m, int w, int from, int to, int rows)
{
    bm_window *window = &m->windows[w];
    int64_t bytes = window->block_bytes * rows / m->step;
    (void)to;
    if (window->blocks[from].tier == 1) {
        window->counters.onboard_blocks++;
        window->counters.onboard_bytes += bytes;
    } else {
        window->counters.copy_blocks++;
        window->counters.copy_bytes += bytes;
    }
}

bool bm_range(const bm *m, const bm_request *r, int position, int64_t *priority, int64_t *duration)
{
    int token = position * m->step;
    for (int i = 0; i < r->num_ranges && token < r->prompt; i++) {
        if (token < r->ranges[i].start || token >= r->ranges[i].end)
            continue;
        *priority = r->ranges[i].priority;
        *duration = r->ranges[i].duration_ms;
        return true;
    }
    return false;
}

/* ---- Moves on demand, expiry ---- */

ckv_status bm_move(bm *m, int w, int block, int tier)
{
    bm_window *window = &m->windows[w];
    if (block < 0 || block >= window->total)
        return CKV_ERROR_NOT_FOUND;
    bm_block *b = &window->blocks[block];
    bool cached = bm_is_free(b);
    if ((cached && b->node < 0) || b->tier == tier)
        return CKV_ERROR_STATE;
    if (cheapest(window, tier) < 0)
        return CKV_ERROR_CAPACITY;
    b->claimed = true; /* it must not be its own victim */
    int64_t deadline = b->deadline;
    if (tier == 1) {
        int host = cheapest(window, 1);
        move_to_host(m, w, block, host);
        bm_release(m, w, host);
    } else {
        bm_onboard(m, w, block);
    }
    b->claimed = false;
    b->deadline = deadline;
    if (cached)
        b->order = ++m->back;
    return CKV_OK;
}

void bm_refresh(bm *m, int64_t *expired)
{
    for (int w = m->num_windows - 1; w >= 0; w--) {
        bm_window *window = &m->windows[w];
        expired[w] = 0;
        for (;;) {
            int due = -1;
            for (int b = 0; b < window->total; b++) {
                const bm_block *x = &window->blocks[b];
                if (!bm_is_free(x) || x->node < 0 || x->deadline < 0 || x->deadline > m->now)
                    continue;
                if (due < 0 || x->deadline < window->blocks[due].deadline ||
                    (x->deadline == window->blocks[due].deadline && x->released < window->blocks[due].released))
                    due = b;
            }
            if (due < 0)
                break;
            bm_block *b = &window->blocks[due];
            bm_emit_updated(m, CKV_BLOCKS_PRIORITY_UPDATED, w, b->node, b->priority, 35);
            b->priority = 35;
            b->duration = b->deadline = -1;
            b->order = ++m->back;
            expired[w]++;
        }
    }
}
