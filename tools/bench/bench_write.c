/* SPDX-License-Identifier: Apache-2.0 */
/* ckv bench write: K and V of a chunk into the cache's pages, next to a plain copy of as many bytes. */
#include "lib/support/error.h"
#include "tools/bench/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#if CKV_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

typedef struct bench {
    const bench_options *options;
    bench_results *results;
    bench_timer *timer;
    bench_workload *workload;
    char *copies; /* on the device, room for what the plain copy of every layer writes */
} bench;

/* One way to write every layer. */
typedef struct writing {
    const bench *bench;
    const char *variant;
    int64_t block;
    int own_tokens;
    int copies; /* of K and V that are written: home, own; 0: not counted */
} writing;

static ckv_status write_layers(void *argument, ckv_stream stream)
{
    const writing *m = argument;
    const bench_workload *w = m->bench->workload;
    for (int64_t layer = 0; layer < w->config.layers; layer++) {
        const ckv_kv kv = bench_workload_rank_kv(w, bench_workload_device_qkv(w, layer));
        CKV_TRY(ckv_cache_write_staged(w->cache, layer, w->chunk_tokens, m->block, &kv, m->own_tokens, stream));
    }
    return CKV_OK;
}

/* Bytes of K and V of one layer's chunk on this rank. */
static size_t layer_bytes(const bench *b)
{
    const bench_workload *w = b->workload;
    return (size_t)(w->chunk_tokens * 2 * w->rank_kv_heads * w->head_dim) * ckv_dtype_bytes(b->options->dtype);
}

static ckv_status copy_layers(void *argument, ckv_stream stream)
{
    const bench *b = ((const writing *)argument)->bench;
    const bench_workload *w = b->workload;
    const size_t bytes = layer_bytes(b);
    for (int64_t layer = 0; layer < w->config.layers; layer++) {
        char *to = b->copies + (size_t)layer * bytes;
        const void *from = bench_workload_device_qkv(w, layer);
#if CKV_HAVE_CUDA
        if (stream != NULL && cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream) != cudaSuccess)
            return ckv_fail(CKV_ERROR_DEVICE, "a copy of %zu bytes failed", bytes);
#endif
        if (stream == NULL)
            memcpy(to, from, bytes);
    }
    return CKV_OK;
}

static void add_row(const bench *b, const char *launch, const writing *m, const bench_verdict *verdict,
                    const bench_time *time)
{
    char group[96], params[96];
    const bench_workload *w = b->workload;
    const double layers = (double)w->config.layers;
    bench_row row = bench_row_default();
    snprintf(group, sizeof group, "K/V write, one of %" PRId64 " layers, %s", w->config.layers, launch);
    snprintf(params, sizeof params, "tokens %" PRId64 ", %" PRId64 " heads of %" PRId64, w->chunk_tokens,
             w->rank_kv_heads, w->head_dim);
    row.group = group;
    row.variant = m->variant;
    row.params = params;
    row.baseline = m->own_tokens >= 0 ? "plain copy" : NULL;
    if (verdict == NULL || bench_verdict_to_row(verdict, &row)) {
        row.min_us = time->min_us / layers;
        row.median_us = time->median_us / layers;
        row.max_us = time->max_us / layers;
        row.bytes = (1.0 + m->copies) * (double)layer_bytes(b) * (m->copies > 0);
    }
    bench_results_add(b->results, &row);
}

static ckv_status measure(const bench *b, writing *m, bench_work work, const bench_verdict *verdict)
{
    bench_time time = {0};
    bool ok = verdict == NULL || verdict->ok;
    if (b->options->launch != BENCH_GRAPH) {
        if (ok)
            CKV_TRY(bench_timer_measure(b->timer, work, m, &time));
        add_row(b, "eager", m, verdict, &time);
    }
    if (b->options->launch != BENCH_EAGER) {
        if (ok)
            CKV_TRY(bench_timer_measure_graph(b->timer, work, m, &time));
        add_row(b, "graph", m, verdict, &time);
    }
    return CKV_OK;
}

