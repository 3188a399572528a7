/* SPDX-License-Identifier: Apache-2.0 */
/* Known mistakes of a model's padding, window and sharding, each built into the dense reference: the keys a row would
 * have read, the place its output would have come from. */
#ifndef CKV_TOOLS_EXPLAIN_MISTAKES_H
#define CKV_TOOLS_EXPLAIN_MISTAKES_H

#include "tools/explain/history.h"

typedef struct mistake {
    const char *name; /* its class */
    const char *what;
    history_keys keys;       /* that the row would have read */
    const int64_t *row_of;   /* NULL, or by head the row whose output came back; -1: zeros */
    const int64_t *head_of;  /* NULL, or by head the head whose output came back */
    bool interleaved_groups; /* query head h reads K/V head h % kv_heads */
    bool has_distance;
    int64_t distance; /* of the one key, from the first token of its causal block; for a token's key */
    double residual;  /* largest |observed - output with the mistake| of the row */
} mistake;

typedef struct diagnosis {
    history_keys window; /* what the row should read */
    double error;        /* largest |observed - exact window| */
    int64_t head, channel;
    double observed, wanted; /* there */
    double largest;          /* |value| of the exact output */
    mistake *mistakes;       /* best fit first; those that change nothing here are left out */
    int64_t num_mistakes;
} diagnosis;

/* `observed` is [q_heads, head_dim]: what the model computed for `row`. Everything lives in the history's memory.
 * ERROR_MEMORY, ERROR_STATE, ERROR_INTERNAL. */
ckv_status diagnose(const history *h, int64_t row, const history_keys *window, const float *observed,
                    diagnosis *diagnosis_out, problem *why);

/* It leaves a difference within the tolerance and at most a tenth of what there was. */
bool mistake_fits(const diagnosis *found, const mistake *candidate, double tolerance);

/* What `row` of this forward computes with the same mistake, made in another forward. `out` is [q_heads, head_dim];
 * the exact output, and *applies_out false, where that mistake changes nothing. Errors as above. */
ckv_status imitate(const history *h, int64_t row, const mistake *like, double *out, bool *applies_out, problem *why);

#endif
