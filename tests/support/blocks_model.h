/* SPDX-License-Identifier: Apache-2.0 */
/* The block manager once more, slow and small: fixed arrays, linear searches, every operation on a copy that is thrown
 * away when it is refused. Written from the rules, it shares nothing with lib/blocks but the public types. */
#ifndef CKV_TESTS_SUPPORT_BLOCKS_MODEL_H
#define CKV_TESTS_SUPPORT_BLOCKS_MODEL_H

#include <ckv/blocks.h>
#include <ckv/blocks_report.h>
#include <stdbool.h>

enum {
    BM_WINDOWS = 3,
    BM_BLOCKS = 28,
    BM_NODES = 512,
    BM_REQUESTS = 6,
    BM_TOKENS = 72,
    BM_STEP = 4, /* most tokens per block */
    BM_POSITIONS = BM_TOKENS,
    BM_BEAMS = 3,
    BM_RANGES = 2,
    BM_PINS = 128,
    BM_EVENTS = 512,
    BM_PATHS = 1024,
};

typedef struct bm_key {
    int count, space, num_mm;
    bool extra_used;
    int32_t tokens[BM_STEP];
    int64_t extra[BM_STEP];
    int64_t mm_hash, mm_before; /* at most one item */
} bm_key;

typedef struct bm_node {
    bool used;
    int parent; /* -1: a child of the root */
    bm_key key;
    uint64_t path; /* names the whole path */
    int64_t serial;
    int values[BM_WINDOWS];
} bm_node;

typedef struct bm_block {
    int tier, slot, refs, pins, priority, node;
    int64_t duration, deadline, released, order;
    bool claimed;
} bm_block;

typedef struct bm_window {
    int64_t window, recent, block_bytes;
    bool sliding, recurrent;
    int sinks, counts[2], total, layers;
    bm_block blocks[BM_BLOCKS];
    ckv_blocks_counters counters;
    int64_t peak_used[2];
    int num_removed;
    uint64_t removed[BM_EVENTS];
} bm_window;

typedef struct bm_request {
    bool used;
    int64_t id;
    int tokens_n, prompt, kv, beam, space, external, max_new, draft;
    int32_t tokens[BM_TOKENS];
    bool extra_used, has_mm, dummy, gen_init, finished;
    int64_t extra[BM_TOKENS];
    ckv_blocks_mm mm;
    int num_ranges;
    ckv_blocks_range ranges[BM_RANGES];
    int64_t decode_priority, decode_duration;
    int16_t table[BM_WINDOWS][BM_POSITIONS][BM_BEAMS];
    int positions, removed[BM_WINDOWS], scratch_first[BM_WINDOWS], scratch_end[BM_WINDOWS];
    bool snapshot[BM_POSITIONS];
    ckv_blocks_admission result;
} bm_request;

typedef struct bm_pin {
    bool used;
    int window, block;
    uint64_t serial;
} bm_pin;

/* An event; `paths` stand for hashes. */
typedef struct bm_event {
    int type, window;
    int first, count; /* in bm.paths */
    bool has_parent;
    uint64_t parent, path;
    int64_t before, after;
} bm_event;

typedef struct bm {
    ckv_blocks_config config;
    int step, num_windows, recurrent; /* index of the recurrent window, -1: none */
    bm_window windows[BM_WINDOWS];    /* ascending */
    bm_node nodes[BM_NODES];
    int num_nodes; /* in use or once used */
    int64_t serials;
    bm_request requests[BM_REQUESTS];
    bm_pin pins[BM_PINS];
    uint64_t next_serial;
    int64_t now, back, front, releases;
    bool out_of_blocks;         /* what makes the operation that runs a refusal */
    bm_event events[BM_EVENTS]; /* of the last operation */
    int num_events, num_paths;
    uint64_t paths[BM_PATHS];
    int path_levels[BM_PATHS], path_priorities[BM_PATHS];
} bm;

void bm_open(bm *m, const ckv_blocks_config *config, const ckv_blocks_window *windows, int num_windows);

/* ---- pieces (blocks_model.c) ---- */
bm_request *bm_find(bm *m, int64_t id);
bool bm_is_free(const bm_block *b);
int bm_count_free(const bm_window *w, int tier, bool empty_only);
int bm_fresh(bm *m, int w); /* -1: none left */
int bm_fresh_for(bm *m, int w, int64_t priority, int64_t duration);
void bm_onboard(bm *m, int w, int block);
void bm_copy(bm *m, int w, int from, int to, int rows);
void bm_release(bm *m, int w, int block);
void bm_unref(bm *m, int w, int block);
void bm_forget(bm *m, int w, int block);
void bm_prune(bm *m, int node);
void bm_emit_updated(bm *m, int type, int w, int node, int64_t before, int64_t after);
void bm_emit_stored(bm *m, int w, const int *nodes, int count);
void bm_flush(bm *m);
bm_key bm_make_key(const bm *m, const bm_request *r, int start, int count);
bool bm_same_key(const bm_key *a, const bm_key *b);
int bm_child(const bm *m, int parent, const bm_key *key); /* -1: none */
int bm_add_node(bm *m, int parent, const bm_key *key);
uint64_t bm_path(uint64_t parent, const bm_key *key);
bool bm_range(const bm *m, const bm_request *r, int position, int64_t *priority, int64_t *duration);
void bm_sample(bm *m);

/* ---- matching (blocks_model_match.c) ---- */
typedef struct bm_match {
    int length, full;
    int nodes[BM_POSITIONS];
    int partial[BM_WINDOWS]; /* node, -1 */
} bm_match;

typedef struct bm_options {
    int limit;
    bool partial, copy, full_only;
    int window; /* -1: all */
} bm_options;

bm_match bm_find_match(const bm *m, const bm_request *r, bm_options options);
int bm_match_block(const bm *m, int w, const bm_match *found, int position);
int bm_shared(const bm *m, const bm_request *r);
bool bm_state_real(const bm *m, const bm_request *r, int position);
ckv_blocks_demand bm_needed(const bm *m, int w, const bm_request *r, bool live, bool two_steps);
ckv_blocks_demand bm_remaining(const bm *m, int w, const bm_request *r, bool live);

/* ---- operations (blocks_model_ops.c): CKV_OK, or the status of the refusal and nothing happened ---- */
ckv_status bm_add(bm *m, bm_request *requests, int count); /* results in the requests */
ckv_status bm_prefill(bm *m, int64_t id, int to);
ckv_status bm_append(bm *m, int64_t id, const int32_t *tokens, int count);
ckv_status bm_rewind(bm *m, int64_t id, int n);
typedef enum bm_store_kind { BM_CONTEXT, BM_NEW, BM_FOR_REUSE, BM_FINISH } bm_store_kind;
ckv_status bm_store(bm *m, int64_t id, bm_store_kind kind, bool pin, int64_t *stored, ckv_blocks_handles *handles);
ckv_status bm_remove(bm *m, int64_t id, bool store, int64_t *stored);
ckv_status bm_pin_request(bm *m, int64_t id, ckv_blocks_handles *handles);
ckv_status bm_unpin(bm *m, const ckv_blocks_handle *handles, int count);
int bm_find_blocks(bm *m, const bm_request *r, int w, bool pin, int64_t *ids, ckv_blocks_handles *handles);
void bm_truncate(bm *m, const bm_request *r, int keep, int64_t *dropped);
ckv_status bm_private(bm *m, int64_t id, int w, int index);
ckv_status bm_move(bm *m, int w, int block, int tier);
void bm_refresh(bm *m, int64_t *expired);
int bm_carry(bm *m, int64_t id, int64_t (*copies)[2]);

#endif
