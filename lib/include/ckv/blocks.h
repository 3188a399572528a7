/* SPDX-License-Identifier: Apache-2.0 */
/* The request-level block manager: K/V blocks of many requests, shared by prefix, over two tiers of memory.
 *
 * Layers with one attention span form a window; each window hands out its own blocks of tokens_per_block token slots.
 * Blocks whose content is known are kept in one prefix tree for all windows and reused until their memory is needed.
 * docs/blocks.md explains the design.
 *
 * Every call is atomic and may come from any thread. A refused call changes nothing. Arrays "per window" are ordered by
 * window ascending, so a recurrent window (-1) comes first, and have `windows` entries (ckv_blocks_num_windows).
 * Window arguments larger than max_seq_len mean max_seq_len, everywhere.
 *
 * Errors common to all calls: ERROR_INVALID for values out of range; ERROR_NOT_FOUND for an unknown request, window,
 * block, position or pin; ERROR_MEMORY when host memory runs out. Further ones stand with the calls. ERROR_DEVICE means
 * that the call was done but a copy could not be enqueued. */
#ifndef CKV_BLOCKS_H
#define CKV_BLOCKS_H

#include <ckv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_blocks ckv_blocks;

enum {
    CKV_BLOCKS_RECURRENT = -1, /* the window of recurrent-state layers */
    CKV_BLOCKS_HOLE = -1,      /* a table position without a block */
    CKV_BLOCKS_PRIMARY = 0,    /* tiers: device memory, */
    CKV_BLOCKS_HOST = 1,       /* and host memory */
    CKV_BLOCKS_TIERS = 2,
    CKV_BLOCKS_MAX_PRIORITY = 100,
    CKV_BLOCKS_DEFAULT_PRIORITY = 35,
    CKV_BLOCKS_MAX_WINDOWS = 16,
    CKV_BLOCKS_MAX_POOLS = 64 /* of one window */
};

#define CKV_BLOCKS_NO_DURATION ((int64_t)-1)
#define CKV_BLOCKS_OPEN INT64_MAX /* end of a retention range that has none */

/* name, bits of one element */
#define CKV_BLOCKS_DTYPE_LIST(X)                                                                                       \
    X(F32, "f32", 32)                                                                                                  \
    X(I32, "i32", 32)                                                                                                  \
    X(I64, "i64", 64)                                                                                                  \
    X(F16, "f16", 16)                                                                                                  \
    X(BF16, "bf16", 16)                                                                                                \
    X(FP8, "fp8", 8)                                                                                                   \
    X(I8, "i8", 8)                                                                                                     \
    X(U8, "u8", 8)                                                                                                     \
    X(FP4, "fp4", 4)

typedef enum ckv_blocks_dtype {
#define CKV_BLOCKS_DTYPE_ENUM(name, text, bits) CKV_BLOCKS_##name,
    CKV_BLOCKS_DTYPE_LIST(CKV_BLOCKS_DTYPE_ENUM)
#undef CKV_BLOCKS_DTYPE_ENUM
        CKV_BLOCKS_NUM_DTYPES
} ckv_blocks_dtype;

/* "f16", ...; "unknown" otherwise. Static storage. */
CKV_API const char *ckv_blocks_dtype_name(ckv_blocks_dtype dtype);

typedef enum ckv_blocks_cache {
    CKV_BLOCKS_SELF,
    CKV_BLOCKS_SELF_K_ONLY,
    CKV_BLOCKS_CROSS, /* neither grows nor shrinks; beams share the last context block too */
} ckv_blocks_cache;

/* ---- Geometry and configuration ---- */

/* Sizes of one window that differ from the defaults. */
typedef struct ckv_blocks_override {
    int64_t window;
    int64_t size_per_head;
    ckv_blocks_dtype dtype;
} ckv_blocks_override;

/* What decides the bytes of a block. Layer i belongs to windows[i % num_windows]. */
typedef struct ckv_blocks_geometry {
    int64_t tokens_per_block, max_seq_len;
    const int64_t *windows; /* NULL: one window, max_seq_len */
    int64_t num_windows;
    int64_t layers;          /* 0: as many as windows */
    const int64_t *kv_heads; /* [layers], or NULL: kv_heads_all in every layer */
    int64_t kv_heads_all, size_per_head;
    ckv_blocks_dtype dtype;
    const ckv_blocks_override *overrides;
    int64_t num_overrides;
    ckv_blocks_cache cache;
    int64_t indexer_head_dim, indexer_quant_block; /* head_dim 0: no indexer */
    int indexer_fp4;
    int64_t state_bytes; /* of a recurrent layer; 0: no recurrent windows allowed */
    int64_t sink_tokens; /* part of every sliding window */
} ckv_blocks_geometry;

