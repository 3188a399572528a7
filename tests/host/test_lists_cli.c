/* SPDX-License-Identifier: Apache-2.0 */
/* The ckv program: `ckv lists` and its exit codes, on files. */
#include "tests/support/case.h"
#include "tests/support/workplace.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void shared_cases_select_exactly(void **state)
{
    (void)state;
    static const char folder[] = CKV_SHARED_CASES_DIR "/lists";
    FILE *file = fopen(CKV_SHARED_CASES_DIR "/lists/cases.jsonl", "r");
    if (file == NULL)
        ckv_test_skip("%s/cases.jsonl is not there", folder);
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    char line[4096];
    size_t done = 0;
    for (; fgets(line, sizeof line, file) != NULL; done++) {
        json_error_t error;
        json_t *one = json_loads(line, 0, &error);
        assert_non_null(one);
        char arguments[4096], path[512];
        int used =
            snprintf(arguments, sizeof arguments, "select --dir '%s/%s' --context %s --facts '%s/%s'", folder,
                     json_string_value(json_object_get(one, "dir")), json_string_value(json_object_get(one, "context")),
                     folder, json_string_value(json_object_get(one, "facts")));
        size_t index;
        json_t *set;
        json_array_foreach(json_object_get(one, "set"), index, set)
        {
            used += snprintf(arguments + used, sizeof arguments - (size_t)used, " --set %s", json_string_value(set));
        }
        if (json_is_true(json_object_get(one, "lenient")))
            snprintf(arguments + used, sizeof arguments - (size_t)used, " --lenient");
        snprintf(path, sizeof path, "%s/%s", folder, json_string_value(json_object_get(one, "expected")));
        char *expected = read_text(path);
        workplace_expect(&place, arguments, 0, expected, "");
        free(expected);
        json_decref(one);
    }
    fclose(file);
    assert_true(done > 0);
    workplace_close(&place);
}

static const char two_blocks[] = "version: 0.0.1\n"
                                 "l0_x:\n"
                                 "- condition:\n"
                                 "    ranges: {system_gpu_count: {gte: 2}}\n"
                                 "    terms: {stage: pre_merge}\n"
                                 "  tests:\n"
                                 "  - a.one SKIP (x) # why\n"
                                 "  - a.two -k \"x\" ISOLATION, TIMEOUT (5)\n"
                                 "- condition:\n"
                                 "    terms: {stage: post_merge}\n"
                                 "  tests:\n"
                                 "  - a.one\n";
static const char machine[] = "{\"system_gpu_count\": \"4\", \"gpu\": null}";

static void select_takes_facts_and_overrides(void **state)
{
    (void)state;
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    workplace_put(&place, "b.yml", two_blocks);
    workplace_put(&place, "a.yaml", "version: 0.0.1\nl0_x:\n- tests: [first]\n");
    workplace_put(&place, "ignored.txt", "not: [a list");
    workplace_put(&place, "m.json", machine);
    workplace_expect(&place, "select --dir . -c l0_x --facts m.json --set stage=pre_merge", 0,
                     "first\na.one\na.two -k \"x\"\n", "");
    workplace_expect(&place, "select --dir . -c l0_x --facts m.json --set stage=pre_merge --set stage=post_merge", 0,
                     "first\na.one\n", "");
    workplace_expect(&place, "select --dir . -c l0_x --facts m.json --set stage=pre_merge --set system_gpu_count=1", 0,
                     "first\n", "");
    workplace_expect(&place, "select --dir . -c l0_x --facts m.json", 0, "first\n", "unknown fact 'stage'");
    workplace_expect(&place, "select --dir . -c l0_x --facts m.json --lenient", 0, "first\na.one\na.two -k \"x\"\n",
                     "b.yml:12:5: warning: 'a.one' is already selected by ./b.yml:7");
    workplace_close(&place);
}

