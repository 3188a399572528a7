/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a file so that its name is the old file or the complete new one, never a part. */
#ifndef CKV_TOOLS_REPLACE_FILE_H
#define CKV_TOOLS_REPLACE_FILE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct replace_file {
    const char *path; /* borrowed */
    FILE *stream;     /* of a file beside it */
    char temporary[4096];
} replace_file;

/* What is there and no regular file, such as a device, is refused: a rename would replace it. */
bool replace_file_open(const char *path, replace_file *file_out, const char **cause_out);

/* Close and rename, or throw away when not `ok`. False with the cause when `path` is still the old file. */
bool replace_file_close(replace_file *file, bool ok, const char **cause_out);

/* Whether replace_file_open could work now; nothing is left behind. */
bool replace_file_check(const char *path, const char **cause_out);

/* Do two names lead to one file that is there? */
bool is_one_file(const char *path, const char *other);

#endif
