/* SPDX-License-Identifier: Apache-2.0 */
/* One layer of a trace up to one of its forwards: every token by id, the padding rows between them, and where a row of
 * that forward finds each key it should read, decoded from a real cache. */
#ifndef CKV_TOOLS_EXPLAIN_HISTORY_H
#define CKV_TOOLS_EXPLAIN_HISTORY_H

#include "tools/common/arena.h"
#include "tools/trace/problem.h"
#include "tools/trace/trace.h"

#include <ckv/cache.h>

typedef struct history_key {
    const void *k, *v; /* [kv_heads, head_dim], dense, in the trace's dtype */
    int64_t id;        /* -1: padding */
    int64_t order;     /* 2 * id; for padding one less than that of the token after it */
    int64_t forward;   /* that wrote it; -1: a write_range */
    int64_t row;       /* of that forward or write_range */
    int64_t rank;    /* that held the row; -1: all of a write_range's, none of a forward's that no shard has room for */
    int64_t version; /* of the layer, counted from 1 over its writes and forwards; 0 for padding */
    int64_t page;    /* where history_window found it; -1: nowhere */
    int64_t slot;
    int64_t count; /* scratch of whoever compares lists */
} history_key;

typedef struct history_keys {
    history_key **keys;
    int64_t count;
} history_keys;

typedef struct history {
    const trace *trace;
    arena *memory;
    int64_t ranks;
    const trace_op *op; /* the forward */
    int64_t forward;    /* its number */
    int64_t block_size; /* as resolved */
    int64_t committed;  /* tokens before it */
    ckv_cache_state state;
    history_keys tokens;  /* by id, the forward's own last */
    history_keys padding; /* of earlier forwards, behind the tokens they were committed with */
    history_keys own_padding;
    int64_t padded_tokens; /* of the forward over all ranks, at least its rows */
    ckv_cache *cache;
    int64_t versions;
    const trace_op *staged; /* the layer's forward since the last commit */
    int64_t staged_forward;
} history;

/* Run the ops before forward number `forward`, and stage it. The cause names the op. history_close in any case. */
ckv_status history_open(history *h, const trace *t, int64_t forward, int64_t ranks, arena *memory, problem *why);
void history_close(history *h);

/* Tokens the causal block of `row` should read, in order of id. */
history_keys history_window(const history *h, int64_t row);

/* Read the cache as the row's kernel would and note page and slot in every key. ERROR_INTERNAL when it is not the
 * window. */
ckv_status history_locate(const history *h, int64_t row, const history_keys *window, problem *why);

/* The rank whose shard of a forward has the row; -1: the trace has more padding than shards have room for. */
int64_t history_rank_of(const history *h, const trace_op *op, int64_t row);

void history_add(arena *memory, history_keys *list, history_key *key);

#endif
