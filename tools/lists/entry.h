/* SPDX-License-Identifier: Apache-2.0 */
/* One line of a list:
 *     target {-k "expr" | -m "expr"} {marker} [# comment]
 * The target has no space in it. Options and markers are read in their places, never searched for, so a marker's word
 * inside a target, its parameters or a quoted expression is text. Markers, in any order and number, spaces or commas
 * between: TIMEOUT (minutes), ISOLATION, REQUIRED (a case that skips itself here is a failure), and one of SKIP, XFAIL,
 * UNSTABLE, each with an optional (reason). */
#ifndef CKV_LISTS_ENTRY_H
#define CKV_LISTS_ENTRY_H

#include "tools/lists/diag.h"

typedef enum entry_verdict { ENTRY_RUN, ENTRY_SKIP, ENTRY_XFAIL, ENTRY_UNSTABLE } entry_verdict;

typedef struct list_entry {
    const char *text;   /* target and options as written; what select prints */
    const char *target; /* first word of text */
    bool has_options;
    unsigned timeout_minutes; /* 0: none given */
    bool isolation;
    bool required;
    entry_verdict verdict;
    const char *reason; /* of the verdict; NULL when none */
    text_position at;
    struct list_entry *next;
} list_entry;

typedef struct entry_problem {
    size_t offset; /* byte of the line */
    char message[256];
} entry_problem;

/* Fills everything but `at` and `next`. */
bool entry_parse(arena *memory, const char *line, list_entry *entry_out, entry_problem *problem_out);

const char *entry_verdict_name(entry_verdict verdict);

/* For readers of similar lines. A cursor stands on a byte of `line`; the functions step over what they read. */
typedef struct entry_cursor {
    const char *line;
    size_t at;
    entry_problem *problem;
} entry_cursor;

/* False when only a comment or nothing is left. */
bool entry_more(entry_cursor *cursor);
bool entry_fail(entry_cursor *cursor, size_t offset, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool entry_target(entry_cursor *cursor);
bool entry_options(entry_cursor *cursor, bool *found_out);
/* Letters, digits and whatever else stands up to a space, comma, parenthesis or '#'; may be empty. */
size_t entry_word(entry_cursor *cursor, const char **word_out);
/* "(text)", with balanced parentheses inside; *inside_out is NULL when no parenthesis follows. */
bool entry_parenthesis(arena *memory, entry_cursor *cursor, const char **inside_out);

#endif
