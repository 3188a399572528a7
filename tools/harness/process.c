/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/process.h"

#include "tools/harness/process_tree.h"
#include "tools/harness/shared_files.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PROCESSES = 1024, POLL_MS = 5, DOOMED_POLLS = 20 };

static const double soft_signal_s = 0.3; /* for the ranks to write where they are */
static const double clean_up_s = 1.0;    /* for mpirun to follow its ranks */
static const double linger_s = 2.5;      /* for ranks to follow mpirun, which gives them a second to obey SIGTERM */
static const double give_up_s = 10.0;    /* a process that survives SIGKILL this long sits in the kernel */

static volatile sig_atomic_t interruption;

static void on_interruption(int number)
{
    interruption = number;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void pause_ms(long milliseconds)
{
    struct timespec time = {.tv_nsec = milliseconds * 1000000};
    nanosleep(&time, NULL);
}

typedef struct running {
    pid_t first; /* also its session; 0 once reaped */
    pid_t session;
    int status;
    shared_files shared; /* of processes that are about to be killed */
} running;

/* Collect whatever has ended: the first process, and orphans that came to us. */
static void reap(running *job)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == job->first) {
            job->first = 0;
            job->status = status;
        }
    }
}

static size_t living(running *job, harness_process *processes)
{
    reap(job);
    return harness_process_tree(job->session, processes, MAX_PROCESSES);
}

static _Noreturn void become(const harness_job *job, int log, int error_pipe, pid_t parent)
{
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* a killed launcher takes mpirun along, and mpirun its ranks */
    int null = open("/dev/null", O_RDONLY);
    if (getppid() == parent && (job->directory == NULL || chdir(job->directory) == 0) &&
        dup2(null, STDIN_FILENO) >= 0 && dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
        execvpe(job->argv[0], job->argv, job->environment);
    int error = errno ? errno : ECHILD;
    ssize_t written = write(error_pipe, &error, sizeof error);
    _exit(written == sizeof error ? 127 : 126);
}

/* Start the first process; 0 or an errno. */
static int start(const harness_job *job, running *job_out)
{
    int error_pipe[2], error = 0;
    int log = open(job->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log < 0)
        return errno ? errno : EIO;
    if (pipe2(error_pipe, O_CLOEXEC) != 0) {
        error = errno ? errno : EIO;
        close(log);
        return error;
    }
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become(job, log, error_pipe[1], parent);
    if (pid < 0)
        error = errno;
    close(error_pipe[1]);
    if (pid > 0 && read(error_pipe[0], &error, sizeof error) != sizeof error)
        error = 0; /* exec closed the pipe */
    close(error_pipe[0]);
    close(log);
    if (error != 0 && pid > 0)
        waitpid(pid, NULL, 0);
    job_out->first = job_out->session = pid;
    return error;
}

static void wait_for_first(running *job, double until)
{
    for (reap(job); job->first != 0 && now() < until; reap(job))
        pause_ms(POLL_MS);
}

/* Wait until the first process ends, the deadline passes, or somebody interrupts. */
static void watch(const harness_job *job, running *state, harness_outcome *outcome, double started)
{
    double deadline = started + job->timeout_s;
    bool doomed = false;
    for (long turn = 0;; turn++) {
        reap(state);
        if (state->first == 0)
            return;
        if (interruption) {
            outcome->interrupted = true;
            return;
        }
        if (now() >= deadline) {
            outcome->timed_out = !doomed;
            outcome->cut_short = doomed;
            return;
        }
        if (!doomed && job->doomed != NULL && turn % DOOMED_POLLS == 0 && job->doomed(job->context)) {
            doomed = true;
            if (now() + job->doomed_s < deadline)
                deadline = now() + job->doomed_s;
        }
        pause_ms(POLL_MS);
    }
}

static void signal_tree(running *job, int number, pid_t except)
{
    harness_process processes[MAX_PROCESSES];
    size_t count = living(job, processes);
    for (size_t i = 0; i < count; i++)
        if (processes[i].pid != except)
            kill(processes[i].pid, number);
}

static void ask_where(running *job, harness_outcome *outcome)
{
    harness_process processes[MAX_PROCESSES];
    size_t count = living(job, processes);
    for (size_t i = 0; i < count; i++)
        if (processes[i].state == 'T' && outcome->num_stopped < HARNESS_MAX_STOPPED)
            outcome->stopped[outcome->num_stopped++] = processes[i].pid;
    shared_files_note(&job->shared, processes, count);
    for (size_t i = 0; i < count; i++) {
        kill(processes[i].pid, SIGUSR1);
        kill(processes[i].pid, SIGCONT);
    }
    wait_for_first(job, now() + soft_signal_s);
}

/* Ranks first, so that mpirun sees them go and removes its files; mpirun itself after a moment. */
static void kill_all(running *job)
{
    harness_process processes[MAX_PROCESSES];
    shared_files_note(&job->shared, processes, living(job, processes));
    signal_tree(job, SIGKILL, job->first);
    if (job->first != 0) {
        kill(job->first, SIGTERM);
        wait_for_first(job, now() + clean_up_s);
    }
    for (double until = now() + give_up_s; living(job, processes) > 0 && now() < until; pause_ms(POLL_MS))
        signal_tree(job, SIGKILL, 0);
    wait_for_first(job, now() + clean_up_s);
}

static void note_left(running *job, harness_outcome *outcome)
{
    harness_process processes[MAX_PROCESSES];
    size_t count = living(job, processes);
    shared_files_note(&job->shared, processes, count);
    for (double until = now() + linger_s; count > 0 && now() < until; count = living(job, processes))
        pause_ms(POLL_MS);
    outcome->num_left = (int)count;
    size_t length = 0;
    for (size_t i = 0; i < count && length < sizeof outcome->left; i++)
        length += (size_t)snprintf(outcome->left + length, sizeof outcome->left - length, "%s%s (%d)", i ? ", " : "",
                                   processes[i].name, (int)processes[i].pid);
}

harness_outcome harness_run(const harness_job *job)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    enum { NUM_SIGNALS = sizeof signals / sizeof signals[0] };
    struct sigaction previous[NUM_SIGNALS], action = {.sa_handler = on_interruption};
    harness_outcome outcome = {.exit_code = -1};
    static running state;
    memset(&state, 0, sizeof state);

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < NUM_SIGNALS; i++)
        sigaction(signals[i], &action, &previous[i]);
    double started = now();
    outcome.start_errno = start(job, &state);
    if (outcome.start_errno == 0) {
        watch(job, &state, &outcome, started);
        if (outcome.timed_out || outcome.cut_short)
            ask_where(&state, &outcome);
        else if (!outcome.interrupted)
            note_left(&state, &outcome);
        kill_all(&state);
        outcome.num_shared_removed = shared_files_remove(&state.shared);
        outcome.seconds = now() - started;
        outcome.exit_code = WIFEXITED(state.status) ? WEXITSTATUS(state.status) : -1;
        outcome.signal = WIFSIGNALED(state.status) ? WTERMSIG(state.status) : 0;
    }
    for (int i = 0; i < NUM_SIGNALS; i++)
        sigaction(signals[i], &previous[i], NULL);
    return outcome;
}
