/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a sweep, read back as XML. */
#include "tests/support/case.h"
#include "tests/support/random.h"
#include "tests/support/workplace.h"
#include "tools/bench/plot.h"

#include <expat.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FRAMES = 8, MAX_DOTS = 512 };

typedef struct box {
    double x, y, width, height;
} box;

typedef struct picture {
    box frames[MAX_FRAMES];
    double dots[MAX_DOTS][3]; /* x, y, frame */
    size_t num_frames, num_dots, num_lines, num_bars;
    char text[16384]; /* of all elements, a line each */
    double width, height;
} picture;

static double number_of(const XML_Char **attributes, const char *name)
{
    for (; *attributes != NULL; attributes += 2) {
        if (strcmp(attributes[0], name) == 0) {
            char *end;
            double value = strtod(attributes[1], &end);
            assert_true(end != attributes[1] && *end == '\0' && isfinite(value));
            return value;
        }
    }
    fail_msg("no %s", name);
}

static int is_class(const XML_Char **attributes, const char *name)
{
    for (; *attributes != NULL; attributes += 2)
        if (strcmp(attributes[0], "class") == 0)
            return strcmp(attributes[1], name) == 0;
    return 0;
}

static void on_start(void *data, const XML_Char *element, const XML_Char **attributes)
{
    picture *seen = data;
    if (strcmp(element, "svg") == 0) {
        seen->width = number_of(attributes, "width");
        seen->height = number_of(attributes, "height");
    } else if (is_class(attributes, "frame")) {
        assert_true(seen->num_frames < MAX_FRAMES);
        seen->frames[seen->num_frames++] = (box){number_of(attributes, "x"), number_of(attributes, "y"),
                                                 number_of(attributes, "width"), number_of(attributes, "height")};
    } else if (is_class(attributes, "dot")) {
        assert_true(seen->num_dots < MAX_DOTS);
        double *dot = seen->dots[seen->num_dots++];
        dot[0] = number_of(attributes, "cx");
        dot[1] = number_of(attributes, "cy");
        dot[2] = (double)seen->num_frames - 1;
    }
    seen->num_lines += strcmp(element, "polyline") == 0;
    seen->num_bars += is_class(attributes, "bar");
}

static void on_end(void *data, const XML_Char *element)
{
    picture *seen = data;
    if (strcmp(element, "text") == 0)
        strcat(seen->text, "\n");
}

static void on_text(void *data, const XML_Char *text, int length)
{
    picture *seen = data;
    assert_true(strlen(seen->text) + (size_t)length + 2 < sizeof seen->text);
    strncat(seen->text, text, (size_t)length);
}

/* Every dot inside its frame, every frame inside the picture. */
static void assert_inside(const picture *seen)
{
    for (size_t i = 0; i < seen->num_frames; i++) {
        const box *frame = &seen->frames[i];
        assert_true(frame->x > 0 && frame->y > 0 && frame->width > 0 && frame->height > 0);
        assert_true(frame->x + frame->width < seen->width && frame->y + frame->height < seen->height);
    }
    for (size_t i = 0; i < seen->num_dots; i++) {
        const box *frame = &seen->frames[(size_t)seen->dots[i][2]];
        const double *dot = seen->dots[i];
        if (!(dot[0] >= frame->x - 0.1 && dot[0] <= frame->x + frame->width + 0.1 && dot[1] >= frame->y - 0.1 &&
              dot[1] <= frame->y + frame->height + 0.1))
            fail_msg("dot %g, %g is outside of its axes", dot[0], dot[1]);
    }
}

static void plot(const bench_results *results, bench_plot_y y, picture *seen)
{
    workplace place;
    workplace_open(&place, "true");
    char path[128];
    problem why;
    snprintf(path, sizeof path, "%s/p.svg", place.folder);
    if (!bench_plot_write(results, y, path, &why))
        fail_msg("%s", why.text);
    char *svg = read_text(path);
    assert_non_null(strstr(svg, "prefers-color-scheme:dark"));
    memset(seen, 0, sizeof *seen);
    XML_Parser parser = XML_ParserCreate(NULL);
    XML_SetUserData(parser, seen);
    XML_SetElementHandler(parser, on_start, on_end);
    XML_SetCharacterDataHandler(parser, on_text);
    if (XML_Parse(parser, svg, (int)strlen(svg), 1) != XML_STATUS_OK)
        fail_msg("line %lu: %s", XML_GetCurrentLineNumber(parser), XML_ErrorString(XML_GetErrorCode(parser)));
    XML_ParserFree(parser);
    free(svg);
    workplace_close(&place);
    assert_inside(seen);
}

static void add(bench_results *results, const char *group, const char *variant, double x, double us,
                const char *baseline)
{
    bench_row row = bench_row_default();
    row.group = group;
    row.variant = variant;
    row.x_name = "window, tokens";
    row.x = x;
    row.min_us = us / 2;
    row.median_us = us;
    row.max_us = us * 3;
    row.baseline = baseline;
    bench_results_add(results, &row);
}

static void assert_in(const picture *seen, const char *part)
{
    if (strstr(seen->text, part) == NULL)
        fail_msg("'%s' is not in:\n%s", part, seen->text);
}

