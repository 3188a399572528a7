/* SPDX-License-Identifier: Apache-2.0 */
/* K/V writes and commits at one geometry on a GPU: 36 layers, 8 K/V heads of 128, bf16, pages of 32, pin 512, window
 * 96 * 394, chunks of 1576 in blocks of 1576 or 394. One measurement a line, `name key=value ...`; times are medians
 * unless their name says otherwise. Lines that begin with `summary` compare a quantity with its target.
 *
 *     ckv_commit_bench [COMMITS]     commits measured after the window is full, 32 unless given */
#include "lib/cache/cache.h"
#include "lib/device/device.h"
#include "lib/layout/row_plan.h"

#include <ckv/ckv.h>
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 36, KV_HEADS = 8, HEAD_DIM = 128, PAGE = 32, PIN = 512, FRAME = 394, CHUNK = 4 * FRAME };
enum { WINDOW = 96 * FRAME, REPEATS = 30, MAX_COMMITS = 1024, FLUSH_BYTES = 512 << 20 };
static const int64_t SIZES[] = {CHUNK, FRAME};
static const double COPY_BYTES_PER_US = 4.3e6; /* read and written, measured with a large copy */
static const double COMMIT_HOST_US = 10;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "ckv_commit_bench: %s: %s\n", what, why);
    exit(1);
}

static void cuda(cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        fail(call, cudaGetErrorString(error));
}
#define CUDA(call) cuda(call, #call)

static void ckv(ckv_status status, const char *call)
{
    if (status != CKV_OK)
        fail(call, ckv_last_error());
}
#define CKV(call) ckv(call, #call)

static void summary(const char *quantity, double value, double target)
{
    printf("summary %s=%.2f target=%.2f met=%s\n", quantity, value, target, value <= target ? "yes" : "no");
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

static double host_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

typedef struct bench {
    ckv_cache *cache;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *flush;
    void *kv; /* [LAYERS][K, V][CHUNK][KV_HEADS][HEAD_DIM] random bf16 */
} bench;

static ckv_kv layer_kv(const bench *b, int64_t layer)
{
    int64_t plane_bytes = (int64_t)CHUNK * KV_HEADS * HEAD_DIM * 2;
    char *k = (char *)b->kv + layer * 2 * plane_bytes;
    return ckv_kv_dense(k, k + plane_bytes, KV_HEADS, HEAD_DIM);
}

static void open_bench(bench *b)
{
    ckv_rollout_config rollout = ckv_rollout_config_default();
    rollout.pin_tokens = PIN;
    rollout.window_tokens = WINDOW;
    rollout.max_staged_tokens = CHUNK;
    rollout.causal_block_sizes = SIZES;
    rollout.num_causal_block_sizes = 2;
    ckv_rollout_size size;
    CKV(ckv_rollout_config_size(&rollout, PAGE, &size));
    ckv_pool_config pool = ckv_pool_config_default();
    CKV(ckv_device_find("cuda", &pool.device));
    pool.layers = LAYERS;
    pool.kv_heads = KV_HEADS;
    pool.head_dim = HEAD_DIM;
    pool.dtype = CKV_BF16;
    pool.tokens_per_page = PAGE;
    pool.pool_tokens = size.pool_tokens;
    CKV(ckv_cache_create(&pool, &b->cache));
    CUDA(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&b->begin));
    CUDA(cudaEventCreate(&b->end));
    CUDA(cudaMalloc(&b->flush, FLUSH_BYTES));
    CKV(ckv_cache_open(b->cache, &rollout, b->stream));
    printf("geometry pool_bytes=%" PRId64 " state_bytes=%" PRId64 "\n", ckv_pool_bytes(ckv_cache_pool(b->cache)),
           ckv_cache_device_bytes(b->cache));
}

static void make_random(bench *b)
{
    size_t count = (size_t)LAYERS * 2 * CHUNK * KV_HEADS * HEAD_DIM;
    uint16_t *host = malloc(count * sizeof *host);
    if (host == NULL)
        fail("random data", "out of memory");
    uint64_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        host[i] = (uint16_t)((state >> 40 & 0x80ff) | 0x3f00); /* sign and mantissa vary, magnitude around 1 */
    }
    CUDA(cudaMalloc(&b->kv, count * sizeof *host));
    CUDA(cudaMemcpy(b->kv, host, count * sizeof *host, cudaMemcpyHostToDevice));
    free(host);
}

