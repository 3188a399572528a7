/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/durations.h"

#include "tools/lists/names.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DURATIONS_MAX_BYTES = 64 * 1024 * 1024 };

bool durations_read(arena *memory, diagnostics *log, const char *path, fact_set *durations_out)
{
    text_source source;
    if (!text_read(memory, log, path, DURATIONS_MAX_BYTES, &source) ||
        !facts_read_json(memory, log, &source, durations_out))
        return false;
    for (const fact *one = durations_out->first; one != NULL; one = one->next) {
        char *end = NULL;
        double seconds = one->text != NULL ? strtod(one->text, &end) : -1;
        if (end != NULL && *end == '\0' && end != one->text && seconds >= 0 && isfinite(seconds))
            continue;
        return diag_error(log, &source, facts_position(memory, &source, one->key),
                          "the duration of '%s' is '%s'; it must be seconds, 0 or more", one->key,
                          one->text != NULL ? one->text : "null");
    }
    return true;
}

double durations_of_entry(const fact_set *durations, const list_entry *entry)
{
    const char *own = facts_get(durations, entry->text);
    if (own != NULL)
        return strtod(own, NULL);
    double sum = -1;
    for (const fact *one = durations->first; one != NULL && !entry->has_options; one = one->next)
        if (name_matches(entry->target, one->key))
            sum = (sum < 0 ? 0 : sum) + strtod(one->text, NULL);
    return sum;
}

static void fill_unknown(shard_piece *pieces, size_t count)
{
    double sum = 0;
    size_t known = 0;
    for (size_t i = 0; i < count; i++) {
        sum += pieces[i].seconds >= 0 ? pieces[i].seconds : 0;
        known += pieces[i].seconds >= 0;
    }
    for (size_t i = 0; i < count; i++)
        if (pieces[i].seconds < 0)
            pieces[i].seconds = known > 0 ? sum / (double)known : 1;
}

static int in_order(const void *a, const void *b)
{
    const shard_piece *one = a, *other = b;
    return (one->order > other->order) - (one->order < other->order);
}

static int longest_first(const void *a, const void *b)
{
    const shard_piece *one = a, *other = b;
    if (one->seconds != other->seconds)
        return one->seconds < other->seconds ? 1 : -1;
    return in_order(a, b);
}

/* Equal loads: the shard with fewer pieces, so that pieces of 0 seconds spread too. */
static size_t least_loaded(const shard_load *loads, size_t shards)
{
    size_t least = 0;
    for (size_t i = 1; i < shards; i++)
        if (loads[i].seconds < loads[least].seconds ||
            (loads[i].seconds == loads[least].seconds && loads[i].pieces < loads[least].pieces))
            least = i;
    return least;
}

void shard_split(shard_piece *pieces, size_t count, shard_load *loads, size_t shards)
{
    fill_unknown(pieces, count);
    qsort(pieces, count, sizeof *pieces, longest_first);
    for (size_t i = 0; i < shards; i++)
        loads[i] = (shard_load){0};
    for (size_t i = 0; i < count; i++) {
        size_t least = least_loaded(loads, shards);
        pieces[i].shard = least;
        loads[least].seconds += pieces[i].seconds;
        loads[least].pieces++;
    }
    qsort(pieces, count, sizeof *pieces, in_order);
}

void shard_print_plan(FILE *stream, const shard_load *loads, size_t shards, size_t chosen, const char *pieces_name)
{
    size_t total = 0;
    for (size_t i = 0; i < shards; i++)
        total += loads[i].pieces;
    for (size_t i = 0; i < shards; i++)
        fprintf(stream, "%s shard %zu of %zu: %zu of %zu %s, %.0f s\n", i == chosen ? "*" : " ", i + 1, shards,
                loads[i].pieces, total, pieces_name, loads[i].seconds);
}

const char *durations_class(arena *memory, const fact_set *facts)
{
    const char *gpu = facts_get(facts, "gpu"), *count = facts_get(facts, "system_gpu_count");
    const char *cpu = facts_get(facts, "cpu");
    const char *text = gpu != NULL ? arena_format(memory, "%sx%s", gpu, count != NULL ? count : "1")
                                   : arena_format(memory, "cpu-%s", cpu != NULL ? cpu : "unknown");
    char *name = arena_copy(memory, text, strlen(text));
    for (char *c = name; *c != '\0'; c++)
        *c = isalnum((unsigned char)*c) ? (char)tolower((unsigned char)*c) : '-';
    return name;
}

const char *durations_file(arena *memory, const char *path, const fact_set *facts)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return path;
    const char *file = arena_format(memory, "%s/%s.json", path, durations_class(memory, facts));
    return stat(file, &info) == 0 ? file : NULL;
}
