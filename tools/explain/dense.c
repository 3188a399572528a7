/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/explain/dense.h"

static ckv_status write_keys(const history *h, ckv_reference *reference, const history_keys *keys, int64_t count,
                             int64_t first_id)
{
    ckv_status status = CKV_OK;
    for (int64_t i = 0; i < count && status == CKV_OK; i++) {
        ckv_kv kv =
            ckv_kv_dense(keys->keys[i]->k, keys->keys[i]->v, h->trace->config.kv_heads, h->trace->config.head_dim);
        status = ckv_reference_write(reference, 0, first_id + i, 1, &kv);
    }
    return status;
}

/* A rollout whose window is the keys but the last, which the row itself brings; older tokens are what it must not see.
 */
static ckv_status open_rollout(const history *h, const history_keys *keys, const history_keys *others,
                               ckv_reference **reference_out)
{
    const trace_config *model = &h->trace->config;
    ckv_reference_config config = ckv_reference_config_default();
    config.layers = 1;
    config.q_heads = model->q_heads;
    config.kv_heads = model->kv_heads;
    config.head_dim = model->head_dim;
    config.dtype = model->dtype;
    config.scale = model->scale;
    int64_t others_count = others == NULL ? 0 : others->count, committed = others_count + keys->count - 1;
    ckv_status status = ckv_reference_create(&config, reference_out);
    if (status == CKV_OK)
        status = ckv_reference_open(*reference_out, 0, keys->count - 1);
    if (status == CKV_OK && others != NULL)
        status = write_keys(h, *reference_out, others, others_count, 0);
    if (status == CKV_OK)
        status = write_keys(h, *reference_out, keys, keys->count - 1, others_count);
    if (status == CKV_OK && committed > 0)
        status = ckv_reference_commit(*reference_out, committed);
    return status;
}

static ckv_reference_forward make_forward(const history *h, const history_keys *keys, int64_t row, const void *q,
                                          double *out)
{
    const trace_config *model = &h->trace->config;
    const history_key *last = keys->keys[keys->count - 1];
    size_t row_bytes = (size_t)(model->q_heads * model->head_dim) * ckv_dtype_bytes(model->dtype);
    ckv_reference_forward forward = ckv_reference_forward_default();
    forward.seq_len = 1;
    forward.q = q != NULL ? q : (const char *)h->op->q + (size_t)row * row_bytes;
    forward.q_token_stride = model->q_heads * model->head_dim;
    forward.q_head_stride = model->head_dim;
    forward.kv = ckv_kv_dense(last->k, last->v, model->kv_heads, model->head_dim);
    forward.out = out;
    return forward;
}

static ckv_status finish(ckv_reference **reference, ckv_status status, problem *why)
{
    if (status != CKV_OK)
        problem_format(why, "%s", ckv_last_error());
    ckv_reference_destroy(reference);
    return status;
}

ckv_status dense_attend(const history *h, const history_keys *keys, int64_t row, const void *q, double *out,
                        problem *why)
{
    ckv_reference *reference = NULL;
    ckv_status status = open_rollout(h, keys, NULL, &reference);
    if (status == CKV_OK) {
        ckv_reference_forward forward = make_forward(h, keys, row, q, out);
        status = ckv_reference_run(reference, &forward);
    }
    return finish(&reference, status, why);
}

ckv_status dense_explain(const history *h, const history_keys *keys, const history_keys *others, int64_t row,
                         int64_t head, const double *observed, history_key **key_out, bool *is_missing_out,
                         problem *why)
{
    const trace_config *model = &h->trace->config;
    double *out = arena_alloc(h->memory, (size_t)(model->q_heads * model->head_dim) * sizeof *out);
    ckv_reference *reference = NULL;
    ckv_key_explanation found = {0};
    ckv_status status = open_rollout(h, keys, others, &reference);
    if (status == CKV_OK) {
        ckv_reference_forward forward = make_forward(h, keys, row, NULL, out);
        status = ckv_reference_run(reference, &forward);
        if (status == CKV_OK)
            status = ckv_reference_explain(reference, &forward, 0, head, observed, NULL, 0, &found);
    }
    *is_missing_out = found.fault == CKV_KEY_MISSING;
    *key_out = NULL;
    if (status == CKV_OK && found.fault != CKV_KEY_NONE)
        *key_out = found.token < others->count ? others->keys[found.token] : keys->keys[found.token - others->count];
    return finish(&reference, status, why);
}
