/* SPDX-License-Identifier: Apache-2.0 */
/* Traces on ranks under a launcher: the session over MPI, and the `ckv replay` command as it runs on each rank. */
#include "tests/support/mpi_case.h"

#include "tests/support/rollout_trace.h"
#include "tests/support/trace_run.h"
#include "tools/common/cli.h"

#include <ckv/mpi.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ckv_comm *make_comm(void)
{
    ckv_comm *comm = NULL;
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), 0, &comm));
    ckv_test_set_comm(comm);
    return comm;
}

static void destroy_comm(ckv_comm **comm)
{
    ckv_test_set_comm(NULL);
    ckv_comm_destroy(comm);
}

static void rollouts_are_right(void **state)
{
    (void)state;
    for (int dtype = CKV_FP32; dtype <= CKV_FP16; dtype++) {
        rollout_spec spec = rollout_spec_default(ckv_test_seed() + (uint64_t)dtype, (ckv_dtype)dtype);
        spec.padding = dtype == CKV_BF16 ? ROLLOUT_PADDING_NAN : ROLLOUT_PADDING_RANDOM;
        trace *t = rollout_trace_make(&spec);
        assert_non_null(t);
        ckv_comm *comm = make_comm();
        trace_outcome outcome;
        trace_run(t, comm, NULL, &outcome);
        destroy_comm(&comm);
        trace_free(&t);
        if (outcome.status != CKV_OK)
            fail_msg("%s", outcome.why.text);
        assert_int_equal(outcome.forwards, 16);
        assert_int_equal(outcome.wrong, 0);
        trace_outcome_free(&outcome);
    }
}

/* --- The command --- */

static char trace_path[64], out_path[64], said_path[64];

/* Names every rank knows and no other job has. */
static void agree_on_paths(void)
{
    long long mine = getpid(), *all = calloc((size_t)ckv_test_ranks(), sizeof *all);
    assert_non_null(all);
    ckv_comm *comm = make_comm();
    assert_ok(ckv_comm_all_gather(comm, &mine, sizeof mine, all));
    destroy_comm(&comm);
    snprintf(trace_path, sizeof trace_path, "/tmp/ckv_replay_mpi_%lld.safetensors", all[0]);
    snprintf(out_path, sizeof out_path, "/tmp/ckv_replay_mpi_%lld.out", all[0]);
    snprintf(said_path, sizeof said_path, "/tmp/ckv_replay_mpi_%lld.said%d", all[0], ckv_test_rank());
    free(all);
}

static void write_trace(const rollout_spec *spec)
{
    agree_on_paths();
    if (ckv_test_rank() == 0) {
        trace *t = rollout_trace_make(spec);
        problem why = {"out of memory"};
        if (t == NULL || !trace_write(t, trace_path, &why))
            fail_msg("%s", why.text);
        trace_free(&t);
    }
    ckv_test_check_point("the trace is written");
}

static char said[8192];

/* Exit code of the command on this rank; what it says on this rank goes to `said`. */
static int run_command(int argc, char **argv)
{
    fflush(NULL);
    int file = open(said_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    int saved_out = dup(STDOUT_FILENO), saved_err = dup(STDERR_FILENO);
    assert_true(file >= 0 && saved_out >= 0 && saved_err >= 0);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    int code = cmd_replay(argc, argv);
    fflush(NULL);
    dup2(saved_out, STDOUT_FILENO);
    dup2(saved_err, STDERR_FILENO);
    ssize_t length = pread(file, said, sizeof said - 1, 0);
    said[length < 0 ? 0 : length] = '\0';
    close(file);
    close(saved_out);
    close(saved_err);
    remove(said_path);
    ckv_test_check_point("the command has run");
    return code;
}

static void assert_said(const char *text)
{
    if (ckv_test_rank() == 0 && strstr(said, text) == NULL)
        fail_msg("'%s' is not in:\n%s", text, said);
    if (ckv_test_rank() != 0)
        assert_string_equal(said, "");
}

static void remove_files(void)
{
    ckv_test_check_point("the files are read");
    if (ckv_test_rank() == 0) {
        remove(trace_path);
        remove(out_path);
    }
}

static char name[] = "ckv replay";

static void command_replays_on_ranks(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    write_trace(&spec);
    char option[] = "--out";
    char *argv[] = {name, option, out_path, trace_path, NULL};
    assert_int_equal(run_command(4, argv), CLI_OK);
    assert_said("forward 0: tokens 11 (padded 12) block 11 max_error ");
    assert_said("16 forwards, 16 ok, 0 wrong\n");
    safetensors *out = NULL;
    problem why;
    if (!safetensors_read(out_path, &out, &why))
        fail_msg("%s", why.text);
    assert_int_equal(safetensors_num_tensors(out), 16);
    safetensors_free(&out);
    remove_files();
}

static void command_names_the_rank(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    spec.fault = CKV_KEY_PADDING;
    spec.fault_token = 11;
    spec.fault_forward = 0;
    write_trace(&spec);
    char *argv[] = {name, trace_path, NULL};
    assert_int_equal(run_command(2, argv), CLI_FAIL);
    assert_said("one key explains it: padding row 11 was read");
    assert_said("16 forwards, 15 ok, 1 wrong\n");
    if (ckv_test_rank() == 0) {
        int head = -1, rank = -1;
        const char *worst = strstr(said, "  worst at row ");
        assert_non_null(worst);
        assert_int_equal(sscanf(worst, "  worst at row %*d head %d channel %*d rank %d:", &head, &rank), 2);
        assert_int_equal(rank, head / (12 / ckv_test_ranks()));
    }
    remove_files();
}

/* A trace that only one rank cannot read ends all ranks, with one line from rank 0. */
static void command_agrees_on_a_bad_trace(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    write_trace(&spec);
    char missing[] = "/nowhere/a.safetensors", bad_option[] = "--faster";
    bool last = ckv_test_rank() == ckv_test_ranks() - 1;
    char *argv[] = {name, last ? missing : trace_path, NULL};
    assert_int_equal(run_command(2, argv), CLI_USAGE);
    assert_said("/nowhere/a.safetensors: No such file or directory\n");
    char *bad[] = {name, bad_option, trace_path, NULL};
    assert_int_equal(run_command(3, bad), CLI_USAGE);
    assert_said("--faster");
    remove_files();
}

static const ckv_test_case cases[] = {
    CKV_CASE(rollouts_are_right),
    CKV_CASE(command_replays_on_ranks),
    CKV_CASE(command_names_the_rank),
    CKV_CASE(command_agrees_on_a_bad_trace),
};

CKV_MPI_TEST_MAIN("replay_mpi", cases)
