/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/blocks/id_map.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 16 };

static uint64_t home_of(const id_map *map, uint64_t key)
{
    key = (key ^ key >> 32) * 0x9e3779b97f4a7c15u;
    return (key ^ key >> 29) & (map->capacity - 1);
}

static id_map_entry *place_of(const id_map *map, uint64_t key)
{
    uint64_t at = home_of(map, key);
    while (map->entries[at].used && map->entries[at].key != key)
        at = (at + 1) & (map->capacity - 1);
    return &map->entries[at];
}

bool id_map_reserve(id_map *map, int64_t more)
{
    uint64_t capacity = map->capacity > 0 ? map->capacity : FIRST_CAPACITY;
    while (capacity < 2 * (uint64_t)(map->count + more))
        capacity *= 2;
    if (capacity == map->capacity)
        return true;
    id_map larger = {.entries = calloc(capacity, sizeof *larger.entries), .capacity = capacity};
    if (larger.entries == NULL)
        return false;
    for (uint64_t i = 0; i < map->capacity; i++)
        if (map->entries[i].used)
            id_map_add(&larger, map->entries[i].key, map->entries[i].value);
    free(map->entries);
    *map = larger;
    return true;
}

int64_t *id_map_find(const id_map *map, uint64_t key)
{
    if (map->count == 0)
        return NULL;
    id_map_entry *entry = place_of(map, key);
    return entry->used ? &entry->value : NULL;
}

void id_map_add(id_map *map, uint64_t key, int64_t value)
{
    *place_of(map, key) = (id_map_entry){key, value, true};
    map->count++;
}

/* Entries that follow move up when the gap lies between their home and their place. */
void id_map_remove(id_map *map, uint64_t key)
{
    uint64_t mask = map->capacity - 1;
    id_map_entry *entry = map->count > 0 ? place_of(map, key) : NULL;
    if (entry == NULL || !entry->used)
        return;
    uint64_t gap = (uint64_t)(entry - map->entries);
    for (uint64_t at = (gap + 1) & mask; map->entries[at].used; at = (at + 1) & mask) {
        uint64_t home = home_of(map, map->entries[at].key);
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            map->entries[gap] = map->entries[at];
            gap = at;
        }
    }
    map->entries[gap].used = false;
    map->count--;
}

void id_map_free(id_map *map)
{
    free(map->entries);
    *map = (id_map){0};
}
