/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/blocks_pair.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool pair_differ(pair *p, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (p->message[0] == '\0')
        vsnprintf(p->message, p->message_bytes, format, arguments);
    va_end(arguments);
    return false;
}

static int64_t read_clock(void *context)
{
    return ((const pair *)context)->now_ms;
}

/* ---- Configuration ---- */

static const int64_t pattern_choices[][3] = {
    {100, 0, 0}, {8, 0, 0}, {100, 8, 0}, {5, 12, 100}, {-1, 100, 0}, {100, 6, -1}, {9, 0, 0}, {4, 7, 0},
};

static void choose_geometry(ckv_random *random, ckv_blocks_config *c, int64_t *windows)
{
    const int64_t *pattern = pattern_choices[ckv_random_range(random, 0, 7)];
    c->geometry.tokens_per_block = ckv_random_range(random, 1, BM_STEP);
    c->geometry.max_seq_len = ckv_random_range(random, 12, BM_TOKENS - 8);
    for (c->geometry.num_windows = 0; c->geometry.num_windows < 3 && pattern[c->geometry.num_windows] != 0;)
        windows[c->geometry.num_windows] = pattern[c->geometry.num_windows], c->geometry.num_windows++;
    c->geometry.windows = windows;
    c->geometry.layers = ckv_random_range(random, c->geometry.num_windows, 6);
    c->geometry.sink_tokens = ckv_random_range(random, 0, 3) == 0 ? ckv_random_range(random, 1, 3) : 0;
    c->geometry.cache = ckv_random_range(random, 0, 19) == 0 ? CKV_BLOCKS_CROSS : CKV_BLOCKS_SELF;
    c->geometry.state_bytes = 10;
    c->snapshot_interval = c->geometry.tokens_per_block * ckv_random_range(random, 1, 3);
    c->save_last_snapshot = (int)ckv_random_range(random, 0, 1);
}

static void choose_options(ckv_random *random, ckv_blocks_config *c, bool recurrent)
{
    c->max_beam = BM_BEAMS;
    c->max_sequences = ckv_random_range(random, 0, 5);
    c->chunk_size = ckv_random_range(random, 4, 64);
    c->reuse = ckv_random_range(random, 0, 11) != 0;
    c->partial_reuse = !recurrent && ckv_random_range(random, 0, 4) != 0;
    c->copy_on_partial = ckv_random_range(random, 0, 3) != 0;
    c->policy = ckv_random_range(random, 0, 3) == 0 ? CKV_BLOCKS_REUSE_PER_REQUEST : CKV_BLOCKS_REUSE_ALL;
    c->offload_min_priority = ckv_random_range(random, 0, 2) == 0 ? ckv_random_range(random, 0, 100) : 30;
    c->max_rewind = ckv_random_range(random, 0, 2) == 0 ? ckv_random_range(random, 1, 5) : 0;
    c->swa_scratch = ckv_random_range(random, 0, 2) == 0;
    c->event_buffer = -1;
    c->stats_limit = 2;
}

bool pair_open(pair *p, uint64_t seed, char *message, size_t message_bytes)
{
    ckv_random random = {seed};
    ckv_blocks_config c = ckv_blocks_config_default();
    int64_t windows[3];
    memset(p, 0, sizeof *p);
    p->message = message;
    p->message_bytes = message_bytes;
    message[0] = '\0';
    choose_geometry(&random, &c, windows);
    bool recurrent = false;
    for (int64_t i = 0; i < c.geometry.num_windows; i++)
        recurrent = recurrent || windows[i] == CKV_BLOCKS_RECURRENT;
    choose_options(&random, &c, recurrent);
    ckv_blocks_count count = {.window = 0};
    count.blocks[CKV_BLOCKS_PRIMARY] = ckv_random_range(&random, 2, 18);
    count.blocks[CKV_BLOCKS_HOST] = ckv_random_range(&random, 0, 1) * ckv_random_range(&random, 1, 9);
    c.counts = &count;
    c.num_counts = 1;
    c.now_ms = read_clock;
    c.now_context = p;
    c.row_bytes = sizeof(int64_t);
    if (ckv_device_find("host", &c.device) != CKV_OK || ckv_blocks_create(&c, &p->blocks) != CKV_OK)
        return pair_differ(p, "create: %s", ckv_last_error());
    ckv_blocks_window infos[BM_WINDOWS];
    int num_windows = (int)ckv_blocks_num_windows(p->blocks);
    for (int i = 0; i < num_windows; i++)
        if (ckv_blocks_get_window(p->blocks, i, &infos[i]) != CKV_OK)
            return pair_differ(p, "get_window: %s", ckv_last_error());
    bm_open(&p->model, &c, infos, num_windows);
    return pair_compare(p);
}

