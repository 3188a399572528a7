/* SPDX-License-Identifier: Apache-2.0 */
#include <ckv/reference.h>

#include "lib/attention/reference_impl.h"
#include "lib/support/checked.h"
#include "lib/support/dtype.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

ckv_reference_config ckv_reference_config_default(void)
{
    return (ckv_reference_config){.struct_size = sizeof(ckv_reference_config)};
}

ckv_reference_forward ckv_reference_forward_default(void)
{
    return (ckv_reference_forward){.struct_size = sizeof(ckv_reference_forward)};
}

static ckv_status check_config(const ckv_reference_config *config)
{
    if (config == NULL || config->struct_size != sizeof *config)
        return ckv_fail(CKV_ERROR_INVALID, "reference: config is NULL or its struct_size is not %zu", sizeof *config);
    if (config->layers < 1 || config->q_heads < 1 || config->kv_heads < 1 || config->head_dim < 1)
        return ckv_fail(CKV_ERROR_INVALID,
                        "reference: layers %" PRId64 ", q_heads %" PRId64 ", kv_heads %" PRId64 ", head_dim %" PRId64
                        " must all be positive",
                        config->layers, config->q_heads, config->kv_heads, config->head_dim);
    if (config->q_heads % config->kv_heads != 0)
        return ckv_fail(CKV_ERROR_INVALID, "reference: q_heads %" PRId64 " is not a multiple of kv_heads %" PRId64,
                        config->q_heads, config->kv_heads);
    if (!ckv_dtype_is_tensor(config->dtype))
        return ckv_fail(CKV_ERROR_INVALID, "reference: dtype is %d; it must be fp32, bf16 or fp16", (int)config->dtype);
    if (!isfinite(config->scale) || config->scale < 0)
        return ckv_fail(CKV_ERROR_INVALID, "reference: scale %g must be finite and not negative", config->scale);
    return CKV_OK;
}

ckv_status ckv_reference_create(const ckv_reference_config *config, ckv_reference **reference_out)
{
    CKV_TRY(check_config(config));
    if (reference_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "reference: reference_out is NULL");
    ckv_reference *reference = calloc(1, sizeof *reference);
    ckv_reference_layer *layers = calloc((size_t)config->layers, sizeof *layers);
    if (reference == NULL || layers == NULL) {
        free(layers);
        free(reference);
        return ckv_fail(CKV_ERROR_MEMORY, "reference: cannot allocate %" PRId64 " layers", config->layers);
    }
    reference->config = *config;
    if (config->scale == 0)
        reference->config.scale = 1 / sqrt((double)config->head_dim);
    reference->layers = layers;
    *reference_out = reference;
    return CKV_OK;
}

void ckv_reference_destroy(ckv_reference **reference)
{
    if (reference == NULL || *reference == NULL)
        return;
    for (int64_t i = 0; i < (*reference)->config.layers; i++) {
        ckv_reference_layer *layer = &(*reference)->layers[i];
        free(layer->k);
        free(layer->v);
        free(layer->written);
    }
    free((*reference)->layers);
    free(*reference);
    *reference = NULL;
}

ckv_status ckv_reference_open(ckv_reference *reference, int64_t pin_tokens, int64_t window_tokens)
{
    if (reference == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "reference: NULL");
    if (pin_tokens < 0 || window_tokens < 0)
        return ckv_fail(CKV_ERROR_INVALID,
                        "reference: pin_tokens %" PRId64 " and window_tokens %" PRId64 " must not be negative",
                        pin_tokens, window_tokens);
    for (int64_t i = 0; i < reference->config.layers; i++) {
        ckv_reference_layer *layer = &reference->layers[i];
        if (layer->capacity_tokens > 0)
            memset(layer->written, 0, (size_t)layer->capacity_tokens);
    }
    reference->is_open = 1;
    reference->pin_tokens = pin_tokens;
    reference->window_tokens = window_tokens;
    reference->committed_tokens = 0;
    reference->last_seq_len = 0;
    return CKV_OK;
}

static ckv_status check_layer(const ckv_reference *reference, int64_t layer)
{
    if (reference == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "reference: NULL");
    if (!reference->is_open)
        return ckv_fail(CKV_ERROR_STATE, "reference: no rollout is open");
    if (layer < 0 || layer >= reference->config.layers)
        return ckv_fail(CKV_ERROR_INVALID, "reference: layer %" PRId64 " is outside [0, %" PRId64 ")", layer,
                        reference->config.layers);
    return CKV_OK;
}

