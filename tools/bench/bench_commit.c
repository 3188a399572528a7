/* SPDX-License-Identifier: Apache-2.0 */
/* ckv bench commit: a commit of a chunk, all layers, at every offset in its page that the staged tokens come to. */
#include "lib/layout/row_plan.h"
#include "lib/support/error.h"
#include "tools/bench/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS_PAST_WINDOW = 1, MAX_OFFSETS = 8 };

typedef struct record {
    bench_sample sample;
    int64_t offset; /* of the staged tokens in their page, afterwards */
    int64_t slots;  /* copied in each layer */
} record;

typedef struct mode {
    const char *variant;
    bool replay, host_wall;
    record *records; /* [runs]; NULL: not measured */
} mode;

enum { NUM_MODES = 4 };
/* The host's first: tracing makes its calls slower, and some of that stays. */
static const mode usual_modes[NUM_MODES] = {{"eager, host wall", false, true, NULL},
                                            {"replayed, host wall", true, true, NULL},
                                            {"eager", false, false, NULL},
                                            {"replayed", true, false, NULL}};

typedef struct bench {
    const bench_options *options;
    bench_results *results;
    bench_timer *timer;
    bench_workload *workload;
    bench_graph *graph;
    bench_verdict verdict;
    mode modes[NUM_MODES];
} bench;

static ckv_status commit_eager(void *argument, ckv_stream stream)
{
    const bench_workload *w = argument;
    return ckv_cache_commit(w->cache, w->chunk_tokens, stream);
}

/* Slots a commit copies that leaves the cache as it is now: committed tokens on pages that blocks see in part, and the
 * tail of the fixed region, which every commit refills that drops a page. */
static int64_t copied_slots(const bench_workload *w)
{
    const ckv_cache_state state = ckv_cache_get_state(w->cache);
    const int64_t page = w->config.page;
    int64_t sizes[WORKLOAD_MAX_BLOCK_SIZES + 1] = {w->chunk_tokens}, slots = state.fixed_tokens % page;
    for (size_t i = 0; i < w->config.num_block_sizes; i++)
        sizes[i + 1] = w->config.block_sizes[i];
    for (size_t i = 0; i <= w->config.num_block_sizes; i++) {
        for (int64_t start = 0; start + sizes[i] <= w->chunk_tokens; start += sizes[i]) {
            const ckv_row_plan plan = ckv_row_plan_make(page, state.fixed_tokens, state.window_tokens,
                                                        state.staging_offset + start, sizes[i]);
            for (int64_t k = 0; k < plan.partial_tokens; k++)
                slots += ckv_row_plan_partial(&plan, k) < state.staging_offset;
        }
    }
    return slots;
}

static ckv_status commit_once(bench *b, bool replay, record *record_out)
{
    bench_workload *w = b->workload;
    CKV_TRY(bench_workload_stage(w, w->config.num_block_sizes > 0 ? w->config.block_sizes[0] : w->chunk_tokens));
    CKV_TRY(bench_timer_run(b->timer, replay ? bench_graph_replay : commit_eager, replay ? (void *)b->graph : w,
                            &record_out->sample));
    if (replay)
        CKV_TRY(ckv_cache_follow_commit(w->cache, w->chunk_tokens));
    CKV_TRY(bench_workload_committed(w));
    bench_workload_next_data(w);
    record_out->offset = ckv_cache_get_state(w->cache).staging_offset % w->config.page;
    record_out->slots = copied_slots(w);
    return CKV_OK;
}

static void add_row(const bench *b, const char *variant, const char *params, const bench_time *time, int64_t slots)
{
    const bench_workload *w = b->workload;
    char group[64];
    bench_row row = bench_row_default();
    snprintf(group, sizeof group, "commit, %" PRId64 " layers", w->config.layers);
    row.group = group;
    row.variant = variant;
    row.params = params;
    if (bench_verdict_to_row(&b->verdict, &row)) {
        bench_time_to_row(time, &row);
        row.bytes = 2.0 * (double)(slots * w->config.layers * 2 * w->rank_kv_heads * w->head_dim) *
                    (double)ckv_dtype_bytes(b->options->dtype); /* K and V, read and written */
    }
    bench_results_add(b->results, &row);
}

static size_t find_offsets(const bench *b, const mode *m, int64_t offsets[MAX_OFFSETS])
{
    size_t count = 0;
    for (int64_t i = 0; i < b->options->runs && m->records != NULL; i++) {
        size_t k = 0;
        while (k < count && offsets[k] != m->records[i].offset)
            k++;
        if (k == count && count == MAX_OFFSETS)
            return 0;
        if (k == count)
            offsets[count++] = m->records[i].offset;
    }
    return count;
}

