/* SPDX-License-Identifier: Apache-2.0 */
/* One forward of a session: shard, attend, compare with the exact window, agree on the verdict. */
#include "tools/trace/session.h"
#include "tools/trace/session_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* This rank's part of a forward. */
typedef struct part {
    const session_forward *forward;
    int64_t rows;  /* of each rank */
    int64_t first; /* this rank's first row */
    int64_t block; /* causal block size, resolved */
    int64_t num_blocks;
    void *out; /* [rows, q_heads, head_dim], host */
    size_t out_bytes;
    const int64_t *compared; /* rows of the forward this rank compares */
    int64_t num_compared;
} part;

/* What a rank tells the others about its part. */
typedef struct record {
    ckv_status status;
    problem why;
    session_difference output, expected;
    double largest; /* |value| of the exact result */
    double page_aligned_error;
    double seconds;
} record;

static ckv_status out_of_memory(problem *why)
{
    problem_format(why, "out of memory");
    return CKV_ERROR_MEMORY;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double difference(double observed, double wanted)
{
    if (isnan(observed) || isnan(wanted))
        return isnan(observed) && isnan(wanted) ? 0 : INFINITY;
    return observed == wanted ? 0 : fabs(observed - wanted); /* equal infinities included */
}

/* The rows of this rank where they lie in `tensor`, or in a copy that continues with NaN where it ends; NULL when out
 * of memory. */
static const void *shard_rows(session *s, const part *p, const void *tensor, size_t row_bytes)
{
    int64_t present = p->forward->rows - p->first;
    const char *begin = (const char *)tensor + (size_t)(present > 0 ? p->first : 0) * row_bytes;
    if (present >= p->rows)
        return begin;
    size_t copied = present > 0 ? (size_t)present * row_bytes : 0, bytes = (size_t)p->rows * row_bytes;
    char *copy = session_reserve(&s->shard, bytes);
    if (copy == NULL)
        return NULL;
    memcpy(copy, begin, copied);
    memset(copy + copied, 0xff, bytes - copied); /* NaN in every dtype */
    return copy;
}

/* Every sample_rows-th part of each causal block, first and last row included; of those, the ones this rank holds. */
static bool choose_rows(session *s, part *p)
{
    int64_t seq_len = p->forward->seq_len, end = p->first + p->rows < seq_len ? p->first + p->rows : seq_len;
    int64_t samples = s->config.sample_rows <= 0 || s->config.sample_rows > p->block ? p->block : s->config.sample_rows;
    int64_t *rows = session_reserve(&s->sampled, (size_t)p->rows * sizeof *rows);
    if (rows == NULL)
        return false;
    for (int64_t block = p->first / p->block; block * p->block < end; block++) {
        for (int64_t i = 0; i < samples; i++) {
            int64_t row = block * p->block + (samples == 1 ? p->block - 1 : i * (p->block - 1) / (samples - 1));
            if (row >= p->first && row < end)
                rows[p->num_compared++] = row;
        }
    }
    p->compared = rows;
    return true;
}

/* Also what `out` holds, so that a row nobody writes shows. */
static ckv_status upload_shard(session *s, const part *p, problem *why)
{
    const session_forward *forward = p->forward;
    size_t q_bytes = (size_t)s->q_row * s->element_bytes, kv_bytes = (size_t)s->kv_row * s->element_bytes;
    const struct {
        session_buffer *buffer;
        const void *tensor;
        size_t row_bytes;
    } inputs[] = {{&s->device_q, forward->q, q_bytes},
                  {&s->device_k, forward->k, kv_bytes},
                  {&s->device_v, forward->v, kv_bytes}};
    ckv_status status = session_upload(s, &s->device_out, p->out, p->out_bytes);
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0] && status == CKV_OK; i++) {
        const void *rows = shard_rows(s, p, inputs[i].tensor, inputs[i].row_bytes);
        if (rows == NULL)
            return out_of_memory(why);
        status = session_upload(s, inputs[i].buffer, rows, (size_t)p->rows * inputs[i].row_bytes);
    }
    return session_check(status, why);
}

