/* SPDX-License-Identifier: Apache-2.0 */
/* Admission of a batch. Everything is matched, planned and counted before anything moves, so that a refusal changes
 * nothing: first all claims, then all placements. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>

enum { MATCHED_IN_FULL = 1, COUNTED = 2, ONBOARDED = 4 };

/* What becomes of the block a request matches in part. */
typedef struct partial_plan {
    int32_t source; /* NONE: no partial match in this window */
    bool take_over;
    bool release; /* nobody holds the source, and this is its last copier */
} partial_plan;

typedef struct admission {
    live_request *r;
    prefix_match found;
    partial_plan plans[CKV_BLOCKS_MAX_WINDOWS];
    ckv_blocks_admission result;
} admission;

typedef struct batch {
    ckv_blocks *m;
    admission *items;
    int64_t count;
} batch;

static int64_t context_blocks(const ckv_blocks *m, const live_request *r)
{
    return ckv_ceil_div_i64(r->prompt, m->tokens_per_block);
}

/* First position the match says nothing about. */
static int64_t first_new(const ckv_blocks *m, const admission *a)
{
    return ckv_ceil_div_i64(a->found.length, m->tokens_per_block);
}

/* No id is in use, or twice in the batch. */
static ckv_status check_ids(const batch *b)
{
    id_map seen = {0};
    ckv_status status =
        id_map_reserve(&seen, b->count) ? CKV_OK : ckv_fail(CKV_ERROR_MEMORY, "add: out of host memory");
    for (int64_t i = 0; status == CKV_OK && i < b->count; i++) {
        uint64_t id = (uint64_t)b->items[i].r->id;
        if (id_map_find(&b->m->by_id, id) != NULL || id_map_find(&seen, id) != NULL)
            status = ckv_fail(CKV_ERROR_STATE, "add: request %" PRId64 " is there already", (int64_t)id);
        else
            id_map_add(&seen, id, i);
    }
    id_map_free(&seen);
    return status;
}

static ckv_status match_one(const ckv_blocks *m, admission *a)
{
    const live_request *r = a->r;
    if (r->external > 0 && m->num_windows > 1)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "add: request %" PRId64 " has external tokens; %d windows", r->id,
                        m->num_windows);
    match_options options = {.limit = ckv_min_i64(r->prompt - 1, ckv_request_shared(m, r) * m->tokens_per_block),
                             .partial = m->config.partial_reuse != 0,
                             .copy = m->config.copy_on_partial != 0,
                             .window = NONE};
    CKV_TRY(ckv_blocks_match(m, r, options, &a->found));
    if (r->external > r->prompt - 1 - a->found.length)
        return ckv_fail(CKV_ERROR_INVALID,
                        "add: request %" PRId64 " of %" PRId64 " tokens: %" PRId64 " reused and %" PRId64
                        " external ones leave none to compute",
                        r->id, r->prompt, a->found.length, r->external);
    return CKV_OK;
}

/* Room for every table. */
static ckv_status prepare(ckv_blocks *m, live_request *r)
{
    CKV_TRY(ckv_request_reserve(m, r, r->prompt));
    if (m->recurrent == NONE)
        return CKV_OK;
    r->snapshots = calloc((size_t)context_blocks(m, r), sizeof *r->snapshots);
    return r->snapshots != NULL ? CKV_OK : ckv_fail(CKV_ERROR_MEMORY, "add: out of host memory");
}

static ckv_status reserve_places(ckv_blocks *m, int64_t count)
{
    int64_t needed = m->num_live + count;
    if (!id_map_reserve(&m->by_id, count))
        return ckv_fail(CKV_ERROR_MEMORY, "add: out of host memory");
    if (needed <= m->live_capacity)
        return CKV_OK;
    int64_t capacity = ckv_max_i64(needed, 2 * m->live_capacity);
    live_request **larger = realloc(m->live, (size_t)capacity * sizeof(live_request *));
    if (larger == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "add: out of host memory");
    m->live = larger;
    m->live_capacity = capacity;
    return CKV_OK;
}

static ckv_status open_batch(batch *b, const ckv_blocks_request *wanted)
{
    ckv_blocks *m = b->m;
    for (int64_t i = 0; i < b->count; i++)
        CKV_TRY(ckv_request_create(m, &wanted[i], &b->items[i].r));
    CKV_TRY(check_ids(b));
    if (m->config.max_sequences > 0 && m->num_live + b->count > m->config.max_sequences)
        return ckv_fail(CKV_ERROR_CAPACITY,
                        "add: %" PRId64 " requests beside %" PRId64 " live ones; %" PRId64 " fit in all", b->count,
                        m->num_live, m->config.max_sequences);
    CKV_TRY(reserve_places(m, b->count));
    for (int64_t i = 0; i < b->count; i++) {
        CKV_TRY(prepare(m, b->items[i].r));
        CKV_TRY(match_one(m, &b->items[i]));
    }
    return CKV_OK;
}

