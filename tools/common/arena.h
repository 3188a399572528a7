/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of one job, freed at once. For programs: when memory runs out the process says so and exits. */
#ifndef CKV_TOOLS_ARENA_H
#define CKV_TOOLS_ARENA_H

#include <stddef.h>

typedef struct arena {
    struct arena_chunk *chunks; /* newest first */
} arena;

/* Zeroed, aligned for any type. Never NULL. */
void *arena_alloc(arena *memory, size_t size);

/* A NUL-terminated copy of `length` bytes. */
char *arena_copy(arena *memory, const char *text, size_t length);

char *arena_format(arena *memory, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Leaves an empty arena that can be used again. */
void arena_free(arena *memory);

#endif
