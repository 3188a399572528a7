/* SPDX-License-Identifier: Apache-2.0 */
/* Random lists: what is printed is read back the same, and matching agrees with a second evaluator that works on the
 * generated condition and shares nothing with the one under test. */
#include "tests/support/case.h"

#include "tests/support/random_data.h"
#include "tools/lists/match.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *pick(ckv_random *random, const char *const *words, size_t count)
{
    return words[ckv_random_range(random, 0, (int64_t)count - 1)];
}
#define PICK(random, words) pick(random, words, sizeof(words) / sizeof *(words))

static const char *const keys[] = {"gpu", "system_gpu_count", "stage", "supports_fp8", "cpu"};
static const char *const values[] = {"H100 80GB HBM3", "h100", "GB200", "B200",  "4",     "4.0",  "8",    "10.3",
                                     "pre_merge",      "true", "TRUE",  "False", "false", "-1.5", "text", "x86_64"};
static const char *const globs[] = {"*h100*", "*b200*", "?b200", "4*", "*", "pre_*", "X86_64", "*.?", "*0*0*", "tr?e"};
static const char *const numbers[] = {"-1.5", "0", "4", "4.0", "8", "10.3", "1e1"};
static const char *const bounds[] = {"gte", "lte", "gt", "lt"};

/* --- printing a parsed list, and reading it back --- */

static void print_quoted(FILE *out, const char *text)
{
    putc('\'', out);
    for (; *text != '\0'; text++)
        fprintf(out, "%s%c", *text == '\'' ? "'" : "", *text);
    putc('\'', out);
}

static void print_condition(FILE *out, const list_condition *condition)
{
    fputs("    - ", out);
    fprintf(out, "%s ", list_part_name(condition->part));
    print_quoted(out, condition->key);
    for (const list_operand *operand = condition->operands; operand != NULL; operand = operand->next) {
        fprintf(out, " %d ", (int)operand->op);
        print_quoted(out, operand->text);
    }
    putc('\n', out);
}

/* Keys of one part must stand together in YAML. */
static void print_part(FILE *out, const list_condition *conditions, list_part part)
{
    bool is_first = true;
    for (const list_condition *one = conditions; one != NULL; one = one->next) {
        if (one->part != part)
            continue;
        if (is_first)
            fprintf(out, "    %s:\n", list_part_name(part));
        is_first = false;
        fputs("      ", out);
        print_quoted(out, one->key);
        fputs(part == LIST_RANGES ? ": {" : part == LIST_WILDCARDS ? ": [" : ": ", out);
        for (const list_operand *operand = one->operands; operand != NULL; operand = operand->next) {
            if (part == LIST_RANGES)
                fprintf(out, "%s: ", list_operator_name(operand->op));
            print_quoted(out, operand->text);
            fputs(operand->next != NULL ? ", " : "", out);
        }
        fputs(part == LIST_RANGES ? "}\n" : part == LIST_WILDCARDS ? "]\n" : "\n", out);
    }
}

static void print_entry(FILE *out, const list_entry *entry)
{
    char line[1024];
    int used = snprintf(line, sizeof line, "%s", entry->text);
    if (entry->verdict != ENTRY_RUN)
        used += snprintf(line + used, sizeof line - (size_t)used, " %s", entry_verdict_name(entry->verdict));
    if (entry->reason != NULL)
        used += snprintf(line + used, sizeof line - (size_t)used, " (%s)", entry->reason);
    if (entry->isolation)
        used += snprintf(line + used, sizeof line - (size_t)used, " ISOLATION");
    if (entry->timeout_minutes > 0)
        snprintf(line + used, sizeof line - (size_t)used, " TIMEOUT (%u)", entry->timeout_minutes);
    fputs("  - ", out);
    print_quoted(out, line);
    putc('\n', out);
}

