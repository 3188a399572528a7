/* SPDX-License-Identifier: Apache-2.0 */
/* Traces on several ranks and one GPU: sessions over the transport of tests/support/comm_ipc.h, and the command, whose
 * transport refuses that. */
#include "tests/multi_gpu/replay_ranks.h"
#include "tests/multi_gpu/replay_rollout.h"
#include "tests/support/comm_ipc.h"
#include "tools/common/cli.h"

#include <stdlib.h>
#include <string.h>

static void rollouts_are_right(void **state)
{
    (void)state;
    gpu_share_one();
    replay_sound_rollouts(comm_create_ipc);
}

static void wrong_ranks_are_found_and_explained(void **state)
{
    (void)state;
    gpu_share_one();
    replay_wrong_rollout(comm_create_ipc);
}

/* As on a machine with one GPU: every rank takes the first. */
static void command_refuses_to_share_a_gpu(void **state)
{
    (void)state;
    gpu_share_one();
    rollout_spec spec = rollout_spec_cudnn(ckv_test_seed(), CKV_BF16);
    replay_write_trace(&spec);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0", 1);
    assert_int_equal(replay_run("--device cuda %s", replay_trace_path), CLI_USAGE);
    replay_assert_said("ranks 0 and 1 both use the GPU that is CUDA device 0 of rank 0");
    if (ckv_test_rank() == 0) /* one line */
        assert_ptr_equal(strchr(replay_said, '\n'), replay_said + strlen(replay_said) - 1);
    replay_remove_files();
}

static const ckv_test_case cases[] = {
    CKV_CASE(rollouts_are_right),
    CKV_CASE(wrong_ranks_are_found_and_explained),
    CKV_CASE(command_refuses_to_share_a_gpu),
};

CKV_MPI_TEST_MAIN("replay_one_gpu", cases)
