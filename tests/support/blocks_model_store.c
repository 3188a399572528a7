/* SPDX-License-Identifier: Apache-2.0 */
/* Storing, pinning, finding and forgetting in the slow block manager. */
#include "tests/support/blocks_model.h"

#include <stdlib.h>
#include <string.h>

static int usable(const bm_request *r)
{
    int written = r->kv >= r->prompt ? r->tokens_n : r->kv;
    return written > 0 ? written - 1 : 0;
}

static void add_pin(bm *m, int w, int block, ckv_blocks_handles *handles)
{
    int at = 0;
    while (m->pins[at].used)
        at++;
    m->pins[at] = (bm_pin){true, w, block, m->next_serial};
    bm_block *b = &m->windows[w].blocks[block];
    if (b->refs == 0 && b->pins == 0)
        b->deadline = -1;
    b->claimed = true;
    b->pins++;
    handles->items[handles->count++] = (ckv_blocks_handle){m->windows[w].window, block, m->next_serial++};
}

static bool may_store(const bm *m, const bm_request *r, int w, int k)
{
    const bm_window *window = &m->windows[w];
    int end = (k + 1) * m->step;
    if (k >= r->scratch_first[w] && k < r->scratch_end[w])
        return false;
    if (window->recurrent)
        return end < r->prompt && r->snapshot[k] && bm_state_real(m, r, k);
    return m->config.policy == CKV_BLOCKS_REUSE_ALL || !window->sliding || k < window->sinks ||
           end + window->recent > r->tokens_n;
}

static int store_window(bm *m, bm_request *r, int w, const int *nodes, int count)
{
    bm_window *window = &m->windows[w];
    int run[BM_POSITIONS], length = 0, stored = 0;
    for (int k = 0; k < count; k++) {
        int id = r->table[w][k][0];
        bool store = id >= 0 && m->nodes[nodes[k]].values[w] < 0 && may_store(m, r, w, k);
        if (store && window->blocks[id].node >= 0)
            store = m->nodes[window->blocks[id].node].key.count < m->nodes[nodes[k]].key.count;
        if (!store) {
            bm_emit_stored(m, w, run, length);
            length = 0;
            continue;
        }
        if (window->blocks[id].node >= 0)
            bm_forget(m, w, id);
        window->blocks[id].node = nodes[k];
        m->nodes[nodes[k]].values[w] = id;
        run[length++] = nodes[k];
        stored++;
    }
    bm_emit_stored(m, w, run, length);
    return stored;
}

static void store(bm *m, bm_request *r, bool tail, bool pin, int64_t *stored, ckv_blocks_handles *handles)
{
    int tokens = usable(r), nodes[BM_POSITIONS], count = tokens / m->step, node = -1;
    if (r->beam > 1)
        count = (tokens < r->prompt ? tokens : r->prompt) / m->step;
    else if (tail && tokens % m->step != 0)
        count++;
    if (r->dummy || !m->config.reuse)
        count = 0;
    for (int k = 0; k < count; k++) {
        int left = tokens - k * m->step;
        bm_key key = bm_make_key(m, r, k * m->step, left < m->step ? left : m->step);
        int child = bm_child(m, node, &key);
        nodes[k] = node = child >= 0 ? child : bm_add_node(m, node, &key);
    }
    for (int w = m->num_windows - 1; w >= 0; w--)
        stored[w] = store_window(m, r, w, nodes, count);
    for (int w = m->num_windows - 1; w >= 0 && pin; w--)
        for (int k = 0; k < count; k++) {
            int id = m->nodes[nodes[k]].values[w];
            bool scratch = k >= r->scratch_first[w] && k < r->scratch_end[w];
            if (id >= 0 && r->table[w][k][0] >= 0 && !scratch)
                add_pin(m, w, id, handles);
        }
    if (count > 0)
        bm_prune(m, nodes[count - 1]);
}