/* Blocks of one window (0: of every one) in each tier. */
typedef struct ckv_blocks_count {
    int64_t window;
    int64_t blocks[CKV_BLOCKS_TIERS];
} ckv_blocks_count;

typedef enum ckv_blocks_policy {
    CKV_BLOCKS_REUSE_ALL,
    CKV_BLOCKS_REUSE_PER_REQUEST, /* blocks that have left a sliding window when they would be stored are not */
} ckv_blocks_policy;

typedef struct ckv_blocks_config {
    size_t struct_size; /* sizeof(ckv_blocks_config) */
    ckv_blocks_geometry geometry;
    const ckv_blocks_count *counts; /* one entry per window */
    int64_t num_counts;
    int64_t max_beam, max_sequences; /* max_sequences 0: no limit */
    int64_t chunk_size;              /* most context tokens of a step; 0: max_seq_len */
    int reuse, partial_reuse, copy_on_partial;
    ckv_blocks_policy policy;
    int64_t offload_min_priority; /* victims below it are dropped, not offloaded */
    int64_t max_rewind;           /* tokens a sliding window can always take back */
    int swa_scratch;
    int64_t snapshot_interval; /* of recurrent state, a multiple of tokens_per_block */
    int save_last_snapshot;
    int64_t event_buffer, stats_limit; /* -1 unbounded, 0 off, n the n newest */
    uint64_t first_pin_serial;
    int64_t (*now_ms)(void *context); /* NULL: the monotonic clock */
    void *now_context;
    /* Memory of the blocks. NULL: none, only bookkeeping. row_bytes replaces the geometry's pools by one pool of so
     * many bytes per token in every window. */
    const ckv_device *device;
    int64_t row_bytes;
} ckv_blocks_config;

/* struct_size set, f16, one K/V head of size 1, beam 1, reuse of all kinds on, offload from priority 30. */
CKV_API ckv_blocks_config ckv_blocks_config_default(void);

typedef enum ckv_blocks_pool_kind {
    CKV_BLOCKS_POOL_KV,
    CKV_BLOCKS_POOL_SCALE,
    CKV_BLOCKS_POOL_INDEXER,
    CKV_BLOCKS_POOL_STATE,
} ckv_blocks_pool_kind;

/* Memory of one kind in a window. A block is [layers][1 or 2][heads][tokens_per_block][size_per_head]. */
typedef struct ckv_blocks_pool {
    ckv_blocks_pool_kind kind;
    int64_t heads, size_per_head, layers, block_bytes;
} ckv_blocks_pool;

typedef struct ckv_blocks_window {
    int64_t window;
    int sliding, recurrent;
    int64_t blocks[CKV_BLOCKS_TIERS];
    int64_t size_per_head;
    ckv_blocks_dtype dtype;
    int64_t num_layers, num_kv_heads; /* kv_heads: distinct numbers of K/V heads, ascending */
    int64_t num_pools;
    ckv_blocks_pool pools[CKV_BLOCKS_MAX_POOLS];
    int64_t block_bytes, max_tokens, max_blocks_per_seq, sink_blocks;
} ckv_blocks_window;

CKV_NODISCARD CKV_API ckv_status ckv_blocks_create(const ckv_blocks_config *config, ckv_blocks **blocks_out);

/* Accepts NULL and a pointer to NULL; sets *blocks to NULL. Waits for copies. */
CKV_API void ckv_blocks_destroy(ckv_blocks **blocks);

CKV_API int64_t ckv_blocks_num_windows(const ckv_blocks *blocks);

/* The window at `index` (ascending). */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_window(const ckv_blocks *blocks, int64_t index,
                                                       ckv_blocks_window *window_out);

/* Index of a window, clamped first. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_find_window(const ckv_blocks *blocks, int64_t window, int64_t *index_out);

/* Layer indices and distinct numbers of K/V heads of a window; NULL to skip one. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_layers(const ckv_blocks *blocks, int64_t index, int64_t *layers_out,
                                                       int64_t *kv_heads_out);

/* ---- Requests ---- */

