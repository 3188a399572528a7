/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over the cache at one geometry on a GPU: 1576 queries of 32 heads of 128 against 39,912 keys of 8 K/V heads
 * (pin 512, window 96 * 394, chunk 1576), bf16, pages of 32, one layer; then the clean pass in 4 blocks of 394. Checked
 * against the exact-window reference on some rows first. One measurement a line, `name key=value ...`, medians of 30
 * after an L2 flush.
 *
 *     ckv_attention_bench            no options */
#include "bench/bench.h"
#include "bench/cudnn_contiguous.h"
#include "lib/attention/cudnn_plan.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { Q_HEADS = 32, KV_HEADS = 8, DIM = 128, PAGE = 32, PIN = 512, FRAME = 394, CHUNK = 4 * FRAME };
enum { WINDOW = 96 * FRAME, HISTORY_CHUNKS = WINDOW / CHUNK, NUM_ROWS = 8 };
static const int64_t SIZES[] = {CHUNK, FRAME};
static const double LARGEST_ERROR = 5e-4; /* bf16 K, V in [-1, 1), and outputs near 0 */

typedef struct bench {
    bench_clock clock;
    ckv_cache *cache;
    ckv_reference *reference;
    cudnnHandle_t handle; /* of the bare library's runs */
    uint16_t *host_qkv;
    void *qkv, *out; /* packed [CHUNK][Q_HEADS + 2 * KV_HEADS][DIM]; [CHUNK][Q_HEADS][DIM] */
} bench;

static void check_cudnn(cudnnStatus_t status, const char *call)
{
    bench_ckv(ckv_cudnn_status(status, call), call);
}
#define CUDNN(call) check_cudnn(call, #call)

static void *upload(const void *host, size_t bytes)
{
    void *memory;
    CUDA(cudaMalloc(&memory, bytes));
    CUDA(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice));
    return memory;
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
    pool.layers = 1;
    pool.kv_heads = KV_HEADS;
    pool.head_dim = DIM;
    pool.dtype = CKV_BF16;
    pool.tokens_per_page = PAGE;
    pool.pool_tokens = size.pool_tokens;
    CKV(ckv_cache_create(&pool, &b->cache));
    CKV(ckv_cache_open(b->cache, &rollout, NULL));
    ckv_reference_config config = ckv_reference_config_default();
    config.layers = 1;
    config.q_heads = Q_HEADS;
    config.kv_heads = KV_HEADS;
    config.head_dim = DIM;
    config.dtype = CKV_BF16;
    CKV(ckv_reference_create(&config, &b->reference));
    CKV(ckv_reference_open(b->reference, PIN, WINDOW));
    bench_clock_open(&b->clock);
    CUDNN(cudnnCreate(&b->handle));
    CUDNN(cudnnSetStream(b->handle, b->clock.stream));
}

/* Random tokens become history, in the cache and in the reference. */
static void add_history(bench *b, int64_t tokens, uint64_t *state)
{
    const size_t plane = (size_t)tokens * KV_HEADS * DIM;
    const int64_t first_id = ckv_cache_get_state(b->cache).committed_tokens;
    uint16_t *host = bench_random_bf16(2 * plane, state), *device = upload(host, 2 * plane * sizeof *host);
    const ckv_kv here = ckv_kv_dense(host, host + plane, KV_HEADS, DIM);
    const ckv_kv there = ckv_kv_dense(device, device + plane, KV_HEADS, DIM);
    CKV(ckv_cache_write_range(b->cache, 0, ckv_cache_get_state(b->cache).staging_offset, tokens, &there, NULL));
    CKV(ckv_cache_commit(b->cache, tokens, NULL));
    CKV(ckv_reference_write(b->reference, 0, first_id, tokens, &here));
    CKV(ckv_reference_commit(b->reference, tokens));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(device));
    free(host);
}

static void fill(bench *b)
{
    uint64_t state = 1;
    const size_t count = (size_t)CHUNK * (Q_HEADS + 2 * KV_HEADS) * DIM;
    add_history(b, PIN, &state);
    for (int i = 0; i < HISTORY_CHUNKS; i++)
        add_history(b, CHUNK, &state);
    b->host_qkv = bench_random_bf16(count, &state);
    b->qkv = upload(b->host_qkv, count * sizeof *b->host_qkv);
    CUDA(cudaMalloc(&b->out, (size_t)CHUNK * Q_HEADS * DIM * 2));
}

