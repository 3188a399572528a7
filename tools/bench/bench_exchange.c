/* SPDX-License-Identifier: Apache-2.0 */
/* ckv bench exchange: one layer's q, k and v to the heads' ranks and the output back, over the size of a forward.
 *
 *   fused     one kernel a way; into pages: the same kernel fills them
 *   sendrecv  pack, grouped send and receive; grouped send and receive, unpack; into pages: a scatter follows
 *   raw       the transport's grouped send and receive of as many contiguous bytes, nothing packed
 *
 * On GPUs a time is of one exchange among many in a graph, since one alone is over before a launch is. GB/s counts what
 * leaves a rank. */
#include "lib/device/device.h"
#include "lib/support/error.h"
#include "tools/bench/exchange_case.h"
#include "tools/bench/timing.h"
#include "tools/common/cli.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { GPU_EXCHANGES = 20, THREADS = 2 };

static const int64_t gpu_sizes[] = {1, 64, 394, 1576, 6304, 37824, 65536};
static const int64_t host_sizes[] = {1, 64, 394, 1576, 6304};

/* What is measured: some exchanges, one after the other. */
typedef struct work {
    bench_work once;
    void *argument;
    int times;
} work;

typedef struct raw_work {
    ckv_comm *comm;
    ckv_comm_transfer *transfers; /* [ranks] */
} raw_work;

static ckv_status run_work(void *argument, ckv_stream stream)
{
    const work *w = argument;
    for (int i = 0; i < w->times; i++)
        CKV_TRY(w->once(w->argument, stream));
    return CKV_OK;
}

static ckv_status run_raw(void *argument, ckv_stream stream)
{
    const raw_work *raw = argument;
    return ckv_comm_enqueue_all_to_all(raw->comm, 1, raw->transfers, stream);
}

/* Between events: a tracer makes every kernel longer, and the paths have different numbers of them. */
static ckv_status measure_graph(bench_timer *timer, work *w, bench_time *time_out)
{
    bench_graph *graph;
    CKV_TRY(run_work(w, bench_timer_stream(timer))); /* what is loaded on first use must not be captured */
    CKV_TRY(bench_timer_wait(timer));
    CKV_TRY(bench_graph_create(timer, run_work, w, &graph));
    ckv_status status = bench_timer_measure(timer, bench_graph_replay, graph, time_out);
    bench_graph_destroy(&graph);
    return status;
}

static ckv_status measure(bench_timer *timer, const exchange_case *c, bench_work once, void *argument, bench_row *row)
{
    const bench_options *o = c->options;
    work w = {once, argument, o->on_gpu ? GPU_EXCHANGES : 1};
    bench_time time = {0};
    CKV_TRY(o->on_gpu && o->launch != BENCH_EAGER ? measure_graph(timer, &w, &time)
                                                  : bench_timer_measure(timer, run_work, &w, &time));
    time.min_us /= w.times;
    time.median_us /= w.times;
    time.max_us /= w.times;
    bench_time_to_row(&time, row);
    return ckv_comm_async_error(c->comm);
}

enum { THERE, INTO_PAGES, BACK, WAYS };
static const char *const groups[WAYS] = {"exchange, there", "exchange, there and into pages", "exchange, back"};

/* Heads of each token that go to a peer. */
static int64_t heads_to_peer(const exchange_case *c, int way)
{
    return c->heads.rank_q_heads + (way == BACK ? 0 : 2 * c->heads.rank_kv_heads);
}

static bench_row begin_row(const exchange_case *c, int64_t tokens, int way, const char *variant)
{
    static _Thread_local char params[96];
    bench_row row = bench_row_default();
    snprintf(params, sizeof params, "tokens %" PRId64 ", %d ranks, %s", tokens, c->ranks, ckv_comm_transport(c->comm));
    row.group = groups[way];
    row.variant = variant;
    row.params = params;
    row.x_name = "tokens over all ranks";
    row.x = (double)tokens;
    const char *baseline = way == INTO_PAGES ? "sendrecv" : "raw";
    row.baseline = strcmp(variant, baseline) == 0 ? NULL : baseline;
    row.bytes = (double)(c->rows * heads_to_peer(c, way) * c->vector_bytes * (c->ranks - 1));
    return row;
}

