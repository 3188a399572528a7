/* SPDX-License-Identifier: Apache-2.0 */
/* JUnit as CI servers read it: one suite, one case each, well-formed whatever cases print. The file is written as a
 * whole and renamed, so that a reader, or whoever finds it after a crash, sees a complete one. */
#ifndef CKV_LISTS_RUN_JUNIT_H
#define CKV_LISTS_RUN_JUNIT_H

#include "tools/lists_run/verdicts.h"

typedef struct junit_property {
    const char *name, *value; /* value NULL: left out */
} junit_property;

typedef struct junit_case {
    const char *name; /* "suite.case" */
    run_verdict verdict;
    const char *message; /* one line; "" for none */
    const char *details; /* of a red verdict: how to repeat it */
    double seconds;
    const junit_property *properties; /* ends with a NULL name */
    const char *log_path;             /* its last part is attached; NULL: none */
} junit_case;

typedef struct junit junit;

/* NULL: out of memory. `path` and `suite` are borrowed; the properties (ended by a NULL name) are copied out. */
junit *junit_open(const char *path, const char *suite, const junit_property *properties);
void junit_close(junit *report);

/* A case has ended. False: out of memory. */
bool junit_add(junit *report, const junit_case *one);

/* Write the file. `running` are cases that have started and not ended: they stand in the file as errors, for the case
 * that it is never written again. False with errno. */
bool junit_write(junit *report, const char *const *running, size_t num_running);

#endif
