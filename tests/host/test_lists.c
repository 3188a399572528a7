/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `ckv lists`: reading lists, markers, matching, facts. */
#include "tests/support/case.h"

#include "tools/lists/selection.h"
#include "tools/lists/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One parsed list and what was said about it. */
typedef struct parsed {
    arena memory;
    char *messages;
    size_t message_bytes;
    diagnostics log;
    list_set lists;
} parsed;

static void parse(parsed *list, const char *text, bool lenient)
{
    memset(list, 0, sizeof *list);
    list->log.stream = open_memstream(&list->messages, &list->message_bytes);
    assert_non_null(list->log.stream);
    list_reader reader = {&list->memory, &list->log, lenient};
    text_source *source = arena_alloc(&list->memory, sizeof *source);
    *source = (text_source){"x.yml", arena_copy(&list->memory, text, strlen(text)), strlen(text)};
    list_read(&reader, source, &list->lists);
    fflush(list->log.stream);
}

static void discard(parsed *list)
{
    fclose(list->log.stream);
    free(list->messages);
    arena_free(&list->memory);
}

static void expect_entry(const char *line, const char *text, unsigned timeout, bool isolation, entry_verdict verdict,
                         const char *reason)
{
    arena memory = {NULL};
    list_entry entry;
    entry_problem problem = {0, ""};
    if (!entry_parse(&memory, line, &entry, &problem))
        fail_msg("'%s': %s", line, problem.message);
    assert_string_equal(entry.text, text);
    assert_int_equal(entry.timeout_minutes, timeout);
    assert_int_equal(entry.isolation, isolation);
    assert_int_equal(entry.verdict, verdict);
    if (reason == NULL)
        assert_null(entry.reason);
    else
        assert_string_equal(entry.reason, reason);
    arena_free(&memory);
}

static void markers_stand_behind_the_name(void **state)
{
    (void)state;
    expect_entry("a::t[x=1]", "a::t[x=1]", 0, false, ENTRY_RUN, NULL);
    expect_entry("  a::t  ", "a::t", 0, false, ENTRY_RUN, NULL);
    expect_entry("a::t TIMEOUT (090)", "a::t", 90, false, ENTRY_RUN, NULL);
    expect_entry("a::t TIMEOUT(60) ISOLATION", "a::t", 60, true, ENTRY_RUN, NULL);
    expect_entry("a::t ISOLATION,TIMEOUT (60)", "a::t", 60, true, ENTRY_RUN, NULL);
    expect_entry("a::t ISOLATION , SKIP (https://nvbugs/1 (again))", "a::t", 0, true, ENTRY_SKIP,
                 "https://nvbugs/1 (again)");
    expect_entry("a::t XFAIL # SKIP (no)", "a::t", 0, false, ENTRY_XFAIL, NULL);
    expect_entry("a::t UNSTABLE ( flaky ) ISOLATION TIMEOUT ( 5 )", "a::t", 5, true, ENTRY_UNSTABLE, " flaky ");
}

static void marker_words_elsewhere_are_text(void **state)
{
    (void)state;
    expect_entry("a/SKIP.py::t[TIMEOUT(3)]", "a/SKIP.py::t[TIMEOUT(3)]", 0, false, ENTRY_RUN, NULL);
    expect_entry("a -k \"SKIP and not TIMEOUT (3) # x\" SKIP", "a -k \"SKIP and not TIMEOUT (3) # x\"", 0, false,
                 ENTRY_SKIP, NULL);
    expect_entry("a  -k 'x' -m \"part2\"   ISOLATION", "a  -k 'x' -m \"part2\"", 0, true, ENTRY_RUN, NULL);
    expect_entry("a -k SKIP", "a -k SKIP", 0, false, ENTRY_RUN, NULL);
    expect_entry("a#b::t[c#d] # e", "a#b::t[c#d]", 0, false, ENTRY_RUN, NULL);
}

