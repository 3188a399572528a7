/* SPDX-License-Identifier: Apache-2.0 */
/* ckv bench attention: one layer's forward, K/V write included, by every backend; over pages in order; and over
 * contiguous memory. */
#include "lib/support/error.h"
#include "tools/bench/baselines.h"
#include "tools/bench/check.h"
#include "tools/bench/cudnn_contiguous.h"
#include "tools/common/cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHUNKS_PAST_WINDOW = 3, MAX_POINTS = 8 };

/* One geometry of a sweep, or the only one. */
typedef struct point {
    int64_t window_frames, page;
    int64_t blocks[2];
    size_t num_blocks;
    const char *x_name; /* NULL: no sweep */
    double x;
} point;

typedef struct bench {
    const bench_options *options;
    bench_results *results;
    bench_timer *timer;
    point points[MAX_POINTS];
    size_t num_points;
    const point *point; /* the one being measured */
    bench_workload *workload;
    int64_t block;
    const bench_check *check;
    bool in_graph;
    bool has_baselines; /* one rank, a GPU, cuDNN, and no other backend asked for */
} bench;

/* What is timed. */
typedef struct subject {
    const char *variant;
    bench_work work;
    void *argument;
    void *out;
    const char *note; /* "": none */
} subject;

static void describe(const bench *b, char *group, size_t group_bytes, char *params, size_t params_bytes)
{
    const bench_workload *w = b->workload;
    int64_t blocks = w->chunk_tokens / b->block;
    const char *launch = b->in_graph ? "graph" : "eager";
    if (b->point->x_name != NULL)
        snprintf(group, group_bytes, "attention by %s, %s", b->point->x_name, launch);
    else
        snprintf(group, group_bytes, "attention, %" PRId64 " block%s of %" PRId64 ", %s", blocks,
                 blocks == 1 ? "" : "s", b->block, launch);
    snprintf(params, params_bytes, "tokens %" PRId64 ", keys %" PRId64 ", page %" PRId64, w->chunk_tokens,
             bench_workload_keys(w, b->block), b->point->page);
}

/* What the others are compared with: the first of these that is measured. */
static const char *baseline_of(const bench *b)
{
    if (b->has_baselines)
        return b->block == b->workload->chunk_tokens ? "cudnn contiguous" : "cudnn called directly";
    return b->options->backend != NULL ? b->options->backend : b->options->on_gpu ? "hopper" : "host";
}

static void add_row(const bench *b, const subject *s, const bench_verdict *verdict, const bench_time *time)
{
    char group[96], params[96], note[96];
    const bench_workload *w = b->workload;
    bench_row row = bench_row_default();
    describe(b, group, sizeof group, params, sizeof params);
    row.group = group;
    row.variant = s->variant;
    row.params = params;
    row.x_name = b->point->x_name;
    row.x = b->point->x;
    row.baseline = strcmp(baseline_of(b), s->variant) != 0 ? baseline_of(b) : NULL;
    if (bench_verdict_to_row(verdict, &row)) {
        bench_time_to_row(time, &row);
        row.flops = 4.0 * (double)w->chunk_tokens * (double)bench_workload_keys(w, b->block) *
                    (double)(w->q_heads * w->head_dim) / w->ranks;
        snprintf(note, sizeof note, "%s%shost %.1f us", s->note, s->note[0] != '\0' ? ", " : "", time->host_us);
        row.note = b->options->on_gpu && !b->in_graph ? note : s->note[0] != '\0' ? s->note : NULL;
    }
    bench_results_add(b->results, &row);
}

static ckv_status measure(const bench *b, const subject *s)
{
    bench_verdict verdict;
    bench_time time = {0};
    CKV_TRY(bench_check_run(b->check, s->work, s->argument, s->out, &verdict));
    if (verdict.ok)
        CKV_TRY((b->in_graph ? bench_timer_measure_graph : bench_timer_measure)(b->timer, s->work, s->argument, &time));
    add_row(b, s, &verdict, &time);
    return CKV_OK;
}

