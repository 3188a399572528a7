/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of the slow block manager. Each runs to its end or until it has no block, and is then thrown away. */
#include "tests/support/blocks_model.h"

#include <stdlib.h>
#include <string.h>

/* The state before an operation, to return to. */
static bm *save(const bm *m)
{
    bm *copy = malloc(sizeof *copy);
    if (copy == NULL)
        abort();
    memcpy(copy, m, sizeof *copy);
    return copy;
}

static ckv_status conclude(bm *m, bm *before)
{
    ckv_status status = CKV_OK;
    if (m->out_of_blocks) {
        memcpy(m, before, sizeof *m);
        status = CKV_ERROR_CAPACITY;
    }
    free(before);
    bm_sample(m);
    return status;
}

static void set_beams(bm *m, bm_request *r, int w, int position, int block)
{
    for (int b = 0; b < r->beam; b++)
        r->table[w][position][b] = (int16_t)block;
    if (block < 0)
        return;
    m->windows[w].blocks[block].refs += r->beam;
    m->windows[w].blocks[block].claimed = true;
}

/* ---- Admission ---- */

typedef struct plan {
    bm_match found;
    int source[BM_WINDOWS];
    bool take_over[BM_WINDOWS], last_copier[BM_WINDOWS];
} plan;

static bool fully_matched(const bm *m, const plan *plans, int count, int w, int block)
{
    for (int i = 0; i < count; i++)
        for (int k = 0; k < plans[i].found.full; k++)
            if (bm_match_block(m, w, &plans[i].found, k) == block)
                return true;
    return false;
}

static bool is_leaf(const bm *m, int node)
{
    for (int n = 0; n < m->num_nodes; n++)
        if (m->nodes[n].used && m->nodes[n].parent == node)
            return false;
    return true;
}

/* The state before the batch decides. */
static void decide(const bm *m, plan *plans, int count)
{
    for (int i = 0; i < count; i++) {
        for (int w = 0; w < m->num_windows; w++) {
            int node = plans[i].found.partial[w];
            plans[i].source[w] = node >= 0 ? m->nodes[node].values[w] : -1;
            plans[i].take_over[w] = plans[i].last_copier[w] = false;
            if (node < 0)
                continue;
            int source = plans[i].source[w];
            bool last = true;
            for (int j = i + 1; j < count; j++)
                last = last && plans[j].found.partial[w] != node;
            bool unheld = bm_is_free(&m->windows[w].blocks[source]);
            bool alone = last && unheld && !fully_matched(m, plans, count, w, source);
            plans[i].take_over[w] = alone && is_leaf(m, node);
            plans[i].last_copier[w] = alone && !is_leaf(m, node);
        }
    }
}

static void claim_one(bm *m, bm_request *r, const plan *p, int w)
{
    bm_window *window = &m->windows[w];
    int64_t priority, duration;
    for (int k = 0; k < p->found.full; k++) {
        int id = bm_match_block(m, w, &p->found, k);
        set_beams(m, r, w, k, id);
        if (id < 0)
            continue;
        window->blocks[id].deadline = -1;
        if (!bm_range(m, r, k, &priority, &duration))
            continue;
        if (window->blocks[id].priority != priority)
            bm_emit_updated(m, CKV_BLOCKS_PRIORITY_UPDATED, w, window->blocks[id].node, window->blocks[id].priority,
                            priority);
        window->blocks[id].priority = (int)priority;
        window->blocks[id].duration = duration;
    }
    if (p->source[w] < 0)
        return;
    bm_block *source = &window->blocks[p->source[w]];
    if (source->refs == 0 && source->pins == 0)
        source->deadline = -1;
    source->claimed = true;
    if (p->take_over[w] && bm_range(m, r, p->found.full, &priority, &duration)) {
        source->priority = (int)priority;
        source->duration = duration;
    }
}

static void place_partial(bm *m, bm_request *r, const plan *p, int w)
{
    int source = p->source[w], block = source;
    if (source < 0)
        return;
    bm_window *window = &m->windows[w];
    if (p->take_over[w]) {
        bm_forget(m, w, source);
        bm_onboard(m, w, source);
    } else {
        int64_t priority = window->blocks[source].priority, duration = window->blocks[source].duration;
        bm_range(m, r, p->found.full, &priority, &duration);
        block = bm_fresh_for(m, w, priority, duration);
        if (block < 0)
            return;
        bm_copy(m, w, source, block, p->found.length % m->step);
        if (p->last_copier[w])
            bm_release(m, w, source);
    }
    set_beams(m, r, w, p->found.full, block);
    window->counters.partial_reused++;
    window->counters.reused++;
}

