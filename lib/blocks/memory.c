/* SPDX-License-Identifier: Apache-2.0 */
/* Handing blocks out and taking them back: claim, release, eviction, offload, onboard, copies. */
#include "lib/blocks/blocks.h"

#include "lib/support/error.h"

#include <time.h>

int64_t ckv_blocks_now(const ckv_blocks *m)
{
    if (m->config.now_ms != NULL)
        return m->config.now_ms(m->config.now_context);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void ckv_block_claim(window_state *w, int32_t id)
{
    if (w->blocks[id].list == NO_LIST)
        return;
    ckv_lists_remove(w, id);
    ckv_deadline_clear(w, id);
}

void ckv_block_ref(ckv_blocks *m, window_state *w, int32_t id, int32_t count)
{
    ckv_schedule_touch(m, &w->blocks[id]);
    w->blocks[id].refs += count;
}

void ckv_block_unref(ckv_blocks *m, window_state *w, int32_t id, int32_t count)
{
    ckv_schedule_touch(m, &w->blocks[id]);
    w->blocks[id].refs -= count;
    if (!is_held(&w->blocks[id]))
        ckv_block_release(m, w, id);
}

void ckv_block_release(ckv_blocks *m, window_state *w, int32_t id)
{
    block_state *b = &w->blocks[id];
    if (b->node == NONE) {
        ckv_lists_push_empty(w, id);
        return;
    }
    b->released = ++m->releases;
    if (b->duration_ms != CKV_BLOCKS_NO_DURATION && b->priority != CKV_BLOCKS_DEFAULT_PRIORITY) {
        int64_t now = ckv_blocks_now(m);
        ckv_deadline_set(w, id, b->duration_ms < NO_DEADLINE - now ? now + b->duration_ms : NO_DEADLINE - 1);
    }
    ckv_lists_push(w, id);
}

void ckv_block_forget(ckv_blocks *m, window_state *w, int32_t id)
{
    block_state *b = &w->blocks[id];
    int32_t node = b->node;
    ckv_events_removed(m, w, m->trie.nodes[node].digest);
    b->node = NONE;
    trie_clear_value(&m->trie, node, w->index);
    trie_prune(&m->trie, node);
}

static void exchange_memory(block_state *a, block_state *b)
{
    int32_t slot = a->slot;
    uint8_t tier = a->tier;
    a->slot = b->slot;
    a->tier = b->tier;
    b->slot = slot;
    b->tier = tier;
}

static void announce_level(ckv_blocks *m, window_state *w, const block_state *b, int before, int after)
{
    if (b->node != NONE)
        ckv_events_updated(m, w, m->trie.nodes[b->node].digest, CKV_BLOCKS_LEVEL_UPDATED, before, after);
}

static void move(ckv_blocks *m, const window_state *w, const block_state *from, const block_state *to, int64_t rows)
{
    if (m->payload != NULL)
        ckv_payload_add(m->payload,
                        (payload_copy){w->index, from->tier, from->slot, to->tier, to->slot, (int32_t)rows});
}

/* Claim a free host block and drop what it holds. */
static void empty_host_block(ckv_blocks *m, window_state *w, int32_t id)
{
    ckv_block_claim(w, id);
    if (w->blocks[id].node == NONE)
        return;
    ckv_block_forget(m, w, id);
    w->counters.host_dropped_blocks++;
    w->counters.host_dropped_bytes += w->info.block_bytes;
}

/* Move a block's bytes to the host. Returns the host block that owns its primary slot now, claimed and empty. */
static int32_t offload(ckv_blocks *m, window_state *w, int32_t id, int32_t host)
{
    empty_host_block(m, w, host);
    move(m, w, &w->blocks[id], &w->blocks[host], 0);
    exchange_memory(&w->blocks[id], &w->blocks[host]);
    w->counters.offload_blocks++;
    w->counters.offload_bytes += w->info.block_bytes;
    announce_level(m, w, &w->blocks[id], CKV_BLOCKS_PRIMARY, CKV_BLOCKS_HOST);
    return host;
}

/* The host block a victim may displace, or NONE. */
static int32_t offload_target(const ckv_blocks *m, const window_state *w, const block_state *victim)
{
    int32_t host = ckv_lists_cheapest(&w->free[CKV_BLOCKS_HOST]);
    if (host == NONE || victim->priority < m->config.offload_min_priority)
        return NONE;
    return w->blocks[host].list == EMPTY_LIST || w->blocks[host].priority <= victim->priority ? host : NONE;
}

int32_t ckv_block_fresh(ckv_blocks *m, window_state *w, bool *displaced_out)
{
    int32_t id = ckv_lists_cheapest(&w->free[CKV_BLOCKS_PRIMARY]);
    block_state *b = &w->blocks[id];
    *displaced_out = b->list != EMPTY_LIST;
    int32_t host = *displaced_out ? offload_target(m, w, b) : NONE;
    if (host != NONE) {
        ckv_lists_remove(w, id);
        int32_t victim = id;
        id = offload(m, w, victim, host);
        ckv_lists_push(w, victim);
    } else {
        ckv_block_claim(w, id);
        if (*displaced_out)
            ckv_block_forget(m, w, id);
    }
    w->blocks[id].priority = CKV_BLOCKS_DEFAULT_PRIORITY;
    w->blocks[id].duration_ms = CKV_BLOCKS_NO_DURATION;
    ckv_stats_sample_window(w);
    return id;
}

int32_t ckv_block_fresh_for(ckv_blocks *m, window_state *w, int64_t priority, int64_t duration_ms)
{
    bool displaced;
    int32_t id = ckv_block_fresh(m, w, &displaced);
    w->counters.alloc_total++;
    w->counters.alloc_new += !displaced;
    w->blocks[id].priority = (uint8_t)priority;
    w->blocks[id].duration_ms = duration_ms;
    return id;
}

void ckv_block_onboard(ckv_blocks *m, window_state *w, int32_t id)
{
    if (w->blocks[id].tier == CKV_BLOCKS_PRIMARY)
        return;
    bool displaced;
    int32_t fresh = ckv_block_fresh(m, w, &displaced);
    move(m, w, &w->blocks[id], &w->blocks[fresh], 0);
    exchange_memory(&w->blocks[id], &w->blocks[fresh]);
    w->counters.onboard_blocks++;
    w->counters.onboard_bytes += w->info.block_bytes;
    announce_level(m, w, &w->blocks[id], CKV_BLOCKS_HOST, CKV_BLOCKS_PRIMARY);
    ckv_lists_push_empty(w, fresh);
}

void ckv_block_copy(ckv_blocks *m, window_state *w, int32_t from, int32_t to, int64_t rows)
{
    move(m, w, &w->blocks[from], &w->blocks[to], rows == m->tokens_per_block ? 0 : rows);
    int64_t bytes = w->info.block_bytes / m->tokens_per_block * rows +
                    w->info.block_bytes % m->tokens_per_block * rows / m->tokens_per_block;
    if (w->blocks[from].tier == CKV_BLOCKS_HOST) {
        w->counters.onboard_blocks++;
        w->counters.onboard_bytes += bytes;
    } else {
        w->counters.copy_blocks++;
        w->counters.copy_bytes += bytes;
    }
}

/* The block an explicit move names. */
static ckv_status find_movable(const window_state *w, int64_t id, int tier, const char *what)
{
    if (id < 0 || id >= w->total)
        return ckv_fail(CKV_ERROR_NOT_FOUND, "%s: block %lld; window %lld has blocks 0 to %d", what, (long long)id,
                        (long long)w->info.window, w->total - 1);
    const block_state *b = &w->blocks[id];
    if (b->list == EMPTY_LIST)
        return ckv_fail(CKV_ERROR_STATE, "%s: block %lld has no content", what, (long long)id);
    if (b->tier == tier)
        return ckv_fail(CKV_ERROR_STATE, "%s: block %lld is there already", what, (long long)id);
    if (free_count(w, tier) == 0)
        return ckv_fail(CKV_ERROR_CAPACITY, "%s: window %lld has no free %s block", what, (long long)w->info.window,
                        tier == CKV_BLOCKS_HOST ? "host" : "primary");
    return CKV_OK;
}

static ckv_status offload_block(ckv_blocks *m, window_state *w, int64_t id)
{
    CKV_TRY(find_movable(w, id, CKV_BLOCKS_HOST, "offload"));
    bool cached = w->blocks[id].list != NO_LIST;
    if (cached)
        ckv_lists_remove(w, (int32_t)id);
    int32_t fresh = offload(m, w, (int32_t)id, ckv_lists_cheapest(&w->free[CKV_BLOCKS_HOST]));
    if (cached)
        ckv_lists_push(w, (int32_t)id);
    ckv_lists_push_empty(w, fresh);
    return CKV_OK;
}

static ckv_status onboard_block(ckv_blocks *m, window_state *w, int64_t id)
{
    CKV_TRY(find_movable(w, id, CKV_BLOCKS_PRIMARY, "onboard"));
    bool cached = w->blocks[id].list != NO_LIST;
    if (cached)
        ckv_lists_remove(w, (int32_t)id);
    ckv_block_onboard(m, w, (int32_t)id);
    if (cached)
        ckv_lists_push(w, (int32_t)id);
    return CKV_OK;
}

ckv_status ckv_blocks_offload(ckv_blocks *blocks, int64_t wanted, int64_t id)
{
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "offload", wanted, &w));
    return ckv_blocks_leave(blocks, offload_block(blocks, w, id));
}