void pair_close(pair *p)
{
    ckv_blocks_destroy(&p->blocks);
    free(p->paths);
}

/* ---- The engine ---- */

static int64_t row_value(const bm_request *r, int row)
{
    uint64_t hash = (uint64_t)r->space * 977 + r->extra_used + 1;
    for (int i = 0; i <= row; i++) {
        hash = (hash ^ (uint32_t)r->tokens[i]) * 0x9e3779b97f4a7c15u;
        hash = (hash ^ hash >> 29 ^ (r->extra_used ? (uint64_t)r->extra[i] : 0)) * 0xbf58476d1ce4e5b9u;
    }
    return (int64_t)(hash >> 1 | 1);
}

static int64_t *rows_of(const pair *p, int w, int block)
{
    const bm_block *b = &p->model.windows[w].blocks[block];
    ckv_blocks_pool_view view;
    if (ckv_blocks_get_pool(p->blocks, p->model.windows[w].window, 0, b->tier, &view) != CKV_OK)
        return NULL;
    return (int64_t *)(void *)((char *)view.base + b->slot * view.slot_stride_bytes);
}

static bool is_readable(const bm_request *r, int w, int position, int beam)
{
    return position < r->positions && r->table[w][position][beam] >= 0 &&
           !(position >= r->scratch_first[w] && position < r->scratch_end[w]);
}

static int state_position(const pair *p, const bm_request *r)
{
    return r->kv >= r->prompt ? r->positions - 1 : (r->kv - 1) / p->model.step;
}

void pair_write_rows(pair *p, const bm_request *r, int from, int to)
{
    int step = p->model.step;
    int64_t values[BM_TOKENS];
    for (int n = 0; n < r->tokens_n && n < to; n++)
        values[n] = n >= from ? row_value(r, n) : 0;
    for (int w = 0; w < p->model.num_windows; w++) {
        bool recurrent = p->model.windows[w].recurrent;
        for (int beam = 0; beam < r->beam; beam++) {
            for (int n = from; n < to && !recurrent; n++)
                if (is_readable(r, w, n / step, beam))
                    rows_of(p, w, r->table[w][n / step][beam])[n % step] = values[n];
            int state = recurrent && r->kv > 0 ? state_position(p, r) : -1;
            for (int n = 0; n < step && state >= 0 && is_readable(r, w, state, beam); n++)
                rows_of(p, w, r->table[w][state][beam])[n] = row_value(r, r->kv - 1);
        }
    }
}

static bool compare_rows(pair *p, const bm_request *r, bool state_lost)
{
    int step = p->model.step;
    int64_t values[BM_TOKENS];
    for (int n = 0; n < r->kv; n++)
        values[n] = row_value(r, n);
    for (int w = 0; w < p->model.num_windows; w++) {
        bool recurrent = p->model.windows[w].recurrent;
        int end = !recurrent ? r->kv : r->kv > 0 && !state_lost ? step : 0;
        for (int beam = 0; beam < r->beam; beam++)
            for (int n = 0; n < end; n++) {
                int position = recurrent ? state_position(p, r) : n / step;
                if (!is_readable(r, w, position, beam))
                    continue;
                int64_t found = rows_of(p, w, r->table[w][position][beam])[n % step];
                if (found != values[recurrent ? r->kv - 1 : n])
                    return pair_differ(p, "request %" PRId64 " window %d beam %d row %d holds another prefix's content",
                                       r->id, w, beam, n);
            }
    }
    return true;
}

/* ---- Comparison ---- */

static bool compare_blocks(pair *p, int w)
{
    const bm_window *window = &p->model.windows[w];
    int64_t free_blocks[2], empty[2];
    if (ckv_blocks_get_free(p->blocks, window->window, free_blocks, empty) != CKV_OK)
        return pair_differ(p, "get_free: %s", ckv_last_error());
    for (int tier = 0; tier < 2; tier++)
        if (free_blocks[tier] != bm_count_free(window, tier, false) || empty[tier] != bm_count_free(window, tier, true))
            return pair_differ(p, "window %d tier %d: %" PRId64 " free, %" PRId64 " empty; expected %d and %d", w, tier,
                               free_blocks[tier], empty[tier], bm_count_free(window, tier, false),
                               bm_count_free(window, tier, true));
    for (int b = 0; b < window->total; b++) {
        const bm_block *e = &window->blocks[b];
        ckv_blocks_block_info i;
        if (ckv_blocks_get_block(p->blocks, window->window, b, &i) != CKV_OK)
            return pair_differ(p, "get_block: %s", ckv_last_error());
        if (i.tier != e->tier || i.slot != e->slot || i.refs != e->refs || i.pins != e->pins ||
            i.priority != e->priority || i.duration_ms != e->duration || i.cached != (e->node >= 0))
            return pair_differ(p,
                               "window %d block %d: tier %d slot %d refs %d pins %d priority %d duration %d cached %d; "
                               "expected %d %d %d %d %d %d %d",
                               w, b, (int)i.tier, (int)i.slot, (int)i.refs, (int)i.pins, (int)i.priority,
                               (int)i.duration_ms, i.cached, e->tier, e->slot, e->refs, e->pins, e->priority,
                               (int)e->duration, e->node >= 0);
    }
    return true;
}

