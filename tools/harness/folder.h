/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of plain files that several processes share. */
#ifndef CKV_HARNESS_FOLDER_H
#define CKV_HARNESS_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

/* True also when it exists; else errno. */
bool harness_folder_make(const char *path);

/* Remove a folder and the files in it. */
void harness_folder_remove(const char *path);

/* Write a whole file so that readers see all of it or nothing. False with errno. */
bool harness_file_write(const char *path, const char *text);

/* Read at most `bytes` - 1 bytes and end them with '\0'. False when the file cannot be read. */
bool harness_file_read(const char *path, char *text_out, size_t bytes);

#endif
