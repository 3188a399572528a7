/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the pool: who holds which page. Caches register as users; pages are accounted to each. */
#ifndef CKV_LIB_POOL_H
#define CKV_LIB_POOL_H

#include "lib/device/device.h"

#include <ckv/pool.h>

enum { CKV_POOL_FREE = 0 }; /* owner of a page nobody holds; users count from 1 */

/* Hold the pool and get a user id for page accounting. */
int32_t ckv_pool_add_user(ckv_pool *pool);

/* Drop the hold of add_user; frees the pool with the last one. The user must hold no page. */
void ckv_pool_remove_user(ckv_pool *pool);

/* Hand out `count` pages, lowest ids first. ERROR_CAPACITY with the numbers, then none is taken. */
ckv_status ckv_pool_acquire(ckv_pool *pool, int32_t user, int64_t count, int32_t *pages_out);

/* Give pages back. All must be the user's. */
void ckv_pool_release(ckv_pool *pool, int32_t user, int64_t count, const int32_t *pages);

/* CKV_POOL_FREE, or the user that holds the page. */
int32_t ckv_pool_page_owner(const ckv_pool *pool, int32_t page);

/* Fill all layers of a page with NaN. */
ckv_status ckv_pool_poison_page(const ckv_pool *pool, int32_t page, ckv_stream stream);

const ckv_device *ckv_pool_device(const ckv_pool *pool);

/* Bytes of one head vector. */
int64_t ckv_pool_row_bytes(const ckv_pool *pool);

#endif