static bool compare_request(pair *p, const bm_request *r)
{
    ckv_blocks_request_info info;
    int64_t ids[BM_POSITIONS];
    if (ckv_blocks_get_request(p->blocks, r->id, &info) != CKV_OK)
        return pair_differ(p, "get_request: %s", ckv_last_error());
    if (info.tokens != r->tokens_n || info.kv != r->kv || info.positions != r->positions)
        return pair_differ(p, "request %" PRId64 ": tokens %d kv %d positions %d; expected %d %d %d", r->id,
                           (int)info.tokens, (int)info.kv, (int)info.positions, r->tokens_n, r->kv, r->positions);
    for (int w = 0; w < p->model.num_windows; w++) {
        if (info.front_removed[w] != r->removed[w] || info.scratch_first[w] != r->scratch_first[w] ||
            info.scratch_end[w] != r->scratch_end[w])
            return pair_differ(p, "request %" PRId64 " window %d: removed %d scratch %d-%d; expected %d %d-%d", r->id,
                               w, (int)info.front_removed[w], (int)info.scratch_first[w], (int)info.scratch_end[w],
                               r->removed[w], r->scratch_first[w], r->scratch_end[w]);
        for (int beam = 0; beam < r->beam; beam++) {
            if (ckv_blocks_get_table(p->blocks, r->id, p->model.windows[w].window, beam, BM_POSITIONS, ids, NULL,
                                     NULL) != CKV_OK)
                return pair_differ(p, "get_table: %s", ckv_last_error());
            for (int k = 0; k < r->positions; k++)
                if (ids[k] != r->table[w][k][beam])
                    return pair_differ(p, "request %" PRId64 " window %d beam %d position %d: block %d; expected %d",
                                       r->id, w, beam, k, (int)ids[k], r->table[w][k][beam]);
        }
    }
    return true;
}

static bool compare_counters(pair *p)
{
    ckv_blocks_stats stats;
    if (ckv_blocks_get_stats(p->blocks, &stats) != CKV_OK)
        return pair_differ(p, "get_stats: %s", ckv_last_error());
    for (int w = 0; w < p->model.num_windows; w++) {
#define COMPARE(name)                                                                                                  \
    if (stats.windows[w].counters.name != p->model.windows[w].counters.name)                                           \
        return pair_differ(p, "window %d " #name " is %d; expected %d", w, (int)stats.windows[w].counters.name,        \
                           (int)p->model.windows[w].counters.name);
        CKV_BLOCKS_COUNTER_LIST(COMPARE)
#undef COMPARE
    }
    return true;
}

/* The path a hash stands for: whoever is seen first settles it for both. */
static pair_path *match_path(pair *p, uint64_t path, uint64_t hash)
{
    for (int i = 0; i < p->num_paths; i++)
        if (p->paths[i].path == path || p->paths[i].hash == hash)
            return p->paths[i].path == path && p->paths[i].hash == hash ? &p->paths[i] : NULL;
    if (p->num_paths == p->paths_capacity) {
        p->paths_capacity = p->paths_capacity > 0 ? 2 * p->paths_capacity : 64;
        p->paths = realloc(p->paths, (size_t)p->paths_capacity * sizeof *p->paths);
        if (p->paths == NULL)
            abort();
    }
    p->paths[p->num_paths] = (pair_path){.path = path, .hash = hash};
    return &p->paths[p->num_paths++];
}

static bool compare_hashes(pair *p, const ckv_blocks_event *got, const bm_event *want)
{
    for (int i = 0; i < want->count; i++) {
        int at = (want->first + i) % BM_PATHS;
        bool stored = got->type == CKV_BLOCKS_STORED;
        pair_path *path = match_path(p, p->model.paths[at], stored ? got->stored[i].hash : got->removed[i]);
        if (path == NULL || path->stored[want->window] == stored)
            return pair_differ(p, "event %" PRId64 ": hash %d is %s", got->id, i,
                               path == NULL ? "another path's" : "stored twice or removed without being stored");
        path->stored[want->window] = stored;
        if (stored && (got->stored[i].level != p->model.path_levels[at] ||
                       got->stored[i].priority != p->model.path_priorities[at]))
            return pair_differ(p, "event %" PRId64 ": stored with another level or priority", got->id);
    }
    return true;
}

