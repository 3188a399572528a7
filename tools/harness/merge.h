/* SPDX-License-Identifier: Apache-2.0 */
/* One log out of many that are still growing: whole lines, each tagged with where it came from. Lines of different logs
 * stand in the order in which they were seen, which is about the order in which they were written. */
#ifndef CKV_HARNESS_MERGE_H
#define CKV_HARNESS_MERGE_H

#include <stdbool.h>

typedef struct harness_merge harness_merge;

/* NULL when the merged log cannot be made or memory runs out. */
harness_merge *harness_merge_open(const char *merged_path);

/* Watch one more log, which need not exist yet. False: out of memory. */
bool harness_merge_add(harness_merge *merge, const char *path, const char *tag);

/* Take over the lines that have become whole since the last call. */
void harness_merge_poll(harness_merge *merge);

/* Take over the rest, lines without an end too. NULL does nothing. */
void harness_merge_close(harness_merge *merge);

#endif
