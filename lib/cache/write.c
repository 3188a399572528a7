/* SPDX-License-Identifier: Apache-2.0 */
/* Writes: staged tokens of a forward, and host-addressed edits of resident positions. */
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "lib/cache/cache.h"
#include "lib/layout/row_plan.h"
#include "lib/support/checked.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <inttypes.h>

static ckv_status check_layer(const ckv_cache *cache, const char *operation, int64_t layer)
{
    int64_t layers = ckv_pool_get_config(cache->pool)->layers;
    if (layer < 0 || layer >= layers)
        return ckv_fail(CKV_ERROR_INVALID, "%s: layer is %" PRId64 "; the cache has layers 0 to %" PRId64, operation,
                        layer, layers - 1);
    return CKV_OK;
}

static ckv_status check_source(const char *operation, const ckv_kv *source)
{
    if (source == NULL || source->k == NULL || source->v == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "%s: K and V must not be NULL", operation);
    return CKV_OK;
}

/* Everything of a scatter into one layer but the source and the lists. */
static ckv_scatter_kv_slots_params layer_scatter(const ckv_cache *cache, int64_t layer)
{
    const ckv_pool_config *config = ckv_pool_get_config(cache->pool);
    ckv_pool_view pool = ckv_pool_get_view(cache->pool);
    char *plane = (char *)pool.base + layer * pool.layer_stride;
    const float *scales = pool.scales != NULL ? pool.scales + layer * 2 * config->kv_heads : NULL;
    return (ckv_scatter_kv_slots_params){.k_plane = plane,
                                         .v_plane = plane + pool.kv_stride,
                                         .page_stride = pool.page_stride,
                                         .head_stride = pool.head_stride,
                                         .slot_stride = pool.slot_stride,
                                         .tokens_per_page = config->tokens_per_page,
                                         .num_slots = config->pool_tokens,
                                         .kv_heads = config->kv_heads,
                                         .row_bytes = ckv_pool_row_bytes(cache->pool),
                                         .source_dtype = ckv_pool_config_tensor_dtype(config),
                                         .k_scales = scales,
                                         .v_scales = scales != NULL ? scales + config->kv_heads : NULL,
                                         .check = cache->tensors->check};
}

static void set_source(ckv_scatter_kv_slots_params *scatter, const ckv_kv *source)
{
    const int64_t element_bytes = (int64_t)ckv_dtype_bytes(scatter->source_dtype);
    scatter->k = source->k;
    scatter->v = source->v;
    scatter->k_token_stride = source->k_token_stride * element_bytes;
    scatter->k_head_stride = source->k_head_stride * element_bytes;
    scatter->v_token_stride =
        CKV_MUTATE(strides_of_k_for_v, source->k_token_stride, source->v_token_stride) * element_bytes;
    scatter->v_head_stride = source->v_head_stride * element_bytes;
}

static ckv_status check_staged(const ckv_block_view *view, int64_t tokens)
{
    int64_t most = view->num_blocks * view->causal_block_size;
    if (tokens < 1 || tokens > most || tokens % view->causal_block_size != 0)
        return ckv_fail(CKV_ERROR_INVALID,
                        "write_staged of %" PRId64 " tokens; it must be a multiple of the causal block size %" PRId64
                        ", %" PRId64 " to %" PRId64,
                        tokens, view->causal_block_size, view->causal_block_size, most);
    return CKV_OK;
}

ckv_status ckv_cache_plan_staged(const ckv_cache *cache, const ckv_staged_heads *heads,
                                 ckv_scatter_kv_slots_params *scatter_out)
{
    ckv_block_view view;
    CKV_TRY(ckv_cache_require_open(cache, "write_staged"));
    CKV_TRY(check_layer(cache, "write_staged", heads->layer));
    CKV_TRY(ckv_cache_block_view(cache, heads->causal_block_size, &view));
    CKV_TRY(check_staged(&view, heads->tokens));

    ckv_scatter_kv_slots_params scatter = layer_scatter(cache, heads->layer);
    scatter.k_plane = (char *)scatter.k_plane + heads->first_kv_head * scatter.head_stride;
    scatter.v_plane = (char *)scatter.v_plane + heads->first_kv_head * scatter.head_stride;
    if (scatter.k_scales != NULL) {
        scatter.k_scales += heads->first_kv_head;
        scatter.v_scales += heads->first_kv_head;
    }
    scatter.kv_heads = heads->kv_heads;
    scatter.entries = heads->tokens;
    scatter.destination = view.staged_slots;
    scatter.destination2 = view.own_slots;
    *scatter_out = scatter;
    return CKV_OK;
}

