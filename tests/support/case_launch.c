/* SPDX-License-Identifier: Apache-2.0 */
/* ckv_case_launch: what every CTest test runs. One case on N ranks, to a verdict, with nothing left behind. */
#include "tools/harness/folder.h"
#include "tools/harness/launch.h"
#include "tools/harness/outer_job.h"
#include "tools/harness/process.h"
#include "tools/harness/verdict.h"

#include <ctype.h>
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

/* A rank notices a hang at the deadline and says where it is; the launcher acts only if that does not happen. */
static const double launcher_margin_s = 1.5;
static const double doomed_s = 3.0;         /* from a recorded failure to the end of the job */
static const double follower_margin_s = 15; /* for a leader that has to kill the case and clean up */

enum { LOG_TAIL_BYTES = 64 * 1024, MAX_RANKS = 256 };

typedef struct arguments {
    const char *name;
    int ranks;
    double timeout_s;
    bool unrecorded;
    const char *record_dir;
    char **program;
} arguments;

typedef struct run_files {
    char directory[3000];
    char path[3100]; /* CKV_TEST_RECORD of the ranks */
    char log[3100];  /* of mpirun, or of the only rank */
    int ranks;
} run_files;

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

/* --- Records and logs --- */

/* The case's name as part of a file name, unlike that of any other case; false when it is too long. */
static bool file_name(const char *name, char *out, size_t bytes)
{
    size_t length = 0;
    for (; *name != '\0' && length + 4 < bytes; name++)
        length += (size_t)snprintf(out + length, bytes - length,
                                   isalnum((unsigned char)*name) || strchr("._-", *name) ? "%c" : "%%%02x",
                                   (unsigned char)*name);
    return *name == '\0';
}

static bool make_records(const arguments *options, const char *file, run_files *out)
{
    if (!harness_folder_make(options->record_dir))
        return false;
    int length = snprintf(out->directory, sizeof out->directory, "%s/%s.XXXXXX", options->record_dir, file);
    if (length < 0 || (size_t)length >= sizeof out->directory) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (mkdtemp(out->directory) == NULL)
        return false;
    out->ranks = options->ranks;
    snprintf(out->path, sizeof out->path, "%s/record", out->directory);
    snprintf(out->log, sizeof out->log, "%s/log", out->directory);
    return true;
}

/* The last LOG_TAIL_BYTES of a file, whole lines, each with a tag before it. */
static void print_tagged(const char *path, const char *tag)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    char *line = NULL;
    size_t capacity = 0;
    if (fseek(file, 0, SEEK_END) == 0 && ftell(file) > LOG_TAIL_BYTES) {
        fseek(file, -LOG_TAIL_BYTES, SEEK_END);
        printf("%s... %s holds all of it\n", tag, path);
        if (getline(&line, &capacity, file) < 0)
            clearerr(file);
    } else {
        rewind(file);
    }
    for (ssize_t length; (length = getline(&line, &capacity, file)) > 0;)
        printf("%s%.*s%s", tag, (int)length, line, line[length - 1] == '\n' ? "" : "\n");
    free(line);
    fclose(file);
}

static void print_logs(const run_files *records)
{
    char path[4096], tag[32];
    print_tagged(records->log, records->ranks > 1 ? "[mpirun] " : "");
    for (int rank = 0; rank < records->ranks; rank++) {
        snprintf(path, sizeof path, "%s.rank%d.log", records->path, rank);
        snprintf(tag, sizeof tag, "[rank %d] ", rank);
        print_tagged(path, tag);
    }
}

/* --- One run --- */

static bool is_doomed(void *context)
{
    const run_files *records = context;
    return harness_records_doomed(records->path, records->ranks);
}

static void print_quoted(const char *argument)
{
    if (argument[0] != '\0' && strspn(argument, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                                "._-+=/:,@%") == strlen(argument)) {
        printf(" %s", argument);
        return;
    }
    fputs(" '", stdout);
    for (; *argument != '\0'; argument++)
        fputs(*argument == '\'' ? "'\\''" : (const char[]){*argument, '\0'}, stdout);
    putchar('\'');
}

static void print_command(const char *title, char *const *argv)
{
    fputs(title, stdout);
    for (; *argv != NULL; argv++)
        print_quoted(*argv);
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
        print_quoted(command[i]);
    print_command(options->unrecorded ? " --unrecorded --" : " --", options->program);
    putchar('\n');
}

static bool prepare(const arguments *options, const run_files *records, harness_launch *launch)
{
    char timeout[32];
    snprintf(timeout, sizeof timeout, "%g", options->timeout_s);
    if (!harness_launch_prepare(launch, options->ranks, options->program))
        return false;
    if (harness_launch_setenv(launch, "CKV_TEST_RECORD", records->path) &&
        harness_launch_setenv(launch, "CKV_TEST_TIMEOUT", timeout))
        return true;
    harness_launch_clear(launch);
    return false;
}

static harness_verdict run_case(const char *self, const arguments *options, const char *file)
{
    harness_verdict verdict = {.code = HARNESS_ERROR};
    run_files records;
    harness_launch launch;
    if (!make_records(options, file, &records)) {
        snprintf(verdict.reason, sizeof verdict.reason, "cannot write to folder '%.200s': %s", options->record_dir,
                 strerror(errno));
        return verdict;
    }
    if (!prepare(options, &records, &launch)) {
        snprintf(verdict.reason, sizeof verdict.reason, "out of memory");
        return verdict;
    }
    print_command("launch:", launch.argv);
    printf("   # %s\n", launch.note);
    fflush(stdout);
    harness_job job = {.argv = launch.argv,
                       .environment = launch.environment,
                       .log_path = records.log,
                       .timeout_s = options->timeout_s + launcher_margin_s,
                       .doomed = is_doomed,
                       .context = &records,
                       .doomed_s = doomed_s};
    harness_outcome outcome = harness_run(&job);
    verdict =
        options->unrecorded ? harness_judge_program(&outcome) : harness_judge(records.path, options->ranks, &outcome);
    harness_launch_clear(&launch);

    print_logs(&records);
    if (verdict.code == HARNESS_PASS || verdict.code == HARNESS_SKIP) {
        harness_folder_remove(records.directory);
    } else {
        print_reproduction(self, options, verdict.seed);
        printf("records: %s\n", records.directory);
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
    if (!file_name(options.name, file, sizeof file))
        return usage_error("--name is too long:", options.name);
    harness_verdict verdict = run_in_job(argv[0], &options, file);
    printf("%s: %s%s%s%s\n", options.name, harness_verdict_name(verdict.code), verdict.reason[0] ? " (" : "",
           verdict.reason, verdict.reason[0] ? ")" : "");
    return verdict.code;
}
