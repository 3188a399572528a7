/* SPDX-License-Identifier: Apache-2.0 */
/* Files in shared memory that a job's MPI made and a killed job leaves behind: noted while its processes live, by what
 * they have mapped, so that no other job's are ever touched. */
#ifndef CKV_HARNESS_SHARED_FILES_H
#define CKV_HARNESS_SHARED_FILES_H

#include "tools/harness/process_tree.h"

enum { SHARED_MAX_FILES = 512, SHARED_PATH_BYTES = 128 };

typedef struct shared_files {
    size_t count;
    char path[SHARED_MAX_FILES][SHARED_PATH_BYTES];
} shared_files;

/* Add what these processes have mapped of Open MPI's, PSM's and NCCL's files in /dev/shm. */
void shared_files_note(shared_files *files, const harness_process *processes, size_t count);

/* Remove those that are still there; returns how many were. */
int shared_files_remove(const shared_files *files);

#endif