/* Whether a backend takes the call as one rank makes it; why not, when it was asked for by name. */
static ckv_status supports(const bench *b, const char *backend, bool *supported_out)
{
    const bench_workload *w = b->workload;
    ckv_attention_args args = bench_forward_args(&(bench_forward){.workload = w, .block = b->block}, 0);
    args.q_heads /= w->ranks;
    args.rows = args.seq_len;
    ckv_status status = ckv_attention_supports(backend, &args);
    *supported_out = status == CKV_OK;
    return b->options->backend == NULL && status == CKV_ERROR_UNSUPPORTED ? CKV_OK : status;
}

static ckv_status measure_backends(const bench *b, const char *suffix)
{
    for (size_t i = 0; i < ckv_attention_num_backends(); i++) {
        char variant[64];
        bool supported = false;
        const char *name = ckv_attention_backend_name(i);
        if (b->options->backend != NULL && strcmp(b->options->backend, name) != 0)
            continue;
        CKV_TRY(supports(b, name, &supported));
        if (!supported)
            continue;
        bench_forward forward = {.workload = b->workload, .num_layers = 1, .block = b->block, .backend = name};
        snprintf(variant, sizeof variant, "%s%s", name, suffix);
        CKV_TRY(measure(b, &(subject){variant, bench_forward_run, &forward, b->workload->device_out, ""}));
    }
    return CKV_OK;
}

static ckv_status measure_contiguous(const bench *b)
{
    bench_baselines *baselines = NULL;
    CKV_TRY(bench_baselines_create(b->workload, &baselines));
    void *out = bench_baselines_out(baselines);
    ckv_status status =
        measure(b, &(subject){"cudnn contiguous", bench_contiguous_run, baselines, out, "no K/V write"});
    if (status == CKV_OK)
        status = measure(b, &(subject){"concatenate, cudnn contiguous", bench_concatenate_run, baselines, out, ""});
    bench_baselines_destroy(&baselines);
    return status;
}

static ckv_status measure_paged(const bench *b)
{
    bench_paged *paged = NULL;
    CKV_TRY(bench_paged_create(b->workload, b->block, &paged));
    ckv_status status = measure(
        b, &(subject){"cudnn called directly", bench_paged_run, paged, b->workload->device_out, "no K/V write"});
    bench_paged_destroy(&paged);
    return status;
}

static ckv_status measure_baselines(const bench *b)
{
    ckv_status status = b->block == b->workload->chunk_tokens ? measure_contiguous(b) : CKV_OK;
    if (status == CKV_OK)
        status = measure_paged(b);
    if (status != CKV_ERROR_UNSUPPORTED)
        return status;
    bench_results_fact(b->results, "cudnn", "not measured at every shape: %s", ckv_last_error());
    return CKV_OK;
}

static ckv_status add_page_aligned(const bench *b)
{
    char group[96], params[96];
    bench_row row = bench_row_default();
    describe(b, group, sizeof group, params, sizeof params);
    row.group = group;
    row.variant = "a window rounded down to a page";
    row.params = params;
    row.x_name = b->point->x_name;
    row.x = b->point->x;
    CKV_TRY(bench_check_page_aligned(b->check, &row.max_error));
    row.note = "the mistake's size; not timed";
    bench_results_add(b->results, &row);
    return CKV_OK;
}

/* Once, and where the page matters. */
static bool shows_page_aligned(const bench *b)
{
    const bench_options *o = b->options;
    return (!b->in_graph || o->launch == BENCH_GRAPH) && (o->sweep == BENCH_SWEEP_NONE || o->sweep == BENCH_SWEEP_PAGE);
}

static ckv_status measure_block(bench *b, int64_t block, bool in_order)
{
    bench_check *check = NULL;
    b->block = block;
    CKV_TRY(bench_check_create(b->workload, 0, block, &check));
    b->check = check;
    ckv_status status = measure_backends(b, in_order ? ", pages in order" : "");
    if (status == CKV_OK && !in_order && b->has_baselines)
        status = measure_baselines(b);
    if (status == CKV_OK && !in_order && shows_page_aligned(b))
        status = add_page_aligned(b);
    bench_check_destroy(&check);
    return status;
}

