/* SPDX-License-Identifier: Apache-2.0 */
/* A small cache and the model beside it, for the suites of one process. */
#ifndef CKV_TESTS_SINGLE_GPU_ROLLOUT_CASE_H
#define CKV_TESTS_SINGLE_GPU_ROLLOUT_CASE_H

#include "tests/support/device_memory.h"
#include "tests/support/rollout_model.h"

#define SIZES(...) ((int64_t[]){__VA_ARGS__})

static rollout_model model; /* of the case; too large for a stack */

static inline ckv_pool_config pool_config(int64_t layers, int64_t heads, int64_t page, int64_t tokens)
{
    ckv_pool_config config = ckv_pool_config_default();
    config.device = test_device();
    config.layers = layers;
    config.kv_heads = heads;
    model_fit_pool(&config);
    config.tokens_per_page = page;
    config.pool_tokens = tokens;
    config.poison_fresh_pages = 1;
    return config;
}

static inline ckv_rollout_config rollout(int64_t pin, int64_t window, int64_t staged, const int64_t *sizes,
                                         size_t num_sizes)
{
    ckv_rollout_config config = ckv_rollout_config_default();
    config.pin_tokens = pin;
    config.window_tokens = window;
    config.max_staged_tokens = staged;
    config.causal_block_sizes = sizes;
    config.num_causal_block_sizes = num_sizes;
    return config;
}

/* A cache whose pool is exactly what the geometry needs, opened, with the model beside it. */
static inline ckv_cache *open_exact(int64_t layers, int64_t heads, int64_t page, const ckv_rollout_config *config)
{
    ckv_rollout_size size;
    assert_ok(ckv_rollout_config_size(config, page, &size));
    ckv_pool_config pool = pool_config(layers, heads, page, size.pool_tokens);
    ckv_cache *cache;
    assert_ok(ckv_cache_create(&pool, &cache));
    assert_ok(ckv_cache_open(cache, config, NULL));
    model_create(&model, &pool);
    model_open(&model, config);
    return cache;
}

/* Every layer: a dirty step, the real one, and what the rows of the size read. */
static inline void forward_and_expect(ckv_cache *cache, int64_t tokens, int64_t block)
{
    for (int64_t layer = 0; layer < model.pool.layers; layer++) {
        assert_ok(model_forward(&model, cache, layer, tokens, block, 0));
        assert_ok(model_forward(&model, cache, layer, tokens, block, 1));
    }
    for (int64_t layer = 0; layer < model.pool.layers; layer++)
        model_expect_rows(&model, cache, layer, tokens, block);
}

static inline void prompt(ckv_cache *cache, int64_t tokens)
{
    for (int64_t layer = 0; layer < model.pool.layers; layer++)
        assert_ok(model_write_range(&model, cache, layer, 0, tokens));
    assert_ok(model_commit(&model, cache, tokens));
}

#endif
