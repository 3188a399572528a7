/* SPDX-License-Identifier: Apache-2.0 */
/* Running the launcher, or CTest, from a test, and looking at what came out. */
#ifndef CKV_TESTS_HARNESS_INNER_H
#define CKV_TESTS_HARNESS_INNER_H

#include "tests/support/case.h"
#include "tools/harness/process.h"
#include <stdbool.h>

typedef struct inner_run {
    harness_outcome outcome;
    char folder[64]; /* scratch of this run; the program's output is in its file "output" */
    char output[256 * 1024];
    char last_line[2048];
} inner_run;

/* Make the scratch folder. */
void inner_begin(inner_run *run);

/* Run a program there on `ranks` ranks (1: directly), 30 s at most, and read its output. The case fails when a process
 * is left. */
void inner_execute(inner_run *run, int ranks, const char *const *program);

/* The text of a file in the scratch folder; the caller frees it. */
char *inner_read(const inner_run *run, const char *name);

/* Remove the scratch folder. */
void inner_end(inner_run *run);

#endif
