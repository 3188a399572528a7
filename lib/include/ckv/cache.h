/* SPDX-License-Identifier: Apache-2.0 */
/* The causal K/V cache: one rollout of [fixed region | rolling history | staged tokens] in pages of a pool.
 *
 * A cache belongs to one thread at a time. Calls that take a stream enqueue on it and do not wait, unless they say so;
 * calls on one cache must be ordered (one stream, or events). A refused call changes nothing.
 * "Resident position" counts from the start of the rollout's resident tokens; pages dropped at commit shift it. */
#ifndef CKV_CACHE_H
#define CKV_CACHE_H

#include <ckv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKV_MAX_CAUSAL_BLOCK_SIZES 16

/* Every row ends in guard page entries for at least this many tokens: a kernel may read the table in tiles of keys that
 * reach past the row's end. */
#define CKV_ROW_GUARD_TOKENS 256

typedef struct ckv_cache ckv_cache;

typedef struct ckv_rollout_config {
    size_t struct_size;        /* sizeof(ckv_rollout_config) */
    int64_t pin_tokens;        /* the first pin_tokens committed tokens are never evicted */
    int64_t window_tokens;     /* tokens a causal block sees before its own and after the pinned ones; earlier
                                  blocks of the same forward count */
    int64_t max_staged_tokens; /* most tokens one forward stages */
    const int64_t
        *causal_block_sizes; /* each 1..max_staged_tokens; order and repeats do not matter; read by the call only */
    size_t num_causal_block_sizes; /* 1..CKV_MAX_CAUSAL_BLOCK_SIZES distinct sizes */
} ckv_rollout_config;

/* A config with struct_size set and everything else zero. */
CKV_API ckv_rollout_config ckv_rollout_config_default(void);

/* What a geometry needs, before anything is allocated. Tokens are multiples of tokens_per_page.
 *   resident = ceil(pin + window + max_staged) + 1 page; private of size b = floor(max_staged / b) blocks of
 *   ceil(3 * (tokens_per_page - 1) + b) each, ceil to pages. */
typedef struct ckv_rollout_size {
    int64_t resident_tokens;
    int64_t private_tokens;
    int64_t pool_tokens; /* resident + private */
} ckv_rollout_size;

/* ERROR_INVALID when a value is out of range or a size does not fit 64 bits. */
CKV_NODISCARD CKV_API ckv_status ckv_rollout_config_size(const ckv_rollout_config *config, int64_t tokens_per_page,
                                                         ckv_rollout_size *size_out);

/* The largest window_tokens of `config` whose pool (of `pool`, its pool_tokens ignored) takes at most `budget_bytes`,
 * guard page included. ERROR_INVALID, ERROR_CAPACITY when not even a window of 0 fits. */
CKV_NODISCARD CKV_API ckv_status ckv_rollout_max_window(const ckv_rollout_config *config, const ckv_pool_config *pool,
                                                        int64_t budget_bytes, int64_t *window_tokens_out);

/* What ckv_cache_device_bytes reports after the first open of this geometry by a cache that may take all of `pool`:
 * bytes of kernel-facing tensors on pool->device, the allocator's rounding included. They grow with pool_tokens.
 * ERROR_INVALID, ERROR_CAPACITY when the pool is too small for the geometry. */
CKV_NODISCARD CKV_API ckv_status ckv_rollout_state_bytes(const ckv_rollout_config *config, const ckv_pool_config *pool,
                                                         int64_t *bytes_out);

/* A cache with a pool of its own. ERROR_INVALID, ERROR_MEMORY. Waits for the device. */
CKV_NODISCARD CKV_API ckv_status ckv_cache_create(const ckv_pool_config *config, ckv_cache **cache_out);

/* A cache on a pool that other caches share; it holds the pool until it is destroyed. The cache may take at most
 * max_pool_tokens of it (a multiple of tokens_per_page; 0: all). ERROR_INVALID, ERROR_MEMORY. */
CKV_NODISCARD CKV_API ckv_status ckv_cache_create_on_pool(ckv_pool *pool, int64_t max_pool_tokens,
                                                          ckv_cache **cache_out);

/* Close, free everything, set *cache to NULL. Accepts NULL and a pointer to NULL, so a second destroy does nothing. */
CKV_API void ckv_cache_destroy(ckv_cache **cache);

CKV_API ckv_pool *ckv_cache_pool(const ckv_cache *cache);

/* Pages of the pool this cache holds now: resident and private ones of the open rollout. */
CKV_API int64_t ckv_cache_held_pages(const ckv_cache *cache);

/* Bytes of kernel-facing tensors this cache holds on the device besides the pool, over all geometries opened so far. */
CKV_API int64_t ckv_cache_device_bytes(const ckv_cache *cache);

/* Start a rollout. Tensors of a geometry (window, max_staged, block sizes; not pin) are allocated the first time it is
 * opened and keep their addresses for the life of the cache. ERROR_STATE when a rollout is open, ERROR_INVALID,
 * ERROR_CAPACITY with both numbers, ERROR_MEMORY; then nothing is open and the call can be repeated. */
CKV_NODISCARD CKV_API ckv_status ckv_cache_open(ckv_cache *cache, const ckv_rollout_config *config, ckv_stream stream);

/* End the rollout and give its pages back; kernel-facing tensors stay. A second close does nothing. The caller's work
 * on the pages must be ordered before whoever gets them next. */
CKV_API void ckv_cache_close(ckv_cache *cache);