static void select_refuses(void **state)
{
    (void)state;
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    workplace_put(&place, "m.json", machine);
    workplace_put(&place, "list.json", "[1]");
    workplace_put(&place, "bad.json", "{\"a\": 1,\n}");
    workplace_expect(&place, "select --dir . -c l0_x --facts m.json", 2, "",
                     ".: has no .yml or .yaml file; --dir names the folder of lists\n");
    workplace_put(&place, "b.yml", two_blocks);
    workplace_expect(&place, "select --dir . -c l0_y --facts m.json", 2, "", "did you mean 'l0_x'?");
    workplace_expect(&place, "select --dir none -c l0_x", 2, "", "none: No such file or directory");
    workplace_expect(&place, "select --dir . -c l0_x --facts none.json", 2, "", "none.json: No such file or directory");
    workplace_expect(&place, "select --dir . -c l0_x --facts .", 2, "", ".: is a folder");
    workplace_expect(&place, "select --dir . -c l0_x --facts list.json", 2, "", "list.json:1:1: ");
    assert_int_equal(lines_of(place.err), 3); /* and the source line, and a caret */
    workplace_expect(&place, "select --dir . -c l0_x --facts bad.json", 2, "", "bad.json:2:1: ");
    assert_int_equal(lines_of(place.err), 3);
    workplace_expect(&place, "select --dir . -c l0_x --set \"$(printf 'a=\\nb')\"", 2, "",
                     "--set is 'a=?b'; a fact is a text of one line");
    workplace_put(&place, "c.yml", "version: 0.0.1\nl0_x:\n- tests: [a]\n  owner: me\n");
    workplace_expect(&place, "select --dir . -c l0_x --facts m.json", 2, "", "./c.yml:4:3: unknown key 'owner'");
    workplace_expect(&place, "select --dir . -c l0_x --facts m.json --set stage=none --lenient", 0, "a\n",
                     "./c.yml:4:3: warning: unknown key 'owner'");
    workplace_close(&place);
}

static void options_are_explained(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        const char *message;
    } bad[] = {
        {"", "ckv lists: a command is missing"},
        {"slect", "ckv lists: unknown command 'slect', did you mean 'select'?"},
        {"select", "--context NAME is missing"},
        {"select --bogus", "unknown option '--bogus'"},
        {"select -x", "unknown option '-x'"},
        {"select -lx", "unknown option '-x'"},
        {"select --contxt a", "unknown option '--contxt', did you mean '--context'?"},
        {"select --context", "option '--context' needs a value, --context=NAME"},
        {"select --lenient=1", "option '--lenient' takes no value"},
        {"select -c a --set stage", "--set is 'stage'; it must be KEY=VALUE"},
        {"select -c a b", "unexpected argument 'b'"},
        {"facts b", "unexpected argument 'b'"},
        {"check", "--tests FILE is missing"},
        {"check --tests", "option '--tests' needs a value"},
        {"check --tests a --today 2023-02-29", "--today is '2023-02-29'; it must be a date"},
        {"why -c a", "ENTRY is missing"},
        {"why -c a b c", "unexpected argument 'c'"},
        {"why -c a 'b c'", "'c' is not a marker"},
        {"shard -c a --shards 0 --shard 1", "--shards is '0'; it must be an integer from 1"},
        {"shard -c a --shards 2 --shard 3", "--shard is 3; there are 2 shards"},
        {"shard -c a", "--shards N and --shard I are needed"},
        {"run -c a", "--build DIR is missing"},
        {"run -c a --cases c.json", "--out DIR is missing"},
        {"run -b b", "--context NAME is missing"},
        {"run -c a -b b -j 0", "--jobs is '0'; it must be an integer from 1"},
        {"run -c a -b b --repeat x", "--repeat is 'x'; it must be an integer from 1"},
        {"run -c a -b b --shuffle -1", "--shuffle is '-1'; it must be an unsigned 64-bit integer, or 'random'"},
        {"run -c a -b b --seed 99999999999999999999", "--seed is '99999999999999999999'; it must be"},
        {"run -c a -b b --shards 2", "--shards N and --shard I belong together"},
        {"run -c a -b b --shards 2 --shard 3", "--shards N and --shard I belong together, I from 1 to N"},
        {"run -c a -b b --today x", "--today is 'x'; it must be a date"},
    };
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        workplace_expect(&place, bad[i].arguments, 2, "", bad[i].message);
        assert_int_equal(lines_of(place.err), 1);
    }
    static const char *const commands[] = {"", "facts", "select", "why", "check", "shard", "run"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char arguments[64];
        snprintf(arguments, sizeof arguments, "%s --help", commands[i]);
        workplace_expect(&place, arguments, 0, NULL, "");
        assert_non_null(strstr(place.out, "Usage: ckv lists"));
        assert_string_equal(place.err, "");
    }
    workplace_close(&place);
}

