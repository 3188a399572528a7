/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/junit_file.h"

#include "tests/support/case.h"
#include "tests/support/workplace.h"

#include <expat.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reading {
    junit_file *file;
    bool in_output;
    int depth; /* of elements */
} reading;

static const char *attribute(const XML_Char **attributes, const char *name)
{
    for (; *attributes != NULL; attributes += 2)
        if (strcmp(attributes[0], name) == 0)
            return attributes[1];
    return "";
}

static junit_file_case *current(const reading *state)
{
    return &state->file->cases[state->file->count - 1];
}

static void on_start(void *data, const XML_Char *element, const XML_Char **attributes)
{
    reading *state = data;
    junit_file *file = state->file;
    state->depth++;
    if (strcmp(element, "testsuite") == 0) {
        snprintf(file->suite, sizeof file->suite, "%s", attribute(attributes, "name"));
        file->tests = atoi(attribute(attributes, "tests"));
        file->failures = atoi(attribute(attributes, "failures"));
        file->errors = atoi(attribute(attributes, "errors"));
        file->skipped = atoi(attribute(attributes, "skipped"));
    } else if (strcmp(element, "testcase") == 0) {
        file->cases = realloc(file->cases, (file->count + 1) * sizeof *file->cases);
        assert_non_null(file->cases);
        junit_file_case *one = &file->cases[file->count++];
        memset(one, 0, sizeof *one);
        snprintf(one->name, sizeof one->name, "%s.%s", attribute(attributes, "classname"),
                 attribute(attributes, "name"));
    } else if (strcmp(element, "failure") == 0 || strcmp(element, "error") == 0 || strcmp(element, "skipped") == 0) {
        snprintf(current(state)->element, sizeof current(state)->element, "%s", element);
        snprintf(current(state)->message, sizeof current(state)->message, "%s", attribute(attributes, "message"));
    } else if (strcmp(element, "system-out") == 0) {
        state->in_output = true;
        current(state)->output = strdup("");
    } else if (strcmp(element, "property") == 0 && state->depth == 4) {
        file->properties++;
    }
}

static void on_end(void *data, const XML_Char *element)
{
    reading *state = data;
    state->depth--;
    if (strcmp(element, "system-out") == 0)
        state->in_output = false;
}

static void on_text(void *data, const XML_Char *text, int bytes)
{
    const reading *state = data;
    if (!state->in_output)
        return;
    char *before = current(state)->output, *longer = NULL;
    assert_true(asprintf(&longer, "%s%.*s", before, bytes, text) >= 0);
    free(before);
    current(state)->output = longer;
}

void junit_file_read(const char *path, junit_file *file_out)
{
    char *text = read_text(path);
    reading state = {.file = file_out};
    memset(file_out, 0, sizeof *file_out);
    XML_Parser parser = XML_ParserCreate(NULL);
    XML_SetUserData(parser, &state);
    XML_SetElementHandler(parser, on_start, on_end);
    XML_SetCharacterDataHandler(parser, on_text);
    bool parsed = XML_Parse(parser, text, (int)strlen(text), 1) == XML_STATUS_OK;
    unsigned long line = XML_GetCurrentLineNumber(parser);
    XML_ParserFree(parser);
    free(text);
    if (!parsed)
        fail_msg("%s is no XML, line %lu", path, line);
}

void junit_file_free(junit_file *file)
{
    for (size_t i = 0; i < file->count; i++)
        free(file->cases[i].output);
    free(file->cases);
    memset(file, 0, sizeof *file);
}

const junit_file_case *junit_file_find(const junit_file *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->cases[i].name, name) == 0)
            return &file->cases[i];
    return NULL;
}
