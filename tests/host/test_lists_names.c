/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `ckv lists check`: names of tests, nearest words, waivers. */
#include "tests/support/case.h"

#include "tools/common/suggest.h"
#include "tools/common/text_map.h"
#include "tools/lists/waivers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void targets_name_tests_at_boundaries(void **state)
{
    (void)state;
    assert_true(name_matches("cache", "cache"));
    assert_true(name_matches("cache", "cache.rollover"));
    assert_true(name_matches("a/test_b.py", "a/test_b.py::test_c[x]"));
    assert_true(name_matches("a/test_b.py::test_c", "a/test_b.py::test_c[x]"));
    assert_true(name_matches("a", "a/test_b.py::test_c[x]"));
    assert_true(name_matches("ulysses.exact", "ulysses.exact-np2"));
    assert_false(name_matches("ulysses.exact", "ulysses.exact-npx"));
    assert_false(name_matches("cache", "cache_big.x"));
    assert_false(name_matches("cache.roll", "cache.rollover"));
    assert_false(name_matches("cache.rollover", "cache"));
    assert_true(name_matches("cache.*over", "cache.rollover"));
    assert_true(name_matches("a::t[?]", "a::t[x]"));
    assert_false(name_matches("a::t[?]", "a::tx"));
    assert_false(name_matches("CACHE*", "cache.x"));
}

static void searches_find_what_a_scan_finds(void **state)
{
    (void)state;
    arena memory = {NULL};
    diagnostics log = {.stream = stderr};
    static const char text[] = "# tests\nb\nb.x\r\n  b[1]\nb_c\nb-d.e\nba\nb:y\na\nb.x.y\n\nc/b";
    text_source source = {"tests.txt", text, sizeof text - 1};
    name_table table;
    names_read(&memory, &log, &source, &table);
    assert_int_equal(table.count, 10);
    static const char *const targets[] = {"b", "b.x", "a", "c", "zz", "*", "b?x", "b[?]", "", "b-d"};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        size_t scanned = 0, found = 0;
        for (size_t j = 0; j < table.count; j++)
            scanned += name_matches(targets[i], table.names[j].text);
        name_search search = names_search(&table, targets[i]);
        while (names_next(&search) != NULL)
            found++;
        assert_int_equal(found, scanned);
    }
    assert_string_equal(names_suggest(&memory, &table, "b.z"), "b.x");
    assert_null(names_suggest(&memory, &table, "something else"));
    arena_free(&memory);
}

static void nearest_words(void **state)
{
    (void)state;
    assert_int_equal(edit_distance("", "", 3), 0);
    assert_int_equal(edit_distance("kitten", "sitting", 9), 3);
    assert_int_equal(edit_distance("kitten", "sitting", 2), 3);
    assert_int_equal(edit_distance("gte", "get", 3), 1);
    assert_int_equal(edit_distance("abc", "", 5), 3);
    static const char *const words[] = {"select", "shard", "check", NULL};
    assert_string_equal(suggest_from("slect", words), "select");
    assert_string_equal(suggest_from("check", words), "check");
    assert_string_equal(suggest_from("SELECT", words), "select");
    assert_null(suggest_from("xyzzy", words));
}

static void maps_keep_every_key(void **state)
{
    (void)state;
    arena memory = {NULL};
    text_map map = {0};
    for (size_t i = 0; i < 5000; i++)
        *text_map_at(&memory, &map, arena_format(&memory, "key%zu", i)) = arena_format(&memory, "%zu", i * i);
    assert_int_equal(map.count, 5000);
    for (size_t i = 0; i < 5000; i++)
        assert_string_equal(*text_map_at(&memory, &map, arena_format(&memory, "key%zu", i)),
                            arena_format(&memory, "%zu", i * i));
    assert_null(*text_map_at(&memory, &map, "absent"));
    arena_free(&memory);
}

