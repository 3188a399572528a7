/* SPDX-License-Identifier: Apache-2.0 */
/* Commit: rotate the table, rewrite the layout, copy what private pages hold of committed tokens. */
#include "kernels/copy_kv_slots/copy_kv_slots.h"
#include "kernels/rotate_rows/rotate_rows.h"
#include "lib/cache/cache.h"
#include "lib/support/error.h"

ckv_status ckv_cache_refresh(ckv_cache *cache, int64_t dropped_pages, int64_t refill_tokens, ckv_stream stream)
{
    const ckv_device *device = ckv_pool_device(cache->pool);
    const ckv_pool_config *config = ckv_pool_get_config(cache->pool);
    ckv_cache_tensors *tensors = cache->tensors;
    ckv_causal_layout_params *layout = &tensors->layout;
    layout->fixed_tokens = cache->progress.fixed_tokens;
    layout->staging_offset = ckv_cache_staging_offset(cache);
    layout->resident_pages = cache->resident_pages;
    layout->dropped_pages = dropped_pages;
    layout->refill_tokens = refill_tokens;
    cache->last_dropped_pages = dropped_pages;
    cache->last_refill_tokens = refill_tokens;
    CKV_TRY(device->causal_layout(layout, stream));
    ckv_copy_kv_slots_params copy = {.pool = ckv_pool_get_view(cache->pool),
                                     .tokens_per_page = config->tokens_per_page,
                                     .layers = config->layers,
                                     .kv_heads = config->kv_heads,
                                     .row_bytes = ckv_pool_row_bytes(cache->pool),
                                     .entries = tensors->copy_entries,
                                     .source = tensors->copy_source,
                                     .destination = tensors->copy_destination};
    return device->copy_kv_slots(&copy, stream);
}

/* The same rotation of the device's table and the host's mirror. */
static ckv_status rotate_table(ckv_cache *cache, const ckv_commit_plan *plan, ckv_stream stream)
{
    ckv_rotate_rows_params rotation = {.data = cache->tensors->table + plan->first_rotated_page,
                                       .rows = 1,
                                       .columns = cache->resident_pages - plan->first_rotated_page,
                                       .element_bytes = sizeof(int32_t),
                                       .shift = -plan->dropped_pages};
    CKV_TRY(ckv_pool_device(cache->pool)->rotate_rows(&rotation, stream));
    rotation.data = cache->tensors->host_pages + plan->first_rotated_page;
    return ckv_rotate_rows_host(&rotation, NULL);
}

static ckv_status poison_dropped(const ckv_cache *cache, int64_t dropped_pages, ckv_stream stream)
{
    if (!ckv_pool_get_config(cache->pool)->poison_fresh_pages)
        return CKV_OK;
    for (int64_t i = cache->resident_pages - dropped_pages; i < cache->resident_pages; i++)
        CKV_TRY(ckv_pool_poison_page(cache->pool, cache->tensors->host_pages[i], stream));
    return CKV_OK;
}

ckv_status ckv_cache_commit(ckv_cache *cache, int64_t tokens, ckv_stream stream)
{
    CKV_TRY(ckv_cache_require_open(cache, "commit"));
    ckv_commit_plan plan;
    CKV_TRY(ckv_commit_plan_make(&cache->tensors->geometry, cache->pin_tokens, &cache->progress, tokens, &plan));
    if (plan.dropped_pages > 0)
        CKV_TRY(rotate_table(cache, &plan, stream));
    cache->progress = plan.after;
    CKV_TRY(ckv_cache_refresh(cache, plan.dropped_pages, plan.refill_tokens, stream));
    CKV_TRY(poison_dropped(cache, plan.dropped_pages, stream));
    CKV_CACHE_CHECK(cache, stream);
    return CKV_OK;
}
