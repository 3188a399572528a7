/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/pairwise.h"

#include "tests/support/random.h"

#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 60, ATTEMPTS = 100000 };

/* Whether value a of factor f and value b of factor g, f < g, still have to meet. */
typedef struct open_pairs {
    char open[PAIRWISE_MAX_FACTORS][PAIRWISE_MAX_VALUES][PAIRWISE_MAX_FACTORS][PAIRWISE_MAX_VALUES];
} open_pairs;

int pairwise_next(const pairwise_table *table, int count, pairwise_row *row)
{
    for (int f = 0; f < count; f++) {
        if (++row->values[f] < table->num_values[f])
            return 1;
        row->values[f] = 0;
    }
    return 0;
}

static void set_pairs(const pairwise_row *row, int factors, char open, open_pairs *pairs)
{
    for (int f = 0; f < factors; f++)
        for (int g = f + 1; g < factors; g++)
            pairs->open[f][row->values[f]][g][row->values[g]] = open;
}

/* All pairs that can meet. Free factors meet whatever is possible at all. */
static void find_pairs(const pairwise_table *table, open_pairs *pairs)
{
    pairwise_row row = {{0}};
    char possible[PAIRWISE_MAX_FACTORS][PAIRWISE_MAX_VALUES] = {{0}};
    memset(pairs, 0, sizeof *pairs);
    do {
        if (!table->admits(&row))
            continue;
        set_pairs(&row, table->num_bound, 1, pairs);
        for (int f = 0; f < table->num_bound; f++)
            possible[f][row.values[f]] = 1;
    } while (pairwise_next(table, table->num_bound, &row));
    for (int g = table->num_bound; g < table->num_factors; g++)
        for (int f = 0; f < g; f++)
            for (int a = 0; a < table->num_values[f]; a++)
                for (int b = 0; b < table->num_values[g]; b++)
                    pairs->open[f][a][g][b] = f >= table->num_bound || possible[f][a];
}

static int count_open(const pairwise_table *table, const pairwise_row *row, const open_pairs *pairs)
{
    int count = 0;
    for (int f = 0; f < table->num_factors; f++)
        for (int g = f + 1; g < table->num_factors; g++)
            count += pairs->open[f][row->values[f]][g][row->values[g]];
    return count;
}

static int first_open(const pairwise_table *table, const open_pairs *pairs, int pair_out[4])
{
    for (int f = 0; f < table->num_factors; f++)
        for (int a = 0; a < table->num_values[f]; a++)
            for (int g = f + 1; g < table->num_factors; g++)
                for (int b = 0; b < table->num_values[g]; b++)
                    if (pairs->open[f][a][g][b]) {
                        const int pair[] = {f, a, g, b};
                        memcpy(pair_out, pair, sizeof pair);
                        return 1;
                    }
    return 0;
}

/* The best of many random rows that have `pair`. */
static pairwise_row best_row(const pairwise_table *table, const open_pairs *pairs, const int pair[4],
                             ckv_random *random)
{
    pairwise_row best = {{0}};
    int best_count = 0;
    for (int admitted = 0, attempt = 0; admitted < CANDIDATES && attempt < ATTEMPTS; attempt++) {
        pairwise_row row = {{0}};
        for (int f = 0; f < table->num_factors; f++)
            row.values[f] = (int)ckv_random_range(random, 0, table->num_values[f] - 1);
        row.values[pair[0]] = pair[1];
        row.values[pair[2]] = pair[3];
        if (!table->admits(&row))
            continue;
        admitted++;
        int count = count_open(table, &row, pairs);
        if (count > best_count) {
            best = row;
            best_count = count;
        }
    }
    return best;
}

pairwise_row *pairwise_choose(const pairwise_table *table, int *count_out)
{
    open_pairs *pairs = malloc(sizeof *pairs);
    pairwise_row *rows = NULL;
    int count = 0, pair[4];
    ckv_random random = {1};
    find_pairs(table, pairs);
    while (first_open(table, pairs, pair)) {
        rows = realloc(rows, (size_t)(count + 1) * sizeof *rows);
        rows[count] = best_row(table, pairs, pair, &random);
        set_pairs(&rows[count++], table->num_factors, 0, pairs);
    }
    free(pairs);
    *count_out = count;
    return rows;
}

/* --- Once more, without what the choice was made with --- */

static int meet(const pairwise_row *rows, int count, int f, int a, int g, int b)
{
    for (int i = 0; i < count; i++)
        if (rows[i].values[f] == a && rows[i].values[g] == b)
            return 1;
    return 0;
}

static int can_meet(const pairwise_table *table, int f, int a, int g, int b)
{
    pairwise_row row = {{0}};
    do {
        if ((f >= table->num_bound || row.values[f] == a) && (g >= table->num_bound || row.values[g] == b) &&
            table->admits(&row))
            return 1;
    } while (pairwise_next(table, table->num_bound, &row));
    return 0;
}

int pairwise_missing(const pairwise_table *table, const pairwise_row *rows, int count)
{
    int missing = 0;
    for (int f = 0; f < table->num_factors; f++)
        for (int g = f + 1; g < table->num_factors; g++)
            for (int a = 0; a < table->num_values[f]; a++)
                for (int b = 0; b < table->num_values[g]; b++)
                    missing += !meet(rows, count, f, a, g, b) && can_meet(table, f, a, g, b);
    return missing;
}
