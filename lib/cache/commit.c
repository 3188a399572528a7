/* SPDX-License-Identifier: Apache-2.0 */
/* Commit. The device advances by itself: its state, the table, every kernel-facing tensor and the copies, in one launch
 * whose arguments know nothing of the rollout's past. The host computes the same numbers for its mirror. */
#include "kernels/rotate_rows/rotate_rows.h"
#include "lib/cache/cache.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <inttypes.h>

ckv_status ckv_cache_enqueue_commit(ckv_cache *cache, int64_t tokens, ckv_stream stream)
{
    ckv_causal_layout_params *layout = &cache->tensors->layout;
    layout->commit_tokens = tokens;
    return ckv_pool_device(cache->pool)->causal_layout(layout, stream);
}

/* The mirror's half of a commit. */
static ckv_status advance_mirror(ckv_cache *cache, const ckv_commit_plan *plan)
{
    ckv_rotate_rows_params rotation = {.data = cache->tensors->host_pages + plan->first_rotated_page,
                                       .rows = 1,
                                       .columns = cache->resident_pages - plan->first_rotated_page,
                                       .element_bytes = sizeof(int32_t),
                                       .shift = CKV_MUTATE(edits_where_a_page_was, 0, -plan->dropped_pages)};
    CKV_TRY(ckv_rotate_rows_host(&rotation, NULL));
    cache->progress = plan->after;
    return CKV_OK;
}

static ckv_status plan_commit(const ckv_cache *cache, int64_t tokens, ckv_commit_plan *plan_out)
{
    return ckv_commit_plan_make(&cache->tensors->geometry, cache->pin_tokens, &cache->progress, tokens, plan_out);
}

static ckv_status poison_dropped(const ckv_cache *cache, int64_t dropped_pages, ckv_stream stream)
{
    if (!ckv_pool_get_config(cache->pool)->poison_fresh_pages)
        return CKV_OK;
    for (int64_t i = cache->resident_pages - dropped_pages; i < cache->resident_pages; i++)
        CKV_TRY(ckv_pool_poison_page(cache->pool, cache->tensors->host_pages[i], stream));
    return CKV_OK;
}

/* Recorded, not run: nothing advances now. It must be legal at every replay, so nothing may still count on the pin. */
static ckv_status capture_commit(ckv_cache *cache, int64_t tokens, ckv_stream stream)
{
    int64_t most = cache->tensors->geometry.max_staged_tokens;
    if (tokens < 1 || tokens > most)
        return ckv_fail(CKV_ERROR_INVALID,
                        "commit of %" PRId64 " tokens in a captured graph; it must be 1 to max_staged_tokens %" PRId64,
                        tokens, most);
    return ckv_cache_enqueue_commit(cache, tokens, stream);
}

ckv_status ckv_cache_commit(ckv_cache *cache, int64_t tokens, ckv_stream stream)
{
    CKV_TRY(ckv_cache_require_open(cache, "commit"));
    int capturing;
    CKV_TRY(ckv_pool_device(cache->pool)->is_capturing(stream, &capturing));
    if (capturing)
        return capture_commit(cache, tokens, stream);
    ckv_commit_plan plan;
    cache->diverged |= CKV_MUTANT(refused_commit_leaves_traces);
    tokens += CKV_MUTATE(commit_with_padding, tokens & 1, 0);
    CKV_TRY(plan_commit(cache, tokens, &plan));
    cache->diverged = 1;
    CKV_TRY(ckv_cache_enqueue_commit(cache, tokens, stream));
    CKV_TRY(advance_mirror(cache, &plan));
    cache->diverged = 0;
    CKV_TRY(poison_dropped(cache, plan.dropped_pages, stream));
    CKV_CACHE_CHECK(cache, stream);
    return CKV_OK;
}

ckv_status ckv_cache_follow_commit(ckv_cache *cache, int64_t tokens)
{
    CKV_TRY(ckv_cache_require_open(cache, "follow_commit"));
    ckv_commit_plan plan;
    CKV_TRY(plan_commit(cache, tokens, &plan));
    return advance_mirror(cache, &plan);
}
