/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/arena.h"

#include "tools/common/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 * 1024, ALIGNMENT = _Alignof(max_align_t) };

typedef struct arena_chunk {
    struct arena_chunk *next;
    size_t used;
    size_t size;
    _Alignas(max_align_t) char bytes[];
} arena_chunk;

static _Noreturn void out_of_memory(size_t size)
{
    cli_error("ckv", "out of memory: %zu bytes", size);
    exit(CLI_INTERNAL);
}

void *arena_alloc(arena *memory, size_t size)
{
    if (size > SIZE_MAX / 2)
        out_of_memory(size);
    size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    arena_chunk *chunk = memory->chunks;
    if (chunk == NULL || chunk->size - chunk->used < size) {
        size_t chunk_size = size > CHUNK_BYTES ? size : CHUNK_BYTES;
        chunk = calloc(1, sizeof *chunk + chunk_size);
        if (chunk == NULL)
            out_of_memory(chunk_size);
        chunk->size = chunk_size;
        chunk->next = memory->chunks;
        memory->chunks = chunk;
    }
    void *start = chunk->bytes + chunk->used;
    chunk->used += size;
    return start;
}

char *arena_copy(arena *memory, const char *text, size_t length)
{
    char *copy = arena_alloc(memory, length + 1);
    memcpy(copy, text, length);
    return copy;
}

char *arena_format(arena *memory, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *text = arena_alloc(memory, (size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

void arena_free(arena *memory)
{
    while (memory->chunks != NULL) {
        arena_chunk *chunk = memory->chunks;
        memory->chunks = chunk->next;
        free(chunk);
    }
}
