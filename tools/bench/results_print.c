/* SPDX-License-Identifier: Apache-2.0 */
/* Results for people: the same cells as an aligned table and as Markdown. */
#include "tools/bench/results.h"
#include "tools/common/arena.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { GROUP, VARIANT, PARAMS, MEDIAN, SPREAD, RATE, AGAINST, MAX_ERROR, NOTE, COLUMNS };
static const char *const titles[COLUMNS] = {"what", "variant", "at",    "median us", "min to max us",
                                            "rate", "against", "error", "note"};

typedef const char *row_cells[COLUMNS];

/* Four digits or so, never an exponent. */
static const char *number(arena *memory, double value)
{
    int decimals = value < 1 ? 3 : value < 10 ? 2 : value < 1000 ? 1 : 0;
    return arena_format(memory, "%.*f", decimals, value);
}

/* At least two digits of it that are not zero. */
static int decimals(double value, int least)
{
    enum { MOST = 9 };
    int count = least;
    while (count < MOST && value * pow(10, count) < 9.5)
        count++;
    return count;
}

static const char *rate(arena *memory, const bench_row *row)
{
    double amount = row->flops > 0 ? row->flops : row->bytes, giga = amount / row->median_us * 1e-3;
    if (!(amount > 0))
        return "";
    if (row->flops > 0 && giga >= 1000)
        return arena_format(memory, "%.0f TFLOP/s", giga * 1e-3);
    int digits = giga < 10 ? decimals(giga, 2) : giga < 100 ? 1 : 0;
    return arena_format(memory, "%.*f %s", digits, giga, row->flops > 0 ? "GFLOP/s" : "GB/s");
}

static void fill_cells(arena *memory, const bench_results *results, const bench_row *row, row_cells cells)
{
    for (size_t i = 0; i < COLUMNS; i++)
        cells[i] = "";
    cells[GROUP] = row->group;
    cells[VARIANT] = row->variant;
    if (row->params != NULL)
        cells[PARAMS] = row->params;
    if (row->failed) {
        cells[MEDIAN] = arena_format(memory, "failed: %s", row->note == NULL ? "no reason was given" : row->note);
        return;
    }
    if (row->note != NULL)
        cells[NOTE] = row->note;
    if (!isnan(row->max_error))
        cells[MAX_ERROR] = arena_format(memory, "%.1e", row->max_error);
    if (!(row->median_us > 0))
        return;
    cells[MEDIAN] = number(memory, row->median_us);
    if (row->max_us > 0)
        cells[SPREAD] = arena_format(memory, "%s to %s", number(memory, row->min_us), number(memory, row->max_us));
    cells[RATE] = rate(memory, row);
    double ratio = bench_results_ratio(results, row);
    if (ratio > 0)
        cells[AGAINST] = arena_format(memory, "%.*f of %s", decimals(ratio, 2), ratio, row->baseline);
}

static row_cells *make_cells(arena *memory, const bench_results *results)
{
    size_t count = bench_results_count(results);
    row_cells *cells = arena_alloc(memory, (count + 1) * sizeof *cells);
    for (size_t i = 0; i < count; i++)
        fill_cells(memory, results, bench_results_row(results, i), cells[i]);
    return cells;
}

/* --- Text --- */

static void put_plain(const char *text, FILE *stream)
{
    for (; *text != '\0'; text++)
        putc(iscntrl((unsigned char)*text) ? '?' : *text, stream);
}

static void put_line(const char *const *cells, const size_t *widths, FILE *stream)
{
    size_t owed = 0; /* spaces before the next text: no line ends in any */
    for (size_t i = 0; i < COLUMNS; i++) {
        size_t length = strlen(cells[i]);
        if (length > 0) {
            fprintf(stream, "%*s", (int)owed, "");
            put_plain(cells[i], stream);
            owed = 0;
        }
        if (widths[i] > 0)
            owed += 2 + (widths[i] > length ? widths[i] - length : 0);
    }
    putc('\n', stream);
}

