/* SPDX-License-Identifier: Apache-2.0 */
/* The nccl transport: what every transport has to do, device memory, and what it does when ranks do not come. */
#include "tests/multi_gpu/gpu_driver.h"

#include "lib/support/error.h"
#include "tests/single_gpu/cuda_case.h"
#include "tests/support/comm_conformance.h"
#include "tests/support/random.h"
#include "tests/support/ulysses_party.h"
#include "ulysses/comm.h"

#include <ckv/mpi.h>
#include <ckv/nccl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHORT_MS = 6000, PATIENCE_MS = 20000, MAX_BYTES = 300000, TENSORS = 3 };

#define RANK_CUDA(report, call) RANK_CHECK(report, (call) == cudaSuccess)

#define DRIVE(name)                                                                                                    \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        gpu_take_own();                                                                                                \
        gpu_run(gpu_create_nccl, GPU_DEADLINE_MS, conform_##name);                                                     \
    }
COMM_CONFORMANCE(DRIVE)

/* --- Device memory --- */

/* Tensors of random sizes, some empty, between all ranks; the sizes and bytes of a pair follow from both ranks. */
typedef struct messages {
    int rank, ranks;
    ckv_comm_transfer *transfers;
    char *memory;
    int64_t bytes;
} messages;

static int64_t size_of(uint64_t seed, int tensor, int from, int to)
{
    ckv_random random = {seed + (uint64_t)(tensor * 1000 + from * 30 + to)};
    return ckv_random_range(&random, 0, 3) == 0 ? 0 : ckv_random_range(&random, 1, MAX_BYTES);
}

static char byte_of(uint64_t seed, int tensor, int from, int to, int64_t at)
{
    return (char)((seed + (uint64_t)(tensor * 7 + from * 31 + to * 61) + (uint64_t)at * 13) >> (at % 5));
}

static void make_messages(messages *m, rank_report *report, ckv_comm *comm, uint64_t seed)
{
    *m = (messages){.rank = ckv_comm_rank(comm), .ranks = ckv_comm_size(comm)};
    void *memory = NULL;
    m->transfers = calloc((size_t)(TENSORS * m->ranks), sizeof *m->transfers);
    m->bytes = (int64_t)2 * TENSORS * m->ranks * MAX_BYTES;
    RANK_CUDA(report, cudaMalloc(&memory, (size_t)m->bytes));
    RANK_CUDA(report, cudaMemset(memory, 0x77, (size_t)m->bytes));
    m->memory = memory;
    char *at = memory, *host = malloc(MAX_BYTES);
    for (int i = 0; i < TENSORS * m->ranks; i++, at += 2 * MAX_BYTES) {
        int tensor = i / m->ranks, peer = i % m->ranks;
        int64_t out = size_of(seed, tensor, m->rank, peer), in = size_of(seed, tensor, peer, m->rank);
        for (int64_t b = 0; b < out; b++)
            host[b] = byte_of(seed, tensor, m->rank, peer, b);
        RANK_CUDA(report, cudaMemcpy(at, host, (size_t)out, cudaMemcpyHostToDevice));
        m->transfers[i] = (ckv_comm_transfer){at, out, at + MAX_BYTES, in};
    }
    free(host);
}

static void check_messages(const messages *m, rank_report *report, uint64_t seed)
{
    char *host = malloc(MAX_BYTES);
    for (int i = 0; i < TENSORS * m->ranks; i++) {
        int tensor = i / m->ranks, peer = i % m->ranks;
        int64_t in = m->transfers[i].receive_bytes;
        RANK_CUDA(report, cudaMemcpy(host, m->transfers[i].receive, MAX_BYTES, cudaMemcpyDeviceToHost));
        for (int64_t b = 0; b < MAX_BYTES; b++)
            RANK_CHECK(report, host[b] == (b < in ? byte_of(seed, tensor, peer, m->rank, b) : 0x77));
    }
    free(host);
}

static void free_messages(messages *m)
{
    cudaFree(m->memory);
    free(m->transfers);
}

