/* SPDX-License-Identifier: Apache-2.0 */
/* The model and its writer; trace_read.c is the reader. */
#include "tools/trace/trace.h"

#include "tools/trace/trace_internal.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct trace_block {
    struct trace_block *next;
    max_align_t memory[];
} trace_block;

void *trace_allocate(trace *t, size_t bytes)
{
    if (bytes > SIZE_MAX - sizeof(trace_block))
        return NULL;
    trace_block *block = calloc(1, sizeof *block + bytes);
    if (block == NULL)
        return NULL;
    block->next = t->blocks;
    t->blocks = block;
    return block->memory;
}

const void *trace_copy(trace *t, const void *source, size_t bytes)
{
    void *copy = trace_allocate(t, bytes);
    if (copy != NULL && bytes != 0)
        memcpy(copy, source, bytes);
    return copy;
}

trace_op *trace_append(trace *t, trace_op_kind kind)
{
    if (t->num_ops == t->ops_capacity) {
        size_t capacity = t->ops_capacity == 0 ? 16 : 2 * t->ops_capacity;
        trace_op *ops = realloc(t->ops, capacity * sizeof *ops);
        if (ops == NULL)
            return NULL;
        t->ops = ops;
        t->ops_capacity = capacity;
    }
    trace_op *op = &t->ops[t->num_ops++];
    *op = (trace_op){.kind = kind};
    return op;
}

static void free_blocks(trace *t)
{
    while (t->blocks != NULL) {
        trace_block *next = t->blocks->next;
        free(t->blocks);
        t->blocks = next;
    }
}

void trace_free(trace **t)
{
    if (t == NULL || *t == NULL)
        return;
    free_blocks(*t);
    safetensors_free(&(*t)->file);
    free((*t)->ops);
    free(*t);
    *t = NULL;
}

const char *trace_op_name(trace_op_kind kind)
{
    static const char *const names[] = {
#define TRACE_NAME(kind, name, ...) #name,
        TRACE_OPS(TRACE_NAME)
#undef TRACE_NAME
    };
    return names[kind];
}

safetensors_dtype trace_file_dtype(ckv_dtype dtype)
{
    switch (dtype) {
    case CKV_FP32:
    case CKV_FP8_E4M3: /* no tensor is of it */
        break;
    case CKV_BF16:
        return SAFETENSORS_BF16;
    case CKV_FP16:
        return SAFETENSORS_F16;
    }
    return SAFETENSORS_F32;
}

trace *trace_create(const trace_config *config)
{
    trace *t = calloc(1, sizeof *t);
    if (t != NULL)
        t->config = *config;
    return t;
}

/* A failed copy takes the op back, so that the trace stays sound. */
static bool keep(trace *t, bool ok)
{
    if (!ok)
        t->num_ops--;
    return ok;
}

static const void *copy_heads(trace *t, const void *source, int64_t tokens, int64_t heads)
{
    return trace_copy(t, source, (size_t)(tokens * heads * t->config.head_dim) * ckv_dtype_bytes(t->config.dtype));
}

bool trace_add_open(trace *t, int64_t pin_tokens, int64_t window_tokens, int64_t max_staged_tokens,
                    const int64_t *causal_block_sizes, size_t num_causal_block_sizes)
{
    trace_op *op = trace_append(t, TRACE_OPEN);
    if (op == NULL)
        return false;
    op->pin_tokens = pin_tokens;
    op->window_tokens = window_tokens;
    op->max_staged_tokens = max_staged_tokens;
    op->num_causal_block_sizes = num_causal_block_sizes;
    op->causal_block_sizes = trace_copy(t, causal_block_sizes, num_causal_block_sizes * sizeof *causal_block_sizes);
    return keep(t, op->causal_block_sizes != NULL);
}

