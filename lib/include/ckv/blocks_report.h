/* SPDX-License-Identifier: Apache-2.0 */
/* What the block manager tells: hashes, events, statistics. */
#ifndef CKV_BLOCKS_REPORT_H
#define CKV_BLOCKS_REPORT_H

#include <ckv/blocks.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Hashes of the full blocks of a request; equal on all machines. hashes_out[capacity]; *count_out may exceed it.
 * ERROR_UNSUPPORTED: several beams. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_hashes(ckv_blocks *blocks, int64_t id, int64_t capacity,
                                                   uint64_t *hashes_out, int64_t *count_out);

typedef enum ckv_blocks_event_type {
    CKV_BLOCKS_CREATED,
    CKV_BLOCKS_STORED,
    CKV_BLOCKS_REMOVED,
    CKV_BLOCKS_LEVEL_UPDATED,
    CKV_BLOCKS_PRIORITY_UPDATED,
} ckv_blocks_event_type;

typedef struct ckv_blocks_stored {
    uint64_t hash;
    const int32_t *tokens;
    int64_t num_tokens, level, priority;
} ckv_blocks_stored;

typedef struct ckv_blocks_event {
    int64_t id;
    ckv_blocks_event_type type;
    int64_t window;
    int64_t blocks[CKV_BLOCKS_TIERS]; /* created */
    int has_parent;                   /* stored: 0 at the root */
    uint64_t parent;
    int has_lora;
    int64_t lora;
    ckv_blocks_salt_kind salt_kind;
    int64_t salt;
    const char *salt_text;
    int64_t count;                   /* stored blocks or removed hashes */
    const ckv_blocks_stored *stored; /* [count] */
    const uint64_t *removed;         /* [count] */
    uint64_t hash;                   /* updated */
    int64_t before, after;           /* updated */
    void *memory;                    /* the library's */
} ckv_blocks_event;

typedef struct ckv_blocks_events {
    ckv_blocks_event *items;
    int64_t count;
    int64_t dropped; /* since the last drain */
} ckv_blocks_events;

/* End an iteration: announce removals, apply the buffer's limit. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_flush_events(ckv_blocks *blocks, int64_t *buffered_out);

/* Flush and take everything. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_drain_events(ckv_blocks *blocks, ckv_blocks_events *events_out);
CKV_API void ckv_blocks_events_free(ckv_blocks_events *events);

#define CKV_BLOCKS_COUNTER_LIST(X)                                                                                     \
    X(alloc_total)                                                                                                     \
    X(alloc_new)                                                                                                       \
    X(reused)                                                                                                          \
    X(full_reused)                                                                                                     \
    X(partial_reused)                                                                                                  \
    X(missed)                                                                                                          \
    X(gen_alloc)                                                                                                       \
    X(onboard_blocks)                                                                                                  \
    X(onboard_bytes)                                                                                                   \
    X(offload_blocks)                                                                                                  \
    X(offload_bytes)                                                                                                   \
    X(copy_blocks)                                                                                                     \
    X(copy_bytes)                                                                                                      \
    X(host_dropped_blocks)                                                                                             \
    X(host_dropped_bytes)

typedef struct ckv_blocks_counters {
#define CKV_BLOCKS_COUNTER_FIELD(name) int64_t name;
    CKV_BLOCKS_COUNTER_LIST(CKV_BLOCKS_COUNTER_FIELD)
#undef CKV_BLOCKS_COUNTER_FIELD
} ckv_blocks_counters;

/* Blocks of a tier; peaks are zero outside iterations. */
typedef struct ckv_blocks_gauges {
    int64_t max, free, used, evictable;
    int64_t peak_used, peak_free, peak_evictable;
} ckv_blocks_gauges;

typedef struct ckv_blocks_window_stats {
    ckv_blocks_gauges tiers[CKV_BLOCKS_TIERS];
    ckv_blocks_counters counters;
} ckv_blocks_window_stats;

typedef struct ckv_blocks_stats {
    ckv_blocks_window_stats windows[CKV_BLOCKS_MAX_WINDOWS];
    ckv_blocks_counters total;
    int64_t allocated_bytes; /* of primary memory */
} ckv_blocks_stats;

/* reused / (reused + missed) in parts per million, half up; 0 for 0 / 0. */
CKV_API int64_t ckv_blocks_hit_rate_ppm(const ckv_blocks_counters *counters);

CKV_NODISCARD CKV_API ckv_status ckv_blocks_get_stats(ckv_blocks *blocks, ckv_blocks_stats *stats_out);
CKV_NODISCARD CKV_API ckv_status ckv_blocks_reset_stats(ckv_blocks *blocks);

typedef struct ckv_blocks_iteration {
    int64_t number;
    ckv_blocks_window_stats windows[CKV_BLOCKS_MAX_WINDOWS]; /* counters: since the last one */
} ckv_blocks_iteration;

/* Take an iteration and start the next interval. */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_take_iteration(ckv_blocks *blocks, ckv_blocks_iteration *iteration_out);

/* Take `count` iterations into the bounded list (stats_limit; 0 takes none). */
CKV_NODISCARD CKV_API ckv_status ckv_blocks_record(ckv_blocks *blocks, int64_t count, int64_t *kept_out);

typedef struct ckv_blocks_records {
    ckv_blocks_iteration *items; /* oldest first */
    int64_t count;
    int64_t dropped; /* since the last drain */
} ckv_blocks_records;

CKV_NODISCARD CKV_API ckv_status ckv_blocks_drain_records(ckv_blocks *blocks, ckv_blocks_records *records_out);
CKV_API void ckv_blocks_records_free(ckv_blocks_records *records);

#ifdef __cplusplus
}
#endif
#endif
