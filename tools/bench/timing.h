/* SPDX-License-Identifier: Apache-2.0 */
/* Timing of work on a device: warm-up, a flush of its caches before every run, and a clock. On a GPU graphs are timed
 * from first to last kernel by CUPTI where that can be loaded, between two events elsewhere; eager work between two
 * events, since tracing delays every launch. On the host it is the monotonic clock. With several ranks a run begins
 * when all have met and takes as long as on the slowest. Errors are said by ckv_last_error(). */
#ifndef CKV_TOOLS_BENCH_TIMING_H
#define CKV_TOOLS_BENCH_TIMING_H

#include "tools/bench/options.h"

enum { BENCH_WARM_UPS = 3 };

/* Enqueues on `stream`, or on the host computes before it returns. */
typedef ckv_status (*bench_work)(void *argument, ckv_stream stream);

typedef struct bench_sample {
    double us;      /* on the device */
    double host_us; /* in the call */
} bench_sample;

typedef struct bench_time {
    double min_us, median_us, max_us;
    double host_us; /* median */
} bench_time;

typedef struct bench_timer bench_timer;

/* Options must outlive it. ERROR_UNSUPPORTED when the clock that was asked for cannot be had. */
ckv_status bench_timer_create(const bench_options *options, bench_timer **timer_out);
void bench_timer_destroy(bench_timer **timer); /* accepts NULL and a pointer to NULL */

/* Clock, flush, launches, and the state the GPU was in; of all runs until now. */
void bench_timer_facts(const bench_timer *timer, bench_results *results);

ckv_stream bench_timer_stream(const bench_timer *timer);
ckv_status bench_timer_wait(const bench_timer *timer);

/* From now on by CUPTI, if the options allow it and it can be loaded; or not. Not at first, and as late as can be: once
 * loaded it makes calls on the host slower. */
ckv_status bench_timer_trace(bench_timer *timer, bool trace);

/* One run. ERROR_INTERNAL when CUPTI saw no kernel. */
ckv_status bench_timer_run(bench_timer *timer, bench_work work, void *argument, bench_sample *sample_out);

/* Warm-ups, then as many runs as the options say; between events unless the options insist on CUPTI. */
ckv_status bench_timer_measure(bench_timer *timer, bench_work work, void *argument, bench_time *time_out);

/* Sorts the samples. */
bench_time bench_time_of(bench_sample *samples, size_t count);
void bench_time_to_row(const bench_time *time, bench_row *row);

/* Work captured once. The argument's contents are read at capture. */
typedef struct bench_graph bench_graph;
ckv_status bench_graph_create(bench_timer *timer, bench_work work, void *argument, bench_graph **graph_out);
void bench_graph_destroy(bench_graph **graph);
ckv_status bench_graph_replay(void *graph, ckv_stream stream); /* a bench_work */
int64_t bench_graph_launches(const bench_graph *graph);        /* kernels, copies and fills in it */

/* `work` run once, captured, and measured as a graph, by CUPTI where possible. */
ckv_status bench_timer_measure_graph(bench_timer *timer, bench_work work, void *argument, bench_time *time_out);

#endif
