/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/ceilings.h"

#include "lib/device/device.h"
#include "lib/support/error.h"
#include "tools/bench/cudnn_matmul.h"
#include "ulysses/comm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#if CKV_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MATRIX = 8192, FILL_WORDS = 1 << 18, GPU_COPY_BYTES = 1 << 30, HOST_COPY_BYTES = 256 << 20 };
enum { FMA_ROUNDS = 1 << 21, FMA_CHAINS = 10, FMA_LANES = 8 };

typedef struct copy {
    const ckv_device *device;
    void *from, *to;
    size_t bytes;
} copy;

#if CKV_HAVE_CUDA
static ckv_status copy_on_gpu(const copy *c, ckv_stream stream)
{
    cudaError_t error = cudaMemcpyAsync(c->to, c->from, c->bytes, cudaMemcpyDeviceToDevice, stream);
    return error == cudaSuccess ? CKV_OK : ckv_fail(CKV_ERROR_DEVICE, "cudaMemcpyAsync: %s", cudaGetErrorString(error));
}
#else
static ckv_status copy_on_gpu(const copy *c, ckv_stream stream)
{
    (void)c, (void)stream;
    return ckv_fail(CKV_ERROR_UNSUPPORTED, "this build has no CUDA");
}
#endif

static ckv_status run_copy(void *argument, ckv_stream stream)
{
    const copy *c = argument;
    if (!c->device->host_addressable)
        return copy_on_gpu(c, stream);
    memcpy(c->to, c->from, c->bytes);
    return CKV_OK;
}

static ckv_status measure_row(bench_timer *timer, const char *variant, const char *params, double bytes, double flops,
                              bench_work work, void *argument, bench_results *results, double *per_us_out)
{
    bench_time time;
    bench_row row = bench_row_default();
    CKV_TRY(bench_timer_measure(timer, work, argument, &time));
    row.group = "ceiling";
    row.variant = variant;
    row.params = params;
    row.bytes = bytes;
    row.flops = flops;
    bench_time_to_row(&time, &row);
    bench_results_add(results, &row);
    *per_us_out = (flops > 0 ? flops : bytes) / time.min_us;
    return CKV_OK;
}

/* Random bf16 of magnitude around 1: what the cores switch for has a price in power. */
static ckv_status fill_random(const ckv_device *device, char *memory, size_t bytes)
{
    static uint64_t words[FILL_WORDS];
    uint64_t state = 1;
    for (size_t i = 0; i < FILL_WORDS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        words[i] = (state >> 3 & 0x80ff80ff80ff80ffu) | 0x3f003f003f003f00u;
    }
    for (size_t at = 0; at < bytes; at += sizeof words)
        CKV_TRY(device->upload(memory + at, words, bytes - at < sizeof words ? bytes - at : sizeof words, NULL));
    return device->wait(NULL);
}

static ckv_status measure_copy(const bench_options *o, bench_timer *timer, bench_results *results, double *per_us_out)
{
    char params[64];
    copy c = {.device = o->device, .bytes = o->on_gpu ? GPU_COPY_BYTES : HOST_COPY_BYTES};
    ckv_status status = c.device->alloc(c.bytes, &c.from);
    if (status == CKV_OK)
        status = c.device->alloc(c.bytes, &c.to);
    if (status == CKV_OK)
        status = fill_random(c.device, c.from, c.bytes);
    status = ckv_comm_agree(o->host, status);
    snprintf(params, sizeof params, "%zu MiB, read and written", c.bytes >> 20);
    if (status == CKV_OK)
        status = measure_row(timer, o->on_gpu ? "copy within the device" : "memcpy, one thread", params,
                             2.0 * (double)c.bytes, 0, run_copy, &c, results, per_us_out);
    c.device->free(c.to);
    c.device->free(c.from);
    return status;
}

/* --- Operations --- */

static ckv_status measure_matmul(const bench_options *o, bench_timer *timer, bench_results *results, double *per_us_out)
{
    const size_t bytes = (size_t)MATRIX * MATRIX * 2;
    const double n = MATRIX;
    void *memory;
    char params[64];
    cudnn_matmul *matmul = NULL;
    CKV_TRY(o->device->alloc(3 * bytes, &memory));
    char *a = memory;
    ckv_status status = fill_random(o->device, a, 2 * bytes);
    if (status == CKV_OK)
        status = cudnn_matmul_create(MATRIX, a, a + bytes, a + 2 * bytes, bench_timer_stream(timer), &matmul);
    status = ckv_comm_agree(o->host, status);
    snprintf(params, sizeof params, "bf16, %d cubed", (int)MATRIX);
    if (status == CKV_OK)
        status = measure_row(timer, "matrix product by cuDNN", params, 0, 2 * n * n * n, cudnn_matmul_run, matmul,
                             results, per_us_out);
    cudnn_matmul_destroy(&matmul);
    o->device->free(memory);
    if (status != CKV_ERROR_UNSUPPORTED)
        return status;
    bench_results_fact(results, "matrix product", "not measured: %s", ckv_last_error());
    return CKV_OK;
}

