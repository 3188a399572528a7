/* SPDX-License-Identifier: Apache-2.0 */
/* Memory layout: [layers][pages + guard][K, V][kv_heads][tokens_per_page][head_dim], then scales, if any. */
#include "lib/pool/pool.h"

#include "lib/support/checked.h"
#include "lib/support/dtype.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PAGES = (1 << 30) - 1 }; /* the guard page after them has a V offset, 2 * page + 1, of 32 bits too */
enum { NAN_BYTE = 0xff };           /* all ones is a NaN in every dtype */
enum { SCALES_ALIGNMENT = 256 };

struct ckv_pool {
    ckv_pool_config config;
    ckv_pool_view view;
    float *scales; /* on the device; NULL: none */
    int64_t bytes;
    pthread_mutex_t lock;       /* of everything below: caches of several threads share a pool */
    int32_t *owners;            /* [total_pages] */
    _Atomic int64_t free_pages; /* written under the lock, read by anyone */
    int64_t holds;              /* the creator's and one per user */
    int32_t last_user;
};

ckv_pool_config ckv_pool_config_default(void)
{
    return (ckv_pool_config){.struct_size = sizeof(ckv_pool_config)};
}

static ckv_status check_positive(const char *name, int64_t value)
{
    if (value < 1 || value > INT32_MAX)
        return ckv_fail(CKV_ERROR_INVALID, "%s is %" PRId64 "; it must be 1 to %d", name, value, INT32_MAX);
    return CKV_OK;
}

static ckv_status check_config(const ckv_pool_config *config)
{
    if (config == NULL || config->struct_size != sizeof *config)
        return ckv_fail(
            CKV_ERROR_INVALID,
            "pool config: struct_size is not sizeof(ckv_pool_config); start from ckv_pool_config_default()");
    CKV_TRY(check_positive("layers", config->layers));
    CKV_TRY(check_positive("kv_heads", config->kv_heads));
    CKV_TRY(check_positive("head_dim", config->head_dim));
    CKV_TRY(check_positive("tokens_per_page", config->tokens_per_page));
    CKV_TRY(check_positive("pool_tokens", config->pool_tokens));
    if (ckv_dtype_bytes(config->dtype) == 0)
        return ckv_fail(CKV_ERROR_INVALID, "dtype is %d; it must be fp32, bf16, fp16 or fp8_e4m3", (int)config->dtype);
    if (!ckv_dtype_is_tensor(ckv_pool_config_tensor_dtype(config)))
        return ckv_fail(CKV_ERROR_INVALID, "tensor_dtype is %d; it must be fp32, bf16 or fp16",
                        (int)config->tensor_dtype);
    if (!ckv_is_power_of_two(config->tokens_per_page))
        return ckv_fail(CKV_ERROR_INVALID, "tokens_per_page is %" PRId64 "; it must be a power of two",
                        config->tokens_per_page);
    if (config->pool_tokens % config->tokens_per_page != 0)
        return ckv_fail(CKV_ERROR_INVALID,
                        "pool_tokens is %" PRId64 "; it must be a multiple of tokens_per_page %" PRId64,
                        config->pool_tokens, config->tokens_per_page);
    if (config->pool_tokens / config->tokens_per_page > MAX_PAGES)
        return ckv_fail(CKV_ERROR_INVALID,
                        "pool of %" PRId64 " tokens in pages of %" PRId64 " has more than %d pages; use larger pages",
                        config->pool_tokens, config->tokens_per_page, MAX_PAGES);
    return CKV_OK;
}

/* Adds the scales' bytes to those of the pages; *offset_out is where they begin. */
static bool add_scales(const ckv_pool_config *config, int64_t *bytes, int64_t *offset_out)
{
    int64_t scales_bytes;
    *offset_out = 0;
    if (config->dtype != CKV_FP8_E4M3)
        return true;
    return ckv_add_i64(*bytes, -*bytes & (SCALES_ALIGNMENT - 1), offset_out) &&
           ckv_mul_i64(config->layers * 2 * (int64_t)sizeof(float), config->kv_heads, &scales_bytes) &&
           ckv_add_i64(*offset_out, scales_bytes, bytes);
}

