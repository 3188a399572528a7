/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/timing.h"

#include "lib/support/error.h"
#include "tools/bench/cupti.h"
#include "tools/bench/gpu_state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#if CKV_HAVE_CUDA
#include <cuda_runtime_api.h>
#else
typedef void *cudaEvent_t; /* never made */
#endif

enum { GPU_FLUSH_BYTES = 512 << 20, HOST_FLUSH_BYTES = 64 << 20 };

struct bench_timer {
    const bench_options *options;
    ckv_stream stream; /* NULL on the host */
    cudaEvent_t begin, end;
    char *flush;
    size_t flush_bytes;
    unsigned flushes;
    bool traces; /* by CUPTI, now */
    bool has_traced;
    const char *why_no_cupti; /* NULL: it could be loaded, or nobody asked yet */
    gpu_state *state;
};

struct bench_graph {
    bench_timer *timer;
    void *executable; /* a cudaGraphExec_t */
    int64_t launches;
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

#if CKV_HAVE_CUDA
static ckv_status cuda_status(cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return CKV_OK;
    return ckv_fail(CKV_ERROR_DEVICE, "%s: %s: %s", call, cudaGetErrorName(error), cudaGetErrorString(error));
}
#define CUDA_TRY(call) CKV_TRY(cuda_status(call, #call))

static ckv_status open_gpu(bench_timer *t)
{
    void *flush;
    CUDA_TRY(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreate(&t->begin));
    CUDA_TRY(cudaEventCreate(&t->end));
    CUDA_TRY(cudaMalloc(&flush, GPU_FLUSH_BYTES));
    t->flush = flush;
    t->flush_bytes = GPU_FLUSH_BYTES;
    t->state = gpu_state_open();
    return CKV_OK;
}

static void close_gpu(bench_timer *t)
{
    gpu_state_close(t->state);
    cudaFree(t->flush);
    if (t->end != NULL)
        cudaEventDestroy(t->end);
    if (t->begin != NULL)
        cudaEventDestroy(t->begin);
    if (t->stream != NULL)
        cudaStreamDestroy(t->stream);
}

static ckv_status flush_gpu(const bench_timer *t, int value)
{
    CUDA_TRY(cudaMemsetAsync(t->flush, value, t->flush_bytes, t->stream));
    return CKV_OK;
}

/* What CUPTI records starts after the flush has ended; between events the GPU goes on from it, and launches are hidden.
 */
static ckv_status run_traced(bench_timer *t, bench_work work, void *argument, bench_sample *sample)
{
    cupti_span span;
    CUDA_TRY(cudaStreamSynchronize(t->stream));
    CKV_TRY(cupti_begin());
    CKV_TRY(ckv_comm_barrier(t->options->host));
    double started = now_us();
    CKV_TRY(work(argument, t->stream));
    sample->host_us = now_us() - started;
    gpu_state_look(t->state);
    CUDA_TRY(cudaStreamSynchronize(t->stream));
    CKV_TRY(cupti_end(&span));
    if (span.activities == 0)
        return ckv_fail(CKV_ERROR_INTERNAL, "CUPTI saw nothing run; try --clock events");
    sample->us = (double)(span.last_ns - span.first_ns) * 1e-3;
    return CKV_OK;
}

static ckv_status run_between_events(bench_timer *t, bench_work work, void *argument, bench_sample *sample)
{
    float ms;
    if (ckv_comm_size(t->options->host) > 1) { /* or the others would be waited for in the time */
        CUDA_TRY(cudaStreamSynchronize(t->stream));
        CKV_TRY(ckv_comm_barrier(t->options->host));
    }
    CUDA_TRY(cudaEventRecord(t->begin, t->stream));
    double started = now_us();
    CKV_TRY(work(argument, t->stream));
    sample->host_us = now_us() - started;
    CUDA_TRY(cudaEventRecord(t->end, t->stream));
    gpu_state_look(t->state);
    CUDA_TRY(cudaEventSynchronize(t->end));
    CUDA_TRY(cudaEventElapsedTime(&ms, t->begin, t->end));
    sample->us = (double)ms * 1e3;
    return CKV_OK;
}

ckv_status bench_timer_wait(const bench_timer *timer)
{
    if (timer->options->on_gpu)
        CUDA_TRY(cudaStreamSynchronize(timer->stream));
    return CKV_OK;
}

static ckv_status capture(bench_timer *timer, bench_work work, void *argument, cudaGraph_t *graph_out)
{
    CUDA_TRY(cudaStreamBeginCapture(timer->stream, cudaStreamCaptureModeThreadLocal));
    ckv_status status = work(argument, timer->stream);
    cudaError_t error = cudaStreamEndCapture(timer->stream, graph_out);
    return status != CKV_OK ? status : cuda_status(error, "cudaStreamEndCapture");
}

static ckv_status instantiate(bench_graph *graph, cudaGraph_t captured)
{
    cudaGraphExec_t executable;
    size_t nodes = 0;
    CUDA_TRY(cudaGraphGetNodes(captured, NULL, &nodes));
    CUDA_TRY(cudaGraphInstantiate(&executable, captured, 0));
    graph->executable = executable;
    graph->launches = (int64_t)nodes;
    return CKV_OK;
}

ckv_status bench_graph_create(bench_timer *timer, bench_work work, void *argument, bench_graph **graph_out)
{
    cudaGraph_t captured = NULL;
    bench_graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    graph->timer = timer;
    ckv_status status = capture(timer, work, argument, &captured);
    if (status == CKV_OK)
        status = instantiate(graph, captured);
    if (captured != NULL)
        cudaGraphDestroy(captured);
    if (status == CKV_OK)
        *graph_out = graph;
    else
        free(graph);
    return status;
}

void bench_graph_destroy(bench_graph **graph)
{
    if (*graph == NULL)
        return;
    cudaGraphExecDestroy((*graph)->executable);
    free(*graph);
    *graph = NULL;
}

ckv_status bench_graph_replay(void *graph, ckv_stream stream)
{
    const bench_graph *g = graph;
    CUDA_TRY(cudaGraphLaunch(g->executable, stream));
    return CKV_OK;
}
#else
static ckv_status no_cuda(void)
{
    return ckv_fail(CKV_ERROR_UNSUPPORTED, "this build has no CUDA");
}

static ckv_status open_gpu(bench_timer *t)
{
    (void)t;
    return no_cuda();
}

static void close_gpu(bench_timer *t)
{
    gpu_state_close(t->state);
}

static ckv_status flush_gpu(const bench_timer *t, int value)
{
    (void)t, (void)value;
    return no_cuda();
}

static ckv_status run_traced(bench_timer *t, bench_work work, void *argument, bench_sample *sample)
{
    (void)t, (void)work, (void)argument, (void)sample;
    return no_cuda();
}

static ckv_status run_between_events(bench_timer *t, bench_work work, void *argument, bench_sample *sample)
{
    return run_traced(t, work, argument, sample);
}

ckv_status bench_timer_wait(const bench_timer *timer)
{
    (void)timer;
    return CKV_OK;
}

ckv_status bench_graph_create(bench_timer *timer, bench_work work, void *argument, bench_graph **graph_out)
{
    (void)timer, (void)work, (void)argument, (void)graph_out;
    return no_cuda();
}

void bench_graph_destroy(bench_graph **graph)
{
    *graph = NULL;
}

ckv_status bench_graph_replay(void *graph, ckv_stream stream)
{
    (void)graph, (void)stream;
    return no_cuda();
}
#endif

static ckv_status open_host(bench_timer *t)
{
    t->flush = malloc(HOST_FLUSH_BYTES);
    t->flush_bytes = HOST_FLUSH_BYTES;
    return t->flush == NULL ? ckv_fail(CKV_ERROR_MEMORY, "out of memory") : CKV_OK;
}

ckv_status bench_timer_create(const bench_options *options, bench_timer **timer_out)
{
    bench_timer *timer = calloc(1, sizeof *timer);
    if (timer == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    timer->options = options;
    ckv_status status = options->on_gpu ? open_gpu(timer) : open_host(timer);
    if (status == CKV_OK && options->clock == BENCH_CLOCK_CUPTI)
        status = bench_timer_trace(timer, true);
    if (status == CKV_OK)
        *timer_out = timer;
    else
        bench_timer_destroy(&timer);
    return status;
}

void bench_timer_destroy(bench_timer **timer)
{
    if (timer == NULL || *timer == NULL)
        return;
    if ((*timer)->options->on_gpu)
        close_gpu(*timer);
    else
        free((*timer)->flush);
    free(*timer);
    *timer = NULL;
}

void bench_timer_facts(const bench_timer *timer, bench_results *results)
{
    const char *events = "two CUDA events";
    if (!timer->options->on_gpu)
        bench_results_fact(results, "clock", "monotonic clock of the host");
    else if (timer->why_no_cupti != NULL)
        bench_results_fact(results, "clock", "%s (no CUPTI: %s)", events, timer->why_no_cupti);
    else if (timer->options->clock == BENCH_CLOCK_CUPTI)
        bench_results_fact(results, "clock", "CUPTI, first to last kernel");
    else if (timer->has_traced)
        bench_results_fact(results, "clock", "graphs by CUPTI, first to last kernel; eager work between %s", events);
    else
        bench_results_fact(results, "clock", "%s", events);
    bench_results_fact(results, "runs", "%d to warm up, then %lld, each after %zu MiB were written over",
                       (int)BENCH_WARM_UPS, (long long)timer->options->runs, timer->flush_bytes >> 20);
    if (timer->options->on_gpu)
        gpu_state_facts(timer->state, results);
}

ckv_stream bench_timer_stream(const bench_timer *timer)
{
    return timer->stream;
}

ckv_status bench_timer_trace(bench_timer *timer, bool trace)
{
    const bench_options *o = timer->options;
    if (!o->on_gpu || o->clock == BENCH_CLOCK_EVENTS || timer->traces == trace || timer->why_no_cupti != NULL)
        return CKV_OK;
    timer->why_no_cupti = cupti_load();
    if (timer->why_no_cupti != NULL && o->clock == BENCH_CLOCK_CUPTI)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "--clock cupti: %s", timer->why_no_cupti);
    if (timer->why_no_cupti != NULL)
        return CKV_OK;
    CKV_TRY(cupti_trace(trace));
    timer->traces = trace;
    timer->has_traced = true;
    return CKV_OK;
}

static ckv_status run_on_host(bench_timer *t, bench_work work, void *argument, bench_sample *sample)
{
    CKV_TRY(ckv_comm_barrier(t->options->host));
    double started = now_us();
    CKV_TRY(work(argument, NULL));
    sample->us = sample->host_us = now_us() - started;
    return CKV_OK;
}

/* As long as on the slowest rank. */
static ckv_status slowest(const bench_options *o, bench_sample *sample)
{
    int ranks = ckv_comm_size(o->host);
    if (ranks == 1)
        return CKV_OK;
    bench_sample *all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    ckv_status status = ckv_comm_all_gather(o->host, sample, sizeof *sample, all);
    for (int rank = 0; rank < ranks && status == CKV_OK; rank++) {
        sample->us = all[rank].us > sample->us ? all[rank].us : sample->us;
        sample->host_us = all[rank].host_us > sample->host_us ? all[rank].host_us : sample->host_us;
    }
    free(all);
    return status;
}

ckv_status bench_timer_run(bench_timer *timer, bench_work work, void *argument, bench_sample *sample_out)
{
    int value = (int)(timer->flushes++ & 0xff);
    if (!timer->options->on_gpu) {
        memset(timer->flush, value, timer->flush_bytes);
        CKV_TRY(run_on_host(timer, work, argument, sample_out));
    } else {
        CKV_TRY(flush_gpu(timer, value));
        CKV_TRY((timer->traces ? run_traced : run_between_events)(timer, work, argument, sample_out));
    }
    return slowest(timer->options, sample_out);
}

static int ascending_us(const void *a, const void *b)
{
    double left = ((const bench_sample *)a)->us, right = ((const bench_sample *)b)->us;
    return (left > right) - (left < right);
}

static int ascending_host_us(const void *a, const void *b)
{
    double left = ((const bench_sample *)a)->host_us, right = ((const bench_sample *)b)->host_us;
    return (left > right) - (left < right);
}

bench_time bench_time_of(bench_sample *samples, size_t count)
{
    bench_time time;
    qsort(samples, count, sizeof *samples, ascending_host_us);
    time.host_us = (samples[(count - 1) / 2].host_us + samples[count / 2].host_us) / 2;
    qsort(samples, count, sizeof *samples, ascending_us);
    time.min_us = samples[0].us;
    time.median_us = (samples[(count - 1) / 2].us + samples[count / 2].us) / 2;
    time.max_us = samples[count - 1].us;
    return time;
}

void bench_time_to_row(const bench_time *time, bench_row *row)
{
    row->min_us = time->min_us;
    row->median_us = time->median_us;
    row->max_us = time->max_us;
}

static ckv_status measure(bench_timer *timer, bench_work work, void *argument, bench_time *time_out)
{
    size_t runs = (size_t)timer->options->runs;
    bench_sample *samples = calloc(runs, sizeof *samples), warm_up;
    if (samples == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    ckv_status status = CKV_OK;
    for (int i = 0; i < BENCH_WARM_UPS && status == CKV_OK; i++)
        status = bench_timer_run(timer, work, argument, &warm_up);
    for (size_t i = 0; i < runs && status == CKV_OK; i++)
        status = bench_timer_run(timer, work, argument, &samples[i]);
    if (status == CKV_OK)
        *time_out = bench_time_of(samples, runs);
    free(samples);
    return status;
}

ckv_status bench_timer_measure(bench_timer *timer, bench_work work, void *argument, bench_time *time_out)
{
    CKV_TRY(bench_timer_trace(timer, timer->options->clock == BENCH_CLOCK_CUPTI));
    return measure(timer, work, argument, time_out);
}

int64_t bench_graph_launches(const bench_graph *graph)
{
    return graph->launches;
}

ckv_status bench_timer_measure_graph(bench_timer *timer, bench_work work, void *argument, bench_time *time_out)
{
    bench_graph *graph;
    CKV_TRY(work(argument, timer->stream)); /* what is loaded or made on first use must not be captured */
    CKV_TRY(bench_timer_wait(timer));
    CKV_TRY(bench_graph_create(timer, work, argument, &graph));
    ckv_status status = bench_timer_trace(timer, true);
    if (status == CKV_OK)
        status = measure(timer, bench_graph_replay, graph, time_out);
    bench_graph_destroy(&graph);
    return status;
}
