/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the block manager: its objects, and what its parts ask of each other. Everything below runs under the
 * manager's lock. */
#ifndef CKV_LIB_BLOCKS_H
#define CKV_LIB_BLOCKS_H

#include "lib/blocks/payload.h"
#include "lib/blocks/trie.h"
#include "lib/device/device.h"

#include <ckv/blocks_report.h>
#include <pthread.h>

enum {
    NONE = -1,
    EMPTY_LIST = CKV_BLOCKS_MAX_PRIORITY + 1, /* the list of blocks without content, behind those of the priorities */
    NUM_LISTS,
    NO_LIST = 255,
};
#define NO_DEADLINE INT64_MAX

/* Identity of a block: its index in the window. Memory (tier, slot) is exchanged between blocks, nothing else. */
typedef struct block_state {
    int64_t duration_ms; /* CKV_BLOCKS_NO_DURATION */
    int64_t deadline_ms; /* of a free block that has a duration; NO_DEADLINE */
    uint64_t released;   /* order of release */
    int32_t node;        /* in the trie, or NONE */
    int32_t slot;
    int32_t refs; /* table positions that name it, beams counted */
    int32_t pins;
    int32_t prev, next; /* in its list */
    int32_t heap_at;    /* in the window's deadlines, or NONE */
    int32_t scheduled;  /* refs + pins when the scheduling round began, less dry releases; valid in `round` */
    uint32_t round;
    int32_t last_partial; /* during an admission: the last request that matches it in part, or NONE */
    uint8_t tier, priority;
    uint8_t list;  /* that it is in, or NO_LIST: held or claimed */
    uint8_t marks; /* of the operation that runs; 0 between operations */
} block_state;

/* Free blocks of one tier. */
typedef struct free_lists {
    int32_t head[NUM_LISTS], tail[NUM_LISTS];
    uint64_t nonempty[2]; /* bit per list */
    int32_t count, empty; /* all, and those without content */
} free_lists;

typedef struct peaks {
    int64_t used, free, evictable;
} peaks;

typedef struct window_state {
    ckv_blocks_window info;
    int32_t *layers;   /* [info.num_layers] */
    int64_t *kv_heads; /* [info.num_kv_heads] */
    int32_t index;
    int64_t recent;      /* tokens of a sliding window behind the sinks */
    block_state *blocks; /* [total]: primary ones first */
    int32_t total;
    free_lists free[CKV_BLOCKS_TIERS];
    int32_t *deadlines; /* a heap by (deadline, released) */
    int32_t num_deadlines;
    ckv_blocks_counters counters, last_counters;
    peaks peaks[CKV_BLOCKS_TIERS];
    int64_t schedule_free; /* primary blocks free after the dry releases of this round */
    uint64_t *removed;     /* hashes to announce */
    int64_t num_removed, removed_capacity;
} window_state;

/* What a key needs, owned. */
typedef struct live_request {
    int64_t id;
    int32_t *tokens;
    int64_t *extra; /* NULL: none */
    ckv_blocks_mm *mm;
    key_mm *mm_scratch;
    int64_t num_tokens, capacity, num_mm;
    int32_t space; /* NONE until acquired */
    int64_t prompt, kv, beam;
    int64_t max_new, draft, external;
    ckv_blocks_range *ranges; /* by start */
    int64_t num_ranges, decode_priority, decode_duration_ms;
    bool dummy, gen_init, context_finished;
    struct table {
        int32_t *ids; /* [capacity][beam] */
        int64_t positions, capacity;
        int64_t removed; /* front blocks behind the sinks */
        int64_t scratch_first, scratch_end;
    } tables[CKV_BLOCKS_MAX_WINDOWS];
    uint8_t *snapshots; /* [context blocks]: a step ended exactly there; NULL without recurrent window_state */
    uint8_t *packed;    /* NULL: not made since the tokens changed */
    int64_t live_at;    /* in the manager's list */
    uint32_t added_round, released_round; /* of scheduling */
} live_request;

typedef struct event_log {
    int64_t limit;           /* -1 none, 0 off */
    ckv_blocks_event *items; /* [capacity], `count` of them from `first` on */
    int64_t first, count, capacity, next_id, dropped;
} event_log;

typedef struct records {
    int64_t limit;
    ckv_blocks_iteration *items; /* a ring when the limit is positive */
    int64_t first, count, capacity, dropped, next_number;
} records;

