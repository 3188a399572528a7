/* SPDX-License-Identifier: Apache-2.0 */
/* What a benchmark found: facts about the run, and one row a measurement. Printed as text, JSON or Markdown; JSON is
 * read back, so that figures are measured once and shown elsewhere. */
#ifndef CKV_TOOLS_BENCH_RESULTS_H
#define CKV_TOOLS_BENCH_RESULTS_H

#include "tools/trace/problem.h"

#include <stddef.h>
#include <stdio.h>

/* One measurement. Start from bench_row_default(). */
typedef struct bench_row {
    const char *group;   /* what was measured: "attention, 1 block" */
    const char *variant; /* by what: "hopper" */
    const char *params;  /* at which size: "tokens 1576, keys 39912"; NULL: nothing to say */
    const char *x_name;  /* the parameter that differs between rows of a sweep, with its unit; NULL: none does */
    double x;            /* its value */
    double min_us, median_us, max_us; /* 0: not timed */
    double bytes, flops;              /* moved and computed in that time; 0: not said */
    double max_error;                 /* largest difference from the reference; NAN: not checked */
    int failed;           /* the check failed or nothing could be measured: `note` says why, no figure is shown */
    const char *baseline; /* the variant of this group that the time is compared with; NULL: none */
    const char *note;     /* NULL: none */
} bench_row;

bench_row bench_row_default(void);

typedef struct bench_results bench_results;

/* Never NULL: a program that runs out of memory says so and exits. */
bench_results *bench_results_create(void);
void bench_results_destroy(bench_results **results);

/* Texts are copied. */
void bench_results_add(bench_results *results, const bench_row *row);

/* "device", "driver", "clocks", "command", ...; a key that is there already gets another value. */
void bench_results_fact(bench_results *results, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

size_t bench_results_count(const bench_results *results);
const bench_row *bench_results_row(const bench_results *results, size_t i);
size_t bench_results_num_facts(const bench_results *results);
const char *bench_results_fact_key(const bench_results *results, size_t i);

/* NULL: not there. */
const char *bench_results_fact_value(const bench_results *results, const char *key);

/* Rows that failed: a benchmark with any exits 1. */
size_t bench_results_failures(const bench_results *results);

/* Median over the baseline's median at the same x (at the same params where it has more of them; where the baseline is
 * not swept, its only row). 0: no baseline, or one of the two has no time. */
double bench_results_ratio(const bench_results *results, const bench_row *row);

typedef enum bench_format { BENCH_TEXT, BENCH_JSON, BENCH_MARKDOWN } bench_format;

void bench_results_print(const bench_results *results, bench_format format, FILE *stream);

/* One object: "facts", and "rows" with the names of bench_row; what a row does not say is left out. */
void bench_results_print_json(const bench_results *results, FILE *stream);

/* Add what bench_results_print_json wrote; results that could not be read whole are of no use. */
bool bench_results_read_json(bench_results *results, const char *path, problem *why);

#endif