static bool compare_event(pair *p, const ckv_blocks_event *got, const bm_event *want)
{
    if (got->id != p->next_event++ || (int)got->type != want->type ||
        got->window != p->model.windows[want->window].window || got->count != want->count)
        return pair_differ(
            p, "event %" PRId64 " type %d window %" PRId64 " count %d; expected type %d window %d count %d", got->id,
            (int)got->type, got->window, (int)got->count, want->type, want->window, want->count);
    if (got->type == CKV_BLOCKS_LEVEL_UPDATED || got->type == CKV_BLOCKS_PRIORITY_UPDATED) {
        if (match_path(p, want->path, got->hash) == NULL || got->before != want->before || got->after != want->after)
            return pair_differ(p, "event %" PRId64 ": another update", got->id);
        return true;
    }
    if (got->type == CKV_BLOCKS_STORED &&
        (got->has_parent != want->has_parent || (want->has_parent && match_path(p, want->parent, got->parent) == NULL)))
        return pair_differ(p, "event %" PRId64 ": another parent", got->id);
    return compare_hashes(p, got, want);
}

static bool compare_events(pair *p)
{
    ckv_blocks_events events;
    bm_flush(&p->model);
    if (p->model.num_events > BM_EVENTS || p->model.num_paths > BM_PATHS)
        return pair_differ(p, "the slow manager has too little room for events");
    if (ckv_blocks_drain_events(p->blocks, &events) != CKV_OK)
        return pair_differ(p, "drain_events: %s", ckv_last_error());
    bool same = true;
    int skipped = 0;
    for (; skipped < events.count && events.items[skipped].type == CKV_BLOCKS_CREATED; skipped++)
        same = events.items[skipped].id == p->next_event++ && same;
    if (!same || events.dropped != 0 || events.count - skipped != p->model.num_events)
        same = pair_differ(p, "%d events; expected %d", (int)events.count - skipped, p->model.num_events);
    for (int i = 0; same && i < p->model.num_events; i++)
        same = compare_event(p, &events.items[skipped + i], &p->model.events[i]);
    ckv_blocks_events_free(&events);
    p->model.num_events = p->model.num_paths = 0;
    return same;
}

bool pair_compare(pair *p)
{
    if (ckv_blocks_check(p->blocks) != CKV_OK)
        return pair_differ(p, "%s", ckv_last_error());
    for (int w = 0; w < p->model.num_windows; w++)
        if (!compare_blocks(p, w))
            return false;
    for (int i = 0; i < BM_REQUESTS; i++)
        if (p->model.requests[i].used &&
            (!compare_request(p, &p->model.requests[i]) || !compare_rows(p, &p->model.requests[i], p->state_lost[i])))
            return false;
    return compare_counters(p) && compare_events(p);
}

static bool is_stored(const bm *m, int w, uint64_t path)
{
    for (int n = 0; n < m->num_nodes; n++)
        if (m->nodes[n].used && m->nodes[n].path == path)
            return m->nodes[n].values[w] >= 0;
    return false;
}

bool pair_finish(pair *p)
{
    for (int i = 0; i < p->num_paths; i++) /* replaying the events gives the trie */
        for (int w = 0; w < p->model.num_windows; w++)
            if (p->paths[i].stored[w] != is_stored(&p->model, w, p->paths[i].path))
                return pair_differ(p, "the events tell of another trie in window %d", w);
    for (int i = 0; i < BM_REQUESTS; i++)
        if (p->model.requests[i].used && ckv_blocks_remove(p->blocks, p->model.requests[i].id, 0, NULL) != CKV_OK)
            return pair_differ(p, "remove: %s", ckv_last_error());
    if (ckv_blocks_unpin(p->blocks, p->pins, p->num_pins) != CKV_OK)
        return pair_differ(p, "unpin: %s", ckv_last_error());
    for (int w = 0; w < p->model.num_windows; w++) {
        int64_t free_blocks[2], empty[2];
        if (ckv_blocks_get_free(p->blocks, p->model.windows[w].window, free_blocks, empty) != CKV_OK ||
            free_blocks[0] != p->model.windows[w].counts[0] || free_blocks[1] != p->model.windows[w].counts[1])
            return pair_differ(p, "blocks of window %d are lost", w);
    }
    return ckv_blocks_check(p->blocks) == CKV_OK || pair_differ(p, "%s", ckv_last_error());
}