bool trace_add_write_range(trace *t, int64_t layer, int64_t start, int64_t tokens, const char *name, const void *k,
                           const void *v)
{
    trace_op *op = trace_append(t, TRACE_WRITE_RANGE);
    if (op == NULL)
        return false;
    op->layer = layer;
    op->start = start;
    op->tokens = tokens;
    op->tensor = trace_copy(t, name, strlen(name) + 1);
    op->k = copy_heads(t, k, tokens, t->config.kv_heads);
    op->v = copy_heads(t, v, tokens, t->config.kv_heads);
    return keep(t, op->tensor != NULL && op->k != NULL && op->v != NULL);
}

bool trace_add_zero_values(trace *t, int64_t layer, int64_t start, int64_t tokens)
{
    trace_op *op = trace_append(t, TRACE_ZERO_VALUES);
    if (op == NULL)
        return false;
    op->layer = layer;
    op->start = start;
    op->tokens = tokens;
    return true;
}

bool trace_add_forward(trace *t, int64_t layer, int64_t rows, int64_t seq_len, int64_t causal_block_size,
                       const char *name, const void *q, const void *k, const void *v, const void *expected)
{
    trace_op *op = trace_append(t, TRACE_FORWARD);
    if (op == NULL)
        return false;
    op->layer = layer;
    op->rows = rows;
    op->seq_len = seq_len;
    op->causal_block_size = causal_block_size;
    op->tensor = trace_copy(t, name, strlen(name) + 1);
    op->q = copy_heads(t, q, rows, t->config.q_heads);
    op->k = copy_heads(t, k, rows, t->config.kv_heads);
    op->v = copy_heads(t, v, rows, t->config.kv_heads);
    op->expected = expected == NULL ? NULL : copy_heads(t, expected, rows, t->config.q_heads);
    return keep(t, op->tensor != NULL && op->q != NULL && op->k != NULL && op->v != NULL &&
                       (expected == NULL || op->expected != NULL));
}

bool trace_add_commit(trace *t, int64_t tokens)
{
    trace_op *op = trace_append(t, TRACE_COMMIT);
    if (op == NULL)
        return false;
    op->tokens = tokens;
    return true;
}

bool trace_add_close(trace *t)
{
    return trace_append(t, TRACE_CLOSE) != NULL;
}

