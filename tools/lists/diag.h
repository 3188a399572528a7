/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about a text file: file:line:column, the source line and a caret. */
#ifndef CKV_LISTS_DIAG_H
#define CKV_LISTS_DIAG_H

#include "tools/common/arena.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct text_source {
    const char *name;
    const char *text; /* valid while the arena lives; not NUL-terminated */
    size_t size;
} text_source;

/* Both from 1; the column counts characters, not bytes. */
typedef struct text_position {
    size_t line;
    size_t column;
} text_position;

typedef struct diagnostics {
    FILE *stream;
    size_t errors;
    size_t warnings;
} diagnostics;

typedef enum diag_level { DIAG_ERROR, DIAG_WARNING, DIAG_NOTE } diag_level;

/* Print and count. Always false, so that a reader can return it. */
bool diag_report(diagnostics *log, diag_level level, const text_source *source, text_position at, const char *format,
                 ...) __attribute__((format(printf, 5, 6)));

#define diag_error(log, source, ...) diag_report(log, DIAG_ERROR, source, __VA_ARGS__)
#define diag_warning(log, source, ...) diag_report(log, DIAG_WARNING, source, __VA_ARGS__)
#define diag_note(log, source, ...) diag_report(log, DIAG_NOTE, source, __VA_ARGS__)

/* An error about a file or folder as a whole: "path: cause". Always false. */
bool diag_file(diagnostics *log, const char *path, const char *cause);

/* Position of a byte of the source. */
text_position text_position_of(const text_source *source, size_t offset);

/* Number of UTF-8 characters in the first `bytes` bytes. */
size_t text_characters(const char *text, size_t bytes);

/* Read a whole file; at most `limit` bytes. False after one line on log->stream that names the file and the cause. */
bool text_read(arena *memory, diagnostics *log, const char *path, size_t limit, text_source *source_out);

#endif
