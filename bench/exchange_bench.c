/* SPDX-License-Identifier: Apache-2.0 */
/* The Ulysses exchange of one layer's q, k, v and of its output, between GPUs: 32 query and 8 K/V heads of 128, bf16.
 *
 *     mpirun -np 2 ckv_exchange_bench [TOKENS...]      over all ranks; 2 64 394 1576 6304 37824 unless given
 *
 * Paths, in the same run, each checked before it is timed:
 *   fused     one kernel a way
 *   sendrecv  pack kernel and grouped send and receive; grouped send and receive and unpack kernel
 *   raw       NCCL's grouped send and receive of as many bytes between all ranks, contiguous, nothing packed
 * Times are of one exchange in a graph of GRAPH of them, median of REPEATS launches, the slowest rank's. GB/s counts
 * the bytes that leave a rank. One line a measurement, `exchange key=value ...`. */
#include "bench/bench.h"
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "lib/cache/cache.h"
#include "ulysses/exchange.h"

#include <ckv/mpi.h>
#include <ckv/nccl.h>
#include <inttypes.h>
#include <mpi.h>
#include <string.h>

enum { Q_HEADS = 32, KV_HEADS = 8, HEAD_DIM = 128, ROW_BYTES = 2 * HEAD_DIM, PAGE = 32, GRAPH = 20, REPEATS = 20 };
enum { DEADLINE_MS = 30000 };

/* One path at one size. */
typedef struct bench {
    ckv_comm *comm;
    int rank, ranks;
    ckv_exchange *exchange;
    ckv_exchange_plan plan;
    ckv_ulysses_heads heads;
    int64_t rows;    /* of a shard */
    char *qkv, *out; /* [rows, 48 or 32 heads, 128] */
    ckv_cache *cache;
    int64_t scatter; /* 1: K/V go on into pages */
    ckv_comm_transfer *raw;
    cudaStream_t stream;
} bench;

static void there(void *argument)
{
    bench *b = argument;
    int64_t token = (Q_HEADS + 2 * KV_HEADS) * ROW_BYTES;
    const ckv_shard_tensor tensors[] = {
        {CKV_PLACE_Q, b->qkv, token, ROW_BYTES},
        {CKV_PLACE_K, b->qkv + Q_HEADS * ROW_BYTES, token, ROW_BYTES},
        {CKV_PLACE_V, b->qkv + (Q_HEADS + KV_HEADS) * ROW_BYTES, token, ROW_BYTES},
    };
    const ckv_exchange_path *path = b->exchange->path;
    ckv_scatter_kv_slots_params pages = {0};
    int64_t tokens = b->ranks * b->rows;
    const ckv_staged_heads staged = {.kv_heads = b->heads.rank_kv_heads, .tokens = tokens, .causal_block_size = tokens};
    if (b->scatter)
        CKV(ckv_cache_plan_staged(b->cache, &staged, &pages));
    CKV(path->there(b->exchange, &b->plan, 0, tensors, &pages, b->stream));
    if (b->scatter && !path->fills_pages) {
        ckv_kv kv =
            ckv_kv_dense(ckv_exchange_slice(b->exchange, &b->plan, CKV_PLACE_K, 0),
                         ckv_exchange_slice(b->exchange, &b->plan, CKV_PLACE_V, 0), b->heads.rank_kv_heads, HEAD_DIM);
        CKV(ckv_cache_write_staged(b->cache, 0, tokens, tokens, &kv, 1, b->stream));
    }
}

static void back(void *argument)
{
    bench *b = argument;
    const ckv_shard_tensor tensors[] = {{CKV_PLACE_OUT, b->out, Q_HEADS * ROW_BYTES, ROW_BYTES}};
    CKV(b->exchange->path->back(b->exchange, &b->plan, 0, tensors, 1, b->stream));
}

static void raw(void *argument)
{
    bench *b = argument;
    CKV(ckv_comm_enqueue_all_to_all(b->comm, 1, b->raw, b->stream));
}

