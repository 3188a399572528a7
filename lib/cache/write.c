/* SPDX-License-Identifier: Apache-2.0 */
/* Writes: staged tokens of a forward, and host-addressed edits of resident positions. */
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "lib/cache/cache.h"
#include "lib/layout/row_plan.h"
#include "lib/support/checked.h"
#include "lib/support/error.h"

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
    return (ckv_scatter_kv_slots_params){.k_plane = plane,
                                         .v_plane = plane + pool.kv_stride,
                                         .page_stride = pool.page_stride,
                                         .head_stride = pool.head_stride,
                                         .slot_stride = pool.slot_stride,
                                         .tokens_per_page = config->tokens_per_page,
                                         .num_slots = config->pool_tokens,
                                         .kv_heads = config->kv_heads,
                                         .row_bytes = ckv_pool_row_bytes(cache->pool)};
}

static void set_source(ckv_scatter_kv_slots_params *scatter, const ckv_kv *source, int64_t element_bytes)
{
    scatter->k = source->k;
    scatter->v = source->v;
    scatter->k_token_stride = source->k_token_stride * element_bytes;
    scatter->k_head_stride = source->k_head_stride * element_bytes;
    scatter->v_token_stride = source->v_token_stride * element_bytes;
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

ckv_status ckv_cache_write_staged(ckv_cache *cache, int64_t layer, int64_t tokens, int64_t causal_block_size,
                                  const ckv_kv *source, int own_tokens, ckv_stream stream)
{
    ckv_block_view view;
    CKV_TRY(ckv_cache_require_open(cache, "write_staged"));
    CKV_TRY(check_layer(cache, "write_staged", layer));
    CKV_TRY(check_source("write_staged", source));
    CKV_TRY(ckv_cache_block_view(cache, causal_block_size, &view));
    CKV_TRY(check_staged(&view, tokens));

    const ckv_device *device = ckv_pool_device(cache->pool);
    ckv_scatter_kv_slots_params scatter = layer_scatter(cache, layer);
    set_source(&scatter, source, (int64_t)ckv_dtype_bytes(ckv_pool_get_config(cache->pool)->dtype));
    scatter.entries = tokens;
    scatter.destination = view.staged_slots;
    scatter.destination2 = own_tokens ? view.own_slots : NULL;
    CKV_TRY(device->scatter_kv_slots(&scatter, stream));

    /* The first block has no earlier block to copy from. */
    int64_t entries_of_block = 2 * (scatter.tokens_per_page - 1);
    int64_t later_blocks = tokens / causal_block_size - 1;
    if (later_blocks == 0 || entries_of_block == 0)
        return CKV_OK;
    const ckv_causal_layout_size *size =
        &cache->tensors->layout.sizes[ckv_geometry_find_size(&cache->tensors->geometry, causal_block_size)];
    scatter.entries = later_blocks * entries_of_block;
    scatter.source_index = size->current_private_source + entries_of_block;
    scatter.destination = size->current_private_destination + entries_of_block;
    scatter.destination2 = NULL;
    return device->scatter_kv_slots(&scatter, stream);
}

/* A growing list of (token of the source, slot) pairs in the host scratch of the rollout's tensors. */
typedef struct edit_list {
    int64_t *sources, *destinations;
    int64_t entries;
} edit_list;

static void add_edit(edit_list *list, int64_t source, int64_t destination)
{
    list->sources[list->entries] = source;
    list->destinations[list->entries++] = destination;
}

/* Private copies that a block holds of committed positions in [start, start + tokens). */
static void add_private_edits(const ckv_cache *cache, int32_t s, int64_t block, int64_t start, int64_t tokens,
                              edit_list *list)
{
    const ckv_geometry *geometry = &cache->tensors->geometry;
    int64_t staging_offset = ckv_cache_staging_offset(cache);
    int64_t block_size = geometry->sizes[s];
    ckv_row_plan plan = ckv_row_plan_make(geometry->tokens_per_page, cache->progress.fixed_tokens,
                                          geometry->window_tokens, staging_offset + block * block_size, block_size);
    const int32_t *pages = ckv_cache_private_pages(cache, s, block);
    for (int64_t i = 0; i < plan.partial_tokens; i++) {
        int64_t position = ckv_row_plan_partial(&plan, i);
        if (position >= start && position < start + tokens && position < staging_offset)
            add_edit(list, position - start,
                     pages[i / geometry->tokens_per_page] * geometry->tokens_per_page + i % geometry->tokens_per_page);
    }
}

/* Every slot that holds a position of [start, start + tokens), moved to the device. */
static ckv_status upload_edit_list(ckv_cache *cache, int64_t start, int64_t tokens, int64_t *entries_out,
                                   ckv_stream stream)
{
    ckv_cache_tensors *tensors = cache->tensors;
    edit_list list = {.sources = tensors->host_edit, .destinations = tensors->host_edit + tensors->edit_capacity};
    for (int64_t i = 0; i < tokens; i++)
        add_edit(&list, i, ckv_cache_home_slot(cache, start + i));
    for (int32_t s = 0; s < tensors->geometry.num_sizes; s++)
        for (int64_t block = 0; block < tensors->layout.sizes[s].num_blocks; block++)
            add_private_edits(cache, s, block, start, tokens, &list);
    const ckv_device *device = ckv_pool_device(cache->pool);
    size_t bytes = (size_t)list.entries * sizeof(int64_t);
    CKV_TRY(device->upload(tensors->edit_source, list.sources, bytes, stream));
    CKV_TRY(device->upload(tensors->edit_destination, list.destinations, bytes, stream));
    *entries_out = list.entries;
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

/* Scatter into all slots of a range; the caller has set the source. */
static ckv_status scatter_edit(ckv_cache *cache, ckv_scatter_kv_slots_params *scatter, int64_t start, int64_t tokens,
                               ckv_stream stream)
{
    CKV_TRY(upload_edit_list(cache, start, tokens, &scatter->entries, stream));
    scatter->source_index = cache->tensors->edit_source;
    scatter->destination = cache->tensors->edit_destination;
    return ckv_pool_device(cache->pool)->scatter_kv_slots(scatter, stream);
}

ckv_status ckv_cache_write_range(ckv_cache *cache, int64_t layer, int64_t start, int64_t tokens, const ckv_kv *source,
                                 ckv_stream stream)
{
    CKV_TRY(check_range(cache, "write_range", layer, start, tokens));
    CKV_TRY(check_source("write_range", source));
    ckv_scatter_kv_slots_params scatter = layer_scatter(cache, layer);
    set_source(&scatter, source, (int64_t)ckv_dtype_bytes(ckv_pool_get_config(cache->pool)->dtype));
    return scatter_edit(cache, &scatter, start, tokens, stream);
}

ckv_status ckv_cache_zero_values(ckv_cache *cache, int64_t layer, int64_t start, int64_t tokens, ckv_stream stream)
{
    CKV_TRY(check_range(cache, "zero_values", layer, start, tokens));
    ckv_scatter_kv_slots_params scatter = layer_scatter(cache, layer);
    scatter.v = cache->tensors->zero_vector; /* strides 0: the same vector for every token and head */
    return scatter_edit(cache, &scatter, start, tokens, stream);
}
