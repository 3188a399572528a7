/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of the nccl transport that are killed, on two GPUs. They are processes that the case forks: an MPI job would
 * end with the first of them. The case's own process never touches CUDA. After every fault two new ranks exchange on
 * the same GPUs. */
#include "tests/support/case.h"

#include "tests/support/killed_ranks.h"
#include "tests/support/ulysses_party.h"

#include <ckv/nccl.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 2, DEADLINE_MS = 20000, DESTROY_MS = 5000 };

/* What rank_body has no room for. */
static rank_body body_on_gpus;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* One rank: a GPU of its own, a communicator that is given back in time whatever has happened to it, and a GPU that has
 * not come to harm. */
static void on_own_gpu(ckv_comm *host, rank_report *report)
{
    ckv_comm *comm = NULL;
    ckv_nccl_config config = ckv_nccl_config_default();
    config.timeout_ms = DEADLINE_MS;
    RANK_CHECK(report, cudaSetDevice(ckv_comm_rank(host)) == cudaSuccess);
    RANK_OK(report, ckv_device_find(ckv_test_device(), &party_uses.device));
    RANK_OK(report, ckv_comm_create_nccl(host, &config, &comm));
    body_on_gpus(comm, report);
    int64_t start_ms = now_ms();
    ckv_comm_destroy(&comm);
    RANK_CHECK(report, report->failed || now_ms() - start_ms < DESTROY_MS);
    RANK_CHECK(report, report->failed || cudaDeviceSynchronize() == cudaSuccess);
}

/* Counted by a process of its own. */
static int count_gpus(void)
{
    int status = 0, gpus = 0;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(cudaGetDeviceCount(&gpus) == cudaSuccess ? gpus : 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static void run_on_gpus(const char *exchange, const char *what, rank_body body)
{
    party_uses.exchange = killed_uses.exchange = exchange;
    party_uses.backend = ckv_test_backend();
    killed_uses.watched = 1;
    body_on_gpus = body;
    const char *failure = ranks_run_on_processes(RANKS, DEADLINE_MS, on_own_gpu);
    if (failure[0] != '\0')
        fail_msg("exchange %s, %s: %s", exchange, what, failure);
}

static void run(rank_body body)
{
    static const char *const exchanges[] = {"sendrecv", "fused"};
    int gpus = count_gpus();
    if (gpus < RANKS)
        ckv_test_skip("the case needs %d GPUs; this machine shows %d", RANKS, gpus);
    for (int i = 0; i < 2; i++)
        run_on_gpus(exchanges[i], "the fault", body); /* which comes after exchanges that work */
    run_on_gpus("fused", "the GPUs afterwards", killed_nobody);
}

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run(killed_##name);                                                                                            \
    }
KILLED_RANKS(DRIVE)

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {KILLED_RANKS(ROW)};

CKV_TEST_MAIN("nccl_faults", cases)
