/* SPDX-License-Identifier: Apache-2.0 */
/* 64-bit keys to 64-bit values: open addressing, nothing left behind by removals. Used for requests, pins and the
 * name spaces of keys. */
#ifndef CKV_BLOCKS_ID_MAP_H
#define CKV_BLOCKS_ID_MAP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct id_map_entry {
    uint64_t key;
    int64_t value;
    bool used;
} id_map_entry;

typedef struct id_map {
    id_map_entry *entries; /* [capacity], a power of two, at most half used */
    uint64_t capacity;
    int64_t count;
} id_map;

/* Room for `more` entries, so that the next adds cannot fail. False: out of memory, nothing changed. */
bool id_map_reserve(id_map *map, int64_t more);

/* The value's place, or NULL. Valid until the next add or remove. */
int64_t *id_map_find(const id_map *map, uint64_t key);

/* Add a key that is not there; room has been reserved. */
void id_map_add(id_map *map, uint64_t key, int64_t value);

void id_map_remove(id_map *map, uint64_t key);
void id_map_free(id_map *map);

#endif
