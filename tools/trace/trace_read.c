/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a trace: from a checked safetensors file to checked ops. */
#include "tools/trace/trace.h"
#include "tools/trace/trace_internal.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Far above anything that fits a machine, far below where products of a few of them overflow. */
#define MAX_MODEL_SIZE ((int64_t)1 << 20)
#define MAX_TOKENS ((int64_t)1 << 40)
#define MAX_OP_FIELDS 4

typedef struct reader {
    const char *label;
    trace *trace;
    const safetensors *file;
    problem *why;
    char where[64];  /* "config", "op 3 (forward)" */
    json_t *json;    /* the object there */
    json_t *tensors; /* set of the NAMEs that ops use */
} reader;

static bool refuse(const reader *r, const char *cause)
{
    return problem_set(r->why, "%s: %s: %s", r->label, r->where, cause);
}

static bool read_integer(const reader *r, const char *field, int64_t minimum, int64_t maximum, int64_t *value_out)
{
    json_t *value = json_object_get(r->json, field);
    if (value == NULL)
        return problem_set(r->why, "%s: %s: '%s' is missing", r->label, r->where, field);
    if (!json_is_integer(value))
        return problem_set(r->why, "%s: %s: '%s' is not an integer", r->label, r->where, field);
    int64_t number = json_integer_value(value);
    if (number < minimum || number > maximum)
        return problem_set(r->why, "%s: %s: '%s' is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, r->label,
                           r->where, field, number, minimum, maximum);
    *value_out = number;
    return true;
}

static bool read_string(const reader *r, const char *field, const char **value_out)
{
    json_t *value = json_object_get(r->json, field);
    if (value == NULL)
        return problem_set(r->why, "%s: %s: '%s' is missing", r->label, r->where, field);
    if (!json_is_string(value))
        return problem_set(r->why, "%s: %s: '%s' is not a string", r->label, r->where, field);
    *value_out = json_string_value(value);
    return true;
}

static bool check_fields(const reader *r, const char *const *known, size_t num_known)
{
    const char *key;
    json_t *value;
    json_object_foreach(r->json, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < num_known && !found; i++)
            found = known[i] != NULL && strcmp(key, known[i]) == 0;
        if (!found)
            return problem_set(r->why, "%s: %s: unknown field '%s'", r->label, r->where, key);
    }
    return true;
}

static bool read_scale(const reader *r, trace_config *config)
{
    json_t *scale = json_object_get(r->json, "scale");
    if (scale == NULL)
        return true;
    config->scale = json_number_value(scale);
    if (!json_is_number(scale) || !isfinite(config->scale) || config->scale <= 0)
        return refuse(r, "'scale' is not a number above 0");
    return true;
}

static bool read_config(reader *r)
{
    static const char *const fields[] = {"layers", "q_heads",         "kv_heads", "head_dim",
                                         "dtype",  "tokens_per_page", "scale"};
    trace_config *config = &r->trace->config;
    const char *dtype = NULL;
    if (!check_fields(r, fields, sizeof fields / sizeof fields[0]) ||
        !read_integer(r, "layers", 1, MAX_MODEL_SIZE, &config->layers) ||
        !read_integer(r, "q_heads", 1, MAX_MODEL_SIZE, &config->q_heads) ||
        !read_integer(r, "kv_heads", 1, MAX_MODEL_SIZE, &config->kv_heads) ||
        !read_integer(r, "head_dim", 1, MAX_MODEL_SIZE, &config->head_dim) ||
        !read_integer(r, "tokens_per_page", 1, MAX_MODEL_SIZE, &config->tokens_per_page) ||
        !read_string(r, "dtype", &dtype) || !read_scale(r, config))
        return false;
    if (ckv_tensor_dtype_from_name(dtype, &config->dtype) != CKV_OK)
        return refuse(r, ckv_last_error());
    if (config->q_heads % config->kv_heads != 0)
        return problem_set(r->why, "%s: config: q_heads %" PRId64 " is not a multiple of kv_heads %" PRId64, r->label,
                           config->q_heads, config->kv_heads);
    if ((config->tokens_per_page & (config->tokens_per_page - 1)) != 0)
        return problem_set(r->why, "%s: config: tokens_per_page %" PRId64 " is not a power of two", r->label,
                           config->tokens_per_page);
    return true;
}

