/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/suggest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum { LONGEST = 255 };

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static bool is_same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

size_t edit_distance(const char *a, const char *b, size_t limit)
{
    size_t a_length = strlen(a), b_length = strlen(b);
    size_t difference = a_length > b_length ? a_length - b_length : b_length - a_length;
    if (difference > limit || a_length > LONGEST || b_length > LONGEST)
        return limit + 1;

    /* three rows of the Damerau-Levenshtein table: the swap looks two rows back */
    size_t rows[3][LONGEST + 1];
    for (size_t j = 0; j <= b_length; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        size_t best = row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            row[j] = smaller(above[j - 1] + !is_same(a[i - 1], b[j - 1]), smaller(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && is_same(a[i - 1], b[j - 2]) && is_same(a[i - 2], b[j - 1]))
                row[j] = smaller(row[j], above2[j - 2] + 1);
            best = smaller(best, row[j]);
        }
        if (best > limit)
            return limit + 1;
    }
    return smaller(rows[a_length % 3][b_length], limit + 1);
}

suggestion suggest_begin(const char *word)
{
    size_t near = strlen(word) / 4 + 1;
    return (suggestion){.word = word, .distance = smaller(near, 4) + 1};
}

void suggest_offer(suggestion *search, const char *candidate)
{
    if (search->distance == 0)
        return;
    size_t distance = edit_distance(search->word, candidate, search->distance - 1);
    if (distance < search->distance) {
        search->best = candidate;
        search->distance = distance;
    }
}

const char *suggest_from(const char *word, const char *const *known)
{
    suggestion search = suggest_begin(word);
    for (; *known != NULL; known++)
        suggest_offer(&search, *known);
    return search.best;
}
