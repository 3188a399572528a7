/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/json_lines.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CAUSE_BYTES = 384, MAX_FILE_BYTES = 1 << 28 };

static bool read_integers(const json_t *value, json_integers *integers_out)
{
    if (!json_is_array(value))
        return false;
    size_t count = json_array_size(value);
    for (size_t i = 0; i < count; i++)
        if (!json_is_integer(json_array_get(value, i)))
            return false;
    int64_t *values = malloc((count > 0 ? count : 1) * sizeof *values);
    if (values == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        values[i] = json_integer_value(json_array_get(value, i));
    *integers_out = (json_integers){values, count};
    return true;
}

static bool read_field(const json_t *value, const json_field *field)
{
    switch (field->type) {
    case JSON_FIELD_INTEGER:
        if (!json_is_integer(value))
            return false;
        *(int64_t *)field->value = json_integer_value(value);
        return true;
    case JSON_FIELD_STRING:
        if (!json_is_string(value))
            return false;
        *(const char **)field->value = json_string_value(value);
        return true;
    case JSON_FIELD_INTEGERS:
        return read_integers(value, field->value);
    }
    return false;
}

static const char *type_name(json_field_type type)
{
    static const char *const names[] = {[JSON_FIELD_INTEGER] = "an integer",
                                        [JSON_FIELD_STRING] = "a string",
                                        [JSON_FIELD_INTEGERS] = "a list of integers"};
    return names[type];
}

static bool is_known(const char *name, const json_field *fields, size_t num_fields)
{
    if (strcmp(name, "op") == 0)
        return true;
    for (size_t i = 0; i < num_fields; i++)
        if (strcmp(name, fields[i].name) == 0)
            return true;
    return false;
}

/* The iteration functions of jansson take a non-const object but do not change it. */
static json_t *unconst(const json_t *object)
{
    union {
        const json_t *in;
        json_t *out;
    } pun = {object};
    return pun.out;
}

bool json_read_fields(const json_t *object, const json_field *fields, size_t num_fields, char *cause,
                      size_t cause_bytes)
{
    const char *name;
    json_t *value;
    json_object_foreach(unconst(object), name, value)
    {
        if (!is_known(name, fields, num_fields)) {
            snprintf(cause, cause_bytes, "unknown field '%.64s'", name);
            return false;
        }
    }
    for (size_t i = 0; i < num_fields; i++) {
        const json_t *found = json_object_get(object, fields[i].name);
        if (found == NULL && fields[i].required) {
            snprintf(cause, cause_bytes, "field '%s' is missing", fields[i].name);
            return false;
        }
        if (found != NULL && !read_field(found, &fields[i])) {
            snprintf(cause, cause_bytes, "field '%s' must be %s", fields[i].name, type_name(fields[i].type));
            return false;
        }
    }
    return true;
}

bool json_lines_fail(json_lines_error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    for (char *c = error->text; *c != '\0'; c++)
        if (iscntrl((unsigned char)*c))
            *c = '?';
    return false;
}

static bool parse_line(const char *line, size_t bytes, json_line_handler handler, void *context, char *cause)
{
    json_error_t error;
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL) {
        snprintf(cause, CAUSE_BYTES, "not a JSON object: %s (column %d)", error.text, error.column);
        return false;
    }
    bool ok = false;
    const char *op = json_string_value(json_object_get(object, "op"));
    if (!json_is_object(object))
        snprintf(cause, CAUSE_BYTES, "not a JSON object");
    else if (op == NULL)
        snprintf(cause, CAUSE_BYTES, "field 'op' must be a string");
    else
        ok = handler(context, object, op, cause, CAUSE_BYTES);
    json_decref(object);
    return ok;
}

bool json_lines_parse(const char *name, const char *text, size_t bytes, json_line_handler handler, void *context,
                      json_lines_error *error_out)
{
    long number = 0;
    for (size_t at = 0; at < bytes;) {
        const char *line = text + at;
        const char *end = memchr(line, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - line) : bytes - at;
        at += length + 1;
        number++;
        size_t blank = 0;
        while (blank < length && (line[blank] == ' ' || line[blank] == '\t' || line[blank] == '\r'))
            blank++;
        char cause[CAUSE_BYTES];
        if (blank < length && !parse_line(line, length, handler, context, cause))
            return json_lines_fail(error_out, "%.500s:%ld: %s", name, number, cause);
    }
    return true;
}

static bool read_stream(FILE *stream, char **text_out, size_t *bytes_out)
{
    size_t capacity = 1 << 16, bytes = 0;
    char *text = malloc(capacity);
    while (text != NULL) {
        bytes += fread(text + bytes, 1, capacity - bytes, stream);
        if (bytes < capacity)
            break;
        if (capacity >= MAX_FILE_BYTES) {
            errno = EFBIG;
            free(text);
            return false;
        }
        char *larger = realloc(text, capacity *= 2);
        if (larger == NULL)
            free(text);
        text = larger;
    }
    if (text == NULL || ferror(stream)) {
        free(text);
        return false;
    }
    *text_out = text;
    *bytes_out = bytes;
    return true;
}

bool json_lines_read_file(const char *name, char **text_out, size_t *bytes_out, json_lines_error *error_out)
{
    errno = 0;
    bool standard_input = strcmp(name, "-") == 0;
    FILE *stream = standard_input ? stdin : fopen(name, "rb");
    bool ok = stream != NULL && read_stream(stream, text_out, bytes_out);
    if (!ok)
        json_lines_fail(error_out, "%.500s: cannot be read: %s", name, strerror(errno != 0 ? errno : EIO));
    if (stream != NULL && !standard_input)
        fclose(stream);
    return ok;
}
