/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for a video model: Q, K and V as any rank would compute them, a function of token, layer and step only. */
#ifndef CKV_TOOLS_DEMO_MODEL_H
#define CKV_TOOLS_DEMO_MODEL_H

#include <ckv/types.h>

/* Which tensor; part of the seed. */
enum { DEMO_Q = 0, DEMO_K = 1, DEMO_V = 2 };

/* Fill [tokens, heads, head_dim] with values of variance 1, the same for a token whatever the range it is made in.
 * `step` numbers the forwards of the whole rollout: denoising changes every value. */
void demo_model_fill(int tensor, int64_t layer, int64_t step, int64_t first_token, int64_t tokens, int64_t heads,
                     int64_t head_dim, ckv_dtype dtype, void *out);

#endif
