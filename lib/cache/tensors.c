/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/cache/cache.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { TENSOR_ALIGNMENT = 256 }; /* what vector loads, tensor maps and cuDNN ask for */

/* Hands out aligned parts of one allocation; with base NULL it only adds up the bytes. */
typedef struct carving {
    char *base;
    int64_t bytes; /* -1: they do not fit 64 bits */
} carving;

static void *carve(carving *carver, int64_t count, int64_t element_bytes)
{
    void *part = carver->base != NULL ? carver->base + carver->bytes : NULL;
    int64_t bytes;
    if (carver->bytes < 0 || !ckv_mul_i64(count, element_bytes, &bytes) ||
        !ckv_add_i64(bytes, TENSOR_ALIGNMENT - 1, &bytes) ||
        !ckv_add_i64(carver->bytes, bytes / TENSOR_ALIGNMENT * TENSOR_ALIGNMENT, &carver->bytes))
        carver->bytes = -1;
    return part;
}

static void carve_size(ckv_cache_tensors *tensors, int32_t s, carving *carver)
{
    const ckv_geometry *geometry = &tensors->geometry;
    ckv_causal_layout_size *size = &tensors->layout.sizes[s];
    size->block_size = geometry->sizes[s];
    size->num_blocks = ckv_geometry_num_blocks(geometry, s);
    size->private_pages = ckv_geometry_private_pages(geometry, s);
    size->row_pages = tensors->max_resident_pages + size->private_pages +
                      ckv_ceil_div_i64(CKV_ROW_GUARD_TOKENS, geometry->tokens_per_page);
    int64_t current = size->num_blocks * 2 * (geometry->tokens_per_page - 1);
    size->rows = carve(carver, size->num_blocks, size->row_pages * (int64_t)sizeof(int32_t));
    size->kv_block_offsets = carve(carver, size->num_blocks, size->row_pages * 2 * (int64_t)sizeof(int32_t));
    size->seq_len_kv = carve(carver, size->num_blocks, sizeof(int32_t));
    tensors->seq_len_q[s] = carve(carver, size->num_blocks, sizeof(int32_t));
    size->own_slots = carve(carver, size->num_blocks * size->block_size, sizeof(int64_t));
    size->current_private_source = carve(carver, current, sizeof(int64_t));
    size->current_private_destination = carve(carver, current, sizeof(int64_t));
}

static int64_t carve_all(ckv_cache_tensors *tensors, const ckv_pool_config *pool, void *base)
{
    carving carver = {.base = base};
    const ckv_geometry *geometry = &tensors->geometry;
    tensors->layout.state = carve(&carver, 1, sizeof(ckv_layout_state));
    tensors->layout.tables = carve(&carver, tensors->max_resident_pages, 2 * sizeof(int32_t));
    tensors->private_page_ids = carve(&carver, tensors->total_private_pages, sizeof(int32_t));
    tensors->layout.staged_slots = carve(&carver, geometry->max_staged_tokens, sizeof(int64_t));
    int64_t private_at = 0;
    for (int32_t s = 0; s < geometry->num_sizes; s++) {
        carve_size(tensors, s, &carver);
        if (base != NULL)
            tensors->layout.sizes[s].private_page_ids = tensors->private_page_ids + private_at;
        private_at += tensors->layout.sizes[s].num_blocks * tensors->layout.sizes[s].private_pages;
    }
    tensors->edit_source = carve(&carver, CKV_EDIT_ENTRIES, sizeof(int64_t));
    tensors->edit_destination = carve(&carver, CKV_EDIT_ENTRIES, sizeof(int64_t));
    tensors->zero_vector = carve(&carver, pool->head_dim, (int64_t)ckv_dtype_bytes(ckv_pool_config_tensor_dtype(pool)));
#ifdef CKV_CHECKS
    tensors->check.fault = carve(&carver, 1, sizeof(ckv_slot_fault));
    tensors->check.claims = carve(&carver, pool->pool_tokens, sizeof(int64_t));
    tensors->layout.check = tensors->check;
#endif
    return carver.bytes;
}

/* Counts and bytes of tensors that are zero so far, for a cache that may hold max_pages of the pool. */
static ckv_status plan_memory(ckv_cache_tensors *tensors, const ckv_geometry *geometry, const ckv_pool_config *pool,
                              int64_t max_pages)
{
    tensors->geometry = *geometry;
    CKV_TRY(ckv_geometry_total_private_pages(geometry, &tensors->total_private_pages));
    tensors->max_resident_pages = max_pages - tensors->total_private_pages;
    int64_t bytes = carve_all(tensors, pool, NULL);
    if (bytes >= 0)
        bytes = ckv_device_allocation_bytes(pool->device != NULL ? pool->device : &ckv_device_host, bytes);
    if (bytes < 0)
        return ckv_fail(CKV_ERROR_INVALID, "open: the tensors of this geometry do not fit 64 bits");
    tensors->memory_bytes = bytes;
    return CKV_OK;
}

