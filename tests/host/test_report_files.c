/* SPDX-License-Identifier: Apache-2.0 */
/* `ckv report` as a command: traces of strangers, large traces, files that cannot be written, launchers. */
#include "tests/support/case.h"
#include "tests/support/random.h"
#include "tests/support/report_page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void open_ckv(workplace *place)
{
    workplace_open(place, "'" CKV_PROGRAM "'");
}

/* --- Strangers' traces --- */

static void names_stay_inside_their_quotes(void **state)
{
    (void)state;
    static const char name[] = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!--&\"'\\\xe2\x80\xa8";
    static float values[2];
    const int64_t size = 1;
    const trace_config config = {
        .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 2, .dtype = CKV_FP32, .tokens_per_page = 1};
    workplace place;
    open_ckv(&place);
    trace *t = trace_create(&config);
    assert_non_null(t);
    assert_true(trace_add_open(t, 0, 1, 1, &size, 1));
    assert_true(trace_add_forward(t, 0, 1, 1, 1, name, values, values, values, NULL));
    report_write_trace(&place, t);
    trace_free(&t);
    workplace_expect(&place, "report ./t -o plain.html", 0, NULL, "");
    char *page = report_read(&place, "plain.html");
    size_t elements = 0;
    for (const char *at = page; (at = strstr(at, REPORT_ELEMENT_ENDS)) != NULL; at++)
        elements++;
    assert_int_equal(elements, 2); /* the data and the program */
    assert_null(strstr(page, "<img"));
    assert_null(strstr(page, "alert(2)>"));
    json_t *report = report_parse(page);
    assert_string_equal(report_text(report_forward(report, 0), "tensor"), name);
    json_decref(report);
    free(page);
    /* the file's name is the stranger's too */
    workplace_shell(&place, "cp t '<b>&\"\xff'");
    workplace_expect(&place, "report '<b>&\"\xff' -o named.html", 0, NULL, "");
    page = report_read(&place, "named.html");
    assert_null(strstr(page, "<b>&\""));
    assert_non_null(strstr(page, "<title>ckv report: &lt;b&gt;&amp;&quot;?</title>"));
    free(page);
    workplace_close(&place);
}

static void no_number_is_still_a_page(void **state)
{
    (void)state;
    enum { ROWS = 4 };
    float values[ROWS], expected[ROWS] = {1, INFINITY, -INFINITY, NAN};
    const int64_t size = 2;
    const trace_config config = {
        .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 1, .dtype = CKV_FP32, .tokens_per_page = 2};
    for (int i = 0; i < ROWS; i++)
        values[i] = NAN;
    workplace place;
    open_ckv(&place);
    trace *t = trace_create(&config);
    assert_non_null(t);
    assert_true(trace_add_open(t, 0, 4, 2, &size, 1));
    assert_true(trace_add_forward(t, 0, ROWS, 2, 2, "f", values, values, values, expected));
    assert_true(trace_add_commit(t, 2));
    report_write_trace(&place, t);
    trace_free(&t);
    json_t *report = report_make(&place, "", 1), *recorded = json_object_get(report_forward(report, 0), "recorded");
    assert_string_equal(report_text(recorded, "error"), "inf");
    assert_string_equal(report_text(recorded, "wanted"), "nan");
    json_decref(report);
    workplace_close(&place);
}

static void a_trace_without_forwards_is_a_page(void **state)
{
    (void)state;
    const int64_t size = 1;
    const trace_config config = {
        .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 1, .dtype = CKV_FP32, .tokens_per_page = 1};
    workplace place;
    open_ckv(&place);
    trace *t = trace_create(&config);
    assert_non_null(t);
    assert_true(trace_add_open(t, 0, 1, 1, &size, 1));
    assert_true(trace_add_close(t));
    report_write_trace(&place, t);
    trace_free(&t);
    json_t *report = report_make(&place, "", 0);
    assert_int_equal(json_array_size(json_object_get(report, "forwards")), 0);
    assert_string_equal(report_text(report, "timeline"), "ox");
    json_decref(report);
    workplace_close(&place);
}

