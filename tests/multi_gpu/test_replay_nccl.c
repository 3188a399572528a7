/* SPDX-License-Identifier: Apache-2.0 */
/* Traces on a GPU a rank: sessions over the nccl transport, and the `ckv replay` command as it runs on each rank. */
#include "tests/multi_gpu/replay_ranks.h"
#include "tests/multi_gpu/replay_rollout.h"
#include "tools/common/cli.h"

#include <stdio.h>
#include <string.h>

static void rollouts_are_right(void **state)
{
    (void)state;
    gpu_take_own();
    replay_sound_rollouts(gpu_create_nccl);
}

static void wrong_ranks_are_found_and_explained(void **state)
{
    (void)state;
    gpu_take_own();
    replay_wrong_rollout(gpu_create_nccl);
}

static void expect_exchange(const char *asked, const char *line)
{
    assert_int_equal(replay_run("--device cuda --backend cudnn --exchange %s %s", asked, replay_trace_path), CLI_OK);
    replay_assert_said("forward 0: tokens 11 (padded 12) block 11 max_error ");
    replay_assert_said(line);
}

static void command_replays_on_gpus(void **state)
{
    (void)state;
    gpu_take_own();
    rollout_spec spec = rollout_spec_cudnn(ckv_test_seed(), CKV_BF16);
    replay_write_trace(&spec);
    expect_exchange("fused", " ok\nexchange fused\n16 forwards, 16 ok, 0 wrong\n");
    expect_exchange("sendrecv", " ok\nexchange sendrecv, not fused: sendrecv was asked for\n16 forwards, 16 ok, ");
    expect_exchange("auto", " ok\nexchange fused\n16 forwards, 16 ok, 0 wrong\n");
    replay_remove_files();
}

static void command_names_the_rank(void **state)
{
    (void)state;
    gpu_take_own();
    rollout_spec spec = rollout_spec_cudnn(ckv_test_seed(), CKV_BF16);
    replay_names_the_rank(&spec, "--device cuda");
}

/* What no backend of a GPU takes is refused on all ranks, at its op. */
static void command_agrees_on_a_refusal(void **state)
{
    (void)state;
    gpu_take_own();
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    replay_write_trace(&spec);
    assert_int_equal(replay_run("--device cuda %s", replay_trace_path), CLI_USAGE);
    replay_assert_said("(forward): ");
    replay_assert_said("no backend supports this call");
    replay_remove_files();
}

static const ckv_test_case cases[] = {
    CKV_CASE(rollouts_are_right),     CKV_CASE(wrong_ranks_are_found_and_explained), CKV_CASE(command_replays_on_gpus),
    CKV_CASE(command_names_the_rank), CKV_CASE(command_agrees_on_a_refusal),
};

CKV_MPI_TEST_MAIN("replay_nccl", cases)