static bool read_block_sizes(const reader *r, trace_op *op)
{
    json_t *sizes = json_object_get(r->json, "causal_block_sizes");
    if (!json_is_array(sizes) || json_array_size(sizes) == 0)
        return refuse(r, "'causal_block_sizes' is not an array of at least one integer");
    op->num_causal_block_sizes = json_array_size(sizes);
    int64_t *copy = trace_allocate(r->trace, op->num_causal_block_sizes * sizeof *copy);
    if (copy == NULL)
        return refuse(r, "out of memory");
    for (size_t i = 0; i < op->num_causal_block_sizes; i++) {
        json_t *size = json_array_get(sizes, i);
        copy[i] = json_integer_value(size);
        if (!json_is_integer(size) || copy[i] < 1 || copy[i] > MAX_TOKENS)
            return problem_set(r->why, "%s: %s: entry %zu of 'causal_block_sizes' is not an integer of 1 or more",
                               r->label, r->where, i);
    }
    op->causal_block_sizes = copy;
    return true;
}

/* One tensor of an op: [*tokens, heads, head_dim] with *tokens -1 before the first one sets it. */
static bool read_tensor(const reader *r, const char *name, const char *suffix, int64_t heads, int64_t *tokens,
                        const void **data_out)
{
    const trace_config *config = &r->trace->config;
    char full_name[512];
    if (snprintf(full_name, sizeof full_name, "%s.%s", name, suffix) >= (int)sizeof full_name)
        return refuse(r, "the tensor's name is longer than 500 bytes");
    const safetensors_tensor *tensor = safetensors_find(r->file, full_name);
    if (tensor == NULL)
        return problem_set(r->why, "%s: %s: tensor '%s' is missing", r->label, r->where, full_name);
    if (tensor->dtype != trace_file_dtype(config->dtype))
        return problem_set(r->why, "%s: %s: tensor '%s' is %s, config says %s", r->label, r->where, full_name,
                           safetensors_dtype_name(tensor->dtype), ckv_dtype_name(config->dtype));
    if (tensor->num_dimensions != 3)
        return problem_set(r->why, "%s: %s: tensor '%s' has %d dimensions; it must have 3", r->label, r->where,
                           full_name, tensor->num_dimensions);
    if (tensor->shape[1] != heads || tensor->shape[2] != config->head_dim)
        return problem_set(r->why,
                           "%s: %s: tensor '%s' is [%" PRId64 ", %" PRId64 ", %" PRId64
                           "]; by the config it must be [tokens, %" PRId64 ", %" PRId64 "]",
                           r->label, r->where, full_name, tensor->shape[0], tensor->shape[1], tensor->shape[2], heads,
                           config->head_dim);
    if (*tokens == -1)
        *tokens = tensor->shape[0];
    if (tensor->shape[0] != *tokens)
        return problem_set(r->why,
                           "%s: %s: tensor '%s' has %" PRId64 " token rows, the op's other tensors have %" PRId64,
                           r->label, r->where, full_name, tensor->shape[0], *tokens);
    bool aligned = (uintptr_t)tensor->data % ckv_dtype_bytes(config->dtype) == 0;
    *data_out = aligned ? tensor->data : trace_copy(r->trace, tensor->data, tensor->bytes);
    return *data_out != NULL || refuse(r, "out of memory");
}