/* --- Size --- */

typedef struct large {
    int64_t page, pin, window, chunk, chunks, forwards; /* of a chunk */
} large;

enum { FORWARDS_DIFFER = 5 };

static json_t *large_report(workplace *place, const large *l, int64_t wrong, size_t *bytes_out)
{
    const int64_t sizes[] = {l->chunk, 1};
    const trace_config config = {
        .layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 2, .dtype = CKV_FP32, .tokens_per_page = l->page};
    int64_t most = l->pin > l->chunk ? l->pin : l->chunk;
    size_t count = (size_t)most * 4 + FORWARDS_DIFFER;
    float *values = calloc(count, sizeof *values), *expected = calloc(count, sizeof *expected);
    trace *t = trace_create(&config);
    assert_true(values != NULL && expected != NULL && t != NULL);
    ckv_random random = {ckv_test_seed()};
    for (size_t i = 0; i < count; i++)
        values[i] = ckv_random_float(&random);
    assert_true(trace_add_open(t, l->pin, l->window, l->chunk, sizes, 2));
    if (l->pin > 0)
        assert_true(trace_add_write_range(t, 0, 0, l->pin, "prompt", values, values) && trace_add_commit(t, l->pin));
    for (int64_t n = 0; n < l->chunks * l->forwards; n++) {
        const float *own = values + n % FORWARDS_DIFFER;
        char name[24];
        snprintf(name, sizeof name, "f%d", (int)n);
        assert_true(trace_add_forward(t, 0, l->chunk, l->chunk, n % 2 == 0 ? l->chunk : 1, name, own, own, own,
                                      n == wrong ? expected : NULL));
        if (n % l->forwards == l->forwards - 1)
            assert_true(trace_add_commit(t, l->chunk));
    }
    report_write_trace(place, t);
    trace_free(&t);
    free(values);
    free(expected);
    json_t *report = report_make(place, "", 1);
    char *page = report_read(place, "r.html");
    *bytes_out = strlen(page);
    free(page);
    return report;
}

static int64_t count_pages(const json_t *report)
{
    const json_t *cells = json_object_get(json_array_get(json_object_get(report, "rollouts"), 0), "cells");
    int64_t pages = 0;
    for (size_t i = 0; i < json_array_size(cells); i++)
        pages += json_integer_value(json_array_get(json_array_get(cells, i), 1));
    return pages;
}

/* Pages are all there, however large the pool; forwards are thinned, and wrong ones stay. */
static void pages_stay_small(void **state)
{
    (void)state;
    static const struct {
        large trace;
        int64_t pages, cells; /* at least; cells at most */
    } rows[] = {
        {{4, 2000, 1800, 16, 60, 2}, 1000, 1200},
        {{1, 9000, 900, 8, 6, 2}, 9900, 2060},
        {{4, 0, 8, 2, 1500, 3}, 5, 30},
    };
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t bytes;
        int64_t forwards = rows[i].trace.chunks * rows[i].trace.forwards, wrong = forwards / 2 + 1;
        json_t *report = large_report(&place, &rows[i].trace, wrong, &bytes);
        assert_in_range(bytes, 10000, 2000000);
        assert_in_range(count_pages(report), rows[i].pages, rows[i].pages + 200);
        const json_t *rollout = json_array_get(json_object_get(report, "rollouts"), 0);
        assert_in_range(json_array_size(json_object_get(rollout, "cells")), 5, rows[i].cells);
        assert_int_equal(report_integer(report, "num_forwards"), forwards);
        size_t shown = json_array_size(json_object_get(report, "forwards")), found = 0;
        for (size_t n = 0; n < shown; n++) {
            const json_t *forward = report_forward(report, n);
            found += strcmp(report_text(forward, "verdict"), "wrong") == 0 && report_integer(forward, "n") == wrong;
            /* also where forwards before it are left out */
            const char *levels = report_text(json_object_get(json_object_get(forward, "heat"), "replayed"), "levels");
            assert_int_equal(strspn(levels, "0123456789ABCDEFGHIJK"), strlen(levels));
        }
        assert_int_equal(found, 1);
        assert_int_equal(shown<(size_t)forwards, forwards> 2000);
        json_decref(report);
    }
    workplace_close(&place);
}

