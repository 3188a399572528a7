/* SPDX-License-Identifier: Apache-2.0 */
/* A rollout whose first chunk needs padding to shard evenly, as a trace: the case that models get wrong. */
#ifndef CKV_TOOLS_REPRO_PADDED_CASE_H
#define CKV_TOOLS_REPRO_PADDED_CASE_H

#include "tools/trace/trace.h"

typedef enum padded_fill { PADDED_RANDOM, PADDED_ZERO, PADDED_NAN, PADDED_INF } padded_fill;

/* "random", ...; static storage. */
const char *padded_fill_name(padded_fill fill);

typedef struct padded_case {
    trace_config model;
    int64_t ranks;
    int64_t tokens;       /* of the first chunk */
    int64_t chunk_tokens; /* of every later one */
    int64_t chunks;
    int64_t window_tokens, pin_tokens;
    padded_fill fill; /* what padding rows hold in q, k and v */
    int64_t seed;
} padded_case;

/* Rows of a chunk of `tokens`: the least that the ranks share evenly. */
int64_t padded_case_rows(const padded_case *c, int64_t tokens);

/* Bytes of the tensors, about. */
double padded_case_bytes(const padded_case *c);

/* Two forwards a chunk in every layer, the second of which is committed. NULL when out of memory. */
trace *padded_case_make(const padded_case *c);

#endif
