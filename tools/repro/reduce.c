/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/repro/reduce.h"

#include "tools/trace/trace_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_in(trace_range range, size_t index)
{
    return index >= range.first && index - range.first < range.count;
}

/* --- Chunks --- */

static bool ends_chunk(trace_op_kind kind)
{
    return kind == TRACE_COMMIT || kind == TRACE_OPEN || kind == TRACE_CLOSE;
}

/* The next chunk at or after op *at, which moves behind it; false when there is none. */
static bool next_chunk(const trace *t, size_t *at, trace_range *chunk_out)
{
    while (*at < t->num_ops && (t->ops[*at].kind == TRACE_OPEN || t->ops[*at].kind == TRACE_CLOSE))
        (*at)++;
    *chunk_out = (trace_range){*at, 0};
    while (*at < t->num_ops && !ends_chunk(t->ops[*at].kind))
        (*at)++;
    if (*at < t->num_ops && t->ops[*at].kind == TRACE_COMMIT)
        (*at)++;
    chunk_out->count = *at - chunk_out->first;
    return chunk_out->count > 0;
}

size_t trace_chunks(const trace *t)
{
    size_t chunks = 0, at = 0;
    trace_range chunk;
    while (next_chunk(t, &at, &chunk))
        chunks++;
    return chunks;
}

trace_range trace_chunk(const trace *t, size_t index)
{
    size_t at = 0;
    trace_range chunk;
    for (size_t i = 0; next_chunk(t, &at, &chunk) && i < index; i++)
        continue;
    return chunk;
}

int64_t trace_most_tokens(const trace *t, trace_range ops)
{
    int64_t most = 0;
    for (size_t i = ops.first; i < ops.first + ops.count; i++) {
        const trace_op *op = &t->ops[i];
        int64_t tokens = op->kind == TRACE_FORWARD ? op->seq_len : op->kind == TRACE_COMMIT ? op->tokens : 0;
        most = tokens > most ? tokens : most;
    }
    return most;
}

int64_t trace_tokens(const trace *t)
{
    int64_t tokens = 0;
    size_t at = 0;
    trace_range chunk;
    while (next_chunk(t, &at, &chunk))
        tokens += trace_most_tokens(t, chunk);
    return tokens;
}

/* --- Numbers of ops --- */

static int64_t num_blocks(const trace_op *op)
{
    return op->causal_block_size == 0 ? 1 : op->seq_len / op->causal_block_size;
}

int64_t trace_get_number(const trace_op *op, trace_number number)
{
    bool is_edit = op->kind == TRACE_WRITE_RANGE || op->kind == TRACE_ZERO_VALUES;
    switch (number) {
    case NUMBER_NONE:
        return -1;
    case NUMBER_PIN:
        return op->kind == TRACE_OPEN ? op->pin_tokens : -1;
    case NUMBER_WINDOW:
        return op->kind == TRACE_OPEN ? op->window_tokens : -1;
    case NUMBER_STAGED:
        return op->kind == TRACE_OPEN ? op->max_staged_tokens : -1;
    case NUMBER_START:
        return is_edit ? op->start : -1;
    case NUMBER_TOKENS:
        return is_edit || op->kind == TRACE_COMMIT ? op->tokens : -1;
    case NUMBER_PADDING:
        return op->kind == TRACE_FORWARD ? op->rows - op->seq_len : -1;
    case NUMBER_BLOCKS:
        return op->kind == TRACE_FORWARD ? num_blocks(op) : -1;
    }
    return -1;
}

static bool set_number(trace_op *op, trace_number number, int64_t value)
{
    switch (number) {
    case NUMBER_NONE:
        break;
    case NUMBER_PIN:
        op->pin_tokens = value;
        break;
    case NUMBER_WINDOW:
        op->window_tokens = value;
        break;
    case NUMBER_STAGED:
        op->max_staged_tokens = value;
        break;
    case NUMBER_START:
        op->start = value;
        break;
    case NUMBER_TOKENS:
        op->tokens = value;
        break;
    case NUMBER_PADDING:
        op->rows = op->seq_len + value;
        break;
    case NUMBER_BLOCKS:
        op->causal_block_size = op->seq_len / value;
        return op->seq_len % value == 0;
    }
    return true;
}

/* The first tokens of a forward; its padding rows stay. A block that no longer divides them becomes one that does. */
static void cap_forward(trace_op *op, int64_t most)
{
    int64_t padding = op->rows - op->seq_len;
    if (op->seq_len <= most)
        return;
    bool is_one_block = num_blocks(op) == 1;
    op->seq_len = most;
    op->rows = most + padding;
    if (is_one_block)
        op->causal_block_size = op->causal_block_size == 0 ? 0 : most;
    else
        while (most % op->causal_block_size != 0)
            op->causal_block_size--;
}