/* What one write moves: K and V of the chunk read once and written to home and own slots. */
static void report_write(const char *name, double us, int slots_per_token)
{
    double bytes = (1 + slots_per_token) * 2.0 * CHUNK * KV_HEADS * HEAD_DIM * 2;
    double bound = bytes / COPY_BYTES_PER_US;
    printf("%s us=%.2f bytes=%.0f bytes_over_copy_us=%.2f\n", name, us, bytes, bound);
    summary(name, us, 1.3 * bound > 5 ? 1.3 * bound : 5);
}

static double elapsed_us(bench *b)
{
    float ms;
    CUDA(cudaEventSynchronize(b->end));
    CUDA(cudaEventElapsedTime(&ms, b->begin, b->end));
    return ms * 1e3;
}

/* The chunk of every layer in one graph: 36 different places, far more than the L2 holds, so nothing is reread. */
static double write_graph_us(bench *b, int64_t block, int own_tokens)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        ckv_kv kv = layer_kv(b, layer);
        CKV(ckv_cache_write_staged(b->cache, layer, CHUNK, block, &kv, own_tokens, b->stream));
    }
    CUDA(cudaStreamEndCapture(b->stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    double times[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        CUDA(cudaEventRecord(b->begin, b->stream));
        CUDA(cudaGraphLaunch(exec, b->stream));
        CUDA(cudaEventRecord(b->end, b->stream));
        times[i] = elapsed_us(b) / LAYERS;
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    return median(times, REPEATS);
}

/* One launch between two events, after a flush. Both include the events' own time, which `events` shows. */
static void measure_writes(bench *b)
{
    double times[REPEATS], empty[REPEATS], host[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        ckv_kv kv = layer_kv(b, i % LAYERS);
        CUDA(cudaMemsetAsync(b->flush, i, FLUSH_BYTES, b->stream));
        CUDA(cudaEventRecord(b->begin, b->stream));
        CUDA(cudaEventRecord(b->end, b->stream));
        empty[i] = elapsed_us(b);
        CUDA(cudaMemsetAsync(b->flush, i, FLUSH_BYTES, b->stream));
        CUDA(cudaEventRecord(b->begin, b->stream));
        double started = host_us();
        CKV(ckv_cache_write_staged(b->cache, i % LAYERS, CHUNK, CHUNK, &kv, 1, b->stream));
        host[i] = host_us() - started;
        CUDA(cudaEventRecord(b->end, b->stream));
        times[i] = elapsed_us(b);
    }
    printf("events us=%.2f\n", median(empty, REPEATS));
    printf("write_home_own_between_events us=%.2f\n", median(times, REPEATS));
    report_write("write_home_own_in_graph_of_36", write_graph_us(b, CHUNK, 1), 2);
    report_write("write_home_in_graph_of_36", write_graph_us(b, CHUNK, 0), 1);
    printf("write_4_blocks_in_graph_of_36 us=%.2f\n", write_graph_us(b, FRAME, 1));
    printf("write_host us=%.2f\n", median(host, REPEATS));
}

static void write_chunk(bench *b)
{
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        ckv_kv kv = layer_kv(b, layer);
        CKV(ckv_cache_write_staged(b->cache, layer, CHUNK, FRAME, &kv, 1, b->stream));
    }
}

/* Slots that a commit copies which leaves the cache as it is now: committed tokens on pages that blocks see in part,
 * and the refill of the fixed region's tail, which every commit makes that drops a page. */
static int64_t copied_slots(const bench *b)
{
    ckv_cache_state state = ckv_cache_get_state(b->cache);
    int64_t slots = state.fixed_tokens % PAGE;
    for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++) {
        for (int64_t start = 0; start + SIZES[s] <= CHUNK; start += SIZES[s]) {
            ckv_row_plan plan =
                ckv_row_plan_make(PAGE, state.fixed_tokens, WINDOW, state.staging_offset + start, SIZES[s]);
            for (int64_t i = 0; i < plan.partial_tokens; i++)
                slots += ckv_row_plan_partial(&plan, i) < state.staging_offset;
        }
    }
    return slots;
}

typedef struct commits {
    double us[MAX_COMMITS], host[MAX_COMMITS], over[MAX_COMMITS]; /* over: of the limit */
    int64_t offset[MAX_COMMITS];                                  /* of the staged tokens in their page */
    int count;
} commits;

