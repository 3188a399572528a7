/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/facts.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static fact *find(const fact_set *facts, const char *key)
{
    for (fact *known = facts->first; known != NULL; known = known->next)
        if (strcmp(known->key, key) == 0)
            return known;
    return NULL;
}

void facts_set(arena *memory, fact_set *facts, const char *key, const char *text)
{
    fact *known = find(facts, key);
    if (known == NULL) {
        known = arena_alloc(memory, sizeof *known);
        *known = (fact){.key = key, .next = facts->first};
        facts->first = known;
    }
    known->text = text;
}

const char *facts_get(const fact_set *facts, const char *key)
{
    const fact *known = find(facts, key);
    return known == NULL ? NULL : known->text;
}

bool facts_is_plain(const char *text)
{
    while (*text != '\0' && !iscntrl((unsigned char)*text))
        text++;
    return *text == '\0';
}

/* NULL for null; false when the value is not flat, or no plain text. */
static bool json_text(arena *memory, const json_t *value, const char **text_out)
{
    if (json_is_object(value) || json_is_array(value))
        return false;
    *text_out = NULL;
    if (json_is_string(value)) {
        *text_out = arena_copy(memory, json_string_value(value), json_string_length(value));
        return facts_is_plain(*text_out);
    } else if (!json_is_null(value)) {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        if (text == NULL)
            return false;
        *text_out = arena_copy(memory, text, strlen(text));
        free(text);
    }
    return true;
}

/* The first key that is no fact's is left in *culprit_out. */
static bool take_object(arena *memory, json_t *object, fact_set *facts, const char **culprit_out)
{
    void *place = json_object_iter(object);
    for (; place != NULL; place = json_object_iter_next(object, place)) {
        const char *key = json_object_iter_key(place);
        const char *text;
        *culprit_out = key;
        if (!facts_is_plain(key) || !json_text(memory, json_object_iter_value(place), &text))
            return false;
        facts_set(memory, facts, arena_copy(memory, key, strlen(key)), text);
    }
    return true;
}

bool facts_from_json(arena *memory, json_t *object, fact_set *facts)
{
    const char *culprit;
    return take_object(memory, object, facts, &culprit);
}

/* jansson tells no places after parsing. */
text_position facts_position(arena *memory, const text_source *source, const char *key)
{
    const char *quoted = arena_format(memory, "\"%s\"", key);
    const char *found = memmem(source->text, source->size, quoted, strlen(quoted));
    return text_position_of(source, found == NULL ? 0 : (size_t)(found - source->text));
}

bool facts_read_json(arena *memory, diagnostics *log, const text_source *source, fact_set *facts)
{
    json_error_t error;
    json_t *root = json_loadb(source->text, source->size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        text_position at = {error.line > 0 ? (size_t)error.line : 1, error.column > 0 ? (size_t)error.column : 1};
        return diag_error(log, source, at, "%s", error.text);
    }
    const char *culprit = NULL;
    bool ok;
    if (!json_is_object(root)) {
        size_t start = 0;
        while (start < source->size && strchr(" \t\r\n", source->text[start]) != NULL)
            start++;
        ok = diag_error(log, source, text_position_of(source, start),
                        "facts must be one JSON object of names and values");
    } else {
        ok = take_object(memory, root, facts, &culprit) ||
             diag_error(log, source, facts_position(memory, source, culprit),
                        "a fact is a text of one line, a number, true, false or null, not a list or an object: %s",
                        culprit);
    }
    json_decref(root);
    return ok;
}
