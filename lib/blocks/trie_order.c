/* SPDX-License-Identifier: Apache-2.0 */
/* Children of a node in the order of their keys: a search tree (a treap; priorities are digests) in which each node
 * also knows the oldest one below it that has a block, per window. So the child that shares most tokens with a prompt
 * is found without looking at its siblings, of which there are as many as prompts that once began alike. Keys with
 * multimodal items are matched exactly or not at all, and stay outside. */
#include "lib/blocks/trie.h"

static const int32_t *tokens_of(const trie *t, int32_t node)
{
    return t->tokens + (int64_t)node * t->tokens_per_block;
}

static const int64_t *extra_of(const trie *t, int32_t node)
{
    const trie_node *n = &t->nodes[node];
    return n->more != NULL && t->spaces.items[n->space].uses_extra ? n->more : NULL;
}

/* Order of a node and a key by their first `count` tokens; 0: the node has as many and they are equal. */
static int compare(const trie *t, int32_t node, const key_view *key, int32_t count)
{
    const trie_node *n = &t->nodes[node];
    if (n->space != key->space)
        return n->space < key->space ? -1 : 1;
    const int32_t *tokens = tokens_of(t, node);
    const int64_t *extra = extra_of(t, node);
    for (int32_t i = 0; i < count; i++) {
        if (i >= n->count)
            return -1;
        if (tokens[i] != key->tokens[i])
            return tokens[i] < key->tokens[i] ? -1 : 1;
        if (extra != NULL && extra[i] != key->extra[i])
            return extra[i] < key->extra[i] ? -1 : 1;
    }
    return 0;
}

static int32_t older(const trie *t, int32_t a, int32_t b)
{
    if (a == TRIE_NONE || b == TRIE_NONE)
        return a == TRIE_NONE ? b : a;
    return t->nodes[a].serial < t->nodes[b].serial ? a : b;
}

static int32_t oldest_below(const trie *t, int32_t node, int32_t window)
{
    return node == TRIE_NONE ? TRIE_NONE : t->oldest[(int64_t)node * t->num_windows + window];
}

/* The node itself, when it has a block. */
static int32_t itself(const trie *t, int32_t node, int32_t window)
{
    return trie_value(t, node, window) < 0 ? TRIE_NONE : node;
}

int32_t trie_order_recount(const trie *t, int32_t node, int32_t window)
{
    const trie_node *n = &t->nodes[node];
    return older(t, itself(t, node, window),
                 older(t, oldest_below(t, n->left, window), oldest_below(t, n->right, window)));
}

static void recount(trie *t, int32_t node)
{
    for (int32_t i = 0; i < t->num_windows; i++)
        t->oldest[(int64_t)node * t->num_windows + i] = trie_order_recount(t, node, i);
}

void trie_order_changed(trie *t, int32_t node, int32_t window)
{
    for (; node != TRIE_NONE; node = t->nodes[node].up) {
        int32_t *oldest = &t->oldest[(int64_t)node * t->num_windows + window],
                now = trie_order_recount(t, node, window);
        if (*oldest == now)
            return;
        *oldest = now;
    }
}

/* Where the node hangs. */
static int32_t *link_of(trie *t, int32_t node)
{
    trie_node *n = &t->nodes[node];
    if (n->up == TRIE_NONE)
        return &t->nodes[n->parent].order;
    trie_node *up = &t->nodes[n->up];
    return up->left == node ? &up->left : &up->right;
}

/* A node takes the place of the one it hangs on. */
static void rotate_up(trie *t, int32_t node)
{
    int32_t above = t->nodes[node].up, moved;
    trie_node *n = &t->nodes[node], *a = &t->nodes[above];
    *link_of(t, above) = node;
    if (a->left == node) {
        moved = a->left = n->right;
        n->right = above;
    } else {
        moved = a->right = n->left;
        n->left = above;
    }
    if (moved != TRIE_NONE)
        t->nodes[moved].up = above;
    n->up = a->up;
    a->up = node;
    recount(t, above);
    recount(t, node);
}

