/* SPDX-License-Identifier: Apache-2.0 */
/* Forgetting what follows a prefix. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <string.h>

/* Node of the first `blocks` whole keys of a path; TRIE_NONE: not that deep. */
static int32_t descend(const trie *t, const key_source *keys, int64_t blocks)
{
    int32_t node = TRIE_ROOT;
    for (int64_t k = 0; k < blocks && node != TRIE_NONE; k++) {
        key_view key = key_make(keys, k * t->tokens_per_block, t->tokens_per_block);
        node = trie_find(t, node, &key, key_digest(t->nodes[node].digest, &key, &t->spaces));
    }
    return node;
}

/* Is the node's key the request's tokens from `start` on, as far as the key goes? */
static bool continues(const trie *t, const key_source *keys, int32_t node, int64_t start, int64_t most)
{
    key_view key = trie_key(t, node);
    if (key.count > most)
        return false;
    key_view same = key_make(keys, start, key.count);
    return key_equal(&key, &same);
}

/* Take the values of one node out of the trie, windows from the largest. Blocks nobody holds become empty ones. */
static void drop_values(ckv_blocks *m, int32_t node, int64_t *dropped_out)
{
    for (int32_t i = m->num_windows - 1; i >= 0; i--) {
        window_state *w = &m->windows[i];
        int32_t id = value_of(m, node, w);
        if (id == NONE)
            continue;
        bool free = w->blocks[id].list != NO_LIST;
        if (free)
            ckv_block_claim(w, id);
        ckv_events_removed(m, w, m->trie.nodes[node].digest);
        trie_clear_value(&m->trie, node, i);
        w->blocks[id].node = NONE;
        if (free)
            ckv_block_release(m, w, id);
        dropped_out[i]++;
    }
}

/* A node with all its descendants, children in order of creation before their parent. */
static void drop_subtree(ckv_blocks *m, int32_t top, int64_t *dropped_out)
{
    const trie *t = &m->trie;
    int32_t node = top;
    for (;;) {
        while (t->nodes[node].first_child != TRIE_NONE)
            node = t->nodes[node].first_child;
        int32_t parent = t->nodes[node].parent;
        drop_values(m, node, dropped_out);
        bool done = node == top;
        trie_remove_leaf(&m->trie, node);
        if (done)
            return;
        node = parent;
    }
}

static void truncate_path(ckv_blocks *m, const live_request *r, int64_t keep, int64_t *dropped_out)
{
    trie *t = &m->trie;
    key_source keys = ckv_request_keys(r);
    int64_t blocks = ckv_ceil_div_i64(keep, t->tokens_per_block), start = blocks * t->tokens_per_block;
    if (start >= r->num_tokens)
        return;
    int32_t node = descend(t, &keys, blocks);
    if (node == TRIE_NONE)
        return;
    int64_t most = ckv_min_i64(r->num_tokens - start, t->tokens_per_block);
    for (int32_t child = t->nodes[node].first_child, next; child != TRIE_NONE; child = next) {
        next = t->nodes[child].next_sibling;
        if (continues(t, &keys, child, start, most))
            drop_subtree(m, child, dropped_out);
    }
    trie_prune(t, node);
}

ckv_status ckv_blocks_truncate(ckv_blocks *blocks, const ckv_blocks_request *request, int64_t keep,
                               int64_t *dropped_out)
{
    if (request == NULL || keep < 0)
        return ckv_fail(CKV_ERROR_INVALID, "truncate: keep is %" PRId64 ", or request is NULL", keep);
    CKV_TRY(ckv_blocks_enter(blocks, "truncate"));
    live_request *r;
    int64_t dropped[CKV_BLOCKS_MAX_WINDOWS] = {0};
    ckv_status status = ckv_request_create(blocks, request, &r);
    if (status == CKV_OK) {
        truncate_path(blocks, r, ckv_min_i64(keep, r->num_tokens), dropped);
        ckv_request_destroy(blocks, r);
        if (dropped_out != NULL)
            memcpy(dropped_out, dropped, (size_t)blocks->num_windows * sizeof *dropped_out);
    }
    return ckv_blocks_leave(blocks, status);
}
