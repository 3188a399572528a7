/* SPDX-License-Identifier: Apache-2.0 */
/* The processes a job consists of, found in /proc. */
#ifndef CKV_HARNESS_PROCESS_TREE_H
#define CKV_HARNESS_PROCESS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct harness_process {
    pid_t pid, parent, session;
    char state;           /* of /proc/PID/stat: 'R', 'S', 'T' stopped, 'Z' zombie, ... */
    uint64_t start_ticks; /* since boot; with the pid, names a process for good */
    char name[32];
} harness_process;

/* One process; false when there is none. */
bool harness_process_read(pid_t pid, harness_process *process_out);

/* Every living process that descends from the caller or belongs to `session`, the caller and zombies left out. The
 * caller must be a subreaper for orphans to stay its descendants. Writes at most `capacity`, returns how many it wrote.
 */
size_t harness_process_tree(pid_t session, harness_process *processes_out, size_t capacity);

#endif
