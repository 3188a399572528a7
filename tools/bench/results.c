/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/results.h"

#include "tools/common/arena.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct fact {
    const char *key, *value;
} fact;

struct bench_results {
    arena memory;
    bench_row *rows;
    size_t count, capacity;
    fact *facts;
    size_t num_facts, facts_capacity;
};

bench_row bench_row_default(void)
{
    return (bench_row){.max_error = NAN};
}

bench_results *bench_results_create(void)
{
    arena memory = {0};
    bench_results *results = arena_alloc(&memory, sizeof *results);
    results->memory = memory;
    return results;
}

void bench_results_destroy(bench_results **results)
{
    if (*results == NULL)
        return;
    arena memory = (*results)->memory; /* which holds the results too */
    *results = NULL;
    arena_free(&memory);
}

static const char *keep(bench_results *results, const char *text)
{
    return text == NULL ? NULL : arena_copy(&results->memory, text, strlen(text));
}

/* Room for one more; what grew out of its place stays in the arena. */
static void *grown(bench_results *results, void *array, size_t count, size_t *capacity, size_t each)
{
    if (count < *capacity)
        return array;
    *capacity = *capacity == 0 ? 16 : 2 * *capacity;
    void *larger = arena_alloc(&results->memory, *capacity * each);
    if (count > 0)
        memcpy(larger, array, count * each);
    return larger;
}

void bench_results_add(bench_results *results, const bench_row *row)
{
    results->rows = grown(results, results->rows, results->count, &results->capacity, sizeof *results->rows);
    bench_row *kept = &results->rows[results->count++];
    *kept = *row;
    kept->group = keep(results, row->group);
    kept->variant = keep(results, row->variant);
    kept->params = keep(results, row->params);
    kept->x_name = keep(results, row->x_name);
    kept->baseline = keep(results, row->baseline);
    kept->note = keep(results, row->note);
}

static fact *find_fact(const bench_results *results, const char *key)
{
    for (size_t i = 0; i < results->num_facts; i++)
        if (strcmp(results->facts[i].key, key) == 0)
            return &results->facts[i];
    return NULL;
}

void bench_results_fact(bench_results *results, const char *key, const char *format, ...)
{
    char value[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    fact *one = find_fact(results, key);
    if (one == NULL) {
        results->facts =
            grown(results, results->facts, results->num_facts, &results->facts_capacity, sizeof *results->facts);
        one = &results->facts[results->num_facts++];
        one->key = keep(results, key);
    }
    one->value = keep(results, value);
}

size_t bench_results_count(const bench_results *results)
{
    return results->count;
}

const bench_row *bench_results_row(const bench_results *results, size_t i)
{
    return &results->rows[i];
}

size_t bench_results_num_facts(const bench_results *results)
{
    return results->num_facts;
}

const char *bench_results_fact_key(const bench_results *results, size_t i)
{
    return results->facts[i].key;
}

const char *bench_results_fact_value(const bench_results *results, const char *key)
{
    const fact *one = find_fact(results, key);
    return one == NULL ? NULL : one->value;
}

size_t bench_results_failures(const bench_results *results)
{
    size_t failures = 0;
    for (size_t i = 0; i < results->count; i++)
        failures += results->rows[i].failed != 0;
    return failures;
}

static int same(const char *a, const char *b)
{
    return strcmp(a == NULL ? "" : a, b == NULL ? "" : b) == 0;
}

/* Of the same size, or the only one there is; none when several could be meant. */
static const bench_row *find_baseline(const bench_results *results, const bench_row *row)
{
    const bench_row *at_x = NULL, *any = NULL;
    size_t candidates = 0, candidates_at_x = 0;
    for (size_t i = 0; row->baseline != NULL && i < results->count; i++) {
        const bench_row *one = &results->rows[i];
        if (!same(one->group, row->group) || !same(one->variant, row->baseline))
            continue;
        candidates++;
        any = one;
        if (one->x != row->x || !same(one->x_name, row->x_name))
            continue;
        if (same(one->params, row->params))
            return one;
        at_x = one;
        candidates_at_x++;
    }
    return candidates_at_x == 1 ? at_x : candidates == 1 ? any : NULL;
}

static int is_timed(const bench_row *row)
{
    return !row->failed && isfinite(row->median_us) && row->median_us > 0;
}

double bench_results_ratio(const bench_results *results, const bench_row *row)
{
    const bench_row *baseline = find_baseline(results, row);
    return baseline != NULL && is_timed(row) && is_timed(baseline) ? row->median_us / baseline->median_us : 0;
}