static void cap_op(trace_op *op, int64_t most, bool is_prompt)
{
    if (op->kind == TRACE_FORWARD)
        cap_forward(op, most);
    else if ((op->kind == TRACE_COMMIT || (is_prompt && op->kind == TRACE_WRITE_RANGE)) && op->tokens > most)
        op->tokens = most;
}

/* --- Tensors --- */

/* What of a tensor's rows stays. */
typedef struct rows_kept {
    int64_t tokens, padding_from, padding;
} rows_kept;

static bool keeps_head(const trace *t, const reduction *r, bool is_query, int64_t head)
{
    int64_t group = t->config.q_heads / t->config.kv_heads;
    if (!is_query)
        return !is_in(r->kv_heads, (size_t)head);
    return !is_in(r->kv_heads, (size_t)(head / group)) && !is_in(r->group, (size_t)(head % group));
}

static void round_elements(ckv_dtype dtype, char *values, int64_t count)
{
    size_t bytes = ckv_dtype_bytes(dtype);
    for (int64_t i = 0; i < count; i++) {
        float value;
        ckv_convert_to_float(dtype, values + (size_t)i * bytes, 1, &value);
        value = isfinite(value) ? nearbyintf(value * 8) / 8 : value;
        ckv_convert_from_float(dtype, &value, 1, values + (size_t)i * bytes);
    }
}

static const void *cut_tensor(const trace *t, trace *small, const reduction *r, const void *tensor, bool is_query,
                              rows_kept rows)
{
    int64_t heads = is_query ? t->config.q_heads : t->config.kv_heads;
    int64_t kept = is_query ? small->config.q_heads : small->config.kv_heads;
    size_t element = ckv_dtype_bytes(t->config.dtype), vector = (size_t)t->config.head_dim * element;
    size_t small_vector = (size_t)small->config.head_dim * element;
    int64_t vectors = (rows.tokens + rows.padding) * kept;
    char *copy = trace_allocate(small, (size_t)vectors * small_vector), *to = copy;
    for (int64_t i = 0; copy != NULL && i < rows.tokens + rows.padding; i++) {
        int64_t row = i < rows.tokens ? i : rows.padding_from + i - rows.tokens;
        for (int64_t head = 0; head < heads; head++) {
            if (!keeps_head(t, r, is_query, head))
                continue;
            memcpy(to, (const char *)tensor + (size_t)(row * heads + head) * vector, small_vector);
            to += small_vector;
        }
    }
    if (copy != NULL && r->round_values)
        round_elements(t->config.dtype, copy, vectors * small->config.head_dim);
    return copy;
}

static bool keeps_expected(const trace *t, const reduction *r, const trace_op *op)
{
    if (op->expected == NULL || r->expected == EXPECTED_NONE)
        return false;
    for (const trace_op *later = op + 1; r->expected == EXPECTED_LAST && later < t->ops + t->num_ops; later++)
        if (later->kind == TRACE_FORWARD && !is_in(r->ops, (size_t)(later - t->ops)))
            return false;
    return true;
}

static bool cut_tensors(const trace *t, trace *small, const reduction *r, const trace_op *from, trace_op *op)
{
    bool is_forward = op->kind == TRACE_FORWARD;
    if (!is_forward && op->kind != TRACE_WRITE_RANGE)
        return true;
    rows_kept rows = {.tokens = op->tokens};
    if (is_forward)
        rows = (rows_kept){op->seq_len, from->seq_len, op->rows - op->seq_len};
    op->tensor = trace_copy(small, from->tensor, strlen(from->tensor) + 1);
    op->k = cut_tensor(t, small, r, from->k, false, rows);
    op->v = cut_tensor(t, small, r, from->v, false, rows);
    if (is_forward)
        op->q = cut_tensor(t, small, r, from->q, true, rows);
    bool has_expected = keeps_expected(t, r, from);
    op->expected = has_expected ? cut_tensor(t, small, r, from->expected, true, rows) : NULL;
    return op->tensor != NULL && op->k != NULL && op->v != NULL && (!is_forward || op->q != NULL) &&
           (!has_expected || op->expected != NULL);
}

/* --- The whole --- */

static int64_t left(int64_t count, trace_range range)
{
    return count - (int64_t)range.count;
}

static trace *shell(const trace *t, const reduction *r)
{
    trace_config config = t->config;
    int64_t group = left(config.q_heads / config.kv_heads, r->group);
    config.layers = left(config.layers, r->layers);
    config.kv_heads = left(config.kv_heads, r->kv_heads);
    config.q_heads = config.kv_heads * group;
    config.head_dim = r->head_dim == 0 ? config.head_dim : r->head_dim;
    config.tokens_per_page = r->tokens_per_page == 0 ? config.tokens_per_page : r->tokens_per_page;
    return config.layers > 0 && config.q_heads > 0 ? trace_create(&config) : NULL;
}