static void days_of_the_calendar(void **state)
{
    (void)state;
    waiver_day day, next;
    assert_true(waiver_parse_day("1970-01-01", &day));
    assert_int_equal(day, 0);
    assert_true(waiver_parse_day("2024-02-29", &day));
    assert_true(waiver_parse_day("2024-03-01", &next));
    assert_int_equal(next, day + 1);
    static const char *const bad[] = {"2023-02-29",  "2023-13-01", "2023-00-10", "2023-1-01",
                                      "2023-01-01x", "",           "tomorrow"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(waiver_parse_day(bad[i], &day));
}

/* Messages about one waives.txt; the caller frees. */
static char *check_waivers(const char *text, size_t *errors_out, size_t *warnings_out)
{
    arena memory = {NULL};
    char *messages;
    size_t bytes;
    diagnostics log = {.stream = open_memstream(&messages, &bytes)};
    list_reader reader = {&memory, &log, false};
    static const char tests[] = "a.one\na.two\nb.one\n";
    text_source test_source = {"tests.txt", tests, sizeof tests - 1}, source = {"waives.txt", text, strlen(text)};
    name_table table;
    names_read(&memory, &log, &test_source, &table);
    waiver_day today;
    assert_true(waiver_parse_day("2025-06-15", &today));
    waivers_check(&reader, &source, waivers_read(&reader, &source), &table, today);
    fclose(log.stream);
    *errors_out = log.errors;
    *warnings_out = log.warnings;
    arena_free(&memory);
    return messages;
}

static void waivers_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        size_t errors, warnings;
        const char *message;
    } lines[] = {
        {"", 0, 0, ""},
        {"# comment\n\n  # another\n", 0, 0, ""},
        {"a.one SKIP (https://bugs/1) until 2025-12-31 by me # why", 0, 0, ""},
        {"a.* XFAIL (x) until 2025-06-29 by me\r\n", 0, 0, ""},
        {"a.one SKIP (x) until 2025-06-15 by me", 0, 1, "waives.txt:1:1: warning: the waiver of 'a.one' by me expires"},
        {"a.one SKIP (x) until 2025-06-14 by me", 1, 0,
         "waives.txt:1:1: the waiver of 'a.one' by me expired on 2025-06-14"},
        {"\n a.one SKIP until 2025-12-31 by me", 1, 0, "waives.txt:2:8: the waiver has no reference"},
        {"a.one SKIP ( ) until 2025-12-31 by me", 1, 0, "has no reference"},
        {"a.one SKIP (x)", 1, 0, "waives.txt:1:15: expected 'until'"},
        {"a.one SKIP (x) until 2025-02-30 by me", 1, 0, "waives.txt:1:22: '2025-02-30' is not a date"},
        {"a.one SKIP (x) until 2025-12-31", 1, 0, "expected 'by'"},
        {"a.one SKIP (x) until 2025-12-31 by", 1, 0, "no owner"},
        {"a.one SKIP (x) until 2025-12-31 by me b.one", 1, 0, "waives.txt:1:39: text behind the owner"},
        {"a.one b.one SKIP (x) until 2025-12-31 by me", 1, 0, "waives.txt:1:7: expected SKIP, XFAIL or UNSTABLE"},
        {"a.oen SKIP (x) until 2025-12-31 by me", 1, 0,
         "stale waiver: no test is called 'a.oen'; did you mean 'a.one'?"},
        {"a SKIP (x) until 2025-12-31 by me", 1, 0, "'a' is not one test"},
        {"when(wildcards: {gpu: '*b200*'}) a.one SKIP (x) until 2025-12-31 by me\n"
         "when(wildcards: {gpu: '*h100*'}) a.one XFAIL (y) until 2025-12-31 by me",
         0, 0, ""},
        {"when(terms: {stage: x}) a.one SKIP (x) until 2025-12-31 by me\n"
         "a.one XFAIL (y) until 2025-12-31 by me",
         1, 0, "waives.txt:2:1: 'a.one' is already waived on line 1"},
        {"\nwhen(term: {gpu: x}) a.one SKIP (x) until 2025-12-31 by me", 1, 0, "waives.txt:2:6: unknown key 'term'"},
        {"when(wildcards: {gpu: *b}) a.one SKIP (x) until 2025-12-31 by me", 1, 0, "waives.txt:1:23: '*b' is an alias"},
        {"when(terms: {a: b} a.one SKIP", 1, 0, "waives.txt:1:5: '(' is not closed"},
        {"when(terms: {a: b})", 1, 0, "names no case"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        size_t errors, warnings;
        char *messages = check_waivers(lines[i].line, &errors, &warnings);
        if (errors != lines[i].errors || warnings != lines[i].warnings || strstr(messages, lines[i].message) == NULL)
            fail_msg("%s\n%zu errors, %zu warnings, expected %zu, %zu and '%s':\n%s", lines[i].line, errors, warnings,
                     lines[i].errors, lines[i].warnings, lines[i].message, messages);
        free(messages);
    }
}

static const ckv_test_case cases[] = {
    CKV_CASE(targets_name_tests_at_boundaries),
    CKV_CASE(searches_find_what_a_scan_finds),
    CKV_CASE(nearest_words),
    CKV_CASE(maps_keep_every_key),
    CKV_CASE(days_of_the_calendar),
    CKV_CASE(waivers_are_checked),
};

CKV_TEST_MAIN("lists_names", cases)