static void print_lists(FILE *out, const list_set *lists)
{
    fputs("version: 0.0.1\n", out);
    for (const list_context *context = lists->contexts; context != NULL; context = context->next) {
        print_quoted(out, context->name);
        fputs(context->blocks != NULL ? ":\n" : ": []\n", out);
        for (const list_block *block = context->blocks; block != NULL; block = block->next) {
            fputs("- condition:\n", out);
            for (list_part part = LIST_RANGES; part <= LIST_TERMS; part++)
                print_part(out, block->conditions, part);
            fputs(block->entries != NULL ? "  tests:\n" : "  tests: []\n", out);
            for (const list_entry *entry = block->entries; entry != NULL; entry = entry->next)
                print_entry(out, entry);
        }
    }
}

/* Everything that was read, in a form of its own. */
static void dump_lists(FILE *out, const list_set *lists)
{
    for (const list_context *context = lists->contexts; context != NULL; context = context->next) {
        fprintf(out, "%s\n", context->name);
        for (const list_block *block = context->blocks; block != NULL; block = block->next) {
            fputs("  block\n", out);
            for (const list_condition *one = block->conditions; one != NULL; one = one->next)
                print_condition(out, one);
            for (const list_entry *entry = block->entries; entry != NULL; entry = entry->next)
                fprintf(out, "    %s|%s|%d|%u|%d|%d|%s\n", entry->text, entry->target, entry->has_options,
                        entry->timeout_minutes, entry->isolation, (int)entry->verdict,
                        entry->reason != NULL ? entry->reason : "-");
        }
    }
}

static char *written(void (*write)(FILE *, const list_set *), const list_set *lists)
{
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    write(out, lists);
    fclose(out);
    return text;
}

static void read_back(arena *memory, const char *text, list_set *lists)
{
    diagnostics log = {.stream = stderr};
    list_reader reader = {memory, &log, false};
    text_source *source = arena_alloc(memory, sizeof *source);
    *source = (text_source){"random.yml", text, strlen(text)};
    list_read(&reader, source, lists);
    if (log.errors > 0)
        fail_msg("refused:\n%s", text);
}

/* --- random lists --- */

static void write_random_condition(FILE *out, ckv_random *random)
{
    fputs("- condition:\n", out);
    if (ckv_random_range(random, 0, 2) > 0) {
        fputs("    ranges:\n", out);
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            if (ckv_random_range(random, 0, 3) > 0)
                continue;
            int64_t first = ckv_random_range(random, 0, 3), second = ckv_random_range(random, 0, 3);
            fprintf(out, "      %s: {%s: %s", keys[i], bounds[first], PICK(random, numbers));
            if (second != first)
                fprintf(out, ", %s: %s", bounds[second], PICK(random, numbers));
            fputs("}\n", out);
        }
    }
    if (ckv_random_range(random, 0, 2) > 0) {
        fputs("    wildcards:\n", out);
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            int64_t count = ckv_random_range(random, 0, 3) == 0 ? ckv_random_range(random, 1, 3) : 0;
            if (count == 1)
                fprintf(out, "      %s: '%s'\n", keys[i], PICK(random, globs));
            else if (count > 1)
                fprintf(out, "      %s:\n", keys[i]);
            for (int64_t j = 0; j < count && count > 1; j++)
                fprintf(out, "      - '%s'\n", PICK(random, globs));
        }
    }
    if (ckv_random_range(random, 0, 2) > 0) {
        fputs("    terms:\n", out);
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            if (ckv_random_range(random, 0, 3) == 0)
                fprintf(out, "      %s: %s\n", keys[i], PICK(random, values));
    }
}

