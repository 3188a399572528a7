/* SPDX-License-Identifier: Apache-2.0 */
/* Run one job to its end, whatever the job does: when harness_run returns, none of its processes is left. */
#ifndef CKV_HARNESS_PROCESS_H
#define CKV_HARNESS_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { HARNESS_MAX_STOPPED = 16 };

typedef struct harness_job {
    char *const *argv;        /* argv[0] is looked up in PATH */
    char *const *environment; /* complete */
    const char *directory;    /* to run in; NULL: the caller's */
    const char *log_path;     /* receives standard output and error */
    double timeout_s;
    /* Asked a few times a second. True: the job is doomed and should be over in `doomed_s`. NULL: never. */
    bool (*doomed)(void *context);
    void *context;
    double doomed_s;
} harness_job;

typedef struct harness_outcome {
    int start_errno; /* not 0: the program did not start, and nothing below is set */
    int exit_code;   /* -1 when a signal ended it */
    int signal;      /* that signal, or 0; our own SIGKILL at the deadline included */
    bool timed_out;
    bool cut_short;   /* doomed, and killed for not ending */
    bool interrupted; /* the caller received SIGINT, SIGTERM or SIGHUP */
    double seconds;
    int num_left;                       /* processes that outlived the first one by more than 2.5 s */
    char left[128];                     /* their names */
    pid_t stopped[HARNESS_MAX_STOPPED]; /* found stopped at the deadline */
    int num_stopped;
    int num_shared_removed; /* shared-memory files that the job left behind */
} harness_outcome;

/* The job gets a session of its own. At the deadline every process receives SIGUSR1, to say where it is, and shortly
 * after SIGKILL; the first process (mpirun) gets SIGTERM and a moment to clean up. Makes the caller a subreaper and
 * reaps all of its children: one job at a time in a process. */
harness_outcome harness_run(const harness_job *job);

#endif
