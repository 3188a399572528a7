/* SPDX-License-Identifier: Apache-2.0 */
/* ckv repro shrink: the smallest trace that still fails in the same way. */
#ifndef CKV_TOOLS_REPRO_SHRINK_H
#define CKV_TOOLS_REPRO_SHRINK_H

#include "tools/repro/trial.h"

#include <stdio.h>

/* What there is to make smaller. */
typedef struct trace_size {
    int64_t ops, forwards, chunks, tokens, layers, q_heads, kv_heads, head_dim, tokens_per_page, window, pinned,
        padding, ranks;
} trace_size;

typedef struct shrinker {
    trial trial;
    failure target; /* that has to stay */
    failure found;  /* of `best` */
    trace *best;    /* the shrinker's */
    double seconds; /* start no try after that long */
    bool speaks;    /* print what became smaller */
    int64_t tries, successes;
    bool is_late;       /* it could have gone on */
    ckv_status meeting; /* of the ranks; not CKV_OK when one of them is gone, and what was found says nothing */
    double started_s;
    bool only_used_blocks, copies_mistake;
} shrinker;

trace_size shrink_size(const shrinker *s);

/* Everything that changed, "tokens 47 -> 1, ...". */
void shrink_print_change(FILE *to, const trace_size *before, const trace_size *after);

/* Make `best` smaller while `target`, which is how it fails, stays. One dimension after the other, again and again
 * until nothing gives; the same each time, but for the end of the time. Collective over trial.comm. */
void shrink_run(shrinker *s);

#endif
