/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `ckv lists run`: verdicts, slots, plans, what CTest says, text in JUnit. */
#include "tests/support/case.h"

#include "tests/support/random.h"
#include "tools/common/xml_text.h"
#include "tools/lists_run/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* --- Verdicts --- */

static void attempts_become_one_verdict(void **state)
{
    (void)state;
    static const struct {
        run_verdict of[3]; /* of three attempts */
        run_verdict expected;
    } table[] = {
        {{RUN_PASS, RUN_PASS, RUN_PASS}, RUN_PASS},
        {{RUN_SKIP, RUN_SKIP, RUN_SKIP}, RUN_SKIP},
        {{RUN_FAIL, RUN_FAIL, RUN_FAIL}, RUN_FAIL},
        {{RUN_HANG, RUN_HANG, RUN_HANG}, RUN_HANG},
        {{RUN_FAIL, RUN_CRASH, RUN_HANG}, RUN_FAIL},
        {{RUN_CRASH, RUN_HANG, RUN_HANG}, RUN_CRASH},
        {{RUN_PASS, RUN_PASS, RUN_FAIL}, RUN_FLAKY},
        {{RUN_HANG, RUN_PASS, RUN_PASS}, RUN_FLAKY},
        {{RUN_SKIP, RUN_CRASH, RUN_SKIP}, RUN_FLAKY},
        {{RUN_PASS, RUN_SKIP, RUN_PASS}, RUN_FLAKY},
        {{RUN_PASS, RUN_INFRASTRUCTURE, RUN_FAIL}, RUN_INFRASTRUCTURE},
    };
    for (size_t i = 0; i < COUNT(table); i++) {
        run_tally attempts = {0};
        for (size_t j = 0; j < 3; j++)
            attempts[table[i].of[j]]++;
        if (run_verdict_combine(attempts) != table[i].expected)
            fail_msg("row %zu: %s", i, run_verdict_name(run_verdict_combine(attempts)));
    }
}