static bool read_op_tensors(const reader *r, trace_op *op)
{
    const trace_config *config = &r->trace->config;
    bool is_forward = op->kind == TRACE_FORWARD;
    int64_t *tokens = is_forward ? &op->rows : &op->tokens;
    const char *name = NULL;
    if (!read_string(r, "tensor", &name))
        return false;
    if (json_object_set_new(r->tensors, name, json_true()) != 0)
        return refuse(r, "out of memory");
    op->tensor = trace_copy(r->trace, name, strlen(name) + 1);
    if (op->tensor == NULL)
        return refuse(r, "out of memory");
    *tokens = -1;
    if (is_forward && !read_tensor(r, name, "q", config->q_heads, tokens, &op->q))
        return false;
    if (!read_tensor(r, name, "k", config->kv_heads, tokens, &op->k) ||
        !read_tensor(r, name, "v", config->kv_heads, tokens, &op->v))
        return false;
    if (*tokens == 0)
        return problem_set(r->why, "%s: %s: tensor '%s.k' has no token rows", r->label, r->where, name);
    char expected[512];
    snprintf(expected, sizeof expected, "%s.expected", name);
    if (is_forward && safetensors_find(r->file, expected) != NULL)
        return read_tensor(r, name, "expected", config->q_heads, tokens, &op->expected);
    return true;
}

static bool read_forward(const reader *r, trace_op *op)
{
    if (!read_op_tensors(r, op) || !read_integer(r, "seq_len", 1, MAX_TOKENS, &op->seq_len) ||
        !read_integer(r, "causal_block_size", 0, MAX_TOKENS, &op->causal_block_size))
        return false;
    if (op->seq_len > op->rows)
        return problem_set(r->why, "%s: %s: seq_len %" PRId64 " is more than the %" PRId64 " rows of tensor '%s.q'",
                           r->label, r->where, op->seq_len, op->rows, op->tensor);
    return true;
}

static bool read_op_fields(const reader *r, trace_op *op)
{
    int64_t last_layer = r->trace->config.layers - 1;
    switch (op->kind) {
    case TRACE_OPEN:
        return read_integer(r, "pin_tokens", 0, MAX_TOKENS, &op->pin_tokens) &&
               read_integer(r, "window_tokens", 0, MAX_TOKENS, &op->window_tokens) &&
               read_integer(r, "max_staged_tokens", 1, MAX_TOKENS, &op->max_staged_tokens) && read_block_sizes(r, op);
    case TRACE_WRITE_RANGE:
        return read_integer(r, "layer", 0, last_layer, &op->layer) &&
               read_integer(r, "start", 0, MAX_TOKENS, &op->start) && read_op_tensors(r, op);
    case TRACE_ZERO_VALUES:
        return read_integer(r, "layer", 0, last_layer, &op->layer) &&
               read_integer(r, "start", 0, MAX_TOKENS, &op->start) &&
               read_integer(r, "tokens", 1, MAX_TOKENS, &op->tokens);
    case TRACE_FORWARD:
        return read_integer(r, "layer", 0, last_layer, &op->layer) && read_forward(r, op);
    case TRACE_COMMIT:
        return read_integer(r, "tokens", 1, MAX_TOKENS, &op->tokens);
    case TRACE_CLOSE:
        break;
    }
    return true;
}

static bool read_op(reader *r, size_t index, json_t *json)
{
    static const struct {
        const char *name;
        const char *fields[MAX_OP_FIELDS + 1];
    } schemas[] = {
#define TRACE_SCHEMA(kind, name, ...) [TRACE_##kind] = {#name, {"op", __VA_ARGS__}},
        TRACE_OPS(TRACE_SCHEMA)
#undef TRACE_SCHEMA
    };
    snprintf(r->where, sizeof r->where, "op %zu", index);
    r->json = json;
    const char *name = NULL;
    if (!json_is_object(json))
        return refuse(r, "not an object");
    if (!read_string(r, "op", &name))
        return false;
    for (size_t kind = 0; kind < sizeof schemas / sizeof schemas[0]; kind++) {
        if (strcmp(name, schemas[kind].name) != 0)
            continue;
        snprintf(r->where, sizeof r->where, "op %zu (%s)", index, name);
        trace_op *op = trace_append(r->trace, (trace_op_kind)kind);
        if (op == NULL)
            return refuse(r, "out of memory");
        return check_fields(r, schemas[kind].fields, MAX_OP_FIELDS + 1) && read_op_fields(r, op);
    }
    return problem_set(r->why, "%s: op %zu: unknown op '%s'", r->label, index, name);
}