ckv_status ckv_rollout_state_bytes(const ckv_rollout_config *config, const ckv_pool_config *pool, int64_t *bytes_out)
{
    if (config == NULL || pool == NULL || bytes_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "rollout_state_bytes: config, pool or bytes_out is NULL");
    int64_t pool_bytes;
    CKV_TRY(ckv_pool_config_bytes(pool, &pool_bytes)); /* refuses what no pool can be made of */
    ckv_geometry geometry;
    CKV_TRY(ckv_geometry_init(config, pool->tokens_per_page, &geometry));
    int64_t max_pages = pool->pool_tokens / pool->tokens_per_page;
    CKV_TRY(ckv_cache_check_capacity(&geometry, config->pin_tokens, max_pages));
    ckv_cache_tensors tensors = {0};
    CKV_TRY(plan_memory(&tensors, &geometry, pool, max_pages));
    *bytes_out = tensors.memory_bytes;
    return CKV_OK;
}

/* What never changes afterwards: zeros, and each block's number of queries. */
static ckv_status fill_constants(ckv_cache_tensors *tensors, const ckv_device *device)
{
    CKV_TRY(device->fill(tensors->memory, 0, (size_t)tensors->memory_bytes, NULL));
    for (int32_t s = 0; s < tensors->geometry.num_sizes; s++) {
        int32_t block_size = (int32_t)tensors->geometry.sizes[s];
        for (int64_t block = 0; block < tensors->layout.sizes[s].num_blocks; block++)
            CKV_TRY(device->upload(tensors->seq_len_q[s] + block, &block_size, sizeof block_size, NULL));
    }
    return device->wait(NULL);
}

void ckv_cache_tensors_free(ckv_cache_tensors *tensors, const ckv_device *device)
{
    device->free(tensors->memory);
    free(tensors->host_pages);
    free(tensors);
}

static ckv_status allocate(ckv_cache_tensors *tensors, const ckv_pool *pool)
{
    const ckv_device *device = ckv_pool_device(pool);
    CKV_TRY(device->alloc((size_t)tensors->memory_bytes, &tensors->memory));
    carve_all(tensors, ckv_pool_get_config(pool), tensors->memory);
    size_t pages = (size_t)(tensors->max_resident_pages + tensors->total_private_pages);
    tensors->host_pages = calloc(pages, sizeof *tensors->host_pages);
    if (tensors->host_pages == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "open: out of host memory for %zu pages", pages);
    return fill_constants(tensors, device);
}

ckv_status ckv_cache_tensors_get(ckv_cache *cache, const ckv_geometry *geometry, ckv_cache_tensors **tensors_out)
{
    for (ckv_cache_tensors *tensors = cache->all_tensors; tensors != NULL; tensors = tensors->next) {
        if (ckv_geometry_equal(&tensors->geometry, geometry)) {
            *tensors_out = tensors;
            return CKV_OK;
        }
    }
    ckv_cache_tensors *tensors = calloc(1, sizeof *tensors);
    if (tensors == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "open: out of host memory");
    static atomic_uint_fast64_t last_id;
    tensors->id = atomic_fetch_add(&last_id, 1) + 1;
    const ckv_pool_config *pool = ckv_pool_get_config(cache->pool);
    ckv_status status = plan_memory(tensors, geometry, pool, cache->max_pages);
    tensors->layout = (ckv_causal_layout_params){.tokens_per_page = geometry->tokens_per_page,
                                                 .window_tokens = geometry->window_tokens,
                                                 .max_staged_tokens = geometry->max_staged_tokens,
                                                 .guard_page = ckv_pool_get_view(cache->pool).guard_page,
                                                 .table_pages = tensors->max_resident_pages,
                                                 .pool = ckv_pool_get_view(cache->pool),
                                                 .layers = pool->layers,
                                                 .kv_heads = pool->kv_heads,
                                                 .row_bytes = ckv_pool_row_bytes(cache->pool),
                                                 .num_sizes = geometry->num_sizes};
    if (status == CKV_OK)
        status = allocate(tensors, cache->pool);
    if (status != CKV_OK) {
        ckv_cache_tensors_free(tensors, ckv_pool_device(cache->pool));
        return status;
    }
    tensors->next = cache->all_tensors;
    cache->all_tensors = tensors;
    *tensors_out = tensors;
    return CKV_OK;
}