static void write_random_entry(FILE *out, ckv_random *random)
{
    static const char *const targets[] = {"cache.rollover", "a/b.py::C::d[x=1-y:2/z+w,-]", "SKIP", "dir/TIMEOUT(3)",
                                          "\xC3\xA9.x"};
    static const char *const options[] = {"", "", " -k \"SKIP and (not # b)\"", " -k 'x' -m \"part2\"", " -m XFAIL"};
    static const char *const verdicts[] = {"", "", " SKIP", " XFAIL (a (b) c)", " UNSTABLE(x)"};
    static const char *const timeouts[] = {"", "", " TIMEOUT (60)", " , TIMEOUT(007)"};
    static const char *const isolations[] = {"", "", " ISOLATION"};
    static const char *const comments[] = {"", "", " # 5 mins, SKIP"};
    char line[512];
    const char *option = PICK(random, options);
    const char *verdict = PICK(random, verdicts), *timeout = PICK(random, timeouts),
               *isolation = PICK(random, isolations);
    if (timeout[0] != '\0' && timeout[1] == ',' && verdict[0] == '\0' && isolation[0] == '\0')
        timeout = "";
    snprintf(line, sizeof line, "%s%s%s%s%s", PICK(random, targets), option, isolation, verdict, timeout);
    fputs("  - ", out);
    if (strchr(line, '#') != NULL)
        print_quoted(out, line);
    else
        fputs(line, out);
    fprintf(out, "%s\n", PICK(random, comments));
}

static char *random_list(ckv_random *random)
{
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    fputs("# comment\nversion: 0.0.1\n", out);
    for (int64_t context = ckv_random_range(random, 0, 2); context >= 0; context--) {
        fprintf(out, "l0_%d:\n", (int)context);
        for (int64_t block = ckv_random_range(random, 1, 4); block > 0; block--) {
            write_random_condition(out, random);
            int64_t entries = ckv_random_range(random, 0, 4);
            fputs(entries > 0 ? "  tests:\n" : "  tests: []\n", out);
            for (; entries > 0; entries--)
                write_random_entry(out, random);
        }
    }
    fclose(out);
    return text;
}

static void parse_print_parse(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    for (int round = 0; round < 500; round++) {
        arena memory = {NULL};
        list_set first = {NULL, NULL}, second = {NULL, NULL};
        char *text = random_list(&random);
        read_back(&memory, text, &first);
        char *printed = written(print_lists, &first);
        read_back(&memory, printed, &second);

        char *first_dump = written(dump_lists, &first), *second_dump = written(dump_lists, &second);
        assert_string_equal(first_dump, second_dump);
        free(text);
        free(printed);
        free(first_dump);
        free(second_dump);
        arena_free(&memory);
    }
}

/* --- the second evaluator --- */

static bool glob_says(const char *pattern, const char *text)
{
    if (*pattern == '*')
        return glob_says(pattern + 1, text) || (*text != '\0' && glob_says(pattern, text + 1));
    if (*pattern == '\0' || *text == '\0')
        return *pattern == *text;
    return (*pattern == '?' || tolower((unsigned char)*pattern) == tolower((unsigned char)*text)) &&
           glob_says(pattern + 1, text + 1);
}

static bool is_number(const char *text)
{
    size_t digits = 0;
    for (const char *at = text; *at != '\0'; at++) {
        if (isdigit((unsigned char)*at))
            digits++;
        else if (strchr("-+.e", *at) == NULL || (*at == 'e' && digits == 0))
            return false;
    }
    return digits > 0;
}

static bool term_says(const char *wanted, const char *known)
{
    char a[64], b[64];
    size_t i;
    for (i = 0; wanted[i] != '\0'; i++)
        a[i] = (char)tolower((unsigned char)wanted[i]);
    a[i] = '\0';
    for (i = 0; known[i] != '\0'; i++)
        b[i] = (char)tolower((unsigned char)known[i]);
    b[i] = '\0';
    bool are_booleans =
        (strcmp(a, "true") == 0 || strcmp(a, "false") == 0) && (strcmp(b, "true") == 0 || strcmp(b, "false") == 0);
    if (are_booleans)
        return strcmp(a, b) == 0;
    return is_number(wanted) && is_number(known) ? atof(wanted) == atof(known) : strcmp(wanted, known) == 0;
}

