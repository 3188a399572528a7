/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/names.h"

#include "tools/common/suggest.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static int by_text(const void *a, const void *b)
{
    const test_name *one = a, *other = b;
    int order = strcmp(one->text, other->text);
    return order != 0 ? order : (one->at.line > other->at.line) - (one->at.line < other->at.line);
}

static void drop_duplicates(diagnostics *log, name_table *table)
{
    size_t kept = 0;
    for (size_t i = 0; i < table->count; i++) {
        if (kept > 0 && strcmp(table->names[kept - 1].text, table->names[i].text) == 0)
            diag_error(log, table->source, table->names[i].at, "the test '%s' is already on line %zu",
                       table->names[i].text, table->names[kept - 1].at.line);
        else
            table->names[kept++] = table->names[i];
    }
    table->count = kept;
}

void names_read(arena *memory, diagnostics *log, const text_source *source, name_table *table_out)
{
    size_t lines = 1;
    for (size_t i = 0; i < source->size; i++)
        lines += source->text[i] == '\n';
    *table_out = (name_table){arena_alloc(memory, lines * sizeof(test_name)), 0, source};

    const char *line = source->text, *end = source->text + source->size;
    for (size_t number = 1; line < end; number++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop == NULL ? end : stop;
        const char *first = line, *last = stop;
        while (first < last && (*first == ' ' || *first == '\t'))
            first++;
        while (last > first && (last[-1] == ' ' || last[-1] == '\t' || last[-1] == '\r'))
            last--;
        if (first < last && *first != '#')
            table_out->names[table_out->count++] = (test_name){
                arena_copy(memory, first, (size_t)(last - first)), {number, (size_t)(first - line) + 1}, false};
        line = stop + 1;
    }
    qsort(table_out->names, table_out->count, sizeof *table_out->names, by_text);
    drop_duplicates(log, table_out);
}

bool name_is_glob(const char *target)
{
    return strpbrk(target, "*?") != NULL;
}

static bool is_boundary(const char *rest)
{
    bool is_ranks = strncmp(rest, "-np", 3) == 0 && rest[3] >= '0' && rest[3] <= '9';
    return rest[0] == '\0' || strchr(".:/[", rest[0]) != NULL || is_ranks;
}

static bool glob_matches(const char *target, const char *name)
{
    char pattern[1024];
    size_t length = 0;
    for (; *target != '\0' && length + 3 < sizeof pattern; target++) {
        if (*target == '[' || *target == '\\')
            pattern[length++] = '\\';
        pattern[length++] = *target;
    }
    pattern[length] = '\0';
    return *target == '\0' && fnmatch(pattern, name, 0) == 0;
}

bool name_matches(const char *target, const char *name)
{
    if (name_is_glob(target))
        return glob_matches(target, name);
    size_t length = strlen(target);
    return strncmp(target, name, length) == 0 && is_boundary(name + length);
}

name_search names_search(const name_table *table, const char *target)
{
    name_search search = {table, target, 0, name_is_glob(target)};
    if (search.is_glob)
        return search;
    size_t above = table->count; /* first name not below the target lies in [at, above] */
    while (search.at < above) {
        size_t middle = search.at + (above - search.at) / 2;
        if (strcmp(table->names[middle].text, target) < 0)
            search.at = middle + 1;
        else
            above = middle;
    }
    return search;
}

test_name *names_next(name_search *search)
{
    size_t length = strlen(search->target);
    while (search->at < search->table->count) {
        test_name *name = &search->table->names[search->at++];
        if (name_matches(search->target, name->text))
            return name;
        if (!search->is_glob && strncmp(search->target, name->text, length) != 0)
            return NULL; /* sorted: no later name starts with the target */
    }
    return NULL;
}

const char *names_suggest(arena *memory, const name_table *table, const char *target)
{
    suggestion search = suggest_begin(target);
    const char *suite = "";
    for (size_t i = 0; i < table->count; i++) {
        const char *name = table->names[i].text;
        suggest_offer(&search, name);
        size_t length = strcspn(name, ".:");
        if (name[length] == '\0' || (strncmp(name, suite, length) == 0 && suite[length] == '\0'))
            continue;
        suite = arena_copy(memory, name, length);
        suggest_offer(&search, suite);
    }
    return search.best;
}
