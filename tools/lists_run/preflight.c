/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/run.h"

#include "tools/common/cli.h"
#include "tools/harness/launch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

extern char **environ;

static const uint64_t shm_bytes_per_rank = (uint64_t)8 << 20; /* Open MPI maps 4 MiB a rank, NCCL about as much */

typedef struct needs {
    int max_ranks, max_gpus, ranks_at_once;
} needs;

static needs find_needs(const run_state *run)
{
    needs most = {0, 0, 0};
    for (size_t i = 0; i < run->plan.count; i++) {
        const plan_case *one = &run->plan.cases[i];
        if (one->test == NULL || one->expected == ENTRY_SKIP)
            continue;
        most.max_ranks = one->test->ranks > most.max_ranks ? one->test->ranks : most.max_ranks;
        most.max_gpus = one->request.gpus > most.max_gpus ? one->request.gpus : most.max_gpus;
    }
    most.ranks_at_once = most.max_ranks > run->slots.cpus ? most.max_ranks : run->slots.cpus;
    return most;
}

/* A small /dev/shm, as containers have it, makes multi-rank cases fail or hang. */
static void check_shm(const needs *most)
{
    struct statvfs shm;
    if (most->max_ranks < 2 || statvfs("/dev/shm", &shm) != 0)
        return;
    uint64_t free_bytes = (uint64_t)shm.f_bavail * shm.f_frsize;
    uint64_t wanted = shm_bytes_per_rank * (uint64_t)most->ranks_at_once;
    if (free_bytes < wanted)
        fprintf(stderr,
                "warning: /dev/shm has %llu MiB free and %d ranks want %llu; give the container --shm-size=1g\n",
                (unsigned long long)(free_bytes >> 20), most->ranks_at_once, (unsigned long long)(wanted >> 20));
}

/* Two entries of one GPU would put two ranks on it. */
static bool check_distinct(const char *program, const run_state *run)
{
    for (unsigned i = 0; i < run->machine.count; i++)
        for (unsigned j = 0; j < i; j++)
            if (run->machine.gpu[i].uuid[0] != '\0' &&
                strcmp(run->machine.gpu[i].uuid, run->machine.gpu[j].uuid) == 0) {
                cli_error(program, "GPUs %u and %u are one device, %s: ranks cannot get a GPU each", j, i,
                          run->machine.gpu[i].uuid);
                return false;
            }
    return true;
}

static void tell_inherited(void)
{
    static const char *const families[] = {"OMPI_COMM_", "PMIX_", "PMI_", "SLURM_", "HYDRA_"};
    size_t count = 0;
    for (char **entry = environ; *entry != NULL; entry++)
        for (size_t i = 0; i < sizeof families / sizeof *families; i++)
            count += strncmp(*entry, families[i], strlen(families[i])) == 0;
    if (count > 0)
        fprintf(stderr, "note: %zu variables of the job this runs in (MPI, PMI, Slurm) are kept from the cases\n",
                count);
}

static void tell_launch(const needs *most)
{
    char *program[] = {(char[]){"true"}, NULL};
    harness_launch launch;
    if (most->max_ranks < 2 || !harness_launch_prepare(&launch, most->max_ranks, program))
        return;
    fprintf(stderr, "note: the largest case has %s\n", launch.note);
    harness_launch_clear(&launch);
}

bool run_preflight(const char *program, run_state *run, const fact_set *facts)
{
    int rank, size;
    if (harness_rank_of_job(&rank, &size) && size != 1) {
        cli_error(program, "this is rank %d of an MPI job; run it once, without mpirun: it starts the ranks itself",
                  rank);
        return false;
    }
    needs most = find_needs(run);
    if (most.max_ranks > 1 && facts_get(facts, "mpi_version") == NULL)
        fprintf(stderr, "warning: no MPI library is found here\n");
    if (most.max_gpus > 0 && run->slots.num_gpus == 0)
        fprintf(stderr, "note: the GPUs are not known: cases that need one run one at a time\n");
    check_shm(&most);
    tell_inherited();
    tell_launch(&most);
    return check_distinct(program, run);
}
