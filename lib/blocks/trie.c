/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/blocks/trie.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 64 };
static const uint64_t ROOT_DIGEST = 0x6b8f2a1d9c3e5704u;

static int32_t *exact_bucket(const trie *t, uint64_t digest)
{
    return &t->exact[(uint32_t)(digest >> 32) & t->bucket_mask];
}

static int32_t *node_tokens(const trie *t, int32_t node)
{
    return t->tokens + (int64_t)node * t->tokens_per_block;
}

static void link_exact(trie *t, int32_t node)
{
    int32_t *bucket = exact_bucket(t, t->nodes[node].digest);
    t->nodes[node].next_exact = *bucket;
    *bucket = node;
}

static void unlink_exact(trie *t, int32_t node)
{
    int32_t *link = exact_bucket(t, t->nodes[node].digest);
    while (*link != node)
        link = &t->nodes[*link].next_exact;
    *link = t->nodes[node].next_exact;
}

static bool rebuild_buckets(trie *t, int32_t capacity)
{
    uint32_t buckets = FIRST_CAPACITY;
    while (buckets < (uint32_t)capacity)
        buckets *= 2;
    if (t->exact != NULL && buckets == t->bucket_mask + 1)
        return true;
    int32_t *exact = malloc(buckets * sizeof *exact);
    if (exact == NULL)
        return false;
    memset(exact, 0xff, buckets * sizeof *exact); /* TRIE_NONE */
    free(t->exact);
    t->exact = exact;
    t->bucket_mask = buckets - 1;
    for (int32_t i = 1; i < t->used; i++)
        if (t->nodes[i].parent != TRIE_NONE)
            link_exact(t, i);
    return true;
}

bool trie_reserve(trie *t, int64_t more)
{
    int64_t needed = t->live + 1 + more; /* and the root */
    if (needed <= t->capacity)
        return true;
    int64_t capacity = t->capacity > 0 ? t->capacity : FIRST_CAPACITY;
    while (capacity < needed)
        capacity += capacity / 4; /* what lies idle stays a small part of what a node takes */
    if (capacity > INT32_MAX / 2)
        return false;
    /* An array that has grown stays grown when a later one cannot. */
    trie_node *nodes = realloc(t->nodes, (size_t)capacity * sizeof *nodes);
    t->nodes = nodes != NULL ? nodes : t->nodes;
    int32_t *tokens = realloc(t->tokens, (size_t)capacity * (size_t)t->tokens_per_block * sizeof *tokens);
    t->tokens = tokens != NULL ? tokens : t->tokens;
    int32_t *values = realloc(t->values, (size_t)capacity * (size_t)t->num_windows * sizeof *values);
    t->values = values != NULL ? values : t->values;
    int32_t *oldest = realloc(t->oldest, (size_t)capacity * (size_t)t->num_windows * sizeof *oldest);
    t->oldest = oldest != NULL ? oldest : t->oldest;
    if (nodes == NULL || tokens == NULL || values == NULL || oldest == NULL || !rebuild_buckets(t, (int32_t)capacity))
        return false;
    t->capacity = (int32_t)capacity;
    return true;
}

bool trie_init(trie *t, int32_t tokens_per_block, int32_t num_windows)
{
    *t = (trie){.tokens_per_block = tokens_per_block, .num_windows = num_windows, .unused = TRIE_NONE};
    key_spaces_init(&t->spaces);
    if (!trie_reserve(t, 0))
        return false;
    t->nodes[TRIE_ROOT] = (trie_node){.digest = ROOT_DIGEST,
                                      .parent = TRIE_NONE,
                                      .first_child = TRIE_NONE,
                                      .last_child = TRIE_NONE,
                                      .order = TRIE_NONE,
                                      .num_values = 1}; /* never pruned */
    memset(t->values, 0xff, (size_t)num_windows * sizeof *t->values);
    t->used = 1;
    return true;
}

void trie_free(trie *t)
{
    for (int32_t i = 0; i < t->used; i++)
        free(t->nodes[i].more);
    free(t->nodes);
    free(t->tokens);
    free(t->values);
    free(t->oldest);
    free(t->exact);
    key_spaces_free(&t->spaces);
    *t = (trie){0};
}

key_view trie_key(const trie *t, int32_t node)
{
    const trie_node *n = &t->nodes[node];
    bool extra = n->more != NULL && t->spaces.items[n->space].uses_extra;
    const int64_t *mm = n->num_mm > 0 ? n->more + (extra ? n->count : 0) : NULL;
    _Static_assert(sizeof(key_mm) == 2 * sizeof(int64_t), "multimodal items are stored as pairs");
    return (key_view){.tokens = node_tokens(t, node),
                      .extra = extra ? n->more : NULL,
                      .mm = (const key_mm *)mm,
                      .count = n->count,
                      .num_mm = n->num_mm,
                      .space = n->space};
}