/* ---- Plan: who copies, who takes over, and do the blocks suffice ---- */

static void mark_matches(const batch *b, window_state *w)
{
    for (int64_t i = 0; i < b->count; i++) {
        const admission *a = &b->items[i];
        for (int64_t k = 0; k < a->found.full; k++) {
            int32_t id = ckv_match_block(b->m, w, &a->found, k);
            if (id != NONE)
                w->blocks[id].marks |= MATCHED_IN_FULL;
        }
        int32_t node = a->found.partial[w->index];
        if (node != NONE)
            w->blocks[value_of(b->m, node, w)].last_partial = (int32_t)i;
    }
}

static void plan_partials(const batch *b, const window_state *w)
{
    for (int64_t i = 0; i < b->count; i++) {
        partial_plan *plan = &b->items[i].plans[w->index];
        int32_t node = b->items[i].found.partial[w->index];
        *plan = (partial_plan){.source = NONE};
        if (node == NONE)
            continue;
        plan->source = value_of(b->m, node, w);
        const block_state *source = &w->blocks[plan->source];
        bool last = source->last_partial == i && !is_held(source) && (source->marks & MATCHED_IN_FULL) == 0;
        plan->take_over = last && b->m->trie.nodes[node].first_child == TRIE_NONE;
        plan->release = last && !plan->take_over;
    }
}

static void clear_marks(const batch *b, window_state *w)
{
    for (int64_t i = 0; i < b->count; i++) {
        const admission *a = &b->items[i];
        for (int64_t k = 0; k < a->found.full; k++) {
            int32_t id = ckv_match_block(b->m, w, &a->found, k);
            if (id != NONE)
                w->blocks[id].marks = 0;
        }
        int32_t source = a->plans[w->index].source;
        if (source != NONE) {
            w->blocks[source].marks = 0;
            w->blocks[source].last_partial = NONE;
        }
    }
}

/* Primary blocks that claiming takes out of the lists. */
static int64_t count_claim(window_state *w, int32_t id)
{
    block_state *b = &w->blocks[id];
    if (b->list == NO_LIST || (b->marks & COUNTED) != 0)
        return 0;
    b->marks |= COUNTED;
    return b->tier == CKV_BLOCKS_PRIMARY;
}

/* Blocks bringing one to primary memory takes, the first time it is asked. */
static int64_t count_onboard(window_state *w, int32_t id)
{
    block_state *b = &w->blocks[id];
    if (b->tier == CKV_BLOCKS_PRIMARY || (b->marks & ONBOARDED) != 0)
        return 0;
    b->marks |= ONBOARDED;
    return 1;
}

/* The positions that scratch pages serve; equal ends: none. */
static void plan_scratch(const ckv_blocks *m, const window_state *w, const admission *a, int64_t *first_out,
                         int64_t *end_out)
{
    const live_request *r = a->r;
    int64_t ready = a->found.length + r->external;
    int64_t first = ckv_max_i64(ckv_ceil_div_i64(ready, m->tokens_per_block), w->info.sink_blocks);
    int64_t outside = r->prompt - w->recent - m->config.max_rewind;
    int64_t end = outside > 0 ? outside / m->tokens_per_block : 0;
    bool used = m->config.swa_scratch && w->info.sliding && r->beam == 1 && end > first &&
                r->prompt - a->found.length <= m->config.chunk_size;
    *first_out = used ? first : 0;
    *end_out = used ? end : 0;
}

/* Blocks that a request takes behind its match: one per scratch page, beam or position. */
static int64_t count_new(const ckv_blocks *m, const window_state *w, const admission *a)
{
    const live_request *r = a->r;
    int64_t first, end, shared = ckv_request_shared(m, r), count = 0;
    plan_scratch(m, w, a, &first, &end);
    count = ckv_ceil_div_i64(end - first, w->info.num_layers);
    for (int64_t k = first_new(m, a); k < context_blocks(m, r); k++) {
        bool real = (k < first || k >= end) && (!w->info.recurrent || ckv_state_is_real(m, r, k));
        count += real ? (k < shared ? 1 : r->beam) : 0;
    }
    return count;
}

static ckv_status no_room(const window_state *w)
{
    return ckv_fail(CKV_ERROR_CAPACITY,
                    "add: window %" PRId64 " has %" PRId64 " free blocks of %" PRId64
                    ", too few; remove requests first",
                    w->info.window, free_count(w, CKV_BLOCKS_PRIMARY), w->info.blocks[CKV_BLOCKS_PRIMARY]);
}