static void bad_entries_tell_their_place(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        size_t offset;
        const char *message;
    } bad[] = {
        {"", 0, "missing"},
        {"# only this", 0, "missing"},
        {"-k \"x\"", 0, "starts with the name"},
        {"a::t[x y]", 4, "'[' is not closed"},
        {"a -k", 2, "no expression"},
        {"a -k \"x", 5, "not closed"},
        {"a -k \"x\"y", 8, "space is missing"},
        {"a -x 3", 2, "unknown option"},
        {"a TIMEOUT", 2, "whole minutes"},
        {"a TIMEOUT (1.5)", 2, "whole minutes"},
        {"a TIMEOUT (0)", 2, "whole minutes"},
        {"a TIMEOUT (99999999999999999999)", 2, "whole minutes"},
        {"a TIMEOUT (1) TIMEOUT (2)", 14, "twice"},
        {"a ISOLATION ISOLATION", 12, "twice"},
        {"a ISOLATION (x)", 2, "nothing in parentheses"},
        {"a SKIP XFAIL", 7, "XFAIL after SKIP"},
        {"a SKIP (x", 7, "'(' is not closed"},
        {"a TIMEOT (3)", 2, "did you mean TIMEOUT?"},
        {"a skip", 2, "did you mean SKIP?"},
        {"a b", 2, "'b' is not a marker"},
        {"a ,SKIP", 2, "no marker before it"},
        {"a SKIP,,XFAIL", 7, "no marker before it"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        arena memory = {NULL};
        list_entry entry;
        entry_problem problem = {999, ""};
        if (entry_parse(&memory, bad[i].line, &entry, &problem))
            fail_msg("'%s' was accepted", bad[i].line);
        if (problem.offset != bad[i].offset || strstr(problem.message, bad[i].message) == NULL)
            fail_msg("'%s': at %zu: %s", bad[i].line, problem.offset, problem.message);
        arena_free(&memory);
    }
}

/* The caret must stand under the character that the message's column names. */
static void check_caret(const char *text, const parsed *list, size_t line, size_t column)
{
    const char *quoted = strchr(list->messages, '\n') + 1;
    const char *source = text;
    for (size_t i = 1; i < line; i++)
        source = strchr(source, '\n') + 1;
    size_t length = strcspn(source, "\n");
    assert_memory_equal(quoted, source, length);
    assert_int_equal(quoted[length], '\n');
    assert_int_equal(strspn(quoted + length + 1, " \t"), column - 1);
    assert_int_equal(quoted[length + column], '^');
}