/* A forward in blocks, as ckv_attention, as its staging alone, and as the plan alone. */
typedef struct forward {
    const bench *bench;
    int64_t block;
    ckv_attention_args args;
    ckv_cudnn_plan *plan;
} forward;

static void run_attention(void *argument)
{
    const forward *f = argument;
    CKV(ckv_attention(&f->args, f->bench->clock.stream));
}

static void run_staging(void *argument)
{
    const forward *f = argument;
    CKV(ckv_cache_write_staged(f->bench->cache, 0, CHUNK, f->block, &f->args.kv, 1, f->bench->clock.stream));
}

static void run_plan(void *argument)
{
    const forward *f = argument;
    CKV(ckv_cudnn_plan_run(f->plan, 0, f->bench->handle));
}

static void make_plan(forward *f)
{
    const ckv_pool_view slots = ckv_pool_get_view(ckv_cache_pool(f->bench->cache));
    ckv_block_view view;
    CKV(ckv_cache_block_view(f->bench->cache, f->block, &view));
    const ckv_cudnn_shape shape = {
        .dtype = CKV_BF16,
        .num_blocks = CHUNK / f->block,
        .block_size = f->block,
        .q_heads = Q_HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = DIM,
        .tokens_per_page = PAGE,
        .row_pages = view.row_pages,
        .pool_pages = slots.total_pages + 1,
        .q_token_stride = f->args.q_token_stride,
        .q_head_stride = f->args.q_head_stride,
        .out_token_stride = f->args.out_token_stride,
        .out_head_stride = f->args.out_head_stride,
        .page_stride = slots.page_stride / 2,
        .head_stride = slots.head_stride / 2,
        .slot_stride = slots.slot_stride / 2,
    };
    const ckv_cudnn_tensors tensors = {
        .q = f->args.q,
        .k = slots.base,
        .v = (const char *)slots.base + slots.kv_stride,
        .out = f->args.out,
        .rows = view.rows,
        .seq_len_q = view.seq_len_q,
        .seq_len_kv = view.seq_len_kv,
        .scale = 1 / sqrtf(DIM),
    };
    int device_id;
    CUDA(cudaGetDevice(&device_id));
    double started = bench_host_us();
    CKV(ckv_cudnn_plan_create(&shape, device_id, 1, &f->plan));
    printf("cudnn_plan_create block=%" PRId64 " engine=%" PRId64 " host_us=%.0f\n", f->block,
           ckv_cudnn_plan_engine(f->plan), bench_host_us() - started);
    CKV(ckv_cudnn_plan_bind(f->plan, 0, &tensors));
}

static forward make_forward(const bench *b, int64_t block, const char *backend)
{
    forward f = {.bench = b, .block = block, .args = ckv_attention_args_default()};
    f.args.cache = b->cache;
    f.args.q_heads = Q_HEADS;
    f.args.rows = f.args.seq_len = CHUNK;
    f.args.causal_block_size = block;
    f.args.out = b->out;
    f.args.out_token_stride = Q_HEADS * DIM;
    f.args.out_head_stride = DIM;
    f.args.backend = backend;
    ckv_attention_args_set_packed(&f.args, b->qkv);
    return f;
}

