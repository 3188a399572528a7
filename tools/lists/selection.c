/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/selection.h"

#include "tools/common/text_map.h"

typedef struct selected {
    const list_entry *entry;
    const list_block *block;
} selected;

/* Once for each key of a context: a missing fact usually decides many blocks. */
static void report_once(arena *memory, diagnostics *log, text_map *reported, const list_block *block,
                        const list_condition *condition, const fact_set *facts)
{
    void **seen = text_map_at(memory, reported, condition->key);
    if (*seen != NULL)
        return;
    *seen = reported;
    const char *value = facts_get(facts, condition->key);
    if (value == NULL)
        diag_warning(log, block->source, condition->at,
                     "unknown fact '%s': nothing under it is selected; give it with --set %s=VALUE, or use --lenient",
                     condition->key, condition->key);
    else
        diag_warning(log, block->source, condition->at, "the fact '%s' is '%s', not a number: the range does not match",
                     condition->key, value);
}

static bool is_selected(arena *memory, diagnostics *log, text_map *reported, const list_block *block,
                        const fact_set *facts, bool lenient)
{
    match_result all = match_all(block->conditions, facts);
    if (all == MATCH_YES || (all == MATCH_UNKNOWN && lenient))
        return true;
    for (const list_condition *condition = block->conditions; condition != NULL; condition = condition->next) {
        match_result one = match_condition(condition, facts);
        if (one == MATCH_NOT_NUMBER || (one == MATCH_UNKNOWN && all == MATCH_UNKNOWN))
            report_once(memory, log, reported, block, condition, facts);
    }
    return false;
}

static size_t count_entries(const list_context *context)
{
    size_t count = 0;
    for (const list_block *block = context->blocks; block != NULL; block = block->next)
        for (const list_entry *entry = block->entries; entry != NULL; entry = entry->next)
            count++;
    return count;
}

selection select_entries(arena *memory, diagnostics *log, const list_context *context, const fact_set *facts,
                         bool lenient)
{
    selection chosen = {arena_alloc(memory, count_entries(context) * sizeof(const list_entry *)), 0};
    text_map reported = {0}, first_places = {0};
    for (const list_block *block = context->blocks; block != NULL; block = block->next) {
        if (!is_selected(memory, log, &reported, block, facts, lenient))
            continue;
        for (const list_entry *entry = block->entries; entry != NULL; entry = entry->next) {
            void **place = text_map_at(memory, &first_places, entry->text);
            const selected *first = *place;
            if (first != NULL) {
                diag_warning(log, block->source, entry->at, "'%s' is already selected by %s:%zu", entry->text,
                             first->block->source->name, first->entry->at.line);
                continue;
            }
            selected *now = arena_alloc(memory, sizeof *now);
            *now = (selected){entry, block};
            *place = now;
            chosen.entries[chosen.count++] = entry;
        }
    }
    return chosen;
}