static void sweeps_have_axes_lines_and_names(void **state)
{
    (void)state;
    static picture seen;
    bench_results *results = bench_results_create();
    for (int i = 0; i < 4; i++) {
        add(results, "attention", "hopper", 394 << i, 100 << i, "cudnn");
        add(results, "attention", "cudnn", 394 << i, 150 << i, NULL);
        add(results, "commit", "eager", 394 << i, 9, NULL);
    }
    plot(results, BENCH_PLOT_TIME, &seen);
    assert_int_equal(seen.num_frames, 2);
    assert_int_equal(seen.num_dots, 12);
    assert_int_equal(seen.num_bars, 12);
    assert_int_equal(seen.num_lines, 3);
    static const char *const texts[] = {"attention\n", "commit\n", "hopper\n",         "cudnn\n",
                                        "eager\n",     "394\n",    "window, tokens\n", "median time, us\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_in(&seen, texts[i]);
    /* One grows with x, to the left and up; the other stays where it is. */
    assert_true(seen.dots[0][0] < seen.dots[3][0] && seen.dots[0][1] > seen.dots[3][1]);
    assert_true(seen.dots[8][1] == seen.dots[11][1]);
    for (int i = 0; i < 2; i++)
        add(results, "whole chunk", "hopper", 1 + i, 300000.0 / (1 + i), NULL);
    plot(results, BENCH_PLOT_TIME, &seen);
    assert_in(&seen, "median time, ms\n");
    assert_in(&seen, "\n200\n"); /* ms */
    plot(results, BENCH_PLOT_RATIO, &seen);
    assert_int_equal(seen.num_frames, 1);
    assert_int_equal(seen.num_dots, 4);
    assert_int_equal(seen.num_bars, 0);
    assert_in(&seen, "time, of the baseline's\n");
    assert_true(seen.dots[0][1] == seen.dots[3][1]);
    bench_results_destroy(&results);
}

static void names_are_escaped(void **state)
{
    (void)state;
    static picture seen;
    bench_results *results = bench_results_create();
    add(results, "<script>&\"'", "a<b>&amp;\x01", 1, 1, NULL);
    add(results, "<script>&\"'", "a<b>&amp;\x01", 2, 1, NULL);
    plot(results, BENCH_PLOT_TIME, &seen);
    assert_in(&seen, "<script>&\"'\n");
    assert_in(&seen, "a<b>&amp;\\x01\n");
    bench_results_destroy(&results);
}

/* Whatever is measured: no value, spread or number of variants puts a dot outside, or makes a tick no number. */
static void any_values_lie_inside(void **state)
{
    (void)state;
    static picture seen;
    ckv_random random = {ckv_test_seed()};
    for (int round = 0; round < 200; round++) {
        bench_results *results = bench_results_create();
        int64_t count = ckv_random_range(&random, 1, 60), spread = ckv_random_range(&random, 0, 20);
        char name[32];
        add(results, "any", "variant 0", 1e6, 1, NULL); /* another x than all others */
        for (int64_t i = 0; i < count; i++) {
            snprintf(name, sizeof name, "variant %d", (int)ckv_random_range(&random, 0, round / 10));
            double scale = pow(2, (double)ckv_random_range(&random, -spread, spread));
            add(results, "any", name, (double)ckv_random_range(&random, 0, round * 1000),
                scale * (double)ckv_random_range(&random, 1, 1000), NULL);
        }
        plot(results, BENCH_PLOT_TIME, &seen);
        assert_int_equal(seen.num_frames, 1);
        assert_int_equal(seen.num_dots, count + 1);
        assert_null(strstr(seen.text, "nan"));
        assert_null(strstr(seen.text, "inf"));
        bench_results_destroy(&results);
    }
}

static void what_was_not_measured_is_not_shown(void **state)
{
    (void)state;
    static picture seen;
    problem why;
    bench_results *results = bench_results_create();
    bench_row row = bench_row_default();
    row.group = "g";
    row.variant = "failed";
    row.x_name = "tokens";
    row.x = 5;
    row.median_us = 3;
    row.failed = 1;
    bench_results_add(results, &row);
    row.failed = 0;
    row.variant = "not swept";
    row.x_name = NULL;
    bench_results_add(results, &row);
    row.variant = "not timed";
    row.x_name = "tokens";
    row.median_us = 0;
    bench_results_add(results, &row);
    assert_false(bench_plot_write(results, BENCH_PLOT_TIME, "/nowhere/p.svg", &why));
    assert_non_null(strstr(why.text, "nothing to plot"));
    add(results, "g", "shown", 1, 1, NULL);
    assert_false(bench_plot_write(results, BENCH_PLOT_TIME, "/nowhere/p.svg", &why)); /* one x is no sweep */
    add(results, "g", "shown", 2, 1, NULL);
    plot(results, BENCH_PLOT_TIME, &seen);
    assert_int_equal(seen.num_dots, 2);
    assert_null(strstr(seen.text, "failed"));
    assert_null(strstr(seen.text, "not "));
    assert_false(bench_plot_write(results, BENCH_PLOT_RATIO, "/nowhere/p.svg", &why));
    assert_non_null(strstr(why.text, "nothing to plot"));
    assert_false(bench_plot_write(results, BENCH_PLOT_TIME, "/nowhere/p.svg", &why));
    assert_string_equal(why.text, "/nowhere/p.svg: No such file or directory");
    bench_results_destroy(&results);
}

static const ckv_test_case cases[] = {
    CKV_CASE(sweeps_have_axes_lines_and_names),
    CKV_CASE(names_are_escaped),
    CKV_CASE(any_values_lie_inside),
    CKV_CASE(what_was_not_measured_is_not_shown),
};

CKV_TEST_MAIN("bench_plot", cases)
