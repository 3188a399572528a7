/* SPDX-License-Identifier: Apache-2.0 */
/* ckv bench chunk-cycle: what a model's attention and cache cost for one chunk: denoising forwards, the clean forward
 * and the commit, all layers. */
#include "lib/support/error.h"
#include "tools/bench/check.h"
#include "tools/bench/cudnn_contiguous.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS_PAST_WINDOW = 3 };
typedef enum stage { DENOISING, CLEAN, COMMIT, COMMIT_HOST, WHOLE, NUM_STAGES } stage;

typedef struct cycle {
    const bench_options *options;
    bench_results *results;
    bench_timer *timer;
    bench_workload *workload;
    const char *backend;
    bench_forward denoising, clean;
    bench_graph *denoising_graph, *clean_graph, *commit_graph; /* NULL: eager */
    bench_verdict verdict;
    bench_sample *samples[NUM_STAGES];
} cycle;

static ckv_status denoise(void *argument, ckv_stream stream)
{
    cycle *c = argument;
    for (int64_t i = 0; i < c->options->geometry.denoising_forwards; i++)
        CKV_TRY(c->denoising_graph != NULL ? bench_graph_replay(c->denoising_graph, stream)
                                           : bench_forward_run(&c->denoising, stream));
    return CKV_OK;
}

static ckv_status clean(void *argument, ckv_stream stream)
{
    cycle *c = argument;
    return c->clean_graph != NULL ? bench_graph_replay(c->clean_graph, stream) : bench_forward_run(&c->clean, stream);
}

static ckv_status commit_eager(void *argument, ckv_stream stream)
{
    const bench_workload *w = ((const cycle *)argument)->workload;
    return ckv_cache_commit(w->cache, w->chunk_tokens, stream);
}

static ckv_status commit(void *argument, ckv_stream stream)
{
    const cycle *c = argument;
    if (c->commit_graph == NULL)
        return commit_eager(argument, stream);
    CKV_TRY(bench_graph_replay(c->commit_graph, stream));
    return ckv_cache_follow_commit(c->workload->cache, c->workload->chunk_tokens);
}

static const char *group_of(const cycle *c, stage s, char *text, size_t bytes)
{
    const bench_workload *w = c->workload;
    const model_geometry *g = &c->options->geometry;
    char what[96];
    if (s == DENOISING)
        snprintf(what, sizeof what, "%" PRId64 " denoising forwards", g->denoising_forwards);
    else if (s == CLEAN)
        snprintf(what, sizeof what, "clean forward, %" PRId64 " block%s of %" PRId64, w->chunk_tokens / c->clean.block,
                 w->chunk_tokens == c->clean.block ? "" : "s", c->clean.block);
    else
        snprintf(what, sizeof what, "%s",
                 s == COMMIT        ? "commit"
                 : s == COMMIT_HOST ? "commit, host wall"
                                    : "whole chunk");
    snprintf(text, bytes, "chunk cycle, %" PRId64 " layers: %s", w->config.layers, what);
    return text;
}

static void add_row(const cycle *c, stage s, const char *variant, const char *baseline, const bench_verdict *verdict)
{
    char group[160], params[128];
    const bench_workload *w = c->workload;
    const char *exchange = w->ulysses == NULL ? "none" : ckv_ulysses_exchange(w->ulysses, NULL);
    bench_row row = bench_row_default();
    row.group = group_of(c, s, group, sizeof group);
    row.variant = variant;
    snprintf(params, sizeof params, "tokens %" PRId64 ", keys %" PRId64 ", %s%s%s", w->chunk_tokens,
             bench_workload_keys(w, w->chunk_tokens), c->denoising_graph != NULL ? "graph a forward" : "eager",
             w->ranks > 1 ? ", exchange " : "", w->ranks > 1 ? exchange : "");
    row.params = params;
    row.x_name = "ranks";
    row.x = w->ranks;
    row.baseline = baseline;
    if (bench_verdict_to_row(verdict, &row)) {
        bench_time time = bench_time_of(c->samples[s], (size_t)c->options->runs);
        bench_time_to_row(&time, &row);
        row.note = s == WHOLE ? "sum of forwards and commit" : NULL;
    }
    bench_results_add(c->results, &row);
}

static ckv_status check_both(cycle *c)
{
    bench_verdict verdict;
    CKV_TRY(bench_check_forward(c->workload, c->denoising.block, c->backend, &c->verdict));
    if (!c->verdict.ok || c->clean.block == c->denoising.block)
        return CKV_OK;
    CKV_TRY(bench_check_forward(c->workload, c->clean.block, c->backend, &verdict));
    if (!verdict.ok || verdict.error > c->verdict.error)
        c->verdict = verdict;
    return CKV_OK;
}

static ckv_status capture(cycle *c)
{
    if (c->options->launch == BENCH_EAGER)
        return CKV_OK;
    CKV_TRY(bench_graph_create(c->timer, bench_forward_run, &c->denoising, &c->denoising_graph));
    CKV_TRY(bench_graph_create(c->timer, bench_forward_run, &c->clean, &c->clean_graph));
    return bench_graph_create(c->timer, commit_eager, c, &c->commit_graph);
}