/* Room for ids [0, tokens). On failure the layer holds what it held. */
static ckv_status reserve(const ckv_reference *reference, ckv_reference_layer *layer, int64_t tokens)
{
    if (tokens <= layer->capacity_tokens)
        return CKV_OK;
    int64_t capacity = 0, elements = 0, bytes = 0;
    if (!ckv_add_i64(tokens, tokens / 2, &capacity) || !ckv_mul_i64(capacity, reference->config.kv_heads, &elements) ||
        !ckv_mul_i64(elements, reference->config.head_dim, &elements) ||
        !ckv_mul_i64(elements, (int64_t)sizeof(float), &bytes))
        return ckv_fail(CKV_ERROR_MEMORY, "reference: %" PRId64 " tokens do not fit 64 bits", tokens);
    float *k = realloc(layer->k, (size_t)bytes);
    if (k != NULL)
        layer->k = k;
    float *v = realloc(layer->v, (size_t)bytes);
    if (v != NULL)
        layer->v = v;
    unsigned char *written = realloc(layer->written, (size_t)capacity);
    if (written != NULL)
        layer->written = written;
    if (k == NULL || v == NULL || written == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "reference: cannot allocate 2 x %" PRId64 " bytes for %" PRId64 " tokens",
                        bytes, capacity);
    memset(layer->written + layer->capacity_tokens, 0, (size_t)(capacity - layer->capacity_tokens));
    layer->capacity_tokens = capacity;
    return CKV_OK;
}

static const void *element(const ckv_reference *reference, const void *base, int64_t offset_elements)
{
    return (const char *)base + offset_elements * (int64_t)ckv_dtype_bytes(reference->config.dtype);
}

static void store(const ckv_reference *reference, ckv_reference_layer *layer, int64_t first_id, int64_t tokens,
                  const ckv_kv *source)
{
    const ckv_reference_config *config = &reference->config;
    size_t head_dim = (size_t)config->head_dim;
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t h = 0; h < config->kv_heads; h++) {
            int64_t to = ckv_reference_offset(reference, first_id + t, h);
            int64_t from_k = t * source->k_token_stride + h * source->k_head_stride;
            int64_t from_v = t * source->v_token_stride + h * source->v_head_stride;
            ckv_convert_to_float(config->dtype, element(reference, source->k, from_k), head_dim, layer->k + to);
            ckv_convert_to_float(config->dtype, element(reference, source->v, from_v), head_dim, layer->v + to);
        }
        layer->written[first_id + t] = 1;
    }
}

/* The ids [first_id, first_id + tokens) of a layer exist. */
static ckv_status check_range(ckv_reference *reference, int64_t layer, int64_t first_id, int64_t tokens)
{
    CKV_TRY(check_layer(reference, layer));
    int64_t end = 0;
    if (first_id < 0 || tokens < 1 || !ckv_add_i64(first_id, tokens, &end))
        return ckv_fail(CKV_ERROR_INVALID, "reference: %" PRId64 " tokens from id %" PRId64 " is not a range", tokens,
                        first_id);
    return reserve(reference, &reference->layers[layer], end);
}

ckv_status ckv_reference_write(ckv_reference *reference, int64_t layer, int64_t first_id, int64_t tokens,
                               const ckv_kv *source)
{
    if (source == NULL || source->k == NULL || source->v == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "reference: K or V of the tokens to write is NULL");
    CKV_TRY(check_range(reference, layer, first_id, tokens));
    store(reference, &reference->layers[layer], first_id, tokens, source);
    return CKV_OK;
}

ckv_status ckv_reference_zero_values(ckv_reference *reference, int64_t layer, int64_t first_id, int64_t tokens)
{
    CKV_TRY(check_range(reference, layer, first_id, tokens));
    int64_t vector = reference->config.kv_heads * reference->config.head_dim;
    memset(reference->layers[layer].v + first_id * vector, 0, (size_t)(tokens * vector) * sizeof(float));
    return CKV_OK;
}

