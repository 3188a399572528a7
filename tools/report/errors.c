/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report/errors.h"

#include <math.h>
#include <stdlib.h>

static ckv_status check(ckv_status status, problem *why)
{
    if (status != CKV_OK)
        problem_format(why, "%s", ckv_last_error());
    return status;
}

ckv_status exact_create(exact *e, const trace *t, problem *why)
{
    *e = (exact){.trace = t};
    ckv_reference_config config = ckv_reference_config_default();
    config.layers = t->config.layers;
    config.q_heads = t->config.q_heads;
    config.kv_heads = t->config.kv_heads;
    config.head_dim = t->config.head_dim;
    config.dtype = t->config.dtype;
    config.scale = t->config.scale;
    int64_t longest = 1;
    for (size_t i = 0; i < t->num_ops; i++)
        if (t->ops[i].kind == TRACE_FORWARD && t->ops[i].seq_len > longest)
            longest = t->ops[i].seq_len;
    e->out = malloc((size_t)(longest * config.q_heads * config.head_dim) * sizeof *e->out);
    if (e->out == NULL) {
        problem_format(why, "out of memory");
        return CKV_ERROR_MEMORY;
    }
    return check(ckv_reference_create(&config, &e->reference), why);
}

void exact_destroy(exact *e)
{
    ckv_reference_destroy(&e->reference);
    free(e->out);
    e->out = NULL;
}

static ckv_status write_range(exact *e, const walk *w, const trace_op *op)
{
    const trace_config *model = &e->trace->config;
    size_t bytes = (size_t)(model->kv_heads * model->head_dim) * ckv_dtype_bytes(model->dtype);
    ckv_status status = CKV_OK;
    for (int64_t i = 0; i < op->tokens && status == CKV_OK; i++) {
        ckv_kv kv = ckv_kv_dense((const char *)op->k + (size_t)i * bytes, (const char *)op->v + (size_t)i * bytes,
                                 model->kv_heads, model->head_dim);
        status = ckv_reference_write(e->reference, op->layer, walk_position_id(w, op->start + i), 1, &kv);
    }
    return status;
}

static ckv_status zero_values(exact *e, const walk *w, const trace_op *op)
{
    ckv_status status = CKV_OK;
    for (int64_t i = 0; i < op->tokens && status == CKV_OK; i++)
        status = ckv_reference_zero_values(e->reference, op->layer, walk_position_id(w, op->start + i), 1);
    return status;
}

static ckv_status attend(exact *e, const trace_op *op, bool with_output)
{
    static const int64_t no_row = 0;
    const trace_config *model = &e->trace->config;
    ckv_reference_forward forward = ckv_reference_forward_default();
    forward.layer = op->layer;
    forward.seq_len = op->seq_len;
    forward.causal_block_size = op->causal_block_size;
    forward.q = op->q;
    forward.q_token_stride = model->q_heads * model->head_dim;
    forward.q_head_stride = model->head_dim;
    forward.kv = ckv_kv_dense(op->k, op->v, model->kv_heads, model->head_dim);
    forward.out = e->out;
    forward.rows = with_output ? NULL : &no_row;
    return ckv_reference_run(e->reference, &forward);
}

static ckv_status run_op(exact *e, const walk *w, const trace_op *op, bool with_output)
{
    switch (op->kind) {
    case TRACE_OPEN:
        return ckv_reference_open(e->reference, op->pin_tokens, op->window_tokens);
    case TRACE_WRITE_RANGE:
        return write_range(e, w, op);
    case TRACE_ZERO_VALUES:
        return zero_values(e, w, op);
    case TRACE_FORWARD:
        return attend(e, op, with_output);
    case TRACE_COMMIT:
        return ckv_reference_commit(e->reference, op->tokens);
    case TRACE_CLOSE:
        break;
    }
    return CKV_OK;
}

ckv_status exact_op(exact *e, const walk *w, const trace_op *op, bool with_output, problem *why)
{
    return check(run_op(e, w, op, with_output), why);
}

static double difference(double observed, double wanted)
{
    if (isnan(observed) || isnan(wanted))
        return isnan(observed) && isnan(wanted) ? 0 : INFINITY;
    return observed == wanted ? 0 : fabs(observed - wanted); /* equal infinities included */
}

void exact_compare(const exact *e, const trace_op *op, const void *output, double *errors_out)
{
    const trace_config *model = &e->trace->config;
    int64_t heads = model->q_heads, dim = model->head_dim;
    size_t element = ckv_dtype_bytes(model->dtype);
    for (int64_t i = 0; i < op->rows * heads; i++) {
        errors_out[i] = 0;
        for (int64_t d = i * dim; d < (i + 1) * dim; d++) {
            float observed;
            ckv_convert_to_float(model->dtype, (const char *)output + (size_t)d * element, 1, &observed);
            errors_out[i] = fmax(errors_out[i], difference(observed, i < op->seq_len * heads ? e->out[d] : 0));
        }
    }
}

static char level(double error, double tolerance)
{
    static const char levels[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    enum { TOLERANCE = 20, LAST = 61 }; /* levels['K'] holds the tolerance */
    if (error == 0)
        return levels[0];
    double factor = error / tolerance;
    if (!isfinite(factor))
        return levels[LAST];
    double steps = TOLERANCE + floor(2 * log2(factor)) + (factor > 1);
    return levels[(int)fmin(fmax(steps, 1), LAST)];
}

json_t *heat_map(const trace_op *op, int64_t heads, const double *errors, double tolerance, int64_t max_cells)
{
    enum { MAX_HEADS = 64 };
    int64_t cell_heads = (heads + MAX_HEADS - 1) / MAX_HEADS, columns = (heads + cell_heads - 1) / cell_heads;
    int64_t lines = max_cells / columns > 0 ? max_cells / columns : 1;
    int64_t cell_rows = (op->rows + lines - 1) / lines;
    lines = (op->rows + cell_rows - 1) / cell_rows;
    char *levels = calloc((size_t)(lines * columns) + 1, 1);
    for (int64_t i = 0; levels != NULL && i < op->rows * heads; i++) {
        char found = level(errors[i], tolerance);
        char *cell = &levels[i / heads / cell_rows * columns + i % heads / cell_heads];
        if (found > *cell) /* ASCII has them in order */
            *cell = found;
    }
    json_t *map = levels == NULL ? NULL
                                 : json_pack("{sI sI ss}", "rows", (json_int_t)cell_rows, "heads",
                                             (json_int_t)cell_heads, "levels", levels);
    free(levels);
    return map;
}