typedef struct ckv_cache_state {
    int is_open; /* 1 or 0 */
    int64_t pin_tokens, window_tokens, max_staged_tokens;
    int64_t fixed_tokens;     /* pinned so far: at most pin_tokens */
    int64_t history_tokens;   /* resident ones, up to a page of them already outside every window */
    int64_t staging_offset;   /* fixed_tokens + history_tokens: where staged tokens go */
    int64_t committed_tokens; /* since open, dropped ones included */
    int64_t resident_tokens;  /* resident positions there are */
} ckv_cache_state;

/* All zero while no rollout is open. */
CKV_API ckv_cache_state ckv_cache_get_state(const ckv_cache *cache);

/* Write K and V of `tokens` resident positions from `start` in one layer: prompts, edits, tests. Edits of committed
 * tokens reach every private copy, so the next forward sees them. May move slot lists to the device (not for captured
 * graphs: the slots are those of this moment). ERROR_STATE, ERROR_INVALID (0 <= start, 1 <= tokens, start + tokens <=
 * resident_tokens). */
CKV_NODISCARD CKV_API ckv_status ckv_cache_write_range(ckv_cache *cache, int64_t layer, int64_t start, int64_t tokens,
                                                       const ckv_kv *source, ckv_stream stream);

/* Make V of a range zero, in the home slots and in every private copy of committed tokens; K stays.
 * Errors as for write_range. */
CKV_NODISCARD CKV_API ckv_status ckv_cache_zero_values(ckv_cache *cache, int64_t layer, int64_t start, int64_t tokens,
                                                       ckv_stream stream);

/* Stage the first `tokens` tokens of a forward in one layer: home slots, own slots of their causal block (unless
 * own_tokens is 0: the attention kernel writes those), and the copies later blocks of this forward read.
 * `tokens` is a positive multiple of causal_block_size, at most floor(max_staged / block) blocks; the size is one of
 * the geometry's. Safe to capture. ERROR_STATE, ERROR_INVALID. */
CKV_NODISCARD CKV_API ckv_status ckv_cache_write_staged(ckv_cache *cache, int64_t layer, int64_t tokens,
                                                        int64_t causal_block_size, const ckv_kv *source, int own_tokens,
                                                        ckv_stream stream);

/* The first `tokens` staged tokens become final: pinned ones first, the rest history (at most max_staged_tokens of
 * them). Whole pages older than the window are dropped and every kernel-facing tensor is rewritten in place, on the
 * device; nothing is read back and nothing waits. ERROR_STATE, ERROR_INVALID; ERROR_DEVICE: the rollout is lost and
 * every call but close says so.
 * On a stream that is being captured the commit is recorded and nothing advances, here or on the device; `tokens` is
 * then 1..max_staged_tokens. Each replay commits that many on the device, whatever the rollout has come to; tell the
 * cache of each with ckv_cache_follow_commit. A graph may hold several commits, and replays after close and open of the
 * same geometry. */
CKV_NODISCARD CKV_API ckv_status ckv_cache_commit(ckv_cache *cache, int64_t tokens, ckv_stream stream);

/* One commit of `tokens` was replayed from a graph: the host's view of the rollout (state, host-addressed edits)
 * follows. Call it once per replayed commit, in order, before any other call that reads or changes the rollout. No
 * device work. ERROR_STATE, ERROR_INVALID. */
CKV_NODISCARD CKV_API ckv_status ckv_cache_follow_commit(ckv_cache *cache, int64_t tokens);

/* What a paged kernel reads for one causal block size. Device addresses, fixed for the geometry; contents change at
 * open and commit. A forward of n blocks uses the first n rows. Each row: whole visible pages in logical order, then
 * the block's private pages (partially visible positions, then its own tokens), then the guard page. */
typedef struct ckv_block_view {
    int64_t causal_block_size;
    int64_t num_blocks;     /* floor(max_staged / causal_block_size) */
    int64_t row_pages;      /* entries of a row */
    int64_t max_seq_len_kv; /* upper bound for host-side plans; never the live value */
    const int32_t *rows;    /* [num_blocks, row_pages] page ids */
    const int32_t
        *kv_block_offsets;       /* [num_blocks, 2, row_pages]: 2*page for K, 2*page + 1 for V, in kv_stride units */
    const int32_t *seq_len_q;    /* [num_blocks], each causal_block_size */
    const int32_t *seq_len_kv;   /* [num_blocks] */
    const int64_t *own_slots;    /* [num_blocks * causal_block_size] slot ids of the blocks' own tokens */
    const int64_t *staged_slots; /* [max_staged] home slot ids of the staged tokens, the same for every size */
} ckv_block_view;

/* ERROR_STATE, ERROR_INVALID (a size the geometry does not declare; the detail lists the declared ones). */
CKV_NODISCARD CKV_API ckv_status ckv_cache_block_view(const ckv_cache *cache, int64_t causal_block_size,
                                                      ckv_block_view *view_out);

/* Inspection: read one causal block's row from the device, page by page, as a kernel would. `k_out` and `v_out` are
 * host memory for [capacity_tokens, kv_heads, head_dim] of what pages hold, or NULL to learn the length. Waits.
 * ERROR_STATE, ERROR_INVALID, ERROR_CAPACITY (row longer than capacity_tokens; nothing is written). */
CKV_NODISCARD CKV_API ckv_status ckv_cache_read_row(const ckv_cache *cache, int64_t layer, int64_t causal_block_size,
                                                    int64_t block, int64_t capacity_tokens, void *k_out, void *v_out,
                                                    int64_t *seq_len_kv_out, ckv_stream stream);

/* Check every invariant of the cache against its device tensors; builds with CKV_CHECKS do it after each operation.
 * Waits. ERROR_INTERNAL with the first violation. */
CKV_NODISCARD CKV_API ckv_status ckv_cache_check(const ckv_cache *cache, ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