struct ckv_blocks {
    pthread_mutex_t lock;
    ckv_blocks_config config; /* pointers in it are not kept */
    int64_t tokens_per_block, max_seq_len;
    window_state windows[CKV_BLOCKS_MAX_WINDOWS];
    int32_t num_windows;
    int32_t recurrent; /* index of the recurrent window, or NONE */
    trie trie;
    id_map by_id;        /* request id -> index in live */
    live_request **live; /* [num_live] */
    int64_t num_live, live_capacity;
    int64_t num_context; /* of the live: whose context is not complete */
    id_map pins;         /* serial -> window index << 32 | block_state */
    uint64_t next_serial;
    uint64_t releases;
    uint32_t round; /* of scheduling; 0: none yet */
    event_log events;
    records records;
    payload *payload; /* NULL: no memory */
    uint64_t entered; /* copies decided before the operation that runs */
};

static inline int32_t value_of(const ckv_blocks *m, int32_t node, const window_state *w)
{
    return trie_value(&m->trie, node, w->index);
}

static inline bool is_held(const block_state *b)
{
    return b->refs > 0 || b->pins > 0;
}

static inline int64_t free_count(const window_state *w, int tier)
{
    return w->free[tier].count;
}

/* ---- config.c: geometry ---- */

/* Windows of a geometry, ascending, with pools and bytes; blocks of each are 0. The lists are malloc'd. */
ckv_status ckv_blocks_plan_windows(const ckv_blocks_geometry *geometry, window_state *windows_out,
                                   int32_t *num_windows_out);
void ckv_blocks_free_plan(window_state *windows, int32_t num_windows);
int64_t ckv_blocks_element_bytes(ckv_blocks_dtype dtype); /* of an element in a pool: a byte for fp4 */
/* Is it in the list, though perhaps of no layer? */
bool ckv_blocks_is_listed(const ckv_blocks_geometry *g, int64_t window);
int64_t ckv_blocks_clamp_window(int64_t window, int64_t max_seq_len);
window_state *ckv_blocks_lookup_window(ckv_blocks *m, int64_t wanted); /* NULL: unknown */
ckv_status ckv_blocks_check_ranges(const ckv_blocks_range *ranges, int64_t num_ranges);

/* ---- lists.c: free blocks ---- */

void ckv_lists_init(window_state *w);
int32_t ckv_lists_cheapest(const free_lists *lists);    /* empty first, then lowest priority; NONE */
void ckv_lists_remove(window_state *w, int32_t id);     /* out of its list, which it is in; its deadline runs on */
void ckv_lists_push(window_state *w, int32_t id);       /* to the back of its priority's list */
void ckv_lists_push_empty(window_state *w, int32_t id); /* to the front of the empty ones, properties reset */
void ckv_deadline_set(window_state *w, int32_t id, int64_t deadline_ms);
void ckv_deadline_clear(window_state *w, int32_t id);

/* ---- memory.c: handing out and taking back ---- */

int64_t ckv_blocks_now(const ckv_blocks *m);

/* Hold or release. Claim takes a block out of its list, if it is in one. */
void ckv_block_claim(window_state *w, int32_t id);
void ckv_block_ref(ckv_blocks *m, window_state *w, int32_t id, int32_t count);
void ckv_block_unref(ckv_blocks *m, window_state *w, int32_t id, int32_t count);
void ckv_block_release(ckv_blocks *m, window_state *w, int32_t id); /* nobody holds it any more */

/* Take a block out of the trie and announce it. */
void ckv_block_forget(ckv_blocks *m, window_state *w, int32_t id);

/* A claimed primary block without content; one must be free. *displaced_out: something cached had to go. */
int32_t ckv_block_fresh(ckv_blocks *m, window_state *w, bool *displaced_out);

/* A fresh block for a request, counted. */
int32_t ckv_block_fresh_for(ckv_blocks *m, window_state *w, int64_t priority, int64_t duration_ms);

/* Bring a claimed block to primary memory. */
void ckv_block_onboard(ckv_blocks *m, window_state *w, int32_t id);

/* Copy the first rows of a block into another one, counted. */
void ckv_block_copy(ckv_blocks *m, window_state *w, int32_t from, int32_t to, int64_t rows);

/* ---- request.c ---- */

ckv_status ckv_request_create(ckv_blocks *m, const ckv_blocks_request *wanted, live_request **request_out);
void ckv_request_destroy(ckv_blocks *m, live_request *r);
ckv_status ckv_request_find(ckv_blocks *m, int64_t id, live_request **request_out);
/* A live request, or one made of `wanted` and to be destroyed: *temporary_out. */
ckv_status ckv_request_borrow(ckv_blocks *m, int64_t id, const ckv_blocks_request *wanted, live_request **request_out,
                              bool *temporary_out);