int32_t trie_find(const trie *t, int32_t parent, const key_view *key, uint64_t digest)
{
    for (int32_t node = *exact_bucket(t, digest); node != TRIE_NONE; node = t->nodes[node].next_exact) {
        if (t->nodes[node].digest != digest || t->nodes[node].parent != parent)
            continue;
        key_view found = trie_key(t, node);
        if (key_equal(&found, key))
            return node;
    }
    return TRIE_NONE;
}

void trie_prefetch(const trie *t, uint64_t digest)
{
    __builtin_prefetch(exact_bucket(t, digest));
}

void trie_prefetch_node(const trie *t, uint64_t digest)
{
    int32_t node = *exact_bucket(t, digest);
    if (node == TRIE_NONE)
        return;
    __builtin_prefetch(&t->nodes[node]);
    __builtin_prefetch(&t->nodes[node].next_exact);
    __builtin_prefetch(node_tokens(t, node));
    __builtin_prefetch(node_tokens(t, node) + t->tokens_per_block - 1);
    __builtin_prefetch(&t->values[(int64_t)node * t->num_windows]);
}

static bool copy_more(trie_node *n, const key_view *key)
{
    size_t extra = key->extra != NULL ? (size_t)key->count : 0, items = (size_t)key->num_mm;
    if (extra + items == 0)
        return true;
    n->more = malloc((extra + 2 * items) * sizeof *n->more);
    if (n->more == NULL)
        return false;
    if (extra > 0)
        memcpy(n->more, key->extra, extra * sizeof *n->more);
    if (items > 0)
        memcpy(n->more + extra, key->mm, items * sizeof *key->mm);
    return true;
}

static void link_child(trie *t, int32_t node)
{
    trie_node *n = &t->nodes[node], *parent = &t->nodes[n->parent];
    n->prev_sibling = parent->last_child;
    if (parent->last_child != TRIE_NONE)
        t->nodes[parent->last_child].next_sibling = node;
    else
        parent->first_child = node;
    parent->last_child = node;
}

static void unlink_child(trie *t, int32_t node)
{
    const trie_node *n = &t->nodes[node];
    trie_node *parent = &t->nodes[n->parent];
    if (n->prev_sibling != TRIE_NONE)
        t->nodes[n->prev_sibling].next_sibling = n->next_sibling;
    else
        parent->first_child = n->next_sibling;
    if (n->next_sibling != TRIE_NONE)
        t->nodes[n->next_sibling].prev_sibling = n->prev_sibling;
    else
        parent->last_child = n->prev_sibling;
}

int32_t trie_add(trie *t, int32_t parent, const key_view *key, uint64_t digest)
{
    trie_node fresh = {.digest = digest,
                       .serial = t->next_serial,
                       .parent = parent,
                       .first_child = TRIE_NONE,
                       .last_child = TRIE_NONE,
                       .next_sibling = TRIE_NONE,
                       .prev_sibling = TRIE_NONE,
                       .order = TRIE_NONE,
                       .space = key->space,
                       .count = key->count,
                       .num_mm = key->num_mm};
    if (!copy_more(&fresh, key))
        return TRIE_NONE;
    int32_t node = t->unused;
    if (node != TRIE_NONE)
        t->unused = t->nodes[node].next_exact;
    else
        node = t->used++;
    t->nodes[node] = fresh;
    memcpy(node_tokens(t, node), key->tokens, (size_t)key->count * sizeof *key->tokens);
    memset(&t->values[(int64_t)node * t->num_windows], 0xff, (size_t)t->num_windows * sizeof *t->values);
    t->next_serial++;
    t->live++;
    key_space_retain(&t->spaces, key->space);
    link_exact(t, node);
    link_child(t, node);
    trie_order_add(t, node, key);
    return node;
}

void trie_set_value(trie *t, int32_t node, int32_t window, int32_t block)
{
    t->values[(int64_t)node * t->num_windows + window] = block;
    t->nodes[node].num_values++;
    trie_order_changed(t, node, window);
}

void trie_clear_value(trie *t, int32_t node, int32_t window)
{
    t->values[(int64_t)node * t->num_windows + window] = -1;
    t->nodes[node].num_values--;
    trie_order_changed(t, node, window);
}

void trie_remove_leaf(trie *t, int32_t node)
{
    unlink_exact(t, node);
    trie_order_remove(t, node);
    unlink_child(t, node);
    key_space_release(&t->spaces, t->nodes[node].space);
    free(t->nodes[node].more);
    t->nodes[node] = (trie_node){.parent = TRIE_NONE, .next_exact = t->unused};
    t->unused = node;
    t->live--;
}

void trie_prune(trie *t, int32_t node)
{
    while (t->nodes[node].num_values == 0 && t->nodes[node].first_child == TRIE_NONE) {
        int32_t parent = t->nodes[node].parent;
        trie_remove_leaf(t, node);
        node = parent;
    }
}