void trie_order_add(trie *t, int32_t node, const key_view *key)
{
    trie_node *n = &t->nodes[node];
    n->left = n->right = n->up = TRIE_NONE;
    recount(t, node);
    if (key->num_mm > 0)
        return;
    int32_t *link = &t->nodes[n->parent].order;
    while (*link != TRIE_NONE) {
        n->up = *link;
        trie_node *up = &t->nodes[n->up];
        int c = compare(t, n->up, key, key->count);
        link = c >= 0 ? &up->left : &up->right; /* 0: `up` begins with the key and goes on */
    }
    *link = node;
    while (n->up != TRIE_NONE && n->digest > t->nodes[n->up].digest)
        rotate_up(t, node);
}

void trie_order_remove(trie *t, int32_t node)
{
    trie_node *n = &t->nodes[node];
    if (n->num_mm > 0)
        return;
    while (n->left != TRIE_NONE || n->right != TRIE_NONE) {
        bool left =
            n->right == TRIE_NONE || (n->left != TRIE_NONE && t->nodes[n->left].digest > t->nodes[n->right].digest);
        rotate_up(t, left ? n->left : n->right);
    }
    *link_of(t, node) = TRIE_NONE;
}

int32_t trie_oldest_like(const trie *t, int32_t parent, const key_view *key, int32_t common, int32_t window)
{
    int32_t node = t->nodes[parent].order, best = TRIE_NONE;
    int c = -1;
    while (node != TRIE_NONE && (c = compare(t, node, key, common)) != 0)
        node = c < 0 ? t->nodes[node].right : t->nodes[node].left;
    if (node == TRIE_NONE)
        return TRIE_NONE;
    best = itself(t, node, window);
    for (int32_t n = t->nodes[node].left; n != TRIE_NONE;) {
        bool like = compare(t, n, key, common) == 0;
        if (like)
            best = older(t, best, older(t, itself(t, n, window), oldest_below(t, t->nodes[n].right, window)));
        n = like ? t->nodes[n].left : t->nodes[n].right;
    }
    for (int32_t n = t->nodes[node].right; n != TRIE_NONE;) {
        bool like = compare(t, n, key, common) == 0;
        if (like)
            best = older(t, best, older(t, itself(t, n, window), oldest_below(t, t->nodes[n].left, window)));
        n = like ? t->nodes[n].right : t->nodes[n].left;
    }
    return best;
}

int32_t trie_first_like(const trie *t, int32_t parent, const key_view *key, int32_t common)
{
    int32_t node = t->nodes[parent].order, first = TRIE_NONE;
    while (node != TRIE_NONE) {
        int c = compare(t, node, key, common);
        if (c == 0)
            first = node;
        node = c < 0 ? t->nodes[node].right : t->nodes[node].left;
    }
    return first;
}

int32_t trie_next_like(const trie *t, int32_t node, const key_view *key, int32_t common)
{
    int32_t next = trie_order_next(t, node);
    return next != TRIE_NONE && compare(t, next, key, common) == 0 ? next : TRIE_NONE;
}

int32_t trie_order_first(const trie *t, int32_t parent)
{
    int32_t node = t->nodes[parent].order;
    while (node != TRIE_NONE && t->nodes[node].left != TRIE_NONE)
        node = t->nodes[node].left;
    return node;
}

int32_t trie_order_next(const trie *t, int32_t node)
{
    int32_t next = t->nodes[node].right, below = node;
    if (next == TRIE_NONE) {
        while ((next = t->nodes[below].up) != TRIE_NONE && t->nodes[next].right == below)
            below = next;
        return next;
    }
    while (t->nodes[next].left != TRIE_NONE)
        next = t->nodes[next].left;
    return next;
}

bool trie_order_precedes(const trie *t, int32_t node, const key_view *key)
{
    return compare(t, node, key, key->count) < 0;
}