/* --- The command --- */

static void refusals_are_one_line_and_leave_the_old_page(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *cause;
    } rows[] = {
        {"report", "the trace is missing"},
        {"report t", "the page to write is missing, -o REPORT.html"},
        {"report t t -o r.html", "one trace at a time"},
        {"report t -o", "option '-o' needs a value"},
        {"report t -o t", "-o t is the trace itself"},
        {"report t -o link", "-o link is the trace itself"},
        {"report t -o .", ".: Is a directory"},
        {"report t -o nowhere/r.html", "nowhere/r.html: No such file or directory"},
        {"report t -o r.html --ranks 0", "--ranks is '0'"},
        {"report t -o r.html --ranks 65", "--ranks is '65'"},
        {"report t -o r.html --ranks 5", "t: "},
        {"report nowhere -o r.html", "nowhere: No such file or directory"},
        {"report bad -o r.html", "bad: header length"},
    };
    workplace place;
    open_ckv(&place);
    trace *t = report_rollout(CKV_KEY_NONE, 0, 0);
    report_write_trace(&place, t);
    trace_free(&t);
    workplace_put(&place, "bad", "not a trace");
    workplace_put(&place, "r.html", "old");
    workplace_shell(&place, "ln t link && cp t copy");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        workplace_expect(&place, rows[i].arguments, 2, "", rows[i].cause);
        assert_int_equal(lines_of(place.err), 1);
    }
    /* nothing half written stays */
    assert_string_equal(workplace_shell(&place, "cmp t copy && grep -qx old r.html && ls | grep -c tmp"), "0\n");
    workplace_expect(&place, "report t -o r.html", 0, "r.html: 16 forwards, 16 ok, 0 wrong\n", "");
    workplace_close(&place);
}

static void a_full_disk_leaves_the_old_page(void **state)
{
    (void)state;
    workplace place;
    workplace_open(&place, "trap '' XFSZ; ulimit -f 8; '" CKV_PROGRAM "'");
    trace *t = report_rollout(CKV_KEY_NONE, 0, 0);
    report_write_trace(&place, t);
    trace_free(&t);
    workplace_put(&place, "r.html", "old");
    workplace_expect(&place, "report t -o r.html", 2, "", "r.html: File too large");
    assert_string_equal(workplace_shell(&place, "grep -qx old r.html && ls | grep -c tmp"), "0\n");
    workplace_close(&place);
}

static void a_launcher_says_how_many_ranks(void **state)
{
    (void)state;
    workplace place;
    workplace_open(&place, "OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=0 '" CKV_PROGRAM "'");
    trace *t = report_rollout(CKV_KEY_NONE, 0, 0);
    report_write_trace(&place, t);
    trace_free(&t);
    json_t *report = report_make(&place, "", 0);
    assert_int_equal(report_integer(report, "ranks"), 3);
    json_decref(report);
    report = report_make(&place, "--ranks 2", 0);
    assert_int_equal(report_integer(report, "ranks"), 2);
    assert_int_equal(report_integer(report_forward(report, 0), "padded"), 12);
    json_decref(report);
    place.program = "OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=1 '" CKV_PROGRAM "'";
    workplace_expect(&place, "report t -o other.html", 0, "", "");
    assert_string_equal(workplace_shell(&place, "ls | grep -c other"), "0\n");
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(names_stay_inside_their_quotes),
    CKV_CASE(no_number_is_still_a_page),
    CKV_CASE(a_trace_without_forwards_is_a_page),
    CKV_CASE(pages_stay_small),
    CKV_CASE(refusals_are_one_line_and_leave_the_old_page),
    CKV_CASE(a_full_disk_leaves_the_old_page),
    CKV_CASE(a_launcher_says_how_many_ranks),
};

CKV_TEST_MAIN("report_files", cases)