ckv_status bm_store(bm *m, int64_t id, bm_store_kind kind, bool pin, int64_t *stored, ckv_blocks_handles *handles)
{
    bm_request *r = bm_find(m, id);
    if (r == NULL)
        return CKV_ERROR_NOT_FOUND;
    if (kind == BM_FINISH && (r->kv < r->prompt || r->finished))
        return CKV_ERROR_STATE;
    memset(stored, 0, BM_WINDOWS * sizeof *stored);
    bool due = r->beam == 1 && usable(r) > 0 && usable(r) % m->step == 0;
    if (kind != BM_NEW || due)
        store(m, r, kind == BM_FOR_REUSE, pin, stored, handles);
    r->finished = r->finished || kind == BM_FINISH;
    bm_sample(m);
    return CKV_OK;
}

ckv_status bm_remove(bm *m, int64_t id, bool keep, int64_t *stored)
{
    bm_request *r = bm_find(m, id);
    if (r == NULL)
        return CKV_ERROR_NOT_FOUND;
    memset(stored, 0, BM_WINDOWS * sizeof *stored);
    if (keep && r->beam == 1 && m->recurrent < 0)
        store(m, r, true, false, stored, NULL);
    for (int w = m->num_windows - 1; w >= 0; w--)
        for (int k = r->positions - 1; k >= 0; k--)
            for (int b = r->beam - 1; b >= 0; b--)
                if (r->table[w][k][b] >= 0)
                    bm_unref(m, w, r->table[w][k][b]);
    r->used = false;
    bm_sample(m);
    return CKV_OK;
}

ckv_status bm_pin_request(bm *m, int64_t id, ckv_blocks_handles *handles)
{
    bm_request *r = bm_find(m, id);
    if (r == NULL)
        return CKV_ERROR_NOT_FOUND;
    for (int w = m->num_windows - 1; w >= 0; w--) {
        bool seen[BM_BLOCKS] = {false};
        for (int k = 0; k < r->positions; k++)
            for (int b = 0; b < r->beam; b++) {
                int block = r->table[w][k][b];
                if (block < 0 || seen[block])
                    continue;
                seen[block] = true;
                add_pin(m, w, block, handles);
            }
    }
    return CKV_OK;
}

static bm_pin *find_pin(bm *m, const ckv_blocks_handle *handle)
{
    for (int i = 0; i < BM_PINS; i++) {
        bm_pin *pin = &m->pins[i];
        if (pin->used && pin->serial == handle->serial && pin->block == handle->block &&
            m->windows[pin->window].window == handle->window)
            return pin;
    }
    return NULL;
}

ckv_status bm_unpin(bm *m, const ckv_blocks_handle *handles, int count)
{
    for (int i = 0; i < count; i++) {
        if (find_pin(m, &handles[i]) == NULL)
            return CKV_ERROR_NOT_FOUND;
        for (int j = 0; j < i; j++)
            if (handles[j].serial == handles[i].serial)
                return CKV_ERROR_NOT_FOUND;
    }
    for (int i = 0; i < count; i++) {
        bm_pin *pin = find_pin(m, &handles[i]);
        pin->used = false;
        bm_block *b = &m->windows[pin->window].blocks[pin->block];
        b->pins--;
        if (b->pins == 0 && b->refs == 0)
            bm_release(m, pin->window, pin->block);
    }
    bm_sample(m);
    return CKV_OK;
}

int bm_find_blocks(bm *m, const bm_request *r, int w, bool pin, int64_t *ids, ckv_blocks_handles *handles)
{
    bm_options o = {.limit = r->tokens_n, .partial = true, .copy = true, .window = w};
    bm_match found = bm_find_match(m, r, o);
    int count = 0;
    if (found.length != r->tokens_n)
        return 0;
    for (int k = 0; k < found.full; k++)
        ids[count++] = bm_match_block(m, w, &found, k);
    if (found.partial[w] >= 0)
        ids[count++] = m->nodes[found.partial[w]].values[w];
    for (int k = 0; k < count && pin; k++)
        if (ids[k] >= 0 && m->windows[w].blocks[ids[k]].tier != 0)
            return 0;
    for (int k = 0; k < count && pin; k++)
        if (ids[k] >= 0)
            add_pin(m, w, (int)ids[k], handles);
    bm_sample(m);
    return count;
}