/* Strides of a valid config, the offset of scales (0: none) and the bytes of all; ERROR_INVALID when they do not fit 64
 * bits. */
static ckv_status plan_memory(const ckv_pool_config *config, ckv_pool_view *view_out, int64_t *scales_offset_out,
                              int64_t *bytes_out)
{
    ckv_pool_view view = {.total_pages = config->pool_tokens / config->tokens_per_page};
    view.guard_page = (int32_t)view.total_pages;
    int64_t bytes;
    bool fits = ckv_mul_i64((int64_t)ckv_dtype_bytes(config->dtype), config->head_dim, &view.slot_stride) &&
                ckv_mul_i64(view.slot_stride, config->tokens_per_page, &view.head_stride) &&
                ckv_mul_i64(view.head_stride, config->kv_heads, &view.kv_stride) &&
                ckv_mul_i64(view.kv_stride, 2, &view.page_stride) &&
                ckv_mul_i64(view.page_stride, view.total_pages + 1, &view.layer_stride) &&
                ckv_mul_i64(view.layer_stride, config->layers, &bytes) && add_scales(config, &bytes, scales_offset_out);
    if (!fits)
        return ckv_fail(CKV_ERROR_INVALID,
                        "pool of %" PRId64 " tokens, %" PRId64 " layers, %" PRId64 " K/V heads of %" PRId64
                        " does not fit 64 bits",
                        config->pool_tokens, config->layers, config->kv_heads, config->head_dim);
    *view_out = view;
    *bytes_out = ckv_device_allocation_bytes(config->device != NULL ? config->device : &ckv_device_host, bytes);
    if (*bytes_out < 0)
        return ckv_fail(CKV_ERROR_INVALID, "pool of %" PRId64 " bytes does not fit 64 bits", bytes);
    return CKV_OK;
}

ckv_status ckv_pool_config_bytes(const ckv_pool_config *config, int64_t *bytes_out)
{
    if (bytes_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "pool_config_bytes: bytes_out is NULL");
    ckv_pool_view view;
    int64_t scales_offset;
    CKV_TRY(check_config(config));
    return plan_memory(config, &view, &scales_offset, bytes_out);
}

