/* SPDX-License-Identifier: Apache-2.0 */
/* A model's calls on its cache and attention, with the tensors as literals: what `ckv repro shrink --case` writes. They
 * run through the public API on a number of ranks, each a thread, next to the exact-window reference. */
#ifndef CKV_TESTS_SUPPORT_RECORDED_CALLS_H
#define CKV_TESTS_SUPPORT_RECORDED_CALLS_H

#include "tests/support/case.h"

#include <ckv/types.h>

typedef enum recorded_kind {
    RECORDED_OPEN,
    RECORDED_WRITE_RANGE,
    RECORDED_ZERO_VALUES,
    RECORDED_FORWARD,
    RECORDED_COMMIT,
    RECORDED_CLOSE,
} recorded_kind;

/* The fields of its kind, as docs/FORMATS.md has them for a trace. */
typedef struct recorded_op {
    recorded_kind kind;
    int64_t pin_tokens, window_tokens, max_staged_tokens;
    const int64_t *causal_block_sizes;
    size_t num_causal_block_sizes;
    int64_t layer, start, tokens;
    int64_t rows, seq_len, causal_block_size;
    const float *q, *k, *v; /* dense; exact in the calls' dtype */
    const float *expected;  /* NULL, or what the model computed */
} recorded_op;

typedef struct recorded_calls {
    int ranks;
    int64_t layers, q_heads, kv_heads, head_dim, tokens_per_page;
    ckv_dtype dtype;
    double scale;     /* 0: 1 / sqrt(head_dim) */
    double tolerance; /* largest difference that is right */
    const recorded_op *ops;
    size_t num_ops;
} recorded_calls;

/* Every output, and every expected one, is the exact window's; padding rows come back zero. */
void recorded_calls_expect_exact(const recorded_calls *calls);

#endif