#define TEST_OF(name) "{\"name\": \"" name "\", \"command\": [\"true\"], \"properties\": []}"

/* Nothing of these may run a case, or fewer or more cases than the list says. */
static void run_refuses_bad_input(void **state)
{
    (void)state;
    static const struct {
        const char *list, *waivers, *arguments, *message;
    } bad[] = {
        {"[oops", "", "", "b.yml:"},
        {"", "", "", "b.yml:"},
        {"version: 0.0.1\nx: &a [*a]\n", "", "", "b.yml:"},
        {"version: 0.0.1\nx:\n- tests: [\xFF]\n", "", "", "b.yml:"},
        {"version: 0.0.1\nx:\n- tests: [a.one]\n  test: []\n", "", "", "b.yml:4:3: "},
        {"version: 0.0.1\nx:\n- tests: [a.on]\n", "", "",
         "no case of this build is called 'a.on'; did you mean 'a.one'?"},
        {"version: 0.0.1\nx:\n- tests: ['a.one -k \"x\"']\n", "", "", "options are pytest's"},
        {"version: 0.0.1\nx:\n- tests: [a.one REQUIRE]\n", "", "", "did you mean REQUIRED?"},
        {"version: 0.0.1\nx:\n- tests: [a.one REQUIRED REQUIRED]\n", "", "", "REQUIRED is given twice"},
        {"version: 0.0.1\nx:\n- tests: [a]\n", "a.one SKIP until 2030-01-01 by me\n", "",
         "the waiver has no reference"},
        {"version: 0.0.1\nx:\n- tests: [a]\n", "", "a.three", "a.three: the list selects no case of this name here"},
        {"version: 0.0.1\nx:\n- tests: [a]\n", "", "--facts facts.json", "facts must be one JSON object"},
        {"version: 0.0.1\nx:\n- tests: [a]\n", "", "--durations d.json", "the duration of 'a.one' is '-1'"},
        {"version: 0.0.1\nx:\n- condition: {terms: {stage: pre}}\n  tests: [a]\n", "", "--set stage=per",
         "no block of 'x' has the stage 'per'; did you mean 'pre'?"},
    };
    workplace place;
    char arguments[256];
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    workplace_put(&place, "facts.json", "[1]");
    workplace_put(&place, "d.json", "{\"a.one\": -1}");
    workplace_put(&place, "c.json",
                  "{\"kind\": \"ctestInfo\", \"tests\": [" TEST_OF("a.one") "," TEST_OF("a.two") "]}");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        workplace_put(&place, "b.yml", bad[i].list);
        workplace_put(&place, "waives.txt", bad[i].waivers);
        snprintf(arguments, sizeof arguments, "run --dir . -c x --cases c.json --out results %s", bad[i].arguments);
        workplace_expect(&place, arguments, 2, "", bad[i].message);
    }
    struct stat info;
    snprintf(arguments, sizeof arguments, "%s/results", place.folder);
    assert_int_not_equal(stat(arguments, &info), 0); /* not even begun */
    workplace_put(&place, "b.yml", "version: 0.0.1\nx:\n- tests: [a.one, 'a.*']\n");
    workplace_put(&place, "waives.txt", "");
    workplace_expect(&place, "run --dir . -c x --cases c.json --out /proc/nowhere", 3, "", "/proc/nowhere: ");
    workplace_expect(&place, "run --dir . -c x --cases c.json --dry-run", 0,
                     "a.one  # 1 ranks, 0 GPUs, 1500 s\na.two  # 1 ranks, 0 GPUs, 1500 s\n", "");
    workplace_expect(&place, "run --dir . -c x --build nowhere --out results", 2, "", "nowhere");
    workplace_close(&place);
}

