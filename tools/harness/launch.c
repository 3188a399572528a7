/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/launch.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef CKV_MPIEXEC
#define CKV_MPIEXEC "mpirun"
#endif

extern char **environ;

static const struct {
    const char *rank, *size;
} job_variables[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, /* Open MPI */
    {"PMI_RANK", "PMI_SIZE"},                         /* MPICH, Intel MPI */
    {"PMIX_RANK", NULL},                              /* any other launcher with PMIx */
};

bool harness_rank_of_job(int *rank_out, int *size_out)
{
    for (size_t i = 0; i < sizeof job_variables / sizeof *job_variables; i++) {
        const char *rank = getenv(job_variables[i].rank);
        const char *size = job_variables[i].size ? getenv(job_variables[i].size) : NULL;
        if (rank == NULL)
            continue;
        *rank_out = atoi(rank);
        *size_out = size ? atoi(size) : 0;
        return true;
    }
    return false;
}

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* A setting somebody made, as opposed to the identity of a rank. */
static bool is_setting(const char *entry)
{
    static const char *const settings[] = {"OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_", "MPI_HOME=", "MPI_ROOT="};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (has_prefix(entry, settings[i]))
            return true;
    return false;
}

static bool is_scrubbed(const char *entry, bool inside_job)
{
    static const char *const families[] = {"OMPI_",
                                           "PMIX_",
                                           "PMI_",
                                           "PRTE_",
                                           "MPI_",
                                           "HYDI_",
                                           "HYDRA_",
                                           "SLURM_",
                                           "CKV_TEST_RECORD=",
                                           "CKV_TEST_TIMEOUT="};
    if (has_prefix(entry, "OMPI_ALLOW_RUN_AS_ROOT"))
        return false;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (has_prefix(entry, families[i]))
            return inside_job || !is_setting(entry);
    return false;
}

static size_t count_entries(char *const *list)
{
    size_t count = 0;
    while (list != NULL && list[count] != NULL)
        count++;
    return count;
}

static bool append(char ***list, const char *entry)
{
    size_t count = count_entries(*list);
    char **grown = realloc(*list, (count + 2) * sizeof **list);
    if (grown == NULL)
        return false;
    *list = grown;
    grown[count] = strdup(entry);
    grown[count + 1] = NULL;
    return grown[count] != NULL;
}

static char **find(char **environment, const char *name)
{
    size_t length = strlen(name);
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++)
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
            return entry;
    return NULL;
}

bool harness_launch_setenv(harness_launch *launch, const char *name, const char *value)
{
    char *entry = NULL;
    if (asprintf(&entry, "%s=%s", name, value) < 0)
        return false;
    char **present = find(launch->environment, name);
    if (present != NULL) {
        free(*present);
        *present = entry;
        return true;
    }
    bool appended = append(&launch->environment, entry);
    free(entry);
    return appended;
}

static bool set_default(harness_launch *launch, const char *name, const char *value)
{
    return find(launch->environment, name) != NULL || harness_launch_setenv(launch, name, value);
}

static int usable_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* What tests need from Open MPI, unless the user chose otherwise. */
static bool set_mpi_defaults(harness_launch *launch, int ranks)
{
    static const char *const defaults[][2] = {
        /* several jobs run at once, and each would bind its ranks to the same first cores, and spin there */
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"PRTE_MCA_hwloc_default_binding_policy", "none"},
        {"OMPI_MCA_mpi_yield_when_idle", "1"},
        /* reading another process's memory is forbidden in most containers; Open MPI notices, with a warning */
        {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
        /* all ranks run here; without ssh, Open MPI asks for some way to reach other machines before it starts any */
        {"OMPI_MCA_plm_rsh_agent", "false"},
        {"PRTE_MCA_plm_ssh_agent", "false"},
        /* and meet in shared memory; looking for fabrics and networks takes 0.3 s of every start */
        {"OMPI_MCA_pml", "ob1"},
        {"OMPI_MCA_btl", "self,vader"},
    };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (!set_default(launch, defaults[i][0], defaults[i][1]))
            return false;
    bool root = geteuid() == 0;
    if (root && !(harness_launch_setenv(launch, "OMPI_ALLOW_RUN_AS_ROOT", "1") &&
                  harness_launch_setenv(launch, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")))
        return false;
    /* Open MPI counts cores as slots, we count CPUs: with two threads a core, half of them */
    int cpus = usable_cpus();
    bool crowded = 2 * ranks > cpus;
    if (crowded && !(set_default(launch, "OMPI_MCA_rmaps_base_oversubscribe", "1") &&
                     set_default(launch, "PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")))
        return false;
    snprintf(launch->note, sizeof launch->note, "%d ranks on %d CPUs%s%s", ranks, cpus,
             crowded ? ", oversubscription allowed" : "", root ? ", root allowed" : "");
    return true;
}

static bool append_mpirun(harness_launch *launch, int ranks)
{
    const char *chosen = getenv("CKV_MPIEXEC");
    char count[16];
    snprintf(count, sizeof count, "%d", ranks);
    return append(&launch->argv, chosen ? chosen : CKV_MPIEXEC) && append(&launch->argv, "-np") &&
           append(&launch->argv, count);
}

bool harness_launch_prepare(harness_launch *launch_out, int ranks, char *const *program)
{
    harness_launch launch = {0};
    int rank, size;
    bool inside_job = harness_rank_of_job(&rank, &size);
    bool complete = true;
    for (char **entry = environ; complete && *entry != NULL; entry++)
        complete = is_scrubbed(*entry, inside_job) || append(&launch.environment, *entry);
    complete = complete && set_mpi_defaults(&launch, ranks); /* one rank that starts MPI needs them as well */
    if (ranks > 1)
        complete = complete && append_mpirun(&launch, ranks);
    else
        snprintf(launch.note, sizeof launch.note, "1 rank, no mpirun");
    for (; complete && *program != NULL; program++)
        complete = append(&launch.argv, *program);
    if (!complete) {
        harness_launch_clear(&launch);
        return false;
    }
    *launch_out = launch;
    return true;
}

static void free_list(char **list)
{
    for (char **entry = list; entry != NULL && *entry != NULL; entry++)
        free(*entry);
    free(list);
}

void harness_launch_clear(harness_launch *launch)
{
    free_list(launch->argv);
    free_list(launch->environment);
    *launch = (harness_launch){0};
}