typedef struct ckv_blocks_range {
    int64_t start, end; /* prompt tokens; end may be CKV_BLOCKS_OPEN in the last range */
    int64_t priority, duration_ms;
} ckv_blocks_range;

typedef struct ckv_blocks_mm {
    uint64_t hash; /* of the item's content */
    int64_t position, length;
} ckv_blocks_mm;

typedef enum ckv_blocks_salt_kind {
    CKV_BLOCKS_NO_SALT,
    CKV_BLOCKS_SALT_INTEGER,
    CKV_BLOCKS_SALT_TEXT
} ckv_blocks_salt_kind;

/* A prompt and what else decides which blocks it may share. Everything is copied. */
typedef struct ckv_blocks_request {
    size_t struct_size; /* sizeof(ckv_blocks_request) */
    int64_t id;
    const int32_t *tokens;
    int64_t num_tokens;
    int64_t beam;
    int64_t max_new, draft; /* for scheduling questions */
    int has_lora;
    int64_t lora;
    ckv_blocks_salt_kind salt_kind;
    int64_t salt;
    const char *salt_text;
    const int64_t *extra_ids; /* [num_tokens] or NULL; generated tokens get 0 */
    const ckv_blocks_mm *mm;
    int64_t num_mm;
    const ckv_blocks_range *ranges;
    int64_t num_ranges;
    int64_t decode_priority, decode_duration_ms;
    int64_t external;    /* tokens after the match that a connector has loaded; one window only */
    int dummy, gen_init; /* never stored; context arrives from elsewhere */
} ckv_blocks_request;

/* struct_size set, beam 1, decode priority 35 without duration. */
CKV_API ckv_blocks_request ckv_blocks_request_default(void);

/* 32-bit little-endian words as tokens. ERROR_INVALID when the last word is not whole. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_unpack_tokens(const void *packed, size_t bytes, int32_t *tokens_out);

typedef struct ckv_blocks_admission {
    int64_t prepopulated_tokens; /* reused and external */
    int64_t alloc_total, alloc_new, reused, missed;
} ckv_blocks_admission;

typedef struct ckv_blocks_handle {
    int64_t window, block;
    uint64_t serial;
} ckv_blocks_handle;

/* A list the library makes and the caller frees. */
typedef struct ckv_blocks_handles {
    ckv_blocks_handle *items;
    int64_t count;
} ckv_blocks_handles;

CKV_API void ckv_blocks_handles_free(ckv_blocks_handles *handles);

/* Admit requests together, all or none; admissions_out[num_requests]. ERROR_STATE: an id in use. ERROR_CAPACITY: no
 * free block or sequence slot. ERROR_UNSUPPORTED: external tokens with several windows. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_add(ckv_blocks *blocks, const ckv_blocks_request *requests,
                                                int64_t num_requests, ckv_blocks_admission *admissions_out);

/* K and V of prompt tokens up to `to` are written. ERROR_STATE: the context is complete. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_prefill(ckv_blocks *blocks, int64_t id, int64_t to);

/* Before a context step: copy the recurrent state of the last finished block into the block, of every beam, that the
 * step ends in. copies_out[capacity]: block ids, from and to; *count_out may exceed it. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_carry_state(ckv_blocks *blocks, int64_t id, int64_t capacity,
                                                        int64_t (*copies_out)[2], int64_t *count_out);

/* Prompt positions after `kv` where context steps must end so that snapshots of recurrent state can be taken, of a live
 * request or (`request`) of one not admitted. points_out[capacity]; *count_out may exceed it. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_snapshot_points(ckv_blocks *blocks, int64_t id,
                                                            const ckv_blocks_request *request, int64_t capacity,
                                                            int64_t *points_out, int64_t *count_out);

/* Append tokens one after the other, all or none. The row of the last token before each has been written. ERROR_STATE:
 * context not complete. ERROR_CAPACITY: beyond max_seq_len or no free block. ERROR_UNSUPPORTED: a cross cache. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_append(ckv_blocks *blocks, int64_t id, const int32_t *tokens,
                                                   int64_t num_tokens);

/* Take `n` tokens back. ERROR_INVALID: into the prompt. ERROR_STATE: what is left needs a block that a window has
 * dropped. *known_out 0 and CKV_OK for an unknown id: it may have ended. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_rewind(ckv_blocks *blocks, int64_t id, int64_t n, int *known_out);

/* Make written blocks reusable. stored_out[windows] (or NULL): blocks newly put in the tree. handles_out (or NULL):
 * pins of every stored position, to be freed by the caller. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_store_context(ckv_blocks *blocks, int64_t id, int64_t *stored_out);
CKV_NODISCARD CKV_API ckv_status ckv_blocks_store_new(ckv_blocks *blocks, int64_t id, int64_t *stored_out);
CKV_NODISCARD CKV_API ckv_status ckv_blocks_store_for_reuse(ckv_blocks *blocks, int64_t id, int64_t *stored_out,
                                                            ckv_blocks_handles *handles_out);
/* Once, when the context is complete; else ERROR_STATE. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_finish_context(ckv_blocks *blocks, int64_t id, int64_t *stored_out,
                                                           ckv_blocks_handles *handles_out);
CKV_NODISCARD CKV_API ckv_status ckv_blocks_remove(ckv_blocks *blocks, int64_t id, int store, int64_t *stored_out);

/* ---- Blocks ---- */