ckv_status ckv_blocks_onboard(ckv_blocks *blocks, int64_t wanted, int64_t id)
{
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "onboard", wanted, &w));
    return ckv_blocks_leave(blocks, onboard_block(blocks, w, id));
}

/* Due blocks of one window to the back of the default priority. */
static int64_t expire(ckv_blocks *m, window_state *w, int64_t now)
{
    int64_t expired = 0;
    for (; w->num_deadlines > 0 && w->blocks[w->deadlines[0]].deadline_ms <= now; expired++) {
        int32_t id = w->deadlines[0];
        block_state *b = &w->blocks[id];
        int64_t before = b->priority;
        ckv_lists_remove(w, id);
        ckv_deadline_clear(w, id);
        b->priority = CKV_BLOCKS_DEFAULT_PRIORITY;
        b->duration_ms = CKV_BLOCKS_NO_DURATION;
        ckv_lists_push(w, id);
        ckv_events_updated(m, w, m->trie.nodes[b->node].digest, CKV_BLOCKS_PRIORITY_UPDATED, before, b->priority);
    }
    return expired;
}

ckv_status ckv_blocks_refresh(ckv_blocks *blocks, int64_t *expired_out)
{
    CKV_TRY(ckv_blocks_enter(blocks, "refresh"));
    int64_t now = ckv_blocks_now(blocks);
    for (int32_t i = blocks->num_windows - 1; i >= 0; i--) {
        int64_t expired = expire(blocks, &blocks->windows[i], now);
        if (expired_out != NULL)
            expired_out[i] = expired;
    }
    return ckv_blocks_leave(blocks, CKV_OK);
}

ckv_status ckv_blocks_get_block(ckv_blocks *blocks, int64_t wanted, int64_t id, ckv_blocks_block_info *info_out)
{
    if (info_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "get_block: info_out is NULL");
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "get_block", wanted, &w));
    ckv_status status = CKV_OK;
    if (id < 0 || id >= w->total) {
        status = ckv_fail(CKV_ERROR_NOT_FOUND, "get_block: block %lld; window %lld has blocks 0 to %d", (long long)id,
                          (long long)w->info.window, w->total - 1);
    } else {
        const block_state *b = &w->blocks[id];
        *info_out =
            (ckv_blocks_block_info){b->slot, b->tier, b->priority, b->duration_ms, b->refs, b->pins, b->node != NONE};
    }
    return ckv_blocks_leave(blocks, status);
}