/* Forwards in the chunk of op `index`? */
static bool is_prompt(const trace *t, size_t index)
{
    size_t at = 0;
    trace_range chunk = {0, 0};
    while (next_chunk(t, &at, &chunk) && !is_in(chunk, index))
        continue;
    for (size_t i = chunk.first; i < chunk.first + chunk.count; i++)
        if (t->ops[i].kind == TRACE_FORWARD)
            return false;
    return true;
}

static bool add_op(const trace *t, trace *small, const reduction *r, size_t index)
{
    const trace_op *from = &t->ops[index];
    bool has_layer = from->kind == TRACE_FORWARD || from->kind == TRACE_WRITE_RANGE || from->kind == TRACE_ZERO_VALUES;
    if (has_layer && is_in(r->layers, (size_t)from->layer))
        return true;
    trace_op *op = trace_append(small, from->kind);
    if (op == NULL)
        return false;
    *op = *from;
    if (has_layer && (size_t)op->layer >= r->layers.first + r->layers.count)
        op->layer -= (int64_t)r->layers.count;
    if (r->cap_tokens > 0 && is_in(r->capped, index))
        cap_op(op, r->cap_tokens, from->kind == TRACE_WRITE_RANGE && is_prompt(t, index));
    if (r->number != NUMBER_NONE && r->number_op == index && !set_number(op, r->number, r->value))
        return false;
    return cut_tensors(t, small, r, from, op);
}

static void add_size(int64_t *sizes, size_t *count, int64_t size)
{
    for (size_t i = 0; i < *count; i++)
        if (sizes[i] == size)
            return;
    sizes[(*count)++] = size;
}

/* The sizes that forwards use, and those declared before as far as they still fit. */
static bool declare_blocks(trace *small, trace_op *open, size_t end, bool only_used)
{
    size_t first = (size_t)(open - small->ops) + 1, count = 0;
    int64_t *sizes = trace_allocate(small, (end - first + open->num_causal_block_sizes + 1) * sizeof *sizes);
    if (sizes == NULL)
        return false;
    for (size_t i = first; i < end; i++) {
        const trace_op *op = &small->ops[i];
        if (op->kind == TRACE_FORWARD)
            add_size(sizes, &count, op->causal_block_size == 0 ? op->seq_len : op->causal_block_size);
    }
    for (size_t i = 0; i < open->num_causal_block_sizes && !only_used; i++)
        if (open->causal_block_sizes[i] <= open->max_staged_tokens)
            add_size(sizes, &count, open->causal_block_sizes[i]);
    if (count == 0)
        sizes[count++] = 1;
    open->causal_block_sizes = sizes;
    open->num_causal_block_sizes = count;
    return true;
}

static bool declare_all_blocks(trace *small, bool only_used)
{
    bool ok = true;
    for (size_t i = 0; i < small->num_ops && ok; i++) {
        if (small->ops[i].kind != TRACE_OPEN)
            continue;
        size_t end = i + 1;
        while (end < small->num_ops && small->ops[end].kind != TRACE_OPEN)
            end++;
        ok = declare_blocks(small, &small->ops[i], end, only_used);
    }
    return ok;
}

trace *reduce(const trace *t, const reduction *r)
{
    trace *small = shell(t, r);
    bool ok = small != NULL;
    for (size_t i = 0; i < t->num_ops && ok; i++)
        if (!is_in(r->ops, i))
            ok = add_op(t, small, r, i);
    if (!ok || !declare_all_blocks(small, r->only_used_blocks))
        trace_free(&small);
    return small;
}

static bool is_taken(const trace *t, const char *name, size_t but)
{
    for (size_t i = 0; i < t->num_ops; i++)
        if (i != but && t->ops[i].tensor != NULL && strcmp(t->ops[i].tensor, name) == 0)
            return true;
    return false;
}

bool trace_name_apart(trace *t)
{
    for (size_t i = 0; i < t->num_ops; i++) {
        trace_op *op = &t->ops[i];
        if (op->tensor == NULL || !is_taken(t, op->tensor, i))
            continue;
        char *name = NULL;
        for (size_t number = 0; number <= t->num_ops && (name == NULL || is_taken(t, name, i)); number++) {
            size_t bytes = strlen(op->tensor) + 24;
            name = trace_allocate(t, bytes);
            if (name == NULL)
                return false;
            snprintf(name, bytes, "%s-%zu", op->tensor, number);
        }
        op->tensor = name;
    }
    return true;
}
