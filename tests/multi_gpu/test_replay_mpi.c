/* SPDX-License-Identifier: Apache-2.0 */
/* Traces on ranks under a launcher: the session over MPI, and the `ckv replay` and `ckv repro shrink` commands as they
 * run on each rank. */
#include "tests/multi_gpu/replay_ranks.h"

#include "tests/support/trace_run.h"
#include "tools/common/cli.h"
#include "tools/repro/cmd_shrink.h"

#include <ckv/mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void command_replays_on_ranks(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    replay_write_trace(&spec);
    assert_int_equal(replay_run("--out %s %s", replay_out_path, replay_trace_path), CLI_OK);
    replay_assert_said("forward 0: tokens 11 (padded 12) block 11 max_error ");
    replay_assert_said("16 forwards, 16 ok, 0 wrong\n");
    safetensors *out = NULL;
    problem why;
    if (!safetensors_read(replay_out_path, &out, &why))
        fail_msg("%s", why.text);
    assert_int_equal(safetensors_num_tensors(out), 16);
    safetensors_free(&out);
    assert_int_equal(replay_run("--out %s %s", replay_trace_path, replay_trace_path), CLI_USAGE);
    replay_assert_said(" is the trace itself");
    assert_int_equal(replay_run("%s", replay_trace_path), CLI_OK); /* it is still there */
    assert_int_equal(replay_run("--out /nowhere/at.all %s", replay_trace_path), CLI_USAGE);
    replay_assert_said("/nowhere/at.all: No such file or directory");
    replay_remove_files();
}

static void command_names_the_rank(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    replay_names_the_rank(&spec, "");
}

/* A trace that only one rank cannot read ends all ranks, with one line from rank 0. */
static void command_agrees_on_a_bad_trace(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    replay_write_trace(&spec);
    bool last = ckv_test_rank() == ckv_test_ranks() - 1;
    assert_int_equal(replay_run("%s", last ? "/nowhere/a.safetensors" : replay_trace_path), CLI_USAGE);
    replay_assert_said("/nowhere/a.safetensors: No such file or directory\n");
    assert_int_equal(replay_run("--faster %s", replay_trace_path), CLI_USAGE);
    replay_assert_said("--faster");
    replay_remove_files();
}

/* CUDA is not there: not built in, or shown no GPU. An MPI that has opened CUDA before still sees them; what it refuses
 * then is the trace, whose fp32 no backend of a GPU takes. */
static void command_refuses_on_all_ranks(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    const ckv_device *device;
    char cause[600] = "ckv replay: ";
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    if (ckv_device_find("cuda", &device) != CKV_OK)
        snprintf(cause, sizeof cause, "ckv replay: --device cuda: %s\n", ckv_last_error());
    replay_write_trace(&spec);
    assert_int_equal(replay_run("--device cuda %s", replay_trace_path), CLI_USAGE);
    replay_assert_said(cause);
    replay_remove_files();
}

/* One try after the other, on the ranks that there are. */
static void shrink_tries_on_ranks(void **state)
{
    (void)state;
    static const char name[] = "ckv repro shrink";
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    spec.fault = CKV_KEY_PADDING;
    spec.fault_token = 11;
    replay_write_trace(&spec);
    int tokens = 0;
    assert_int_equal(replay_run_other(repro_shrink, name, "-o %s %s", replay_out_path, replay_trace_path), CLI_FAIL);
    replay_assert_said("; padding: the forward's padding rows are attended with what they hold");
    if (ckv_test_rank() == 0) {
        const char *result = strstr(replay_said, "shrunk to ");
        assert_non_null(result);
        assert_int_equal(sscanf(result, "shrunk to %d token", &tokens), 1);
        assert_in_range(tokens, 1, 2 * ckv_test_ranks());
    }
    assert_int_equal(replay_run("%s", replay_out_path), CLI_FAIL);
    replay_assert_said("1 forwards, 0 ok, 1 wrong\n");
    if (ckv_test_ranks() > 1) {
        assert_int_equal(replay_run_other(repro_shrink, name, "--ranks 64 %s", replay_trace_path), CLI_USAGE);
        replay_assert_said("--ranks 64: the launcher started ");
    }
    spec.fault = CKV_KEY_NONE;
    replay_remove_files();
    replay_write_trace(&spec);
    assert_int_equal(replay_run_other(repro_shrink, name, "%s", replay_trace_path), CLI_OK);
    replay_assert_said("16 forwards, nothing wrong on ");
    bool last = ckv_test_rank() == ckv_test_ranks() - 1;
    assert_int_equal(replay_run_other(repro_shrink, name, "%s", last ? "/nowhere/a" : replay_trace_path), CLI_USAGE);
    replay_assert_said("/nowhere/a: No such file or directory\n");
    replay_remove_files();
}

static const ckv_test_case cases[] = {
    CKV_CASE(rollouts_are_right),           CKV_CASE(command_replays_on_ranks),
    CKV_CASE(command_names_the_rank),       CKV_CASE(command_agrees_on_a_bad_trace),
    CKV_CASE(command_refuses_on_all_ranks), CKV_CASE(shrink_tries_on_ranks),
};

CKV_MPI_TEST_MAIN("replay_mpi", cases)
