/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a request's prefix every window can serve: one walk down the trie, then the deepest place where all
 * windows agree. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <stdlib.h>

enum { AHEAD = 32 }; /* keys hashed, and their nodes loaded, at a time */
static const int64_t NEVER = INT64_MAX;

typedef struct walk {
    const ckv_blocks *m;
    key_source keys;
    match_options options;
    int32_t *nodes; /* [depth + 1] */
    int64_t depth;
    /* [depth + 1][num_windows]: least length at which a window can do without the values it lacks above a depth */
    int64_t *least;
} walk;

/* A child whose leading rows a window can reuse. */
typedef struct candidate {
    int32_t node, common;
} candidate;

static bool is_asked(const walk *k, int32_t window)
{
    return k->options.window == NONE || k->options.window == window;
}

/* Length at which the missing value at `position` is outside of a window. */
static int64_t needs_length(const walk *k, const window_state *w, int64_t position)
{
    if (w->info.recurrent)
        return 0;
    if (!w->info.sliding || position < w->info.sink_blocks)
        return NEVER;
    return (position + 1) * k->m->tokens_per_block + w->recent;
}

static void step_down(walk *k, int32_t node)
{
    const ckv_blocks *m = k->m;
    const int64_t *above = &k->least[k->depth * m->num_windows];
    int64_t *least = &k->least[(k->depth + 1) * m->num_windows];
    for (int32_t i = 0; i < m->num_windows; i++) {
        const window_state *w = &m->windows[i];
        bool missing = is_asked(k, i) && value_of(m, node, w) == NONE;
        least[i] = missing ? ckv_max_i64(above[i], needs_length(k, w, k->depth)) : above[i];
    }
    k->nodes[++k->depth] = node;
}

/* Exact nodes as deep as there are any. */
static void walk_down(walk *k)
{
    const trie *t = &k->m->trie;
    int64_t blocks = k->options.limit / t->tokens_per_block;
    uint64_t digest = t->nodes[TRIE_ROOT].digest, digests[AHEAD];
    while (k->depth < blocks) {
        int64_t first = k->depth, count = ckv_min_i64(AHEAD, blocks - first);
        for (int64_t i = 0; i < count; i++) {
            key_view key = key_make(&k->keys, (first + i) * t->tokens_per_block, t->tokens_per_block);
            digests[i] = digest = key_digest(digest, &key, &t->spaces);
            trie_prefetch(t, digest);
        }
        for (int64_t i = 0; i < count; i++)
            trie_prefetch_node(t, digests[i]);
        for (int64_t i = 0; i < count; i++) {
            key_view key = key_make(&k->keys, (first + i) * t->tokens_per_block, t->tokens_per_block);
            int32_t node = trie_find(t, k->nodes[k->depth], &key, digests[i]);
            if (node == TRIE_NONE)
                return;
            step_down(k, node);
        }
    }
}

static bool may_take(const walk *k, const window_state *w, int32_t node, bool exact)
{
    int32_t id = value_of(k->m, node, w);
    if (id == NONE || !(k->options.partial || exact))
        return false;
    return k->options.copy || (!is_held(&w->blocks[id]) && k->m->trie.nodes[node].first_child == TRIE_NONE);
}

/* The child with most of the key's tokens among those that nobody holds and nothing hangs below: all have to be looked
 * at. */
static candidate best_unheld(const walk *k, const window_state *w, int32_t parent, const key_view *key)
{
    const trie *t = &k->m->trie;
    candidate best = {.node = NONE};
    for (int32_t node = trie_first_like(t, parent, key, 1); node != TRIE_NONE; node = trie_next_like(t, node, key, 1)) {
        key_view found = trie_key(t, node);
        candidate c = {.node = node, .common = key_common(&found, key)};
        bool better = best.node == NONE || c.common > best.common ||
                      (c.common == best.common && t->nodes[node].serial < t->nodes[best.node].serial);
        if (better && may_take(k, w, node, false))
            best = c;
    }
    return best;
}

