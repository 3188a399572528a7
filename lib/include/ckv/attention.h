/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one forward over the cache, one layer at a time. */
#ifndef CKV_ATTENTION_H
#define CKV_ATTENTION_H

#include <ckv/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ckv_attention_mask { CKV_MASK_NONE = 0, CKV_MASK_KEY_PADDING = 1, CKV_MASK_CUSTOM = 2 } ckv_attention_mask;
typedef enum ckv_quantization { CKV_QUANT_NONE = 0, CKV_QUANT_FP8 = 1 } ckv_quantization;

typedef struct ckv_attention_args {
    size_t struct_size; /* sizeof(ckv_attention_args) */
    ckv_cache *cache;
    int64_t layer;
    int64_t q_heads; /* of this rank; a multiple of the K/V heads: query head h reads K/V head h / (q_heads /
                        kv_heads) */
    int64_t first_kv_head, kv_heads; /* 0, 0: all of the cache's. Else the call stages and attends these K/V heads only;
                                        q_heads, q, kv, out and lse are of the query heads that read them */
    int64_t rows;                    /* S: token rows in q, kv and out, padding included */
    int64_t seq_len; /* real tokens of this forward, over all ranks, before sequence sharding: 1..rows; must be given */
    int64_t causal_block_size; /* 0: all real tokens are one causal block */
    const void *q; /* [rows, q_heads, head_dim] in the pool's tensor dtype, as kv and out; strides in elements */
    int64_t q_token_stride, q_head_stride;
    ckv_kv kv; /* [rows, kv_heads, head_dim] */
    void *
        out; /* [rows, q_heads, head_dim]; rows at and past seq_len come back zero; overlaps neither q, kv nor itself */
    int64_t out_token_stride, out_head_stride;
    float *lse;   /* NULL, or [rows, q_heads]: log of the sum of exp of the scaled scores; -inf for rows past seq_len */
    double scale; /* 0: 1 / sqrt(head_dim) */
    ckv_attention_mask mask;       /* what the caller wants besides the window; refused where unsupported */
    ckv_quantization quantization; /* of the arithmetic; what pages hold is the pool's business */
    const char *backend; /* NULL or "auto": the backend made for the call, or the first that supports it; else a name */
} ckv_attention_args;

/* struct_size set, everything else zero. */
CKV_API ckv_attention_args ckv_attention_args_default(void);

/* Point q, kv and their strides at one packed [rows, q_heads + 2*kv_heads, head_dim] tensor (Q, then K, then V heads).
 * cache and q_heads must be set. */
CKV_API void ckv_attention_args_set_packed(ckv_attention_args *args, const void *qkv);

/* Number of backends this build knows, and the name of each. Static storage; NULL past the end. */
CKV_API size_t ckv_attention_num_backends(void);
CKV_API const char *ckv_attention_backend_name(size_t index);

/* Whether `backend` can run `args` (its backend field is ignored). OK, or ERROR_UNSUPPORTED with the reason in
 * ckv_last_error(), or ERROR_INVALID for a name nobody knows. */
CKV_NODISCARD CKV_API ckv_status ckv_attention_supports(const char *backend, const ckv_attention_args *args);

/* Stage this forward's K/V of the real tokens and attend: every causal block sees the fixed region, the last
 * window_tokens before it, and itself. Enqueues on `stream`; the host device computes before it returns.
 * ERROR_STATE (no rollout), ERROR_INVALID (with the numbers), ERROR_UNSUPPORTED (with the reason). A refused call
 * changes neither the cache nor `out`. */
CKV_NODISCARD CKV_API ckv_status ckv_attention(const ckv_attention_args *args, ckv_stream stream);

/* The key under which a graph captured from ckv_attention with these arguments can be kept: equal keys, same tensors,
 * valid replay. It covers cache and geometry, layer, real token count, block size, shapes, strides and options. Not
 * where the rollout stands, its pin, or how often it was reopened: a replay finds those on the device. Not the
 * addresses of the tensors either: a graph works on those it was captured with. Errors as for ckv_attention. */
CKV_NODISCARD CKV_API ckv_status ckv_attention_graph_key(const ckv_attention_args *args, uint64_t *key_out);

#ifdef __cplusplus
}
#endif
#endif