static ckv_status prepare(session *s, const session_forward *forward, part *p, problem *why)
{
    if (forward->seq_len < 1 || forward->seq_len > forward->rows || forward->causal_block_size < 0) {
        problem_format(why, "seq_len %lld, causal_block_size %lld: out of range for %lld rows",
                       (long long)forward->seq_len, (long long)forward->causal_block_size, (long long)forward->rows);
        return CKV_ERROR_INVALID;
    }
    p->block = forward->causal_block_size == 0 ? forward->seq_len : forward->causal_block_size;
    if (forward->seq_len % p->block != 0) {
        problem_format(why, "seq_len %lld is not a multiple of causal_block_size %lld", (long long)forward->seq_len,
                       (long long)p->block);
        return CKV_ERROR_INVALID;
    }
    p->num_blocks = forward->seq_len / p->block;
    p->rows = s->ranks == 1 ? forward->rows : ckv_ulysses_rows_per_rank(forward->seq_len, s->ranks);
    p->first = s->rank * p->rows;
    p->out_bytes = (size_t)(p->rows * s->q_row) * s->element_bytes;
    p->out = session_reserve(&s->out, p->out_bytes);
    record *records = session_reserve(&s->records, (size_t)s->ranks * sizeof *records);
    if (p->out == NULL || records == NULL || !choose_rows(s, p))
        return out_of_memory(why);
    memset(p->out, 0xff, p->out_bytes);
    return upload_shard(s, p, why);
}

/* Returns before a GPU is done. */
static ckv_status attend(session *s, const part *p, problem *why)
{
    const trace_config *model = &s->config.model;
    ckv_attention_args args = ckv_attention_args_default();
    args.cache = s->cache;
    args.layer = p->forward->layer;
    args.q_heads = model->q_heads;
    args.rows = p->rows;
    args.seq_len = p->forward->seq_len;
    args.causal_block_size = p->forward->causal_block_size;
    args.q = s->device_q.memory;
    args.kv = ckv_kv_dense(s->device_k.memory, s->device_v.memory, model->kv_heads, model->head_dim);
    args.out = s->device_out.memory;
    args.q_token_stride = args.out_token_stride = s->q_row;
    args.q_head_stride = args.out_head_stride = model->head_dim;
    args.scale = model->scale;
    args.backend = s->config.backend;
    /* Sharding over one rank adds no padding, so Ulysses refuses any; the attention below it takes what a trace has. */
    bool more_padding = s->ranks == 1 && p->rows > p->forward->seq_len;
    ckv_status status = more_padding ? ckv_attention(&args, NULL) : ckv_ulysses_attention(s->ulysses, &args, NULL);
    return session_check(status, why);
}

/* Keys a window rounded down to the start of its page would add before each causal block. */
static const int64_t *page_aligned_extra(session *s, const part *p)
{
    ckv_cache_state state = ckv_cache_get_state(s->cache);
    int64_t page = s->config.model.tokens_per_page;
    int64_t *extra = session_reserve(&s->extra, (size_t)p->num_blocks * sizeof *extra);
    for (int64_t block = 0; extra != NULL && block < p->num_blocks; block++) {
        int64_t start = state.staging_offset + block * p->block - state.window_tokens;
        int64_t aligned = start > 0 ? start / page * page : 0;
        int64_t lowest = aligned > state.fixed_tokens ? aligned : state.fixed_tokens;
        extra[block] = start > lowest ? start - lowest : 0;
    }
    return extra;
}

static ckv_reference_forward reference_forward(const session *s, const part *p, double *out)
{
    ckv_reference_forward forward = ckv_reference_forward_default();
    forward.layer = p->forward->layer;
    forward.seq_len = p->forward->seq_len;
    forward.causal_block_size = p->forward->causal_block_size;
    forward.q = p->forward->q;
    forward.q_token_stride = s->q_row;
    forward.q_head_stride = s->config.model.head_dim;
    forward.kv = ckv_kv_dense(p->forward->k, p->forward->v, s->config.model.kv_heads, s->config.model.head_dim);
    forward.out = out;
    forward.rows = p->compared;
    forward.num_rows = p->num_compared;
    return forward;
}

/* The exact window is run last: an explanation refers to the last run. */
static ckv_status run_reference(session *s, const part *p, problem *why)
{
    size_t bytes = (size_t)(p->forward->seq_len * s->q_row) * sizeof(double);
    double *exact = session_reserve(&s->exact, bytes);
    if (exact == NULL)
        return out_of_memory(why);
    ckv_status status = CKV_OK;
    if (s->config.measure_page_aligned) {
        double *aligned = session_reserve(&s->aligned, bytes);
        ckv_reference_forward forward = reference_forward(s, p, aligned);
        forward.extra_window_tokens = page_aligned_extra(s, p);
        if (aligned == NULL || forward.extra_window_tokens == NULL)
            return out_of_memory(why);
        status = ckv_reference_run(s->reference, &forward);
    }
    if (status == CKV_OK) {
        ckv_reference_forward forward = reference_forward(s, p, exact);
        status = ckv_reference_run(s->reference, &forward);
    }
    return session_check(status, why);
}