static void free_pool(ckv_pool *pool)
{
    pool->config.device->free(pool->view.base);
    free(pool->owners);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* K is NaN, so that reading the page by mistake shows. V is zero: kernels that work in tiles multiply the V of keys
 * past the row's end with weights of zero, and 0 * NaN is NaN. */
static ckv_status fill_guard_page(const ckv_pool *pool)
{
    const ckv_pool_view *view = &pool->view;
    char *values = (char *)view->base + view->guard_page * view->page_stride + view->kv_stride;
    CKV_TRY(ckv_pool_poison_page(pool, view->guard_page, NULL));
    return pool->config.device->fill_2d(values, (size_t)view->layer_stride, 0, (size_t)view->kv_stride,
                                        (size_t)pool->config.layers, NULL);
}

static ckv_status upload_scales(const ckv_pool *pool, int64_t layer, int64_t kv, const float *scales)
{
    const int64_t first = (layer * 2 + kv) * pool->config.kv_heads;
    return pool->config.device->upload(pool->scales + first, scales, (size_t)pool->config.kv_heads * sizeof *scales,
                                       NULL);
}

static ckv_status fill_scales(const ckv_pool *pool)
{
    float *ones = malloc((size_t)pool->config.kv_heads * sizeof *ones);
    if (ones == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "pool: out of host memory for %" PRId64 " scales", pool->config.kv_heads);
    for (int64_t head = 0; head < pool->config.kv_heads; head++)
        ones[head] = 1;
    ckv_status status = CKV_OK;
    for (int64_t i = 0; status == CKV_OK && i < 2 * pool->config.layers; i++)
        status = upload_scales(pool, i / 2, i % 2, ones);
    free(ones);
    return status;
}

/* Zero everything, so that no stale NaN is ever multiplied by a zero weight, and poison the guard page. */
static ckv_status fill_memory(const ckv_pool *pool)
{
    const ckv_device *device = pool->config.device;
    CKV_TRY(device->fill(pool->view.base, 0, (size_t)pool->bytes, NULL));
    CKV_TRY(fill_guard_page(pool));
    if (pool->scales != NULL)
        CKV_TRY(fill_scales(pool));
    return device->wait(NULL);
}

ckv_status ckv_pool_create(const ckv_pool_config *config, ckv_pool **pool_out)
{
    if (pool_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "pool_create: pool_out is NULL");
    ckv_pool_view view;
    int64_t scales_offset, bytes;
    CKV_TRY(check_config(config));
    CKV_TRY(plan_memory(config, &view, &scales_offset, &bytes));

    ckv_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "pool: out of host memory");
    *pool = (ckv_pool){.config = *config, .view = view, .bytes = bytes, .free_pages = view.total_pages, .holds = 1};
    if (pool->config.device == NULL)
        pool->config.device = &ckv_device_host;
    const char *poison = getenv("CKV_POISON");
    if (poison != NULL && strcmp(poison, "1") == 0)
        pool->config.poison_fresh_pages = 1;
    pthread_mutex_init(&pool->lock, NULL);
    ckv_status status = CKV_OK;
    pool->owners = calloc((size_t)view.total_pages, sizeof *pool->owners);
    if (pool->owners == NULL)
        status = ckv_fail(CKV_ERROR_MEMORY, "pool: out of host memory for %" PRId64 " pages", view.total_pages);
    if (status == CKV_OK)
        status = pool->config.device->alloc((size_t)bytes, &pool->view.base);
    if (status == CKV_OK && scales_offset > 0)
        pool->view.scales = pool->scales = (void *)((char *)pool->view.base + scales_offset);
    if (status == CKV_OK)
        status = fill_memory(pool);
    if (status != CKV_OK) {
        free_pool(pool);
        return status;
    }
    *pool_out = pool;
    return CKV_OK;
}

static void drop_hold(ckv_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    int64_t holds = --pool->holds;
    pthread_mutex_unlock(&pool->lock);
    if (holds == 0)
        free_pool(pool);
}

void ckv_pool_destroy(ckv_pool **pool)
{
    if (pool == NULL || *pool == NULL)
        return;
    drop_hold(*pool);
    *pool = NULL;
}

int32_t ckv_pool_add_user(ckv_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->holds++;
    int32_t user = ++pool->last_user;
    pthread_mutex_unlock(&pool->lock);
    return user;
}

void ckv_pool_remove_user(ckv_pool *pool)
{
    drop_hold(pool);
}

ckv_status ckv_pool_acquire(ckv_pool *pool, int32_t user, int64_t count, int32_t *pages_out)
{
    pthread_mutex_lock(&pool->lock);
    int64_t free_pages = pool->free_pages;
    if (count <= free_pages) {
        int64_t taken = 0;
        for (int32_t page = 0; taken < count; page++) {
            if (pool->owners[page] == CKV_POOL_FREE) {
                pool->owners[page] = user;
                pages_out[taken++] = page;
            }
        }
        pool->free_pages -= count;
    }
    pthread_mutex_unlock(&pool->lock);
    if (count > free_pages)
        return ckv_fail(CKV_ERROR_CAPACITY,
                        "%" PRId64 " pages are needed, %" PRId64 " of the pool's %" PRId64
                        " are free; close another rollout or create a larger pool",
                        count, free_pages, pool->view.total_pages);
    return CKV_OK;
}

void ckv_pool_release(ckv_pool *pool, int32_t user, int64_t count, const int32_t *pages)
{
    pthread_mutex_lock(&pool->lock);
    for (int64_t i = 0; i < count; i++) {
        if (pool->owners[pages[i]] != user)
            continue;
        pool->owners[pages[i]] = CKV_POOL_FREE;
        pool->free_pages++;
    }
    pthread_mutex_unlock(&pool->lock);
}

int32_t ckv_pool_page_owner(const ckv_pool *pool, int32_t page)
{
    return page >= 0 && page < pool->view.total_pages ? pool->owners[page] : CKV_POOL_FREE;
}

