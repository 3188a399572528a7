/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/entry.h"

#include "tools/common/suggest.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *const verdict_names[] = {"RUN", "SKIP", "XFAIL", "UNSTABLE"};
static const char *const marker_names[] = {"TIMEOUT", "ISOLATION", "REQUIRED", "SKIP", "XFAIL", "UNSTABLE", NULL};

const char *entry_verdict_name(entry_verdict verdict)
{
    return verdict_names[verdict];
}

static bool is_space(char byte)
{
    return byte == ' ' || byte == '\t';
}

static char here(const entry_cursor *cursor)
{
    return cursor->line[cursor->at];
}

static void skip_spaces(entry_cursor *cursor)
{
    while (is_space(here(cursor)))
        cursor->at++;
}

bool entry_more(entry_cursor *cursor)
{
    skip_spaces(cursor);
    return here(cursor) != '\0' && here(cursor) != '#';
}

bool entry_fail(entry_cursor *cursor, size_t offset, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(cursor->problem->message, sizeof cursor->problem->message, format, arguments);
    va_end(arguments);
    cursor->problem->offset = offset;
    return false;
}

bool entry_target(entry_cursor *cursor)
{
    if (!entry_more(cursor))
        return entry_fail(cursor, cursor->at, "an entry is missing");
    size_t start = cursor->at, bracket = 0;
    if (here(cursor) == '-' || here(cursor) == '(' || here(cursor) == '"' || here(cursor) == ',')
        return entry_fail(cursor, start, "an entry starts with the name of a test, not with '%c'", here(cursor));
    while (here(cursor) != '\0' && !is_space(here(cursor))) {
        if (here(cursor) == '[' && bracket == 0)
            bracket = cursor->at;
        cursor->at++;
    }
    if (bracket > 0 && cursor->line[cursor->at - 1] != ']')
        return entry_fail(cursor, bracket, "'[' is not closed before the end of the name; parameters have no spaces");
    return true;
}

static bool is_option(const entry_cursor *cursor)
{
    const char *text = cursor->line + cursor->at;
    return text[0] == '-' && (text[1] == 'k' || text[1] == 'm') && (is_space(text[2]) || text[2] == '\0');
}

static bool option_value(entry_cursor *cursor, size_t option)
{
    skip_spaces(cursor);
    char quote = here(cursor);
    if (quote == '\0' || quote == '#')
        return entry_fail(cursor, option, "option '%.2s' has no expression", cursor->line + option);
    size_t start = cursor->at;
    if (quote != '"' && quote != '\'') {
        while (here(cursor) != '\0' && !is_space(here(cursor)))
            cursor->at++;
        return true;
    }
    const char *end = strchr(cursor->line + start + 1, quote);
    if (end == NULL)
        return entry_fail(cursor, start,
                          "this quote is not closed; when the expression holds ' #', quote the whole entry");
    cursor->at = (size_t)(end - cursor->line) + 1;
    if (here(cursor) != '\0' && !is_space(here(cursor)))
        return entry_fail(cursor, cursor->at, "a space is missing after the quote");
    return true;
}

bool entry_options(entry_cursor *cursor, bool *found_out)
{
    *found_out = false;
    for (;;) {
        size_t end = cursor->at;
        if (!entry_more(cursor) || here(cursor) != '-') {
            cursor->at = end;
            return true;
        }
        if (!is_option(cursor))
            return entry_fail(cursor, cursor->at,
                              "unknown option; an entry takes -k \"expression\" and -m \"expression\"");
        size_t option = cursor->at;
        cursor->at += 2;
        if (!option_value(cursor, option))
            return false;
        *found_out = true;
    }
}

size_t entry_word(entry_cursor *cursor, const char **word_out)
{
    skip_spaces(cursor);
    *word_out = cursor->line + cursor->at;
    size_t length = strcspn(*word_out, " \t,()#");
    cursor->at += length;
    return length;
}

bool entry_parenthesis(arena *memory, entry_cursor *cursor, const char **inside_out)
{
    size_t before = cursor->at;
    skip_spaces(cursor);
    *inside_out = NULL;
    if (here(cursor) != '(') {
        cursor->at = before;
        return true;
    }
    size_t start = cursor->at, depth = 0;
    for (; here(cursor) != '\0'; cursor->at++) {
        depth += here(cursor) == '(';
        if (here(cursor) == ')' && --depth == 0) {
            *inside_out = arena_copy(memory, cursor->line + start + 1, cursor->at - start - 1);
            cursor->at++;
            return true;
        }
    }
    return entry_fail(cursor, start, "'(' is not closed");
}

