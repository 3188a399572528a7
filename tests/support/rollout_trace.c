/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/rollout_trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CHUNK = 11, CHUNK = 12, CLEAN_BLOCK = 3, MAX_TOKENS = 1024, MAX_ROWS = CHUNK, MAX_HEAD_DIM = 64 };

/* Everything in float, already rounded to the model's dtype. */
typedef struct maker {
    const rollout_spec *spec;
    trace *trace;
    uint64_t state;
    int64_t forwards;
    int64_t committed;
    size_t q_row, kv_row;
    float *k, *v; /* [layers, MAX_TOKENS, kv_row]: committed tokens, then the staged ones */
    float *q, *out;
    void *packed[4]; /* q, k, v, expected in the model's dtype */
} maker;

static float next_value(maker *m)
{
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(m->state >> 32) / 0x1p30f; /* -2 to 2 */
}

static void random_values(maker *m, float *values, size_t count)
{
    uint32_t rounded;
    for (size_t i = 0; i < count; i++) {
        values[i] = next_value(m);
        ckv_convert_from_float(m->spec->model.dtype, &values[i], 1, &rounded);
        ckv_convert_to_float(m->spec->model.dtype, &rounded, 1, &values[i]);
    }
}

static float *token(const maker *m, float *of, int64_t layer, int64_t id)
{
    return of + (size_t)(layer * MAX_TOKENS + id) * m->kv_row;
}

static void pack(const maker *m, int slot, const float *values, size_t count)
{
    ckv_convert_from_float(m->spec->model.dtype, values, count, m->packed[slot]);
}

/* Does the recorded output of this row read this token? Ids past the forward's last token are padding rows. */
static bool is_read(const maker *m, int64_t row, int64_t seq_len, int64_t block, int64_t id)
{
    const rollout_spec *spec = m->spec;
    int64_t start = m->committed + row / block * block;
    bool read = id < start + block && (id < spec->pin_tokens || id >= start - spec->window_tokens) &&
                id < m->committed + seq_len;
    if (spec->fault == CKV_KEY_NONE || m->forwards != spec->fault_forward)
        return read;
    int64_t fault_id = spec->fault_token + (spec->fault == CKV_KEY_PADDING ? m->committed : 0);
    return id == fault_id ? spec->fault != CKV_KEY_MISSING : read;
}

static void attend(maker *m, int64_t layer, int64_t row, int64_t head, int64_t rows, int64_t seq_len, int64_t block)
{
    const trace_config *model = &m->spec->model;
    size_t dim = (size_t)model->head_dim, offset = (size_t)(head / (model->q_heads / model->kv_heads)) * dim;
    const float *q = m->q + (size_t)row * m->q_row + (size_t)head * dim;
    double scale = model->scale == 0 ? 1 / sqrt((double)dim) : model->scale, sum = 0, out[MAX_HEAD_DIM] = {0};
    for (int64_t id = 0; id < m->committed + rows; id++) {
        if (!is_read(m, row, seq_len, block, id))
            continue;
        double score = 0;
        for (size_t i = 0; i < dim; i++)
            score += (double)q[i] * token(m, m->k, layer, id)[offset + i];
        double weight = exp(score * scale);
        sum += weight;
        for (size_t i = 0; i < dim; i++)
            out[i] += weight * token(m, m->v, layer, id)[offset + i];
    }
    for (size_t i = 0; i < dim; i++)
        m->out[(size_t)row * m->q_row + (size_t)head * dim + i] = (float)(out[i] / sum);
}

static bool add_forward(maker *m, int64_t layer, int64_t rows, int64_t seq_len, int64_t block)
{
    float *k = token(m, m->k, layer, m->committed), *v = token(m, m->v, layer, m->committed);
    random_values(m, m->q, (size_t)rows * m->q_row);
    random_values(m, k, (size_t)rows * m->kv_row);
    random_values(m, v, (size_t)rows * m->kv_row);
    if (m->spec->padding == ROLLOUT_PADDING_NAN)
        for (size_t i = (size_t)seq_len * m->kv_row; i < (size_t)rows * m->kv_row; i++)
            k[i] = v[i] = NAN;
    memset(m->out, 0, (size_t)rows * m->q_row * sizeof *m->out);
    for (int64_t row = 0; row < seq_len; row++)
        for (int64_t head = 0; head < m->spec->model.q_heads; head++)
            attend(m, layer, row, head, rows, seq_len, block);
    pack(m, 0, m->q, (size_t)rows * m->q_row);
    pack(m, 1, k, (size_t)rows * m->kv_row);
    pack(m, 2, v, (size_t)rows * m->kv_row);
    pack(m, 3, m->out, (size_t)rows * m->q_row);
    char name[32];
    snprintf(name, sizeof name, "f%lld", (long long)m->forwards++);
    return trace_add_forward(m->trace, layer, rows, seq_len, block, name, m->packed[0], m->packed[1], m->packed[2],
                             m->spec->with_expected ? m->packed[3] : NULL);
}

