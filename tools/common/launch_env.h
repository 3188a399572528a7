/* SPDX-License-Identifier: Apache-2.0 */
/* Running alone or as one rank of a launcher's job (mpirun, srun): the same command line either way. */
#ifndef CKV_TOOLS_LAUNCH_ENV_H
#define CKV_TOOLS_LAUNCH_ENV_H

#include <argp.h>
#include <ckv/comm.h>
#include <stdbool.h>

/* Ranks of the launcher's job and which one this is, from its environment variables; 1 and 0 without a launcher. */
int launch_env_size(void);
int launch_env_rank(void);

/* Which of the ranks on this machine this one is; its rank when the launcher does not say. */
int launch_env_local_rank(void);

/* cli_parse (tools/common/cli.h) that says what is wrong on rank 0 only. */
int launch_parse(const struct argp *argp, int argc, char **argv, void *input);

/* The communicator of this job: over MPI, which is started, when a launcher started more than one rank; else of one
 * rank, with MPI untouched. CLI_OK; CLI_USAGE, said on rank 0, for a launcher and a build without MPI; CLI_INTERNAL. */
int launch_start(const char *argv0, ckv_comm **comm_out);

/* Whether this rank is the one to say why `status` ended the work: rank 0 for what all ranks have agreed on; any rank
 * when the ranks could not talk, since rank 0 may be the one that is gone. */
bool launch_speaks(const ckv_comm *comm, ckv_status status);

/* Destroy the communicator, end MPI when it runs, and hand `code` back. Collective, except that CLI_INTERNAL ends the
 * whole job at once: the other ranks may be waiting for this one. */
int launch_end(ckv_comm **comm, int code);

#endif