ckv_status ckv_cache_copy_staged(const ckv_cache *cache, const ckv_staged_heads *heads, const ckv_kv *source,
                                 ckv_stream stream)
{
    ckv_scatter_kv_slots_params scatter;
    CKV_TRY(ckv_cache_plan_staged(cache, heads, &scatter));
    /* The first block has no earlier block to copy from. */
    int64_t entries_of_block = 2 * (scatter.tokens_per_page - 1);
    int64_t later_blocks = heads->tokens / heads->causal_block_size - 1;
    if (later_blocks == 0 || entries_of_block == 0 || CKV_MUTANT(earlier_blocks_not_copied))
        return CKV_OK;
    const ckv_causal_layout_size *size =
        &cache->tensors->layout.sizes[ckv_geometry_find_size(&cache->tensors->geometry, heads->causal_block_size)];
    set_source(&scatter, source);
    scatter.entries = later_blocks * entries_of_block;
    scatter.source_index = size->current_private_source + entries_of_block;
    scatter.destination = size->current_private_destination + entries_of_block;
    scatter.destination2 = NULL;
    return ckv_pool_device(cache->pool)->scatter_kv_slots(&scatter, stream);
}

ckv_status ckv_cache_write_staged_heads(ckv_cache *cache, const ckv_staged_heads *heads, const ckv_kv *source,
                                        int own_tokens, ckv_stream stream)
{
    ckv_scatter_kv_slots_params scatter;
    CKV_TRY(check_source("write_staged", source));
    CKV_TRY(ckv_cache_plan_staged(cache, heads, &scatter));
    set_source(&scatter, source);
    if (!own_tokens)
        scatter.destination2 = NULL;
    CKV_TRY(ckv_pool_device(cache->pool)->scatter_kv_slots(&scatter, stream));
    return ckv_cache_copy_staged(cache, heads, source, stream);
}

ckv_status ckv_cache_write_staged(ckv_cache *cache, int64_t layer, int64_t tokens, int64_t causal_block_size,
                                  const ckv_kv *source, int own_tokens, ckv_stream stream)
{
    CKV_TRY(ckv_cache_require_open(cache, "write_staged"));
    const ckv_staged_heads all = {.layer = layer,
                                  .kv_heads = ckv_pool_get_config(cache->pool)->kv_heads,
                                  .tokens = tokens,
                                  .causal_block_size = causal_block_size};
    return ckv_cache_write_staged_heads(cache, &all, source, own_tokens, stream);
}

/* A scatter of (token of the source, slot) pairs, launched piece by piece: whatever the edit, the lists take little
 * memory. No slot is in two pieces. */
typedef struct edit {
    ckv_cache *cache;
    ckv_scatter_kv_slots_params *scatter; /* the caller has set the source */
    ckv_stream stream;
    int64_t entries;
    int64_t sources[CKV_EDIT_ENTRIES], destinations[CKV_EDIT_ENTRIES];
} edit;

static ckv_status flush_edit(edit *e)
{
    if (e->entries == 0)
        return CKV_OK;
    const ckv_device *device = ckv_pool_device(e->cache->pool);
    ckv_cache_tensors *tensors = e->cache->tensors;
    size_t bytes = (size_t)e->entries * sizeof(int64_t);
    CKV_TRY(device->upload(tensors->edit_source, e->sources, bytes, e->stream));
    CKV_TRY(device->upload(tensors->edit_destination, e->destinations, bytes, e->stream));
    e->scatter->source_index = tensors->edit_source;
    e->scatter->destination = tensors->edit_destination;
    e->scatter->entries = e->entries;
    e->entries = 0;
    return device->scatter_kv_slots(e->scatter, e->stream);
}

