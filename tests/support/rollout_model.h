/* SPDX-License-Identifier: Apache-2.0 */
/* What a rollout must read, from its definition: a list of tokens with versions, no pages. Tokens are stamped into K
 * and V as [version, id, layer * 64 + head * 2 + is_v, 1], read back through the cache's rows and compared. Where pages
 * hold fp8, each of these is written in digits of base 16, which e4m3 holds exactly. */
#ifndef CKV_TESTS_SUPPORT_ROLLOUT_MODEL_H
#define CKV_TESTS_SUPPORT_ROLLOUT_MODEL_H

#include "lib/device/device.h"

#include <ckv/cache.h>

enum { MODEL_HEAD_DIM = 4, MODEL_DIGITS = 6, MODEL_MAX_TOKENS = 1 << 15, MODEL_MAX_LAYERS = 3 };

typedef struct rollout_model {
    ckv_pool_config pool;
    const ckv_device *device;
    int64_t pin, window, max_staged;
    int64_t fixed, committed, evicted; /* evicted: committed tokens no longer resident */
    int64_t last_version;
    /* By token id; 0: never written. The two differ after zero_values. */
    int32_t k_version[MODEL_MAX_LAYERS][MODEL_MAX_TOKENS];
    int32_t v_version[MODEL_MAX_LAYERS][MODEL_MAX_TOKENS]; /* -1: zeroed */
} rollout_model;

/* Pages of fp32, or those that the case shall have; head_dim to fit. The other fields stay. */
void model_fit_pool(ckv_pool_config *pool);

/* `pool` as model_fit_pool makes it. */
void model_create(rollout_model *model, const ckv_pool_config *pool);
void model_open(rollout_model *model, const ckv_rollout_config *config);

/* Token id at a resident position. */
int64_t model_id(const rollout_model *model, int64_t position);

/* Do the operation on the cache and, when it is accepted, on the model. `strided`: K/V with odd strides. */
ckv_status model_write_range(rollout_model *model, ckv_cache *cache, int64_t layer, int64_t start, int64_t tokens);
ckv_status model_zero_values(rollout_model *model, ckv_cache *cache, int64_t layer, int64_t start, int64_t tokens);
ckv_status model_forward(rollout_model *model, ckv_cache *cache, int64_t layer, int64_t tokens, int64_t block,
                         int strided);

/* K/V of a forward that a graph replays, in *memory (made when NULL), and on the model as if it had run. */
ckv_kv model_stamp_forward(rollout_model *model, int64_t layer, int64_t tokens, void **memory);

ckv_status model_commit(rollout_model *model, ckv_cache *cache, int64_t tokens);
ckv_status model_follow_commit(rollout_model *model, ckv_cache *cache, int64_t tokens); /* of a replayed commit */

/* After a forward of `tokens` in blocks: every row of the layer reads exactly the expected tokens, own ones last. */
void model_expect_rows(const rollout_model *model, const ckv_cache *cache, int64_t layer, int64_t tokens,
                       int64_t block);

#endif