static void expectations_change_a_verdict(void **state)
{
    (void)state;
    static const struct {
        run_verdict got;
        entry_verdict listed;
        run_verdict expected;
    } table[] = {
        {RUN_PASS, ENTRY_RUN, RUN_PASS},        {RUN_FAIL, ENTRY_RUN, RUN_FAIL},
        {RUN_FAIL, ENTRY_XFAIL, RUN_XFAIL},     {RUN_CRASH, ENTRY_XFAIL, RUN_XFAIL},
        {RUN_HANG, ENTRY_XFAIL, RUN_XFAIL},     {RUN_FLAKY, ENTRY_XFAIL, RUN_XFAIL},
        {RUN_PASS, ENTRY_XFAIL, RUN_XPASS},     {RUN_SKIP, ENTRY_XFAIL, RUN_SKIP},
        {RUN_PASS, ENTRY_UNSTABLE, RUN_PASS},   {RUN_FAIL, ENTRY_UNSTABLE, RUN_XFAIL},
        {RUN_FLAKY, ENTRY_UNSTABLE, RUN_XFAIL}, {RUN_INFRASTRUCTURE, ENTRY_XFAIL, RUN_INFRASTRUCTURE},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        if (run_verdict_expect(table[i].got, table[i].listed) != table[i].expected)
            fail_msg("row %zu: %s", i, run_verdict_name(run_verdict_expect(table[i].got, table[i].listed)));
}

static int code_of(run_verdict one, run_verdict other)
{
    run_tally verdicts = {[RUN_PASS] = 5, [RUN_SKIP] = 1, [RUN_XFAIL] = 1};
    verdicts[one]++;
    verdicts[other]++;
    return run_exit_code(verdicts);
}

static void exit_codes(void **state)
{
    (void)state;
    assert_int_equal(code_of(RUN_PASS, RUN_XFAIL), 0);
    assert_int_equal(code_of(RUN_FAIL, RUN_HANG), 1);
    assert_int_equal(code_of(RUN_CRASH, RUN_INFRASTRUCTURE), 1);
    assert_int_equal(code_of(RUN_FLAKY, RUN_PASS), 1);
    assert_int_equal(code_of(RUN_XPASS, RUN_PASS), 1);
    assert_int_equal(code_of(RUN_HANG, RUN_INFRASTRUCTURE), 4);
    assert_int_equal(code_of(RUN_INFRASTRUCTURE, RUN_SKIP), 3);
}

/* --- Slots --- */

static void link_gpus(slots *all, int one, int other)
{
    all->linked[one][other] = all->linked[other][one] = true;
}

static void take(slots *all, int cpus, int gpus, slot_grant *grant)
{
    slot_request request = {.cpus = cpus, .gpus = gpus};
    assert_true(slots_take(all, &request, grant));
    assert_int_equal(grant->num_gpus, gpus);
}

static void groups_are_linked(void **state)
{
    (void)state;
    slots all = {.cpus = 16, .free_cpus = 16, .num_gpus = 6, .slots_per_gpu = 1};
    slot_grant pair, single, quad;
    link_gpus(&all, 0, 5);
    link_gpus(&all, 1, 2);
    link_gpus(&all, 2, 3);
    link_gpus(&all, 1, 3);
    take(&all, 1, 2, &pair); /* the pair whose links nobody else has, not a piece of the triangle */
    assert_int_equal(pair.gpu[0], 0);
    assert_int_equal(pair.gpu[1], 5);
    take(&all, 1, 1, &single); /* the one without links */
    assert_int_equal(single.gpu[0], 4);
    slots_give(&all, &pair);
    slots_give(&all, &single);
    take(&all, 1, 4, &quad); /* the triangle, and one more */
    assert_int_equal(quad.gpu[0] + quad.gpu[1] + quad.gpu[2] + quad.gpu[3], 1 + 2 + 3 + 4);
    slots_give(&all, &quad);
    slots_retire(&all, 5);
    take(&all, 1, 2, &pair);
    assert_true(all.linked[pair.gpu[0]][pair.gpu[1]]);
}

static void gpus_may_be_shared_by_cases(void **state)
{
    (void)state;
    slots all = {.cpus = 16, .free_cpus = 16, .num_gpus = 2, .slots_per_gpu = 2};
    slot_grant singles[4], pair;
    for (int i = 0; i < 4; i++)
        take(&all, 1, 1, &singles[i]);
    assert_int_not_equal(singles[0].gpu[0], singles[1].gpu[0]); /* an idle one first */
    assert_false(slots_take(&all, &(slot_request){.cpus = 1, .gpus = 1}, &pair));
    slots_give(&all, &singles[0]);
    assert_false(slots_take(&all, &(slot_request){.cpus = 1, .gpus = 2}, &pair)); /* two of one GPU are no pair */
    slots_give(&all, &singles[1]);
    take(&all, 1, 2, &pair);
    assert_int_not_equal(pair.gpu[0], pair.gpu[1]);
    assert_false(slots_take(&all, &(slot_request){.cpus = 1, .gpus = 1}, &singles[0]));
}

static void requests_wait_for_room(void **state)
{
    (void)state;
    slots all = {.cpus = 4, .free_cpus = 4};
    slot_grant wide, alone, gpu, refused;
    take(&all, 9, 0, &wide); /* all there are */
    assert_int_equal(wide.cpus, 4);
    assert_false(slots_take(&all, &(slot_request){.cpus = 1}, &refused));
    slots_give(&all, &wide);
    assert_true(slots_take(&all, &(slot_request){.cpus = 1, .alone = true}, &alone));
    assert_false(slots_take(&all, &(slot_request){.cpus = 1}, &refused));
    slots_give(&all, &alone);
    assert_true(slots_take(&all, &(slot_request){.cpus = 1, .gpus = 1}, &gpu)); /* GPUs are not known: one at a time */
    assert_true(gpu.any_gpu && gpu.num_gpus == 0);
    assert_false(slots_take(&all, &(slot_request){.cpus = 1, .gpus = 1}, &refused));
    assert_false(slots_take(&all, &(slot_request){.cpus = 1, .alone = true}, &refused));
    assert_true(slots_take(&all, &(slot_request){.cpus = 1}, &refused));
    assert_true(slots_can_ever(&all, &(slot_request){.gpus = 8}));
}

/* Whatever comes and goes: no GPU more often than it may be, never more than there is, all free in the end. */
static void random_requests_never_collide(void **state)
{
    (void)state;
    enum { CPUS = 8, GPUS = 6, SLOTS = 2, HELD = 32, STEPS = 20000 };
    ckv_random random = {ckv_test_seed()};
    slots all = {.cpus = CPUS, .free_cpus = CPUS, .num_gpus = GPUS, .slots_per_gpu = SLOTS};
    slot_grant held[HELD];
    int count = 0, granted = 0;
    for (int i = 0; i < GPUS; i++)
        for (int j = 0; j < i; j++)
            if (ckv_random_range(&random, 0, 1))
                link_gpus(&all, i, j);
    for (int step = 0; step < STEPS; step++) {
        slot_request request = {.cpus = 1 + (int)ckv_random_range(&random, 0, 3),
                                .gpus = (int)ckv_random_range(&random, 0, 4),
                                .alone = ckv_random_range(&random, 0, 19) == 0};
        if (count < HELD && slots_take(&all, &request, &held[count])) {
            granted++;
            count++;
        } else if (count > 0) {
            int last = --count, gone = (int)ckv_random_range(&random, 0, count);
            slots_give(&all, &held[gone]);
            held[gone] = held[last];
        }
        int cpus = 0, owners[GPUS] = {0};
        for (int i = 0; i < count; i++) {
            cpus += held[i].cpus;
            assert_true(!held[i].alone || count == 1);
            for (int j = 0; j < held[i].num_gpus; j++)
                owners[held[i].gpu[j]]++;
        }
        assert_true(cpus <= CPUS && all.free_cpus == CPUS - cpus);
        for (int i = 0; i < GPUS; i++)
            assert_true(owners[i] <= SLOTS);
    }
    assert_true(granted > STEPS / 4);
}

/* --- Plans --- */

static plan make_cases(arena *memory, size_t count)
{
    static const ctest_case test = {.name = "x"};
    plan all = {arena_alloc(memory, count * sizeof *all.cases), count};
    for (size_t i = 0; i < count; i++)
        all.cases[i] = (plan_case){
            .name = arena_format(memory, "s.%zu", i), .test = &test, .order = i, .expected_s = (double)(i * 7 % 31)};
    return all;
}

static void shards_of_a_run_are_disjoint_and_complete(void **state)
{
    (void)state;
    enum { CASES = 97, SHARDS = 5 };
    arena memory = {NULL};
    int seen[CASES] = {0};
    double least = 1e9, most = 0;
    for (size_t shard = 0; shard < SHARDS; shard++) {
        char *text;
        size_t bytes;
        double seconds = 0;
        FILE *stream = open_memstream(&text, &bytes);
        plan all = make_cases(&memory, CASES);
        plan_shard(&memory, &all, SHARDS, shard, stream);
        fclose(stream);
        assert_non_null(strstr(text, "of 97 cases"));
        free(text);
        for (size_t i = 0; i < all.count; i++) {
            seen[all.cases[i].order]++;
            seconds += all.cases[i].expected_s;
            assert_true(i == 0 || all.cases[i].order > all.cases[i - 1].order);
        }
        least = seconds < least ? seconds : least;
        most = seconds > most ? seconds : most;
    }
    for (size_t i = 0; i < CASES; i++)
        assert_int_equal(seen[i], 1);
    assert_true(most - least <= 30); /* not more than one case */
    arena_free(&memory);
}

static void order_is_longest_first_or_shuffled(void **state)
{
    (void)state;
    enum { CASES = 50 };
    arena memory = {NULL};
    plan all = make_cases(&memory, CASES);
    all.cases[7].request.alone = true;
    plan_case **order = plan_order(&memory, &all, false, 0);
    assert_int_equal(order[CASES - 1]->order, 7);
    for (size_t i = 1; i + 1 < CASES; i++)
        assert_true(order[i]->expected_s <= order[i - 1]->expected_s);
    plan_case **one = plan_order(&memory, &all, true, 5), **same = plan_order(&memory, &all, true, 5);
    plan_case **other = plan_order(&memory, &all, true, 6);
    int seen[CASES] = {0};
    for (size_t i = 0; i < CASES; i++)
        seen[one[i]->order]++;
    for (size_t i = 0; i < CASES; i++)
        assert_int_equal(seen[i], 1);
    assert_memory_equal(one, same, CASES * sizeof(plan_case *));
    assert_memory_not_equal(one, other, CASES * sizeof(plan_case *));
    arena_free(&memory);
}

/* --- What CTest says --- */

static const char *read_ctest(const char *text, ctest_table *table, arena *memory)
{
    char *messages;
    size_t bytes;
    FILE *stream = open_memstream(&messages, &bytes);
    assert_non_null(stream);
    diagnostics log = {.stream = stream};
    text_source source = {"c.json", text, strlen(text)};
    bool read = ctest_read(memory, &log, &source, table);
    fclose(stream);
    const char *copy = read ? NULL : arena_copy(memory, messages, bytes);
    free(messages);
    return copy;
}

static void ctest_tells_how_a_case_runs(void **state)
{
    (void)state;
    arena memory = {NULL};
    ctest_table table;
    assert_null(read_ctest(
        "{\"kind\": \"ctestInfo\", \"tests\": ["
        "{\"name\": \"a.b-np2\", \"command\": [\"/x/ckv_case_launch\", \"--name\", \"a.b-np2\", \"--ranks\", \"2\","
        " \"--timeout\", \"7.5\", \"--record-dir\", \"r\", \"--\", \"p\", \"b\"], \"properties\": ["
        "{\"name\": \"TIMEOUT\", \"value\": 75.0}, {\"name\": \"PROCESSORS\", \"value\": 2},"
        "{\"name\": \"ENVIRONMENT\", \"value\": [\"A=b c\"]}, {\"name\": \"RUN_SERIAL\", \"value\": true},"
        "{\"name\": \"RESOURCE_GROUPS\", \"value\": [{\"requirements\": [{\".type\": \"gpus\", \"slots\": 1}]},"
        "{\"requirements\": [{\".type\": \"gpus\", \"slots\": 1}]}]}]},"
        "{\"name\": \"plain\", \"command\": [\"true\"], \"properties\": [{\"name\": \"TIMEOUT\", \"value\": 75}]},"
        "{\"name\": \"unbuilt\"}]}",
        &table, &memory));
    assert_int_equal(table.count, 3);
    const ctest_case *one = &table.cases[0];
    assert_true(one->ranks == 2 && one->timeout_s == 7.5 && !one->unrecorded && one->processors == 2);
    assert_true(one->alone && one->gpus == 2);
    assert_string_equal(one->program[0], "p");
    assert_string_equal(one->environment[0], "A=b c");
    one = &table.cases[1];
    assert_true(one->ranks == 1 && one->timeout_s == 75 && one->unrecorded && one->gpus == 0);
    assert_null(table.cases[2].command);
    arena_free(&memory);
}

#define TESTS(text) "{\"kind\": \"ctestInfo\", \"tests\": [" text "]}"
#define PROPERTY(name, value)                                                                                          \
    TESTS("{\"name\": \"a\", \"properties\": [{\"name\": \"" name "\", \"value\": " value "}]}")
#define LAUNCH(arguments) TESTS("{\"name\": \"a\", \"command\": [\"ckv_case_launch\"" arguments "]}")

static void ctest_is_not_believed(void **state)
{
    (void)state;
    static const char *const table[][2] = {
        {"", "c.json:1:"},
        {"{\"kind\": ", "c.json:1:"},
        {"[]", "is not what 'ctest --show-only=json-v1' prints"},
        {"{\"kind\": \"x\", \"tests\": []}", "is not what"},
        {TESTS("1"), "its name is not one line of text"},
        {TESTS("{\"name\": \"a\\nb\"}"), "its name is not one line of text"},
        {TESTS("{\"name\": \"a\"}, {\"name\": \"a\"}"), "there are two of that name"},
        {TESTS("{\"name\": \"a\", \"command\": []}"), "'command' is not a list of texts"},
        {TESTS("{\"name\": \"a\", \"command\": [1]}"), "'command' is not a list of texts"},
        {PROPERTY("WILL_FAIL", "true"), "property that this program does not know, so it would be judged wrongly"},
        {PROPERTY("PASS_REGULAR_EXPRESSION", "[\"x\"]"), "does not know"},
        {PROPERTY("TIMEOUT", "\"x\""), "TIMEOUT is not in seconds"},
        {PROPERTY("TIMEOUT", "-1"), "TIMEOUT is not in seconds"},
        {PROPERTY("PROCESSORS", "0"), "PROCESSORS is not a number of CPUs"},
        {PROPERTY("ENVIRONMENT", "[\"x\"]"), "ENVIRONMENT has an entry without '='"},
        {PROPERTY("RESOURCE_GROUPS", "[{\"requirements\": [{\".type\": \"tpus\", \"slots\": 1}]}]"), "'tpus'"},
        {PROPERTY("RESOURCE_GROUPS", "[{\"requirements\": [{\".type\": \"gpus\", \"slots\": -3}]}]"), "number of GPUs"},
        {LAUNCH(""), "its launcher runs no program"},
        {LAUNCH(", \"--ranks\", \"0\", \"--\", \"p\""), "number of ranks that is none"},
        {LAUNCH(", \"--ranks\""), "last option has no value '--ranks'"},
        {LAUNCH(", \"--timeout\", \"nan\", \"--\", \"p\""), "its deadline is not in seconds"},
        {LAUNCH(", \"--speed\", \"9\", \"--\", \"p\""), "an option that this program does not know: '--speed'"},
    };
    for (size_t i = 0; i < COUNT(table); i++) {
        arena memory = {NULL};
        ctest_table tests;
        const char *said = read_ctest(table[i][0], &tests, &memory);
        if (said == NULL || strstr(said, table[i][1]) == NULL)
            fail_msg("row %zu: '%s', not '%s'", i, said ? said : "read", table[i][1]);
        arena_free(&memory);
    }
}

/* --- Text --- */

static void expect_text(const char *text, size_t bytes, const char *expected)
{
    char *got;
    size_t got_bytes;
    FILE *stream = open_memstream(&got, &got_bytes);
    assert_non_null(stream);
    xml_put_text(stream, text, bytes);
    fclose(stream);
    if (strcmp(got, expected) != 0)
        fail_msg("'%s', not '%s'", got, expected);
    free(got);
}

static void junit_text_is_escaped(void **state)
{
    (void)state;
    static const char *const table[][2] = {
        {"a<b>&\"'", "a&lt;b&gt;&amp;&quot;'"},
        {"]]>", "]]&gt;"},
        {"tab\tline\n", "tab\tline\n"},
        {"\x1b[31m\r", "\\x1b[31m\\x0d"},
        {"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80", "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"},
        {"\xC3", "\\xc3"},
        {"\xC0\xAF", "\\xc0\\xaf"},                   /* too long for what it is */
        {"\xE0\x80\x80", "\\xe0\\x80\\x80"},          /* too */
        {"\xED\xA0\x80", "\\xed\\xa0\\x80"},          /* half of a pair */
        {"\xEF\xBF\xBE", "\\xef\\xbf\\xbe"},          /* U+FFFE */
        {"\xF4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* beyond U+10FFFF */
        {"\xFF", "\\xff"},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        expect_text(table[i][0], strlen(table[i][0]), table[i][1]);
    expect_text("a\0b", 3, "a\\x00b");
}

static const ckv_test_case cases[] = {
    CKV_CASE(attempts_become_one_verdict),
    CKV_CASE(expectations_change_a_verdict),
    CKV_CASE(exit_codes),
    CKV_CASE(groups_are_linked),
    CKV_CASE(gpus_may_be_shared_by_cases),
    CKV_CASE(requests_wait_for_room),
    CKV_CASE(random_requests_never_collide),
    CKV_CASE(shards_of_a_run_are_disjoint_and_complete),
    CKV_CASE(order_is_longest_first_or_shuffled),
    CKV_CASE(ctest_tells_how_a_case_runs),
    CKV_CASE(ctest_is_not_believed),
    CKV_CASE(junit_text_is_escaped),
};

CKV_TEST_MAIN("lists_run", cases)
