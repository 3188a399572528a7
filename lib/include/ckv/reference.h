/* SPDX-License-Identifier: Apache-2.0 */
/* The exact-window reference: every committed token in dense host arrays, keys selected by token id, double precision.
 * It shares no code with the paged layout; it is what the cache is compared with. Slow and large by design.
 *
 * Token ids count committed tokens from 0 since open; staged tokens carry the ids they would get if committed now.
 * (A resident position p of a cache is id p when p < fixed_tokens, else p + committed - staging_offset.) */
#ifndef CKV_REFERENCE_H
#define CKV_REFERENCE_H

#include <ckv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_reference ckv_reference;

typedef struct ckv_reference_config {
    size_t struct_size;
    int64_t layers, q_heads, kv_heads, head_dim;
    ckv_dtype dtype; /* of the tensors handed in; values are kept as they are, unrounded further */
    double scale;    /* 0: 1 / sqrt(head_dim) */
} ckv_reference_config;

CKV_API ckv_reference_config ckv_reference_config_default(void);

/* ERROR_INVALID, ERROR_MEMORY. */
CKV_NODISCARD CKV_API ckv_status ckv_reference_create(const ckv_reference_config *config,
                                                      ckv_reference **reference_out);
CKV_API void ckv_reference_destroy(ckv_reference **reference);

/* Forget everything and start a rollout. ERROR_INVALID for negative sizes. */
CKV_NODISCARD CKV_API ckv_status ckv_reference_open(ckv_reference *reference, int64_t pin_tokens,
                                                    int64_t window_tokens);

/* K/V of ids [first_id, first_id + tokens) in one layer: prompts and edits. ERROR_STATE, ERROR_INVALID, ERROR_MEMORY.
 */
CKV_NODISCARD CKV_API ckv_status ckv_reference_write(ckv_reference *reference, int64_t layer, int64_t first_id,
                                                     int64_t tokens, const ckv_kv *source);
CKV_NODISCARD CKV_API ckv_status ckv_reference_zero_values(ckv_reference *reference, int64_t layer, int64_t first_id,
                                                           int64_t tokens);

typedef struct ckv_reference_forward {
    size_t struct_size;
    int64_t layer;
    int64_t seq_len;           /* real tokens; rows past them are never looked at */
    int64_t causal_block_size; /* 0: one block */
    const void *q;             /* [seq_len, q_heads, head_dim] */
    int64_t q_token_stride, q_head_stride;
    ckv_kv kv;           /* [seq_len, kv_heads, head_dim] */
    double *out;         /* [seq_len, q_heads, head_dim], dense */
    double *lse;         /* NULL or [seq_len, q_heads] */
    const int64_t *rows; /* NULL: every row; else num_rows row indices: only these rows of out and lse are written */
    int64_t num_rows;
    /* NULL, or per causal block the number of keys before the window that are wrongly let in: what a window rounded
     * down to a page would read. For showing the size of that mistake. */
    const int64_t *extra_window_tokens;
} ckv_reference_forward;

CKV_API ckv_reference_forward ckv_reference_forward_default(void);

/* Stage and attend. ERROR_STATE, ERROR_INVALID, ERROR_MEMORY. */
CKV_NODISCARD CKV_API ckv_status ckv_reference_run(ckv_reference *reference, const ckv_reference_forward *forward);

/* Staged tokens become final. ERROR_STATE, ERROR_INVALID. */
CKV_NODISCARD CKV_API ckv_status ckv_reference_commit(ckv_reference *reference, int64_t tokens);

/* Could one key explain `observed` [head_dim], what some implementation computed for (row, head) of the last
 * ckv_reference_run? Tries every key of the row left out, and every other key let in: older tokens, later blocks'
 * tokens, and `padding` (K/V of rows at and past seq_len; NULL: none). */
typedef enum ckv_key_fault { CKV_KEY_NONE = 0, CKV_KEY_MISSING, CKV_KEY_EXTRA, CKV_KEY_PADDING } ckv_key_fault;

typedef struct ckv_key_explanation {
    ckv_key_fault fault;
    int64_t token;          /* id of the key; for CKV_KEY_PADDING the row index in the forward */
    double error_before;    /* largest |observed - exact window| of the head vector */
    double error_explained; /* the same against the output with the fault */
} ckv_key_explanation;

/* CKV_KEY_NONE unless a single key brings the error to at most a tenth. The forward must be the one last run, its
 * tensors unchanged. ERROR_STATE, ERROR_INVALID, ERROR_MEMORY. */
CKV_NODISCARD CKV_API ckv_status ckv_reference_explain(const ckv_reference *reference,
                                                       const ckv_reference_forward *forward, int64_t row, int64_t head,
                                                       const double *observed, const ckv_kv *padding,
                                                       int64_t padding_tokens, ckv_key_explanation *explanation_out);

#ifdef __cplusplus
}
#endif
#endif
