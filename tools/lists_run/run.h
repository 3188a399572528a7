/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a plan: its state, and the steps that share it. */
#ifndef CKV_LISTS_RUN_RUN_H
#define CKV_LISTS_RUN_RUN_H

#include "tools/lists_run/junit.h"
#include "tools/lists_run/plan.h"
#include "tools/lists_run/worker.h"

#include <jansson.h>

/* One attempt of a case that is under way, or whose GPUs are waited for. */
typedef struct run_attempt {
    plan_case *of;
    size_t number; /* from 1 */
    slot_grant grant;
    worker worker;
    double started; /* seconds of CLOCK_MONOTONIC */
    const char *folder;
    const char *gpus;                    /* "GPU-...,GPU-..."; "" for none */
    uint64_t used_before[NVML_MAX_GPUS]; /* bytes of each granted GPU */
    worker_result result;
    bool ended;          /* the worker has; only GPU memory is waited for */
    double settle_until; /* until then */
    struct run_attempt *next;
} run_attempt;

typedef struct run_state {
    arena *memory;
    const char *context;
    const char *build_folder;
    const char *out;             /* absolute folder of the results */
    const junit_property *notes; /* seeds and the shard, as texts; ends with a NULL name */
    plan plan;
    plan_case **order;
    size_t repeat;
    double heartbeat_s;
    bool has_seed;
    uint64_t seed;
    slots slots;
    nvml_machine machine;
    nvml_watch *watch; /* NULL: GPU memory is not watched */
    run_attempt *running;
    size_t num_running;
    size_t finished; /* cases */
    run_tally tally;
    size_t unexpected_skips; /* cases that the list requires */
    junit *junit;
    FILE *events;
    double started; /* seconds of CLOCK_MONOTONIC */
    bool interrupted;
    bool partial;
} run_state;

/* Seconds of CLOCK_MONOTONIC. */
double run_now(void);

/* Run everything. False when results could not be written (a message has told). */
bool run_all(run_state *run);

/* --- results.c: files about the run as a whole --- */

/* Make the folder `out` and begin its files, in place of an earlier run's. False with errno. */
bool run_results_open(run_state *run, const char *out, const fact_set *facts);

/* durations.json: the earlier ones, with what this run measured. False with errno. */
bool run_results_durations(const run_state *run, const fact_set *earlier);

void run_results_close(run_state *run, int exit_code);

/* --- events.c: one line of JSON an event, written out at once --- */

/* Adds "event", "seconds" since the start and "time"; takes over the reference. */
void run_event(run_state *run, const char *name, json_t *event);

/* A text as JSON holds it: broken UTF-8 becomes '?'. */
json_t *run_text(const char *text);

/* --- report.c: what people read --- */

void run_report_start(const run_state *run);
void run_report_case(const run_state *run, const plan_case *one);
void run_report_heartbeat(const run_state *run);
/* The failures again, and the counts as the last line. */
void run_report_end(const run_state *run);

/* The shell line that repeats a case. In run->memory. */
const char *run_repro_line(const run_state *run, const plan_case *one);

/* --- finish.c: a case has its verdict --- */

/* Fold the attempt's result into its case; when it was the last attempt, report the case everywhere. */
bool run_attempt_done(run_state *run, run_attempt *attempt);

/* A case that is not run: left out by the build, waived, impossible on this machine, or too late. */
bool run_case_not_run(run_state *run, plan_case *one, run_verdict verdict, const char *reason);

/* --- gpus.c --- */

/* CUDA_VISIBLE_DEVICES for the granted GPUs, and what they hold now. */
const char *run_gpus_prepare(run_state *run, run_attempt *attempt);

/* Whether the memory of the attempt's GPUs came back. At the limit the case is blamed and the GPU retired. */
bool run_gpus_settled(run_state *run, run_attempt *attempt);

/* The GPUs that this run may use, from NVML and CUDA_VISIBLE_DEVICES. */
void run_gpus_find(run_state *run, FILE *warnings);

/* --- preflight.c --- */

/* What would make cases fail for reasons that are not theirs. False: running is pointless; a message says why. */
bool run_preflight(const char *program, run_state *run, const fact_set *facts);

#endif