static void traps_tell_line_column_and_cause(void **state)
{
    (void)state;
#define HEAD "version: 0.0.1\nc:\n"
    static const struct {
        const char *text;
        size_t line, column;
        const char *message;
    } traps[] = {
        {HEAD "- condition:\n    wildcards:\n      gpu:\n      - *h100*\n  tests: []\n", 6, 9, "quote the glob"},
        {HEAD "- condition: {wildcards: {gpu: *b200}}\n  tests: []\n", 3, 32, "quote the glob"},
        {HEAD "- tests:\n  - a::t[x=1-y: 2]\n", 4, 5, "': ' makes this entry a mapping; quote"},
        {HEAD "- tests: [a]\n  tests: [b]\n", 4, 3, "duplicate key 'tests'; it is already on line 3"},
        {"version: 0.0.1\nversion: 0.0.1\n", 2, 1, "duplicate key 'version'; it is already on line 1"},
        {HEAD "- test: [a]\n  tests: []\n", 3, 3,
         "unknown key 'test' in a block (condition, tests); did you mean 'tests'?"},
        {HEAD "- condition: {wildcard: {gpu: x}}\n  tests: []\n", 3, 15, "did you mean 'wildcards'?"},
        {HEAD "- condition: {ranges: {n: {get: 1, lte: 2}}}\n  tests: []\n", 3, 28, "did you mean 'gte'?"},
        {"versoin: 0.0.1\n", 1, 1, "did you mean 'version'?"},
        {HEAD "- condition:\n    terms: {stage: x}\n   tests: []\n", 5, 4, "did not find expected key"},
        {HEAD "- condition:\n\tterms: {stage: x}\n", 4, 1, "a tab cannot indent"},
        {HEAD "- condition: {ranges: {n: {gte: 0x10}}}\n  tests: []\n", 3, 33, "must be a number, not '0x10'"},
        {HEAD "- condition: {ranges: {n: {gte: inf}}}\n  tests: []\n", 3, 33, "must be a number"},
        {HEAD "- condition: {ranges: {n: }}\n  tests: []\n", 3, 27, "has no bound"},
        {HEAD "- condition: {terms: {n: [1]}}\n  tests: []\n", 3, 26, "must be a single value"},
        {HEAD "- condition: {terms: {n: }}\n  tests: []\n", 3, 26, "has no value"},
        {HEAD "- condition: {wildcards: {n: []}}\n  tests: []\n", 3, 30, "has no glob"},
        {HEAD "- tests:\n  - a[b] SKIPP\n", 4, 10, "did you mean SKIP?"},
        {HEAD "- tests:\n  - 'a[b] SKIPP'\n", 4, 11, "did you mean SKIP?"},
        {HEAD "- tests:\n  - \xC3\xA9 SKIPP\n", 4, 7, "did you mean SKIP?"},
        {HEAD "- tests:\n  -\n", 4, 4, "an entry is missing"},
        {HEAD "- tests: [\"a\\nb\"]\n", 3, 11, "line break or control character (0x0a)"},
        {HEAD "- condition: {}\n", 3, 3, "this block has no 'tests'"},
        {HEAD "- x\n", 3, 3, "a block must be a mapping"},
        {"version: 0.0.1\nc: {}\n", 2, 4, "must be a list of blocks"},
        {"version: 1\nc: []\n", 1, 10, "the version must be 0.0.1"},
        {"- a\n", 1, 1, "a list file must be a mapping"},
        {"# nothing\n", 1, 1, "the file is empty"},
        {"---\n", 1, 1, "the file is empty"},
        {"version: 0.0.1\n---\nversion: 0.0.1\n", 2, 1, "a second document"},
        {"? [a]\n: b\n", 1, 3, "a key must be text"},
        {"version: 0.0.1\nc: &a []\n", 2, 4, "anchors are not part of a list"},
        {HEAD "- tests: [!x a]\n", 3, 11, "tags are not part of a list"},
        {HEAD "- tests: [a\xFF]\n", 3, 12, "not UTF-8"},
    };
    for (size_t i = 0; i < sizeof traps / sizeof *traps; i++) {
        parsed list;
        parse(&list, traps[i].text, false);
        char place[64];
        snprintf(place, sizeof place, "x.yml:%zu:%zu: ", traps[i].line, traps[i].column);
        if (list.log.errors == 0 || strncmp(list.messages, place, strlen(place)) != 0 ||
            strstr(list.messages, traps[i].message) == NULL)
            fail_msg("%s\nexpected %s... %s ..., not:\n%s", traps[i].text, place, traps[i].message, list.messages);
        if (strstr(traps[i].message, "UTF-8") == NULL)
            check_caret(traps[i].text, &list, traps[i].line, traps[i].column);
        discard(&list);
    }
}

static void duplicate_keys_show_both_lines(void **state)
{
    (void)state;
    parsed list;
    parse(&list, HEAD "- tests: [a]\n  tests: [b]\n", false);
    assert_non_null(strstr(list.messages, "x.yml:4:3: duplicate key"));
    assert_non_null(strstr(list.messages, "x.yml:3:3: note: the first 'tests' is here"));
    discard(&list);
}

static void several_faults_are_all_told(void **state)
{
    (void)state;
    parsed list;
    parse(&list, HEAD "- tests: [a SKIPP, b, c TIMEOUT]\n  oops: 1\n- x\n", false);
    assert_int_equal(list.log.errors, 4);
    assert_string_equal(list.lists.contexts->blocks->entries->text, "b");
    discard(&list);
}

static void hostile_sizes_are_refused(void **state)
{
    (void)state;
    static char text[5 * 1024 * 1024];
    parsed list;

    memset(text, '[', 100000);
    text[100000] = '\0';
    parse(&list, text, false);
    assert_non_null(strstr(list.messages, "nested deeper"));
    discard(&list);

    size_t used = 0;
    for (int i = 0; i < 2000; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "k%d: []\n", i);
    parse(&list, text, false);
    assert_non_null(strstr(list.messages, "more than 1024 keys"));
    discard(&list);

    memset(text, '#', sizeof text - 1);
    parse(&list, text, false);
    assert_non_null(strstr(list.messages, "x.yml:1:1: 5242879 bytes"));
    discard(&list);
}

