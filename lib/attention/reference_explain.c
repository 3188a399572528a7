/* SPDX-License-Identifier: Apache-2.0 */
/* Which single key explains a wrong output.
 *
 * With weights e_i = exp(s_i - max), S = sum e_i and O = sum e_i v_i / S, the output without key t is
 * (S O - e_t v_t) / (S - e_t) and with an extra key x it is (S O + e_x v_x) / (S + e_x): each candidate costs one dot
 * product and one pass over the head vector. */
#include <ckv/reference.h>

#include "lib/attention/reference_impl.h"
#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* One query of a forward, attended exactly, and what was observed for it. */
typedef struct explain_row {
    const ckv_reference *reference;
    const ckv_reference_layer *layer;
    ckv_reference_keys keys;
    int64_t kv_head;
    int64_t head_dim;
    const double *observed;
    double *query;     /* [head_dim], scaled */
    double *out;       /* [head_dim] */
    double *candidate; /* [head_dim] */
    double *scores;    /* [num_keys] */
    double max, sum;
} explain_row;

/* Largest difference; a NaN on one side only is infinitely far away. */
static double distance(const explain_row *row, const double *output)
{
    double largest = 0;
    for (int64_t d = 0; d < row->head_dim; d++) {
        double difference = fabs(row->observed[d] - output[d]);
        if (isnan(difference))
            difference = isnan(row->observed[d]) && isnan(output[d]) ? 0 : INFINITY;
        largest = difference > largest ? difference : largest;
    }
    return largest;
}

static void keep_better(ckv_key_explanation *best, ckv_key_fault fault, int64_t token, double error)
{
    if (error < best->error_explained) {
        best->fault = fault;
        best->token = token;
        best->error_explained = error;
    }
}

/* The output without key `left_out`, summed afresh: where that key holds most of the weight the identity cancels. */
static void attend_without(const explain_row *row, int64_t left_out)
{
    int64_t num_keys = ckv_reference_num_keys(&row->keys);
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < num_keys; i++)
        if (i != left_out && row->scores[i] > max)
            max = row->scores[i];
    for (int64_t d = 0; d < row->head_dim; d++)
        row->candidate[d] = 0;
    for (int64_t i = 0; i < num_keys; i++) {
        if (i == left_out)
            continue;
        int64_t id = ckv_reference_key_id(&row->keys, i);
        const float *value = row->layer->v + ckv_reference_offset(row->reference, id, row->kv_head);
        double weight = exp(row->scores[i] - max);
        for (int64_t d = 0; d < row->head_dim; d++)
            row->candidate[d] += weight * (double)value[d];
        sum += weight;
    }
    for (int64_t d = 0; d < row->head_dim; d++)
        row->candidate[d] /= sum;
}

static void try_missing(const explain_row *row, ckv_key_explanation *best)
{
    int64_t num_keys = ckv_reference_num_keys(&row->keys);
    for (int64_t i = 0; i < num_keys; i++) {
        int64_t id = ckv_reference_key_id(&row->keys, i);
        double weight = exp(row->scores[i] - row->max);
        if (weight < row->sum / 2) {
            const float *value = row->layer->v + ckv_reference_offset(row->reference, id, row->kv_head);
            for (int64_t d = 0; d < row->head_dim; d++)
                row->candidate[d] = (row->sum * row->out[d] - weight * (double)value[d]) / (row->sum - weight);
        } else {
            attend_without(row, i);
        }
        keep_better(best, CKV_KEY_MISSING, id, distance(row, row->candidate));
    }
}

static void try_extra(const explain_row *row, ckv_key_fault fault, int64_t token, const float *key, const float *value,
                      ckv_key_explanation *best)
{
    double score = ckv_reference_dot(row->query, key, row->head_dim);
    double max = score > row->max ? score : row->max;
    double sum = row->sum * exp(row->max - max), weight = exp(score - max);
    for (int64_t d = 0; d < row->head_dim; d++)
        row->candidate[d] = (sum * row->out[d] + weight * (double)value[d]) / (sum + weight);
    keep_better(best, fault, token, distance(row, row->candidate));
}

/* Every token of the rollout that the row must not see: evicted ones, and those of later blocks. */
static void try_unseen(const explain_row *row, ckv_key_explanation *best)
{
    const ckv_reference *reference = row->reference;
    int64_t end = reference->committed_tokens + reference->last_seq_len;
    for (int64_t id = row->keys.fixed_end; id < end; id++) {
        if (!row->layer->written[id] || (id >= row->keys.begin && id < row->keys.end))
            continue;
        int64_t offset = ckv_reference_offset(reference, id, row->kv_head);
        try_extra(row, CKV_KEY_EXTRA, id, row->layer->k + offset, row->layer->v + offset, best);
    }
}

