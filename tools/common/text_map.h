/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table from texts to pointers, in an arena. */
#ifndef CKV_TOOLS_TEXT_MAP_H
#define CKV_TOOLS_TEXT_MAP_H

#include "tools/common/arena.h"

typedef struct text_map_slot {
    const char *key;
    void *value;
} text_map_slot;

/* Starts as zeroes. */
typedef struct text_map {
    text_map_slot *slots;
    size_t capacity; /* power of two, or 0 */
    size_t count;
} text_map;

/* Where the value of `key` is kept, NULL in it when the key is new. The key is borrowed. The place is valid until the
 * next call. */
void **text_map_at(arena *memory, text_map *map, const char *key);

#endif