static ckv_status measure_path(exchange_case *c, bench_timer *timer, const char *path, int64_t tokens,
                               bench_results *results)
{
    ckv_stream stream = bench_timer_stream(timer);
    ckv_status status = exchange_case_take_path(c, path, stream);
    if (status == CKV_ERROR_UNSUPPORTED) {
        bench_results_fact(results, path, "not here: %s", ckv_last_error());
        return CKV_OK;
    }
    if (status == CKV_OK)
        status = exchange_case_check(c, stream);
    bool is_wrong = status == CKV_ERROR_INTERNAL;
    for (int way = THERE; way < WAYS && (status == CKV_OK || is_wrong); way++) {
        bench_row row = begin_row(c, tokens, way, path);
        row.failed = is_wrong;
        row.note = is_wrong ? ckv_last_error() : NULL;
        c->into_pages = way == INTO_PAGES;
        if (!is_wrong)
            status = measure(timer, c, way == BACK ? exchange_case_back : exchange_case_there, c, &row);
        if (status == CKV_OK || is_wrong)
            bench_results_add(results, &row);
    }
    if (status == CKV_OK || is_wrong)
        status = ckv_comm_barrier(c->options->host); /* no rank reads a window that is gone */
    exchange_case_leave_path(c);
    return status;
}

/* To every rank, this one included, from one tensor into memory that nobody reads. */
static ckv_status measure_raw(exchange_case *c, bench_timer *timer, int way, int64_t tokens, bench_results *results)
{
    int64_t bytes = c->rows * heads_to_peer(c, way) * c->vector_bytes;
    int64_t sent_bytes = c->rows * (c->heads.q_heads + 2 * c->heads.kv_heads) * c->vector_bytes;
    void *received = NULL;
    raw_work raw = {c->comm, calloc((size_t)c->ranks, sizeof *raw.transfers)};
    bench_row row = begin_row(c, tokens, way, "raw");
    ckv_status status = raw.transfers != NULL ? c->device->alloc((size_t)(bytes * c->ranks), &received)
                                              : ckv_fail(CKV_ERROR_MEMORY, "exchange: out of memory");
    status = ckv_comm_agree(c->options->host, status);
    for (int peer = 0; peer < c->ranks && status == CKV_OK && raw.transfers != NULL; peer++) {
        int64_t at = (peer + 1) * bytes <= sent_bytes ? peer * bytes : 0; /* ranks that share a head get more */
        raw.transfers[peer] = (ckv_comm_transfer){c->qkv + at, bytes, (char *)received + peer * bytes, bytes};
    }
    if (status == CKV_OK)
        status = measure(timer, c, run_raw, &raw, &row);
    if (status == CKV_OK)
        bench_results_add(results, &row);
    c->device->free(received);
    free(raw.transfers);
    return status;
}

static ckv_status measure_size(const bench_options *options, bench_timer *timer, int64_t tokens, bench_results *results)
{
    static const char *const paths[] = {"fused", "sendrecv"};
    exchange_case c;
    ckv_status status = exchange_case_open(&c, options, tokens, bench_timer_stream(timer));
    for (size_t i = 0; i < sizeof paths / sizeof paths[0] && status == CKV_OK; i++)
        status = measure_path(&c, timer, paths[i], tokens, results);
    if (status == CKV_OK)
        status = measure_raw(&c, timer, THERE, tokens, results);
    if (status == CKV_OK)
        status = measure_raw(&c, timer, BACK, tokens, results);
    exchange_case_close(&c);
    return status;
}

