/* SPDX-License-Identifier: Apache-2.0 */
/* A trace: the calls a model made on its cache and attention, with the tensors. Read from untrusted safetensors files,
 * or built in memory and written. */
#ifndef CKV_TOOLS_TRACE_H
#define CKV_TOOLS_TRACE_H

#include "tools/trace/problem.h"
#include "tools/trace/safetensors.h"

#include <ckv/types.h>

typedef struct trace_config {
    int64_t layers;
    int64_t q_heads, kv_heads; /* over all ranks */
    int64_t head_dim;
    ckv_dtype dtype;
    int64_t tokens_per_page;
    double scale; /* 0: 1 / sqrt(head_dim) */
} trace_config;

/* name in the file, fields besides "op" */
#define TRACE_OPS(X)                                                                                                   \
    X(OPEN, open, "pin_tokens", "window_tokens", "max_staged_tokens", "causal_block_sizes")                            \
    X(WRITE_RANGE, write_range, "layer", "start", "tensor")                                                            \
    X(ZERO_VALUES, zero_values, "layer", "start", "tokens")                                                            \
    X(FORWARD, forward, "layer", "tensor", "seq_len", "causal_block_size")                                             \
    X(COMMIT, commit, "tokens")                                                                                        \
    X(CLOSE, close, NULL)

typedef enum trace_op_kind {
#define TRACE_ENUM(kind, ...) TRACE_##kind,
    TRACE_OPS(TRACE_ENUM)
#undef TRACE_ENUM
} trace_op_kind;

/* "open", "write_range", ... Static storage. */
const char *trace_op_name(trace_op_kind kind);

/* Only the fields of its kind are set. Tensors are dense, in host memory, and aligned for their type. */
typedef struct trace_op {
    trace_op_kind kind;
    int64_t pin_tokens, window_tokens, max_staged_tokens;
    const int64_t *causal_block_sizes;
    size_t num_causal_block_sizes;
    int64_t layer;
    int64_t start;
    int64_t tokens; /* of write_range, zero_values and commit */
    int64_t rows;   /* S of a forward, padding included */
    int64_t seq_len, causal_block_size;
    const char *tensor;   /* NAME */
    const void *q;        /* [rows, q_heads, head_dim] */
    const void *k, *v;    /* [tokens or rows, kv_heads, head_dim] */
    const void *expected; /* NULL, or [rows, q_heads, head_dim] */
} trace_op;

/* Owns what its ops point to. */
typedef struct trace {
    trace_config config;
    size_t num_ops;
    trace_op *ops;
    uint64_t digest;     /* of the header it was read from; 0 for a built one */
    size_t ops_capacity; /* the rest is the trace's own */
    safetensors *file;
    struct trace_block *blocks;
} trace;

/* Read and check everything that can be checked without a cache: fields, types, shapes, dtypes. The cause names the op.
 */
bool trace_read(const char *path, trace **trace_out, problem *why);

/* The same from memory; `bytes` must outlive the trace. */
bool trace_parse(const char *label, const void *bytes, size_t size, trace **trace_out, problem *why);

/* Accepts NULL and a pointer to NULL. */
void trace_free(trace **t);

/* Build a trace op by op. Tensors are copied. NULL and false when out of memory. */
trace *trace_create(const trace_config *config);
bool trace_add_open(trace *t, int64_t pin_tokens, int64_t window_tokens, int64_t max_staged_tokens,
                    const int64_t *causal_block_sizes, size_t num_causal_block_sizes);
bool trace_add_write_range(trace *t, int64_t layer, int64_t start, int64_t tokens, const char *name, const void *k,
                           const void *v);
bool trace_add_zero_values(trace *t, int64_t layer, int64_t start, int64_t tokens);
bool trace_add_forward(trace *t, int64_t layer, int64_t rows, int64_t seq_len, int64_t causal_block_size,
                       const char *name, const void *q, const void *k, const void *v, const void *expected);
bool trace_add_commit(trace *t, int64_t tokens);
bool trace_add_close(trace *t);

/* Write it as a file that trace_read accepts when the ops are sound. Tensor names must differ. */
bool trace_write(const trace *t, const char *path, problem *why);

/* What a file calls a ckv_dtype. */
safetensors_dtype trace_file_dtype(ckv_dtype dtype);

#endif