static json_t *config_json(const trace_config *config)
{
    json_t *json = json_pack("{s:I, s:I, s:I, s:I, s:s, s:I}", "layers", (json_int_t)config->layers, "q_heads",
                             (json_int_t)config->q_heads, "kv_heads", (json_int_t)config->kv_heads, "head_dim",
                             (json_int_t)config->head_dim, "dtype", ckv_dtype_name(config->dtype), "tokens_per_page",
                             (json_int_t)config->tokens_per_page);
    if (config->scale != 0 && json_object_set_new(json, "scale", json_real(config->scale)) != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static json_t *open_json(const trace_op *op, const char *name)
{
    json_t *sizes = json_array();
    for (size_t i = 0; i < op->num_causal_block_sizes; i++)
        json_array_append_new(sizes, json_integer(op->causal_block_sizes[i]));
    return json_pack("{s:s, s:I, s:I, s:I, s:o}", "op", name, "pin_tokens", (json_int_t)op->pin_tokens, "window_tokens",
                     (json_int_t)op->window_tokens, "max_staged_tokens", (json_int_t)op->max_staged_tokens,
                     "causal_block_sizes", sizes);
}

static json_t *op_json(const trace_op *op)
{
    const char *name = trace_op_name(op->kind);
    switch (op->kind) {
    case TRACE_OPEN:
        return open_json(op, name);
    case TRACE_WRITE_RANGE:
        return json_pack("{s:s, s:I, s:I, s:s}", "op", name, "layer", (json_int_t)op->layer, "start",
                         (json_int_t)op->start, "tensor", op->tensor);
    case TRACE_ZERO_VALUES:
        return json_pack("{s:s, s:I, s:I, s:I}", "op", name, "layer", (json_int_t)op->layer, "start",
                         (json_int_t)op->start, "tokens", (json_int_t)op->tokens);
    case TRACE_FORWARD:
        return json_pack("{s:s, s:I, s:s, s:I, s:I}", "op", name, "layer", (json_int_t)op->layer, "tensor", op->tensor,
                         "seq_len", (json_int_t)op->seq_len, "causal_block_size", (json_int_t)op->causal_block_size);
    case TRACE_COMMIT:
        return json_pack("{s:s, s:I}", "op", name, "tokens", (json_int_t)op->tokens);
    case TRACE_CLOSE:
        break;
    }
    return json_pack("{s:s}", "op", name);
}

/* The texts of the metadata, for the caller to free; false when out of memory or a name is not UTF-8. */
static bool make_texts(const trace *t, char **config_out, char **ops_out)
{
    json_t *config = config_json(&t->config);
    json_t *ops = json_array();
    int failed = config == NULL || ops == NULL;
    for (size_t i = 0; i < t->num_ops; i++)
        failed |= json_array_append_new(ops, op_json(&t->ops[i]));
    *config_out = failed ? NULL : json_dumps(config, JSON_COMPACT);
    *ops_out = failed ? NULL : json_dumps(ops, JSON_COMPACT);
    json_decref(config);
    json_decref(ops);
    return *config_out != NULL && *ops_out != NULL;
}

static bool add_tensor(trace *scratch, const trace_config *config, const char *name, const char *suffix,
                       const void *data, int64_t tokens, int64_t heads, safetensors_tensor *tensor)
{
    size_t length = strlen(name) + strlen(suffix) + 1;
    char *full_name = trace_allocate(scratch, length);
    if (full_name == NULL)
        return false;
    snprintf(full_name, length, "%s%s", name, suffix);
    *tensor =
        (safetensors_tensor){full_name, trace_file_dtype(config->dtype),
                             3,         {tokens, heads, config->head_dim},
                             data,      (size_t)(tokens * heads * config->head_dim) * ckv_dtype_bytes(config->dtype)};
    return true;
}

static bool list_tensors(const trace *t, trace *scratch, safetensors_tensor *tensors, size_t *count)
{
    const trace_config *c = &t->config;
    bool ok = true;
    for (size_t i = 0; i < t->num_ops && ok; i++) {
        const trace_op *op = &t->ops[i];
        bool is_forward = op->kind == TRACE_FORWARD;
        int64_t tokens = is_forward ? op->rows : op->tokens;
        if (!is_forward && op->kind != TRACE_WRITE_RANGE)
            continue;
        ok = add_tensor(scratch, c, op->tensor, ".k", op->k, tokens, c->kv_heads, &tensors[(*count)++]) &&
             add_tensor(scratch, c, op->tensor, ".v", op->v, tokens, c->kv_heads, &tensors[(*count)++]);
        if (is_forward)
            ok = ok && add_tensor(scratch, c, op->tensor, ".q", op->q, tokens, c->q_heads, &tensors[(*count)++]);
        if (op->expected != NULL)
            ok = ok && add_tensor(scratch, c, op->tensor, ".expected", op->expected, tokens, c->q_heads,
                                  &tensors[(*count)++]);
    }
    return ok;
}

bool trace_write(const trace *t, const char *path, problem *why)
{
    char *config = NULL, *ops = NULL;
    trace scratch = {.blocks = NULL}; /* owns the tensor names */
    safetensors_tensor *tensors = calloc(4 * t->num_ops + 1, sizeof *tensors);
    size_t num_tensors = 0;
    bool ok = tensors != NULL && make_texts(t, &config, &ops) && list_tensors(t, &scratch, tensors, &num_tensors);
    if (ok) {
        const safetensors_entry metadata[] = {{"ckv_trace", "1"}, {"config", config}, {"ops", ops}};
        ok = safetensors_write(path, metadata, 3, tensors, num_tensors, why);
    } else {
        problem_format(why, "%s: the trace cannot be written: out of memory, or a name is not UTF-8", path);
    }
    free_blocks(&scratch);
    free(tensors);
    free(config);
    free(ops);
    return ok;
}
