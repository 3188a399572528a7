/* SPDX-License-Identifier: Apache-2.0 */
/* What `ckv bench` makes of its rows: ratios, and the three formats, by what must hold in them. */
#include "tests/support/case.h"
#include "tests/support/workplace.h"
#include "tools/bench/results.h"
#include "tools/bench/timing.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(bench_results *results, const char *variant, const char *params, double x, double us,
                const char *baseline)
{
    bench_row row = bench_row_default();
    row.group = "attention";
    row.variant = variant;
    row.params = params;
    row.x_name = x > 0 ? "tokens" : NULL;
    row.x = x;
    row.min_us = us * 0.9;
    row.median_us = us;
    row.max_us = us * 1.2;
    row.flops = 1.0306e12;
    row.max_error = 3.6e-5;
    row.baseline = baseline;
    bench_results_add(results, &row);
}

static void add_failed(bench_results *results, const char *why)
{
    bench_row row = bench_row_default();
    row.group = "attention";
    row.variant = "broken";
    row.min_us = row.median_us = row.max_us = 987654;
    row.bytes = row.flops = 123e12;
    row.max_error = 0.5;
    row.baseline = "cudnn";
    row.failed = 1;
    row.note = why;
    bench_results_add(results, &row);
}

static bench_results *usual(void)
{
    bench_results *results = bench_results_create();
    bench_results_fact(results, "device", "%s, %d SMs", "NVIDIA H200", 132);
    bench_results_fact(results, "command", "ckv bench attention");
    add(results, "cudnn", "keys 39912", 0, 2000, NULL);
    add(results, "hopper", "keys 39912", 0, 1500, "cudnn");
    add_failed(results, "off by 0.5");
    return results;
}

static char *printed(const bench_results *results, bench_format format)
{
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    bench_results_print(results, format, stream);
    fclose(stream);
    char *copy = strdup(text); /* gcc 12 takes the stream's own pointer for one into this frame */
    free(text);
    assert_non_null(copy);
    return copy;
}

static void assert_in(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("'%s' is not in:\n%s", part, text);
}

static void assert_not_in(const char *text, const char *part)
{
    if (strstr(text, part) != NULL)
        fail_msg("'%s' is in:\n%s", part, text);
}

static void ratio_is_against_the_same_size(void **state)
{
    (void)state;
    bench_results *results = bench_results_create();
    add(results, "hopper", "page 32", 100, 50, "cudnn");
    add(results, "cudnn", "page 64", 100, 80, NULL);
    add(results, "cudnn", "page 32", 100, 100, NULL);
    add(results, "cudnn", "page 32", 200, 400, NULL);
    add(results, "hopper", "page 16", 200, 100, "cudnn");
    add(results, "hopper", "page 16", 300, 100, "cudnn");
    add(results, "portable", "", 300, 1000, "dense");
    add(results, "dense", "", 0, 500, NULL);
    add(results, "portable", "", 400, 1000, "absent");
    add(results, "cudnn", "page 64", 500, 80, NULL);
    add(results, "cudnn", "page 32", 500, 100, NULL);
    add(results, "hopper", "page 16", 500, 100, "cudnn"); /* which of the two? */
    static const double wanted[] = {0.5, 0, 0, 0, 0.25, 0, 2, 0, 0, 0, 0, 0};
    for (size_t i = 0; i < bench_results_count(results); i++)
        assert_true(bench_results_ratio(results, bench_results_row(results, i)) == wanted[i]);
    bench_results_destroy(&results);
    assert_null(results);
    bench_results_destroy(&results);
}

static void a_failed_row_has_no_ratio_and_is_no_baseline(void **state)
{
    (void)state;
    bench_results *results = usual();
    assert_int_equal(bench_results_failures(results), 1);
    add(results, "hopper", "keys 39912", 0, 1500, "broken");
    for (size_t i = 2; i < 4; i++)
        assert_true(bench_results_ratio(results, bench_results_row(results, i)) == 0);
    bench_results_destroy(&results);
}

