/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's pages over a trace: what each page of the pool holds at a forward, and which keys the row of each causal
 * block reads. Decoded from a real cache that stores which token is where, as `ckv window` does; a page holds the same
 * tokens in every layer, so one layer does for all. */
#ifndef CKV_TOOLS_REPORT_WALK_H
#define CKV_TOOLS_REPORT_WALK_H

#include "tools/common/arena.h"
#include "tools/trace/trace.h"

#include <ckv/cache.h>
#include <jansson.h>
#include <stdbool.h>

/* One cell of the picture: a page, or several of the same role where there are too many to show. */
typedef struct walk_cell {
    int64_t first_page, pages;
    bool is_private;
} walk_cell;

typedef struct walk {
    const trace *trace;
    ckv_cache *cache;
    int64_t total_pages, pages_per_cell;
    json_t *rollouts, *states, *layouts; /* of the report: arrays that grow */
    walk_cell *cells;                    /* of the open rollout */
    int64_t num_cells;
    int64_t *ids;                /* [total_pages, tokens_per_page] as the last state shows; -1: no token */
    bool is_new;                 /* something happened since that is not a forward like the last one */
    int64_t seq_len, block_size; /* of the last forward shown */
    arena memory;
} walk;

/* Arrays "rollouts", "states" and "layouts" are added to `report`. walk_destroy in any case. */
ckv_status walk_create(walk *w, const trace *t, json_t *report, problem *why);
void walk_destroy(walk *w);

/* Run one op. */
ckv_status walk_op(walk *w, const trace_op *op, problem *why);

/* The id of a resident position, as the exact-window reference counts. */
int64_t walk_position_id(const walk *w, int64_t position);

/* After a forward: the numbers of its state (what pages hold) and of its layout (what blocks read). */
ckv_status walk_show(walk *w, const trace_op *op, json_t *forward, problem *why);

#endif
