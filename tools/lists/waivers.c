/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/waivers.h"

#include "tools/lists/match.h"

#include <stdlib.h>
#include <string.h>

enum { WARN_DAYS = 14 };

bool waiver_parse_day(const char *text, waiver_day *day_out)
{
    static const char shape[] = "dddd-dd-dd";
    for (size_t i = 0; i < sizeof shape; i++)
        if (shape[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != shape[i])
            return false;
    struct tm date = {.tm_year = atoi(text) - 1900, .tm_mon = atoi(text + 5) - 1, .tm_mday = atoi(text + 8)};
    struct tm given = date;
    time_t seconds = timegm(&date);
    if (date.tm_year != given.tm_year || date.tm_mon != given.tm_mon || date.tm_mday != given.tm_mday)
        return false;
    *day_out = waiver_day_of(seconds);
    return true;
}

waiver_day waiver_day_of(time_t now)
{
    return (waiver_day)(now / 86400);
}

/* `line` is the whole line and `inside` what stands between the parentheses at `offset`. The text that is parsed keeps
 * the columns of the line. */
static void read_when(const list_reader *reader, const text_source *source, const char *inside, size_t offset,
                      waiver *out)
{
    const char *text = arena_format(reader->memory, "%*s{%s}", (int)offset, "", inside);
    const tree_node *root = tree_parse(reader->memory, reader->log, source, text, strlen(text), out->at.line);
    if (root != NULL)
        out->conditions = list_read_condition(reader, source, root);
}

static bool take_word(entry_cursor *cursor, const char *expected)
{
    const char *word;
    size_t length = entry_word(cursor, &word);
    if (length != strlen(expected) || memcmp(word, expected, length) != 0)
        return entry_fail(cursor, cursor->at - length,
                          "expected '%s' here: case SKIP (reference) until YYYY-MM-DD by OWNER", expected);
    return true;
}

static bool take_verdict(arena *memory, entry_cursor *cursor, waiver *out)
{
    const char *word;
    size_t length = entry_word(cursor, &word);
    size_t start = cursor->at - length;
    const char *name = arena_copy(memory, word, length);
    for (entry_verdict verdict = ENTRY_SKIP; verdict <= ENTRY_UNSTABLE; verdict++)
        if (strcmp(name, entry_verdict_name(verdict)) == 0)
            out->verdict = verdict;
    if (out->verdict == ENTRY_RUN)
        return entry_fail(cursor, start, "expected SKIP, XFAIL or UNSTABLE behind the case, not '%s'", name);
    if (!entry_parenthesis(memory, cursor, &out->reference))
        return false;
    if (out->reference == NULL || out->reference[strspn(out->reference, " \t")] == '\0')
        return entry_fail(cursor, start, "the waiver has no reference: %s (https://...)", name);
    return true;
}

static bool take_line(const list_reader *reader, const text_source *source, entry_cursor *cursor, waiver *out)
{
    arena *memory = reader->memory;
    const char *word;
    size_t start = strspn(cursor->line, " \t");
    if (strncmp(cursor->line + start, "when(", 5) == 0) {
        const char *inside;
        cursor->at = start + 4;
        if (!entry_parenthesis(memory, cursor, &inside))
            return false;
        read_when(reader, source, inside, text_characters(cursor->line, start + 4), out);
    }
    if (!entry_more(cursor))
        return entry_fail(cursor, cursor->at, "the waiver names no case");
    start = cursor->at;
    if (!entry_target(cursor))
        return false;
    out->target = arena_copy(memory, cursor->line + start, cursor->at - start);
    if (!take_verdict(memory, cursor, out) || !take_word(cursor, "until"))
        return false;
    size_t length = entry_word(cursor, &word);
    out->until_text = arena_copy(memory, word, length);
    if (!waiver_parse_day(out->until_text, &out->until))
        return entry_fail(cursor, cursor->at - length, "'%s' is not a date; write it as YYYY-MM-DD", out->until_text);
    if (!take_word(cursor, "by"))
        return false;
    length = entry_word(cursor, &word);
    out->owner = arena_copy(memory, word, length);
    if (length == 0)
        return entry_fail(cursor, cursor->at, "the waiver has no owner");
    if (entry_more(cursor))
        return entry_fail(cursor, cursor->at, "text behind the owner; one waiver a line");
    return true;
}

waiver *waivers_read(const list_reader *reader, const text_source *source)
{
    waiver *first = NULL, **tail = &first;
    const char *start = source->text, *end = source->text + source->size;
    for (size_t number = 1; start < end; number++) {
        const char *stop = memchr(start, '\n', (size_t)(end - start));
        stop = stop == NULL ? end : stop;
        size_t length = (size_t)(stop - start);
        length -= length > 0 && start[length - 1] == '\r';
        const char *line = arena_copy(reader->memory, start, length);
        start = stop + 1;
        entry_problem problem = {0, ""};
        entry_cursor cursor = {line, 0, &problem};
        if (strlen(line) < length) {
            diag_error(reader->log, source, ((text_position){number, strlen(line) + 1}), "a NUL character");
            continue;
        }
        if (!entry_more(&cursor))
            continue;
        waiver *one = arena_alloc(reader->memory, sizeof *one);
        one->at = (text_position){number, text_characters(line, cursor.at) + 1};
        if (take_line(reader, source, &cursor, one)) {
            *tail = one;
            tail = &one->next;
        } else {
            text_position at = {number, text_characters(line, problem.offset) + 1};
            diag_error(reader->log, source, at, "%s", problem.message);
        }
    }
    return first;
}

static void check_stale(const list_reader *reader, const text_source *source, const waiver *one,
                        const name_table *tests)
{
    name_search search = names_search(tests, one->target);
    const test_name *found = names_next(&search);
    if (found != NULL && (search.is_glob || strcmp(found->text, one->target) == 0))
        return;
    if (found != NULL) {
        diag_error(reader->log, source, one->at, "'%s' is not one test; a waiver names a case, or all with '%s*'",
                   one->target, one->target);
        return;
    }
    const char *near = names_suggest(reader->memory, tests, one->target);
    diag_error(reader->log, source, one->at, "stale waiver: no test is called '%s'%s%s%s", one->target,
               near != NULL ? "; did you mean '" : "", near != NULL ? near : "", near != NULL ? "'?" : "");
}

void waivers_check(const list_reader *reader, const text_source *source, const waiver *waivers, const name_table *tests,
                   waiver_day today)
{
    for (const waiver *one = waivers; one != NULL; one = one->next) {
        if (one->until < today)
            diag_error(reader->log, source, one->at, "the waiver of '%s' by %s expired on %s", one->target, one->owner,
                       one->until_text);
        else if (one->until < today + WARN_DAYS)
            diag_warning(reader->log, source, one->at, "the waiver of '%s' by %s expires on %s", one->target,
                         one->owner, one->until_text);
        check_stale(reader, source, one, tests);
        for (const waiver *earlier = waivers; earlier != one; earlier = earlier->next) {
            if (strcmp(earlier->target, one->target) != 0 || !match_compatible(earlier->conditions, one->conditions))
                continue;
            diag_error(reader->log, source, one->at, "'%s' is already waived on line %zu", one->target,
                       earlier->at.line);
            break;
        }
    }
}
