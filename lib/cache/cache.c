/* SPDX-License-Identifier: Apache-2.0 */
/* Life cycle of a cache and its rollout, and what others may see of it. */
#include "lib/cache/cache.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ckv_status ckv_cache_create_on_pool(ckv_pool *pool, int64_t max_pool_tokens, ckv_cache **cache_out)
{
    if (pool == NULL || cache_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "cache: pool and cache_out must not be NULL");
    const ckv_pool_config *config = ckv_pool_get_config(pool);
    if (max_pool_tokens == 0)
        max_pool_tokens = config->pool_tokens;
    if (max_pool_tokens < 0 || max_pool_tokens > config->pool_tokens || max_pool_tokens % config->tokens_per_page != 0)
        return ckv_fail(CKV_ERROR_INVALID,
                        "max_pool_tokens is %" PRId64 "; it must be a multiple of tokens_per_page %" PRId64
                        " up to the pool's %" PRId64,
                        max_pool_tokens, config->tokens_per_page, config->pool_tokens);
    ckv_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "cache: out of host memory");
    cache->pool = pool;
    cache->max_pages = max_pool_tokens / config->tokens_per_page;
    cache->user = ckv_pool_add_user(pool);
    *cache_out = cache;
    return CKV_OK;
}

ckv_status ckv_cache_create(const ckv_pool_config *config, ckv_cache **cache_out)
{
    ckv_pool *pool = NULL;
    CKV_TRY(ckv_pool_create(config, &pool));
    ckv_status status = ckv_cache_create_on_pool(pool, 0, cache_out);
    ckv_pool_destroy(&pool); /* the cache holds it now, or nobody does */
    return status;
}

void ckv_cache_destroy(ckv_cache **cache_in)
{
    if (cache_in == NULL || *cache_in == NULL)
        return;
    ckv_cache *cache = *cache_in;
    ckv_cache_close(cache);
    while (cache->attachments != NULL) {
        ckv_cache_attachment *attachment = cache->attachments;
        cache->attachments = attachment->next;
        attachment->release(attachment);
    }
    while (cache->all_tensors != NULL) {
        ckv_cache_tensors *tensors = cache->all_tensors;
        cache->all_tensors = tensors->next;
        ckv_cache_tensors_free(tensors, ckv_pool_device(cache->pool));
    }
    ckv_pool_remove_user(cache->pool);
    free(cache);
    *cache_in = NULL;
}

void ckv_cache_attach(ckv_cache *cache, ckv_cache_attachment *attachment)
{
    attachment->next = cache->attachments;
    cache->attachments = attachment;
}

ckv_cache_attachment *ckv_cache_find_attachment(const ckv_cache *cache, const void *owner)
{
    ckv_cache_attachment *attachment = cache->attachments;
    while (attachment != NULL && attachment->owner != owner)
        attachment = attachment->next;
    return attachment;
}

ckv_status ckv_cache_check_capacity(const ckv_geometry *geometry, int64_t pin_tokens, int64_t max_pages)
{
    int64_t private_pages;
    CKV_TRY(ckv_geometry_total_private_pages(geometry, &private_pages));
    int64_t pages;
    if (!ckv_add_i64(private_pages, ckv_geometry_resident_pages(geometry, pin_tokens), &pages))
        return ckv_fail(CKV_ERROR_INVALID, "open: the pages of this geometry do not fit 64 bits");
    if (pages <= max_pages)
        return CKV_OK;
    int64_t tokens;
    if (!ckv_mul_i64(pages, geometry->tokens_per_page, &tokens))
        return ckv_fail(CKV_ERROR_INVALID, "open: %" PRId64 " pages of %" PRId64 " tokens do not fit 64 bits", pages,
                        geometry->tokens_per_page);
    return ckv_fail(CKV_ERROR_CAPACITY,
                    "open: the geometry needs %" PRId64 " pool tokens, this cache has %" PRId64
                    "; create a larger pool or use a smaller window",
                    tokens, max_pages * geometry->tokens_per_page);
}

