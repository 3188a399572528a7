/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/multi_gpu/replay_ranks.h"

#include "tools/common/cli.h"

#include <ckv/mpi.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char replay_trace_path[64], replay_out_path[64], replay_said[8192];
static char said_path[64];

/* Names every rank knows and no other job has. */
static void agree_on_paths(void)
{
    long long mine = getpid(), *all = calloc((size_t)ckv_test_ranks(), sizeof *all);
    ckv_comm *comm = NULL;
    assert_non_null(all);
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), 0, &comm));
    assert_ok(ckv_comm_all_gather(comm, &mine, sizeof mine, all));
    ckv_comm_destroy(&comm);
    snprintf(replay_trace_path, sizeof replay_trace_path, "/tmp/ckv_replay_mpi_%lld.safetensors", all[0]);
    snprintf(replay_out_path, sizeof replay_out_path, "/tmp/ckv_replay_mpi_%lld.out", all[0]);
    snprintf(said_path, sizeof said_path, "/tmp/ckv_replay_mpi_%lld.said%d", all[0], ckv_test_rank());
    free(all);
}

void replay_write_trace(const rollout_spec *spec)
{
    agree_on_paths();
    if (ckv_test_rank() == 0) {
        trace *t = rollout_trace_make(spec);
        problem why = {"out of memory"};
        if (t == NULL || !trace_write(t, replay_trace_path, &why))
            fail_msg("%s", why.text);
        trace_free(&t);
    }
    ckv_test_check_point("the trace is written");
}

void replay_remove_files(void)
{
    ckv_test_check_point("the files are read");
    if (ckv_test_rank() == 0) {
        remove(replay_trace_path);
        remove(replay_out_path);
    }
}

/* Exit code of the command on this rank; what it says goes to `replay_said`. */
static int run_heard(replay_command *command, int argc, char **argv)
{
    fflush(NULL);
    int file = open(said_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    int saved_out = dup(STDOUT_FILENO), saved_err = dup(STDERR_FILENO);
    assert_true(file >= 0 && saved_out >= 0 && saved_err >= 0);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    int code = command(argc, argv);
    fflush(NULL);
    dup2(saved_out, STDOUT_FILENO);
    dup2(saved_err, STDERR_FILENO);
    ssize_t length = pread(file, replay_said, sizeof replay_said - 1, 0);
    replay_said[length < 0 ? 0 : length] = '\0';
    close(file);
    close(saved_out);
    close(saved_err);
    remove(said_path);
    ckv_test_check_point("the command has run");
    return code;
}

static int run_words(replay_command *command, const char *name, char *words)
{
    char first[32], *argv[16] = {first}, *rest = NULL;
    int argc = 1;
    snprintf(first, sizeof first, "%s", name);
    for (char *word = strtok_r(words, " ", &rest); word != NULL && argc < 15; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    return run_heard(command, argc, argv);
}

int replay_run(const char *words, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, words);
    vsnprintf(text, sizeof text, words, arguments);
    va_end(arguments);
    return run_words(cmd_replay, "ckv replay", text);
}

int replay_run_other(replay_command *command, const char *name, const char *words, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, words);
    vsnprintf(text, sizeof text, words, arguments);
    va_end(arguments);
    return run_words(command, name, text);
}

void replay_assert_said(const char *text)
{
    if (ckv_test_rank() == 0 && strstr(replay_said, text) == NULL)
        fail_msg("'%s' is not in:\n%s", text, replay_said);
    if (ckv_test_rank() != 0)
        assert_string_equal(replay_said, "");
}

void replay_names_the_rank(rollout_spec *spec, const char *options)
{
    spec->fault = CKV_KEY_PADDING;
    spec->fault_token = 11;
    spec->fault_forward = 0;
    replay_write_trace(spec);
    assert_int_equal(replay_run("%s %s", options, replay_trace_path), CLI_FAIL);
    replay_assert_said("one key explains it: padding row 11 was read");
    replay_assert_said("16 forwards, 15 ok, 1 wrong\n");
    if (ckv_test_rank() == 0) {
        int head = -1, rank = -1;
        const char *worst = strstr(replay_said, "  worst at row ");
        assert_non_null(worst);
        assert_int_equal(sscanf(worst, "  worst at row %*d head %d channel %*d rank %d:", &head, &rank), 2);
        assert_int_equal(rank, head / (12 / ckv_test_ranks()));
    }
    replay_remove_files();
}
