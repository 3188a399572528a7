/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/launch_env.h"

#include "tools/common/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if CKV_HAVE_MPI
#include <ckv/mpi.h>
#include <mpi.h>
#endif

/* The first variable that is set and a count, or `otherwise`. */
static int environment_count(const char *const *names, int otherwise)
{
    for (; *names != NULL; names++) {
        const char *text = getenv(*names);
        char *end;
        errno = 0;
        long value = text == NULL ? -1 : strtol(text, &end, 10);
        if (text != NULL && end != text && *end == '\0' && errno == 0 && value >= 0 && value <= INT_MAX)
            return (int)value;
    }
    return otherwise;
}

int launch_env_size(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    return environment_count(names, 1);
}

int launch_env_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", NULL};
    return environment_count(names, 0);
}

int launch_env_local_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", NULL};
    return environment_count(names, launch_env_rank());
}

int launch_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    if (launch_env_rank() == 0)
        return cli_parse(argp, argc, argv, input);
    fflush(NULL);
    int saved_out = dup(STDOUT_FILENO), saved_err = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    close(nowhere);
    int code = cli_parse(argp, argc, argv, input); /* --help exits here, unheard */
    fflush(NULL);
    dup2(saved_out, STDOUT_FILENO);
    dup2(saved_err, STDERR_FILENO);
    close(saved_out);
    close(saved_err);
    return code;
}

#if CKV_HAVE_MPI
static bool mpi_is_ours; /* started here, so ended here */

static ckv_status start_mpi(ckv_comm **comm_out)
{
    int started, provided;
    MPI_Initialized(&started);
    mpi_is_ours = !started;
    if (mpi_is_ours)
        MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm world = MPI_COMM_WORLD;
    return ckv_comm_create_mpi(&world, 0, comm_out);
}
#endif

int launch_start(const char *argv0, ckv_comm **comm_out)
{
    ckv_status status;
    if (launch_env_size() <= 1) {
        status = ckv_comm_create_self(comm_out);
    } else {
#if CKV_HAVE_MPI
        status = start_mpi(comm_out);
#else
        if (launch_env_rank() == 0)
            cli_error(argv0, "started with %d ranks, but this build has no MPI; run it without the launcher",
                      launch_env_size());
        return CLI_USAGE;
#endif
    }
    if (status == CKV_OK)
        return CLI_OK;
    cli_error(argv0, "%s", ckv_last_error());
    return CLI_INTERNAL;
}

bool launch_speaks(const ckv_comm *comm, ckv_status status)
{
    return ckv_comm_rank(comm) == 0 || status == CKV_ERROR_COMM || status == CKV_ERROR_TIMEOUT;
}

int launch_end(ckv_comm **comm, int code)
{
    ckv_comm_destroy(comm);
#if CKV_HAVE_MPI
    if (mpi_is_ours) {
        mpi_is_ours = false;
        fflush(NULL);
        if (code == CLI_INTERNAL)
            MPI_Abort(MPI_COMM_WORLD, code);
        MPI_Finalize();
    }
#endif
    return code;
}
