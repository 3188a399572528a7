/* SPDX-License-Identifier: Apache-2.0 */
/* Both managers, what the test knows besides, and the comparison. */
#ifndef CKV_TESTS_SUPPORT_BLOCKS_PAIR_H
#define CKV_TESTS_SUPPORT_BLOCKS_PAIR_H

#include "tests/support/blocks_script.h"

typedef struct pair_path {
    uint64_t path, hash;
    bool stored[BM_WINDOWS]; /* as the events tell it */
} pair_path;

typedef struct pair {
    ckv_blocks *blocks;
    bm model;
    int64_t now_ms, next_event, next_id;
    pair_path *paths;
    int num_paths, paths_capacity;
    ckv_blocks_handle pins[BM_PINS];
    int num_pins;
    bool state_lost[BM_REQUESTS];             /* by a rewind; by place in the model */
    ckv_blocks_counters interval[BM_WINDOWS]; /* counters when the last iteration was taken */
    char *message;
    size_t message_bytes;
} pair;

/* Record the first disagreement; returns false. */
bool pair_differ(pair *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool pair_open(pair *p, uint64_t seed, char *message, size_t message_bytes);
void pair_close(pair *p);

/* Both managers after an operation: blocks, tables, counters, events, invariants, contents. */
bool pair_compare(pair *p);

/* At the end: release everything; all must be free. */
bool pair_finish(pair *p);

/* The engine: rows of a request in the manager's memory. */
void pair_write_rows(pair *p, const bm_request *r, int from, int to);

/* One operation on both. */
bool pair_step(pair *p, const script_op *op);

#endif
