/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/check.h"

#include "lib/support/error.h"
#include "tools/trace/session.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLED_ROWS = 9 }; /* over all ranks, and at least two on each that has so many */

struct bench_check {
    const bench_workload *workload;
    int64_t layer, checked, block;
    int64_t rows[SAMPLED_ROWS]; /* of the forward; those of this rank */
    int64_t num_rows;
    double *exact;  /* [kv_heads][chunk_tokens][query heads of one K/V head][head_dim]; only these rows are written */
    double largest; /* of the exact values, over all ranks */
};

/* First and last real row of this rank, and some between. */
static void choose_rows(bench_check *c)
{
    const bench_workload *w = c->workload;
    int64_t real = w->chunk_tokens - w->first_row < w->rows ? w->chunk_tokens - w->first_row : w->rows;
    int64_t wanted = SAMPLED_ROWS / w->ranks > 2 ? SAMPLED_ROWS / w->ranks : 2;
    if (real <= 0)
        return;
    c->num_rows = real < wanted ? real : wanted;
    for (int64_t i = 0; i < c->num_rows; i++)
        c->rows[i] = w->first_row + (c->num_rows == 1 ? 0 : i * (real - 1) / (c->num_rows - 1));
}

static int64_t head_elements(const bench_workload *w)
{
    return w->chunk_tokens * (w->q_heads / w->kv_heads) * w->head_dim;
}

/* Keys between the start of the window and that of the page it lies in. */
static void count_extra_keys(const bench_check *c, int64_t *extra)
{
    const bench_workload *w = c->workload;
    ckv_cache_state state = ckv_cache_get_state(w->cache);
    for (int64_t block = 0; block * c->block < w->chunk_tokens; block++) {
        int64_t start = state.staging_offset + block * c->block - state.window_tokens;
        int64_t aligned = start > 0 ? start / w->config.page * w->config.page : 0;
        int64_t lowest = aligned > state.fixed_tokens ? aligned : state.fixed_tokens;
        extra[block] = start > lowest ? start - lowest : 0;
    }
}

/* Some K/V heads, on a thread. */
typedef struct worker {
    pthread_t thread;
    bool started;
    const bench_check *check;
    double *out;
    const int64_t *extra;
    int64_t first, step; /* heads first, first + step, ... */
    ckv_status status;
    problem why;
} worker;

static ckv_status run_head(const worker *k, int64_t head)
{
    const bench_check *c = k->check;
    const bench_workload *w = c->workload;
    const char *qkv = bench_workload_host_qkv(w, c->layer);
    const int64_t group = w->q_heads / w->kv_heads;
    ckv_reference_forward forward = ckv_reference_forward_default();
    forward.layer = c->checked;
    forward.seq_len = w->chunk_tokens;
    forward.causal_block_size = c->block;
    forward.q = qkv + (size_t)(head * group * w->head_dim) * ckv_dtype_bytes(w->config.options->dtype);
    forward.kv = bench_workload_kv(w, qkv, head);
    forward.q_token_stride = forward.kv.k_token_stride;
    forward.q_head_stride = w->head_dim;
    forward.out = k->out + head * head_elements(w);
    forward.rows = c->rows;
    forward.num_rows = c->num_rows;
    forward.extra_window_tokens = k->extra;
    return ckv_reference_run(w->references[head], &forward);
}

static void *run_worker(void *argument)
{
    worker *k = argument;
    for (int64_t head = k->first; head < k->check->workload->kv_heads && k->status == CKV_OK; head += k->step)
        k->status = run_head(k, head);
    if (k->status != CKV_OK)
        problem_format(&k->why, "%s", ckv_last_error());
    return NULL;
}

/* The job's heads, every one on its own CPU as far as there are so many. A thread that cannot be started is done here.
 */
