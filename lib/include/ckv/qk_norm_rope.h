/* SPDX-License-Identifier: Apache-2.0 */
/* qk_norm_rope: RMS norm of Q and K, then rotary embedding, in place on one packed projection. Heads are this rank's,
 * so a slice of a sharded projection gives the same values as that slice of the whole. */
#ifndef CKV_QK_NORM_ROPE_H
#define CKV_QK_NORM_ROPE_H

#include <ckv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ckv_norm_span {
    CKV_NORM_HEAD = 0, /* each head vector by itself; weights [head_dim], the same for every head */
    CKV_NORM_ALL =
        1, /* all heads of Q (of K) together; weights [heads over all ranks, head_dim]: needs every head here */
} ckv_norm_span;

typedef enum ckv_rope_pairs {
    CKV_ROPE_HALVES = 0,      /* element i with i + head_dim/2 */
    CKV_ROPE_INTERLEAVED = 1, /* element 2i with 2i + 1 */
} ckv_rope_pairs;

typedef struct ckv_qk_norm_rope_params {
    void *qkv; /* [tokens, q_heads + kv_heads (+ anything, untouched), head_dim]: Q heads, then K heads */
    int64_t token_stride, head_stride; /* elements; head_dim is contiguous */
    int64_t tokens;
    int64_t q_heads, kv_heads;             /* of this rank */
    int64_t total_q_heads, total_kv_heads; /* over all ranks */
    int64_t head_dim;                      /* even, at most 1024 */
    ckv_dtype dtype;
    ckv_norm_span norm;
    ckv_rope_pairs pairs;
    float epsilon;                    /* added to the mean square; not negative */
    const float *q_weight, *k_weight; /* device; NULL: ones */
    const float *cosines,
        *sines; /* device [tokens, head_dim/2]: row t belongs to token row t, whatever rank it is on */
} ckv_qk_norm_rope_params;

/* Arithmetic in float; enqueues on `stream`, the host device computes before it returns. No tokens or no heads: nothing
 * to do, no launch. ERROR_INVALID (sizes, NULLs), ERROR_UNSUPPORTED (CKV_NORM_ALL with fewer than all heads: the norm
 * would be another). `device`: where the pointers live; NULL: host. */
CKV_NODISCARD CKV_API ckv_status ckv_qk_norm_rope(const ckv_device *device, const ckv_qk_norm_rope_params *params,
                                                  ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
