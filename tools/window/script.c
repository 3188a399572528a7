/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/window/window.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool read_create(const json_t *object, window_op *op, char *cause, size_t cause_bytes)
{
    const char *dtype = NULL;
    op->pool = ckv_pool_config_default();
    const json_field fields[] = {
        {"layers", JSON_FIELD_INTEGER, true, &op->pool.layers},
        {"kv_heads", JSON_FIELD_INTEGER, true, &op->pool.kv_heads},
        {"head_dim", JSON_FIELD_INTEGER, true, &op->pool.head_dim},
        {"dtype", JSON_FIELD_STRING, true, &dtype},
        {"tokens_per_page", JSON_FIELD_INTEGER, true, &op->pool.tokens_per_page},
        {"pool_tokens", JSON_FIELD_INTEGER, true, &op->pool.pool_tokens},
    };
    if (!json_read_fields(object, fields, COUNT(fields), cause, cause_bytes))
        return false;
    if (ckv_tensor_dtype_from_name(dtype, &op->pool.dtype) != CKV_OK) {
        snprintf(cause, cause_bytes, "%s", ckv_last_error());
        return false;
    }
    return true;
}

static bool read_open(const json_t *object, window_op *op, char *cause, size_t cause_bytes)
{
    const json_field fields[] = {
        {"pin_tokens", JSON_FIELD_INTEGER, false, &op->pin_tokens},
        {"window_tokens", JSON_FIELD_INTEGER, true, &op->window_tokens},
        {"max_staged_tokens", JSON_FIELD_INTEGER, true, &op->max_staged_tokens},
        {"causal_block_sizes", JSON_FIELD_INTEGERS, true, &op->causal_block_sizes},
    };
    return json_read_fields(object, fields, COUNT(fields), cause, cause_bytes);
}

static bool read_range(const json_t *object, window_op *op, char *cause, size_t cause_bytes)
{
    const json_field fields[] = {
        {"start", JSON_FIELD_INTEGER, true, &op->start},
        {"tokens", JSON_FIELD_INTEGER, true, &op->tokens},
    };
    return json_read_fields(object, fields, COUNT(fields), cause, cause_bytes);
}

static bool read_forward(const json_t *object, window_op *op, char *cause, size_t cause_bytes)
{
    const json_field fields[] = {
        {"tokens", JSON_FIELD_INTEGER, true, &op->tokens},
        {"causal_block_size", JSON_FIELD_INTEGER, true, &op->causal_block_size},
    };
    return json_read_fields(object, fields, COUNT(fields), cause, cause_bytes);
}

static bool read_commit(const json_t *object, window_op *op, char *cause, size_t cause_bytes)
{
    const json_field fields[] = {{"tokens", JSON_FIELD_INTEGER, true, &op->tokens}};
    return json_read_fields(object, fields, COUNT(fields), cause, cause_bytes);
}

static bool read_close(const json_t *object, window_op *op, char *cause, size_t cause_bytes)
{
    (void)op;
    return json_read_fields(object, NULL, 0, cause, cause_bytes);
}

static const struct {
    const char *name;
    bool (*read_fields)(const json_t *object, window_op *op, char *cause, size_t cause_bytes);
} readers[] = {
    [WINDOW_CREATE] = {"create", read_create},
    [WINDOW_OPEN] = {"open", read_open},
    [WINDOW_WRITE_RANGE] = {"write_range", read_range},
    [WINDOW_ZERO_VALUES] = {"zero_values", read_range},
    [WINDOW_FORWARD] = {"forward", read_forward},
    [WINDOW_COMMIT] = {"commit", read_commit},
    [WINDOW_CLOSE] = {"close", read_close},
};

static bool append_op(window_script *script, const window_op *op)
{
    if (script->num_ops == script->capacity) {
        size_t capacity = script->capacity > 0 ? 2 * script->capacity : 64;
        window_op *ops = realloc(script->ops, capacity * sizeof *ops);
        if (ops == NULL)
            return false;
        script->ops = ops;
        script->capacity = capacity;
    }
    script->ops[script->num_ops++] = *op;
    return true;
}

static bool read_op(window_script *script, size_t kind, const json_t *object, char *cause, size_t cause_bytes)
{
    if ((kind == WINDOW_CREATE) != (script->num_ops == 0)) {
        snprintf(cause, cause_bytes,
                 kind == WINDOW_CREATE ? "'create' must be the first op" : "the first op must be 'create'");
        return false;
    }
    window_op op = {.kind = (window_op_kind)kind};
    bool ok = readers[kind].read_fields(object, &op, cause, cause_bytes);
    if (ok && !append_op(script, &op)) {
        snprintf(cause, cause_bytes, "out of memory");
        ok = false;
    }
    if (!ok)
        free(op.causal_block_sizes.values);
    return ok;
}

static bool read_line(void *context, const json_t *object, const char *op, char *cause, size_t cause_bytes)
{
    for (size_t kind = 0; kind < COUNT(readers); kind++)
        if (strcmp(op, readers[kind].name) == 0)
            return read_op(context, kind, object, cause, cause_bytes);
    if (strcmp(op, "comment") == 0) {
        const char *text;
        const json_field fields[] = {{"text", JSON_FIELD_STRING, false, &text}};
        return json_read_fields(object, fields, COUNT(fields), cause, cause_bytes);
    }
    snprintf(cause, cause_bytes, "unknown op '%.64s'", op);
    return false;
}

bool window_script_parse(const char *name, const char *text, size_t bytes, window_script *script_out,
                         json_lines_error *error_out)
{
    window_script script = {0};
    if (!json_lines_parse(name, text, bytes, read_line, &script, error_out)) {
        window_script_free(&script);
        return false;
    }
    if (script.num_ops == 0) {
        window_script_free(&script);
        return json_lines_fail(error_out, "%.500s:1: the script is empty; the first op must be 'create'", name);
    }
    *script_out = script;
    return true;
}

void window_script_free(window_script *script)
{
    for (size_t i = 0; i < script->num_ops; i++)
        free(script->ops[i].causal_block_sizes.values);
    free(script->ops);
    *script = (window_script){0};
}