/* Sizes side by side, one way after the other. */
static void add_by_way(const bench_results *measured, bench_results *results)
{
    for (int way = THERE; way < WAYS; way++)
        for (size_t i = 0; i < bench_results_count(measured); i++)
            if (strcmp(bench_results_row(measured, i)->group, groups[way]) == 0)
                bench_results_add(results, bench_results_row(measured, i));
    for (size_t i = 0; i < bench_results_num_facts(measured); i++) {
        const char *key = bench_results_fact_key(measured, i);
        bench_results_fact(results, key, "%s", bench_results_fact_value(measured, key));
    }
}

static ckv_status measure_sizes(const bench_options *o, bench_results *results)
{
    bench_results *measured = bench_results_create();
    const int64_t *sizes = o->num_sizes > 0 ? o->sizes : o->on_gpu ? gpu_sizes : host_sizes;
    size_t count = o->num_sizes > 0 ? o->num_sizes
                   : o->on_gpu      ? sizeof gpu_sizes / sizeof *gpu_sizes
                                    : sizeof host_sizes / sizeof *host_sizes;
    bench_timer *timer = NULL;
    ckv_status status = bench_timer_create(o, &timer);
    for (size_t i = 0; i < count && status == CKV_OK; i++)
        status = measure_size(o, timer, sizes[i], measured);
    if (status == CKV_OK) {
        add_by_way(measured, results);
        bench_timer_facts(timer, results);
        if (o->on_gpu)
            bench_results_fact(results, "each time", "of one exchange of %d in a row, the slowest rank's",
                               GPU_EXCHANGES);
        else
            bench_results_fact(results, "each time", "of one exchange, the slowest rank's");
    }
    bench_timer_destroy(&timer);
    bench_results_destroy(&measured);
    return status;
}

/* --- Ranks that are threads of this process --- */

typedef struct player {
    pthread_t thread;
    bench_options options;
    bench_results *results;
    int code;
} player;

static void *play(void *argument)
{
    player *p = argument;
    p->code = bench_exit_code(&p->options, measure_sizes(&p->options, p->results));
    ckv_comm_destroy(&p->options.comm); /* whoever waits for this rank learns that it has gone */
    return NULL;
}

/* Only rank 0's results count: the others' are the same rows. */
static int run_threads(const bench_options *options, bench_results *results)
{
    ckv_comm *comms[THREADS];
    player players[THREADS];
    int code = bench_exit_code(options, ckv_comm_create_threads(THREADS, 0, comms));
    if (code != CLI_OK)
        return code;
    int started = 0;
    for (; started < THREADS; started++) {
        player *p = &players[started];
        *p = (player){.options = *options, .results = started == 0 ? results : bench_results_create()};
        p->options.comm = p->options.host = comms[started];
        p->options.speaks = started == 0;
        if (pthread_create(&p->thread, NULL, play, p) != 0)
            break;
    }
    for (int rank = started; rank < THREADS; rank++)
        ckv_comm_destroy(&comms[rank]);
    for (int rank = 0; rank < started; rank++)
        pthread_join(players[rank].thread, NULL);
    for (int rank = 1; rank < THREADS && rank <= started; rank++)
        bench_results_destroy(&players[rank].results);
    if (started < THREADS)
        return bench_exit_code(options, ckv_fail(CKV_ERROR_MEMORY, "no thread could be started"));
    return players[0].code;
}

int bench_exchange(const bench_options *options, bench_results *results)
{
    if (ckv_comm_size(options->comm) > 1)
        return bench_exit_code(options, measure_sizes(options, results));
    if (options->on_gpu) {
        bench_results_fact(results, "ranks", "one, which has nothing to exchange; mpirun -np 2 ckv bench exchange has");
        return CLI_OK;
    }
    bench_results_fact(results, "ranks", "one process has nothing to exchange with itself, so %d of its threads do",
                       THREADS);
    return run_threads(options, results);
}
