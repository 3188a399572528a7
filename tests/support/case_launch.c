/* SPDX-License-Identifier: Apache-2.0 */
/* ckv_case_launch: what every CTest test runs. One case on N ranks, to a verdict, with nothing left behind. */
#include "tools/harness/case.h"
#include "tools/harness/folder.h"
#include "tools/harness/outer_job.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "Usage: ckv_case_launch --name SUITE.CASE [--ranks N] [--timeout SECONDS] [--unrecorded] [--record-dir DIR] -- "
    "PROGRAM [ARG...]\n"
    "\n"
    "Run PROGRAM on N ranks (1) under a mpirun of its own, and judge it by what its ranks recorded.\n"
    "As a rank of an MPI job (mpirun -np 2 ctest), rank 0 runs the case and the others report its verdict.\n"
    "\n"
    "  --name        name of the case, for the verdict\n"
    "  --ranks       1 runs PROGRAM directly\n"
    "  --timeout     deadline of the case in seconds (60)\n"
    "  --unrecorded  PROGRAM keeps no records; its exit code is the verdict\n"
    "  --record-dir  folder for logs and records (.); those of a failed case are kept\n"
    "\n"
    "Exit codes: 0 pass, 1 fail, 2 usage, 3 the machinery failed, 4 hang, 77 skipped on all ranks.\n";

static const double follower_margin_s = 15; /* for a leader that has to kill the case and clean up */

enum { LOG_TAIL_BYTES = 256 * 1024, MAX_RANKS = 256 };

typedef struct arguments {
    const char *name;
    int ranks;
    double timeout_s;
    bool unrecorded;
    const char *record_dir;
    char **program;
} arguments;

/* --- Arguments --- */

static int usage_error(const char *what, const char *value)
{
    fprintf(stderr, "ckv_case_launch: %s%s%s; see 'ckv_case_launch --help'\n", what, value ? " " : "",
            value ? value : "");
    return HARNESS_USAGE;
}

static bool parse_number(const char *text, double minimum, double maximum, double *value_out)
{
    char *end;
    errno = 0;
    *value_out = strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && *value_out >= minimum && *value_out <= maximum;
}