/* Keep the largest difference of a row; `wanted` NULL: the row must be zero. */
static void compare_row(const session *s, int64_t row, const float *observed, const double *wanted,
                        session_difference *worst)
{
    int64_t head_dim = s->config.model.head_dim, heads_per_rank = s->config.model.q_heads / s->ranks;
    for (int64_t i = 0; i < s->q_row; i++) {
        double target = wanted == NULL ? 0 : wanted[i];
        double error = difference(observed[i], target);
        if (error > worst->error)
            *worst = (session_difference){
                .error = error,
                .row = row,
                .head = i / head_dim,
                .channel = i % head_dim,
                .rank = (int)(i / head_dim / heads_per_rank),
                .observed = observed[i],
                .wanted = target,
            };
    }
}

static void load_row(const session *s, const void *tensor, int64_t row, float *floats)
{
    const char *source = (const char *)tensor + (size_t)(row * s->q_row) * s->element_bytes;
    ckv_convert_to_float(s->config.model.dtype, source, (size_t)s->q_row, floats);
}

static ckv_status compare(session *s, const part *p, record *mine, problem *why)
{
    float *floats = session_reserve(&s->floats, (size_t)s->q_row * sizeof *floats);
    if (floats == NULL)
        return out_of_memory(why);
    for (int64_t n = 0; n < p->num_compared; n++) {
        int64_t row = p->compared[n];
        const double *exact = (const double *)s->exact.memory + row * s->q_row;
        load_row(s, p->out, row - p->first, floats);
        compare_row(s, row, floats, exact, &mine->output);
        if (p->forward->expected != NULL) {
            load_row(s, p->forward->expected, row, floats);
            compare_row(s, row, floats, exact, &mine->expected);
        }
        for (int64_t i = 0; i < s->q_row; i++)
            if (isfinite(exact[i]))
                mine->largest = fmax(mine->largest, fabs(exact[i]));
        for (int64_t i = 0; s->config.measure_page_aligned && i < s->q_row; i++) {
            double aligned = ((const double *)s->aligned.memory)[row * s->q_row + i];
            mine->page_aligned_error = fmax(mine->page_aligned_error, difference(aligned, exact[i]));
        }
    }
    int64_t padding = p->forward->seq_len > p->first ? p->forward->seq_len : p->first;
    for (int64_t row = padding; row < p->first + p->rows; row++) {
        load_row(s, p->out, row - p->first, floats);
        compare_row(s, row, floats, NULL, &mine->output);
    }
    return CKV_OK;
}

static void keep_worst(session_difference *worst, const session_difference *other)
{
    if (other->error > worst->error)
        *worst = *other;
}

/* All records in rank order become one result; the failure of any rank becomes everyone's. */
static ckv_status share(session *s, const record *mine, session_result *result, problem *why)
{
    record *all = s->records.memory;
    ckv_status status = session_check(ckv_comm_all_gather(s->comm, mine, sizeof *mine, all), why);
    if (status != CKV_OK)
        return status;
    double largest = 0;
    for (int rank = 0; rank < s->ranks; rank++) {
        if (all[rank].status != CKV_OK) {
            problem_format(why, "rank %d: %s", rank, all[rank].why.text);
            return all[rank].status;
        }
        keep_worst(&result->output, &all[rank].output);
        keep_worst(&result->expected, &all[rank].expected);
        largest = fmax(largest, all[rank].largest);
        result->page_aligned_error = fmax(result->page_aligned_error, all[rank].page_aligned_error);
        result->seconds = fmax(result->seconds, all[rank].seconds);
    }
    bool is_default = s->config.tolerance < 0;
    result->tolerance = is_default ? session_default_tolerance(s->config.model.dtype, largest) : s->config.tolerance;
    result->output_ok = result->output.error <= result->tolerance;
    result->expected_ok = result->expected.error <= result->tolerance;
    return CKV_OK;
}

