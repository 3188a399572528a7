/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a test list: read, then selected for one machine and compared with itself. */
#include "fuzz/fuzz.h"

#include "tools/lists/selection.h"

#include <stdlib.h>

static void select_all(arena *memory, diagnostics *log, const list_set *lists)
{
    fact_set facts = {NULL};
    facts_set(memory, &facts, "gpu", "H200");
    facts_set(memory, &facts, "system_gpu_count", "8");
    facts_set(memory, &facts, "stage", "pre_merge");
    for (const list_context *context = lists->contexts; context != NULL; context = context->next) {
        selection strict = select_entries(memory, log, context, &facts, false);
        selection lenient = select_entries(memory, log, context, &facts, true);
        if (strict.count > lenient.count)
            abort();
        for (const list_block *block = context->blocks; block != NULL; block = block->next)
            match_compatible(block->conditions, context->blocks->conditions);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    arena memory = {NULL};
    char *messages = NULL;
    size_t message_bytes = 0;
    diagnostics log = {.stream = open_memstream(&messages, &message_bytes)};
    if (log.stream == NULL)
        return 0;
    list_reader reader = {&memory, &log, size % 2 == 0};
    text_source source = {"fuzz.yml", (const char *)data, size};
    list_set lists = {NULL, NULL};
    list_read(&reader, &source, &lists);
    select_all(&memory, &log, &lists);
    fclose(log.stream);
    free(messages);
    arena_free(&memory);
    return 0;
}
