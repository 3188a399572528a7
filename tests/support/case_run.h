/* SPDX-License-Identifier: Apache-2.0 */
/* Between case.c, which runs cases in one process, and mpi_case.c, which makes ranks agree about them. */
#ifndef CKV_TESTS_SUPPORT_CASE_RUN_H
#define CKV_TESTS_SUPPORT_CASE_RUN_H

#include "tests/support/case.h"

typedef struct case_ranks {
    int (*start)(int *rank_out, int *ranks_out); /* before the first case; 0 or an exit code */
    void (*begin)(void);                         /* before each case, on every rank */
    int (*settle)(int verdict);                  /* after each case: this rank's verdict in, everybody's out */
    void (*finish)(int code);                    /* after the last case, with the exit code */
} case_ranks;

int case_main(const char *suite, const ckv_test_case *cases, size_t num_cases, int argc, char **argv,
              const case_ranks *ranks);

/* Record and print a failure that is not an assert's. */
void case_tell_failure(const char *text);

/* Remove what ckv_test_folder has made. */
void case_folders_remove(void);

/* Record the end of the running case, and remove its folders; for a rank that will not return to case_main. */
void case_conclude(int verdict);

/* Leave the running case with a verdict; what happened is recorded already. */
_Noreturn void case_leave(int verdict);

#endif
