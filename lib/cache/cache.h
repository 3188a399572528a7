/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the cache. */
#ifndef CKV_LIB_CACHE_H
#define CKV_LIB_CACHE_H

#include "kernels/causal_layout/causal_layout.h"
#include "kernels/common/slot_check.h"
#include "lib/layout/geometry.h"
#include "lib/pool/pool.h"

struct ckv_scatter_kv_slots_params;

enum { CKV_EDIT_ENTRIES = 2048 }; /* of one piece of a host-addressed edit */

/* Kernel-facing tensors of one geometry, at fixed addresses for the life of the cache: one device allocation. With
 * them, the host's twin of the table and private pages, and scratch for host-addressed edits. */
typedef struct ckv_cache_tensors {
    struct ckv_cache_tensors *next;
    ckv_geometry geometry;
    int64_t total_private_pages;
    int64_t max_resident_pages; /* whatever the pin: all the cache may hold, less private pages */

    uint64_t id; /* no two of a process have the same */
    void *memory;
    int64_t memory_bytes;            /* as the device takes them */
    int32_t *private_page_ids;       /* device [total_private_pages]; sizes ascending, then blocks */
    ckv_causal_layout_params layout; /* complete but for commit_tokens; what a rollout changes is on the device */
    int32_t *seq_len_q[CKV_MAX_CAUSAL_BLOCK_SIZES]; /* device [blocks of the size] */
    int64_t *edit_source, *edit_destination;        /* device [CKV_EDIT_ENTRIES] */
    void *zero_vector;                              /* device, one head vector of zeros */
    ckv_slot_check check;                           /* builds that check, else NULL */

    int32_t *host_pages; /* [max_resident + total_private] the table's mirror, then private page ids */
} ckv_cache_tensors;

/* Something built over a cache's tensors that must not outlive them, such as an attention backend's plans. `owner`
 * tells whose it is: the address of a static object. */
typedef struct ckv_cache_attachment {
    struct ckv_cache_attachment *next;
    const void *owner;
    void (*release)(struct ckv_cache_attachment *attachment); /* by destroy, before the tensors are freed */
} ckv_cache_attachment;

struct ckv_cache {
    ckv_pool *pool;
    int32_t user;
    int64_t max_pages;
    ckv_cache_tensors *all_tensors;
    ckv_cache_attachment *attachments;

    /* The open rollout; tensors is NULL while there is none. */
    ckv_cache_tensors *tensors;
    int64_t pin_tokens;
    int64_t resident_pages;
    ckv_progress progress;
    int diverged; /* the device failed inside a commit: mirror and device may differ until the next open */
};

/* ERROR_CAPACITY, with both numbers, when a rollout needs more than max_pages. */
ckv_status ckv_cache_check_capacity(const ckv_geometry *geometry, int64_t pin_tokens, int64_t max_pages);

/* Tensors of a geometry, made at its first open. ERROR_MEMORY; then nothing is kept. */
ckv_status ckv_cache_tensors_get(ckv_cache *cache, const ckv_geometry *geometry, ckv_cache_tensors **tensors_out);
void ckv_cache_tensors_free(ckv_cache_tensors *tensors, const ckv_device *device);

/* Give the cache an attachment to release when it is destroyed; at most one of an owner. */
void ckv_cache_attach(ckv_cache *cache, ckv_cache_attachment *attachment);

/* NULL when the owner has attached nothing. */
ckv_cache_attachment *ckv_cache_find_attachment(const ckv_cache *cache, const void *owner);

/* ERROR_STATE unless a rollout is open; `operation` begins the message. */
ckv_status ckv_cache_require_open(const ckv_cache *cache, const char *operation);

/* Some of a cache's K/V heads in one layer, and the tokens of a forward to stage there. */
typedef struct ckv_staged_heads {
    int64_t layer;
    int64_t first_kv_head, kv_heads; /* the caller has checked them */
    int64_t tokens, causal_block_size;
} ckv_staged_heads;

/* ckv_cache_write_staged in two steps, for whoever does the first himself: the scatter into home and own slots,
 * complete but for its source; and the copies that later blocks of the forward read. `source` holds the staged heads
 * only. */
ckv_status ckv_cache_plan_staged(const ckv_cache *cache, const ckv_staged_heads *heads,
                                 struct ckv_scatter_kv_slots_params *scatter_out);
ckv_status ckv_cache_copy_staged(const ckv_cache *cache, const ckv_staged_heads *heads, const ckv_kv *source,
                                 ckv_stream stream);

ckv_status ckv_cache_write_staged_heads(ckv_cache *cache, const ckv_staged_heads *heads, const ckv_kv *source,
                                        int own_tokens, ckv_stream stream);

/* fixed + history */
int64_t ckv_cache_staging_offset(const ckv_cache *cache);

/* Home slot of a resident position, from the host's mirror. */
int64_t ckv_cache_home_slot(const ckv_cache *cache, int64_t position);

/* First page id, in the host's mirror, of a block's private pages. */
const int32_t *ckv_cache_private_pages(const ckv_cache *cache, int32_t size, int64_t block);

/* The device's half of a commit: advance the state, rewrite every kernel-facing tensor, make the private copies. One
 * launch. With 0 tokens: only write. The mirror is not touched. */
ckv_status ckv_cache_enqueue_commit(ckv_cache *cache, int64_t tokens, ckv_stream stream);

/* What a captured forward's validity depends on besides its tensors: never the same for two geometries or caches. */
uint64_t ckv_cache_geometry_id(const ckv_cache *cache);

/* ckv_cache_check in builds that check, nothing in others. */
#ifdef CKV_CHECKS
#define CKV_CACHE_CHECK(cache, stream) CKV_TRY(ckv_cache_check(cache, stream))
#else
#define CKV_CACHE_CHECK(cache, stream) ((void)0)
#endif

#endif