static bool bound_says(const char *bound, double known, double limit)
{
    return strcmp(bound, "gte") == 0   ? known >= limit
           : strcmp(bound, "lte") == 0 ? known <= limit
           : strcmp(bound, "gt") == 0  ? known > limit
                                       : known < limit;
}

/* One generated key: its YAML goes to `out`; the answer for a fact (NULL: none) is worked out here. */
static match_result random_key(FILE *out, ckv_random *random, int part, const char *key, const char *known)
{
    bool says = false;
    if (part == 0) {
        int64_t first = ckv_random_range(random, 0, 3), second = ckv_random_range(random, 0, 3);
        const char *one = PICK(random, numbers), *other = PICK(random, numbers);
        fprintf(out, "%s: {%s: %s", key, bounds[first], one);
        if (second != first)
            fprintf(out, ", %s: %s", bounds[second], other);
        fputs("}", out);
        says = known != NULL && is_number(known) && bound_says(bounds[first], atof(known), atof(one)) &&
               (second == first || bound_says(bounds[second], atof(known), atof(other)));
    } else if (part == 1) {
        fprintf(out, "%s: [", key);
        for (int64_t count = ckv_random_range(random, 1, 3); count > 0; count--) {
            const char *glob = PICK(random, globs);
            fprintf(out, "'%s'%s", glob, count > 1 ? ", " : "]");
            says = says || (known != NULL && glob_says(glob, known));
        }
    } else {
        const char *wanted = PICK(random, values);
        fprintf(out, "%s: %s", key, wanted);
        says = known != NULL && term_says(wanted, known);
    }
    return known == NULL ? MATCH_UNKNOWN : says ? MATCH_YES : MATCH_NO;
}

static void matching_agrees_with_a_second_evaluator(void **state)
{
    (void)state;
    static const char *const parts[] = {"ranges", "wildcards", "terms"};
    ckv_random random = {ckv_test_seed()};
    size_t answers[3] = {0, 0, 0};
    for (int round = 0; round < 20000; round++) {
        arena memory = {NULL};
        fact_set facts = {NULL};
        char *text;
        size_t bytes;
        FILE *out = open_memstream(&text, &bytes);
        assert_non_null(out);
        const char *known[sizeof keys / sizeof *keys];
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            known[i] = ckv_random_range(&random, 0, 9) == 0 ? NULL : PICK(&random, values);
            facts_set(&memory, &facts, keys[i], known[i]);
        }
        match_result expected = MATCH_YES;
        fputs("version: 0.0.1\nc:\n- condition:\n", out);
        for (int part = 0; part < 3; part++) {
            fprintf(out, "    %s: {", parts[part]);
            for (size_t i = 0, written_keys = 0; i < sizeof keys / sizeof *keys; i++) {
                if (ckv_random_range(&random, 0, 9) > 0)
                    continue;
                fputs(written_keys++ > 0 ? ", " : "", out);
                match_result one = random_key(out, &random, part, keys[i], known[i]);
                expected = expected == MATCH_NO || one == MATCH_NO             ? MATCH_NO
                           : expected == MATCH_UNKNOWN || one == MATCH_UNKNOWN ? MATCH_UNKNOWN
                                                                               : MATCH_YES;
            }
            fputs("}\n", out);
        }
        fputs("  tests: []\n", out);
        fclose(out);
        list_set lists = {NULL, NULL};
        read_back(&memory, text, &lists);
        match_result actual = match_all(lists.contexts->blocks->conditions, &facts);
        if (actual != expected)
            fail_msg("round %d: %d, the second evaluator says %d:\n%s", round, (int)actual, (int)expected, text);
        answers[expected]++;
        free(text);
        arena_free(&memory);
    }
    for (size_t i = 0; i < 3; i++)
        assert_true(answers[i] > 500);
}

static const ckv_test_case cases[] = {
    CKV_CASE(parse_print_parse),
    CKV_CASE(matching_agrees_with_a_second_evaluator),
};

CKV_TEST_MAIN("lists_random", cases)
