/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/outer_job.h"

#include "tools/harness/folder.h"
#include "tools/harness/launch.h"
#include "tools/harness/process_tree.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const long poll_ns = 10000000;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- Which job --- */

/* What tells this rank's processes from those outside the job. */
static const char *const identity[] = {"PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};

/* Whether process `pid` carries the entry name=value in its initial environment. */
static bool process_has(pid_t pid, const char *name, const char *value)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *file = fopen(path, "re");
    char *entry = NULL;
    size_t capacity = 0, length = strlen(name);
    bool found = false;
    while (!found && file != NULL && getdelim(&entry, &capacity, '\0', file) > 0)
        found = strncmp(entry, name, length) == 0 && entry[length] == '=' && strcmp(entry + length + 1, value) == 0;
    free(entry);
    if (file != NULL)
        fclose(file);
    return found;
}

/* The nearest ancestor outside of the job: mpirun, or its daemon. Both ranks find the same one. */
static bool find_launcher(harness_process *launcher_out)
{
    const char *name = NULL, *value = NULL;
    for (size_t i = 0; i < sizeof identity / sizeof *identity && value == NULL; i++) {
        name = identity[i];
        value = getenv(name);
    }
    for (pid_t pid = getppid(); value != NULL && pid > 1; pid = launcher_out->parent) {
        if (!harness_process_read(pid, launcher_out))
            return false;
        if (!process_has(pid, name, value))
            return true;
    }
    return false;
}

static bool is_running(pid_t pid, uint64_t start_ticks)
{
    harness_process process;
    return harness_process_read(pid, &process) && process.start_ticks == start_ticks && process.state != 'Z';
}

/* Folders of jobs whose mpirun is gone. */
static void remove_old_jobs(const char *directory)
{
    DIR *jobs = opendir(directory);
    for (struct dirent *entry; jobs != NULL && (entry = readdir(jobs)) != NULL;) {
        int pid;
        uint64_t start_ticks;
        char *path = NULL;
        if (sscanf(entry->d_name, "job-%d-%" SCNu64, &pid, &start_ticks) != 2 || is_running(pid, start_ticks))
            continue;
        if (asprintf(&path, "%s/%s", directory, entry->d_name) >= 0)
            harness_folder_remove(path);
        free(path);
    }
    if (jobs != NULL)
        closedir(jobs);
}

/* --- Joining, leading, following --- */

/* A rank never runs one case twice at a time, so its counter needs no lock. */
static int next_turn(const char *base, int rank)
{
    char path[4096], text[32];
    snprintf(path, sizeof path, "%s.turn.rank%d", base, rank);
    int turn = harness_file_read(path, text, sizeof text) ? atoi(text) + 1 : 1;
    snprintf(text, sizeof text, "%d\n", turn);
    return harness_file_write(path, text) ? turn : -1;
}

int harness_outer_join(const char *directory, const char *name, harness_outer_job *job_out, char *reason,
                       size_t reason_bytes)
{
    int rank, size;
    harness_process launcher = {0};
    if (!harness_rank_of_job(&rank, &size) || size == 1)
        return 0;
    if (!find_launcher(&launcher)) {
        snprintf(reason, reason_bytes, "rank %d of an MPI job, but no mpirun among the parents of this process", rank);
        return -1;
    }
    if (rank == 0)
        remove_old_jobs(directory);
    char base[3000];
    int length = snprintf(base, sizeof base, "%s/job-%d-%" PRIu64, directory, (int)launcher.pid, launcher.start_ticks);
    if (length < 0 || (size_t)length + strlen(name) + 2 > sizeof base || !harness_folder_make(base)) {
        snprintf(reason, reason_bytes, "cannot make folder '%.200s': %s", base, strerror(errno));
        return -1;
    }
    snprintf(base + length, sizeof base - (size_t)length, "/%s", name);
    job_out->rank = rank;
    job_out->turn = next_turn(base, rank);
    if (job_out->turn < 0) {
        snprintf(reason, reason_bytes, "cannot write beside '%.200s': %s", base, strerror(errno));
        return -1;
    }
    snprintf(job_out->path, sizeof job_out->path, "%s.%d", base, job_out->turn);
    return 1;
}

bool harness_outer_announce(const harness_outer_job *job)
{
    char path[4096], text[64];
    harness_process self;
    if (!harness_process_read(getpid(), &self))
        return false;
    snprintf(path, sizeof path, "%s.leader", job->path);
    snprintf(text, sizeof text, "%d %" PRIu64 "\n", (int)self.pid, self.start_ticks);
    return harness_file_write(path, text);
}

bool harness_outer_publish(const harness_outer_job *job, const harness_verdict *verdict)
{
    char path[4096], text[1100];
    snprintf(path, sizeof path, "%s.verdict", job->path);
    snprintf(text, sizeof text, "%d %s\n", verdict->code, verdict->reason);
    return harness_file_write(path, text);
}

static bool read_verdict(const harness_outer_job *job, harness_verdict *verdict)
{
    char path[4096], text[1100];
    int consumed = 0;
    snprintf(path, sizeof path, "%s.verdict", job->path);
    if (!harness_file_read(path, text, sizeof text) || sscanf(text, "%d %n", &verdict->code, &consumed) != 1)
        return false;
    text[strcspn(text, "\n")] = '\0';
    snprintf(verdict->reason, sizeof verdict->reason, "%s", text + consumed);
    return true;
}

/* The leader's process, once announced. */
static bool read_leader(const harness_outer_job *job, harness_process *leader)
{
    char path[4096], text[64];
    int pid;
    snprintf(path, sizeof path, "%s.leader", job->path);
    if (!harness_file_read(path, text, sizeof text) || sscanf(text, "%d %" SCNu64, &pid, &leader->start_ticks) != 2)
        return false;
    leader->pid = pid;
    return true;
}

harness_verdict harness_outer_follow(const harness_outer_job *job, double timeout_s)
{
    harness_verdict verdict = {.code = HARNESS_ERROR};
    harness_process leader = {0};
    double until = now() + timeout_s;
    while (!read_verdict(job, &verdict)) {
        if (leader.pid == 0 && read_leader(job, &leader))
            until = now() + timeout_s;
        /* a leader publishes before it ends, so look for the verdict once more before giving it up */
        if (leader.pid != 0 && !is_running(leader.pid, leader.start_ticks)) {
            if (!read_verdict(job, &verdict))
                snprintf(verdict.reason, sizeof verdict.reason, "rank 0 died without a verdict");
            break;
        }
        if (now() >= until) {
            snprintf(verdict.reason, sizeof verdict.reason, "rank 0 %s within %.0f s",
                     leader.pid ? "did not report" : "did not start the case", timeout_s);
            break;
        }
        struct timespec time = {.tv_nsec = poll_ns};
        nanosleep(&time, NULL);
    }
    return verdict;
}
