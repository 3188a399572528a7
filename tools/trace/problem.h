/* SPDX-License-Identifier: Apache-2.0 */
/* Why an input was refused: one line, whatever the input holds. */
#ifndef CKV_TOOLS_PROBLEM_H
#define CKV_TOOLS_PROBLEM_H

#include <stdbool.h>

typedef struct problem {
    char text[480];
} problem;

/* Format the cause, with control characters replaced so that it stays one line. */
void problem_format(problem *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, and false to pass on; a macro, so that static analysis sees it is false. */
#define problem_set(why, ...) (problem_format(why, __VA_ARGS__), false)

#endif
