/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/rollout_model.h"

#include "tests/support/case.h"
#include "tests/support/device_memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void model_fit_pool(ckv_pool_config *pool)
{
    pool->dtype = pool->tensor_dtype = CKV_FP32;
    if (ckv_test_pages()[0] != '\0')
        assert_ok(ckv_dtype_from_name(ckv_test_pages(), &pool->dtype));
    pool->head_dim = pool->dtype == CKV_FP8_E4M3 ? MODEL_HEAD_DIM * MODEL_DIGITS : MODEL_HEAD_DIM;
}

/* Tags as a head vector of the pool. */
static void write_tags(const rollout_model *model, const float *tags, float *vector)
{
    if (model->pool.dtype != CKV_FP8_E4M3) {
        memcpy(vector, tags, MODEL_HEAD_DIM * sizeof *tags);
        return;
    }
    for (int i = 0; i < MODEL_HEAD_DIM; i++)
        for (int digit = 0; digit < MODEL_DIGITS; digit++)
            vector[i * MODEL_DIGITS + digit] = (float)((int64_t)tags[i] >> 4 * digit & 15);
}

/* And back, from `count` vectors as pages hold them. */
static void read_tags(const rollout_model *model, const unsigned char *vectors, int64_t count, float *tags)
{
    if (model->pool.dtype != CKV_FP8_E4M3) {
        memcpy(tags, vectors, (size_t)(count * MODEL_HEAD_DIM) * sizeof *tags);
        return;
    }
    for (int64_t i = 0; i < count * MODEL_HEAD_DIM; i++) {
        float digits[MODEL_DIGITS];
        ckv_convert_to_float(CKV_FP8_E4M3, vectors + i * MODEL_DIGITS, MODEL_DIGITS, digits);
        tags[i] = 0;
        for (int digit = MODEL_DIGITS - 1; digit >= 0; digit--)
            tags[i] = 16 * tags[i] + digits[digit];
    }
}

void model_create(rollout_model *model, const ckv_pool_config *pool)
{
    memset(model, 0, sizeof *model);
    model->pool = *pool;
    model->device = test_device();
}

void model_open(rollout_model *model, const ckv_rollout_config *config)
{
    model->pin = config->pin_tokens;
    model->window = config->window_tokens;
    model->max_staged = config->max_staged_tokens;
    model->fixed = model->committed = model->evicted = 0;
    memset(model->k_version, 0, sizeof model->k_version);
    memset(model->v_version, 0, sizeof model->v_version);
}

int64_t model_id(const rollout_model *model, int64_t position)
{
    return position < model->fixed ? position : position + model->evicted;
}

static float tag(int64_t layer, int64_t head, int is_v)
{
    return (float)(layer * 64 + head * 2 + is_v);
}

/* Stamped K and V on the device, [tokens, heads, dim] with odd strides when asked; in *memory, which is allocated when
 * it is NULL. */
static ckv_kv stamp(const rollout_model *model, int64_t layer, int64_t first_position, int64_t tokens, int strided,
                    void **memory)
{
    int64_t heads = model->pool.kv_heads, dim = model->pool.head_dim;
    int64_t head_stride = strided ? dim + 3 : dim;
    int64_t token_stride = strided ? (heads + 2) * head_stride + 1 : heads * head_stride;
    int64_t plane = tokens * token_stride + dim;
    float *host = calloc((size_t)(2 * plane), sizeof *host);
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t head = 0; head < heads; head++)
            for (int is_v = 0; is_v < 2; is_v++) {
                const float tags[MODEL_HEAD_DIM] = {(float)(model->last_version + 1),
                                                    (float)model_id(model, first_position + i), tag(layer, head, is_v),
                                                    1};
                write_tags(model, tags, host + is_v * plane + i * token_stride + head * head_stride);
            }
    size_t bytes = (size_t)(2 * plane) * sizeof *host;
    if (*memory == NULL)
        *memory = test_upload(host, bytes);
    else
        assert_ok(model->device->upload(*memory, host, bytes, NULL));
    free(host);
    float *k = *memory;
    return (ckv_kv){k, k + plane, token_stride, head_stride, token_stride, head_stride};
}

static void record_write(rollout_model *model, int64_t layer, int64_t first_position, int64_t tokens)
{
    model->last_version++;
    for (int64_t i = 0; i < tokens; i++) {
        int64_t id = model_id(model, first_position + i);
        assert_true(id < MODEL_MAX_TOKENS);
        model->k_version[layer][id] = model->v_version[layer][id] = (int32_t)model->last_version;
    }
}

static int64_t staging_offset(const rollout_model *model)
{
    return model->committed - model->evicted;
}

ckv_status model_write_range(rollout_model *model, ckv_cache *cache, int64_t layer, int64_t start, int64_t tokens)
{
    void *memory = NULL;
    ckv_kv source = stamp(model, layer, start, tokens > 0 && tokens < 4096 ? tokens : 1, 0, &memory);
    ckv_status status = ckv_cache_write_range(cache, layer, start, tokens, &source, NULL);
    model->device->free(memory);
    if (status == CKV_OK)
        record_write(model, layer, start, tokens);
    return status;
}

ckv_status model_zero_values(rollout_model *model, ckv_cache *cache, int64_t layer, int64_t start, int64_t tokens)
{
    ckv_status status = ckv_cache_zero_values(cache, layer, start, tokens, NULL);
    for (int64_t i = 0; status == CKV_OK && i < tokens; i++)
        model->v_version[layer][model_id(model, start + i)] = -1;
    return status;
}