/* Pin every block of a request. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_pin(ckv_blocks *blocks, int64_t id, ckv_blocks_handles *handles_out);

/* All or none. ERROR_NOT_FOUND: unknown, foreign or repeated. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_unpin(ckv_blocks *blocks, const ckv_blocks_handle *handles, int64_t count);

/* Are exactly these tokens cached in one window? ids_out[ceil(tokens / T)] (or NULL), holes -1; *count_out 0: no.
 * handles_out not NULL: pin them, for which all must be in primary memory. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_find(ckv_blocks *blocks, const ckv_blocks_request *request, int64_t window,
                                                 int64_t *ids_out, int64_t *count_out, ckv_blocks_handles *handles_out);

/* Forget cached blocks of this exact path after `keep` tokens (rounded up to blocks). dropped_out[windows]. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_truncate(ckv_blocks *blocks, const ckv_blocks_request *request,
                                                     int64_t keep, int64_t *dropped_out);

/* Give every beam its own copy of a position where its block is shared, pinned or reusable. ERROR_CAPACITY. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_make_private(ckv_blocks *blocks, int64_t id, int64_t window, int64_t index);

/* Block at a table position. ERROR_NOT_FOUND for a hole. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_block_at(ckv_blocks *blocks, int64_t id, int64_t window, int64_t index,
                                                     int64_t beam, int64_t *block_out);

/* Move one held or cached block to the other tier. ERROR_STATE: it is there, or has no content. ERROR_CAPACITY. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_offload(ckv_blocks *blocks, int64_t window, int64_t block);
CKV_NODISCARD CKV_API ckv_status ckv_blocks_onboard(ckv_blocks *blocks, int64_t window, int64_t block);

/* Move due blocks to the default priority. expired_out[windows] or NULL. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_refresh(ckv_blocks *blocks, int64_t *expired_out);

/* ---- Views ---- */

typedef struct ckv_blocks_request_info {
    int64_t tokens, prompt, kv, beam, positions; /* positions of every table */
    int context_done;
    int64_t front_removed[CKV_BLOCKS_MAX_WINDOWS];                                      /* blocks behind the sinks */
    int64_t scratch_first[CKV_BLOCKS_MAX_WINDOWS], scratch_end[CKV_BLOCKS_MAX_WINDOWS]; /* equal: none */
} ckv_blocks_request_info;

CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_request(ckv_blocks *blocks, int64_t id,
                                                        ckv_blocks_request_info *info_out);

/* One table: ids, slots and tiers of `positions` entries each, holes -1; NULL skips one. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_table(ckv_blocks *blocks, int64_t id, int64_t window, int64_t beam,
                                                      int64_t capacity, int64_t *ids_out, int64_t *slots_out,
                                                      int64_t *tiers_out);

/* tokens_out[tokens]. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_tokens(ckv_blocks *blocks, int64_t id, int64_t capacity,
                                                       int32_t *tokens_out);

/* The packed little-endian form of the current tokens, made on demand and kept until they change. Valid until the
 * request's next change; not to be read while another thread changes it. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_packed(ckv_blocks *blocks, int64_t id, const uint8_t **packed_out,
                                                       size_t *bytes_out);

/* What an attention kernel needs of one window for a batch: per request its active slots (sinks, then what has not been
 * removed; holes -1) behind each other, cumulative counts, tokens in the last page, the allocated page after the active
 * ones or -1, blocks removed in front, addressable tokens. Every array is the caller's. */
