/* SPDX-License-Identifier: Apache-2.0 */
/* What every ckv command shares: exit codes, one-line errors, argument parsing. */
#ifndef CKV_TOOLS_CLI_H
#define CKV_TOOLS_CLI_H

#include <argp.h>
#include <ckv/status.h>
#include <stdint.h>

enum {
    CLI_OK = 0,
    CLI_FAIL = 1,     /* the program ran and found something wrong */
    CLI_USAGE = 2,    /* options or input could not be read */
    CLI_INTERNAL = 3, /* infrastructure or an invariant */
};

typedef struct cli_command {
    const char *name;
    const char *summary;               /* for `ckv --help` */
    int (*run)(int argc, char **argv); /* argv[0] is "ckv NAME"; returns the exit code */
} cli_command;

int cmd_bench(int argc, char **argv);
int cmd_blocks(int argc, char **argv);
int cmd_window(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_repro(int argc, char **argv);
int cmd_size(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_lists(int argc, char **argv);

/* Print "argv0: message" as one line on standard error, with '?' for control characters that came out of input. */
void cli_error(const char *argv0, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Before anything is opened: a standard descriptor that is closed refuses what is done to it, instead of becoming the
 * next file's. */
void cli_hold_descriptors(void);

/* The exit code of a command that ends with `code`: CLI_INTERNAL, and why, when standard output did not take it all. A
 * command that ends with CLI_INTERNAL has said why. */
int cli_finish(const char *argv0, int code);

/* argp_parse for ckv: --help prints and exits 0; anything wrong prints one line that ends in "; see 'argv0 --help'" and
 * returns CLI_USAGE. 0 when parsed. */
int cli_parse(const struct argp *argp, int argc, char **argv, void *input);

/* For argp parsers: record the message cli_parse prints, and return EINVAL to pass on. */
error_t cli_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For argp parsers: a whole decimal integer in [minimum, maximum], or cli_usage_error naming the option and the range.
 */
error_t cli_parse_integer(const char *option, const char *text, int64_t minimum, int64_t maximum, int64_t *value_out);

#endif
