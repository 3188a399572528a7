/* SPDX-License-Identifier: Apache-2.0 */
/* What select, why and shard share: their options, and the lists and facts that these name. */
#ifndef CKV_LISTS_OPTIONS_H
#define CKV_LISTS_OPTIONS_H

#include "tools/common/cli.h"
#include "tools/lists/match.h"

#define LISTS_DEFAULT_FOLDER "test_lists"

typedef struct lists_options {
    const char *folder;
    const char *context;
    const char *facts_file; /* NULL: probe this machine */
    bool lenient;
    bool any_context;   /* a command that may go without --context */
    fact_set overrides; /* --set, the last one of a key wins */
    arena memory;
} lists_options;

/* For a command's argp.children; its input is a lists_options that holds zeroes. */
extern const struct argp lists_options_argp;

typedef struct lists_job {
    const list_context *context; /* the one asked for; without --context the first of all */
    fact_set facts;
} lists_job;

/* CLI_OK, or the exit code after messages on standard error. What is loaded lives in options->memory. */
int lists_load(const char *program, lists_options *options, lists_job *job_out);

/* CLI_OK, or CLI_INTERNAL with a message when standard output could not be written. */
int lists_finish(const char *program);

int lists_facts(int argc, char **argv);
int lists_select(int argc, char **argv);
int lists_why(int argc, char **argv);
int lists_check(int argc, char **argv);
int lists_shard(int argc, char **argv);
int lists_run(int argc, char **argv);

#endif
