/* SPDX-License-Identifier: Apache-2.0 */
/* One case, from its description to its verdict: what ckv_case_launch and `ckv lists run` both do. */
#ifndef CKV_HARNESS_CASE_H
#define CKV_HARNESS_CASE_H

#include "tools/harness/process.h"
#include "tools/harness/verdict.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct harness_case {
    int ranks;        /* 1 runs the program directly */
    double timeout_s; /* deadline of the case */
    bool unrecorded;  /* the program keeps no records; its exit code is the verdict */
    char *const *program;
    const char *directory;          /* to run in; NULL: this one */
    const char *const *environment; /* NAME=value to add, NULL-terminated; may be NULL */
} harness_case;

/* Names of files in the folder of a run. */
#define HARNESS_RECORD "record"     /* .rankN: its events; .rankN.log: its output */
#define HARNESS_LOG "log"           /* of mpirun, or of the only rank */
#define HARNESS_MERGED "merged.log" /* all output, tagged */

/* Run the case in a folder that is there and empty. `announce` receives the launch line before the case starts; NULL:
 * nobody. Logs and records stay in the folder. One at a time in a process, as harness_run. */
harness_verdict harness_case_run(const harness_case *one, const char *folder, FILE *announce,
                                 harness_outcome *outcome_out);

/* A case's name as a file name, unlike that of any other case. False when it is too long. */
bool harness_file_name(const char *name, char *out, size_t bytes);

/* " argument", quoted for a shell where that is needed. */
void harness_print_argument(FILE *stream, const char *argument);

/* The last `bytes` of a log, from the start of a line; what is left out is told in a line of its own. */
void harness_print_tail(FILE *stream, const char *path, long bytes);

#endif