/* The placements of one window in the order they will happen, counted. */
static ckv_status count_window(const batch *b, window_state *w)
{
    const ckv_blocks *m = b->m;
    int64_t available = free_count(w, CKV_BLOCKS_PRIMARY);
    for (int64_t i = 0; i < b->count; i++) {
        const admission *a = &b->items[i];
        for (int64_t k = 0; k < a->found.full; k++) {
            int32_t id = ckv_match_block(m, w, &a->found, k);
            available -= id != NONE ? count_claim(w, id) : 0;
        }
        if (a->plans[w->index].source != NONE)
            available -= count_claim(w, a->plans[w->index].source);
    }
    for (int64_t i = 0; i < b->count; i++) {
        const admission *a = &b->items[i];
        const partial_plan *plan = &a->plans[w->index];
        for (int64_t k = 0; k < a->found.full; k++) {
            int32_t id = ckv_match_block(m, w, &a->found, k);
            available -= id != NONE ? count_onboard(w, id) : 0;
        }
        if (plan->source != NONE)
            available -= plan->take_over ? count_onboard(w, plan->source) : 1;
        if (available < 0)
            return no_room(w);
        if (plan->release && w->blocks[plan->source].tier == CKV_BLOCKS_PRIMARY)
            available++;
        available -= count_new(m, w, a);
        if (available < 0)
            return no_room(w);
    }
    return CKV_OK;
}

static ckv_status plan_batch(const batch *b)
{
    ckv_status status = CKV_OK;
    for (int32_t i = b->m->num_windows - 1; i >= 0; i--) {
        window_state *w = &b->m->windows[i];
        mark_matches(b, w);
        plan_partials(b, w);
        if (status == CKV_OK)
            status = count_window(b, w);
        clear_marks(b, w);
    }
    return status;
}

/* ---- Claim ---- */

/* The request's own range replaces what a reused block had. */
static void apply_retention(ckv_blocks *m, window_state *w, const live_request *r, int64_t position, int32_t id,
                            bool announce)
{
    int64_t priority, duration;
    block_state *b = &w->blocks[id];
    ckv_request_retention(m, r, position, &priority, &duration);
    if (priority == NONE)
        return;
    if (announce && priority != b->priority && b->node != NONE)
        ckv_events_updated(m, w, m->trie.nodes[b->node].digest, CKV_BLOCKS_PRIORITY_UPDATED, b->priority, priority);
    b->priority = (uint8_t)priority;
    b->duration_ms = duration;
}

static void set_position(live_request *r, const window_state *w, int64_t position, int32_t id)
{
    int32_t *entry = table_at(r, w, position);
    for (int64_t beam = 0; beam < r->beam; beam++)
        entry[beam] = id;
    r->tables[w->index].positions = position + 1;
}

static void claim(ckv_blocks *m, window_state *w, admission *a)
{
    live_request *r = a->r;
    for (int64_t k = 0; k < a->found.full; k++) {
        int32_t id = ckv_match_block(m, w, &a->found, k);
        set_position(r, w, k, id);
        if (id == NONE)
            continue;
        ckv_block_claim(w, id);
        ckv_block_ref(m, w, id, (int32_t)r->beam);
        apply_retention(m, w, r, k, id, true);
    }
    const partial_plan *plan = &a->plans[w->index];
    if (plan->source == NONE)
        return;
    ckv_block_claim(w, plan->source);
    if (plan->take_over)
        apply_retention(m, w, r, a->found.full, plan->source, false);
}

/* ---- Place ---- */

static void place_full(ckv_blocks *m, window_state *w, admission *a)
{
    for (int64_t k = 0; k < a->found.full; k++) {
        int32_t id = *table_at(a->r, w, k);
        if (id == NONE)
            continue;
        ckv_block_onboard(m, w, id);
        w->counters.full_reused++;
        w->counters.reused++;
    }
}

static int32_t copy_partial(ckv_blocks *m, window_state *w, const admission *a, int64_t rows)
{
    const partial_plan *plan = &a->plans[w->index];
    int64_t priority, duration;
    ckv_request_retention(m, a->r, a->found.full, &priority, &duration);
    if (priority == NONE) {
        priority = w->blocks[plan->source].priority;
        duration = w->blocks[plan->source].duration_ms;
    }
    int32_t id = ckv_block_fresh_for(m, w, priority, duration);
    ckv_block_copy(m, w, plan->source, id, rows);
    if (plan->release)
        ckv_block_release(m, w, plan->source);
    return id;
}

static void place_partial(ckv_blocks *m, window_state *w, admission *a)
{
    const partial_plan *plan = &a->plans[w->index];
    if (plan->source == NONE)
        return;
    int32_t id = plan->source;
    if (plan->take_over) {
        ckv_block_forget(m, w, id);
        ckv_block_onboard(m, w, id);
    } else {
        id = copy_partial(m, w, a, a->found.length % m->tokens_per_block);
    }
    set_position(a->r, w, a->found.full, id);
    ckv_block_ref(m, w, id, (int32_t)a->r->beam);
    w->counters.partial_reused++;
    w->counters.reused++;
}

