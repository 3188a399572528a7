/* SPDX-License-Identifier: Apache-2.0 */
/* Block keys: what decides whether two blocks hold the same K and V. Tokens with their extra ids, the multimodal items
 * that reach into the block, and the name space: adapter, salt, whether extra ids are used. */
#ifndef CKV_BLOCKS_KEY_H
#define CKV_BLOCKS_KEY_H

#include "lib/blocks/id_map.h"

#include <ckv/blocks.h>

/* Adapter, salt and use of extra ids, shared by many keys and counted. */
typedef struct key_space {
    bool uses_extra, has_lora;
    int64_t lora;
    ckv_blocks_salt_kind salt_kind;
    int64_t salt;
    char *salt_text;
    uint64_t hash; /* of the above; equal on all machines */
    int64_t refs;  /* 0: an unused entry */
    int32_t next;  /* with the same hash, or the next unused one */
} key_space;

typedef struct key_spaces {
    key_space *items;
    int32_t count, capacity, unused;
    id_map by_hash;
} key_spaces;

void key_spaces_init(key_spaces *spaces);
void key_spaces_free(key_spaces *spaces);

/* Index of a request's name space with one more reference; -1: out of memory. */
int32_t key_space_acquire(key_spaces *spaces, const ckv_blocks_request *request);
void key_space_retain(key_spaces *spaces, int32_t space);
void key_space_release(key_spaces *spaces, int32_t space);

typedef struct key_mm {
    uint64_t hash;
    int64_t before; /* tokens of the item in earlier blocks */
} key_mm;

/* A key that owns nothing. */
typedef struct key_view {
    const int32_t *tokens;
    const int64_t *extra; /* [count], NULL when the name space uses none */
    const key_mm *mm;
    int32_t count, num_mm;
    int32_t space;
} key_view;

/* Where a request's keys come from. mm items are in order of position. */
typedef struct key_source {
    const int32_t *tokens;
    const int64_t *extra;
    const ckv_blocks_mm *mm;
    int64_t num_mm;
    key_mm *scratch; /* [num_mm], of the view made last */
    int32_t space;
} key_source;

/* Key of tokens [start, start + count). Valid until the next view of the source. */
key_view key_make(const key_source *source, int64_t start, int64_t count);

/* Hash of a key below a parent with that hash. */
uint64_t key_digest(uint64_t parent, const key_view *key, const key_spaces *spaces);

bool key_equal(const key_view *a, const key_view *b);

/* Leading tokens two keys share, of one name space and without multimodal items; else 0. */
int32_t key_common(const key_view *a, const key_view *b);

#endif
