/* SPDX-License-Identifier: Apache-2.0 */
/* Sweeps as a picture: SVG that any browser shows, in light and dark. */
#ifndef CKV_TOOLS_BENCH_PLOT_H
#define CKV_TOOLS_BENCH_PLOT_H

#include "tools/bench/results.h"

typedef enum bench_plot_y {
    BENCH_PLOT_TIME, /* median, with a bar from min to max */
    BENCH_PLOT_RATIO /* of the median to the baseline's */
} bench_plot_y;

/* One panel for each group with rows that have an x_name and differ in x, one line for each of its variants. An axis
 * whose values lie far apart is logarithmic; one that is not starts at 0. False when no row can be shown, or with the
 * file's error. */
bool bench_plot_write(const bench_results *results, bench_plot_y y, const char *path, problem *why);

#endif