/* A new block at a position; for every beam where they do not share. */
static void place_new(ckv_blocks *m, window_state *w, live_request *r, int64_t position)
{
    int64_t priority, duration;
    ckv_request_retention(m, r, position, &priority, &duration);
    if (priority == NONE)
        priority = CKV_BLOCKS_DEFAULT_PRIORITY;
    w->counters.missed++;
    if (position < ckv_request_shared(m, r)) {
        int32_t id = ckv_block_fresh_for(m, w, priority, duration);
        ckv_block_ref(m, w, id, (int32_t)r->beam);
        set_position(r, w, position, id);
        return;
    }
    set_position(r, w, position, NONE);
    for (int64_t beam = 0; beam < r->beam; beam++) {
        int32_t id = ckv_block_fresh_for(m, w, priority, duration);
        ckv_block_ref(m, w, id, 1);
        table_at(r, w, position)[beam] = id;
    }
}

static void place_scratch(ckv_blocks *m, window_state *w, admission *a)
{
    live_request *r = a->r;
    struct table *table = &r->tables[w->index];
    plan_scratch(m, w, a, &table->scratch_first, &table->scratch_end);
    int32_t page = NONE;
    for (int64_t k = table->scratch_first; k < table->scratch_end; k++) {
        if ((k - table->scratch_first) % w->info.num_layers == 0)
            page = ckv_block_fresh_for(m, w, CKV_BLOCKS_DEFAULT_PRIORITY, CKV_BLOCKS_NO_DURATION);
        ckv_block_ref(m, w, page, 1);
        *table_at(r, w, k) = page;
    }
}

static void place(ckv_blocks *m, window_state *w, admission *a)
{
    live_request *r = a->r;
    ckv_blocks_counters before = w->counters;
    place_full(m, w, a);
    place_partial(m, w, a);
    place_scratch(m, w, a);
    for (int64_t k = first_new(m, a); k < context_blocks(m, r); k++) {
        if (ckv_request_is_scratch(r, w, k))
            continue;
        if (w->info.recurrent && !ckv_state_is_real(m, r, k))
            set_position(r, w, k, NONE);
        else
            place_new(m, w, r, k);
    }
    r->tables[w->index].positions = context_blocks(m, r);
    a->result.alloc_total += w->counters.alloc_total - before.alloc_total;
    a->result.alloc_new += w->counters.alloc_new - before.alloc_new;
    a->result.reused += w->counters.reused - before.reused;
    a->result.missed += w->counters.missed - before.missed;
}

static void commit(batch *b, ckv_blocks_admission *results_out)
{
    ckv_blocks *m = b->m;
    for (int64_t i = 0; i < b->count; i++)
        for (int32_t n = m->num_windows - 1; n >= 0; n--)
            claim(m, &m->windows[n], &b->items[i]);
    for (int32_t n = m->num_windows - 1; n >= 0; n--)
        for (int64_t i = 0; i < b->count; i++)
            place(m, &m->windows[n], &b->items[i]);
    for (int64_t i = 0; i < b->count; i++) {
        admission *a = &b->items[i];
        a->r->kv = a->result.prepopulated_tokens = a->found.length + a->r->external;
        a->r->live_at = m->num_live;
        a->r->added_round = m->round;
        id_map_add(&m->by_id, (uint64_t)a->r->id, m->num_live);
        m->live[m->num_live++] = a->r;
        m->num_context++;
        results_out[i] = a->result;
        a->r = NULL;
    }
}

ckv_status ckv_blocks_add(ckv_blocks *blocks, const ckv_blocks_request *requests, int64_t num_requests,
                          ckv_blocks_admission *admissions_out)
{
    if (num_requests < 0 || num_requests > INT32_MAX ||
        (num_requests > 0 && (requests == NULL || admissions_out == NULL)))
        return ckv_fail(CKV_ERROR_INVALID, "add: %" PRId64 " requests, or a list is NULL", num_requests);
    CKV_TRY(ckv_blocks_enter(blocks, "add"));
    batch b = {.m = blocks, .items = calloc((size_t)num_requests + 1, sizeof *b.items), .count = num_requests};
    ckv_status status = b.items != NULL ? CKV_OK : ckv_fail(CKV_ERROR_MEMORY, "add: out of host memory");
    if (status == CKV_OK)
        status = open_batch(&b, requests);
    if (status == CKV_OK)
        status = plan_batch(&b);
    if (status == CKV_OK)
        commit(&b, admissions_out);
    for (int64_t i = 0; b.items != NULL && i < num_requests; i++) {
        ckv_request_destroy(blocks, b.items[i].r);
        free(b.items[i].found.nodes);
    }
    free(b.items);
    return ckv_blocks_leave(blocks, status);
}
