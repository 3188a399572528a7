/* SPDX-License-Identifier: Apache-2.0 */
/* Which prefix the slow block manager can reuse: every length is tried, the longest first. */
#include "tests/support/blocks_model.h"

#include <string.h>

static int least_of(int a, int b)
{
    return a < b ? a : b;
}

static int round_up(int tokens, int step)
{
    return (tokens + step - 1) / step;
}

int bm_shared(const bm *m, const bm_request *r)
{
    bool all = r->beam == 1 || m->config.geometry.cache == CKV_BLOCKS_CROSS;
    return all ? round_up(r->prompt, m->step) : r->prompt / m->step;
}

bool bm_state_real(const bm *m, const bm_request *r, int position)
{
    int end = (position + 1) * m->step;
    if (position == round_up(r->prompt, m->step) - 1)
        return true;
    if (!m->config.reuse || end > r->prompt)
        return false;
    bool last_full = r->prompt % m->step != 0 && position == r->prompt / m->step - 1;
    return end % m->config.snapshot_interval == 0 || (last_full && m->config.save_last_snapshot);
}

/* Rows two keys share from the front, when they may be compared at all. */
static int common_rows(const bm_key *a, const bm_key *b)
{
    int rows = 0;
    if (a->space != b->space || a->extra_used != b->extra_used || a->num_mm > 0 || b->num_mm > 0)
        return 0;
    while (rows < a->count && rows < b->count && a->tokens[rows] == b->tokens[rows] && a->extra[rows] == b->extra[rows])
        rows++;
    return rows;
}

static bool has_children(const bm *m, int node)
{
    for (int n = 0; n < m->num_nodes; n++)
        if (m->nodes[n].used && m->nodes[n].parent == node)
            return true;
    return false;
}

/* The child that gives `rows` rows in one window; -1: none. */
static int pick_source(const bm *m, int w, int parent, const bm_key *wanted, int rows, bm_options o)
{
    int best = -1, best_rows = 0;
    bool best_exact = false;
    for (int n = 0; n < m->num_nodes; n++) {
        const bm_node *node = &m->nodes[n];
        if (!node->used || node->parent != parent || node->values[w] < 0)
            continue;
        bool exact = bm_same_key(&node->key, wanted);
        int common = exact ? wanted->count : common_rows(&node->key, wanted);
        const bm_block *b = &m->windows[w].blocks[node->values[w]];
        if (common < rows || !(o.partial || exact))
            continue;
        if (!o.copy && (b->refs > 0 || b->pins > 0 || has_children(m, n)))
            continue;
        bool better = best < 0 || common > best_rows || (common == best_rows && exact && !best_exact) ||
                      (common == best_rows && exact == best_exact && node->serial < m->nodes[best].serial);
        if (!better)
            continue;
        best = n;
        best_rows = common;
        best_exact = exact;
    }
    return best;
}

static bool window_serves(const bm *m, int w, const int *nodes, int length)
{
    const bm_window *window = &m->windows[w];
    int full = length / m->step;
    if (window->recurrent)
        return length % m->step == 0 && (full == 0 || m->nodes[nodes[full - 1]].values[w] >= 0);
    for (int k = 0; k < full; k++) {
        if (m->nodes[nodes[k]].values[w] >= 0)
            continue;
        if (!window->sliding || k < window->sinks || (k + 1) * m->step + window->recent > length)
            return false;
    }
    return true;
}

bm_match bm_find_match(const bm *m, const bm_request *r, bm_options o)
{
    bm_match found = {.length = 0};
    int depth = 0;
    for (int w = 0; w < BM_WINDOWS; w++)
        found.partial[w] = -1;
    while (m->config.reuse && (depth + 1) * m->step <= o.limit) {
        bm_key key = bm_make_key(m, r, depth * m->step, m->step);
        int node = bm_child(m, depth > 0 ? found.nodes[depth - 1] : -1, &key);
        if (node < 0)
            break;
        found.nodes[depth++] = node;
    }
    int longest = m->config.reuse ? least_of(o.limit, depth * m->step + m->step - 1) : 0;
    for (int length = longest; length > 0; length--) {
        int full = length / m->step, rows = length % m->step, left = o.limit - full * m->step;
        bool served = !(o.full_only && rows > 0);
        bm_key wanted = {.count = 0};
        if (rows > 0)
            wanted = bm_make_key(m, r, full * m->step, least_of(left, m->step));
        for (int w = 0; w < m->num_windows && served; w++) {
            found.partial[w] = -1;
            if (o.window >= 0 && o.window != w)
                continue;
            served = window_serves(m, w, found.nodes, length);
            if (served && rows > 0) {
                found.partial[w] = pick_source(m, w, full > 0 ? found.nodes[full - 1] : -1, &wanted, rows, o);
                served = found.partial[w] >= 0;
            }
        }
        if (served) {
            found.length = length;
            found.full = full;
            return found;
        }
    }
    for (int w = 0; w < BM_WINDOWS; w++)
        found.partial[w] = -1;
    return found;
}