static void long_and_hostile_lines_are_shown_safely(void **state)
{
    (void)state;
    char text[4096], padding[3001];
    memset(padding, 'a', sizeof padding - 1);
    padding[sizeof padding - 1] = '\0';
    snprintf(text, sizeof text,
             HEAD "- tests: ['%s \xC2\x9B"
                  "31m SKIPP']\n",
             padding);
    parsed list;
    parse(&list, text, false);
    assert_int_not_equal(list.log.errors, 0);
    assert_true(list.message_bytes < 1500);
    assert_null(strstr(list.messages, "\xC2\x9B"
                                      "31m SKIPP']\n"));
    discard(&list);
}

static void lenient_only_warns_of_unknown_keys(void **state)
{
    (void)state;
    parsed list;
    parse(&list, HEAD "- condition: {term: {a: b}}\n  tests: [x]\n  owner: me\n", true);
    assert_int_equal(list.log.errors, 0);
    assert_int_equal(list.log.warnings, 2);
    assert_string_equal(list.lists.contexts->blocks->entries->text, "x");
    discard(&list);
}

static void scalars_stay_text(void **state)
{
    (void)state;
    parsed list;
    parse(&list, "version: 0.0.1\nno:\n- tests: [no, off, 010, ~, 1e3, 'it''s']\n", false);
    assert_int_equal(list.log.errors, 0);
    assert_string_equal(list.lists.contexts->name, "no");
    static const char *const expected[] = {"no", "off", "010", "~", "1e3", "it's"};
    const list_entry *entry = list.lists.contexts->blocks->entries;
    for (size_t i = 0; i < 6; i++, entry = entry->next)
        assert_string_equal(entry->text, expected[i]);
    assert_null(entry);
    discard(&list);
}

static match_result match(const char *condition, const char *key, const char *value)
{
    char text[512];
    snprintf(text, sizeof text, HEAD "- condition: %s\n  tests: []\n", condition);
    parsed list;
    parse(&list, text, false);
    if (list.log.errors > 0)
        fail_msg("%s", list.messages);
    fact_set facts = {NULL};
    if (key != NULL)
        facts_set(&list.memory, &facts, key, value);
    match_result result = match_all(list.lists.contexts->blocks->conditions, &facts);
    discard(&list);
    return result;
}

static void ranges_compare_decimals(void **state)
{
    (void)state;
    assert_int_equal(match("{ranges: {n: {gte: 2, lte: 4}}}", "n", "2"), MATCH_YES);
    assert_int_equal(match("{ranges: {n: {gte: 2, lte: 4}}}", "n", "4.0"), MATCH_YES);
    assert_int_equal(match("{ranges: {n: {gte: 2, lte: 4}}}", "n", "4.001"), MATCH_NO);
    assert_int_equal(match("{ranges: {n: {gt: 80000}}}", "n", "80000"), MATCH_NO);
    assert_int_equal(match("{ranges: {n: {gt: 80000}}}", "n", "80000.5"), MATCH_YES);
    assert_int_equal(match("{ranges: {n: {lt: 10.3}}}", "n", "10.3"), MATCH_NO);
    assert_int_equal(match("{ranges: {n: {lt: 10.3}}}", "n", "10.0"), MATCH_YES);
    assert_int_equal(match("{ranges: {n: {gte: -1.5e0, lte: 0}}}", "n", "-1.5"), MATCH_YES);
    assert_int_equal(match("{ranges: {n: {gte: 2}}}", "m", "2"), MATCH_UNKNOWN);
    assert_int_equal(match("{ranges: {n: {gte: 2}}}", "n", "many"), MATCH_NO);
    assert_int_equal(match("{ranges: {n: {gte: 2}}}", "n", ""), MATCH_NO);
    assert_int_equal(match("{ranges: {n: {gte: 2}}}", "n", NULL), MATCH_UNKNOWN);
}