/* Columns that no row fills are left out; a reason for failing stands where it does not widen the figures' columns. */
static void print_text(const bench_results *results, FILE *stream)
{
    arena memory = {0};
    row_cells *cells = make_cells(&memory, results);
    size_t widths[COLUMNS] = {0}, count = bench_results_count(results);
    for (size_t i = 0; i < bench_results_num_facts(results); i++) {
        const char *key = bench_results_fact_key(results, i);
        fprintf(stream, "%s: ", key);
        put_plain(bench_results_fact_value(results, key), stream);
        putc('\n', stream);
    }
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < COLUMNS; k++)
            if (strlen(cells[i][k]) > widths[k] && !(k == MEDIAN && bench_results_row(results, i)->failed))
                widths[k] = strlen(cells[i][k]);
    const char *header[COLUMNS];
    for (size_t k = 0; k < COLUMNS; k++) {
        header[k] = widths[k] > 0 ? titles[k] : "";
        if (widths[k] > 0 && strlen(titles[k]) > widths[k])
            widths[k] = strlen(titles[k]);
    }
    if (count > 0) {
        fprintf(stream, "%s", bench_results_num_facts(results) > 0 ? "\n" : "");
        put_line(header, widths, stream);
    }
    for (size_t i = 0; i < count; i++)
        put_line(cells[i], widths, stream);
    arena_free(&memory);
}

/* --- Markdown --- */

static void put_markdown(const char *text, FILE *stream)
{
    for (; *text != '\0'; text++) {
        if (strchr("\\|<*`", *text) != NULL)
            putc('\\', stream);
        putc(iscntrl((unsigned char)*text) ? ' ' : *text, stream);
    }
}

/* Between backticks nothing is escaped. */
static void put_code(const char *text, FILE *stream)
{
    putc('`', stream);
    for (; *text != '\0'; text++)
        putc(iscntrl((unsigned char)*text) || *text == '`' ? '?' : *text, stream);
    putc('`', stream);
}

static void put_cells(const char *const *cells, const bool *shown, FILE *stream)
{
    putc('|', stream);
    for (size_t i = 0; i < COLUMNS; i++) {
        if (!shown[i])
            continue;
        putc(' ', stream);
        put_markdown(cells[i], stream);
        fputs(cells[i][0] == '\0' ? "|" : " |", stream);
    }
    putc('\n', stream);
}

/* Columns that no row fills are left out. */
static void put_table(row_cells *cells, size_t count, FILE *stream)
{
    bool shown[COLUMNS] = {[GROUP] = true, [VARIANT] = true, [MEDIAN] = true};
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < COLUMNS; k++)
            shown[k] = shown[k] || cells[i][k][0] != '\0';
    put_cells(titles, shown, stream);
    for (size_t i = 0; i < COLUMNS; i++)
        fputs(shown[i] ? "| --- " : "", stream);
    fputs("|\n", stream);
    for (size_t i = 0; i < count; i++)
        put_cells(cells[i], shown, stream);
}

/* The command, the rows, and below them what the machine was. */
static void print_markdown(const bench_results *results, FILE *stream)
{
    arena memory = {0};
    const char *command = bench_results_fact_value(results, "command"), *between = "\n";
    if (command != NULL) {
        put_code(command, stream);
        fputs("\n\n", stream);
    }
    put_table(make_cells(&memory, results), bench_results_count(results), stream);
    for (size_t i = 0; i < bench_results_num_facts(results); i++) {
        const char *key = bench_results_fact_key(results, i);
        if (strcmp(key, "command") == 0)
            continue;
        fprintf(stream, "%s%s: ", between, key);
        put_markdown(bench_results_fact_value(results, key), stream);
        between = "; ";
    }
    fputs(*between == '\n' ? "" : "\n", stream);
    arena_free(&memory);
}

void bench_results_print(const bench_results *results, bench_format format, FILE *stream)
{
    if (format == BENCH_JSON)
        bench_results_print_json(results, stream);
    else if (format == BENCH_MARKDOWN)
        print_markdown(results, stream);
    else
        print_text(results, stream);
}
