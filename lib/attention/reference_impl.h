/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of the exact-window reference share. Nothing else may include this. */
#ifndef CKV_ATTENTION_REFERENCE_IMPL_H
#define CKV_ATTENTION_REFERENCE_IMPL_H

#include <ckv/reference.h>

typedef struct ckv_reference_layer {
    int64_t capacity_tokens;
    float *k, *v;           /* [capacity_tokens, kv_heads, head_dim]; float holds every dtype exactly */
    unsigned char *written; /* [capacity_tokens] */
} ckv_reference_layer;

struct ckv_reference {
    ckv_reference_config config; /* scale filled in */
    ckv_reference_layer *layers;
    int is_open;
    int64_t pin_tokens, window_tokens;
    int64_t committed_tokens;
    int64_t last_layer, last_seq_len, last_block_size; /* of the last run; last_seq_len 0: none since open or commit */
};

/* The ids a causal block sees, in order: [0, fixed_end), then [begin, end), its own tokens last. */
typedef struct ckv_reference_keys {
    int64_t fixed_end, begin, end;
} ckv_reference_keys;

/* Keys of causal block `block`, its window widened by `extra_tokens` on the old side. */
ckv_reference_keys ckv_reference_visible(const ckv_reference *reference, int64_t block_size, int64_t block,
                                         int64_t extra_tokens);

static inline int64_t ckv_reference_num_keys(const ckv_reference_keys *keys)
{
    return keys->fixed_end + keys->end - keys->begin;
}

static inline int64_t ckv_reference_key_id(const ckv_reference_keys *keys, int64_t index)
{
    return index < keys->fixed_end ? index : keys->begin + index - keys->fixed_end;
}

static inline int64_t ckv_reference_kv_head(const ckv_reference *reference, int64_t q_head)
{
    return q_head / (reference->config.q_heads / reference->config.kv_heads);
}

/* Offset of the vector of (token, K/V head) in a layer's arrays. */
static inline int64_t ckv_reference_offset(const ckv_reference *reference, int64_t token, int64_t kv_head)
{
    return (token * reference->config.kv_heads + kv_head) * reference->config.head_dim;
}

/* Query vector of (row, head), scaled, into `query` [head_dim]. */
void ckv_reference_load_query(const ckv_reference *reference, const ckv_reference_forward *forward, int64_t row,
                              int64_t head, double *query);

double ckv_reference_dot(const double *query, const float *key, int64_t head_dim);

/* Softmax attention of one query over `keys`: scores [num_keys] receives the scores, out [head_dim] the result; the
 * largest score and the sum of exp(score - largest) go to *max_out and *sum_out. */
void ckv_reference_attend(const ckv_reference *reference, const ckv_reference_layer *layer,
                          const ckv_reference_keys *keys, int64_t kv_head, const double *query, double *scores,
                          double *out, double *max_out, double *sum_out);

/* What run and explain both refuse. `block_size_out` is never 0. */
ckv_status ckv_reference_check_forward(const ckv_reference *reference, const ckv_reference_forward *forward,
                                       int64_t *block_size_out);

#endif