/* Pages are in order until the window first moves. */
static ckv_status measure_rollout(bench *b, bool in_order)
{
    bench_workload_config config = {.options = b->options,
                                    .timer = b->timer,
                                    .window_frames = b->point->window_frames,
                                    .page = b->point->page,
                                    .layers = 1,
                                    .num_block_sizes = b->point->num_blocks,
                                    .chunks_past_window = in_order ? 0 : CHUNKS_PAST_WINDOW};
    memcpy(config.block_sizes, b->point->blocks, sizeof b->point->blocks);
    CKV_TRY(bench_workload_create(&config, &b->workload));
    ckv_status status = CKV_OK;
    for (size_t i = 0; i < b->point->num_blocks && status == CKV_OK; i++)
        status = measure_block(b, b->point->blocks[i], in_order);
    bench_workload_destroy(&b->workload);
    return status;
}

static size_t sweep_window(const bench_options *o, point points[MAX_POINTS])
{
    const model_geometry *g = &o->geometry;
    size_t count = 0;
    for (int64_t parts = 8; parts >= 1; parts /= 2) {
        if (g->window_frames / parts == 0)
            continue;
        points[count] = points[0];
        points[count].window_frames = g->window_frames / parts;
        points[count].x_name = "window, tokens";
        points[count].x = (double)(points[count].window_frames * g->frame_tokens);
        count++;
    }
    return count;
}

static size_t sweep_page(point points[MAX_POINTS])
{
    size_t count = 0;
    for (int64_t page = 16; page <= 256; page *= 2) {
        points[count] = points[0];
        points[count].page = page;
        points[count].x_name = "page, tokens";
        points[count++].x = (double)page;
    }
    return count;
}

static size_t sweep_blocks(int64_t chunk_tokens, point points[MAX_POINTS])
{
    size_t count = 0;
    for (int64_t blocks = 1; blocks <= 32 && chunk_tokens % blocks == 0; blocks *= 2) {
        points[count] = points[0];
        points[count].blocks[0] = chunk_tokens / blocks;
        points[count].x_name = "causal blocks";
        points[count++].x = (double)blocks;
    }
    return count;
}

static size_t make_points(const bench_options *o, point points[MAX_POINTS])
{
    const model_geometry *g = &o->geometry;
    int64_t chunk = g->chunk_frames * g->frame_tokens;
    bool both = o->sweep == BENCH_SWEEP_NONE && g->clean_in_frames && g->chunk_frames > 1;
    points[0] = (point){.window_frames = g->window_frames,
                        .page = o->page,
                        .blocks = {chunk, g->frame_tokens},
                        .num_blocks = both ? 2 : 1};
    switch (o->sweep) {
    case BENCH_SWEEP_WINDOW:
        return sweep_window(o, points);
    case BENCH_SWEEP_PAGE:
        return sweep_page(points);
    case BENCH_SWEEP_BLOCKS:
        return sweep_blocks(chunk, points);
    default:
        return 1;
    }
}

static ckv_status measure_points(bench *b)
{
    for (size_t i = 0; i < b->num_points; i++) {
        b->point = &b->points[i];
        CKV_TRY(measure_rollout(b, false));
        if (b->options->sweep == BENCH_SWEEP_NONE)
            CKV_TRY(measure_rollout(b, true));
    }
    return CKV_OK;
}

/* Everything eager first: graphs are traced, which makes calls on the host slower, and some of that stays. */
static ckv_status run(bench *b)
{
    CKV_TRY(bench_timer_create(b->options, &b->timer));
    if (b->options->launch != BENCH_GRAPH)
        CKV_TRY(measure_points(b));
    b->in_graph = true;
    if (b->options->launch != BENCH_EAGER)
        CKV_TRY(measure_points(b));
    bench_timer_facts(b->timer, b->results);
    return CKV_OK;
}

int bench_attention(const bench_options *options, bench_results *results)
{
    bench b = {.options = options, .results = results};
    b.num_points = make_points(options, b.points);
    b.has_baselines = options->on_gpu && ckv_comm_size(options->comm) == 1 && cudnn_version_text()[0] != '\0' &&
                      (options->backend == NULL || strcmp(options->backend, "cudnn") == 0);
    if (cudnn_version_text()[0] != '\0')
        bench_results_fact(results, "cuDNN", "%s", cudnn_version_text());
    int code = bench_exit_code(options, run(&b));
    bench_timer_destroy(&b.timer);
    return code;
}
