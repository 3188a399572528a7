/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/check.h"

#include "lib/support/error.h"
#include "tools/trace/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLED_ROWS = 9 }; /* over all ranks, and at least two on each that has so many */

struct bench_check {
    const bench_workload *workload;
    int64_t layer, checked, block;
    int64_t rows[SAMPLED_ROWS]; /* of the forward; those of this rank */
    int64_t num_rows;
    double *exact; /* [chunk_tokens, q_heads, head_dim]; only the sampled rows are written */
    double largest, page_aligned_error;
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

static ckv_reference_forward reference_forward(const bench_check *c, double *out)
{
    const bench_workload *w = c->workload;
    const ckv_attention_args args = bench_forward_args(&(bench_forward){.workload = w, .block = c->block}, c->layer);
    const void *qkv = bench_workload_host_qkv(w, c->layer);
    ckv_reference_forward forward = ckv_reference_forward_default();
    forward.layer = c->checked;
    forward.seq_len = w->chunk_tokens;
    forward.causal_block_size = c->block;
    forward.q = qkv;
    forward.q_token_stride = args.q_token_stride;
    forward.q_head_stride = args.q_head_stride;
    forward.kv = bench_workload_all_kv(w, qkv);
    forward.out = out;
    forward.rows = c->rows;
    forward.num_rows = c->num_rows;
    return forward;
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

static ckv_status run_reference(bench_check *c, double *aligned, int64_t *extra)
{
    const bench_workload *w = c->workload;
    const int64_t row_elements = w->q_heads * w->head_dim;
    count_extra_keys(c, extra);
    ckv_reference_forward forward = reference_forward(c, aligned);
    forward.extra_window_tokens = extra;
    CKV_TRY(ckv_reference_run(w->reference, &forward));
    forward = reference_forward(c, c->exact);
    CKV_TRY(ckv_reference_run(w->reference, &forward));
    for (int64_t i = 0; i < c->num_rows; i++) {
        for (int64_t j = c->rows[i] * row_elements; j < (c->rows[i] + 1) * row_elements; j++) {
            c->largest = fmax(c->largest, fabs(c->exact[j]));
            c->page_aligned_error = fmax(c->page_aligned_error, fabs(aligned[j] - c->exact[j]));
        }
    }
    return CKV_OK;
}

static ckv_status share_largest(const bench_options *o, double values[2])
{
    int ranks = ckv_comm_size(o->host);
    double(*all)[2] = calloc((size_t)ranks, sizeof *all);
    if (all == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    ckv_status status = ckv_comm_all_gather(o->host, values, sizeof *all, all);
    for (int rank = 0; rank < ranks && status == CKV_OK; rank++)
        for (int i = 0; i < 2; i++)
            values[i] = fmax(values[i], all[rank][i]);
    free(all);
    return status;
}

ckv_status bench_check_create(const bench_workload *workload, int64_t checked, int64_t block, bench_check **check_out)
{
    size_t elements = (size_t)(workload->chunk_tokens * workload->q_heads * workload->head_dim);
    bench_check *c = calloc(1, sizeof *c);
    double *aligned = calloc(elements, sizeof *aligned);
    int64_t *extra = calloc((size_t)(workload->chunk_tokens / block + 1), sizeof *extra);
    ckv_status status = CKV_OK;
    if (c != NULL) {
        *c = (bench_check){
            .workload = workload, .layer = workload->checked[checked], .checked = checked, .block = block};
        c->exact = calloc(elements, sizeof *c->exact);
    }
    if (c == NULL || c->exact == NULL || aligned == NULL || extra == NULL)
        status = ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    if (status == CKV_OK) {
        choose_rows(c);
        status = run_reference(c, aligned, extra);
    }
    status = ckv_comm_agree(workload->config.options->host, status);
    if (status == CKV_OK) {
        double values[2] = {c->largest, c->page_aligned_error};
        status = share_largest(workload->config.options, values);
        c->largest = values[0];
        c->page_aligned_error = values[1];
    }
    free(aligned);
    free(extra);
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

double bench_check_page_aligned_error(const bench_check *check)
{
    return check->page_aligned_error;
}

static double row_error(const bench_check *c, const char *observed, int64_t row)
{
    const bench_workload *w = c->workload;
    const ckv_dtype dtype = w->config.options->dtype;
    const int64_t elements = w->q_heads * w->head_dim;
    const char *values = observed + (size_t)((row - w->first_row) * elements) * ckv_dtype_bytes(dtype);
    double largest = 0;
    for (int64_t i = 0; i < elements; i++) {
        float value;
        ckv_convert_to_float(dtype, values + (size_t)i * ckv_dtype_bytes(dtype), 1, &value);
        double error = fabs((double)value - c->exact[row * elements + i]);
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
    double values[2] = {0, 0};
    char *observed = malloc(bytes);
    ckv_status status = observed == NULL ? ckv_fail(CKV_ERROR_MEMORY, "out of memory") : CKV_OK;
    if (status == CKV_OK)
        status = run_once(check, work, argument, out, observed, bytes);
    for (int64_t i = 0; i < check->num_rows && status == CKV_OK; i++)
        values[0] = fmax(values[0], row_error(check, observed, check->rows[i]));
    free(observed);
    CKV_TRY(ckv_comm_agree(o->host, status));
    CKV_TRY(share_largest(o, values));
    double tolerance = o->tolerance >= 0 ? o->tolerance : session_default_tolerance(o->dtype, check->largest);
    *verdict_out = (bench_verdict){.error = values[0], .tolerance = tolerance, .ok = values[0] <= tolerance};
    return CKV_OK;
}

ckv_status bench_check_forward(const bench_workload *workload, int64_t block, const char *backend,
                               bench_verdict *verdict_out, double *page_aligned_out)
{
    bench_verdict worst = {.ok = true};
    *page_aligned_out = 0;
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
        *page_aligned_out = fmax(*page_aligned_out, check->page_aligned_error);
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