static void record_commit(bench *b, const char *name, commits *all, double events_us, double us, double host)
{
    int64_t slots = copied_slots(b);
    double bytes = 2.0 * (double)slots * LAYERS * 2 * KV_HEADS * HEAD_DIM * 2;
    double limit = 1.4 * bytes / COPY_BYTES_PER_US + 5;
    printf("%s offset=%" PRId64 " slots=%" PRId64 " bytes=%.0f us=%.2f without_events_us=%.2f limit_us=%.2f "
           "host_us=%.2f\n",
           name, ckv_cache_get_state(b->cache).staging_offset % PAGE, slots, bytes, us, us - events_us, limit, host);
    all->us[all->count] = us;
    all->offset[all->count] = ckv_cache_get_state(b->cache).staging_offset % PAGE;
    all->host[all->count] = host;
    all->over[all->count++] = (us - events_us) / limit;
}

/* The median at every offset in the page, as a part of the limit there. */
static void report_offsets(const char *name, const commits *all)
{
    for (int offset = 0; offset < PAGE; offset++) {
        double over[MAX_COMMITS];
        int count = 0;
        for (int i = 0; i < all->count; i++)
            if (all->offset[i] == offset)
                over[count++] = all->over[i];
        char quantity[64];
        snprintf(quantity, sizeof quantity, "%s_offset_%d_of_limit", name, offset);
        if (count > 0)
            summary(quantity, median(over, count), 1);
    }
}

static void report_commits(const char *name, commits *all)
{
    double worst = 0;
    for (int i = 0; i < all->count; i++)
        worst = all->over[i] > worst ? all->over[i] : worst;
    double host = median(all->host, all->count);
    printf("%s_all us=%.2f host_us=%.2f of_limit=%.2f worst_of_limit=%.2f\n", name, median(all->us, all->count), host,
           median(all->over, all->count), worst);
    char quantity[64];
    snprintf(quantity, sizeof quantity, "%s_host_us", name);
    summary(quantity, host, COMMIT_HOST_US);
    report_offsets(name, all);
}

/* One commit after another, each after a flush; every one leaves another offset in the page. */
static void measure_commits(bench *b, int count)
{
    static commits eager, replayed;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    double empty[REPEATS];
    CUDA(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    CKV(ckv_cache_commit(b->cache, CHUNK, b->stream));
    CUDA(cudaStreamEndCapture(b->stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < REPEATS; i++) {
        CUDA(cudaMemsetAsync(b->flush, i, FLUSH_BYTES, b->stream));
        CUDA(cudaEventRecord(b->begin, b->stream));
        CUDA(cudaEventRecord(b->end, b->stream));
        empty[i] = elapsed_us(b);
    }
    double events_us = median(empty, REPEATS);
    for (int i = 0; i < 2 * count; i++) {
        write_chunk(b);
        CUDA(cudaMemsetAsync(b->flush, i, FLUSH_BYTES, b->stream));
        CUDA(cudaEventRecord(b->begin, b->stream));
        double started = host_us();
        if (i % 2 == 0)
            CKV(ckv_cache_commit(b->cache, CHUNK, b->stream));
        else
            CUDA(cudaGraphLaunch(exec, b->stream));
        double host = host_us() - started;
        CUDA(cudaEventRecord(b->end, b->stream));
        if (i % 2 == 1)
            CKV(ckv_cache_follow_commit(b->cache, CHUNK));
        record_commit(b, i % 2 ? "commit_replayed" : "commit_eager", i % 2 ? &replayed : &eager, events_us,
                      elapsed_us(b), host);
    }
    report_commits("commit_eager", &eager);
    report_commits("commit_replayed", &replayed);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 32;
    if (argc > 2 || count < 1 || count > MAX_COMMITS) {
        fprintf(stderr, "usage: ckv_commit_bench [COMMITS]   1 to %d\n", MAX_COMMITS);
        return 2;
    }
    bench b = {0};
    open_bench(&b);
    make_random(&b);
    while (ckv_cache_get_state(b.cache).history_tokens < WINDOW) {
        write_chunk(&b);
        CKV(ckv_cache_commit(b.cache, CHUNK, b.stream));
    }
    measure_writes(&b);
    measure_commits(&b, count);
    CKV(ckv_cache_check(b.cache, b.stream));
    ckv_cache_destroy(&b.cache);
    return 0;
}
