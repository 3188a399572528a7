/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/case.h"

#include "tools/harness/launch.h"
#include "tools/harness/merge.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A rank notices a hang at the deadline and says where it is; the launcher acts only if that does not happen. */
static const double launcher_margin_s = 1.5;
static const double doomed_s = 3.0; /* from a recorded failure to the end of the job */

typedef struct case_files {
    char record[4096]; /* CKV_TEST_RECORD of the ranks */
    char log[4096];
    int ranks;
    bool recorded;
    harness_merge *merge; /* NULL: no merged log */
} case_files;

bool harness_file_name(const char *name, char *out, size_t bytes)
{
    size_t length = 0;
    for (; *name != '\0' && length + 4 < bytes; name++)
        length += (size_t)snprintf(out + length, bytes - length,
                                   isalnum((unsigned char)*name) || strchr("._-", *name) ? "%c" : "%%%02x",
                                   (unsigned char)*name);
    return *name == '\0';
}

void harness_print_argument(FILE *stream, const char *argument)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+=/:,@%";
    if (argument[0] != '\0' && strspn(argument, plain) == strlen(argument)) {
        fprintf(stream, " %s", argument);
        return;
    }
    fputs(" '", stream);
    for (; *argument != '\0'; argument++)
        fputs(*argument == '\'' ? "'\\''" : (const char[]){*argument, '\0'}, stream);
    putc('\'', stream);
}

void harness_print_tail(FILE *stream, const char *path, long bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    char *line = NULL;
    size_t capacity = 0;
    if (fseek(file, 0, SEEK_END) == 0 && ftell(file) > bytes) {
        fseek(file, -bytes, SEEK_END);
        fprintf(stream, "... %s holds all of it\n", path);
        if (getline(&line, &capacity, file) < 0)
            clearerr(file);
    } else {
        rewind(file);
    }
    for (ssize_t length; (length = getline(&line, &capacity, file)) > 0;)
        fwrite(line, 1, (size_t)length, stream);
    free(line);
    fclose(file);
}

static bool is_doomed(void *context)
{
    const case_files *files = context;
    if (files->merge != NULL)
        harness_merge_poll(files->merge);
    return files->recorded && harness_records_doomed(files->record, files->ranks);
}

static void open_merge(case_files *files, const char *folder)
{
    char path[4096], tag[32];
    snprintf(path, sizeof path, "%.4000s/" HARNESS_MERGED, folder);
    files->merge = harness_merge_open(path);
    bool complete =
        files->merge != NULL && harness_merge_add(files->merge, files->log, files->ranks > 1 ? "[mpirun] " : "");
    for (int rank = 0; complete && rank < files->ranks; rank++) {
        snprintf(path, sizeof path, "%.4000s/" HARNESS_RECORD ".rank%d.log", folder, rank);
        snprintf(tag, sizeof tag, "[rank %d] ", rank);
        complete = harness_merge_add(files->merge, path, tag);
    }
}

static bool prepare(const harness_case *one, const case_files *files, harness_launch *launch)
{
    char timeout[32];
    snprintf(timeout, sizeof timeout, "%g", one->timeout_s);
    if (!harness_launch_prepare(launch, one->ranks, one->program))
        return false;
    bool complete = harness_launch_setenv(launch, "CKV_TEST_RECORD", files->record) &&
                    harness_launch_setenv(launch, "CKV_TEST_TIMEOUT", timeout);
    for (const char *const *entry = one->environment; complete && entry != NULL && *entry != NULL; entry++) {
        char *name = strdup(*entry);
        char *equals = name != NULL ? strchr(name, '=') : NULL;
        if (equals != NULL)
            *equals = '\0';
        complete = equals != NULL && harness_launch_setenv(launch, name, equals + 1);
        free(name);
    }
    if (!complete)
        harness_launch_clear(launch);
    return complete;
}

static void print_launch(FILE *stream, const harness_launch *launch)
{
    fputs("launch:", stream);
    for (char *const *argument = launch->argv; *argument != NULL; argument++)
        harness_print_argument(stream, *argument);
    fprintf(stream, "   # %s\n", launch->note);
    fflush(stream);
}

harness_verdict harness_case_run(const harness_case *one, const char *folder, FILE *announce,
                                 harness_outcome *outcome_out)
{
    harness_verdict verdict = {.code = HARNESS_ERROR};
    case_files files = {.ranks = one->ranks, .recorded = !one->unrecorded};
    harness_launch launch;
    *outcome_out = (harness_outcome){.exit_code = -1};
    if (snprintf(files.record, sizeof files.record, "%.4000s/" HARNESS_RECORD, folder) > 3900) {
        snprintf(verdict.reason, sizeof verdict.reason, "the folder's name is too long: %.200s...", folder);
        return verdict;
    }
    snprintf(files.log, sizeof files.log, "%.4000s/" HARNESS_LOG, folder);
    if (!prepare(one, &files, &launch)) {
        snprintf(verdict.reason, sizeof verdict.reason, "out of memory");
        return verdict;
    }
    if (announce != NULL)
        print_launch(announce, &launch);
    open_merge(&files, folder);
    harness_job job = {.argv = launch.argv,
                       .environment = launch.environment,
                       .directory = one->directory,
                       .log_path = files.log,
                       .timeout_s = one->timeout_s + launcher_margin_s,
                       .doomed = is_doomed,
                       .context = &files,
                       .doomed_s = doomed_s};
    *outcome_out = harness_run(&job);
    verdict =
        one->unrecorded ? harness_judge_program(outcome_out) : harness_judge(files.record, one->ranks, outcome_out);
    harness_merge_close(files.merge);
    harness_launch_clear(&launch);
    return verdict;
}