static ckv_status add_edit(edit *e, int64_t source, int64_t destination)
{
    if (e->entries == CKV_EDIT_ENTRIES)
        CKV_TRY(flush_edit(e));
    e->sources[e->entries] = source;
    e->destinations[e->entries++] = destination;
    return CKV_OK;
}

/* Private copies that a block holds of committed positions in [start, start + tokens). */
static ckv_status add_private_edits(edit *e, int32_t s, int64_t block, int64_t start, int64_t tokens)
{
    const ckv_cache *cache = e->cache;
    const ckv_geometry *geometry = &cache->tensors->geometry;
    int64_t staging_offset = ckv_cache_staging_offset(cache);
    int64_t block_size = geometry->sizes[s];
    ckv_row_plan plan = ckv_row_plan_make(geometry->tokens_per_page, cache->progress.fixed_tokens,
                                          geometry->window_tokens, staging_offset + block * block_size, block_size);
    const int32_t *pages = ckv_cache_private_pages(cache, s, block);
    for (int64_t i = 0; i < plan.partial_tokens; i++) {
        int64_t position = ckv_row_plan_partial(&plan, i);
        if (position >= start && position < start + tokens && position < staging_offset)
            CKV_TRY(add_edit(e, position - start,
                             pages[i / geometry->tokens_per_page] * geometry->tokens_per_page +
                                 i % geometry->tokens_per_page));
    }
    return CKV_OK;
}

static ckv_status check_range(const ckv_cache *cache, const char *operation, int64_t layer, int64_t start,
                              int64_t tokens)
{
    CKV_TRY(ckv_cache_require_open(cache, operation));
    CKV_TRY(check_layer(cache, operation, layer));
    int64_t resident = cache->resident_pages * cache->tensors->geometry.tokens_per_page;
    if (start < 0 || tokens < 1 || start > resident || tokens > resident - start)
        return ckv_fail(CKV_ERROR_INVALID,
                        "%s: %" PRId64 " tokens from %" PRId64 "; resident positions are 0 to %" PRId64, operation,
                        tokens, start, resident - 1);
    return CKV_OK;
}

/* Scatter into every slot that holds a position of [start, start + tokens); the caller has set the source. */
static ckv_status scatter_edit(ckv_cache *cache, ckv_scatter_kv_slots_params *scatter, int64_t start, int64_t tokens,
                               ckv_stream stream)
{
    edit e;
    e.cache = cache;
    e.scatter = scatter;
    e.stream = stream;
    e.entries = 0;
    for (int64_t i = 0; i < tokens; i++)
        CKV_TRY(add_edit(&e, i, ckv_cache_home_slot(cache, start + i)));
    for (int32_t s = 0; s < CKV_MUTATE(edits_reach_no_copy, 0, cache->tensors->geometry.num_sizes); s++)
        for (int64_t block = 0; block < cache->tensors->layout.sizes[s].num_blocks; block++)
            CKV_TRY(add_private_edits(&e, s, block, start, tokens));
    return flush_edit(&e);
}

ckv_status ckv_cache_write_range(ckv_cache *cache, int64_t layer, int64_t start, int64_t tokens, const ckv_kv *source,
                                 ckv_stream stream)
{
    CKV_TRY(check_range(cache, "write_range", layer, start, tokens));
    CKV_TRY(check_source("write_range", source));
    ckv_scatter_kv_slots_params scatter = layer_scatter(cache, layer);
    set_source(&scatter, source);
    return scatter_edit(cache, &scatter, start, tokens, stream);
}

ckv_status ckv_cache_zero_values(ckv_cache *cache, int64_t layer, int64_t start, int64_t tokens, ckv_stream stream)
{
    CKV_TRY(check_range(cache, "zero_values", layer, start, tokens));
    ckv_scatter_kv_slots_params scatter = layer_scatter(cache, layer);
    scatter.v = cache->tensors->zero_vector; /* strides 0: the same vector for every token and head */
    return scatter_edit(cache, &scatter, start, tokens, stream);
}
