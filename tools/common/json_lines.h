/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts of one JSON object per line, and typed access to an object's fields. Input is hostile: every error names
 * file, line and cause, in one line. */
#ifndef CKV_TOOLS_JSON_LINES_H
#define CKV_TOOLS_JSON_LINES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct json_lines_error {
    char text[1024]; /* "file:line: cause", one line */
} json_lines_error;

/* Set the message; control characters that came out of the input become '?'. Returns false. */
bool json_lines_fail(json_lines_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef enum json_field_type { JSON_FIELD_INTEGER, JSON_FIELD_STRING, JSON_FIELD_INTEGERS } json_field_type;

typedef struct json_integers {
    int64_t *values; /* freed by the owner of the struct */
    size_t count;
} json_integers;

typedef struct json_field {
    const char *name;
    json_field_type type;
    bool required;
    void *value; /* int64_t *, const char ** (borrowed from the object), json_integers *; untouched when absent */
} json_field;

/* Read exactly these fields (and "op") of an object. False with the cause when one is missing, unknown or of the wrong
 * type; lists already read stay in their json_integers. */
bool json_read_fields(const json_t *object, const json_field *fields, size_t num_fields, char *cause,
                      size_t cause_bytes);

/* Called for each non-blank line. Returns false with the cause to stop. */
typedef bool (*json_line_handler)(void *context, const json_t *object, const char *op, char *cause, size_t cause_bytes);

/* Parse `text` and hand every line to `handler`. `name` is the file's in messages. False with the error. */
bool json_lines_parse(const char *name, const char *text, size_t bytes, json_line_handler handler, void *context,
                      json_lines_error *error_out);

/* Whole file ("-": standard input) of less than 256 MiB into malloc'd memory. False with the error. */
bool json_lines_read_file(const char *name, char **text_out, size_t *bytes_out, json_lines_error *error_out);

#endif
