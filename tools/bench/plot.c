/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/plot.h"

#include "tools/common/arena.h"
#include "tools/common/out_file.h"
#include "tools/common/xml_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of one panel, in the units of the picture. */
enum { WIDTH = 940, HEIGHT = 380, LEFT = 80, RIGHT = 600, TOP = 40, BOTTOM = 320, LEGEND_STEP = 20 };
enum { MAX_TICKS = 12, TICK_GAP = 44, COLORS = 8 };
/* An axis is logarithmic when its ends are further apart; y sooner where x is, so that lines stay lines. */
static const double FAR_X = 6, FAR_Y = 20, FAR_Y_WITH_X = 3;
static const double US_SHOWN = 20000; /* milliseconds above it */

/* The colours of Okabe and Ito, which people who see few colours tell apart; lighter ones on dark ground. */
static const char style[] =
    "<style>\n"
    "text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600;font-size:14px}\n"
    ".ground{fill:#fff}.frame{fill:none;stroke:#57606a}.grid{stroke:#d8dee4}\n"
    ".line{fill:none;stroke:currentColor;stroke-width:2}.bar{stroke:currentColor}.dot{fill:currentColor}\n"
    ".c0{color:#0072b2}.c1{color:#d55e00}.c2{color:#009e73}.c3{color:#b04a87}\n"
    ".c4{color:#8a6d00}.c5{color:#2b7fa8}.c6{color:#555}.c7{color:#7a3fbf}\n"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.ground{fill:#0d1117}.frame{stroke:#8b949e}.grid{stroke:"
    "#30363d}\n"
    ".c0{color:#4aa8e0}.c1{color:#ff8a3d}.c2{color:#3fcf9f}.c3{color:#e58cc0}\n"
    ".c4{color:#e0c341}.c5{color:#8fd0f0}.c6{color:#bbb}.c7{color:#b992f0}}\n"
    "</style>\n";

typedef struct axis {
    double low, high; /* values at the ends */
    double from, to;  /* where those lie in the picture */
    bool is_log;
    double ticks[MAX_TICKS];
    size_t num_ticks;
} axis;

typedef struct point {
    double x, y, low, high; /* of the bar; equal: none */
} point;

typedef struct series {
    const char *name;
    point *points;
    size_t count;
} series;

typedef struct panel {
    const char *group, *x_name;
    series *lines;
    size_t count;
} panel;

/* --- What is shown --- */

static bool make_point(const bench_results *results, const bench_row *row, bench_plot_y y, point *point_out)
{
    double value = y == BENCH_PLOT_TIME ? row->median_us : bench_results_ratio(results, row);
    if (row->x_name == NULL || row->failed || !isfinite(row->x) || row->x < 0 || !isfinite(value) || !(value > 0))
        return false;
    *point_out = (point){row->x, value, value, value};
    if (y == BENCH_PLOT_TIME && row->min_us > 0 && row->min_us <= value)
        point_out->low = row->min_us;
    if (y == BENCH_PLOT_TIME && row->max_us > value && isfinite(row->max_us))
        point_out->high = row->max_us;
    return true;
}

static int by_x(const void *a, const void *b)
{
    double left = ((const point *)a)->x, right = ((const point *)b)->x;
    return (left > right) - (left < right);
}

static panel *panel_of(panel *panels, size_t *count, const bench_row *row)
{
    for (size_t i = 0; i < *count; i++)
        if (strcmp(panels[i].group, row->group) == 0 && strcmp(panels[i].x_name, row->x_name) == 0)
            return &panels[i];
    panels[*count] = (panel){.group = row->group, .x_name = row->x_name};
    return &panels[(*count)++];
}

static series *series_of(panel *one, const char *name)
{
    for (size_t i = 0; i < one->count; i++)
        if (strcmp(one->lines[i].name, name) == 0)
            return &one->lines[i];
    one->lines[one->count] = (series){.name = name};
    return &one->lines[one->count++];
}

/* A line has to lead somewhere. */
static bool is_sweep(const panel *one)
{
    for (size_t i = 0; i < one->count; i++)
        for (size_t k = 0; k < one->lines[i].count; k++)
            if (one->lines[i].points[k].x != one->lines[0].points[0].x)
                return true;
    return false;
}

/* Room is for every row in every panel: sweeps have tens of rows. */
static panel *make_panels(arena *memory, const bench_results *results, bench_plot_y y, size_t *count_out)
{
    size_t rows = bench_results_count(results);
    panel *panels = arena_alloc(memory, (rows + 1) * sizeof *panels);
    *count_out = 0;
    for (size_t i = 0; i < rows; i++) {
        const bench_row *row = bench_results_row(results, i);
        point one;
        if (!make_point(results, row, y, &one))
            continue;
        panel *in = panel_of(panels, count_out, row);
        if (in->lines == NULL)
            in->lines = arena_alloc(memory, rows * sizeof *in->lines);
        series *line = series_of(in, row->variant);
        if (line->points == NULL)
            line->points = arena_alloc(memory, rows * sizeof *line->points);
        line->points[line->count++] = one;
    }
    size_t sweeps = 0;
    for (size_t i = 0; i < *count_out; i++)
        if (is_sweep(&panels[i]))
            panels[sweeps++] = panels[i];
    *count_out = sweeps;
    for (size_t i = 0; i < sweeps; i++)
        for (size_t k = 0; k < panels[i].count; k++)
            qsort(panels[i].lines[k].points, panels[i].lines[k].count, sizeof(point), by_x);
    return panels;
}

/* --- Axes --- */

static double place(const axis *along, double value)
{
    double part = along->is_log ? log(value / along->low) / log(along->high / along->low)
                                : (value - along->low) / (along->high - along->low);
    return along->from + part * (along->to - along->from);
}

static void add_tick(axis *along, double value)
{
    if (along->num_ticks == MAX_TICKS || value < along->low || value > along->high)
        return;
    if (along->num_ticks > 0 &&
        fabs(place(along, value) - place(along, along->ticks[along->num_ticks - 1])) < TICK_GAP / 2.0)
        return;
    along->ticks[along->num_ticks++] = value;
}

/* 1, 2 or 5 times a power of ten. */
static double round_step(double at_least)
{
    double power = pow(10, floor(log10(at_least)));
    return at_least <= power       ? power
           : at_least <= 2 * power ? 2 * power
           : at_least <= 5 * power ? 5 * power
                                   : 10 * power;
}

static axis make_axis(double low, double high, double from, double to, double log_above)
{
    axis along = {.from = from, .to = to};
    along.is_log = low > 0 && high / low > log_above;
    if (!along.is_log) {
        double step = round_step(high > 0 ? high / 6 : 1);
        along.high = high > 0 ? ceil(high / step) * step : 1;
        for (int i = 0; i <= (int)lround(along.high / step); i++)
            add_tick(&along, i * step);
        return along;
    }
    along.low = low / 1.15;
    along.high = high * 1.15;
    bool is_wide = high / low > 1e4;
    for (int exponent = (int)floor(log10(along.low)); pow(10, exponent) <= along.high; exponent++) {
        double power = pow(10, exponent);
        add_tick(&along, power);
        if (!is_wide) {
            add_tick(&along, 2 * power);
            add_tick(&along, 5 * power);
        }
    }
    return along;
}

/* A sweep has few values: they are the marks of x where they are not too close. */
static void mark_values(axis *x, const panel *one)
{
    size_t most = 0;
    for (size_t i = 1; i < one->count; i++)
        most = one->lines[i].count > one->lines[most].count ? i : most;
    const series *line = &one->lines[most];
    if (line->count > MAX_TICKS)
        return;
    x->num_ticks = 0;
    for (size_t i = 0; i < line->count; i++) {
        const double *last = x->num_ticks > 0 ? &x->ticks[x->num_ticks - 1] : NULL;
        if (last == NULL || place(x, line->points[i].x) - place(x, *last) >= TICK_GAP)
            add_tick(x, line->points[i].x);
    }
}

static void make_axes(const panel *one, double top, axis *x, axis *y)
{
    point low = one->lines[0].points[0], high = low;
    for (size_t i = 0; i < one->count; i++) {
        for (size_t k = 0; k < one->lines[i].count; k++) {
            const point *at = &one->lines[i].points[k];
            low.x = fmin(low.x, at->x);
            high.x = fmax(high.x, at->x);
            low.low = fmin(low.low, at->low);
            high.high = fmax(high.high, at->high);
        }
    }
    *x = make_axis(low.x, high.x, LEFT, RIGHT, FAR_X);
    *y = make_axis(low.low, high.high, top + BOTTOM, top + TOP, x->is_log ? FAR_Y_WITH_X : FAR_Y);
    mark_values(x, one);
}

/* --- SVG --- */

static void put_text(FILE *file, double x, double y, const char *attributes, const char *text)
{
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, attributes);
    xml_put_text(file, text, strlen(text));
    fputs("</text>\n", file);
}

