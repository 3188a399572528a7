/* SPDX-License-Identifier: Apache-2.0 */
/* What `ckv bench` was asked for, and the machine it runs on: filled by cmd_bench.c, read by every benchmark. */
#ifndef CKV_TOOLS_BENCH_OPTIONS_H
#define CKV_TOOLS_BENCH_OPTIONS_H

#include "tools/bench/results.h"
#include "tools/common/geometries.h"

#include <ckv/comm.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum bench_launch { BENCH_GRAPH_AND_EAGER, BENCH_GRAPH, BENCH_EAGER } bench_launch;
typedef enum bench_clock { BENCH_CLOCK_AUTO, BENCH_CLOCK_EVENTS, BENCH_CLOCK_CUPTI } bench_clock;
typedef enum bench_sweep { BENCH_SWEEP_NONE, BENCH_SWEEP_WINDOW, BENCH_SWEEP_PAGE, BENCH_SWEEP_BLOCKS } bench_sweep;

enum { BENCH_MAX_SIZES = 32 };

typedef struct bench_options {
    const char *benchmark; /* "attention", ... */
    char command[512];     /* the command line, to be repeated */

    model_geometry geometry; /* layers: as asked */
    char scaled[160];        /* what was made smaller for this machine; "" when nothing was */
    int64_t page;            /* tokens */
    int64_t runs;
    int64_t sizes[BENCH_MAX_SIZES]; /* --sizes: token counts; for benchmarks that have no geometry */
    size_t num_sizes;               /* 0: the benchmark's own */
    const char *backend;            /* NULL: every one that there is */
    const char *exchange;           /* how ranks exchange heads: "auto", "fused", "sendrecv" */
    double tolerance;               /* negative: by dtype */
    ckv_dtype dtype;                /* of q, k, v and the output */
    ckv_dtype pages;                /* of what the cache keeps of K and V */

    const ckv_device *device;
    bool on_gpu;
    ckv_comm *host; /* as launched: "self" or "mpi" */
    ckv_comm *comm; /* for memory of the device; `host` where that does, or with one rank */
    bool speaks;    /* rank 0, whose results are printed */

    bench_launch launch; /* on the host always BENCH_EAGER */
    bench_clock clock;
    bench_sweep sweep;

    const char *json, *plot; /* NULL: not asked; json "-": standard output */
    bool markdown;
} bench_options;

/* Every benchmark: measure as the options say and add rows (on every rank alike). Returns an exit code and has then
 * said why. A failed check is a row that says so, and no reason to stop. */
int bench_attention(const bench_options *options, bench_results *results);
int bench_blocks(const bench_options *options, bench_results *results);
int bench_chunk_cycle(const bench_options *options, bench_results *results);
int bench_commit(const bench_options *options, bench_results *results);
int bench_exchange(const bench_options *options, bench_results *results);
int bench_roofline(const bench_options *options, bench_results *results);
int bench_write(const bench_options *options, bench_results *results);

/* The exit code of a status, which is said (ckv_last_error) where it should be. */
int bench_exit_code(const bench_options *options, ckv_status status);

#endif
