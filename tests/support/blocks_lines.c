/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/blocks_lines.h"

#include "tests/support/case.h"
#include "tools/blocks/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every field of the expected value is in the other one. */
static bool contains(const json_t *value, json_t *expected)
{
    if (json_is_object(expected)) {
        const char *key;
        json_t *field;
        json_object_foreach(expected, key, field)
        {
            if (!contains(json_object_get(value, key), field))
                return false;
        }
        return json_is_object(value);
    }
    if (!json_is_array(expected))
        return json_equal(value, expected) == 1;
    if (!json_is_array(value) || json_array_size(value) != json_array_size(expected))
        return false;
    for (size_t i = 0; i < json_array_size(expected); i++)
        if (!contains(json_array_get(value, i), json_array_get(expected, i)))
            return false;
    return true;
}

char *blocks_answers(const char *text, size_t bytes)
{
    char *out;
    size_t size;
    FILE *stream = open_memstream(&out, &size);
    assert_non_null(stream);
    blocks_run run;
    blocks_run_init(&run);
    assert_true(blocks_run_text(&run, text, bytes, stream));
    blocks_run_free(&run);
    fclose(stream);
    return out;
}

/* Take the next line off a text. */
static char *next_line(char **text)
{
    char *line = *text, *end = strchr(line, '\n');
    if (end != NULL) {
        *end = '\0';
        *text = end + 1;
    } else {
        *text = line + strlen(line);
    }
    return line;
}

static json_t *parse(const char *line)
{
    json_t *value = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    if (value == NULL)
        fail_msg("not JSON: %s", line);
    return value;
}

void blocks_expect_answers(const char *name, const char *script, char *expected)
{
    char *out = blocks_answers(script, strlen(script)), *rest = out;
    while (*expected != '\0') {
        char *wanted = next_line(&expected), *got = next_line(&rest);
        json_t *a = parse(got), *b = parse(wanted);
        if (!contains(a, b))
            fail_msg("%s\n  got      %s\n  expected %s", name, got, wanted);
        json_decref(a);
        json_decref(b);
    }
    if (*rest != '\0')
        fail_msg("%s: more answers than expected: %s", name, rest);
    free(out);
}

void blocks_expect_lines(const script_line *lines, size_t count)
{
    char *script, *expected;
    size_t size;
    FILE *in = open_memstream(&script, &size), *out = open_memstream(&expected, &size);
    for (size_t i = 0; i < count; i++) {
        fprintf(in, "%s\n", lines[i].in);
        fprintf(out, "%s\n", lines[i].out);
    }
    fclose(in);
    fclose(out);
    for (char *c = script; *c != '\0'; c++)
        *c = *c == '\'' ? '"' : *c;
    for (char *c = expected; *c != '\0'; c++)
        *c = *c == '\'' ? '"' : *c;
    blocks_expect_answers("script", script, expected);
    free(script);
    free(expected);
}
