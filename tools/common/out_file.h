/* SPDX-License-Identifier: Apache-2.0 */
/* A file that is there as a whole or not at all: written beside its name and renamed, so that the name is the old file
 * or the complete new one, never a part. A device or a pipe, which a rename would replace, is written as it is. */
#ifndef CKV_TOOLS_OUT_FILE_H
#define CKV_TOOLS_OUT_FILE_H

#include "tools/trace/problem.h"

#include <limits.h>
#include <stdio.h>

typedef struct out_file {
    FILE *stream;
    const char *path;         /* borrowed */
    char temporary[PATH_MAX]; /* "": written as it is */
} out_file;

bool out_file_open(const char *path, out_file *file_out, problem *why);

/* Closes it in any case. With ok false, or when something was not written, nothing of it remains. */
bool out_file_close(out_file *file, bool ok, problem *why);

/* Whether out_file_open would open `path` now; nothing is left behind, and a device or pipe not touched. */
bool out_file_check(const char *path, problem *why);

/* Whether both are one file, or would be one when they are written. */
bool is_one_file(const char *path, const char *other);

#endif