static void texts_are_copied_and_facts_replaced(void **state)
{
    (void)state;
    bench_results *results = bench_results_create();
    char name[] = "cudnn", key[] = "device";
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "key%d", i % 50);
        bench_results_fact(results, key, "%d", i);
        name[0] = (char)('a' + i % 26);
        add(results, name, NULL, 0, 1 + i, NULL);
    }
    assert_int_equal(bench_results_num_facts(results), 50);
    assert_string_equal(bench_results_fact_value(results, "key7"), "57");
    assert_null(bench_results_fact_value(results, "key50"));
    assert_int_equal(bench_results_count(results), 100);
    for (int i = 0; i < 100; i++) {
        name[0] = (char)('a' + i % 26);
        assert_string_equal(bench_results_row(results, (size_t)i)->variant, name);
    }
    bench_results_destroy(&results);
}

/* In no format a figure of a failed row, its own or one made from it. */
static void failed_rows_print_why_and_no_figure(void **state)
{
    (void)state;
    static const char *const figures[] = {"987654", "0.5 of", "5.0e-01", "TFLOP/s | broken", "123"};
    bench_results *results = usual();
    for (bench_format format = BENCH_TEXT; format <= BENCH_MARKDOWN; format++) {
        char *text = printed(results, format), *line = strstr(text, "broken");
        assert_non_null(line);
        if (format != BENCH_JSON)
            line[strcspn(line, "\n")] = '\0';
        assert_in(line, format == BENCH_JSON ? "\"failed\": true" : "failed: off by 0.5");
        assert_in(line, "off by 0.5");
        for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
            assert_not_in(line, figures[i]);
        free(text);
    }
    bench_results_destroy(&results);
}

static void assert_same_text(const char *a, const char *b)
{
    assert_string_equal(a == NULL ? "(null)" : a, b == NULL ? "(null)" : b);
}

static void json_reads_back(void **state)
{
    (void)state;
    workplace place;
    workplace_open(&place, "true");
    bench_results *results = usual(), *again = bench_results_create();
    add(results, "hop\"per\\ \xc3\xa9\n", "a | b", 1.0 / 3, 1e-3 / 7, "cudnn");
    char path[128], *text = printed(results, BENCH_JSON);
    workplace_put(&place, "r.json", text);
    snprintf(path, sizeof path, "%s/r.json", place.folder);
    problem why;
    if (!bench_results_read_json(again, path, &why))
        fail_msg("%s", why.text);
    assert_int_equal(bench_results_count(again), bench_results_count(results));
    assert_int_equal(bench_results_num_facts(again), 2);
    assert_string_equal(bench_results_fact_value(again, "device"), "NVIDIA H200, 132 SMs");
    for (size_t i = 0; i < bench_results_count(results); i++) {
        const bench_row *a = bench_results_row(results, i), *b = bench_results_row(again, i);
        assert_same_text(a->group, b->group);
        assert_same_text(a->variant, b->variant);
        assert_same_text(a->params, b->params);
        assert_same_text(a->x_name, b->x_name);
        assert_same_text(a->baseline, b->baseline);
        assert_same_text(a->note, b->note);
        assert_int_equal(a->failed, b->failed);
        assert_true(a->x == b->x);
        assert_true(b->median_us == (a->failed ? 0 : a->median_us));
        assert_true(b->min_us == (a->failed ? 0 : a->min_us));
        assert_true(b->max_us == (a->failed ? 0 : a->max_us));
        assert_true(b->flops == (a->failed ? 0 : a->flops));
        assert_true(a->failed ? isnan(b->max_error) : b->max_error == a->max_error);
    }
    char *twice = printed(again, BENCH_JSON);
    assert_string_equal(twice, text);
    free(twice);
    free(text);
    bench_results_destroy(&again);
    bench_results_destroy(&results);
    workplace_close(&place);
}