static bool take_timeout(entry_cursor *cursor, size_t start, const char *inside, list_entry *entry)
{
    char *end = NULL;
    unsigned long minutes = 0;
    if (inside != NULL) {
        const char *digits = inside + strspn(inside, " \t");
        minutes = digits[0] >= '0' && digits[0] <= '9' ? strtoul(digits, &end, 10) : 0;
        if (end != NULL && end[strspn(end, " \t")] != '\0')
            minutes = 0;
    }
    if (minutes < 1 || minutes > 100000)
        return entry_fail(cursor, start, "TIMEOUT takes whole minutes from 1 to 100000 in parentheses: TIMEOUT (90)");
    if (entry->timeout_minutes != 0)
        return entry_fail(cursor, start, "TIMEOUT is given twice");
    entry->timeout_minutes = (unsigned)minutes;
    return true;
}

/* ISOLATION and REQUIRED. */
static bool take_flag(entry_cursor *cursor, size_t start, const char *name, const char *inside, bool *flag)
{
    if (inside != NULL)
        return entry_fail(cursor, start, "%s takes nothing in parentheses", name);
    if (*flag)
        return entry_fail(cursor, start, "%s is given twice", name);
    *flag = true;
    return true;
}

static bool is_word(const char *word, size_t length, const char *name)
{
    return strlen(name) == length && memcmp(word, name, length) == 0;
}

static bool take_marker(arena *memory, entry_cursor *cursor, list_entry *entry)
{
    const char *word;
    size_t length = entry_word(cursor, &word);
    size_t start = cursor->at - length;
    if (length == 0)
        return entry_fail(cursor, start, "'%c' has no marker before it", here(cursor));
    const char *inside;
    if (!entry_parenthesis(memory, cursor, &inside))
        return false;
    if (is_word(word, length, "TIMEOUT"))
        return take_timeout(cursor, start, inside, entry);
    if (is_word(word, length, "ISOLATION"))
        return take_flag(cursor, start, "ISOLATION", inside, &entry->isolation);
    if (is_word(word, length, "REQUIRED"))
        return take_flag(cursor, start, "REQUIRED", inside, &entry->required);
    for (entry_verdict verdict = ENTRY_SKIP; verdict <= ENTRY_UNSTABLE; verdict++) {
        if (!is_word(word, length, verdict_names[verdict]))
            continue;
        if (entry->verdict != ENTRY_RUN)
            return entry_fail(cursor, start, "%s after %s; an entry has one of SKIP, XFAIL, UNSTABLE",
                              verdict_names[verdict], verdict_names[entry->verdict]);
        entry->verdict = verdict;
        entry->reason = inside;
        return true;
    }
    const char *near = suggest_from(arena_copy(memory, word, length), marker_names);
    return entry_fail(cursor, start, "'%.*s' is not a marker%s%s%s", (int)(length > 100 ? 100 : length), word,
                      near != NULL ? "; did you mean " : " (TIMEOUT, ISOLATION, REQUIRED, SKIP, XFAIL, UNSTABLE)",
                      near != NULL ? near : "", near != NULL ? "?" : "");
}

/* Between markers: spaces, or one comma. */
static bool more_markers(entry_cursor *cursor, bool is_first)
{
    if (!is_first && entry_more(cursor) && here(cursor) == ',')
        cursor->at++;
    return entry_more(cursor);
}

bool entry_parse(arena *memory, const char *line, list_entry *entry_out, entry_problem *problem_out)
{
    entry_cursor cursor = {line, 0, problem_out};
    list_entry entry = {.verdict = ENTRY_RUN};
    if (!entry_target(&cursor))
        return false;
    size_t start = strspn(line, " \t");
    entry.target = arena_copy(memory, line + start, cursor.at - start);
    if (!entry_options(&cursor, &entry.has_options))
        return false;
    entry.text = entry.has_options ? arena_copy(memory, line + start, cursor.at - start) : entry.target;
    for (bool is_first = true; more_markers(&cursor, is_first); is_first = false)
        if (!take_marker(memory, &cursor, &entry))
            return false;
    *entry_out = entry;
    return true;
}