static void place_scratch(bm *m, bm_request *r, const plan *p, int w)
{
    bm_window *window = &m->windows[w];
    int ready = (p->found.length + r->external + m->step - 1) / m->step;
    int first = ready > window->sinks ? ready : window->sinks;
    int outside = r->prompt - (int)window->recent - (int)m->config.max_rewind;
    int end = outside > 0 ? outside / m->step : 0;
    if (!m->config.swa_scratch || !window->sliding || r->beam > 1 || first >= end ||
        r->prompt - p->found.length > m->config.chunk_size)
        return;
    r->scratch_first[w] = first;
    r->scratch_end[w] = end;
    int page = -1;
    for (int k = first; k < end && !m->out_of_blocks; k++) {
        if ((k - first) % window->layers == 0)
            page = bm_fresh_for(m, w, 35, -1);
        if (page >= 0)
            set_beams(m, r, w, k, page);
    }
}

static void place_new(bm *m, bm_request *r, int w, int position)
{
    bm_window *window = &m->windows[w];
    int64_t priority = 35, duration = -1;
    bm_range(m, r, position, &priority, &duration);
    if (window->recurrent && !bm_state_real(m, r, position)) {
        set_beams(m, r, w, position, -1);
        return;
    }
    window->counters.missed++;
    bool shared = position < bm_shared(m, r);
    for (int b = 0; b < r->beam && !m->out_of_blocks; b++) {
        if (b > 0 && shared)
            break;
        int block = bm_fresh_for(m, w, priority, duration);
        if (block < 0)
            return;
        if (shared) {
            set_beams(m, r, w, position, block);
        } else {
            r->table[w][position][b] = (int16_t)block;
            window->blocks[block].refs++;
        }
    }
}

static void place_one(bm *m, bm_request *r, const plan *p, int w)
{
    bm_window *window = &m->windows[w];
    ckv_blocks_counters before = window->counters;
    for (int k = 0; k < p->found.full; k++) {
        int id = r->table[w][k][0];
        if (id < 0)
            continue;
        bm_onboard(m, w, id);
        window->counters.full_reused++;
        window->counters.reused++;
    }
    if (!m->out_of_blocks)
        place_partial(m, r, p, w);
    if (!m->out_of_blocks)
        place_scratch(m, r, p, w);
    for (int k = (p->found.length + m->step - 1) / m->step; k < r->positions && !m->out_of_blocks; k++)
        if (k < r->scratch_first[w] || k >= r->scratch_end[w])
            place_new(m, r, w, k);
    r->result.alloc_total += window->counters.alloc_total - before.alloc_total;
    r->result.alloc_new += window->counters.alloc_new - before.alloc_new;
    r->result.reused += window->counters.reused - before.reused;
    r->result.missed += window->counters.missed - before.missed;
}

static ckv_status check_batch(bm *m, const bm_request *requests, int count)
{
    int live = 0;
    for (int i = 0; i < BM_REQUESTS; i++)
        live += m->requests[i].used;
    for (int i = 0; i < count; i++) {
        if (bm_find(m, requests[i].id) != NULL)
            return CKV_ERROR_STATE;
        for (int j = 0; j < i; j++)
            if (requests[j].id == requests[i].id)
                return CKV_ERROR_STATE;
    }
    if (m->config.max_sequences > 0 && live + count > m->config.max_sequences)
        return CKV_ERROR_CAPACITY;
    return CKV_OK;
}