static ckv_status fill_pages(ckv_cache *cache, ckv_stream stream)
{
    const ckv_device *device = ckv_pool_device(cache->pool);
    ckv_cache_tensors *tensors = cache->tensors;
    int64_t pages = cache->resident_pages + tensors->total_private_pages;
    for (int64_t i = 0; ckv_pool_get_config(cache->pool)->poison_fresh_pages && i < pages; i++)
        CKV_TRY(ckv_pool_poison_page(cache->pool, tensors->host_pages[i], stream));
    const ckv_layout_state state = {.pin_tokens = cache->pin_tokens, .resident_pages = cache->resident_pages};
    CKV_TRY(device->upload(tensors->layout.state, &state, sizeof state, stream));
    CKV_TRY(device->upload(tensors->layout.tables, tensors->host_pages, (size_t)cache->resident_pages * sizeof(int32_t),
                           stream));
    CKV_TRY(device->upload(tensors->private_page_ids, tensors->host_pages + cache->resident_pages,
                           (size_t)tensors->total_private_pages * sizeof(int32_t), stream));
    if (tensors->check.fault != NULL)
        CKV_TRY(device->fill(tensors->check.fault, 0, sizeof *tensors->check.fault, stream));
    return ckv_cache_enqueue_commit(cache, 0, stream);
}

ckv_status ckv_cache_open(ckv_cache *cache, const ckv_rollout_config *config, ckv_stream stream)
{
    if (cache == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "open: cache is NULL");
    if (cache->tensors != NULL)
        return ckv_fail(CKV_ERROR_STATE, "open: a rollout is open already; close it first");
    ckv_geometry geometry;
    CKV_TRY(ckv_geometry_init(config, ckv_pool_get_config(cache->pool)->tokens_per_page, &geometry));
    CKV_TRY(ckv_cache_check_capacity(&geometry, config->pin_tokens, cache->max_pages));
    ckv_cache_tensors *tensors;
    CKV_TRY(ckv_cache_tensors_get(cache, &geometry, &tensors));
    int64_t resident_pages = ckv_geometry_resident_pages(&geometry, config->pin_tokens);
    CKV_TRY(
        ckv_pool_acquire(cache->pool, cache->user, resident_pages + tensors->total_private_pages, tensors->host_pages));

    cache->tensors = tensors;
    cache->pin_tokens = config->pin_tokens;
    cache->resident_pages = resident_pages;
    cache->progress = CKV_MUTATE(history_outlives_the_rollout, cache->progress, (ckv_progress){0});
    cache->diverged = 0;
    ckv_status status = fill_pages(cache, stream);
    if (status != CKV_OK) {
        ckv_cache_close(cache);
        return status;
    }
    CKV_CACHE_CHECK(cache, stream);
    return CKV_OK;
}

void ckv_cache_close(ckv_cache *cache)
{
    if (cache == NULL || cache->tensors == NULL)
        return;
    ckv_pool_release(cache->pool, cache->user, ckv_cache_held_pages(cache), cache->tensors->host_pages);
    cache->tensors = NULL;
}

ckv_status ckv_cache_require_open(const ckv_cache *cache, const char *operation)
{
    if (cache == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "%s: cache is NULL", operation);
    if (cache->tensors == NULL)
        return ckv_fail(CKV_ERROR_STATE, "%s: no rollout is open; call ckv_cache_open first", operation);
    if (cache->diverged)
        return ckv_fail(CKV_ERROR_STATE, "%s: the device failed inside a commit, the rollout is lost; close it",
                        operation);
    return CKV_OK;
}

int64_t ckv_cache_staging_offset(const ckv_cache *cache)
{
    return cache->progress.fixed_tokens + cache->progress.history_tokens;
}

int64_t ckv_cache_home_slot(const ckv_cache *cache, int64_t position)
{
    int64_t tokens_per_page = cache->tensors->geometry.tokens_per_page;
    return cache->tensors->host_pages[position / tokens_per_page] * tokens_per_page + position % tokens_per_page;
}

const int32_t *ckv_cache_private_pages(const ckv_cache *cache, int32_t size, int64_t block)
{
    const ckv_cache_tensors *tensors = cache->tensors;
    const ckv_causal_layout_size *sizes = tensors->layout.sizes;
    return tensors->host_pages + cache->resident_pages + (sizes[size].private_page_ids - tensors->private_page_ids) +
           block * sizes[size].private_pages;
}

uint64_t ckv_cache_geometry_id(const ckv_cache *cache)
{
    return cache->tensors->id;
}

ckv_pool *ckv_cache_pool(const ckv_cache *cache)
{
    return cache->pool;
}

int64_t ckv_cache_held_pages(const ckv_cache *cache)
{
    return cache->tensors != NULL ? cache->resident_pages + cache->tensors->total_private_pages : 0;
}