static void put_ticks(FILE *file, double top, const axis *x, const axis *y, double y_unit)
{
    char label[32];
    for (size_t i = 0; i < x->num_ticks; i++) {
        double at = place(x, x->ticks[i]);
        fprintf(file, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", at, top + TOP, at,
                top + BOTTOM);
        snprintf(label, sizeof label, "%.10g", x->ticks[i]);
        put_text(file, at, top + BOTTOM + 18, " text-anchor=\"middle\"", label);
    }
    for (size_t i = 0; i < y->num_ticks; i++) {
        double at = place(y, y->ticks[i]);
        fprintf(file, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", LEFT, at, RIGHT, at);
        snprintf(label, sizeof label, "%.10g", y->ticks[i] / y_unit);
        put_text(file, LEFT - 8, at + 4, " text-anchor=\"end\"", label);
    }
}

static void put_series(FILE *file, const series *line, size_t index, const axis *x, const axis *y)
{
    /* Colours that come again are dashed. */
    fprintf(file, "<g class=\"c%zu\">\n<polyline class=\"line\"%s points=\"", index % COLORS,
            index < COLORS ? "" : " stroke-dasharray=\"6 4\"");
    for (size_t i = 0; i < line->count; i++)
        fprintf(file, "%s%.1f,%.1f", i > 0 ? " " : "", place(x, line->points[i].x), place(y, line->points[i].y));
    fputs("\"/>\n", file);
    for (size_t i = 0; i < line->count; i++) {
        const point *at = &line->points[i];
        double left = place(x, at->x);
        if (at->low < at->high)
            fprintf(file, "<line class=\"bar\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", left,
                    place(y, at->low), left, place(y, at->high));
        fprintf(file, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n", left, place(y, at->y));
    }
    fputs("</g>\n", file);
}

static void put_legend(FILE *file, const panel *one, double top)
{
    for (size_t i = 0; i < one->count; i++) {
        double y = top + TOP + 10 + (double)i * LEGEND_STEP;
        fprintf(file, "<g class=\"c%zu\"><line class=\"line\"%s x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/></g>\n",
                i % COLORS, i < COLORS ? "" : " stroke-dasharray=\"6 4\"", RIGHT + 16, y, RIGHT + 40, y);
        put_text(file, RIGHT + 48, y + 4, " class=\"name\"", one->lines[i].name);
    }
}

static double panel_height(const panel *one)
{
    double legend = TOP + 20 + (double)one->count * LEGEND_STEP;
    return legend > HEIGHT ? legend : HEIGHT;
}

static void put_panel(FILE *file, const panel *one, double top, bench_plot_y of)
{
    axis x, y;
    char turned[96];
    make_axes(one, top, &x, &y);
    put_text(file, LEFT, top + 24, " class=\"title\"", one->group);
    bool in_ms = of == BENCH_PLOT_TIME && y.high > US_SHOWN;
    put_ticks(file, top, &x, &y, in_ms ? 1000 : 1);
    fprintf(file, "<rect class=\"frame\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\"/>\n", LEFT, top + TOP,
            RIGHT - LEFT, BOTTOM - TOP);
    put_text(file, (LEFT + RIGHT) / 2.0, top + BOTTOM + 40, " text-anchor=\"middle\"", one->x_name);
    double middle = top + (TOP + BOTTOM) / 2.0;
    snprintf(turned, sizeof turned, " text-anchor=\"middle\" transform=\"rotate(-90 18 %.1f)\"", middle);
    put_text(file, 18, middle, turned,
             of == BENCH_PLOT_RATIO ? "time, of the baseline's"
             : in_ms                ? "median time, ms"
                                    : "median time, us");
    for (size_t i = 0; i < one->count; i++)
        put_series(file, &one->lines[i], i, &x, &y);
    put_legend(file, one, top);
}

static void put_picture(FILE *file, const panel *panels, size_t count, bench_plot_y y)
{
    double height = 0;
    for (size_t i = 0; i < count; i++)
        height += panel_height(&panels[i]);
    fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\">\n%s",
            WIDTH, height, WIDTH, height, style);
    fputs("<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n", file);
    double top = 0;
    for (size_t i = 0; i < count; i++) {
        put_panel(file, &panels[i], top, y);
        top += panel_height(&panels[i]);
    }
    fputs("</svg>\n", file);
}

static bool write_file(const char *path, const panel *panels, size_t count, bench_plot_y y, problem *why)
{
    out_file file;
    if (!out_file_open(path, &file, why))
        return false;
    put_picture(file.stream, panels, count, y);
    return out_file_close(&file, true, why);
}

bool bench_plot_write(const bench_results *results, bench_plot_y y, const char *path, problem *why)
{
    arena memory = {0};
    size_t count;
    panel *panels = make_panels(&memory, results, y, &count);
    bool ok = count > 0 ? write_file(path, panels, count, y, why)
                        : problem_set(why, "%s: nothing to plot: no parameter was swept, or nothing was timed", path);
    arena_free(&memory);
    return ok;
}