static bool read_ops(reader *r, json_t *ops)
{
    if (!json_is_array(ops))
        return refuse(r, "not an array");
    size_t index;
    json_t *json;
    json_array_foreach(ops, index, json) if (!read_op(r, index, json)) return false;
    return true;
}

/* A tensor that carries the NAME of an op and a suffix that no op reads is a slip ("f0.expectd") that would go
 * unnoticed. Other tensors are nobody's business. */
static bool check_suffixes(const reader *r)
{
    static const char *const suffixes[] = {"q", "k", "v", "expected"};
    for (size_t i = 0; i < safetensors_num_tensors(r->file); i++) {
        const char *name = safetensors_tensor_at(r->file, i)->name;
        const char *dot = strrchr(name, '.');
        if (dot == NULL || json_object_getn(r->tensors, name, (size_t)(dot - name)) == NULL)
            continue;
        bool known = false;
        for (size_t s = 0; s < sizeof suffixes / sizeof suffixes[0]; s++)
            known |= strcmp(dot + 1, suffixes[s]) == 0;
        if (!known)
            return problem_set(r->why,
                               "%s: tensor '%s': unknown suffix; an op's tensors end in .q, .k, .v or .expected",
                               r->label, name);
    }
    return true;
}

static bool read_metadata_json(reader *r, const char *key, bool (*read)(reader *r, json_t *json))
{
    snprintf(r->where, sizeof r->where, "%s", key);
    const char *text = safetensors_metadata(r->file, key);
    if (text == NULL)
        return problem_set(r->why, "%s: __metadata__ has no '%s'", r->label, key);
    json_error_t error;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL)
        return problem_set(r->why, "%s: %s is not valid JSON: %s (byte %d)", r->label, key, error.text, error.position);
    r->json = json;
    bool ok = read(r, json);
    json_decref(json);
    return ok;
}

static bool read_config_object(reader *r, json_t *json)
{
    return json_is_object(json) ? read_config(r) : refuse(r, "not an object");
}

static bool read_everything(reader *r)
{
    const char *version = safetensors_metadata(r->file, "ckv_trace");
    if (version == NULL)
        return problem_set(r->why, "%s: not a trace: __metadata__ has no 'ckv_trace'", r->label);
    if (strcmp(version, "1") != 0)
        return problem_set(r->why, "%s: trace version '%s'; this program reads version 1", r->label, version);
    return read_metadata_json(r, "config", read_config_object) && read_metadata_json(r, "ops", read_ops) &&
           check_suffixes(r);
}

/* Takes the file. */
static bool from_file(const char *label, safetensors *file, trace **trace_out, problem *why)
{
    reader r = {
        .label = label, .file = file, .why = why, .trace = calloc(1, sizeof *r.trace), .tensors = json_object()};
    bool ok;
    if (r.trace == NULL || r.tensors == NULL) {
        ok = problem_set(why, "%s: out of memory", label);
        safetensors_free(&file);
    } else {
        r.trace->file = file;
        r.trace->digest = safetensors_header_digest(file);
        ok = read_everything(&r);
    }
    json_decref(r.tensors);
    if (ok)
        *trace_out = r.trace;
    else
        trace_free(&r.trace);
    return ok;
}

bool trace_read(const char *path, trace **trace_out, problem *why)
{
    safetensors *file;
    return safetensors_read(path, &file, why) && from_file(path, file, trace_out, why);
}

bool trace_parse(const char *label, const void *bytes, size_t size, trace **trace_out, problem *why)
{
    safetensors *file;
    return safetensors_parse(label, bytes, size, &file, why) && from_file(label, file, trace_out, why);
}