/* The child with most of the key's tokens, the oldest of equals. */
static candidate best_of_all(const walk *k, const window_state *w, int32_t parent, const key_view *key)
{
    candidate best = {.node = NONE};
    for (int32_t most = key->count; best.common < most;) {
        int32_t common = (best.common + most + 1) / 2;
        int32_t node = trie_oldest_like(&k->m->trie, parent, key, common, w->index);
        if (node == TRIE_NONE)
            most = common - 1;
        else
            best = (candidate){.node = node, .common = common};
    }
    return best;
}

/* The best child of the node at a depth for each window; node NONE, common 0 when there is none. */
static void find_candidates(const walk *k, int64_t depth, candidate *best_out)
{
    const ckv_blocks *m = k->m;
    const trie *t = &m->trie;
    for (int32_t i = 0; i < m->num_windows; i++)
        best_out[i] = (candidate){.node = NONE};
    int64_t start = depth * t->tokens_per_block, left = k->options.limit - start;
    if (left <= 0 || k->options.full_only)
        return;
    int32_t parent = k->nodes[depth];
    key_view key = key_make(&k->keys, start, ckv_min_i64(left, t->tokens_per_block));
    int32_t exact = trie_find(t, parent, &key, key_digest(t->nodes[parent].digest, &key, &t->spaces));
    for (int32_t i = 0; i < m->num_windows; i++) {
        const window_state *w = &m->windows[i];
        if (!is_asked(k, i) || w->info.recurrent)
            continue;
        if (exact != TRIE_NONE && may_take(k, w, exact, true))
            best_out[i] = (candidate){.node = exact, .common = key.count};
        else if (k->options.partial && key.num_mm == 0)
            best_out[i] = k->options.copy ? best_of_all(k, w, parent, &key) : best_unheld(k, w, parent, &key);
    }
}

/* The most tokens all windows serve with the node at a depth as the last whole block; -1: not that deep. */
static int64_t length_at(const walk *k, int64_t depth, candidate *best_out)
{
    const ckv_blocks *m = k->m;
    int64_t rows = m->tokens_per_block - 1, least = 0;
    for (int32_t i = 0; i < m->num_windows; i++) {
        const window_state *w = &m->windows[i];
        least = ckv_max_i64(least, k->least[depth * m->num_windows + i]);
        if (is_asked(k, i) && w->info.recurrent && depth > 0 && value_of(m, k->nodes[depth], w) == NONE)
            return -1;
    }
    if (least > depth * m->tokens_per_block + rows)
        return -1;
    find_candidates(k, depth, best_out);
    for (int32_t i = 0; i < m->num_windows; i++)
        if (is_asked(k, i))
            rows = ckv_min_i64(rows, best_out[i].common);
    int64_t length = depth * m->tokens_per_block + rows;
    return length >= least ? length : -1;
}

ckv_status ckv_blocks_match(const ckv_blocks *m, const live_request *r, match_options options, prefix_match *match_out)
{
    int64_t deepest = m->config.reuse ? options.limit / m->tokens_per_block : 0;
    walk k = {.m = m, .keys = ckv_request_keys(r), .options = options};
    k.nodes = calloc((size_t)(deepest + 1), sizeof *k.nodes);
    k.least = calloc((size_t)((deepest + 1) * m->num_windows), sizeof *k.least);
    if (k.nodes == NULL || k.least == NULL) {
        free(k.nodes);
        free(k.least);
        return ckv_fail(CKV_ERROR_MEMORY, "match of %lld tokens: out of host memory", (long long)options.limit);
    }
    k.nodes[0] = TRIE_ROOT;
    candidate best[CKV_BLOCKS_MAX_WINDOWS] = {{0}};
    int64_t length = -1;
    if (m->config.reuse)
        walk_down(&k);
    else
        k.options.full_only = true;
    while (length < 0) {
        length = length_at(&k, k.depth, best);
        if (length < 0)
            k.depth--;
    }
    *match_out = (prefix_match){.length = length, .full = k.depth, .nodes = k.nodes};
    for (int32_t i = 0; i < m->num_windows; i++)
        match_out->partial[i] = length % m->tokens_per_block > 0 ? best[i].node : NONE;
    free(k.least);
    return CKV_OK;
}

int32_t ckv_match_block(const ckv_blocks *m, const window_state *w, const prefix_match *found, int64_t position)
{
    if (w->info.recurrent && position != found->full - 1)
        return NONE;
    return value_of(m, found->nodes[position + 1], w);
}