static void why_names_the_key_that_fails(void **state)
{
    (void)state;
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    workplace_put(&place, "b.yml", two_blocks);
    workplace_put(&place, "m.json", "{\"system_gpu_count\": 1, \"stage\": \"post_merge\"}");
    workplace_expect(
        &place, "why --dir . -c l0_x --facts m.json a.one", 0,
        "./b.yml:7: not selected: ranges.system_gpu_count: this machine has '1', the list asks for gte 2 (./b.yml:4)\n"
        "./b.yml:12: selected (block ./b.yml:9)\n",
        NULL);
    workplace_put(&place, "c.yml", "version: 0.0.1\nl0_y:\n- tests: [a.one]\n");
    workplace_expect(&place, "why --dir . --facts m.json --set stage=none a.one", 0, NULL, ""); /* in every list */
    assert_int_equal(lines_of(place.out), 3);
    workplace_expect(&place, "why --dir . a.none", 2, "", "no block of any list names 'a.none'; did you mean 'a.one'?");
    workplace_expect(
        &place, "why --dir . -c l0_x --facts m.json --set system_gpu_count=4 'a.two -k \"x\"'", 0,
        "./b.yml:8: not selected: terms.stage: this machine has 'post_merge', the list asks for 'pre_merge' "
        "(./b.yml:5)\n",
        NULL);
    workplace_put(&place, "m.json", "{}");
    workplace_expect(
        &place, "why --dir . -c l0_x --facts m.json a.two", 0,
        "./b.yml:8: not selected: ranges.system_gpu_count: this machine's value is unknown, the list asks for gte 2 "
        "(./b.yml:4)\n",
        NULL);
    workplace_expect(&place, "why --dir . -c l0_x --facts m.json --lenient a.two", 0,
                     "./b.yml:8: selected (block ./b.yml:3)\n", NULL);
    workplace_expect(&place, "why --dir . -c l0_x --facts m.json a.on", 2, "",
                     "no block of 'l0_x' names 'a.on'; did you mean 'a.one'?");
    workplace_close(&place);
}