ckv_status model_forward(rollout_model *model, ckv_cache *cache, int64_t layer, int64_t tokens, int64_t block,
                         int strided)
{
    void *memory = NULL;
    int64_t stamped = tokens > 0 && tokens < 4096 ? tokens : 1;
    ckv_kv source = stamp(model, layer, staging_offset(model), stamped, strided, &memory);
    ckv_status status = ckv_cache_write_staged(cache, layer, tokens, block, &source, 1, NULL);
    model->device->free(memory);
    if (status == CKV_OK)
        record_write(model, layer, staging_offset(model), tokens);
    return status;
}

ckv_kv model_stamp_forward(rollout_model *model, int64_t layer, int64_t tokens, void **memory)
{
    ckv_kv source = stamp(model, layer, staging_offset(model), tokens, 0, memory);
    record_write(model, layer, staging_offset(model), tokens);
    return source;
}

static ckv_status advance(rollout_model *model, const ckv_cache *cache, int64_t tokens, ckv_status status)
{
    if (status != CKV_OK)
        return status;
    model->committed += tokens;
    model->fixed = model->committed < model->pin ? model->committed : model->pin;
    int64_t page = model->pool.tokens_per_page;
    while (model->committed - model->evicted - model->fixed - model->window >= page)
        model->evicted += page;
    ckv_cache_state state = ckv_cache_get_state(cache);
    assert_int_equal(state.fixed_tokens, model->fixed);
    assert_int_equal(state.history_tokens, model->committed - model->evicted - model->fixed);
    assert_int_equal(state.staging_offset, staging_offset(model));
    assert_int_equal(state.committed_tokens, model->committed);
    return status;
}

ckv_status model_commit(rollout_model *model, ckv_cache *cache, int64_t tokens)
{
    return advance(model, cache, tokens, ckv_cache_commit(cache, tokens, NULL));
}

ckv_status model_follow_commit(rollout_model *model, ckv_cache *cache, int64_t tokens)
{
    return advance(model, cache, tokens, ckv_cache_follow_commit(cache, tokens));
}

static void expect_vector(const rollout_model *model, int64_t layer, int64_t id, const float *vector, int64_t head,
                          int is_v)
{
    int32_t version = (is_v ? model->v_version : model->k_version)[layer][id];
    if (version == 0) { /* never written in this rollout: poisoned */
        assert_true(vector[0] != vector[0]);
        return;
    }
    float expected[MODEL_HEAD_DIM] = {(float)version, (float)id, tag(layer, head, is_v), 1};
    if (version == -1)
        memset(expected, 0, sizeof expected);
    for (int i = 0; i < MODEL_HEAD_DIM; i++)
        if (vector[i] != expected[i])
            fail_msg("%s of token %" PRId64 ", layer %" PRId64 ", head %" PRId64 ", element %d is %g instead of %g",
                     is_v ? "V" : "K", id, layer, head, i, (double)vector[i], (double)expected[i]);
}

/* Ids a block reads are returned in id_seen order of keys; both K and V of every head must be the token's. */
static void expect_row(const rollout_model *model, const ckv_cache *cache, int64_t layer, int64_t block_index,
                       int64_t block)
{
    static float k[MODEL_MAX_TOKENS * MODEL_HEAD_DIM], v[MODEL_MAX_TOKENS * MODEL_HEAD_DIM];
    static unsigned char raw[2][MODEL_MAX_TOKENS * MODEL_HEAD_DIM * MODEL_DIGITS];
    static char seen[MODEL_MAX_TOKENS];
    int64_t heads = model->pool.kv_heads, keys;
    assert_ok(
        ckv_cache_read_row(cache, layer, block, block_index, MODEL_MAX_TOKENS / heads, raw[0], raw[1], &keys, NULL));
    read_tags(model, raw[0], keys * heads, k);
    read_tags(model, raw[1], keys * heads, v);

    int64_t start = model->committed + block_index * block; /* ids */
    int64_t window_start = start - model->window > model->fixed ? start - model->window : model->fixed;
    assert_int_equal(keys, model->fixed + start - window_start + block);
    memset(seen, 0, sizeof seen);
    for (int64_t key = 0; key < keys; key++) {
        int64_t id = (int64_t)k[key * heads * MODEL_HEAD_DIM + 1];
        if (k[key * heads * MODEL_HEAD_DIM] != k[key * heads * MODEL_HEAD_DIM])
            continue; /* a poisoned key has no id; the count of the others tells which it was */
        if (id < 0 || id >= start + block || (id >= model->fixed && id < window_start) || seen[id])
            fail_msg("key %" PRId64 " of block %" PRId64 " is token %" PRId64 "%s", key, block_index, id,
                     id >= 0 && id < MODEL_MAX_TOKENS && seen[id] ? " again" : ", which it must not see");
        if (key >= keys - block)
            assert_int_equal(id, start + key - (keys - block));
        seen[id] = 1;
        for (int64_t head = 0; head < heads; head++) {
            expect_vector(model, layer, id, k + (key * heads + head) * MODEL_HEAD_DIM, head, 0);
            expect_vector(model, layer, id, v + (key * heads + head) * MODEL_HEAD_DIM, head, 1);
        }
    }
    for (int64_t id = 0; id < start + block; id++)
        if ((id < model->fixed || id >= window_start) && !seen[id] && model->k_version[layer][id] != 0)
            fail_msg("block %" PRId64 " does not read token %" PRId64, block_index, id);
}

void model_expect_rows(const rollout_model *model, const ckv_cache *cache, int64_t layer, int64_t tokens, int64_t block)
{
    for (int64_t i = 0; i < tokens / block; i++)
        expect_row(model, cache, layer, i, block);
}
