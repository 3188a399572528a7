/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/worker.h"

#include "tools/harness/process_tree.h"
#include "tools/harness/shared_files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PROCESSES = 1024 };

static const double orphans_end_s = 10;

static _Noreturn void work(const harness_case *one, const char *folder, int result_fd, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* harness_run takes it for an interruption and ends the job */
    worker_result result = {0};
    harness_outcome outcome;
    if (getppid() != parent)
        _exit(HARNESS_ERROR);
    result.verdict = harness_case_run(one, folder, NULL, &outcome);
    result.seconds = outcome.seconds;
    result.num_shared_removed = outcome.num_shared_removed;
    ssize_t written = write(result_fd, &result, sizeof result); /* less than PIPE_BUF: whole or not at all */
    _exit(written == (ssize_t)sizeof result ? HARNESS_PASS : HARNESS_ERROR);
}

bool worker_start(const harness_case *one, const char *folder, worker *worker_out)
{
    _Static_assert(sizeof(worker_result) <= 4096, "a result must fit into a pipe at once");
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        close(ends[0]);
        work(one, folder, ends[1], parent);
    }
    int error = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        errno = error;
        return false;
    }
    *worker_out = (worker){.pid = pid, .fd = ends[0], .folder = folder};
    return true;
}

/* Whether the process runs for the case whose records lie in `folder`. */
static bool is_of_case(pid_t pid, const char *folder)
{
    static const char name[] = "CKV_TEST_RECORD=";
    char path[64], *entry = NULL;
    size_t capacity = 0, length = strlen(folder);
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *file = fopen(path, "re");
    while (!found && file != NULL && getdelim(&entry, &capacity, '\0', file) > 0)
        found = strncmp(entry, name, sizeof name - 1) == 0 && strncmp(entry + sizeof name - 1, folder, length) == 0 &&
                entry[sizeof name - 1 + length] == '/';
    free(entry);
    if (file != NULL)
        fclose(file);
    return found;
}

/* They have become children of the runner, which is a subreaper. */
static int kill_orphans(const char *folder)
{
    static shared_files shared;
    harness_process processes[MAX_PROCESSES];
    struct timespec pause = {.tv_nsec = 10000000};
    shared.count = 0;
    for (int turn = 0; turn < (int)(orphans_end_s * 100); turn++) {
        size_t count = harness_process_tree(-1, processes, MAX_PROCESSES), left = 0;
        for (size_t i = 0; i < count; i++) {
            if (!is_of_case(processes[i].pid, folder))
                continue;
            shared_files_note(&shared, &processes[i], 1);
            kill(processes[i].pid, SIGKILL);
            waitpid(processes[i].pid, NULL, WNOHANG);
            left++;
        }
        if (left == 0)
            break;
        nanosleep(&pause, NULL);
    }
    return shared_files_remove(&shared);
}

worker_result worker_finish(worker *one)
{
    worker_result result = {.verdict = {.code = HARNESS_ERROR}};
    ssize_t length;
    int status = 0;
    do
        length = read(one->fd, &result, sizeof result);
    while (length < 0 && errno == EINTR);
    close(one->fd);
    while (waitpid(one->pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (length == (ssize_t)sizeof result)
        return result;
    result = (worker_result){.verdict = {.code = HARNESS_ERROR}};
    result.num_shared_removed = kill_orphans(one->folder);
    snprintf(result.verdict.reason, sizeof result.verdict.reason, "its launcher died (%s %d)",
             WIFSIGNALED(status) ? "signal" : "exit code",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return result;
}

void worker_interrupt(const worker *one)
{
    kill(one->pid, SIGTERM);
}