ckv_status ckv_reference_commit(ckv_reference *reference, int64_t tokens)
{
    CKV_TRY(check_layer(reference, 0));
    int64_t committed = 0;
    if (tokens < 1 || !ckv_add_i64(reference->committed_tokens, tokens, &committed))
        return ckv_fail(CKV_ERROR_INVALID, "reference: cannot commit %" PRId64 " tokens after %" PRId64, tokens,
                        reference->committed_tokens);
    reference->committed_tokens = committed;
    reference->last_seq_len = 0;
    return CKV_OK;
}

ckv_reference_keys ckv_reference_visible(const ckv_reference *reference, int64_t block_size, int64_t block,
                                         int64_t extra_tokens)
{
    int64_t start = reference->committed_tokens + block * block_size;
    int64_t fixed = ckv_min_i64(reference->committed_tokens, reference->pin_tokens);
    int64_t begin = ckv_max_i64(fixed, start - reference->window_tokens);
    begin -= ckv_min_i64(extra_tokens, begin - fixed);
    return (ckv_reference_keys){.fixed_end = fixed, .begin = begin, .end = start + block_size};
}

void ckv_reference_load_query(const ckv_reference *reference, const ckv_reference_forward *forward, int64_t row,
                              int64_t head, double *query)
{
    const void *source = element(reference, forward->q, row * forward->q_token_stride + head * forward->q_head_stride);
    for (int64_t i = 0; i < reference->config.head_dim; i++) {
        float value = 0;
        ckv_convert_to_float(reference->config.dtype, element(reference, source, i), 1, &value);
        query[i] = (double)value * reference->config.scale;
    }
}