static void drop(bm *m, int node, int64_t *dropped)
{
    for (;;) { /* the oldest child first */
        int child = -1;
        for (int n = 0; n < m->num_nodes; n++)
            if (m->nodes[n].used && m->nodes[n].parent == node &&
                (child < 0 || m->nodes[n].serial < m->nodes[child].serial))
                child = n;
        if (child < 0)
            break;
        drop(m, child, dropped);
    }
    for (int w = m->num_windows - 1; w >= 0; w--) {
        int id = m->nodes[node].values[w];
        if (id < 0)
            continue;
        bm_window *window = &m->windows[w];
        window->removed[window->num_removed++] = m->nodes[node].path;
        m->nodes[node].values[w] = -1;
        window->blocks[id].node = -1;
        dropped[w]++;
        if (bm_is_free(&window->blocks[id]))
            bm_release(m, w, id);
    }
    m->nodes[node].used = false;
}

void bm_truncate(bm *m, const bm_request *r, int keep, int64_t *dropped)
{
    int blocks = (keep + m->step - 1) / m->step, node = -1;
    memset(dropped, 0, BM_WINDOWS * sizeof *dropped);
    if (blocks * m->step >= r->tokens_n)
        return;
    for (int k = 0; k < blocks; k++) {
        bm_key key = bm_make_key(m, r, k * m->step, m->step);
        node = bm_child(m, node, &key);
        if (node < 0)
            return;
    }
    int left = r->tokens_n - blocks * m->step;
    for (;;) {
        int next = -1;
        for (int n = 0; n < m->num_nodes; n++) {
            if (!m->nodes[n].used || m->nodes[n].parent != node || m->nodes[n].key.count > left)
                continue;
            bm_key same = bm_make_key(m, r, blocks * m->step, m->nodes[n].key.count);
            if (bm_same_key(&same, &m->nodes[n].key) && (next < 0 || m->nodes[n].serial < m->nodes[next].serial))
                next = n;
        }
        if (next < 0)
            break;
        drop(m, next, dropped);
    }
    if (node >= 0)
        bm_prune(m, node);
    bm_sample(m);
}

ckv_status bm_private(bm *m, int64_t id, int w, int index)
{
    bm_request *r = bm_find(m, id);
    if (r == NULL || index < 0 || index >= r->positions || r->table[w][index][0] < 0)
        return CKV_ERROR_NOT_FOUND;
    if (index >= r->scratch_first[w] && index < r->scratch_end[w])
        return CKV_ERROR_STATE;
    bm *before = malloc(sizeof *before);
    if (before == NULL)
        abort();
    memcpy(before, m, sizeof *before);
    for (int b = r->beam - 1; b >= 0 && !m->out_of_blocks; b--) {
        int from = r->table[w][index][b];
        bm_block *block = &m->windows[w].blocks[from];
        if (block->refs == 1 && block->pins == 0 && block->node < 0)
            continue;
        int own = bm_fresh_for(m, w, block->priority, block->duration);
        if (own < 0)
            break;
        m->windows[w].blocks[own].refs++;
        bm_copy(m, w, from, own, m->step);
        r->table[w][index][b] = (int16_t)own;
        bm_unref(m, w, from);
    }
    bool refused = m->out_of_blocks;
    if (refused)
        memcpy(m, before, sizeof *m);
    free(before);
    bm_sample(m);
    return refused ? CKV_ERROR_CAPACITY : CKV_OK;
}