/* Some rows of every head, first and last included, against double precision. */
static void check_forward(const bench *b, const forward *f)
{
    static double expected[CHUNK * Q_HEADS * DIM];
    static uint16_t observed[CHUNK * Q_HEADS * DIM];
    static const int64_t rows[NUM_ROWS] = {0, 1, FRAME - 1, FRAME, 2 * FRAME + 5, 1000, 3 * FRAME, CHUNK - 1};
    ckv_attention_args here = f->args;
    ckv_attention_args_set_packed(&here, b->host_qkv);
    ckv_reference_forward exact = ckv_reference_forward_default();
    exact.seq_len = CHUNK;
    exact.causal_block_size = f->block;
    exact.q = here.q;
    exact.q_token_stride = here.q_token_stride;
    exact.q_head_stride = here.q_head_stride;
    exact.kv = here.kv;
    exact.out = expected;
    exact.rows = rows;
    exact.num_rows = NUM_ROWS;
    CKV(ckv_reference_run(b->reference, &exact));
    CUDA(cudaMemset(b->out, 0xff, sizeof observed));
    CKV(ckv_attention(&f->args, b->clock.stream));
    CUDA(cudaStreamSynchronize(b->clock.stream));
    CUDA(cudaMemcpy(observed, b->out, sizeof observed, cudaMemcpyDeviceToHost));
    double largest = 0;
    for (int i = 0; i < NUM_ROWS; i++) {
        for (int64_t j = rows[i] * Q_HEADS * DIM; j < (rows[i] + 1) * Q_HEADS * DIM; j++) {
            float value;
            ckv_convert_to_float(CKV_BF16, &observed[j], 1, &value);
            double error = fabs((double)value - expected[j]);
            largest = error <= largest ? largest : error; /* a NaN is taken, and stays */
        }
    }
    printf("error backend=%s block=%" PRId64 " largest=%.2g limit=%.2g rows=%d\n", f->args.backend, f->block, largest,
           LARGEST_ERROR, NUM_ROWS);
    if (!(largest <= LARGEST_ERROR))
        bench_fail("attention", "the result is wrong");
}

static void report(const char *name, int64_t block, bench_time eager, bench_time graph, double flops)
{
    printf("%s block=%" PRId64 " eager_us=%.1f graph_us=%.1f host_us=%.2f", name, block, eager.us, graph.us,
           eager.host_us);
    if (flops > 0)
        printf(" eager_tflops=%.0f graph_tflops=%.0f", flops / eager.us * 1e-6, flops / graph.us * 1e-6);
    printf("\n");
}

static void measure(const bench *b, const char *name, int64_t block, void (*work)(void *), void *argument, int64_t keys)
{
    bench_time eager = bench_measure(&b->clock, work, argument);
    bench_time graph = bench_measure_graph(&b->clock, work, argument);
    report(name, block, eager, graph, 4.0 * CHUNK * (double)keys * Q_HEADS * DIM);
}

/* ckv_attention by a backend, K/V write included. */
static forward measure_backend(const bench *b, int64_t block, const char *backend)
{
    char name[32];
    forward f = make_forward(b, block, backend);
    check_forward(b, &f);
    snprintf(name, sizeof name, "ckv_attention_%s", backend);
    measure(b, name, block, run_attention, &f, PIN + WINDOW + block);
    return f;
}

static void measure_forward(const bench *b, int64_t block)
{
    measure_backend(b, block, "hopper");
    forward f = measure_backend(b, block, "cudnn");
    make_plan(&f);
    measure(b, "cudnn_paged_bare", block, run_plan, &f, PIN + WINDOW + block);
    measure(b, "write_staged", block, run_staging, &f, 0);
    ckv_cudnn_plan_destroy(f.plan);
}

static void run_contiguous(void *argument)
{
    cudnn_contiguous_run(argument);
}

static void measure_contiguous(const bench *b)
{
    const int64_t keys = PIN + WINDOW + CHUNK;
    const size_t plane = (size_t)keys * KV_HEADS * DIM;
    uint64_t state = 2;
    uint16_t *host = bench_random_bf16(2 * plane, &state), *kv = upload(host, 2 * plane * sizeof *host);
    cudnn_contiguous attention;
    cudnn_contiguous_open(&attention, b->handle, CHUNK, keys, Q_HEADS, KV_HEADS, DIM, b->qkv, kv, kv + plane, b->out);
    measure(b, "cudnn_contiguous", CHUNK, run_contiguous, &attention, keys);
    CUDA(cudaFree(kv));
    free(host);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc != 1) {
        fprintf(stderr, "usage: ckv_attention_bench\n");
        return 2;
    }
    static bench b;
    open_bench(&b);
    fill(&b);
    printf("library cudnn=%zu\n", cudnnGetVersion());
    measure_forward(&b, CHUNK);
    measure_contiguous(&b);
    measure_forward(&b, FRAME);
    ckv_reference_destroy(&b.reference);
    ckv_cache_destroy(&b.cache);
    return 0;
}