int bm_match_block(const bm *m, int w, const bm_match *found, int position)
{
    if (m->windows[w].recurrent && position != found->full - 1)
        return -1;
    return m->nodes[found->nodes[position]].values[w];
}

/* ---- Scheduling questions ---- */

static void credit(const bm *m, int w, const bm_request *r, bool live, int *all, int *allocated)
{
    *all = *allocated = 0;
    if (live || r->gen_init || m->config.geometry.cache == CKV_BLOCKS_CROSS)
        return;
    bm_options o = {.limit = r->prompt - 1, .full_only = true, .window = -1};
    bm_match found = bm_find_match(m, r, o);
    for (int k = 0; k < found.full; k++) {
        int id = bm_match_block(m, w, &found, k);
        if (id < 0)
            continue;
        (*all)++;
        *allocated += m->windows[w].blocks[id].refs > 0 || m->windows[w].blocks[id].pins > 0;
    }
}

static int state_count(const bm *m, const bm_request *r)
{
    int count = 0;
    for (int k = 0; k < round_up(r->prompt, m->step); k++)
        if (bm_state_real(m, r, k))
            count += k < bm_shared(m, r) ? 1 : r->beam;
    return count;
}

static int growth(const bm *m, int w, const bm_request *r, int add)
{
    int next = r->tokens_n + add;
    if (next > m->config.geometry.max_seq_len)
        return 0;
    int crossed = round_up(next, m->step) - round_up(r->tokens_n, m->step);
    if (!m->windows[w].recurrent)
        return crossed * r->beam;
    int same = 0;
    for (int b = 1; b < r->beam; b++)
        same += r->table[w][r->positions - 1][b] == r->table[w][r->positions - 1][0];
    return crossed > 0 ? same : 0;
}

ckv_blocks_demand bm_needed(const bm *m, int w, const bm_request *r, bool live, bool two_steps)
{
    int step = m->step, span = (int)(m->windows[w].window + m->config.chunk_size);
    bool cross = m->config.geometry.cache == CKV_BLOCKS_CROSS;
    if (live) {
        if (r->kv < r->prompt || cross)
            return (ckv_blocks_demand){0, 0};
        int left = r->max_new - (r->tokens_n - r->prompt);
        return (ckv_blocks_demand){growth(m, w, r, least_of((two_steps ? 2 : 1) * (r->draft + 1), left > 0 ? left : 0)),
                                   0};
    }
    if (m->windows[w].recurrent)
        return (ckv_blocks_demand){state_count(m, r), 0};
    int all, allocated, length = least_of(r->prompt + least_of(r->draft, r->max_new), span);
    if (cross)
        return (ckv_blocks_demand){round_up(length, step), 0};
    credit(m, w, r, live, &all, &allocated);
    int cap = least_of(length / step, (least_of(r->prompt, span) - 1) / step);
    int blocks = length / step + (length % step > 0 ? r->beam : 0) - least_of(allocated, cap);
    return (ckv_blocks_demand){blocks, least_of(all, cap) * step};
}

ckv_blocks_demand bm_remaining(const bm *m, int w, const bm_request *r, bool live)
{
    int step = m->step, end = r->prompt + r->max_new;
    if (m->config.geometry.cache == CKV_BLOCKS_CROSS)
        return (ckv_blocks_demand){live ? 0 : round_up(r->prompt, step), 0};
    if (m->windows[w].recurrent) {
        int left = r->max_new - (r->tokens_n - r->prompt);
        if (!live)
            return (ckv_blocks_demand){state_count(m, r), 0};
        return (ckv_blocks_demand){r->kv < r->prompt ? 0 : growth(m, w, r, left > 0 ? left : 0), 0};
    }
    int window = (int)m->windows[w].window, span = window + (int)m->config.chunk_size;
    int context = least_of(r->prompt, span) / step, total = round_up(least_of(end, span), step);
    int have = live ? r->positions - r->removed[w] : 0, all, allocated;
    credit(m, w, r, live, &all, &allocated);
    int cap = least_of(context, (r->prompt - 1) / step), saved = least_of(allocated, cap);
    int last = round_up(end, step);
    int extra = end > window && last > round_up(r->tokens_n, step) && last > total;
    int blocks = have < context - saved ? context - saved - have + (total - context + extra) * r->beam
                                        : (total - saved - have + extra) * r->beam;
    return (ckv_blocks_demand){blocks, least_of(all, cap) * step};
}