static void globs_are_any_of_and_caseless(void **state)
{
    (void)state;
    assert_int_equal(match("{wildcards: {gpu: ['*a100*', '*h100*']}}", "gpu", "H100 80GB HBM3"), MATCH_YES);
    assert_int_equal(match("{wildcards: {gpu: '*H100*'}}", "gpu", "h100"), MATCH_YES);
    assert_int_equal(match("{wildcards: {gpu: '*b200*'}}", "gpu", "H100"), MATCH_NO);
    assert_int_equal(match("{wildcards: {os: ubuntu*}}", "os", "Ubuntu"), MATCH_YES);
    assert_int_equal(match("{wildcards: {os: ubuntu}}", "os", "ubuntu24"), MATCH_NO);
    assert_int_equal(match("{wildcards: {v: '9.?'}}", "v", "9.0"), MATCH_YES);
    assert_int_equal(match("{wildcards: {v: '[!h]100'}}", "v", "H100"), MATCH_NO);
    assert_int_equal(match("{wildcards: {v: '[a-b]100'}}", "v", "A100"), MATCH_YES);
    assert_int_equal(match("{wildcards: {v: '*'}}", NULL, NULL), MATCH_UNKNOWN);
}

static void terms_compare_text_numbers_booleans(void **state)
{
    (void)state;
    assert_int_equal(match("{terms: {s: pre_merge}}", "s", "pre_merge"), MATCH_YES);
    assert_int_equal(match("{terms: {s: pre_merge}}", "s", "Pre_merge"), MATCH_NO);
    assert_int_equal(match("{terms: {s: 4}}", "s", "4.0"), MATCH_YES);
    assert_int_equal(match("{terms: {s: 4}}", "s", "04"), MATCH_YES);
    assert_int_equal(match("{terms: {s: 4}}", "s", "4x"), MATCH_NO);
    assert_int_equal(match("{terms: {s: true}}", "s", "True"), MATCH_YES);
    assert_int_equal(match("{terms: {s: FALSE}}", "s", "false"), MATCH_YES);
    assert_int_equal(match("{terms: {s: true}}", "s", "false"), MATCH_NO);
    assert_int_equal(match("{terms: {s: yes}}", "s", "true"), MATCH_NO);
}

static void all_keys_must_hold(void **state)
{
    (void)state;
    assert_int_equal(match("{}", NULL, NULL), MATCH_YES);
    assert_int_equal(match("", NULL, NULL), MATCH_YES);
    assert_int_equal(match("{terms: {a: 1, b: 2}}", "a", "1"), MATCH_UNKNOWN);
    assert_int_equal(match("{terms: {a: 1, b: 2}}", "b", "1"), MATCH_NO);
    assert_int_equal(match("{ranges: {a: {gte: 1}}, terms: {a: 1}, wildcards: {a: 1}}", "a", "1"), MATCH_YES);
}

static void facts_are_a_flat_object(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *message;
    } bad[] = {
        {"[1]", "f.json:1:1: facts must be one JSON object"},
        {" \n  [{}]", "f.json:2:3: facts must be one JSON object"},
        {"\"x\"", "f.json:1:1: facts must be one JSON object"},
        {"", "f.json:1:1: "},
        {"{\"a\": 1,}", "f.json:1:9: "},
        {"{\"a\": 1}\nx", "f.json:2:1: "},
        {"{\n \"a\": 1,\n \"b\": [1]}", "f.json:3:2: a fact is a text of one line, a number, true, false or null"},
        {"{\"a\": \"x\\u001b[31m\"}", "f.json:1:2: a fact is a text of one line"},
        {"{\"a\\nb\": 1}", "f.json:1:1: a fact is a text of one line"},
        {"{\"a\": 1, \"a\": 2}", "f.json:1:12: duplicate object key"},
        {"{\"a\": \"\xFF\"}", "f.json:1:"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        arena memory = {NULL};
        char *messages;
        size_t bytes;
        diagnostics log = {.stream = open_memstream(&messages, &bytes)};
        text_source source = {"f.json", bad[i].json, strlen(bad[i].json)};
        fact_set facts = {NULL};
        bool accepted = facts_read_json(&memory, &log, &source, &facts);
        fclose(log.stream);
        if (accepted || strncmp(messages, bad[i].message, strlen(bad[i].message)) != 0 || messages[bytes - 1] != '\n' ||
            strchr(messages, '^') != messages + bytes - 2)
            fail_msg("%s: expected %s, not %s", bad[i].json, bad[i].message, messages);
        free(messages);
        arena_free(&memory);
    }

    arena memory = {NULL};
    diagnostics log = {.stream = stderr};
    const char *json = "{\"t\": \"x\", \"i\": 4, \"r\": 10.3, \"b\": true, \"n\": null}";
    text_source source = {"f.json", json, strlen(json)};
    fact_set facts = {NULL};
    assert_true(facts_read_json(&memory, &log, &source, &facts));
    assert_string_equal(facts_get(&facts, "t"), "x");
    assert_string_equal(facts_get(&facts, "i"), "4");
    assert_string_equal(facts_get(&facts, "r"), "10.3");
    assert_string_equal(facts_get(&facts, "b"), "true");
    assert_null(facts_get(&facts, "n"));
    assert_null(facts_get(&facts, "absent"));
    facts_set(&memory, &facts, "i", "5");
    assert_string_equal(facts_get(&facts, "i"), "5");
    arena_free(&memory);
}

