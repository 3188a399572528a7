/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of its own for a case that runs a program on files. */
#ifndef CKV_TESTS_SUPPORT_WORKPLACE_H
#define CKV_TESTS_SUPPORT_WORKPLACE_H

#include <stddef.h>

typedef struct workplace {
    char folder[64];
    const char *program; /* begins every command; may hold arguments */
    char *out, *err;     /* of the last run */
    int code;
} workplace;

void workplace_open(workplace *place, const char *program);
void workplace_close(workplace *place);

void workplace_put(const workplace *place, const char *name, const char *text);
void workplace_put_bytes(const workplace *place, const char *name, const char *bytes, size_t count);

/* `PROGRAM ARGUMENTS` inside the folder, by the shell. */
void workplace_run(workplace *place, const char *arguments);

/* What the shell prints for a line of its own, in the folder; until the next run. */
const char *workplace_shell(workplace *place, const char *line);

/* Run it; then the exit code, all of standard output and a part of standard error must be these. NULL: anything. */
void workplace_expect(workplace *place, const char *arguments, int code, const char *out, const char *err);

/* A whole file, malloc'd. The case fails when it cannot be read. */
char *read_text(const char *path);

size_t lines_of(const char *text);

#endif