static ckv_status run_references(const worker *job)
{
    const bench_check *c = job->check;
    int64_t cpus = sysconf(_SC_NPROCESSORS_ONLN), count = c->workload->kv_heads < cpus ? c->workload->kv_heads : cpus;
    if (c->num_rows == 0)
        return CKV_OK;
    count = count < 1 ? 1 : count;
    worker *workers = calloc((size_t)count, sizeof *workers);
    if (workers == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    for (int64_t i = 0; i < count; i++) {
        workers[i] = *job;
        workers[i].first = i;
        workers[i].step = count;
        workers[i].started = i > 0 && pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0;
    }
    ckv_status status = CKV_OK;
    for (int64_t i = 0; i < count; i++)
        if (!workers[i].started)
            run_worker(&workers[i]);
    for (int64_t i = 0; i < count; i++) {
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
        if (workers[i].status != CKV_OK)
            status = ckv_fail(workers[i].status, "%s", workers[i].why.text);
    }
    free(workers);
    return status;
}

/* The largest |left - right| over this rank's sampled rows. */
static double largest_difference(const bench_check *c, const double *left, const double *right)
{
    const bench_workload *w = c->workload;
    const int64_t row_elements = head_elements(w) / w->chunk_tokens;
    double largest = 0;
    for (int64_t head = 0; head < w->kv_heads; head++) {
        for (int64_t i = 0; i < c->num_rows; i++) {
            const int64_t first = head * head_elements(w) + c->rows[i] * row_elements;
            for (int64_t j = first; j < first + row_elements; j++)
                largest = fmax(largest, fabs(left[j] - (right == NULL ? 0 : right[j])));
        }
    }
    return largest;
}

/* Over all ranks. */
static ckv_status share_largest(const bench_options *o, double *value)
{
    int ranks = ckv_comm_size(o->host);
    double *all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    ckv_status status = ckv_comm_all_gather(o->host, value, sizeof *value, all);
    for (int rank = 0; rank < ranks && status == CKV_OK; rank++)
        *value = fmax(*value, all[rank]);
    free(all);
    return status;
}

static double *alloc_outputs(const bench_workload *w)
{
    return calloc((size_t)(w->kv_heads * head_elements(w)), sizeof(double));
}

ckv_status bench_check_create(const bench_workload *workload, int64_t checked, int64_t block, bench_check **check_out)
{
    const bench_options *o = workload->config.options;
    bench_check *c = calloc(1, sizeof *c);
    if (c == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    *c = (bench_check){.workload = workload,
                       .layer = workload->checked[checked],
                       .checked = checked,
                       .block = block,
                       .exact = alloc_outputs(workload)};
    ckv_status status = c->exact == NULL ? ckv_fail(CKV_ERROR_MEMORY, "out of memory") : CKV_OK;
    if (status == CKV_OK) {
        choose_rows(c);
        status = run_references(&(worker){.check = c, .out = c->exact});
    }
    status = ckv_comm_agree(o->host, status);
    if (status == CKV_OK) {
        c->largest = largest_difference(c, c->exact, NULL);
        status = share_largest(o, &c->largest);
    }
    if (status == CKV_OK)
        *check_out = c;
    else
        bench_check_destroy(&c);
    return status;
}

void bench_check_destroy(bench_check **check)
{
    if (check == NULL || *check == NULL)
        return;
    free((*check)->exact);
    free(*check);
    *check = NULL;
}

ckv_status bench_check_page_aligned(const bench_check *check, double *error_out)
{
    const bench_workload *w = check->workload;
    double *aligned = alloc_outputs(w), error = 0;
    int64_t *extra = calloc((size_t)(w->chunk_tokens / check->block + 1), sizeof *extra);
    ckv_status status = aligned == NULL || extra == NULL ? ckv_fail(CKV_ERROR_MEMORY, "out of memory") : CKV_OK;
    if (status == CKV_OK) {
        count_extra_keys(check, extra);
        status = run_references(&(worker){.check = check, .out = aligned, .extra = extra});
    }
    if (status == CKV_OK)
        error = largest_difference(check, aligned, check->exact);
    free(extra);
    free(aligned);
    CKV_TRY(ckv_comm_agree(w->config.options->host, status));
    CKV_TRY(share_largest(w->config.options, &error));
    *error_out = error;
    return CKV_OK;
}

static double row_error(const bench_check *c, const char *observed, int64_t row)
{
    const bench_workload *w = c->workload;
    const ckv_dtype dtype = w->config.options->dtype;
    const int64_t elements = w->q_heads * w->head_dim, group = elements / w->kv_heads;
    const char *values = observed + (size_t)((row - w->first_row) * elements) * ckv_dtype_bytes(dtype);
    double largest = 0;
    for (int64_t i = 0; i < elements; i++) {
        float value;
        ckv_convert_to_float(dtype, values + (size_t)i * ckv_dtype_bytes(dtype), 1, &value);
        double error = fabs((double)value - c->exact[i / group * head_elements(w) + row * group + i % group]);
        largest = isnan(error) ? INFINITY : fmax(largest, error);
    }
    return largest;
}

/* `observed` goes to the device as NaN and comes back as what was written. */
static ckv_status run_once(const bench_check *c, bench_work work, void *argument, void *out, char *observed,
                           size_t bytes)
{
    const bench_workload_config *config = &c->workload->config;
    const ckv_device *device = config->options->device;
    memset(observed, 0xff, bytes);
    CKV_TRY(ckv_device_upload(device, out, observed, bytes, bench_timer_stream(config->timer)));
    CKV_TRY(work(argument, bench_timer_stream(config->timer)));
    CKV_TRY(bench_timer_wait(config->timer));
    return ckv_device_download(device, observed, out, bytes, bench_timer_stream(config->timer));
}

ckv_status bench_check_run(const bench_check *check, bench_work work, void *argument, void *out,
                           bench_verdict *verdict_out)
{
    const bench_workload *w = check->workload;
    const bench_options *o = w->config.options;
    size_t bytes = (size_t)(w->rows * w->q_heads * w->head_dim) * ckv_dtype_bytes(o->dtype);
    double error = 0;
    char *observed = malloc(bytes);
    ckv_status status = observed == NULL ? ckv_fail(CKV_ERROR_MEMORY, "out of memory") : CKV_OK;
    if (status == CKV_OK)
        status = run_once(check, work, argument, out, observed, bytes);
    for (int64_t i = 0; i < check->num_rows && status == CKV_OK; i++)
        error = fmax(error, row_error(check, observed, check->rows[i]));
    free(observed);
    CKV_TRY(ckv_comm_agree(o->host, status));
    CKV_TRY(share_largest(o, &error));
    double tolerance = o->tolerance >= 0 ? o->tolerance : session_default_tolerance(o->dtype, check->largest);
    *verdict_out = (bench_verdict){.error = error, .tolerance = tolerance, .ok = error <= tolerance};
    return CKV_OK;
}

ckv_status bench_check_forward(const bench_workload *workload, int64_t block, const char *backend,
                               bench_verdict *verdict_out)
{
    bench_verdict worst = {.ok = true};
    for (int64_t i = 0; i < workload->num_checked; i++) {
        bench_check *check = NULL;
        bench_verdict verdict;
        bench_forward forward = {.workload = workload,
                                 .first_layer = workload->checked[i],
                                 .num_layers = 1,
                                 .block = block,
                                 .backend = backend};
        CKV_TRY(bench_check_create(workload, i, block, &check));
        ckv_status status = bench_check_run(check, bench_forward_run, &forward, workload->device_out, &verdict);
        bench_check_destroy(&check);
        CKV_TRY(status);
        if (i == 0 || (worst.ok && (!verdict.ok || verdict.error > worst.error)))
            worst = verdict;
    }
    *verdict_out = worst;
    return CKV_OK;
}

bool bench_verdict_to_row(const bench_verdict *verdict, bench_row *row)
{
    static char note[96];
    row->max_error = verdict->error;
    row->failed = !verdict->ok;
    if (row->failed) {
        snprintf(note, sizeof note, "wrong: off by %.2g, %.2g is allowed", verdict->error, verdict->tolerance);
        row->note = note;
    }
    return verdict->ok;
}
