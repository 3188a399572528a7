/* SPDX-License-Identifier: Apache-2.0 */
/* A JUnit file read back by an XML parser. */
#ifndef CKV_TESTS_HARNESS_JUNIT_FILE_H
#define CKV_TESTS_HARNESS_JUNIT_FILE_H

#include <stddef.h>

typedef struct junit_file_case {
    char name[256];    /* classname, a dot, name */
    char element[16];  /* "failure", "error", "skipped", or "" */
    char message[512]; /* its */
    char *output;      /* system-out; NULL: none */
} junit_file_case;

typedef struct junit_file {
    char suite[64];
    int tests, failures, errors, skipped; /* as the suite says */
    junit_file_case *cases;
    size_t count;
    size_t properties; /* of the suite */
} junit_file;

/* The case fails when the file is no well-formed XML. */
void junit_file_read(const char *path, junit_file *file_out);
void junit_file_free(junit_file *file);

/* NULL when there is none of that name. */
const junit_file_case *junit_file_find(const junit_file *file, const char *name);

#endif