int64_t ckv_cache_device_bytes(const ckv_cache *cache)
{
    int64_t bytes = 0;
    for (const ckv_cache_tensors *tensors = cache->all_tensors; tensors != NULL; tensors = tensors->next)
        bytes += tensors->memory_bytes;
    return bytes;
}

ckv_cache_state ckv_cache_get_state(const ckv_cache *cache)
{
    if (cache->tensors == NULL)
        return (ckv_cache_state){0};
    const ckv_geometry *geometry = &cache->tensors->geometry;
    return (ckv_cache_state){.is_open = 1,
                             .pin_tokens = cache->pin_tokens,
                             .window_tokens = geometry->window_tokens,
                             .max_staged_tokens = geometry->max_staged_tokens,
                             .fixed_tokens = cache->progress.fixed_tokens,
                             .history_tokens = cache->progress.history_tokens,
                             .staging_offset = ckv_cache_staging_offset(cache),
                             .committed_tokens = cache->progress.committed_tokens,
                             .resident_tokens = cache->resident_pages * geometry->tokens_per_page};
}

static ckv_status unknown_size(const ckv_geometry *geometry, int64_t causal_block_size)
{
    char declared[CKV_MAX_CAUSAL_BLOCK_SIZES * 24] = "";
    size_t used = 0;
    for (int32_t i = 0; i < geometry->num_sizes; i++)
        used += (size_t)snprintf(declared + used, sizeof declared - used, "%s%" PRId64, i > 0 ? ", " : "",
                                 geometry->sizes[i]);
    return ckv_fail(CKV_ERROR_INVALID, "causal block size %" PRId64 " is not one the rollout was opened with: %s",
                    causal_block_size, declared);
}

ckv_status ckv_cache_block_view(const ckv_cache *cache, int64_t causal_block_size, ckv_block_view *view_out)
{
    CKV_TRY(ckv_cache_require_open(cache, "block_view"));
    if (view_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "block_view: view_out is NULL");
    const ckv_cache_tensors *tensors = cache->tensors;
    int32_t s = ckv_geometry_find_size(&tensors->geometry, causal_block_size);
    if (s < 0)
        return unknown_size(&tensors->geometry, causal_block_size);
    const ckv_causal_layout_size *size = &tensors->layout.sizes[s];
    *view_out = (ckv_block_view){.causal_block_size = causal_block_size,
                                 .num_blocks = size->num_blocks,
                                 .row_pages = size->row_pages,
                                 .max_seq_len_kv = size->row_pages * tensors->geometry.tokens_per_page,
                                 .rows = size->rows,
                                 .kv_block_offsets = size->kv_block_offsets,
                                 .seq_len_q = tensors->seq_len_q[s],
                                 .seq_len_kv = size->seq_len_kv,
                                 .own_slots = size->own_slots,
                                 .staged_slots = tensors->layout.staged_slots};
    return CKV_OK;
}

/* Pool bytes of the geometry with that window; ERROR_INVALID when they do not fit 64 bits. */
static ckv_status window_bytes(const ckv_rollout_config *config, const ckv_pool_config *pool, int64_t window_tokens,
                               int64_t *bytes_out)
{
    ckv_rollout_config rollout = *config;
    rollout.window_tokens = window_tokens;
    ckv_rollout_size size;
    CKV_TRY(ckv_rollout_config_size(&rollout, pool->tokens_per_page, &size));
    ckv_pool_config sized = *pool;
    sized.pool_tokens = size.pool_tokens;
    return ckv_pool_config_bytes(&sized, bytes_out);
}

ckv_status ckv_rollout_max_window(const ckv_rollout_config *config, const ckv_pool_config *pool, int64_t budget_bytes,
                                  int64_t *window_tokens_out)
{
    if (config == NULL || pool == NULL || window_tokens_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "rollout_max_window: config, pool or window_tokens_out is NULL");
    int64_t bytes;
    CKV_TRY(window_bytes(config, pool, 0, &bytes));
    if (bytes > budget_bytes)
        return ckv_fail(CKV_ERROR_CAPACITY, "a window of 0 needs %" PRId64 " bytes already, the budget is %" PRId64,
                        bytes, budget_bytes);
    int64_t fits = 0, too_large = CKV_MAX_TOKENS + 1;
    while (too_large - fits > 1) {
        int64_t middle = fits + (too_large - fits) / 2;
        if (window_bytes(config, pool, middle, &bytes) == CKV_OK && bytes <= budget_bytes)
            fits = middle;
        else
            too_large = middle;
    }
    *window_tokens_out = fits;
    return CKV_OK;
}