/* One denoising forward and one clean forward in every layer; the clean K/V are committed. */
static bool add_chunk(maker *m, int64_t index)
{
    int64_t tokens = index == 0 ? FIRST_CHUNK : CHUNK;
    int64_t clean_block = index == 0 ? FIRST_CHUNK : CLEAN_BLOCK;
    bool ok = true;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t layer = 0; layer < m->spec->model.layers; layer++)
            ok = ok && add_forward(m, layer, CHUNK, tokens, pass == 0 ? tokens : clean_block);
    m->committed += tokens;
    return ok && trace_add_commit(m->trace, tokens);
}

static bool add_prompt(maker *m)
{
    int64_t tokens = m->spec->pin_tokens;
    if (tokens == 0)
        return true;
    bool ok = true;
    for (int64_t layer = 0; layer < m->spec->model.layers; layer++) {
        char name[32];
        snprintf(name, sizeof name, "w%lld", (long long)layer);
        random_values(m, token(m, m->k, layer, 0), (size_t)tokens * m->kv_row);
        random_values(m, token(m, m->v, layer, 0), (size_t)tokens * m->kv_row);
        pack(m, 1, token(m, m->k, layer, 0), (size_t)tokens * m->kv_row);
        pack(m, 2, token(m, m->v, layer, 0), (size_t)tokens * m->kv_row);
        ok = ok && trace_add_write_range(m->trace, layer, 0, tokens, name, m->packed[1], m->packed[2]);
    }
    m->committed = tokens;
    return ok && trace_add_commit(m->trace, tokens);
}

static bool make(maker *m)
{
    const int64_t sizes[] = {FIRST_CHUNK, CHUNK, CLEAN_BLOCK};
    const rollout_spec *spec = m->spec;
    bool ok = trace_add_open(m->trace, spec->pin_tokens, spec->window_tokens, CHUNK, sizes, 3) && add_prompt(m);
    for (int64_t chunk = 0; chunk < spec->chunks && ok; chunk++)
        ok = add_chunk(m, chunk);
    return ok && trace_add_close(m->trace);
}

rollout_spec rollout_spec_default(uint64_t seed, ckv_dtype dtype)
{
    rollout_spec spec = {
        .seed = seed,
        .model = {.layers = 2, .q_heads = 12, .kv_heads = 6, .head_dim = 8, .dtype = dtype, .tokens_per_page = 4},
        .pin_tokens = 5,
        .window_tokens = 14,
        .chunks = 4,
        .with_expected = true,
    };
    return spec;
}

rollout_spec rollout_spec_cudnn(uint64_t seed, ckv_dtype dtype)
{
    rollout_spec spec = rollout_spec_default(seed, dtype);
    spec.model.head_dim = MAX_HEAD_DIM;
    spec.model.tokens_per_page = 16;
    return spec;
}

trace *rollout_trace_make(const rollout_spec *spec)
{
    const trace_config *model = &spec->model;
    maker m = {.spec = spec, .state = spec->seed, .trace = trace_create(model)};
    m.q_row = (size_t)(model->q_heads * model->head_dim);
    m.kv_row = (size_t)(model->kv_heads * model->head_dim);
    m.k = calloc((size_t)model->layers * MAX_TOKENS * m.kv_row, sizeof *m.k);
    m.v = calloc((size_t)model->layers * MAX_TOKENS * m.kv_row, sizeof *m.v);
    m.q = calloc(MAX_ROWS * m.q_row, sizeof *m.q);
    m.out = calloc(MAX_ROWS * m.q_row, sizeof *m.out);
    bool ok = m.trace != NULL && m.k != NULL && m.v != NULL && m.q != NULL && m.out != NULL;
    for (int i = 0; i < 4; i++) {
        m.packed[i] = calloc(MAX_ROWS * m.q_row, sizeof(float));
        ok = ok && m.packed[i] != NULL;
    }
    if (!ok || !make(&m))
        trace_free(&m.trace);
    for (int i = 0; i < 4; i++)
        free(m.packed[i]);
    free(m.out);
    free(m.q);
    free(m.v);
    free(m.k);
    return m.trace;
}