ckv_status bm_add(bm *m, bm_request *requests, int count)
{
    plan *plans = calloc((size_t)count + 1, sizeof *plans);
    ckv_status status = check_batch(m, requests, count);
    if (plans == NULL)
        abort();
    for (int i = 0; i < count && status == CKV_OK; i++) {
        bm_request *r = &requests[i];
        int most = bm_shared(m, r) * m->step;
        bm_options o = {.limit = r->prompt - 1 < most ? r->prompt - 1 : most,
                        .partial = m->config.partial_reuse,
                        .copy = m->config.copy_on_partial,
                        .window = -1};
        if (r->external > 0 && m->num_windows > 1)
            status = CKV_ERROR_UNSUPPORTED;
        plans[i].found = bm_find_match(m, r, o);
        if (status == CKV_OK && plans[i].found.length + r->external > r->prompt - 1)
            status = CKV_ERROR_INVALID;
        r->positions = (r->prompt + m->step - 1) / m->step;
        memset(r->table, -1, sizeof r->table);
        r->result = (ckv_blocks_admission){.prepopulated_tokens = plans[i].found.length + r->external};
        r->kv = plans[i].found.length + r->external;
        r->used = true;
    }
    if (status != CKV_OK) {
        free(plans);
        return status;
    }
    bm *before = save(m);
    decide(m, plans, count);
    for (int i = 0; i < count; i++)
        for (int w = m->num_windows - 1; w >= 0; w--)
            claim_one(m, &requests[i], &plans[i], w);
    for (int w = m->num_windows - 1; w >= 0; w--)
        for (int i = 0; i < count && !m->out_of_blocks; i++)
            place_one(m, &requests[i], &plans[i], w);
    for (int i = 0, at = 0; i < count && !m->out_of_blocks; i++) {
        while (m->requests[at].used)
            at++;
        m->requests[at] = requests[i];
    }
    free(plans);
    return conclude(m, before);
}

/* ---- Context, growth ---- */

static void leave(bm *m, bm_request *r, int w, int position)
{
    for (int b = 0; b < r->beam; b++) {
        int id = r->table[w][position][b];
        r->table[w][position][b] = -1;
        if (id < 0)
            continue;
        m->windows[w].blocks[id].duration = -1;
        bm_unref(m, w, id);
    }
}

ckv_status bm_prefill(bm *m, int64_t id, int to)
{
    bm_request *r = bm_find(m, id);
    if (r == NULL)
        return CKV_ERROR_NOT_FOUND;
    if (r->kv >= r->prompt)
        return CKV_ERROR_STATE;
    bool one_step = r->gen_init;
    for (int w = 0; w < m->num_windows; w++)
        one_step = one_step || r->scratch_first[w] < r->scratch_end[w];
    if (to <= r->kv || to > r->prompt || (to < r->prompt && one_step))
        return CKV_ERROR_INVALID;
    if (m->recurrent >= 0 && !bm_state_real(m, r, (to - 1) / m->step))
        return CKV_ERROR_INVALID;
    r->kv = to;
    if (to % m->step == 0)
        r->snapshot[to / m->step - 1] = true;
    for (int w = m->num_windows - 1; w >= 0 && to == r->prompt; w--) {
        int first = r->scratch_first[w], end = r->scratch_end[w], sinks = m->windows[w].sinks;
        if (first == end)
            continue;
        for (int k = end - 1; k >= first; k--)
            leave(m, r, w, k);
        for (int k = sinks; k < first; k++)
            leave(m, r, w, k);
        r->removed[w] = end - sinks;
        r->scratch_first[w] = r->scratch_end[w] = 0;
    }
    bm_sample(m);
    return CKV_OK;
}

static int fresh_beam(bm *m, int w, int64_t priority, int64_t duration)
{
    int block = bm_fresh_for(m, w, priority, duration);
    if (block < 0)
        return -1;
    m->windows[w].blocks[block].refs++;
    m->windows[w].counters.gen_alloc++;
    return block;
}

static void grow_state(bm *m, bm_request *r, int w)
{
    int last = r->positions - 1;
    for (int b = 0; b < r->beam; b++) {
        int id = r->table[w][last][b], kept = r->table[w][last][0];
        if (b > 0 && id == kept) {
            int own = fresh_beam(m, w, r->decode_priority, r->decode_duration);
            if (own < 0)
                return;
            bm_copy(m, w, id, own, m->step);
            bm_unref(m, w, id);
            id = own;
        }
        r->table[w][last + 1][b] = (int16_t)id;
    }
    for (int b = 0; b < r->beam; b++)
        r->table[w][last][b] = -1;
}

static void own_tail(bm *m, bm_request *r, int w, int position, int row)
{
    bm_window *window = &m->windows[w];
    for (int b = 0; b < r->beam; b++) {
        int id = r->table[w][position][b];
        bm_block *block = &window->blocks[id];
        if (block->node < 0 || m->nodes[block->node].key.count <= row)
            continue;
        if (block->refs == 1 && block->pins == 0) {
            bm_forget(m, w, id);
            continue;
        }
        int64_t priority = block->priority, duration = block->duration;
        bm_range(m, r, position, &priority, &duration);
        int own = fresh_beam(m, w, priority, duration);
        if (own < 0)
            return;
        bm_copy(m, w, id, own, row);
        r->table[w][position][b] = (int16_t)own;
        bm_unref(m, w, id);
    }
}