/* `vectors` [2 * head_dim] is scratch. */
static void try_padding(const explain_row *row, const ckv_kv *padding, int64_t tokens, float *vectors,
                        ckv_key_explanation *best)
{
    ckv_dtype dtype = row->reference->config.dtype;
    int64_t element_bytes = (int64_t)ckv_dtype_bytes(dtype);
    float *key = vectors, *value = vectors + row->head_dim;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t k_offset = t * padding->k_token_stride + row->kv_head * padding->k_head_stride;
        int64_t v_offset = t * padding->v_token_stride + row->kv_head * padding->v_head_stride;
        ckv_convert_to_float(dtype, (const char *)padding->k + k_offset * element_bytes, (size_t)row->head_dim, key);
        ckv_convert_to_float(dtype, (const char *)padding->v + v_offset * element_bytes, (size_t)row->head_dim, value);
        try_extra(row, CKV_KEY_PADDING, row->reference->last_seq_len + t, key, value, best);
    }
}

static ckv_status check_explain(const ckv_reference *reference, const ckv_reference_forward *forward, int64_t row,
                                int64_t head, const double *observed, const ckv_kv *padding, int64_t padding_tokens,
                                int64_t *block_size_out)
{
    CKV_TRY(ckv_reference_check_forward(reference, forward, block_size_out));
    if (reference->last_seq_len != forward->seq_len || reference->last_layer != forward->layer ||
        reference->last_block_size != *block_size_out)
        return ckv_fail(CKV_ERROR_STATE, "reference: the forward to explain is not the one last run");
    if (row < 0 || row >= forward->seq_len || head < 0 || head >= reference->config.q_heads)
        return ckv_fail(CKV_ERROR_INVALID,
                        "reference: row %" PRId64 ", head %" PRId64 " is outside %" PRId64 " rows of %" PRId64 " heads",
                        row, head, forward->seq_len, reference->config.q_heads);
    if (observed == NULL || padding_tokens < 0)
        return ckv_fail(CKV_ERROR_INVALID, "reference: observed is NULL or padding_tokens %" PRId64 " is negative",
                        padding_tokens);
    if (padding != NULL && (padding->k == NULL || padding->v == NULL))
        return ckv_fail(CKV_ERROR_INVALID, "reference: K or V of the padding rows is NULL");
    return CKV_OK;
}

ckv_status ckv_reference_explain(const ckv_reference *reference, const ckv_reference_forward *forward, int64_t row,
                                 int64_t head, const double *observed, const ckv_kv *padding, int64_t padding_tokens,
                                 ckv_key_explanation *explanation_out)
{
    int64_t block_size = 0;
    CKV_TRY(check_explain(reference, forward, row, head, observed, padding, padding_tokens, &block_size));
    if (explanation_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "reference: explanation_out is NULL");

    int64_t head_dim = reference->config.head_dim;
    explain_row exact = {
        .reference = reference,
        .layer = &reference->layers[forward->layer],
        .keys = ckv_reference_visible(reference, block_size, row / block_size, 0),
        .kv_head = ckv_reference_kv_head(reference, head),
        .head_dim = head_dim,
        .observed = observed,
    };
    double *scratch = malloc((size_t)(3 * head_dim + ckv_reference_num_keys(&exact.keys)) * sizeof *scratch);
    float *vectors = malloc((size_t)(2 * head_dim) * sizeof *vectors);
    if (scratch == NULL || vectors == NULL) {
        free(vectors);
        free(scratch);
        return ckv_fail(CKV_ERROR_MEMORY, "reference: cannot allocate the scores of one row");
    }
    exact.query = scratch;
    exact.out = scratch + head_dim;
    exact.candidate = scratch + 2 * head_dim;
    exact.scores = scratch + 3 * head_dim;
    ckv_reference_load_query(reference, forward, row, head, exact.query);
    ckv_reference_attend(reference, exact.layer, &exact.keys, exact.kv_head, exact.query, exact.scores, exact.out,
                         &exact.max, &exact.sum);

    double error_before = distance(&exact, exact.out);
    ckv_key_explanation best = {.error_before = error_before, .error_explained = error_before};
    try_missing(&exact, &best);
    try_unseen(&exact, &best);
    if (padding != NULL)
        try_padding(&exact, padding, padding_tokens, vectors, &best);
    if (!(best.error_explained <= error_before / 10) || isinf(best.error_explained))
        best = (ckv_key_explanation){.error_before = error_before, .error_explained = error_before};
    free(vectors);
    free(scratch);
    *explanation_out = best;
    return CKV_OK;
}