/* On the rank that holds the worst row: could one key be behind it? */
static ckv_status explain_here(session *s, const part *p, session_result *result, problem *why)
{
    const session_difference *worst = result->output_ok ? &result->expected : &result->output;
    const session_forward *forward = p->forward;
    int64_t head_dim = s->config.model.head_dim, padding_tokens = forward->rows - forward->seq_len;
    double *observed = calloc((size_t)head_dim, sizeof *observed);
    if (observed == NULL)
        return out_of_memory(why);
    const void *tensor = result->output_ok ? forward->expected : p->out;
    float *floats = s->floats.memory;
    load_row(s, tensor, worst->row - (result->output_ok ? 0 : p->first), floats);
    for (int64_t i = 0; i < head_dim; i++)
        observed[i] = floats[worst->head * head_dim + i];
    size_t skip = (size_t)(forward->seq_len * s->kv_row) * s->element_bytes;
    ckv_kv padding = {0};
    if (padding_tokens > 0)
        padding = ckv_kv_dense((const char *)forward->k + skip, (const char *)forward->v + skip,
                               s->config.model.kv_heads, head_dim);
    ckv_reference_forward run = reference_forward(s, p, s->exact.memory);
    ckv_status status =
        ckv_reference_explain(s->reference, &run, worst->row, worst->head, observed,
                              padding_tokens > 0 ? &padding : NULL, padding_tokens, &result->explanation);
    free(observed);
    return session_check(status, why);
}

static ckv_status explain(session *s, const part *p, session_result *result, problem *why)
{
    const session_difference *worst = result->output_ok ? &result->expected : &result->output;
    if ((result->output_ok && result->expected_ok) || worst->row >= p->forward->seq_len)
        return CKV_OK;
    int owner = (int)(worst->row / p->rows);
    ckv_status status = s->rank == owner ? explain_here(s, p, result, why) : CKV_OK;
    status = session_agree(s->comm, status, why);
    if (status != CKV_OK)
        return status;
    ckv_key_explanation *all = s->records.memory; /* smaller than the records it was made for */
    status = ckv_comm_all_gather(s->comm, &result->explanation, sizeof result->explanation, all);
    if (status == CKV_OK)
        result->explanation = all[owner];
    return session_check(status, why);
}

/* Rows of the tensors past the last rank's stay zero. */
static ckv_status gather(session *s, const part *p, session_result *result, problem *why)
{
    size_t row_bytes = (size_t)s->q_row * s->element_bytes, shard_bytes = (size_t)p->rows * row_bytes;
    int64_t rows = p->rows * s->ranks > p->forward->rows ? p->rows * s->ranks : p->forward->rows;
    void *all = session_reserve(&s->gathered, (size_t)rows * row_bytes);
    if (all != NULL)
        memset(all, 0, (size_t)rows * row_bytes);
    ckv_status status = session_agree(s->comm, all == NULL ? out_of_memory(why) : CKV_OK, why);
    if (status != CKV_OK)
        return status;
    result->gathered = all;
    return session_check(ckv_comm_all_gather(s->comm, p->out, (int64_t)shard_bytes, all), why);
}

ckv_status session_run_forward(session *s, const session_forward *forward, session_result *result_out, problem *why)
{
    part p = {.forward = forward};
    record mine = {.status = CKV_OK};
    ckv_status status = session_agree(s->comm, prepare(s, forward, &p, why), why);
    double start = seconds_now();
    if (status == CKV_OK)
        status = attend(s, &p, why); /* refused on all ranks or on none */
    if (status != CKV_OK)
        return status;

    ckv_status downloaded = ckv_device_download(s->device, p.out, s->device_out.memory, p.out_bytes, NULL);
    mine.seconds = seconds_now() - start;
    mine.status = session_check(downloaded, &mine.why);
    if (mine.status == CKV_OK)
        mine.status = run_reference(s, &p, &mine.why);
    if (mine.status == CKV_OK)
        mine.status = compare(s, &p, &mine, &mine.why);
    session_result result = {.padded_tokens = p.rows * s->ranks, .causal_block_size = p.block};
    status = share(s, &mine, &result, why);
    if (status == CKV_OK)
        status = explain(s, &p, &result, why);
    if (status == CKV_OK && s->config.gather_output)
        status = gather(s, &p, &result, why);
    if (status == CKV_OK)
        *result_out = result;
    return status;
}