static double slowest(double us)
{
    double all;
    MPI_Allreduce(&us, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

/* Per exchange, in microseconds. */
static double measure(bench *b, void (*work)(void *))
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaEvent_t begin, end;
    double us[REPEATS];
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    work(b);
    CUDA(cudaStreamSynchronize(b->stream));
    CUDA(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < GRAPH; i++)
        work(b);
    CUDA(cudaStreamEndCapture(b->stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = -3; i < REPEATS; i++) {
        float ms;
        CKV(ckv_comm_barrier(b->comm));
        CUDA(cudaEventRecord(begin, b->stream));
        CUDA(cudaGraphLaunch(executable, b->stream));
        CUDA(cudaEventRecord(end, b->stream));
        CUDA(cudaStreamSynchronize(b->stream));
        CUDA(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 0)
            us[i] = slowest((double)ms * 1e3 / GRAPH);
    }
    CKV(ckv_comm_async_error(b->comm));
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    return bench_median(us, REPEATS);
}

static void report(const bench *b, const char *path, const char *way, int64_t heads, double us)
{
    int64_t bytes = b->rows * heads * ROW_BYTES * (b->ranks - 1) / b->ranks;
    if (b->rank == 0)
        printf("exchange tokens=%" PRId64 " ranks=%d path=%s way=%s us=%.2f off_rank_bytes=%" PRId64 " GB/s=%.0f\n",
               b->ranks * b->rows, b->ranks, path, way, us, bytes, (double)bytes / us * 1e-3);
    fflush(stdout);
}

/* Q goes there, is called the output, and comes back: it must be the q that left. */
static void check(bench *b)
{
    size_t bytes = (size_t)(b->rows * Q_HEADS * ROW_BYTES), pitch = (Q_HEADS + 2 * KV_HEADS) * ROW_BYTES;
    char *sent = malloc(bytes), *received = malloc(bytes);
    there(b);
    CUDA(cudaMemcpyAsync(ckv_exchange_slice(b->exchange, &b->plan, CKV_PLACE_OUT, 0),
                         ckv_exchange_slice(b->exchange, &b->plan, CKV_PLACE_Q, 0), bytes, cudaMemcpyDeviceToDevice,
                         b->stream));
    back(b);
    CUDA(cudaMemcpy2DAsync(sent, Q_HEADS * ROW_BYTES, b->qkv, pitch, Q_HEADS * ROW_BYTES, (size_t)b->rows,
                           cudaMemcpyDeviceToHost, b->stream));
    CUDA(cudaMemcpyAsync(received, b->out, bytes, cudaMemcpyDeviceToHost, b->stream));
    CUDA(cudaStreamSynchronize(b->stream));
    CKV(ckv_comm_async_error(b->comm));
    if (memcmp(sent, received, bytes) != 0)
        bench_fail(b->exchange->path->name, "what came back is not what went there");
    free(received);
    free(sent);
}

static void open_cache(bench *b)
{
    int64_t tokens = b->ranks * b->rows;
    ckv_pool_config pool = ckv_pool_config_default();
    ckv_rollout_config rollout = ckv_rollout_config_default();
    ckv_rollout_size size;
    CKV(ckv_device_find("cuda", &pool.device));
    rollout.max_staged_tokens = tokens;
    rollout.causal_block_sizes = &tokens;
    rollout.num_causal_block_sizes = 1;
    CKV(ckv_rollout_config_size(&rollout, PAGE, &size));
    pool.layers = 1;
    pool.kv_heads = b->heads.rank_kv_heads;
    pool.head_dim = HEAD_DIM;
    pool.dtype = CKV_BF16;
    pool.tokens_per_page = PAGE;
    pool.pool_tokens = size.pool_tokens;
    CKV(ckv_cache_create(&pool, &b->cache));
    CKV(ckv_cache_open(b->cache, &rollout, b->stream));
}

static void run_path(bench *b, const char *path)
{
    const ckv_device *device;
    CKV(ckv_device_find("cuda", &device));
    CKV(ckv_exchange_create(b->comm, device, &b->heads, ROW_BYTES, 1, path, &b->exchange));
    ckv_ulysses_shards shards = ckv_ulysses_split(CKV_SHARDS_PADDED, b->rows * b->ranks, b->ranks);
    CKV(ckv_exchange_make_plan(b->exchange, &shards, 0, &b->plan));
    CKV(ckv_exchange_reserve(b->exchange, &b->plan, b->stream));
    check(b);
    b->scatter = 0;
    report(b, path, "there", Q_HEADS + 2 * KV_HEADS, measure(b, there));
    b->scatter = 1;
    report(b, path, "there_into_pages", Q_HEADS + 2 * KV_HEADS, measure(b, there));
    report(b, path, "back", Q_HEADS, measure(b, back));
    CKV(ckv_comm_barrier(b->comm));
    ckv_exchange_destroy(&b->exchange);
}

static void run_raw(bench *b, const char *way, int64_t heads)
{
    int64_t bytes = b->rows * heads * ROW_BYTES / b->ranks;
    for (int peer = 0; peer < b->ranks; peer++) {
        ckv_comm_transfer transfer = {b->qkv + peer * bytes, bytes, b->out + peer * bytes, bytes};
        b->raw[peer] = transfer;
    }
    report(b, "raw", way, heads, measure(b, raw));
}

static void run_size(bench *b, int64_t tokens, uint64_t *random)
{
    b->rows = ckv_ulysses_rows_per_rank(tokens, b->ranks);
    size_t elements = (size_t)b->rows * (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM;
    uint16_t *values = bench_random_bf16(elements, random);
    void *qkv, *out;
    CUDA(cudaMalloc(&qkv, 2 * elements));
    CUDA(cudaMalloc(&out, 2 * elements));
    CUDA(cudaMemcpy(qkv, values, 2 * elements, cudaMemcpyHostToDevice));
    free(values);
    b->qkv = qkv;
    b->out = out;
    open_cache(b);
    run_path(b, "fused");
    run_path(b, "sendrecv");
    run_raw(b, "there", Q_HEADS + 2 * KV_HEADS);
    run_raw(b, "back", Q_HEADS);
    ckv_cache_destroy(&b->cache);
    CUDA(cudaFree(out));
    CUDA(cudaFree(qkv));
}

int main(int argc, char **argv)
{
    static const int64_t usual[] = {2, 64, 394, 1576, 6304, 37824};
    MPI_Init(&argc, &argv);
    MPI_Comm world = MPI_COMM_WORLD;
    ckv_comm *host = NULL;
    bench b = {0};
    ckv_nccl_config config = ckv_nccl_config_default();
    config.timeout_ms = DEADLINE_MS;
    CKV(ckv_comm_create_mpi(&world, DEADLINE_MS, &host));
    CUDA(cudaSetDevice(ckv_comm_rank(host)));
    CKV(ckv_comm_create_nccl(host, &config, &b.comm));
    b.rank = ckv_comm_rank(host);
    b.ranks = ckv_comm_size(host);
    b.raw = calloc((size_t)b.ranks, sizeof *b.raw);
    CKV(ckv_ulysses_plan_heads(Q_HEADS, KV_HEADS, HEAD_DIM, b.ranks, &b.heads));
    CUDA(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    uint64_t random = 7 + (uint64_t)b.rank;
    for (int i = 1; i < argc; i++)
        run_size(&b, strtoll(argv[i], NULL, 10), &random);
    for (size_t i = 0; argc == 1 && i < sizeof usual / sizeof *usual; i++)
        run_size(&b, usual[i], &random);
    CUDA(cudaStreamDestroy(b.stream));
    free(b.raw);
    ckv_comm_destroy(&b.comm);
    ckv_comm_destroy(&host);
    MPI_Finalize();
    return 0;
}
