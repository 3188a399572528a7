/* SPDX-License-Identifier: Apache-2.0 */
/* Free blocks: one list per tier and priority, one of empty blocks, and a heap of deadlines. Taking the cheapest block
 * looks at two words. */
#include "lib/blocks/blocks.h"

void ckv_lists_init(window_state *w)
{
    for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++)
        for (int list = 0; list < NUM_LISTS; list++)
            w->free[tier].head[list] = w->free[tier].tail[list] = NONE;
    int32_t primary = (int32_t)w->info.blocks[CKV_BLOCKS_PRIMARY];
    for (int32_t id = w->total - 1; id >= 0; id--) {
        int tier = id >= primary ? CKV_BLOCKS_HOST : CKV_BLOCKS_PRIMARY;
        w->blocks[id] = (block_state){.node = NONE,
                                      .slot = tier == CKV_BLOCKS_HOST ? id - primary : id,
                                      .heap_at = NONE,
                                      .last_partial = NONE,
                                      .tier = (uint8_t)tier,
                                      .list = NO_LIST};
        ckv_lists_push_empty(w, id);
    }
}

static void insert(window_state *w, int32_t id, uint8_t list, bool front)
{
    block_state *b = &w->blocks[id];
    free_lists *lists = &w->free[b->tier];
    b->list = list;
    b->prev = front ? NONE : lists->tail[list];
    b->next = front ? lists->head[list] : NONE;
    if (b->prev != NONE)
        w->blocks[b->prev].next = id;
    else
        lists->head[list] = id;
    if (b->next != NONE)
        w->blocks[b->next].prev = id;
    else
        lists->tail[list] = id;
    lists->nonempty[list / 64] |= (uint64_t)1 << list % 64;
    lists->count++;
    lists->empty += list == EMPTY_LIST;
}

void ckv_lists_remove(window_state *w, int32_t id)
{
    block_state *b = &w->blocks[id];
    free_lists *lists = &w->free[b->tier];
    if (b->prev != NONE)
        w->blocks[b->prev].next = b->next;
    else
        lists->head[b->list] = b->next;
    if (b->next != NONE)
        w->blocks[b->next].prev = b->prev;
    else
        lists->tail[b->list] = b->prev;
    if (lists->head[b->list] == NONE)
        lists->nonempty[b->list / 64] &= ~((uint64_t)1 << b->list % 64);
    lists->count--;
    lists->empty -= b->list == EMPTY_LIST;
    b->list = NO_LIST;
}

void ckv_lists_push(window_state *w, int32_t id)
{
    insert(w, id, w->blocks[id].priority, false);
}

void ckv_lists_push_empty(window_state *w, int32_t id)
{
    ckv_deadline_clear(w, id);
    w->blocks[id].priority = CKV_BLOCKS_DEFAULT_PRIORITY;
    w->blocks[id].duration_ms = CKV_BLOCKS_NO_DURATION;
    insert(w, id, EMPTY_LIST, true);
}

int32_t ckv_lists_cheapest(const free_lists *lists)
{
    if (lists->empty > 0)
        return lists->head[EMPTY_LIST];
    for (int word = 0; word < 2; word++)
        if (lists->nonempty[word] != 0)
            return lists->head[word * 64 + __builtin_ctzll(lists->nonempty[word])];
    return NONE;
}

static bool is_due_before(const window_state *w, int32_t a, int32_t b)
{
    const block_state *left = &w->blocks[a], *right = &w->blocks[b];
    if (left->deadline_ms != right->deadline_ms)
        return left->deadline_ms < right->deadline_ms;
    return left->released < right->released;
}

static void put(window_state *w, int32_t at, int32_t id)
{
    w->deadlines[at] = id;
    w->blocks[id].heap_at = at;
}

/* Move `id` from `at` to where it belongs. */
static void sift(window_state *w, int32_t at, int32_t id)
{
    while (at > 0 && is_due_before(w, id, w->deadlines[(at - 1) / 2])) {
        put(w, at, w->deadlines[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (int32_t child; (child = 2 * at + 1) < w->num_deadlines; at = child) {
        if (child + 1 < w->num_deadlines && is_due_before(w, w->deadlines[child + 1], w->deadlines[child]))
            child++;
        if (!is_due_before(w, w->deadlines[child], id))
            break;
        put(w, at, w->deadlines[child]);
    }
    put(w, at, id);
}

void ckv_deadline_set(window_state *w, int32_t id, int64_t deadline_ms)
{
    ckv_deadline_clear(w, id);
    w->blocks[id].deadline_ms = deadline_ms;
    sift(w, w->num_deadlines++, id);
}

void ckv_deadline_clear(window_state *w, int32_t id)
{
    block_state *b = &w->blocks[id];
    b->deadline_ms = NO_DEADLINE;
    int32_t at = b->heap_at;
    if (at == NONE)
        return;
    b->heap_at = NONE;
    int32_t last = w->deadlines[--w->num_deadlines];
    if (last != id)
        sift(w, at, last);
}