#if defined(__x86_64__)
/* Independent chains, more of them than a multiply-add takes cycles on two ports. */
__attribute__((target("avx2,fma"))) static float multiply_add(void)
{
    __m256 sums[FMA_CHAINS], factor = _mm256_set1_ps(0.999f), addend = _mm256_set1_ps(0.001f);
    for (int i = 0; i < FMA_CHAINS; i++)
        sums[i] = _mm256_set1_ps((float)i);
    for (int round = 0; round < FMA_ROUNDS; round++)
#pragma GCC unroll 10
        for (int i = 0; i < FMA_CHAINS; i++)
            sums[i] = _mm256_fmadd_ps(sums[i], factor, addend);
    float lanes[FMA_LANES], sum = 0;
    for (int i = 0; i < FMA_CHAINS; i++) {
        _mm256_storeu_ps(lanes, sums[i]);
        sum += lanes[i % FMA_LANES];
    }
    return sum;
}

static ckv_status run_multiply_add(void *argument, ckv_stream stream)
{
    (void)stream;
    *(volatile float *)argument = multiply_add(); /* or it would be left out */
    return CKV_OK;
}

static ckv_status measure_multiply_add(bench_timer *timer, bench_results *results, double *per_us_out)
{
    float sum;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        bench_results_fact(results, "multiply-adds", "not measured: this processor has no AVX2");
        return CKV_OK;
    }
    return measure_row(timer, "AVX2 multiply-adds, one thread", "fp32, in registers", 0,
                       2.0 * FMA_ROUNDS * FMA_CHAINS * FMA_LANES, run_multiply_add, &sum, results, per_us_out);
}
#else
static ckv_status measure_multiply_add(bench_timer *timer, bench_results *results, double *per_us_out)
{
    (void)timer, (void)per_us_out;
    bench_results_fact(results, "multiply-adds", "not measured: written for AVX2");
    return CKV_OK;
}
#endif

/* --- From rank to rank --- */

static ckv_status measure_window(const bench_options *o, bench_timer *timer, ckv_comm_window *window, size_t bytes,
                                 bench_results *results, double *per_us_out)
{
    char params[64];
    int ranks = ckv_comm_size(o->comm), next = (ckv_comm_rank(o->comm) + 1) % ranks;
    copy c = {.device = o->device, .to = window->peers[next], .bytes = bytes};
    ckv_status status = c.device->alloc(bytes, &c.from);
    if (status == CKV_OK)
        status = fill_random(c.device, c.from, bytes);
    status = ckv_comm_agree(o->host, status);
    snprintf(params, sizeof params, "%zu MiB, every rank to the next", bytes >> 20);
    if (status == CKV_OK)
        status = measure_row(timer, "copy into another rank's memory", params, (double)bytes, 0, run_copy, &c, results,
                             per_us_out);
    if (status == CKV_OK)
        status = ckv_comm_barrier(o->host); /* the others have done with this rank's memory */
    c.device->free(c.from);
    return status;
}

static ckv_status measure_off_rank(const bench_options *o, bench_timer *timer, bench_results *results,
                                   double *per_us_out)
{
    const size_t bytes = (size_t)(o->on_gpu ? GPU_COPY_BYTES : HOST_COPY_BYTES) / 4;
    ckv_comm_window window = {0};
    if (ckv_comm_size(o->comm) == 1)
        return CKV_OK;
    ckv_status status = ckv_comm_window_create(o->comm, bytes, &window);
    if (status == CKV_ERROR_UNSUPPORTED) {
        bench_results_fact(results, "copy into another rank's memory", "not measured: %s", ckv_last_error());
        return CKV_OK;
    }
    if (status == CKV_OK)
        status = measure_window(o, timer, &window, bytes, results, per_us_out);
    ckv_comm_window_destroy(o->comm, &window);
    return status;
}

ckv_status bench_ceilings_measure(const bench_options *options, bench_timer *timer, bench_results *results,
                                  bench_ceilings *ceilings_out)
{
    bench_ceilings *c = ceilings_out;
    *c = (bench_ceilings){0};
    CKV_TRY(measure_copy(options, timer, results, &c->copy_bytes_per_us));
    CKV_TRY(options->on_gpu ? measure_matmul(options, timer, results, &c->operations_per_us)
                            : measure_multiply_add(timer, results, &c->operations_per_us));
    return measure_off_rank(options, timer, results, &c->off_rank_bytes_per_us);
}
