/* SPDX-License-Identifier: Apache-2.0 */
/* The `ckv replay` command as it runs on each rank of a case, on a trace in a file that all of them see. */
#ifndef CKV_TESTS_MULTI_GPU_REPLAY_RANKS_H
#define CKV_TESTS_MULTI_GPU_REPLAY_RANKS_H

#include "tests/support/mpi_case.h"
#include "tests/support/rollout_trace.h"

extern char replay_trace_path[64], replay_out_path[64];

/* What the last command said on this rank. */
extern char replay_said[8192];

/* Collective, all of these: they have check points. */
void replay_write_trace(const rollout_spec *spec);
void replay_remove_files(void);

/* `ckv replay WORDS` with words parted by blanks; the exit code on this rank. */
int replay_run(const char *words, ...) __attribute__((format(printf, 1, 2)));

/* The same for another command, as its main function is called. */
typedef int replay_command(int argc, char **argv);
int replay_run_other(replay_command *command, const char *name, const char *words, ...)
    __attribute__((format(printf, 3, 4)));

/* With a padding key read in the first forward of `spec`, the command, under `options`, explains it and names the rank
 * whose head is worst. */
void replay_names_the_rank(rollout_spec *spec, const char *options);

/* Rank 0 has said this, the others nothing. */
void replay_assert_said(const char *text);

#endif