static void json_that_is_something_else_is_refused(void **state)
{
    (void)state;
    static const char *const files[] = {
        "",
        "[]",
        "{\"facts\": {}}",
        "{\"facts\": {}, \"rows\": 3, \"more\": 1}",
        "{\"facts\": {}, \"rows\": [{\"group\": \"a\"}]}",
        "{\"facts\": {}, \"rows\": [{\"group\": \"a\", \"variant\": \"b\", \"median\": 3}]}",
        "{\"facts\": {}, \"rows\": [{\"group\": \"a\", \"variant\": \"b\", \"x\": \"3\"}]}",
        "{\"facts\": [], \"rows\": []}",
        "{\"facts\": {}, \"rows\": {}}",
    };
    workplace place;
    workplace_open(&place, "true");
    char path[128];
    problem why;
    snprintf(path, sizeof path, "%s/r.json", place.folder);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        bench_results *results = bench_results_create();
        if (i > 0)
            workplace_put(&place, "r.json", files[i]);
        if (bench_results_read_json(results, path, &why))
            fail_msg("read: %s", files[i]);
        assert_non_null(strstr(why.text, "r.json: "));
        assert_int_equal(bench_results_count(results), 0);
        bench_results_destroy(&results);
    }
    workplace_close(&place);
}

/* Bars that Markdown takes as the ends of cells. */
static size_t bars(const char *line)
{
    size_t count = 0;
    for (; *line != '\0' && *line != '\n'; line++) {
        if (line[0] == '\\' && line[1] != '\0')
            line++;
        else
            count += *line == '|';
    }
    return count;
}