static void check_finds_everything(void **state)
{
    (void)state;
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    workplace_put(&place, "b.yml", two_blocks);
    workplace_put(&place, "tests.txt", "a.one\na.two\n");
    workplace_expect(&place, "check --dir . --tests tests.txt --today 2025-06-15", 0, "2 tests, 0 errors, 0 warnings\n",
                     NULL);

    workplace_put(&place, "c.yml",
                  "version: 0.0.1\nl0_y:\n"
                  "- condition: {wildcards: {gpu: '*b200*'}, ranges: {n: {gte: 3, lte: 2}}}\n"
                  "  tests: [a.oen, a.one]\n"
                  "- condition: {wildcards: {gpu: '*gb200*'}}\n"
                  "  tests: [a]\n"
                  "- condition: {wildcards: {gpu: '*h100*'}}\n"
                  "  tests: [a.one, a.one]\n"
                  "  tests: [a.one TIMEOT]\n");
    workplace_put(&place, "waives.txt",
                  "a.gone SKIP (x) until 2025-12-31 by me\na.one SKIP until 2025-12-31 by me\n"
                  "a.two XFAIL (x) until 2025-06-01 by me\n");
    workplace_put(&place, "tests.txt", "a.one\na.two\nb.one\n");
    workplace_expect(&place, "check --dir . --tests tests.txt --today 2025-06-15", 1, NULL, "");
    static const char *const expected[] = {
        "./c.yml:3:27: warning: the glob for B200 also matches GB200; 'cpu: x86_64' keeps it out",
        "./c.yml:3:52: no value lies in this range",
        "./c.yml:4:11: no test is called 'a.oen'; did you mean 'a.one'?",
        "./c.yml:6:11: 'a.one' is selected twice for one machine: ./c.yml:4 names it too",
        "./c.yml:8:18: 'a.one' is selected twice for one machine: ./c.yml:8 names it too",
        "./c.yml:9:3: duplicate key 'tests'; it is already on line 8",
        "./c.yml:9:17: 'TIMEOT' is not a marker; did you mean TIMEOUT?",
        "tests.txt:3:1: no list names the test 'b.one'",
        "./waives.txt:1:1: stale waiver: no test is called 'a.gone'",
        "./waives.txt:2:7: the waiver has no reference",
        "./waives.txt:3:1: the waiver of 'a.two' by me expired on 2025-06-01",
        "3 tests, 10 errors, 1 warnings\n",
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (strstr(place.out, expected[i]) == NULL)
            fail_msg("not found: %s\n%s", expected[i], place.out);

    workplace_expect(&place, "check --dir none --tests tests.txt", 2, "", "none: No such file or directory");
    workplace_expect(&place, "check --dir . --tests none.txt", 2, "", "none.txt: No such file or directory");
    workplace_expect(&place, "check --dir tests.txt --tests tests.txt", 2, "", "tests.txt: is not a folder");
    workplace_close(&place);
}

/* The N shards together are the selection, each entry once, in its order; and the longest shard is not too long. */
static void shards_are_disjoint_and_complete(void **state)
{
    (void)state;
    enum { ENTRIES = 40, SHARDS = 3 };
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    char list[4096] = "version: 0.0.1\nl0_x:\n- tests:\n", durations[4096] = "{", arguments[256];
    double sum = 0, load[SHARDS] = {0};
    for (int i = 0; i < ENTRIES; i++) {
        snprintf(list + strlen(list), sizeof list - strlen(list), "  - t.%02d\n", i);
        snprintf(durations + strlen(durations), sizeof durations - strlen(durations), "%s\"t.%02d\": %d",
                 i > 0 ? ", " : "", i, i * 7 % 31);
        sum += i * 7 % 31;
    }
    snprintf(durations + strlen(durations), sizeof durations - strlen(durations), "}");
    workplace_put(&place, "l.yml", list);
    workplace_put(&place, "d.json", durations);
    bool seen[ENTRIES] = {false};
    size_t total = 0;
    for (int shard = 1; shard <= SHARDS; shard++) {
        snprintf(arguments, sizeof arguments, "shard --dir . -c l0_x --shards %d --shard %d --durations d.json", SHARDS,
                 shard);
        workplace_expect(&place, arguments, 0, NULL, "shard 3 of 3:");
        int previous = -1;
        for (char *line = strtok(place.out, "\n"); line != NULL; line = strtok(NULL, "\n"), total++) {
            int entry = atoi(line + 2);
            assert_true(entry > previous && entry < ENTRIES && !seen[entry]);
            seen[entry] = true;
            previous = entry;
            load[shard - 1] += entry * 7 % 31;
        }
    }
    assert_int_equal(total, ENTRIES);
    for (int shard = 0; shard < SHARDS; shard++)
        assert_true(load[shard] <= sum / SHARDS + 30);

    workplace_expect(&place, "shard --dir . -c l0_x --shards 100 --shard 100", 0, "",
                     "shard 100 of 100: 0 of 40 entries");
    workplace_put(&place, "d.json", "{\"t.01\": -1}");
    workplace_expect(&place, "shard --dir . -c l0_x --shards 2 --shard 1 --durations d.json", 2, "",
                     "d.json:1:2: the duration of 't.01' is '-1'");
    workplace_close(&place);
}

static void facts_can_be_read_back(void **state)
{
    (void)state;
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    workplace_expect(&place, "facts", 0, NULL, "");
    workplace_put(&place, "m.json", place.out);
    workplace_put(
        &place, "l.yml",
        "version: 0.0.1\nl0_x:\n- condition: {ranges: {system_gpu_count: {gte: 0}}, terms: {sysname: Linux}}\n"
        "  tests: [a]\n");
    workplace_expect(&place, "select --dir . -c l0_x --facts m.json", 0, "a\n", "");
    workplace_expect(&place, "select --dir . -c l0_x", 0, "a\n", "");
    workplace_close(&place);
}

static void the_project_lists_are_right(void **state)
{
    (void)state;
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' lists");
    workplace_expect(&place, "check --dir '" CKV_SOURCE_DIR "/test_lists' --tests '" CKV_TEST_NAMES_FILE "'", 0, NULL,
                     "");
    static const char *const contexts[] = {"l0_cpu",      "l0_h100",     "l0_h200",    "l0_b200",
                                           "l0_dgx_h100", "l0_dgx_h200", "l0_dgx_b200"};
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments,
                 "select --dir '" CKV_SOURCE_DIR "/test_lists' -c %s --set stage=pre_merge", contexts[i]);
        workplace_expect(&place, arguments, 0, NULL, "");
    }
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(shared_cases_select_exactly),
    CKV_CASE(select_takes_facts_and_overrides),
    CKV_CASE(select_refuses),
    CKV_CASE(options_are_explained),
    CKV_CASE(run_refuses_bad_input),
    CKV_CASE(why_names_the_key_that_fails),
    CKV_CASE(check_finds_everything),
    CKV_CASE(shards_are_disjoint_and_complete),
    CKV_CASE(facts_can_be_read_back),
    CKV_CASE(the_project_lists_are_right),
};

CKV_TEST_MAIN("lists_cli", cases)