ckv_status ckv_request_reserve(ckv_blocks *m, live_request *r, int64_t tokens);
key_source ckv_request_keys(const live_request *r);
void ckv_request_retention(const ckv_blocks *m, const live_request *r, int64_t position, int64_t *priority_out,
                           int64_t *duration_out); /* priority NONE: no range */

static inline int32_t *table_at(live_request *r, const window_state *w, int64_t position)
{
    return &r->tables[w->index].ids[position * r->beam];
}

/* Positions the context takes, and how many of them all beams share. */
int64_t ckv_request_shared(const ckv_blocks *m, const live_request *r);
bool ckv_request_is_scratch(const live_request *r, const window_state *w, int64_t position);

/* ---- match.c ---- */

typedef struct prefix_match {
    int64_t length;                          /* reusable tokens, in every window_state */
    int64_t full;                            /* whole blocks of them */
    int32_t *nodes;                          /* [full + 1]: the root, then the path */
    int32_t partial[CKV_BLOCKS_MAX_WINDOWS]; /* node the other rows come from */
} prefix_match;

typedef struct match_options {
    int64_t limit;  /* most tokens */
    bool partial;   /* leading rows of any block_state */
    bool copy;      /* also of blocks that are held or have children */
    bool full_only; /* whole blocks only */
    int32_t window; /* only this one; NONE: all */
} match_options;

ckv_status ckv_blocks_match(const ckv_blocks *m, const live_request *r, match_options options, prefix_match *match_out);

/* Block at a matched position, NONE for a hole. */
int32_t ckv_match_block(const ckv_blocks *m, const window_state *w, const prefix_match *found, int64_t position);

/* ---- recurrent.c ---- */

bool ckv_state_is_snapshot(const ckv_blocks *m, const live_request *r, int64_t position);
bool ckv_state_is_real(const ckv_blocks *m, const live_request *r, int64_t position); /* of the context */
void ckv_state_grow(ckv_blocks *m, live_request *r);
int64_t ckv_state_split(const ckv_blocks *m, const live_request *r); /* blocks that growing takes */
ckv_status ckv_state_check_rewind(const ckv_blocks *m, const live_request *r, int64_t tokens);
void ckv_state_rewind(ckv_blocks *m, live_request *r, int64_t tokens);

/* ---- slide.c ---- */

/* Let the front blocks go that a sliding window of `r` no longer needs. */
void ckv_window_slide(ckv_blocks *m, window_state *w, live_request *r);
/* The context is complete: scratch pages and what lies in front of them go. */
void ckv_window_drop_scratch(ckv_blocks *m, window_state *w, live_request *r);
void ckv_request_release(ckv_blocks *m, live_request *r);

/* ---- store.c ---- */

typedef enum store_what { STORE_FULL, STORE_TAIL } store_what;
ckv_status ckv_request_store(ckv_blocks *m, live_request *r, store_what what, int64_t *stored_out,
                             ckv_blocks_handles *handles_out);

/* ---- pins.c ---- */

/* An empty list with room for `most` pins, and room in the map. */
ckv_status ckv_pins_reserve(ckv_blocks *m, ckv_blocks_handles *handles, int64_t most);
void ckv_pins_add(ckv_blocks *m, window_state *w, int32_t id, ckv_blocks_handles *handles);

/* ---- scheduling ---- */

/* Before refs or pins change in a round: remember what they were when it began. */
void ckv_schedule_touch(const ckv_blocks *m, block_state *b);

/* ---- events.c ---- */

void ckv_events_created(ckv_blocks *m);
void ckv_events_removed(ckv_blocks *m, window_state *w, uint64_t hash);
void ckv_events_updated(ckv_blocks *m, window_state *w, uint64_t hash, ckv_blocks_event_type what, int64_t before,
                        int64_t after);
/* Newly stored blocks of adjacent nodes. */
void ckv_events_stored(ckv_blocks *m, window_state *w, const int32_t *nodes, int64_t count);
void ckv_events_free(ckv_blocks *m);

/* ---- stats.c ---- */

void ckv_stats_sample(ckv_blocks *m);
void ckv_stats_sample_window(window_state *w);
void ckv_stats_start(ckv_blocks *m);

/* ---- locking: every public call is one operation ---- */

ckv_status ckv_blocks_enter(ckv_blocks *m, const char *call);  /* ERROR_INVALID for NULL; else locked */
ckv_status ckv_blocks_leave(ckv_blocks *m, ckv_status status); /* sample, unlock, move what has to move */
ckv_status ckv_blocks_enter_window(ckv_blocks *m, const char *call, int64_t wanted, window_state **window_out);
ckv_status ckv_blocks_no_window(int64_t wanted);

#endif