typedef struct ckv_blocks_page_table {
    int64_t cache_loc_capacity, cache_loc_count;
    int64_t *cache_loc;
    int64_t *cu_num_pages;                                      /* [requests + 1] */
    int64_t *last_page_len, *extra_page, *page_offset, *cached; /* [requests] */
} ckv_blocks_page_table;

/* lens: tokens of each request to attend over; NULL: all. ERROR_STATE: a held block is in host memory. Recurrent
 * windows: cache_loc is the slot of the state block of each request, nothing else is written. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_page_table(ckv_blocks *blocks, int64_t window, const int64_t *ids,
                                                           const int64_t *lens, int64_t num_requests, int64_t beam,
                                                           ckv_blocks_page_table *table);

/* Free blocks, and of these those without content, of one window. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_free(ckv_blocks *blocks, int64_t window,
                                                     int64_t free_out[CKV_BLOCKS_TIERS],
                                                     int64_t empty_out[CKV_BLOCKS_TIERS]);

typedef struct ckv_blocks_block_info {
    int64_t slot, tier, priority, duration_ms, refs, pins;
    int cached; /* reusable */
} ckv_blocks_block_info;

CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_block(ckv_blocks *blocks, int64_t window, int64_t block,
                                                      ckv_blocks_block_info *info_out);

/* Call `visit` for every cached block of a window with the tokens of its whole path; no other call meanwhile. */
typedef void (*ckv_blocks_visitor)(void *context, const int32_t *tokens, int64_t num_tokens, int64_t block);
CKV_NODISCARD CKV_API ckv_status ckv_blocks_visit_tree(ckv_blocks *blocks, int64_t window, ckv_blocks_visitor visit,
                                                       void *context);

typedef struct ckv_blocks_diagnostics {
    int64_t sequences, context, generation, pins;
    int64_t free[CKV_BLOCKS_MAX_WINDOWS][CKV_BLOCKS_TIERS];
    int64_t evictable[CKV_BLOCKS_MAX_WINDOWS][CKV_BLOCKS_TIERS];
    int stalled[CKV_BLOCKS_MAX_WINDOWS]; /* no free primary block */
} ckv_blocks_diagnostics;

CKV_NODISCARD CKV_API ckv_status ckv_blocks_diagnose(ckv_blocks *blocks, ckv_blocks_diagnostics *diagnostics_out);

/* Check every invariant; for tests and debugging, its cost grows with everything. ERROR_INTERNAL with the first
 * violation. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_check(ckv_blocks *blocks);

/* ---- Scheduling: questions that change nothing, about a live request or (`request`) one not admitted ---- */

typedef struct ckv_blocks_demand {
    int64_t blocks, estimated_reusable_tokens;
} ckv_blocks_demand;

/* Blocks the next step (two_steps: the next two) may take. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_needed(ckv_blocks *blocks, int64_t window, int64_t id,
                                                   const ckv_blocks_request *request, int two_steps,
                                                   ckv_blocks_demand *demand_out);

/* Blocks until the request ends. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_remaining(ckv_blocks *blocks, int64_t window, int64_t id,
                                                      const ckv_blocks_request *request, ckv_blocks_demand *demand_out);

typedef struct ckv_blocks_analysis {
    int64_t tokens;                                     /* reusable in all windows, whole blocks */
    int64_t reusable_all[CKV_BLOCKS_MAX_WINDOWS];       /* blocks */
    int64_t reusable_allocated[CKV_BLOCKS_MAX_WINDOWS]; /* of these, held by somebody */
    int64_t first_new_block;                            /* index of the first full block that is new, or -1 */
} ckv_blocks_analysis;

CKV_NODISCARD CKV_API ckv_status ckv_blocks_analyze(ckv_blocks *blocks, int64_t id, const ckv_blocks_request *request,
                                                    ckv_blocks_analysis *analysis_out);

