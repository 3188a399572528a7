/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: pages of K and V for every layer and every K/V head of this rank. Several caches may share one. */
#ifndef CKV_POOL_H
#define CKV_POOL_H

#include <ckv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_pool ckv_pool;

typedef struct ckv_pool_config {
    size_t struct_size;       /* sizeof(ckv_pool_config) */
    const ckv_device *device; /* NULL: host */
    int64_t layers;
    int64_t kv_heads; /* of this rank */
    int64_t head_dim;
    ckv_dtype dtype;         /* what pages hold */
    ckv_dtype tensor_dtype;  /* of q, K, V and out that callers hand over, when pages hold fp8_e4m3; else not looked at:
                                pages hold what callers give */
    int64_t tokens_per_page; /* a power of two */
    int64_t pool_tokens;     /* a multiple of tokens_per_page, in less than 2^30 pages */
    int poison_fresh_pages;  /* debugging aid, also with CKV_POISON=1 in the environment: fill pages with NaN when they
                                are handed out or recycled (but not by a commit replayed from a graph) */
} ckv_pool_config;

/* A config with struct_size set, everything else zero: callers fill in the sizes. */
CKV_API ckv_pool_config ckv_pool_config_default(void);

/* The dtype of callers' tensors. */
static inline ckv_dtype ckv_pool_config_tensor_dtype(const ckv_pool_config *config)
{
    return config->dtype == CKV_FP8_E4M3 ? config->tensor_dtype : config->dtype;
}

/* Bytes a pool of this config takes on its device, guard page, scales and the allocator's rounding included.
 * ERROR_INVALID when a size is out of range or the product does not fit 64 bits. */
CKV_NODISCARD CKV_API ckv_status ckv_pool_config_bytes(const ckv_pool_config *config, int64_t *bytes_out);

/* Allocate a pool. The config is copied. ERROR_INVALID as above, ERROR_MEMORY. Waits for the device. */
CKV_NODISCARD CKV_API ckv_status ckv_pool_create(const ckv_pool_config *config, ckv_pool **pool_out);

/* Drop the caller's hold and set *pool to NULL; accepts NULL and a pointer to NULL. Memory is freed when the last cache
 * on the pool is destroyed. No kernel may still be using it. */
CKV_API void ckv_pool_destroy(ckv_pool **pool);

CKV_API const ckv_pool_config *ckv_pool_get_config(const ckv_pool *pool);

/* Pages in all and pages no cache holds. The guard page counts in neither. */
CKV_API int64_t ckv_pool_total_pages(const ckv_pool *pool);
CKV_API int64_t ckv_pool_free_pages(const ckv_pool *pool);

/* Device memory really taken, in bytes. */
CKV_API int64_t ckv_pool_bytes(const ckv_pool *pool);

/* How to address a slot. The vector of (layer, kv, head, page, slot in page) starts at
 *   base + layer*layer_stride + page*page_stride + kv*kv_stride + head*head_stride + slot*slot_stride
 * with kv 0 for K and 1 for V; strides in bytes. Slot ids elsewhere are page * tokens_per_page + slot in page.
 * Page `guard_page` (= total pages) is never owned: unused table entries name it. Its K is NaN, so that reading it by
 * mistake shows; its V is zero, for kernels that multiply the V of keys past a row's end with weights of zero. */
typedef struct ckv_pool_view {
    void *base;
    int64_t layer_stride, page_stride, kv_stride, head_stride, slot_stride;
    int64_t total_pages; /* without the guard page */
    int32_t guard_page;
    const float *scales; /* on the device, [layers, 2 (K, V), kv_heads]; NULL unless pages hold fp8_e4m3 */
} ckv_pool_view;

CKV_API ckv_pool_view ckv_pool_get_view(const ckv_pool *pool);

/* Pages of fp8_e4m3: an element is its code times the scale of its layer and K/V head, one for K and one for V.
 * Whatever writes them stores the code nearest to value * (1 / scale) in float, saturated at 448; copies move codes.
 * All scales are 1 at first; the largest magnitude over 448 wastes no range, a power of two makes dequantised values
 * exact in bf16. `k_scales` and `v_scales` are host memory, [kv_heads]; NULL leaves those as they are. Waits for the
 * device. ERROR_INVALID (a scale that is not a normal positive number, named; pages of another dtype; a layer that is
 * not there), ERROR_STATE while a rollout is open on the pool: its tokens are stored in the old ones. Then none
 * changes. */
CKV_NODISCARD CKV_API ckv_status ckv_pool_set_scales(ckv_pool *pool, int64_t layer, const float *k_scales,
                                                     const float *v_scales);

/* The scales of a layer, as ckv_pool_set_scales takes them. Waits. ERROR_INVALID. */
CKV_NODISCARD CKV_API ckv_status ckv_pool_get_scales(const ckv_pool *pool, int64_t layer, float *k_scales_out,
                                                     float *v_scales_out);

#ifdef __cplusplus
}
#endif
#endif