/* The last tokens of a block's row are its own, in order: the same bits as the source's. */
static ckv_status compare_own(const bench *b, int64_t layer, int64_t block, int64_t index, char *row, bool *same)
{
    const bench_workload *w = b->workload;
    const size_t head_bytes = (size_t)w->head_dim * ckv_dtype_bytes(b->options->dtype);
    const size_t token_bytes = (size_t)w->rank_kv_heads * head_bytes;
    const int64_t keys = bench_workload_keys(w, block);
    const ckv_kv source = bench_workload_rank_kv(w, bench_workload_host_qkv(w, layer));
    const size_t stride = (size_t)source.k_token_stride * ckv_dtype_bytes(b->options->dtype);
    char *values = row + (size_t)keys * token_bytes;
    int64_t length;
    CKV_TRY(
        ckv_cache_read_row(w->cache, layer, block, index, keys, row, values, &length, bench_timer_stream(b->timer)));
    *same = *same && length == keys;
    for (int64_t i = 0; i < block && *same; i++) {
        const size_t at = (size_t)(length - block + i) * token_bytes, from = (size_t)(index * block + i) * stride;
        *same = memcmp(row + at, (const char *)source.k + from, token_bytes) == 0 &&
                memcmp(values + at, (const char *)source.v + from, token_bytes) == 0;
    }
    return CKV_OK;
}

/* Of a first and a last layer: own slots bit for bit, and, where the reference follows, everything by an attention. */
static ckv_status check(const bench *b, writing *m, bench_verdict *verdict_out)
{
    const bench_workload *w = b->workload;
    bool same = true;
    size_t bytes = (size_t)(2 * bench_workload_keys(w, m->block) * w->rank_kv_heads * w->head_dim) *
                   ckv_dtype_bytes(b->options->dtype);
    char *row = malloc(bytes);
    ckv_status status = row == NULL ? ckv_fail(CKV_ERROR_MEMORY, "out of memory") : CKV_OK;
    if (status == CKV_OK)
        status = write_layers(m, bench_timer_stream(b->timer));
    for (int64_t i = 0; i < w->num_checked && status == CKV_OK; i++)
        for (int64_t k = 0; k < w->chunk_tokens / m->block && status == CKV_OK; k++)
            status = compare_own(b, w->checked[i], m->block, k, row, &same);
    free(row);
    CKV_TRY(status);
    CKV_TRY(bench_check_forward(w, m->block, b->options->backend, verdict_out));
    verdict_out->ok = verdict_out->ok && same;
    return CKV_OK;
}

static ckv_status measure_all(bench *b)
{
    const bench_workload *w = b->workload;
    const int64_t chunk = w->chunk_tokens, frame = b->options->geometry.frame_tokens;
    char blocks[64];
    bench_verdict verdict;
    void *memory;
    CKV_TRY(ckv_device_alloc(b->options->device, layer_bytes(b) * (size_t)w->config.layers, &memory));
    b->copies = memory;
    snprintf(blocks, sizeof blocks, "home, own and copies, %" PRId64 " blocks", chunk / frame);
    writing copy = {b, "plain copy", chunk, -1, 1}, home = {b, "home slots", chunk, 0, 1},
            own = {b, "home and own slots", chunk, 1, 2}, frames = {b, blocks, frame, 1, 0};
    CKV_TRY(measure(b, &copy, copy_layers, NULL));
    CKV_TRY(check(b, &own, &verdict));
    CKV_TRY(measure(b, &home, write_layers, &verdict));
    CKV_TRY(measure(b, &own, write_layers, &verdict));
    if (w->config.num_block_sizes == 0)
        return CKV_OK;
    CKV_TRY(check(b, &frames, &verdict));
    return measure(b, &frames, write_layers, &verdict);
}

static ckv_status run(bench *b)
{
    CKV_TRY(bench_timer_create(b->options, &b->timer));
    const bench_workload_config config = bench_workload_of_model(b->options, b->timer, 1);
    CKV_TRY(bench_workload_create(&config, &b->workload));
    CKV_TRY(measure_all(b));
    bench_timer_facts(b->timer, b->results);
    return CKV_OK;
}

int bench_write(const bench_options *options, bench_results *results)
{
    bench b = {.options = options, .results = results};
    int code = bench_exit_code(options, run(&b));
    ckv_device_free(options->device, b.copies);
    bench_workload_destroy(&b.workload);
    bench_timer_destroy(&b.timer);
    return code;
}