static void markdown_leaves_empty_columns_out(void **state)
{
    (void)state;
    bench_results *results = usual();
    add(results, "a|b", "x\\|y\n`<b>`", 3, 12.345, "cudnn");
    char *text = printed(results, BENCH_MARKDOWN);
    assert_in(
        text,
        "`ckv bench attention`\n\n| what | variant | at | median us | min to max us | rate | against | error |\n");
    assert_in(text, "|\n\ndevice: NVIDIA H200, 132 SMs\n");
    assert_in(text,
              "| attention | hopper | keys 39912 | 1500 | 1350 to 1800 | 687 TFLOP/s | 0.75 of cudnn | 3.6e-05 |\n");
    assert_in(text, "| a\\|b | x\\\\\\|y \\`\\<b>\\` | 12.3 |");
    size_t lines = 0;
    for (char *line = strchr(text, '|'); line != NULL && *line == '|'; lines++) {
        assert_int_equal(bars(line), 9);
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    assert_int_equal(lines, 2 + bench_results_count(results));
    free(text);
    bench_results_fact(results, "command", "%s", "ckv bench write -g a`b\n|c");
    text = printed(results, BENCH_MARKDOWN);
    assert_in(text, "`ckv bench write -g a?b?|c`\n\n| what ");
    free(text);
    bench_results_destroy(&results);
}

static void text_is_aligned_and_leaves_empty_columns_out(void **state)
{
    (void)state;
    bench_results *results = usual();
    char *text = printed(results, BENCH_TEXT), *title = strstr(text, "median us"), *line = title;
    assert_in(text, "device: NVIDIA H200, 132 SMs\ncommand: ckv bench attention\n\nwhat ");
    assert_not_in(text, "note");
    assert_non_null(title);
    while (line > text && line[-1] != '\n')
        line--;
    ptrdiff_t column = title - line;
    static const char *const starts[] = {"2000 ", "1500 ", "failed: off by 0.5\n"};
    for (size_t i = 0; i < 3; i++) {
        line = strchr(line, '\n') + 1;
        assert_true((ptrdiff_t)strcspn(line, "\n") > column);
        assert_memory_equal(line + column, starts[i], strlen(starts[i]));
    }
    assert_not_in(text, " \n");
    free(text);
    bench_results_destroy(&results);
}

static void rates_have_the_unit_that_fits(void **state)
{
    (void)state;
    static const struct {
        double us, bytes, flops;
        const char *rate;
    } rows[] = {{1485, 0, 1.0306e12, "694 TFLOP/s"}, {1e6, 0, 31e9, "31.0 GFLOP/s"}, {17.3, 4.84e6, 0, "280 GB/s"},
                {100, 1e5, 0, "1.00 GB/s"},          {100, 6.4e3, 0, " 0.064 GB/s"}, {1e6, 12e3, 0, " 0.000012 GB/s"},
                {1, 1e9, 2e9, "2000 TFLOP/s"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bench_results *results = bench_results_create();
        bench_row row = bench_row_default();
        row.group = "g";
        row.variant = "v";
        row.median_us = rows[i].us;
        row.bytes = rows[i].bytes;
        row.flops = rows[i].flops;
        bench_results_add(results, &row);
        char *text = printed(results, BENCH_MARKDOWN);
        assert_in(text, rows[i].rate);
        assert_not_in(text, " to 0");
        free(text);
        bench_results_destroy(&results);
    }
}

/* What takes next to nothing of its baseline does not take none of it. */
static void small_parts_keep_digits(void **state)
{
    (void)state;
    static const struct {
        double us, of;
        const char *ratio;
    } rows[] = {{19, 8001, " 0.0024 of base "},
                {5, 5000, " 0.0010 of base "},
                {1, 2, " 0.50 of base "},
                {8001, 19, " 421.11 of base "},
                {1, 1e6, " 0.0000010 of base "}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bench_results *results = bench_results_create();
        bench_row row = bench_row_default();
        row.group = "g";
        row.variant = "base";
        row.median_us = rows[i].of;
        bench_results_add(results, &row);
        row.variant = "v";
        row.baseline = "base";
        row.median_us = rows[i].us;
        bench_results_add(results, &row);
        char *text = printed(results, BENCH_MARKDOWN);
        assert_in(text, rows[i].ratio);
        free(text);
        bench_results_destroy(&results);
    }
}

static void medians_lie_in_the_middle(void **state)
{
    (void)state;
    bench_sample samples[] = {
        {.us = 9, .host_us = 1}, {.us = 1, .host_us = 7}, {.us = 4, .host_us = 2}, {.us = 2, .host_us = 4}};
    bench_time one = bench_time_of(samples, 1);
    assert_true(one.median_us == 9 && one.host_us == 1);
    bench_time all = bench_time_of(samples, 4);
    assert_true(all.min_us == 1 && all.median_us == 3 && all.max_us == 9 && all.host_us == 3);
    samples[0] = (bench_sample){.us = 9, .host_us = 1};
    samples[1] = (bench_sample){.us = 1, .host_us = 7};
    samples[2] = (bench_sample){.us = 4, .host_us = 2};
    bench_time odd = bench_time_of(samples, 3);
    assert_true(odd.median_us == 4 && odd.host_us == 2);
}

static const ckv_test_case cases[] = {
    CKV_CASE(ratio_is_against_the_same_size),
    CKV_CASE(a_failed_row_has_no_ratio_and_is_no_baseline),
    CKV_CASE(texts_are_copied_and_facts_replaced),
    CKV_CASE(failed_rows_print_why_and_no_figure),
    CKV_CASE(json_reads_back),
    CKV_CASE(json_that_is_something_else_is_refused),
    CKV_CASE(markdown_leaves_empty_columns_out),
    CKV_CASE(text_is_aligned_and_leaves_empty_columns_out),
    CKV_CASE(rates_have_the_unit_that_fits),
    CKV_CASE(small_parts_keep_digits),
    CKV_CASE(medians_lie_in_the_middle),
};

CKV_TEST_MAIN("bench_results", cases)
