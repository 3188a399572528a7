/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix tree, one for all windows. A node spells one block's key below its parent's; its values are the blocks,
 * one per window at most, that hold K and V of that prefix. Nodes are found by hash and, for partial matches, in the
 * order of their siblings. Nodes are indices, so that memory may move. */
#ifndef CKV_BLOCKS_TRIE_H
#define CKV_BLOCKS_TRIE_H

#include "lib/blocks/key.h"

enum { TRIE_ROOT = 0, TRIE_NONE = -1 };

typedef struct trie_node {
    uint64_t digest; /* hash of the path */
    uint64_t serial; /* order of creation */
    int64_t *more;   /* [extra ids of the tokens][hash, before of each multimodal item]; NULL: neither */
    int32_t parent;  /* TRIE_NONE: the root, or an unused node */
    int32_t first_child, last_child, next_sibling, prev_sibling; /* in order of creation */
    int32_t next_exact;      /* in the bucket of the digest; of an unused node: the next unused one */
    int32_t left, right, up; /* in the search tree of siblings */
    int32_t order;           /* root of the search tree of children */
    int32_t space, count, num_mm;
    int32_t num_values;
} trie_node;

typedef struct trie {
    trie_node *nodes;
    int32_t *tokens; /* [capacity][tokens_per_block] */
    int32_t *values; /* [capacity][num_windows] */
    int32_t *oldest; /* [capacity][num_windows]: in the search tree below a node and with it, of those with a value */
    int32_t *exact;  /* buckets, [capacity rounded up to a power of two] */
    int32_t used, capacity, unused;
    uint32_t bucket_mask;
    int32_t tokens_per_block, num_windows;
    int64_t live;
    uint64_t next_serial;
    key_spaces spaces;
} trie;

bool trie_init(trie *t, int32_t tokens_per_block, int32_t num_windows);
void trie_free(trie *t);

/* Room for `more` nodes. False: out of memory. */
bool trie_reserve(trie *t, int64_t more);

key_view trie_key(const trie *t, int32_t node);

/* Child with exactly this key, whose digest below the parent is given; TRIE_NONE. */
int32_t trie_find(const trie *t, int32_t parent, const key_view *key, uint64_t digest);

/* Load the memory that trie_find of this digest will touch. */
void trie_prefetch(const trie *t, uint64_t digest);
void trie_prefetch_node(const trie *t, uint64_t digest);

/* Add a child that is not there; room has been reserved. TRIE_NONE: no memory for extra ids or items. */
int32_t trie_add(trie *t, int32_t parent, const key_view *key, uint64_t digest);

/* Of the children that share the first `common` tokens of a key and have a block in a window, the oldest. */
int32_t trie_oldest_like(const trie *t, int32_t parent, const key_view *key, int32_t common, int32_t window);

/* Those that share them, with a block or without, in order: a key comes before those that go on. */
int32_t trie_first_like(const trie *t, int32_t parent, const key_view *key, int32_t common);
int32_t trie_next_like(const trie *t, int32_t node, const key_view *key, int32_t common);

/* Block of a node in a window, or -1. */
static inline int32_t trie_value(const trie *t, int32_t node, int32_t window)
{
    return t->values[(int64_t)node * t->num_windows + window];
}

void trie_set_value(trie *t, int32_t node, int32_t window, int32_t block);
void trie_clear_value(trie *t, int32_t node, int32_t window);

/* ---- trie_order.c: the search tree of siblings, kept by trie.c ---- */

void trie_order_add(trie *t, int32_t node, const key_view *key);         /* without values */
void trie_order_remove(trie *t, int32_t node);                           /* likewise */
void trie_order_changed(trie *t, int32_t node, int32_t window);          /* its value */
int32_t trie_order_recount(const trie *t, int32_t node, int32_t window); /* what `oldest` must say */
int32_t trie_order_first(const trie *t, int32_t parent);                 /* of all children in it */
int32_t trie_order_next(const trie *t, int32_t node);
bool trie_order_precedes(const trie *t, int32_t node, const key_view *key);

/* Remove a node without values and children, and leave its ancestors alone. */
void trie_remove_leaf(trie *t, int32_t node);

/* Remove a node that has neither values nor children, then its ancestors likewise. */
void trie_prune(trie *t, int32_t node);

#endif
