/* SPDX-License-Identifier: Apache-2.0 */
/* What a run will do: the cases that the selected entries name, each with how it runs and what is expected of it. */
#ifndef CKV_LISTS_RUN_PLAN_H
#define CKV_LISTS_RUN_PLAN_H

#include "tools/lists/names.h"
#include "tools/lists/options.h"
#include "tools/lists/selection.h"
#include "tools/lists/waivers.h"
#include "tools/lists_run/ctest.h"
#include "tools/lists_run/slots.h"
#include "tools/lists_run/verdicts.h"

typedef struct plan_case {
    const char *name;
    const ctest_case *test; /* NULL: this build leaves it out */
    const list_entry *entry;
    entry_verdict expected;
    const char *waived_by; /* "reference, until DAY by OWNER", or an entry's reason; NULL when nothing is waived */
    double timeout_s;
    slot_request request;
    double expected_s; /* from earlier runs; negative: unknown */
    uint64_t seed;
    size_t order; /* in the lists */
    /* while it runs and after */
    size_t started, finished;
    run_tally attempts;
    run_verdict verdict; /* once all attempts have finished */
    const char *reason;  /* of the attempt that decided; "" for none */
    const char *seed_used;
    const char *folder;    /* logs of the attempt that decided */
    const char *gpus_used; /* of the attempt that decided; "" for none */
    double seconds;        /* of all attempts */
} plan_case;

typedef struct plan {
    plan_case *cases; /* in the order of the lists */
    size_t count;
} plan;

typedef struct plan_input {
    const char *folder; /* of the lists and waives.txt */
    const fact_set *facts;
    const selection *selected;
    const name_table *names;
    ctest_table *tests;
    const fact_set *durations;
    waiver_day today;
    char *const *only; /* names or globs of cases to keep, NULL-terminated; an empty list keeps all */
    bool partial;      /* the build leaves parts out on purpose: what is not there is skipped */
    bool has_seed;
    uint64_t seed; /* each case gets one of its own from it */
} plan_input;

/* False after messages: entries that name no case, waivers that cannot be read, names in `only` that keep nothing. */
bool plan_make(arena *memory, diagnostics *log, const plan_input *input, plan *plan_out);

/* Keep shard `shard` (from 0) of `shards`, and print the plan of the split. */
void plan_shard(arena *memory, plan *all, size_t shards, size_t shard, FILE *stream);

/* The order to start in: the longest first as far as durations are known, otherwise that of the lists; or at random.
 * Cases that run alone come last. */
plan_case **plan_order(arena *memory, plan *all, bool shuffle, uint64_t seed);

#endif