/* The runs that ended at an offset; every run for -1. */
static ckv_status add_offset(const bench *b, const mode *m, int64_t offset)
{
    char params[96];
    size_t count = 0;
    int64_t slots = 0;
    bench_sample *samples = calloc((size_t)b->options->runs, sizeof *samples);
    if (samples == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    for (int64_t i = 0; i < b->options->runs && m->records != NULL; i++) {
        if (offset >= 0 && m->records[i].offset != offset)
            continue;
        slots = m->records[i].slots;
        samples[count++] = m->records[i].sample;
    }
    bench_time time = {0};
    if (count > 0)
        time = bench_time_of(samples, count);
    if (offset >= 0)
        snprintf(params, sizeof params, "offset %" PRId64 " in a page, %" PRId64 " slots a layer", offset, slots);
    else
        snprintf(params, sizeof params, "every offset");
    add_row(b, m->variant, params, &time, offset >= 0 ? slots : 0);
    free(samples);
    return CKV_OK;
}

static ckv_status add_rows(const bench *b, const mode *m)
{
    int64_t offsets[MAX_OFFSETS];
    size_t count = m->host_wall ? 0 : find_offsets(b, m, offsets);
    if (count == 0)
        return add_offset(b, m, -1);
    for (size_t i = 0; i < count; i++)
        CKV_TRY(add_offset(b, m, offsets[i]));
    return CKV_OK;
}

static ckv_status measure(bench *b, mode *m)
{
    record warm_up;
    m->records = calloc((size_t)b->options->runs, sizeof *m->records);
    if (m->records == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    CKV_TRY(bench_timer_trace(b->timer, !m->host_wall));
    CKV_TRY(commit_once(b, m->replay, &warm_up));
    for (int64_t i = 0; i < b->options->runs; i++) {
        CKV_TRY(commit_once(b, m->replay, &m->records[i]));
        if (m->host_wall)
            m->records[i].sample.us = m->records[i].sample.host_us;
    }
    return bench_workload_follow(b->workload);
}

static bool is_wanted(const bench_options *o, const mode *m)
{
    if (o->launch == (m->replay ? BENCH_EAGER : BENCH_GRAPH))
        return false;
    return o->on_gpu || !m->host_wall; /* on the host the two are one */
}

/* That every block has its exact window; before, and after as many commits. */
static ckv_status check(bench *b)
{
    CKV_TRY(ckv_cache_check(b->workload->cache, bench_timer_stream(b->timer)));
    CKV_TRY(bench_check_forward(b->workload, b->workload->chunk_tokens, b->options->backend, &b->verdict));
    return CKV_OK;
}

static ckv_status measure_all(bench *b)
{
    CKV_TRY(check(b));
    if (b->options->launch != BENCH_EAGER) {
        CKV_TRY(bench_graph_create(b->timer, commit_eager, b->workload, &b->graph));
        bench_results_fact(b->results, "launches of a commit", "%" PRId64, bench_graph_launches(b->graph));
    }
    for (int i = 0; i < NUM_MODES && b->verdict.ok; i++)
        if (is_wanted(b->options, &b->modes[i]))
            CKV_TRY(measure(b, &b->modes[i]));
    if (b->verdict.ok)
        CKV_TRY(check(b));
    for (int i = 0; i < NUM_MODES; i++)
        if (is_wanted(b->options, &b->modes[i]))
            CKV_TRY(add_rows(b, &b->modes[i]));
    return CKV_OK;
}

static ckv_status run(bench *b)
{
    CKV_TRY(bench_timer_create(b->options, &b->timer));
    const bench_workload_config config = bench_workload_of_model(b->options, b->timer, CHUNKS_PAST_WINDOW);
    CKV_TRY(bench_workload_create(&config, &b->workload));
    CKV_TRY(measure_all(b));
    bench_timer_facts(b->timer, b->results);
    return CKV_OK;
}

int bench_commit(const bench_options *options, bench_results *results)
{
    bench b = {.options = options, .results = results};
    memcpy(b.modes, usual_modes, sizeof b.modes);
    int code = bench_exit_code(options, run(&b));
    for (int i = 0; i < NUM_MODES; i++)
        free(b.modes[i].records);
    bench_graph_destroy(&b.graph);
    bench_workload_destroy(&b.workload);
    bench_timer_destroy(&b.timer);
    return code;
}
