/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of small rollouts, with the output a model would have recorded: computed here from a list of tokens, so that
 * it shares nothing with the cache or the reference. One key of the recorded output can be made wrong. */
#ifndef CKV_TESTS_SUPPORT_ROLLOUT_TRACE_H
#define CKV_TESTS_SUPPORT_ROLLOUT_TRACE_H

#include "tools/trace/trace.h"

#include <ckv/reference.h>

typedef enum rollout_padding { ROLLOUT_PADDING_RANDOM, ROLLOUT_PADDING_NAN } rollout_padding;

typedef struct rollout_spec {
    uint64_t seed;
    trace_config model;
    int64_t pin_tokens, window_tokens; /* the prompt fills the fixed region */
    int64_t chunks;                    /* the first of 11 tokens and one padding row, the others of 12 */
    rollout_padding padding;
    bool with_expected;
    ckv_key_fault fault;   /* in the recorded output of one forward */
    int64_t fault_token;   /* token id, or the padding row */
    int64_t fault_forward; /* counted from 0 over all layers */
} rollout_spec;

/* 12 query and 6 K/V heads, so 1, 2, 3 and 6 ranks share them evenly. */
rollout_spec rollout_spec_default(uint64_t seed, ckv_dtype dtype);

/* The same with a head_dim and pages that cuDNN takes; for fp16 and bf16. */
rollout_spec rollout_spec_cudnn(uint64_t seed, ckv_dtype dtype);

/* The trace, for the caller to free; NULL when out of memory. */
trace *rollout_trace_make(const rollout_spec *spec);

#endif
