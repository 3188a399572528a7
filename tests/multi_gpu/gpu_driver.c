/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/multi_gpu/gpu_driver.h"

#include "tests/single_gpu/cuda_case.h"
#include "tests/support/device_memory.h"
#include "tests/support/ulysses_party.h"

#include <ckv/mpi.h>
#include <ckv/nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gpu_need(int gpus)
{
    int devices = 0;
    (void)test_device(); /* skips where there is none at all */
    assert_cuda(cudaGetDeviceCount(&devices));
    if (devices < gpus)
        ckv_test_skip("the case needs %d GPUs; this machine shows %d", gpus, devices);
}

/* GPUs that a runner has given to the ranks of the case; each rank sees its own and no other. */
static int given_gpus(void)
{
    const char *gpus = getenv("CKV_TEST_RANK_GPUS");
    int count = gpus != NULL && gpus[0] != '\0';
    for (; gpus != NULL && gpus[0] != '\0'; gpus++)
        count += *gpus == ',';
    return count;
}

void gpu_take_own(void)
{
    int given = given_gpus();
    if (given == 0)
        gpu_need(ckv_test_ranks());
    else if (given < ckv_test_ranks())
        ckv_test_skip("the case needs %d GPUs; it was given %d", ckv_test_ranks(), given);
    assert_cuda(cudaSetDevice(given > 0 ? 0 : ckv_test_rank()));
}

void gpu_share_one(void)
{
    const char *gpus = getenv("CKV_TEST_RANK_GPUS");
    char first[128];
    if (given_gpus() > 0) {
        snprintf(first, sizeof first, "%.*s", (int)strcspn(gpus, ","), gpus);
        setenv("CUDA_VISIBLE_DEVICES", first, 1);
    }
    gpu_need(1);
    assert_cuda(cudaSetDevice(0));
}

ckv_status gpu_create_nccl(ckv_comm *host, int64_t timeout_ms, ckv_comm **comm_out)
{
    ckv_nccl_config config = ckv_nccl_config_default();
    config.timeout_ms = timeout_ms;
    return ckv_comm_create_nccl(host, &config, comm_out);
}

void gpu_run(gpu_transport transport, int64_t timeout_ms, rank_body body)
{
    ckv_comm *host = NULL, *comm = NULL;
    rank_report report = {0};
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), timeout_ms, &host));
    ckv_test_set_comm(host);
    assert_ok(transport(host, timeout_ms, &comm));
    ckv_test_set_comm(comm);
    body(comm, &report);
    ckv_test_set_comm(NULL);
    ckv_comm_destroy(&comm);
    ckv_comm_destroy(&host);
    if (report.failed)
        fail_msg("%s", report.text);
}

void gpu_run_exchanges(gpu_transport transport, rank_body body)
{
    static const char *const exchanges[] = {"sendrecv", "fused"};
    party_uses.device = test_device();
    party_uses.backend = ckv_test_backend();
    for (int i = 0; i < 2; i++) {
        party_uses.exchange = exchanges[i];
        gpu_run(transport, GPU_DEADLINE_MS, body);
    }
}