double ckv_reference_dot(const double *query, const float *key, int64_t head_dim)
{
    double lane[8] = {0}; /* independent sums, so that additions need not wait for each other */
    int64_t i = 0;
    for (; i + 8 <= head_dim; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += query[i + j] * (double)key[i + j];
    for (; i < head_dim; i++)
        lane[0] += query[i] * (double)key[i];
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

void ckv_reference_attend(const ckv_reference *reference, const ckv_reference_layer *layer,
                          const ckv_reference_keys *keys, int64_t kv_head, const double *query, double *scores,
                          double *out, double *max_out, double *sum_out)
{
    int64_t head_dim = reference->config.head_dim;
    int64_t num_keys = ckv_reference_num_keys(keys);
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < num_keys; i++) {
        int64_t id = ckv_reference_key_id(keys, i);
        scores[i] = ckv_reference_dot(query, layer->k + ckv_reference_offset(reference, id, kv_head), head_dim);
        max = scores[i] > max ? scores[i] : max;
    }
    memset(out, 0, (size_t)head_dim * sizeof *out);
    for (int64_t i = 0; i < num_keys; i++) {
        double weight = exp(scores[i] - max);
        const float *value = layer->v + ckv_reference_offset(reference, ckv_reference_key_id(keys, i), kv_head);
        for (int64_t d = 0; d < head_dim; d++)
            out[d] += weight * (double)value[d];
        sum += weight;
    }
    for (int64_t d = 0; d < head_dim; d++)
        out[d] /= sum;
    *max_out = max;
    *sum_out = sum;
}

ckv_status ckv_reference_check_forward(const ckv_reference *reference, const ckv_reference_forward *forward,
                                       int64_t *block_size_out)
{
    if (forward == NULL || forward->struct_size != sizeof *forward)
        return ckv_fail(CKV_ERROR_INVALID, "reference: forward is NULL or its struct_size is not %zu", sizeof *forward);
    CKV_TRY(check_layer(reference, forward->layer));
    int64_t block_size = forward->causal_block_size == 0 ? forward->seq_len : forward->causal_block_size;
    int64_t end = 0;
    if (forward->seq_len < 1 || block_size < 1 || forward->seq_len % block_size != 0 ||
        !ckv_add_i64(reference->committed_tokens, forward->seq_len, &end))
        return ckv_fail(CKV_ERROR_INVALID,
                        "reference: seq_len %" PRId64 " must be a positive multiple of the causal block %" PRId64,
                        forward->seq_len, block_size);
    if (forward->q == NULL || forward->kv.k == NULL || forward->kv.v == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "reference: q, k or v of the forward is NULL");
    *block_size_out = block_size;
    return CKV_OK;
}

static ckv_status check_rows(const ckv_reference_forward *forward)
{
    if (forward->out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "reference: out is NULL");
    for (int64_t i = 0; forward->rows != NULL && i < forward->num_rows; i++)
        if (forward->rows[i] < 0 || forward->rows[i] >= forward->seq_len)
            return ckv_fail(CKV_ERROR_INVALID, "reference: rows[%" PRId64 "] = %" PRId64 " is outside [0, %" PRId64 ")",
                            i, forward->rows[i], forward->seq_len);
    return CKV_OK;
}

static int64_t extra_tokens(const ckv_reference_forward *forward, int64_t block)
{
    return forward->extra_window_tokens == NULL ? 0 : forward->extra_window_tokens[block];
}

static ckv_status check_written(const ckv_reference *reference, int64_t layer_index, int64_t begin, int64_t end)
{
    const ckv_reference_layer *layer = &reference->layers[layer_index];
    for (int64_t id = begin; id < end; id++)
        if (id >= layer->capacity_tokens || !layer->written[id])
            return ckv_fail(CKV_ERROR_STATE,
                            "reference: layer %" PRId64 " would read token %" PRId64 ", which was never written",
                            layer_index, id);
    return CKV_OK;
}

/* Every committed token that some block of the forward sees must have been written: the fixed region, and one range
 * from where the oldest window starts, because every window reaches up to the staged tokens or past them. */
static ckv_status check_keys(const ckv_reference *reference, const ckv_reference_forward *forward, int64_t block_size,
                             int64_t *max_keys_out)
{
    int64_t committed = reference->committed_tokens;
    int64_t first = committed, max_keys = 0;
    for (int64_t block = 0; block < forward->seq_len / block_size; block++) {
        int64_t extra = extra_tokens(forward, block);
        if (extra < 0)
            return ckv_fail(CKV_ERROR_INVALID, "reference: extra_window_tokens[%" PRId64 "] = %" PRId64 " is negative",
                            block, extra);
        ckv_reference_keys keys = ckv_reference_visible(reference, block_size, block, extra);
        first = ckv_min_i64(first, keys.begin);
        max_keys = ckv_max_i64(max_keys, ckv_reference_num_keys(&keys));
    }
    CKV_TRY(check_written(reference, forward->layer, 0, ckv_min_i64(committed, reference->pin_tokens)));
    CKV_TRY(check_written(reference, forward->layer, first, committed));
    *max_keys_out = max_keys;
    return CKV_OK;
}

static void run_row(const ckv_reference *reference, const ckv_reference_forward *forward, int64_t block_size,
                    int64_t row, double *query, double *scores)
{
    const ckv_reference_config *config = &reference->config;
    int64_t block = row / block_size;
    ckv_reference_keys keys = ckv_reference_visible(reference, block_size, block, extra_tokens(forward, block));
    for (int64_t head = 0; head < config->q_heads; head++) {
        double max = 0, sum = 0;
        int64_t index = row * config->q_heads + head;
        ckv_reference_load_query(reference, forward, row, head, query);
        ckv_reference_attend(reference, &reference->layers[forward->layer], &keys,
                             ckv_reference_kv_head(reference, head), query, scores,
                             forward->out + index * config->head_dim, &max, &sum);
        if (forward->lse != NULL)
            forward->lse[index] = max + log(sum);
    }
}

ckv_status ckv_reference_run(ckv_reference *reference, const ckv_reference_forward *forward)
{
    int64_t block_size = 0, max_keys = 0;
    CKV_TRY(ckv_reference_check_forward(reference, forward, &block_size));
    CKV_TRY(check_rows(forward));
    CKV_TRY(check_keys(reference, forward, block_size, &max_keys));

    ckv_reference_layer *layer = &reference->layers[forward->layer];
    CKV_TRY(reserve(reference, layer, reference->committed_tokens + forward->seq_len));
    double *scratch = malloc((size_t)(reference->config.head_dim + max_keys) * sizeof *scratch);
    if (scratch == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "reference: cannot allocate scores of %" PRId64 " keys", max_keys);

    store(reference, layer, reference->committed_tokens, forward->seq_len, &forward->kv);
    int64_t num_rows = forward->rows == NULL ? forward->seq_len : forward->num_rows;
    for (int64_t i = 0; i < num_rows; i++) {
        int64_t row = forward->rows == NULL ? i : forward->rows[i];
        run_row(reference, forward, block_size, row, scratch, scratch + reference->config.head_dim);
    }
    free(scratch);
    reference->last_layer = forward->layer;
    reference->last_seq_len = forward->seq_len;
    reference->last_block_size = block_size;
    return CKV_OK;
}