static void this_machine_is_probed(void **state)
{
    (void)state;
    arena memory = {NULL};
    fact_set facts = {NULL};
    json_t *object = facts_probe(stderr);
    assert_non_null(object);
    static const char *const keys[] = {"gpu",
                                       "gpu_memory",
                                       "system_gpu_count",
                                       "compute_capability",
                                       "supports_fp8",
                                       "supports_int8",
                                       "supports_tf32",
                                       "cpu",
                                       "sysname",
                                       "linux_distribution_name",
                                       "linux_version",
                                       "host_mem_total_mib",
                                       "hostname",
                                       "mpi_version",
                                       "driver_version",
                                       "cuda_version",
                                       "shm_total_mib"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(object, keys[i]) == NULL)
            fail_msg("no fact '%s'", keys[i]);
    assert_true(facts_from_json(&memory, object, &facts));
    assert_string_equal(facts_get(&facts, "sysname"), "Linux");
    double number;
    assert_true(value_number(facts_get(&facts, "host_mem_total_mib"), &number));
    assert_true(number > 16);
    assert_true(value_number(facts_get(&facts, "system_gpu_count"), &number));
    assert_int_equal(number == 0, facts_get(&facts, "compute_capability") == NULL);
    json_decref(object);
    arena_free(&memory);
}

static void select_reports_what_it_does_not_know(void **state)
{
    (void)state;
    parsed list;
    parse(&list,
          HEAD "- condition: {terms: {stage: a, other: b}}\n  tests: [t1]\n"
               "- condition: {terms: {stage: x, third: b}}\n  tests: [t2]\n"
               "- condition: {ranges: {stage: {gte: 1}}}\n  tests: [t3]\n"
               "- condition: {terms: {stage: a}}\n  tests: [t4, t5 SKIP, t4 TIMEOUT (3), t4 -k x]\n",
          false);
    fact_set facts = {NULL};
    facts_set(&list.memory, &facts, "stage", "a");
    selection strict = select_entries(&list.memory, &list.log, list.lists.contexts, &facts, false);
    fflush(list.log.stream);
    assert_int_equal(strict.count, 3);
    assert_string_equal(strict.entries[0]->text, "t4");
    assert_string_equal(strict.entries[1]->text, "t5");
    assert_string_equal(strict.entries[2]->text, "t4 -k x");
    assert_int_equal(list.log.warnings, 3);
    assert_non_null(strstr(list.messages, "x.yml:3:33: warning: unknown fact 'other'"));
    assert_non_null(strstr(list.messages, "the fact 'stage' is 'a', not a number"));
    assert_non_null(strstr(list.messages, "x.yml:10:24: warning: 't4' is already selected by x.yml:10"));
    assert_null(strstr(list.messages, "third"));

    selection lenient = select_entries(&list.memory, &list.log, list.lists.contexts, &facts, true);
    assert_int_equal(lenient.count, 4);
    assert_string_equal(lenient.entries[0]->text, "t1");
    discard(&list);
}

