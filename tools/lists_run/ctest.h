/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of a build folder and how each is run: what `ctest --show-only=json-v1` says of its tests. */
#ifndef CKV_LISTS_RUN_CTEST_H
#define CKV_LISTS_RUN_CTEST_H

#include "tools/common/text_map.h"
#include "tools/lists/diag.h"

#include <stdbool.h>

typedef struct ctest_case {
    const char *name;
    char *const *command;           /* as CTest runs it; NULL: its program is not built */
    char *const *program;           /* what ckv_case_launch would run, otherwise the command */
    const char *directory;          /* NULL: none given */
    const char *const *environment; /* NAME=value, NULL-terminated */
    int ranks;
    double timeout_s;
    bool unrecorded; /* judged by its exit code */
    int processors;
    int gpus;
    bool alone;
} ctest_case;

typedef struct ctest_table {
    ctest_case *cases;
    size_t count;
    text_map by_name; /* to ctest_case */
} ctest_table;

/* Ask CTest. False after a message. */
bool ctest_ask(arena *memory, diagnostics *log, const char *build_folder, text_source *source_out);

/* Read its answer. Properties that would change a verdict and are not known here are errors. */
bool ctest_read(arena *memory, diagnostics *log, const text_source *source, ctest_table *table_out);

#endif
