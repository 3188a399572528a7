/* SPDX-License-Identifier: Apache-2.0 */
/* The command line and environment of one case: directly, or under its own mpirun. */
#ifndef CKV_HARNESS_LAUNCH_H
#define CKV_HARNESS_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

typedef struct harness_launch {
    char **argv;        /* NULL-terminated, as harness_job wants it */
    char **environment; /* the caller's, without what ties a process to a running MPI or Slurm job */
    char note[256];     /* what was arranged, for the log: "2 ranks on 4 CPUs, as root" */
} harness_launch;

/* `program` on `ranks` ranks. Settings of the user (OMPI_MCA_*, ...) are kept outside of a running job; inside one they
 * cannot be told from the job's own and are dropped. False: out of memory. */
bool harness_launch_prepare(harness_launch *launch_out, int ranks, char *const *program);
bool harness_launch_setenv(harness_launch *launch, const char *name, const char *value);
void harness_launch_clear(harness_launch *launch);

/* The MPI job this process is a rank of, by the environment: false when there is none. size is 0 when unknown. */
bool harness_rank_of_job(int *rank_out, int *size_out);

#endif