static void contexts_continue_over_files(void **state)
{
    (void)state;
    parsed list;
    parse(&list, "version: 0.0.1\na:\n- tests: [x]\nb:\n- tests: [y]\n", false);
    list_reader reader = {&list.memory, &list.log, false};
    const char *more = "version: 0.0.1\nb:\n- tests: [z]\n- tests: [w]\na: []\n";
    text_source source = {"y.yml", more, strlen(more)};
    list_read(&reader, &source, &list.lists);
    assert_int_equal(list.log.errors, 0);
    const list_block *block = list_find(&list.lists, "b")->blocks;
    assert_string_equal(block->entries->text, "y");
    assert_string_equal(block->next->entries->text, "z");
    assert_string_equal(block->next->source->name, "y.yml");
    assert_string_equal(block->next->next->entries->text, "w");
    assert_null(block->next->next->next);
    assert_null(list_find(&list.lists, "c"));
    discard(&list);
}

static bool compatible(const char *a, const char *b)
{
    char text[1024];
    snprintf(text, sizeof text, HEAD "- condition: %s\n  tests: []\n- condition: %s\n  tests: []\n", a, b);
    parsed list;
    parse(&list, text, false);
    assert_int_equal(list.log.errors, 0);
    const list_block *block = list.lists.contexts->blocks;
    bool forward = match_compatible(block->conditions, block->next->conditions);
    assert_int_equal(forward, match_compatible(block->next->conditions, block->conditions));
    discard(&list);
    return forward;
}

static void conditions_that_exclude_each_other(void **state)
{
    (void)state;
    assert_true(compatible("{}", "{terms: {a: 1}}"));
    assert_true(compatible("{terms: {a: 1}}", "{terms: {b: 2}}"));
    assert_false(compatible("{terms: {a: x}}", "{terms: {a: y}}"));
    assert_false(compatible("{ranges: {n: {gte: 2, lte: 2}}}", "{ranges: {n: {gte: 4, lte: 4}}}"));
    assert_true(compatible("{ranges: {n: {gte: 2}}}", "{ranges: {n: {gte: 4, lte: 4}}}"));
    assert_false(compatible("{ranges: {n: {gt: 2}}}", "{ranges: {n: {lte: 2}}}"));
    assert_true(compatible("{ranges: {n: {gte: 2}}}", "{ranges: {n: {lte: 2}}}"));
    assert_false(compatible("{wildcards: {g: '*h100*'}}", "{wildcards: {g: '*b200*'}}"));
    assert_true(compatible("{wildcards: {g: '*b200*'}}", "{wildcards: {g: ['*h100*', '*gb200*']}}"));
    assert_false(compatible("{wildcards: {g: x86_64}}", "{wildcards: {g: aarch64}}"));
    assert_false(compatible("{terms: {n: 3}}", "{ranges: {n: {gte: 4}}}"));
    assert_true(compatible("{terms: {g: H100}}", "{wildcards: {g: '*h100*'}}"));
}

static const ckv_test_case cases[] = {
    CKV_CASE(markers_stand_behind_the_name),
    CKV_CASE(marker_words_elsewhere_are_text),
    CKV_CASE(bad_entries_tell_their_place),
    CKV_CASE(traps_tell_line_column_and_cause),
    CKV_CASE(duplicate_keys_show_both_lines),
    CKV_CASE(several_faults_are_all_told),
    CKV_CASE(hostile_sizes_are_refused),
    CKV_CASE(long_and_hostile_lines_are_shown_safely),
    CKV_CASE(lenient_only_warns_of_unknown_keys),
    CKV_CASE(scalars_stay_text),
    CKV_CASE(ranges_compare_decimals),
    CKV_CASE(globs_are_any_of_and_caseless),
    CKV_CASE(terms_compare_text_numbers_booleans),
    CKV_CASE(all_keys_must_hold),
    CKV_CASE(facts_are_a_flat_object),
    CKV_CASE(this_machine_is_probed),
    CKV_CASE(select_reports_what_it_does_not_know),
    CKV_CASE(contexts_continue_over_files),
    CKV_CASE(conditions_that_exclude_each_other),
};

CKV_TEST_MAIN("lists", cases)
