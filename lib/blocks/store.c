/* SPDX-License-Identifier: Apache-2.0 */
/* Making written blocks reusable. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Tokens whose K and V are surely written; never the last one. */
static int64_t usable_tokens(const live_request *r)
{
    int64_t written = r->kv >= r->prompt ? r->num_tokens : r->kv;
    return written > 0 ? written - CKV_MUTATE(unwritten_token_stored, 0, 1) : 0;
}

/* Keys to walk: whole blocks, and the rest as one more. */
static int64_t count_keys(const ckv_blocks *m, const live_request *r, store_what what)
{
    if (r->dummy || !m->config.reuse)
        return 0;
    int64_t usable = usable_tokens(r);
    if (r->beam > 1)
        return ckv_min_i64(usable, r->prompt) / m->tokens_per_block;
    return what == STORE_TAIL ? ckv_ceil_div_i64(usable, m->tokens_per_block) : usable / m->tokens_per_block;
}

/* Nodes of the keys, made where they are missing. How many: fewer when memory runs out for a key. */
static int64_t walk_keys(ckv_blocks *m, const live_request *r, int64_t count, int32_t *nodes_out)
{
    trie *t = &m->trie;
    key_source keys = ckv_request_keys(r);
    int64_t usable = usable_tokens(r);
    int32_t node = TRIE_ROOT;
    for (int64_t k = 0; k < count; k++) {
        int64_t start = k * t->tokens_per_block;
        key_view key = key_make(&keys, start, ckv_min_i64(usable - start, t->tokens_per_block));
        uint64_t digest = key_digest(t->nodes[node].digest, &key, &t->spaces);
        int32_t child = trie_find(t, node, &key, digest);
        if (child == TRIE_NONE)
            child = trie_add(t, node, &key, digest);
        if (child == TRIE_NONE)
            return k;
        nodes_out[k] = node = child;
    }
    return count;
}

static bool is_storable(const ckv_blocks *m, const window_state *w, const live_request *r, int64_t position)
{
    int64_t end = (position + 1) * m->tokens_per_block;
    if (ckv_request_is_scratch(r, w, position))
        return false;
    if (w->info.recurrent)
        return end < r->prompt && r->snapshots[position] && ckv_state_is_snapshot(m, r, position);
    bool outside = w->info.sliding && position >= w->info.sink_blocks && end + w->recent <= r->num_tokens;
    return !outside || m->config.policy == CKV_BLOCKS_REUSE_ALL;
}

/* Put one position's block at its node. False: it has none to give, or the place is taken. */
static bool store_position(ckv_blocks *m, window_state *w, live_request *r, int64_t position, int32_t node)
{
    int32_t id = *table_at(r, w, position);
    if (id == NONE || value_of(m, node, w) != NONE || !is_storable(m, w, r, position))
        return false;
    block_state *b = &w->blocks[id];
    if (b->node != NONE) {
        if (m->trie.nodes[b->node].count >= m->trie.nodes[node].count)
            return false;
        ckv_block_forget(m, w, id);
    }
    b->node = node;
    trie_set_value(&m->trie, node, w->index, id);
    return true;
}

static int64_t store_window(ckv_blocks *m, window_state *w, live_request *r, const int32_t *nodes, int64_t count)
{
    int64_t stored = 0, run = 0;
    for (int64_t k = 0; k < count; k++) {
        if (store_position(m, w, r, k, nodes[k])) {
            stored++;
            run++;
            continue;
        }
        ckv_events_stored(m, w, nodes + k - run, run);
        run = 0;
    }
    ckv_events_stored(m, w, nodes + count - run, run);
    return stored;
}

static void pin_stored(ckv_blocks *m, window_state *w, live_request *r, const int32_t *nodes, int64_t count,
                       ckv_blocks_handles *handles)
{
    for (int64_t k = 0; k < count; k++) {
        int32_t id = value_of(m, nodes[k], w);
        if (id != NONE && *table_at(r, w, k) != NONE && !ckv_request_is_scratch(r, w, k))
            ckv_pins_add(m, w, id, handles);
    }
}

