/* SPDX-License-Identifier: Apache-2.0 */
/* A small build folder of cases of faulty.c with a list that names them, `ckv lists run` over it, and its results. */
#ifndef CKV_TESTS_HARNESS_MINI_H
#define CKV_TESTS_HARNESS_MINI_H

#include "tests/harness/inner.h"

#include <jansson.h>

typedef struct mini_case {
    const char *name;  /* in CTest and the list, "mini." before it */
    const char *fault; /* case of faulty.c; starts with '!': a shell command that keeps no records */
    int ranks;
    const char *properties; /* of CTest, may be NULL */
    const char *markers;    /* behind the entry, may be NULL */
    const char *deadline;   /* in seconds; NULL: that of mini_begin */
} mini_case;

/* clang-format off */
#define MINI(name, fault, ranks) MINI_WITH(name, fault, ranks, NULL, NULL)
#define MINI_WITH(name, fault, ranks, properties, markers) {name, fault, ranks, properties, markers, NULL}
/* clang-format on */

/* Make the folder and write everything. */
void mini_begin(inner_run *run, const mini_case *cases, size_t count, const char *deadline);
void mini_end(inner_run *run);

/* Write a file into the folder. */
void mini_put(const inner_run *run, const char *name, const char *text);

/* `ckv lists run` on it with more options, by the shell, which runs `before` first. The inner run's outcome and output
 * are its. */
void mini_run(inner_run *run, const char *before, const char *options);

/* The last event of this kind about this case, or about any (NULL). The case fails when there is none. Borrowed from
 * the next call. */
const json_t *mini_event(const inner_run *run, const char *event, const char *name);

/* The case's verdict and the shell pattern of its reason. */
void mini_expect(const inner_run *run, const char *name, const char *verdict, const char *reason);

#endif