static void append_one(bm *m, bm_request *r, int32_t token)
{
    r->kv = r->tokens_n;
    r->extra[r->tokens_n] = 0;
    r->tokens[r->tokens_n++] = token;
    int n = r->tokens_n, position = (n - 1) / m->step;
    bool boundary = (n - 1) % m->step == 0;
    for (int w = m->num_windows - 1; w >= 0; w--) {
        bm_window *window = &m->windows[w];
        int sinks = window->sinks;
        while (window->sliding &&
               n - (sinks + r->removed[w]) * m->step >= window->recent + m->step + m->config.max_rewind)
            leave(m, r, w, sinks + r->removed[w]++);
        if (boundary && window->recurrent)
            grow_state(m, r, w);
        for (int b = 0; b < r->beam && boundary && !window->recurrent; b++)
            r->table[w][position][b] = (int16_t)fresh_beam(m, w, r->decode_priority, r->decode_duration);
        if (!boundary && !window->recurrent)
            own_tail(m, r, w, position, (n - 1) % m->step);
        if (m->out_of_blocks)
            return;
    }
    r->positions += boundary;
}

ckv_status bm_append(bm *m, int64_t id, const int32_t *tokens, int count)
{
    bm_request *r = bm_find(m, id);
    if (r == NULL)
        return CKV_ERROR_NOT_FOUND;
    if (m->config.geometry.cache == CKV_BLOCKS_CROSS)
        return CKV_ERROR_UNSUPPORTED;
    if (r->kv < r->prompt)
        return CKV_ERROR_STATE;
    if (r->tokens_n + count > m->config.geometry.max_seq_len)
        return CKV_ERROR_CAPACITY;
    bm *before = save(m);
    for (int i = 0; i < count && !m->out_of_blocks; i++)
        append_one(m, r, tokens[i]);
    return conclude(m, before);
}

ckv_status bm_rewind(bm *m, int64_t id, int n)
{
    bm_request *r = bm_find(m, id);
    if (r == NULL)
        return CKV_OK;
    if (m->config.geometry.cache == CKV_BLOCKS_CROSS)
        return CKV_ERROR_UNSUPPORTED;
    int left = r->tokens_n - n;
    if (left < r->prompt)
        return CKV_ERROR_INVALID;
    int positions = (left + m->step - 1) / m->step;
    for (int w = 0; w < m->num_windows && n > 0; w++) {
        bm_window *window = &m->windows[w];
        if (window->recurrent && r->beam > 1)
            return CKV_ERROR_UNSUPPORTED;
        for (int k = positions - 1; window->recurrent && k < r->positions - 1; k++)
            if (r->table[w][k][0] >= 0)
                return CKV_ERROR_STATE;
        if (window->sliding && r->removed[w] > 0 && (window->sinks + r->removed[w]) * m->step > left - window->recent)
            return CKV_ERROR_STATE;
    }
    for (int w = m->num_windows - 1; w >= 0 && n > 0; w--) {
        if (m->windows[w].recurrent) {
            int16_t state = r->table[w][r->positions - 1][0];
            for (int k = positions; k < r->positions; k++)
                r->table[w][k][0] = -1;
            r->table[w][positions - 1][0] = state;
            continue;
        }
        for (int k = r->positions - 1; k >= positions; k--)
            for (int b = r->beam - 1; b >= 0; b--)
                bm_unref(m, w, r->table[w][k][b]);
    }
    r->positions = n > 0 ? positions : r->positions;
    r->tokens_n = left;
    r->kv = r->kv < left ? r->kv : left;
    bm_sample(m);
    return CKV_OK;
}

int bm_carry(bm *m, int64_t id, int64_t (*copies)[2])
{
    bm_request *r = bm_find(m, id);
    int w = m->recurrent, count = 0;
    if (w < 0 || r->kv == 0 || r->kv >= r->prompt || r->kv % m->step != 0)
        return 0;
    int at = r->kv / m->step, from = r->table[w][at - 1][0];
    while (at < r->positions && r->table[w][at][0] < 0)
        at++;
    for (int b = 0; b < r->beam && from >= 0 && at < r->positions; b++) {
        if (b > 0 && r->table[w][at][b] == r->table[w][at][b - 1])
            continue;
        bm_copy(m, w, from, r->table[w][at][b], m->step);
        copies[count][0] = from;
        copies[count++][1] = r->table[w][at][b];
    }
    return count;
}
