/* SPDX-License-Identifier: Apache-2.0 */
/* Forgetting what follows a prefix. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
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

static void insert_by_age(const trie *t, int32_t *tops, int64_t count, int32_t node)
{
    for (; count > 0 && t->nodes[tops[count - 1]].serial > t->nodes[node].serial; count--)
        tops[count] = tops[count - 1];
    tops[count] = node;
}

/* Children whose key is the `most` tokens from `start` on or begins them, oldest first: at most one of each length. In
 * their order, the first child that shares some number of tokens is the only one that could end with them. */
static int64_t find_tops(const trie *t, const key_source *keys, int32_t parent, int64_t start, int64_t most,
                         int32_t *tops_out)
{
    int64_t count = 0;
    key_view key = key_make(keys, start, most);
    if (key.num_mm > 0) {
        for (int32_t child = t->nodes[parent].first_child; child != TRIE_NONE; child = t->nodes[child].next_sibling)
            if (continues(t, keys, child, start, most))
                tops_out[count++] = child;
        return count;
    }
    for (int32_t shared = 1; shared <= most;) {
        int32_t node = trie_first_like(t, parent, &key, shared);
        if (node == TRIE_NONE)
            break;
        key_view found = trie_key(t, node);
        int32_t common = key_common(&found, &key);
        if (common == found.count)
            insert_by_age(t, tops_out, count++, node);
        shared = common + 1;
    }
    return count;
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

static ckv_status truncate_path(ckv_blocks *m, const live_request *r, int64_t keep, int64_t *dropped_out)
{
    trie *t = &m->trie;
    key_source keys = ckv_request_keys(r);
    int64_t blocks = ckv_ceil_div_i64(keep, t->tokens_per_block), start = blocks * t->tokens_per_block;
    int32_t node = start < r->num_tokens ? descend(t, &keys, blocks) : TRIE_NONE;
    if (node == TRIE_NONE)
        return CKV_OK;
    int64_t most = ckv_min_i64(r->num_tokens - start, t->tokens_per_block);
    int32_t *tops = malloc((size_t)most * sizeof *tops);
    if (tops == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "truncate: out of host memory");
    int64_t count = find_tops(t, &keys, node, start, most, tops);
    for (int64_t i = 0; i < count; i++)
        drop_subtree(m, tops[i], dropped_out);
    trie_prune(t, node);
    free(tops);
    return CKV_OK;
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
        status = truncate_path(blocks, r, ckv_min_i64(keep, r->num_tokens), dropped);
        ckv_request_destroy(blocks, r);
        if (status == CKV_OK && dropped_out != NULL)
            memcpy(dropped_out, dropped, (size_t)blocks->num_windows * sizeof *dropped_out);
    }
    return ckv_blocks_leave(blocks, status);
}