ckv_status ckv_pool_poison_page(const ckv_pool *pool, int32_t page, ckv_stream stream)
{
    char *first = (char *)pool->view.base + page * pool->view.page_stride;
    return pool->config.device->fill_2d(first, (size_t)pool->view.layer_stride, NAN_BYTE,
                                        (size_t)pool->view.page_stride, (size_t)pool->config.layers, stream);
}

static ckv_status check_scaled(const ckv_pool *pool, const char *operation, int64_t layer)
{
    if (pool == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "%s: pool is NULL", operation);
    if (pool->scales == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "%s: pages hold %s; only those of fp8_e4m3 have scales", operation,
                        ckv_dtype_name(pool->config.dtype));
    if (layer < 0 || layer >= pool->config.layers)
        return ckv_fail(CKV_ERROR_INVALID, "%s: layer is %" PRId64 "; the pool has layers 0 to %" PRId64, operation,
                        layer, pool->config.layers - 1);
    return CKV_OK;
}

/* Subnormal ones are left out: their reciprocals overflow. */
static ckv_status check_scales(const ckv_pool *pool, const char *name, const float *scales)
{
    for (int64_t head = 0; scales != NULL && head < pool->config.kv_heads; head++)
        if (!isnormal(scales[head]) || scales[head] < 0)
            return ckv_fail(CKV_ERROR_INVALID,
                            "set_scales: the %s scale of head %" PRId64 " is %g; it must be a normal positive number",
                            name, head, (double)scales[head]);
    return CKV_OK;
}

static ckv_status replace_scales(const ckv_pool *pool, int64_t layer, const float *k_scales, const float *v_scales)
{
    if (pool->free_pages < pool->view.total_pages)
        return ckv_fail(CKV_ERROR_STATE,
                        "set_scales: %" PRId64 " pages are in use, whose tokens are stored in the old scales; close "
                        "the rollout first",
                        pool->view.total_pages - pool->free_pages);
    if (k_scales != NULL)
        CKV_TRY(upload_scales(pool, layer, 0, k_scales));
    if (v_scales != NULL)
        CKV_TRY(upload_scales(pool, layer, 1, v_scales));
    return pool->config.device->wait(NULL);
}

ckv_status ckv_pool_set_scales(ckv_pool *pool, int64_t layer, const float *k_scales, const float *v_scales)
{
    CKV_TRY(check_scaled(pool, "set_scales", layer));
    CKV_TRY(check_scales(pool, "K", k_scales));
    CKV_TRY(check_scales(pool, "V", v_scales));
    pthread_mutex_lock(&pool->lock); /* nobody opens a rollout meanwhile */
    ckv_status status = replace_scales(pool, layer, k_scales, v_scales);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

ckv_status ckv_pool_get_scales(const ckv_pool *pool, int64_t layer, float *k_scales_out, float *v_scales_out)
{
    CKV_TRY(check_scaled(pool, "get_scales", layer));
    float *const outs[] = {k_scales_out, v_scales_out};
    for (int64_t kv = 0; kv < 2; kv++)
        if (outs[kv] != NULL)
            CKV_TRY(pool->config.device->download(outs[kv], pool->scales + (layer * 2 + kv) * pool->config.kv_heads,
                                                  (size_t)pool->config.kv_heads * sizeof(float), NULL));
    return CKV_OK;
}

const ckv_pool_config *ckv_pool_get_config(const ckv_pool *pool)
{
    return &pool->config;
}

int64_t ckv_pool_total_pages(const ckv_pool *pool)
{
    return pool->view.total_pages;
}

int64_t ckv_pool_free_pages(const ckv_pool *pool)
{
    return pool->free_pages;
}

int64_t ckv_pool_bytes(const ckv_pool *pool)
{
    return pool->bytes;
}

ckv_pool_view ckv_pool_get_view(const ckv_pool *pool)
{
    return pool->view;
}

const ckv_device *ckv_pool_device(const ckv_pool *pool)
{
    return pool->config.device;
}

int64_t ckv_pool_row_bytes(const ckv_pool *pool)
{
    return pool->view.slot_stride;
}
