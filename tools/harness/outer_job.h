/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers inside an MPI job (`mpirun -np 2 ctest`): every rank's CTest walks the same cases, rank 0 of the job leads
 * and runs them, the others follow and take over its verdicts through files. All ranks on one machine. */
#ifndef CKV_HARNESS_OUTER_JOB_H
#define CKV_HARNESS_OUTER_JOB_H

#include "tools/harness/verdict.h"
#include <stdbool.h>

typedef struct harness_outer_job {
    int rank;
    int turn;        /* how often this rank has run this case in this job, from 1: ctest --repeat */
    char path[4000]; /* of this turn's files, without their suffix */
} harness_outer_job;

/* Join case `name` (characters of a file name) in the outer job, keeping files under `directory`. Files of earlier jobs
 * are never read: the folder is named after the job's mpirun process and the time it started. Returns 1 inside a job of
 * several ranks, 0 when there is none, -1 with a reason. */
int harness_outer_join(const char *directory, const char *name, harness_outer_job *job_out, char *reason,
                       size_t reason_bytes);

/* The leader: say that the case is running here; then how it ended. False with errno. */
bool harness_outer_announce(const harness_outer_job *job);
bool harness_outer_publish(const harness_outer_job *job, const harness_verdict *verdict);

/* A follower: wait for the leader to start the case and for its verdict, each for timeout_s at most. */
harness_verdict harness_outer_follow(const harness_outer_job *job, double timeout_s);

#endif