static void exchange_random_messages(ckv_comm *comm, rank_report *report)
{
    for (uint64_t seed = ckv_test_seed(); seed < ckv_test_seed() + 5; seed++) {
        messages m;
        RANK_STEP(report, make_messages(&m, report, comm, seed));
        RANK_OK(report, ckv_comm_enqueue_all_to_all(comm, TENSORS, m.transfers, NULL));
        RANK_CUDA(report, cudaStreamSynchronize(NULL));
        RANK_OK(report, ckv_comm_async_error(comm));
        RANK_STEP(report, check_messages(&m, report, seed));
        free_messages(&m);
    }
}

static void device_messages_reach_their_rank(void **state)
{
    (void)state;
    gpu_take_own();
    gpu_run(gpu_create_nccl, GPU_DEADLINE_MS, exchange_random_messages);
}

/* Captured first thing, so that nothing is left to set up. */
static void capture_and_replay(ckv_comm *comm, rank_report *report)
{
    messages m;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    uint64_t seed = ckv_test_seed();
    RANK_STEP(report, make_messages(&m, report, comm, seed));
    RANK_CUDA(report, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RANK_CUDA(report, cudaDeviceSynchronize());
    RANK_CUDA(report, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    RANK_OK(report, ckv_comm_enqueue_all_to_all(comm, TENSORS, m.transfers, stream));
    RANK_CUDA(report, cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(report, cudaGraphInstantiate(&executable, graph, 0));
    for (int replay = 0; replay < 20; replay++)
        RANK_CUDA(report, cudaGraphLaunch(executable, stream));
    RANK_CUDA(report, cudaStreamSynchronize(stream));
    RANK_OK(report, ckv_comm_async_error(comm));
    RANK_STEP(report, check_messages(&m, report, seed));
    RANK_CUDA(report, cudaGraphExecDestroy(executable));
    RANK_CUDA(report, cudaGraphDestroy(graph));
    RANK_CUDA(report, cudaStreamDestroy(stream));
    free_messages(&m);
}

static void captured_messages_replay(void **state)
{
    (void)state;
    gpu_take_own();
    gpu_run(gpu_create_nccl, GPU_DEADLINE_MS, capture_and_replay);
}

/* Every rank writes a byte of its own into every rank's part. */
static void write_into_windows(ckv_comm *comm, rank_report *report)
{
    int rank = ckv_comm_rank(comm), ranks = ckv_comm_size(comm);
    for (size_t bytes = 4096; bytes <= (size_t)8 << 20; bytes *= 16) {
        ckv_comm_window window;
        unsigned char found[64];
        RANK_OK(report, ckv_comm_window_create(comm, bytes, &window));
        RANK_CHECK(report, window.peers[rank] == window.memory);
        for (int peer = 0; peer < ranks; peer++)
            RANK_CUDA(report, cudaMemset((char *)window.peers[peer] + bytes - 64 + rank, 100 + rank, 1));
        RANK_CUDA(report, cudaDeviceSynchronize());
        RANK_OK(report, ckv_comm_barrier(comm));
        RANK_CUDA(report, cudaMemcpy(found, (char *)window.memory + bytes - 64, 64, cudaMemcpyDeviceToHost));
        for (int peer = 0; peer < ranks; peer++)
            RANK_CHECK(report, found[peer] == 100 + peer);
        RANK_OK(report, ckv_comm_barrier(comm));
        ckv_comm_window_destroy(comm, &window);
    }
}

static void windows_reach_every_rank(void **state)
{
    (void)state;
    gpu_take_own();
    gpu_run(gpu_create_nccl, GPU_DEADLINE_MS, write_into_windows);
}

/* --- Faults --- */

/* The last rank does not take part in an exchange: it ends on the others, every rank learns why, and nothing works
 * afterwards. */
static void leave_one_out(ckv_comm *comm, rank_report *report, int gives_up)
{
    messages m;
    cudaStream_t stream;
    ckv_status expected = gives_up ? CKV_ERROR_MEMORY : CKV_ERROR_TIMEOUT;
    int stays_away = ckv_comm_rank(comm) == ckv_comm_size(comm) - 1;
    RANK_STEP(report, make_messages(&m, report, comm, ckv_test_seed()));
    RANK_CUDA(report, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < TENSORS * m.ranks; i++)
        m.transfers[i].send_bytes = m.transfers[i].receive_bytes = 1000;
    if (!stays_away)
        RANK_OK(report, ckv_comm_enqueue_all_to_all(comm, TENSORS, m.transfers, stream));
    if (gives_up)
        RANK_OK(report, ckv_comm_barrier(comm)); /* the others are in it */
    if (gives_up && stays_away)
        RANK_STATUS(report, ckv_comm_break(comm, ckv_fail(expected, "no room for 7 tokens")), expected);
    for (int waited = 0; waited < PATIENCE_MS && ckv_comm_async_error(comm) == CKV_OK; waited += 10)
        usleep(10000);
    RANK_STATUS(report, ckv_comm_async_error(comm), expected);
    RANK_DETAIL(report, gives_up ? "no room for 7 tokens" : "took more than 6000 ms");
    RANK_CUDA(report, cudaStreamSynchronize(stream));
    RANK_STATUS(report, ckv_comm_enqueue_all_to_all(comm, TENSORS, m.transfers, stream), expected);
    RANK_CUDA(report, cudaStreamDestroy(stream));
    free_messages(&m);
}

static void stay_away(ckv_comm *comm, rank_report *report)
{
    leave_one_out(comm, report, 0);
}

static void give_up(ckv_comm *comm, rank_report *report)
{
    leave_one_out(comm, report, 1);
}

static void a_rank_that_stays_away_is_named(void **state)
{
    (void)state;
    gpu_take_own();
    if (ckv_test_ranks() == 1)
        ckv_test_skip("one rank waits for nobody");
    gpu_run(gpu_create_nccl, SHORT_MS, stay_away);
    gpu_run(gpu_create_nccl, GPU_DEADLINE_MS, exchange_random_messages); /* the GPUs still work */
}

/* Long before any deadline. */
static void a_rank_that_gives_up_is_not_waited_for(void **state)
{
    (void)state;
    gpu_take_own();
    if (ckv_test_ranks() == 1)
        ckv_test_skip("one rank waits for nobody");
    gpu_run(gpu_create_nccl, 10 * PATIENCE_MS, give_up);
}

/* All ranks on the machine's first GPU. */
static void ranks_on_one_gpu_are_refused(void **state)
{
    (void)state;
    ckv_comm *host = NULL, *comm = NULL;
    if (ckv_test_ranks() == 1)
        ckv_test_skip("one rank shares a GPU with nobody");
    gpu_share_one();
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), GPU_DEADLINE_MS, &host));
    assert_status(ckv_comm_create_nccl(host, NULL, &comm), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "ranks 0 and 1 both use the GPU that is CUDA device 0"));
    ckv_comm_destroy(&host);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    ckv_comm *host = NULL, *comm = NULL;
    ckv_nccl_config config = {0};
    gpu_take_own();
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), GPU_DEADLINE_MS, &host));
    assert_status(ckv_comm_create_nccl(NULL, NULL, &comm), CKV_ERROR_INVALID);
    assert_status(ckv_comm_create_nccl(host, NULL, NULL), CKV_ERROR_INVALID);
    assert_status(ckv_comm_create_nccl(host, &config, &comm), CKV_ERROR_INVALID);
    config = ckv_nccl_config_default();
    config.timeout_ms = -1;
    assert_status(ckv_comm_create_nccl(host, &config, &comm), CKV_ERROR_INVALID);
    assert_null(comm);
    ckv_comm_destroy(&host);
}

#define ROW(name) CKV_CASE(name),
static const ckv_test_case cases[] = {
    COMM_CONFORMANCE(ROW) /* written once */
    CKV_CASE(device_messages_reach_their_rank),
    CKV_CASE(captured_messages_replay),
    CKV_CASE(windows_reach_every_rank),
    CKV_CASE(a_rank_that_stays_away_is_named),
    CKV_CASE(a_rank_that_gives_up_is_not_waited_for),
    CKV_CASE(ranks_on_one_gpu_are_refused),
    CKV_CASE(bad_arguments_are_refused),
};

CKV_MPI_TEST_MAIN("comm_nccl", cases)
