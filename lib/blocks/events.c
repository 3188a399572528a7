/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to reusable blocks, for those who keep a copy of the trie's keys. When memory for an event runs out the
 * event is lost: its id is missing and it counts as dropped. */
#include "lib/blocks/blocks.h"

#include "lib/support/error.h"

#include <stdlib.h>
#include <string.h>

/* The events to the front of their memory. */
static void close_gap(event_log *log)
{
    if (log->first > 0)
        memmove(log->items, log->items + log->first, (size_t)log->count * sizeof *log->items);
    log->first = 0;
}

/* Room for one more event. Dropped ones leave a gap in front, closed when it is at least as long as what moves. */
static bool reserve_event(event_log *log)
{
    if (log->first + log->count < log->capacity)
        return true;
    if (log->first > 0 && log->first >= log->count) {
        close_gap(log);
        return true;
    }
    int64_t capacity = log->capacity > 0 ? 2 * log->capacity : 16;
    ckv_blocks_event *items = realloc(log->items, (size_t)capacity * sizeof *items);
    if (items == NULL)
        return false;
    log->items = items;
    log->capacity = capacity;
    return true;
}

/* A place for the next event, with its id; NULL when it is lost. */
static ckv_blocks_event *next_event(event_log *log, ckv_blocks_event_type type, const window_state *w)
{
    int64_t id = log->next_id++;
    if (!reserve_event(log)) {
        log->dropped++;
        return NULL;
    }
    ckv_blocks_event *event = &log->items[log->first + log->count++];
    *event = (ckv_blocks_event){.id = id, .type = type, .window = w->info.window};
    return event;
}

void ckv_events_created(ckv_blocks *m)
{
    for (int32_t i = 0; m->events.limit != 0 && i < m->num_windows; i++) {
        ckv_blocks_event *event = next_event(&m->events, CKV_BLOCKS_CREATED, &m->windows[i]);
        if (event != NULL)
            memcpy(event->blocks, m->windows[i].info.blocks, sizeof event->blocks);
    }
}

void ckv_events_removed(ckv_blocks *m, window_state *w, uint64_t hash)
{
    if (m->events.limit == 0)
        return;
    if (w->num_removed == w->removed_capacity) {
        int64_t capacity = w->removed_capacity > 0 ? 2 * w->removed_capacity : 16;
        uint64_t *removed = realloc(w->removed, (size_t)capacity * sizeof *removed);
        if (removed == NULL) {
            m->events.dropped++;
            return;
        }
        w->removed = removed;
        w->removed_capacity = capacity;
    }
    w->removed[w->num_removed++] = hash;
}

static void announce_removed(ckv_blocks *m, window_state *w)
{
    if (w->num_removed == 0)
        return;
    ckv_blocks_event *event = next_event(&m->events, CKV_BLOCKS_REMOVED, w);
    if (event != NULL) {
        event->count = w->num_removed;
        event->removed = w->removed;
        event->memory = w->removed;
    } else {
        free(w->removed);
    }
    w->removed = NULL;
    w->num_removed = w->removed_capacity = 0;
}

void ckv_events_updated(ckv_blocks *m, window_state *w, uint64_t hash, ckv_blocks_event_type what, int64_t before,
                        int64_t after)
{
    ckv_blocks_event *event = m->events.limit != 0 ? next_event(&m->events, what, w) : NULL;
    if (event == NULL)
        return;
    event->hash = hash;
    event->before = before;
    event->after = after;
}

/* One allocation: the blocks, their tokens, the salt. */
static bool fill_stored(const ckv_blocks *m, const window_state *w, ckv_blocks_event *event, const int32_t *nodes)
{
    const trie *t = &m->trie;
    const key_space *space = &t->spaces.items[t->nodes[nodes[0]].space];
    size_t salt_bytes = space->salt_text != NULL ? strlen(space->salt_text) + 1 : 0, tokens = 0;
    for (int64_t i = 0; i < event->count; i++)
        tokens += (size_t)t->nodes[nodes[i]].count;
    ckv_blocks_stored *stored = malloc((size_t)event->count * sizeof *stored + tokens * sizeof(int32_t) + salt_bytes);
    if (stored == NULL)
        return false;
    int32_t *next = (int32_t *)(void *)(stored + event->count);
    for (int64_t i = 0; i < event->count; i++) {
        key_view key = trie_key(t, nodes[i]);
        const block_state *b = &w->blocks[value_of(m, nodes[i], w)];
        memcpy(next, key.tokens, (size_t)key.count * sizeof *next);
        stored[i] = (ckv_blocks_stored){t->nodes[nodes[i]].digest, next, key.count, b->tier, b->priority};
        next += key.count;
    }
    event->has_lora = space->has_lora;
    event->lora = space->lora;
    event->salt_kind = space->salt_kind;
    event->salt = space->salt;
    if (salt_bytes > 0)
        event->salt_text = memcpy(next, space->salt_text, salt_bytes);
    event->stored = stored;
    event->memory = stored;
    return true;
}

void ckv_events_stored(ckv_blocks *m, window_state *w, const int32_t *nodes, int64_t count)
{
    if (count == 0 || m->events.limit == 0)
        return;
    announce_removed(m, w);
    ckv_blocks_event *event = next_event(&m->events, CKV_BLOCKS_STORED, w);
    if (event == NULL)
        return;
    int32_t parent = m->trie.nodes[nodes[0]].parent;
    event->has_parent = parent != TRIE_ROOT;
    event->parent = event->has_parent ? m->trie.nodes[parent].digest : 0;
    event->count = count;
    if (!fill_stored(m, w, event, nodes)) {
        m->events.count--;
        m->events.dropped++;
    }
}

static void drop_oldest(event_log *log)
{
    int64_t excess = log->limit > 0 ? log->count - log->limit : 0;
    if (excess <= 0)
        return;
    for (int64_t i = 0; i < excess; i++)
        free(log->items[log->first + i].memory);
    log->first += excess;
    log->count = log->limit;
    log->dropped += excess;
}

static void flush(ckv_blocks *m)
{
    for (int32_t i = 0; i < m->num_windows; i++)
        announce_removed(m, &m->windows[i]);
    drop_oldest(&m->events);
}

ckv_status ckv_blocks_flush_events(ckv_blocks *blocks, int64_t *buffered_out)
{
    CKV_TRY(ckv_blocks_enter(blocks, "flush_events"));
    flush(blocks);
    if (buffered_out != NULL)
        *buffered_out = blocks->events.count;
    return ckv_blocks_leave(blocks, CKV_OK);
}

ckv_status ckv_blocks_drain_events(ckv_blocks *blocks, ckv_blocks_events *events_out)
{
    if (events_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "drain_events: events_out is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "drain_events"));
    event_log *log = &blocks->events;
    flush(blocks);
    close_gap(log);
    *events_out = (ckv_blocks_events){log->items, log->count, log->dropped};
    *log = (event_log){.limit = log->limit, .next_id = log->next_id};
    return ckv_blocks_leave(blocks, CKV_OK);
}

void ckv_blocks_events_free(ckv_blocks_events *events)
{
    if (events == NULL)
        return;
    for (int64_t i = 0; i < events->count; i++)
        free(events->items[i].memory);
    free(events->items);
    *events = (ckv_blocks_events){NULL, 0, 0};
}

void ckv_events_free(ckv_blocks *m)
{
    close_gap(&m->events);
    ckv_blocks_events events = {m->events.items, m->events.count, 0};
    ckv_blocks_events_free(&events);
    m->events.items = NULL;
}