/* A dry run of releasing requests. ERROR_STATE: release before start, or twice in a round. free_out[windows]. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_schedule_start(ckv_blocks *blocks, int64_t *free_out);
CKV_NODISCARD CKV_API ckv_status ckv_blocks_schedule_release(ckv_blocks *blocks, int64_t id, int64_t *free_out);
CKV_NODISCARD CKV_API ckv_status ckv_blocks_schedule_fits(ckv_blocks *blocks, int64_t window, int64_t needed_blocks,
                                                          int *fits_out);

/* Requests of this size that fit at once; per_window_out[windows] or NULL. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_max_batch(ckv_blocks *blocks, int64_t input, int64_t output,
                                                      int64_t *batch_out, int64_t *per_window_out);

/* Most blocks a request of input + output tokens holds in a window; pure. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_requirements(int64_t input, int64_t output, int64_t window,
                                                         int64_t tokens_per_block, int64_t sink, int64_t beam,
                                                         int64_t *blocks_out);

/* Largest window for which `blocks` suffice; pure. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_max_window(int64_t input, int64_t output, int64_t blocks,
                                                       int64_t tokens_per_block, int64_t sink, int64_t beam,
                                                       int64_t *window_out);

/* Priority (-1: no range) and duration of each block of `length` tokens; pure. Arrays [ceil(length / T)]. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_retention(const ckv_blocks_range *ranges, int64_t num_ranges,
                                                      int64_t tokens_per_block, int64_t length, int64_t *priorities_out,
                                                      int64_t *durations_out);

/* ---- Sizing, pure ---- */

typedef enum ckv_blocks_share {
    CKV_BLOCKS_SHARE_EQUAL,
    CKV_BLOCKS_SHARE_PROPORTIONAL, /* to window * bytes per token */
    CKV_BLOCKS_SHARE_WEIGHTS,
} ckv_blocks_share;

typedef struct ckv_blocks_rank {
    int64_t bytes[CKV_BLOCKS_TIERS];
    const int64_t *windows; /* NULL: the geometry's */
    int64_t num_windows;
} ckv_blocks_rank;

typedef struct ckv_blocks_sizing {
    ckv_blocks_geometry geometry;
    const ckv_blocks_rank *ranks;
    int64_t num_ranks;
    int64_t extra_bytes; /* of primary memory, for something else */
    ckv_blocks_share share;
    const int64_t *weights; /* CKV_BLOCKS_SHARE_WEIGHTS: one per window, ascending */
    int64_t num_weights;
    int64_t max_tokens; /* 0: no limit */
    int64_t max_batch;
    int reuse;
} ckv_blocks_sizing;

/* Blocks of each window within the bytes of every rank. counts_out and block_bytes_out [CKV_BLOCKS_MAX_WINDOWS].
 * ERROR_CAPACITY: a window without a block. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_size_pools(const ckv_blocks_sizing *sizing, ckv_blocks_count *counts_out,
                                                       int64_t *block_bytes_out, int64_t *num_windows_out);

/* Parts per million, half up, of each window in the sum of window * bytes_per_token. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_window_share(const int64_t *windows, const int64_t *bytes_per_token,
                                                         int64_t count, int64_t *share_ppm_out);

/* ---- Memory ---- */

/* One pool of a window in one tier: slot s starts at base + s * slot_stride_bytes. Slot `guard_slot` belongs to nobody;
 * device tables map holes to it. Host memory is pinned when the device is a GPU. */
typedef struct ckv_blocks_pool_view {
    void *base;
    int64_t slot_stride_bytes;
    int64_t guard_slot;
} ckv_blocks_pool_view;

/* ERROR_STATE: the manager has no memory. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_pool(const ckv_blocks *blocks, int64_t window, int64_t pool,
                                                     int64_t tier, ckv_blocks_pool_view *view_out);

/* Around a step on the caller's stream: begin lets the stream wait for the copies enqueued so far, end lets later
 * copies wait for the stream. Nothing waits on the host. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_step_begin(ckv_blocks *blocks, ckv_stream stream);
CKV_NODISCARD CKV_API ckv_status ckv_blocks_step_end(ckv_blocks *blocks, ckv_stream stream);

/* Slots of a page table (cache_loc, extra_page) to device memory as 32-bit numbers, holes as the guard slot. Enqueued
 * on the stream, from memory of the library's that is not used again before the copy is done: any number of steps may
 * be in flight. destroy the manager only behind them. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_upload_slots(ckv_blocks *blocks, int64_t window, const int64_t *slots,
                                                         int64_t count, int32_t *destination, ckv_stream stream);

/* Wait until all copies are done. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_wait(ckv_blocks *blocks);

#ifdef __cplusplus
}
#endif
#endif
