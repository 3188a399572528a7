/* SPDX-License-Identifier: Apache-2.0 */
/* The tests that exist, and which of them a target of a list names:
 *   - a target with '*' or '?' names every test that it matches as a glob ('[' stands for itself: parameters have it);
 *   - any other target names the test of exactly that name, and those that continue it with one of . : / [ or with -np
 *     and a number of ranks (`cache` names `cache.rollover`; `a/test_b.py` names `a/test_b.py::test_c[x]`; `cache` does
 * not name `cache_big.x`). */
#ifndef CKV_LISTS_NAMES_H
#define CKV_LISTS_NAMES_H

#include "tools/lists/diag.h"

typedef struct test_name {
    const char *text;
    text_position at;
    bool is_listed; /* for the caller */
} test_name;

typedef struct name_table {
    test_name *names; /* sorted by text */
    size_t count;
    const text_source *source;
} name_table;

/* One name a line; empty lines and lines that start with '#' do not count. A name that stands twice is an error. */
void names_read(arena *memory, diagnostics *log, const text_source *source, name_table *table_out);

bool name_is_glob(const char *target);
bool name_matches(const char *target, const char *name);

/* All tests that a target names, in order: names_search, then names_next until NULL. */
typedef struct name_search {
    const name_table *table;
    const char *target;
    size_t at;
    bool is_glob;
} name_search;

name_search names_search(const name_table *table, const char *target);
test_name *names_next(name_search *search);

/* The test or suite nearest to a target that names nothing; NULL when none is near. */
const char *names_suggest(arena *memory, const name_table *table, const char *target);

#endif
