/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean": the nearest of some known words by edit distance. */
#ifndef CKV_TOOLS_SUGGEST_H
#define CKV_TOOLS_SUGGEST_H

#include <stddef.h>

/* Start with suggest_begin, offer every known word, and read `best`: NULL when none is near. Words are borrowed. */
typedef struct suggestion {
    const char *word;
    const char *best;
    size_t distance; /* of best; without best: one more than what still counts as near */
} suggestion;

suggestion suggest_begin(const char *word);
void suggest_offer(suggestion *search, const char *candidate);

/* The same over a NULL-terminated table. */
const char *suggest_from(const char *word, const char *const *known);

/* Insertions, deletions, substitutions and swaps of neighbours; case costs nothing. Anything above `limit` is returned
 * as limit + 1. */
size_t edit_distance(const char *a, const char *b, size_t limit);

#endif
