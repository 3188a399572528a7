/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ranks.h"

#include "tests/support/comm_pipe.h"
#include "tests/support/leaks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* For all ranks to end: three quarters of the case's deadline, and no more than this. */
enum { RUN_MOST_MS = 45000, LOOK_US = 500 };

/* What a rank and its parent tell each other. */
typedef struct rank_process {
    int dying; /* it is about to be killed, as it should be */
    int ended; /* waited for by the parent */
    rank_report report;
} rank_process;

static char first_failure[800];
static rank_process *processes; /* [COMM_PIPE_MAX_RANKS] shared */
static int own_rank;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

_Noreturn void rank_die(void)
{
    __atomic_store_n(&processes[own_rank].dying, 1, __ATOMIC_RELEASE);
    raise(SIGKILL);
    abort();
}

int rank_has_ended(int rank)
{
    return __atomic_load_n(&processes[rank].ended, __ATOMIC_ACQUIRE);
}

static _Noreturn void play(comm_pipe *pipe, int rank, int64_t timeout_ms, rank_body body)
{
    ckv_comm *comm = NULL;
    rank_report *report = &processes[rank].report;
    own_rank = rank;
    if (comm_pipe_join(pipe, rank, timeout_ms, &comm) == CKV_OK)
        body(comm, report);
    else
        rank_fail(report, __FILE__, __LINE__, "%s", ckv_last_error());
    ckv_comm_destroy(&comm);
    leaks_check();
    fflush(NULL);
    _exit(0);
}

static int start(comm_pipe *pipe, int rank, int64_t timeout_ms, rank_body body, pid_t *child_out)
{
    pid_t parent = getpid();
    fflush(NULL);
    *child_out = fork();
    if (*child_out != 0)
        return *child_out > 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    play(pipe, rank, timeout_ms, body);
}

static void judge(int rank, int status)
{
    rank_process *process = &processes[rank];
    int killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    int as_told = killed && __atomic_load_n(&process->dying, __ATOMIC_ACQUIRE);
    if (WIFSIGNALED(status) && !as_told)
        rank_fail(&process->report, __FILE__, __LINE__, "signal %d ended its process", WTERMSIG(status));
    else if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        rank_fail(&process->report, __FILE__, __LINE__, "its process ended with %d", WEXITSTATUS(status));
    __atomic_store_n(&process->ended, 1, __ATOMIC_RELEASE);
}

/* Until all have ended, which the deadline makes sure of. */
static void await_all(const pid_t *children, int ranks)
{
    int left = ranks;
    int64_t most_ms = 3 * ranks_patience_ms(RUN_MOST_MS / 3), deadline_ms = now_ms() + most_ms;
    for (int late = 0; left > 0; usleep(LOOK_US)) {
        int just_late = !late && now_ms() > deadline_ms;
        late |= just_late;
        for (int rank = 0; rank < ranks; rank++) {
            int status;
            if (processes[rank].ended)
                continue;
            if (just_late) {
                rank_fail(&processes[rank].report, __FILE__, __LINE__, "still there after %lld ms", (long long)most_ms);
                kill(children[rank], SIGKILL);
            }
            if (waitpid(children[rank], &status, WNOHANG) != children[rank])
                continue;
            judge(rank, status);
            left--;
        }
    }
}

static const char *run(comm_pipe *pipe, int ranks, int64_t timeout_ms, rank_body body)
{
    pid_t children[COMM_PIPE_MAX_RANKS];
    int started = 0;
    while (started < ranks && start(pipe, started, timeout_ms, body, &children[started]))
        started++;
    comm_pipe_close(pipe);
    await_all(children, started);
    if (started < ranks)
        snprintf(first_failure, sizeof first_failure, "only %d of %d processes started", started, ranks);
    for (int rank = ranks - 1; rank >= 0; rank--)
        if (processes[rank].report.failed)
            snprintf(first_failure, sizeof first_failure, "rank %d of %d: %s", rank, ranks,
                     processes[rank].report.text);
    return first_failure;
}

const char *ranks_run_on_processes(int ranks, int64_t timeout_ms, rank_body body)
{
    const size_t bytes = COMM_PIPE_MAX_RANKS * sizeof *processes;
    comm_pipe *pipe = NULL;
    first_failure[0] = '\0';
    if (comm_pipe_open(ranks, &pipe) != CKV_OK) {
        snprintf(first_failure, sizeof first_failure, "%s", ckv_last_error());
        return first_failure;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        comm_pipe_close(pipe);
        return "no memory to share with processes";
    }
    processes = memory;
    run(pipe, ranks, timeout_ms, body);
    munmap(memory, bytes);
    return first_failure;
}