/* Before anything is traced, which makes calls on the host slower. */
static ckv_status run_commits(cycle *c)
{
    bench_sample sample;
    for (int64_t i = -BENCH_WARM_UPS; i < c->options->runs; i++) {
        CKV_TRY(clean(c, bench_timer_stream(c->timer)));
        CKV_TRY(bench_timer_run(c->timer, commit, c, &sample));
        CKV_TRY(bench_workload_committed(c->workload));
        if (i >= 0)
            c->samples[COMMIT_HOST][i].us = sample.host_us;
    }
    return bench_workload_follow(c->workload);
}

static ckv_status run_cycle(cycle *c, bench_sample samples[NUM_STAGES])
{
    samples[WHOLE] = (bench_sample){0};
    CKV_TRY(bench_timer_run(c->timer, denoise, c, &samples[DENOISING]));
    CKV_TRY(bench_timer_run(c->timer, clean, c, &samples[CLEAN]));
    CKV_TRY(bench_timer_run(c->timer, commit, c, &samples[COMMIT]));
    for (stage s = DENOISING; s <= COMMIT; s++)
        samples[WHOLE].us += samples[s].us;
    return bench_workload_committed(c->workload);
}

static ckv_status run_cycles(cycle *c)
{
    bench_sample samples[NUM_STAGES];
    CKV_TRY(bench_timer_trace(c->timer, c->options->launch != BENCH_EAGER || c->options->clock == BENCH_CLOCK_CUPTI));
    for (int64_t i = -1; i < c->options->runs; i++) { /* the first warms up */
        CKV_TRY(run_cycle(c, samples));
        for (stage s = 0; s < NUM_STAGES && i >= 0; s++)
            if (s != COMMIT_HOST)
                c->samples[s][i] = samples[s];
    }
    CKV_TRY(bench_timer_trace(c->timer, false));
    return bench_workload_follow(c->workload);
}

static ckv_status measure(cycle *c)
{
    const bench_options *o = c->options;
    for (stage s = 0; s < NUM_STAGES; s++) {
        c->samples[s] = calloc((size_t)o->runs, sizeof *c->samples[s]);
        if (c->samples[s] == NULL)
            return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    }
    CKV_TRY(check_both(c));
    if (!c->verdict.ok)
        return CKV_OK;
    CKV_TRY(capture(c));
    CKV_TRY(run_commits(c));
    CKV_TRY(run_cycles(c));
    CKV_TRY(ckv_cache_check(c->workload->cache, bench_timer_stream(c->timer)));
    bench_verdict before = c->verdict;
    CKV_TRY(check_both(c)); /* after as many commits, replayed or not */
    if (c->verdict.ok && before.error > c->verdict.error)
        c->verdict = before;
    return CKV_OK;
}

static void free_cycle(cycle *c)
{
    bench_graph_destroy(&c->denoising_graph);
    bench_graph_destroy(&c->clean_graph);
    bench_graph_destroy(&c->commit_graph);
    bench_workload_destroy(&c->workload);
    for (stage s = 0; s < NUM_STAGES; s++)
        free(c->samples[s]);
}

static ckv_status measure_backend(const bench_options *o, bench_results *results, bench_timer *timer,
                                  const char *backend, const char *baseline)
{
    const model_geometry *g = &o->geometry;
    cycle c = {.options = o, .results = results, .timer = timer, .backend = backend};
    const bench_workload_config config = bench_workload_of_model(o, timer, CHUNKS_PAST_WINDOW);
    CKV_TRY(bench_workload_create(&config, &c.workload));
    c.denoising = (bench_forward){c.workload, 0, g->layers, c.workload->chunk_tokens, backend};
    c.clean = c.denoising;
    if (g->clean_in_frames)
        c.clean.block = g->frame_tokens;
    ckv_status status = measure(&c);
    for (stage s = 0; s < NUM_STAGES && status == CKV_OK; s++)
        if (o->on_gpu || s != COMMIT_HOST) /* on the host the two are one */
            add_row(&c, s, backend, strcmp(backend, baseline) != 0 ? baseline : NULL, &c.verdict);
    free_cycle(&c);
    return status;
}

static ckv_status run(const bench_options *o, bench_results *results, bench_timer **timer)
{
    const char *baseline = o->backend != NULL ? o->backend : o->on_gpu ? "cudnn" : "host";
    if (cudnn_version_text()[0] != '\0')
        bench_results_fact(results, "cuDNN", "%s", cudnn_version_text());
    CKV_TRY(bench_timer_create(o, timer));
    for (size_t i = 0; i < ckv_attention_num_backends(); i++) {
        const char *name = ckv_attention_backend_name(i);
        bool other_device = (strcmp(name, "host") == 0) == o->on_gpu;
        if (o->backend != NULL ? strcmp(o->backend, name) != 0 : other_device)
            continue;
        ckv_status status = measure_backend(o, results, *timer, name, baseline);
        if (status == CKV_ERROR_UNSUPPORTED && o->backend == NULL)
            bench_results_fact(results, name, "not measured: %s", ckv_last_error());
        else
            CKV_TRY(status);
    }
    bench_timer_facts(*timer, results);
    return CKV_OK;
}

int bench_chunk_cycle(const bench_options *options, bench_results *results)
{
    bench_timer *timer = NULL;
    int code = bench_exit_code(options, run(options, results, &timer));
    bench_timer_destroy(&timer);
    return code;
}
