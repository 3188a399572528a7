/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/text_map.h"

#include <stdint.h>
#include <string.h>

/* FNV-1a */
static uint64_t hash(const char *key)
{
    uint64_t value = 14695981039346656037u;
    for (; *key != '\0'; key++)
        value = (value ^ (unsigned char)*key) * 1099511628211u;
    return value;
}

static text_map_slot *find(const text_map *map, const char *key)
{
    for (size_t i = (size_t)hash(key);; i++) {
        text_map_slot *slot = &map->slots[i & (map->capacity - 1)];
        if (slot->key == NULL || strcmp(slot->key, key) == 0)
            return slot;
    }
}

static void grow(arena *memory, text_map *map)
{
    text_map larger = {.capacity = map->capacity == 0 ? 64 : 2 * map->capacity, .count = map->count};
    larger.slots = arena_alloc(memory, larger.capacity * sizeof *larger.slots);
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].key != NULL)
            *find(&larger, map->slots[i].key) = map->slots[i];
    *map = larger;
}

void **text_map_at(arena *memory, text_map *map, const char *key)
{
    if (2 * (map->count + 1) > map->capacity)
        grow(memory, map);
    text_map_slot *slot = find(map, key);
    if (slot->key == NULL) {
        slot->key = key;
        map->count++;
    }
    return &slot->value;
}
