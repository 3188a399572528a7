/* SPDX-License-Identifier: Apache-2.0 */
/* What is known about a machine: names with values. */
#ifndef CKV_LISTS_FACTS_H
#define CKV_LISTS_FACTS_H

#include "tools/lists/diag.h"

#include <jansson.h>

typedef struct fact {
    const char *key;
    const char *text; /* NULL: missing */
    struct fact *next;
} fact;

/* Starts as zeroes. */
typedef struct fact_set {
    fact *first;
} fact_set;

/* Add, or replace a fact of that key. `text` is borrowed; NULL makes it missing. */
void facts_set(arena *memory, fact_set *facts, const char *key, const char *text);

/* NULL when missing. */
const char *facts_get(const fact_set *facts, const char *key);

/* One line without control characters, as every key and text must be: they are printed. */
bool facts_is_plain(const char *text);

/* From a flat JSON object: texts, numbers, true, false, null. False after an error on log. */
bool facts_read_json(arena *memory, diagnostics *log, const text_source *source, fact_set *facts);

/* Where a JSON source of facts names a key, as well as can be told. */
text_position facts_position(arena *memory, const text_source *source, const char *key);

/* This machine as a flat JSON object; GPUs through NVML when its library is there, otherwise none. What could not be
 * found out is null. Warnings go to `warnings`. The caller owns the reference; NULL when out of memory. */
json_t *facts_probe(FILE *warnings);

/* The same as facts. */
bool facts_from_json(arena *memory, json_t *object, fact_set *facts);

#endif
