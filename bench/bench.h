/* SPDX-License-Identifier: Apache-2.0 */
/* What programs that measure share: failing with a reason, medians, and timing on a stream after an L2 flush. */
#ifndef CKV_BENCH_BENCH_H
#define CKV_BENCH_BENCH_H

#include <ckv/ckv.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BENCH_REPEATS = 30, BENCH_FLUSH_BYTES = 512 << 20 };

static inline _Noreturn void bench_fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static inline void bench_cuda(cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        bench_fail(call, cudaGetErrorString(error));
}
#define CUDA(call) bench_cuda(call, #call)

static inline void bench_ckv(ckv_status status, const char *call)
{
    if (status != CKV_OK)
        bench_fail(call, ckv_last_error());
}
#define CKV(call) bench_ckv(call, #call)

static inline int bench_ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static inline double bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, bench_ascending);
    return values[count / 2];
}

static inline double bench_host_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

typedef struct bench_clock {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *flush;
} bench_clock;

static inline void bench_clock_open(bench_clock *clock)
{
    CUDA(cudaStreamCreateWithFlags(&clock->stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&clock->begin));
    CUDA(cudaEventCreate(&clock->end));
    CUDA(cudaMalloc(&clock->flush, BENCH_FLUSH_BYTES));
}

typedef struct bench_time {
    double us;      /* on the device, between two events */
    double host_us; /* in the call */
} bench_time;

/* Medians over runs of `work`, each after an L2 flush. */
static inline bench_time bench_measure(const bench_clock *clock, void (*work)(void *), void *argument)
{
    double us[BENCH_REPEATS], host[BENCH_REPEATS];
    for (int i = 0; i < BENCH_REPEATS; i++) {
        float ms;
        CUDA(cudaMemsetAsync(clock->flush, i, BENCH_FLUSH_BYTES, clock->stream));
        CUDA(cudaEventRecord(clock->begin, clock->stream));
        double started = bench_host_us();
        work(argument);
        host[i] = bench_host_us() - started;
        CUDA(cudaEventRecord(clock->end, clock->stream));
        CUDA(cudaEventSynchronize(clock->end));
        CUDA(cudaEventElapsedTime(&ms, clock->begin, clock->end));
        us[i] = (double)ms * 1e3;
    }
    return (bench_time){.us = bench_median(us, BENCH_REPEATS), .host_us = bench_median(host, BENCH_REPEATS)};
}

typedef struct bench_graph {
    cudaGraphExec_t executable;
    cudaStream_t stream;
} bench_graph;

static inline void bench_launch(void *graph)
{
    const bench_graph *g = graph;
    CUDA(cudaGraphLaunch(g->executable, g->stream));
}

/* The same work captured once and launched as a graph. */
static inline bench_time bench_measure_graph(const bench_clock *clock, void (*work)(void *), void *argument)
{
    cudaGraph_t graph;
    bench_graph g = {.stream = clock->stream};
    CUDA(cudaStreamBeginCapture(clock->stream, cudaStreamCaptureModeThreadLocal));
    work(argument);
    CUDA(cudaStreamEndCapture(clock->stream, &graph));
    CUDA(cudaGraphInstantiate(&g.executable, graph, 0));
    bench_time time = bench_measure(clock, bench_launch, &g);
    CUDA(cudaGraphExecDestroy(g.executable));
    CUDA(cudaGraphDestroy(graph));
    return time;
}

/* `count` random bf16 numbers in [-1, 1). */
static inline uint16_t *bench_random_bf16(size_t count, uint64_t *state)
{
    uint16_t *values = malloc(count * sizeof *values);
    if (values == NULL)
        bench_fail("random data", "out of memory");
    for (size_t i = 0; i < count; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        float value = (float)(int32_t)(*state >> 32) * 0x1p-31f;
        ckv_convert_from_float(CKV_BF16, &value, 1, &values[i]);
    }
    return values;
}

#endif