ckv_status ckv_request_store(ckv_blocks *m, live_request *r, store_what what, int64_t *stored_out,
                             ckv_blocks_handles *handles_out)
{
    int64_t count = count_keys(m, r, what);
    ckv_blocks_handles handles = {NULL, 0};
    int32_t *nodes = malloc((size_t)(count + 1) * sizeof *nodes);
    ckv_status status = nodes != NULL && trie_reserve(&m->trie, count)
                            ? CKV_OK
                            : ckv_fail(CKV_ERROR_MEMORY, "store of request %" PRId64 ": out of host memory", r->id);
    if (status == CKV_OK && handles_out != NULL)
        status = ckv_pins_reserve(m, &handles, count * m->num_windows);
    if (status != CKV_OK) {
        free(nodes);
        return status;
    }
    count = walk_keys(m, r, count, nodes);
    for (int32_t i = m->num_windows - 1; i >= 0; i--) {
        int64_t stored = store_window(m, &m->windows[i], r, nodes, count);
        if (stored_out != NULL)
            stored_out[i] = stored;
    }
    for (int32_t i = m->num_windows - 1; handles_out != NULL && i >= 0; i--)
        pin_stored(m, &m->windows[i], r, nodes, count, &handles);
    if (count > 0)
        trie_prune(&m->trie, nodes[count - 1]);
    free(nodes);
    if (handles_out != NULL)
        *handles_out = handles;
    return CKV_OK;
}

typedef enum store_when { STORE_ALWAYS, STORE_AT_BOUNDARY, STORE_ONCE } store_when;

static ckv_status store(ckv_blocks *m, int64_t id, store_what what, store_when when, int64_t *stored_out,
                        ckv_blocks_handles *handles_out)
{
    live_request *r;
    CKV_TRY(ckv_request_find(m, id, &r));
    if (when == STORE_ONCE && r->kv < r->prompt)
        return ckv_fail(CKV_ERROR_STATE,
                        "finish_context: the context of request %" PRId64 " is at %" PRId64 " of %" PRId64, id, r->kv,
                        r->prompt);
    if (when == STORE_ONCE && r->context_finished)
        return ckv_fail(CKV_ERROR_STATE, "finish_context: request %" PRId64 " has been finished before", id);
    bool due = usable_tokens(r) > 0 && usable_tokens(r) % m->tokens_per_block == 0 && r->beam == 1;
    if (when == STORE_AT_BOUNDARY && !due) {
        if (stored_out != NULL)
            memset(stored_out, 0, (size_t)m->num_windows * sizeof *stored_out);
        return CKV_OK;
    }
    CKV_TRY(ckv_request_store(m, r, what, stored_out, handles_out));
    r->context_finished |= when == STORE_ONCE;
    return CKV_OK;
}

ckv_status ckv_blocks_store_context(ckv_blocks *blocks, int64_t id, int64_t *stored_out)
{
    CKV_TRY(ckv_blocks_enter(blocks, "store_context"));
    return ckv_blocks_leave(blocks, store(blocks, id, STORE_FULL, STORE_ALWAYS, stored_out, NULL));
}

ckv_status ckv_blocks_store_new(ckv_blocks *blocks, int64_t id, int64_t *stored_out)
{
    CKV_TRY(ckv_blocks_enter(blocks, "store_new"));
    return ckv_blocks_leave(blocks, store(blocks, id, STORE_FULL, STORE_AT_BOUNDARY, stored_out, NULL));
}

ckv_status ckv_blocks_store_for_reuse(ckv_blocks *blocks, int64_t id, int64_t *stored_out,
                                      ckv_blocks_handles *handles_out)
{
    CKV_TRY(ckv_blocks_enter(blocks, "store_for_reuse"));
    return ckv_blocks_leave(blocks, store(blocks, id, STORE_TAIL, STORE_ALWAYS, stored_out, handles_out));
}

ckv_status ckv_blocks_finish_context(ckv_blocks *blocks, int64_t id, int64_t *stored_out,
                                     ckv_blocks_handles *handles_out)
{
    CKV_TRY(ckv_blocks_enter(blocks, "finish_context"));
    return ckv_blocks_leave(blocks, store(blocks, id, STORE_FULL, STORE_ONCE, stored_out, handles_out));
}