static int parse(int argc, char **argv, arguments *out)
{
    static const struct option options[] = {{"name", required_argument, NULL, 'n'},
                                            {"ranks", required_argument, NULL, 'r'},
                                            {"timeout", required_argument, NULL, 't'},
                                            {"record-dir", required_argument, NULL, 'd'},
                                            {"unrecorded", no_argument, NULL, 'u'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    *out = (arguments){.ranks = 1, .timeout_s = 60, .record_dir = "."};
    double ranks = 1;
    for (int option; (option = getopt_long(argc, argv, "+", options, NULL)) != -1;) {
        switch (option) {
        case 'n':
            out->name = optarg;
            break;
        case 'r':
            if (!parse_number(optarg, 1, MAX_RANKS, &ranks) || ranks != (int)ranks)
                return usage_error("--ranks must be an integer from 1 to 256, not", optarg);
            out->ranks = (int)ranks;
            break;
        case 't':
            if (!parse_number(optarg, 0.1, 86400, &out->timeout_s))
                return usage_error("--timeout must be from 0.1 to 86400 seconds, not", optarg);
            break;
        case 'd':
            out->record_dir = optarg;
            break;
        case 'u':
            out->unrecorded = true;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(HARNESS_PASS);
        default:
            return HARNESS_USAGE; /* getopt has said why */
        }
    }
    out->program = argv + optind;
    if (out->name == NULL || out->program[0] == NULL)
        return usage_error("--name and a program are needed", NULL);
    return HARNESS_PASS;
}

/* --- One run --- */

/* A new folder in the record folder for this run. */
static bool make_records(const arguments *options, const char *file, char *directory, size_t bytes)
{
    if (!harness_folder_make(options->record_dir))
        return false;
    int length = snprintf(directory, bytes, "%s/%s.XXXXXX", options->record_dir, file);
    if (length < 0 || (size_t)length >= bytes) {
        errno = ENAMETOOLONG;
        return false;
    }
    return mkdtemp(directory) != NULL;
}

static void print_reproduction(const char *self, const arguments *options, const char *seed)
{
    char ranks[16], timeout[32];
    snprintf(ranks, sizeof ranks, "%d", options->ranks);
    snprintf(timeout, sizeof timeout, "%g", options->timeout_s);
    const char *command[] = {self, "--name", options->name, "--ranks", ranks, "--timeout", timeout};
    fputs("reproduce:", stdout);
    if (seed[0] != '\0')
        printf(" CKV_TEST_SEED=%s", seed);
    for (size_t i = 0; i < sizeof command / sizeof *command; i++)
        harness_print_argument(stdout, command[i]);
    fputs(options->unrecorded ? " --unrecorded --" : " --", stdout);
    for (char *const *argument = options->program; *argument != NULL; argument++)
        harness_print_argument(stdout, *argument);
    putchar('\n');
}

static harness_verdict run_case(const char *self, const arguments *options, const char *file)
{
    harness_verdict verdict = {.code = HARNESS_ERROR};
    harness_outcome outcome;
    char directory[3000], merged[3100];
    if (!make_records(options, file, directory, sizeof directory)) {
        snprintf(verdict.reason, sizeof verdict.reason, "cannot write to folder '%.200s': %s", options->record_dir,
                 strerror(errno));
        return verdict;
    }
    harness_case one = {.ranks = options->ranks,
                        .timeout_s = options->timeout_s,
                        .unrecorded = options->unrecorded,
                        .program = options->program};
    verdict = harness_case_run(&one, directory, stdout, &outcome);
    snprintf(merged, sizeof merged, "%s/" HARNESS_MERGED, directory);
    harness_print_tail(stdout, merged, LOG_TAIL_BYTES);
    if (verdict.code == HARNESS_PASS || verdict.code == HARNESS_SKIP) {
        harness_folder_remove(directory);
    } else {
        print_reproduction(self, options, verdict.seed);
        printf("records: %s\n", directory);
    }
    return verdict;
}

static harness_verdict run_in_job(const char *self, const arguments *options, const char *file)
{
    harness_outer_job job;
    harness_verdict verdict = {.code = HARNESS_ERROR};
    if (!harness_folder_make(options->record_dir)) {
        snprintf(verdict.reason, sizeof verdict.reason, "cannot make folder '%.200s': %s", options->record_dir,
                 strerror(errno));
        return verdict;
    }
    int inside = harness_outer_join(options->record_dir, file, &job, verdict.reason, sizeof verdict.reason);
    if (inside < 0)
        return verdict;
    if (inside == 0)
        return run_case(self, options, file);
    if (job.rank > 0) {
        printf("rank %d of an MPI job: waiting for rank 0, which runs the case\n", job.rank);
        fflush(stdout);
        verdict = harness_outer_follow(&job, options->timeout_s + follower_margin_s);
        printf("this is rank 0's verdict:\n");
        return verdict;
    }
    printf("rank 0 of an MPI job: running the case for all its ranks\n");
    if (!harness_outer_announce(&job)) {
        snprintf(verdict.reason, sizeof verdict.reason, "cannot announce the case: %s", strerror(errno));
        return verdict;
    }
    verdict = run_case(self, options, file);
    if (!harness_outer_publish(&job, &verdict))
        printf("cannot publish the verdict: %s\n", strerror(errno));
    return verdict;
}

int main(int argc, char **argv)
{
    arguments options;
    char file[200]; /* a file name of 255 bytes leaves this much */
    int parsed = parse(argc, argv, &options);
    if (parsed != HARNESS_PASS)
        return parsed;
    if (!harness_file_name(options.name, file, sizeof file))
        return usage_error("--name is too long:", options.name);
    harness_verdict verdict = run_in_job(argv[0], &options, file);
    printf("%s: %s%s%s%s\n", options.name, harness_verdict_name(verdict.code), verdict.reason[0] ? " (" : "",
           verdict.reason, verdict.reason[0] ? ")" : "");
    return verdict.code;
}
