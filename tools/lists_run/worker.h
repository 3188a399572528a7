/* SPDX-License-Identifier: Apache-2.0 */
/* A process for each running case: it watches over the case's job (harness_case_run handles one at a time), reaps what
 * the job leaves, and hands back a verdict through a pipe. It dies with the runner, and its job with it. */
#ifndef CKV_LISTS_RUN_WORKER_H
#define CKV_LISTS_RUN_WORKER_H

#include "tools/harness/case.h"

#include <sys/types.h>

typedef struct worker {
    pid_t pid;
    int fd; /* readable when the worker has ended */
    const char *folder;
} worker;

typedef struct worker_result {
    harness_verdict verdict;
    double seconds;
    int num_shared_removed;
} worker_result;

/* False with errno. `folder` (absolute) must stay valid until worker_finish. */
bool worker_start(const harness_case *one, const char *folder, worker *worker_out);

/* Read the result and reap. A worker that died without one leaves its case's processes to this one, which kills them.
 */
worker_result worker_finish(worker *one);

/* Ask it to end its job and itself. */
void worker_interrupt(const worker *one);

#endif
