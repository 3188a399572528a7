/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/workload.h"

#include "lib/support/error.h"

#include <stdlib.h>
#include <unistd.h>

enum { SPREAD_ELEMENTS = 1 << 25, ALIGNED_ELEMENTS = 8, BATCH = 4096 };

static size_t element_bytes(const bench_workload *w)
{
    return ckv_dtype_bytes(w->config.options->dtype);
}

static uint64_t mix(uint64_t state)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state ^ state >> 29;
}

/* Pages of fp8 keep them exactly, so that the reference is of what they keep; all scales are 1. */
static void round_to_pages(const bench_workload *w, float *values, int64_t count)
{
    uint8_t codes[BATCH];
    if (w->config.options->pages != CKV_FP8_E4M3)
        return;
    ckv_convert_from_float(CKV_FP8_E4M3, values, (size_t)count, codes);
    ckv_convert_to_float(CKV_FP8_E4M3, codes, (size_t)count, values);
}

/* In [-1, 1), never zero throughout: zeros are faster than data, and hide what was not written. */
static void fill_random(bench_workload *w)
{
    float values[BATCH];
    uint64_t state = 1;
    for (int64_t at = 0; at < w->data_elements; at += BATCH) {
        int64_t count = w->data_elements - at < BATCH ? w->data_elements - at : BATCH;
        for (int64_t i = 0; i < count; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            values[i] = (float)(int32_t)(state >> 32) * 0x1p-31f;
        }
        round_to_pages(w, values, count);
        ckv_convert_from_float(w->config.options->dtype, values, (size_t)count,
                               w->host_data + (size_t)at * element_bytes(w));
    }
}

static int64_t token_elements(const bench_workload *w)
{
    return (w->q_heads + 2 * w->kv_heads) * w->head_dim;
}

/* Layers and chunks begin at different elements, so that K and V of the wrong one are noticed. */
static size_t data_offset(const bench_workload *w, int64_t layer)
{
    uint64_t places = (uint64_t)(w->data_elements - w->qkv_elements) / ALIGNED_ELEMENTS;
    return (size_t)(mix(w->chunk << 16 ^ (uint64_t)layer) % places) * ALIGNED_ELEMENTS * element_bytes(w);
}

const void *bench_workload_host_qkv(const bench_workload *workload, int64_t layer)
{
    return workload->host_data + data_offset(workload, layer);
}

const void *bench_workload_device_qkv(const bench_workload *workload, int64_t layer)
{
    return workload->device_data + data_offset(workload, layer);
}

ckv_kv bench_workload_kv(const bench_workload *workload, const void *qkv, int64_t first)
{
    const bench_workload *w = workload;
    const char *k = (const char *)qkv + (size_t)((w->q_heads + first) * w->head_dim) * element_bytes(w);
    const char *v = k + (size_t)(w->kv_heads * w->head_dim) * element_bytes(w);
    return (ckv_kv){k, v, token_elements(w), w->head_dim, token_elements(w), w->head_dim};
}

ckv_kv bench_workload_rank_kv(const bench_workload *workload, const void *qkv)
{
    /* with fewer K/V heads than ranks, neighbours hold the same one */
    return bench_workload_kv(workload, qkv, workload->rank * workload->kv_heads / workload->ranks);
}

int64_t bench_workload_keys(const bench_workload *workload, int64_t block)
{
    return workload->config.options->geometry.pin_tokens + workload->window_tokens + block;
}

static ckv_status create_data(bench_workload *w)
{
    const ckv_device *device = w->config.options->device;
    int64_t spread = 4 * w->qkv_elements < SPREAD_ELEMENTS ? 4 * w->qkv_elements : SPREAD_ELEMENTS;
    int64_t prompt = w->config.options->geometry.pin_tokens * token_elements(w);
    void *memory;
    w->qkv_elements = w->qkv_elements > prompt ? w->qkv_elements : prompt;
    w->data_elements = w->qkv_elements + spread + ALIGNED_ELEMENTS;
    size_t bytes = (size_t)w->data_elements * element_bytes(w);
    w->host_data = malloc(bytes);
    if (w->host_data == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "%zu bytes of random data: out of memory", bytes);
    fill_random(w);
    CKV_TRY(ckv_device_alloc(device, bytes, &memory));
    w->device_data = memory;
    CKV_TRY(ckv_device_upload(device, w->device_data, w->host_data, bytes, NULL));
    return ckv_device_alloc(device, (size_t)(w->rows * w->q_heads * w->head_dim) * element_bytes(w), &w->device_out);
}

static ckv_ulysses_config ulysses_config(const bench_workload *w)
{
    ckv_ulysses_config config = ckv_ulysses_config_default();
    config.q_heads = w->q_heads;
    config.kv_heads = w->kv_heads;
    config.head_dim = w->head_dim;
    config.dtype = w->config.options->dtype;
    config.device = w->config.options->device;
    config.exchange = w->config.options->exchange;
    return config;
}

/* On the host a pool is only taken as it is written: too large a one would end the process, and others', half way. */
static ckv_status check_memory(const bench_workload *w, const ckv_pool_config *pool)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double bytes = 2.0 * (double)pool->pool_tokens * (double)(pool->layers * pool->kv_heads) * (double)pool->head_dim *
                   (double)ckv_dtype_bytes(pool->dtype);
    if (w->config.options->on_gpu || bytes <= memory)
        return CKV_OK;
    return ckv_fail(CKV_ERROR_CAPACITY, "this geometry needs %.3g GiB on each rank, this machine has %.3g GiB",
                    bytes / 0x1p30, memory / 0x1p30);
}

static ckv_status create_cache(bench_workload *w, ckv_rollout_config *rollout)
{
    const bench_options *o = w->config.options;
    ckv_ulysses_config ulysses = ulysses_config(w);
    ckv_pool_config pool = ckv_pool_config_default();
    ckv_rollout_size size;
    CKV_TRY(ckv_ulysses_kv_heads_per_rank(&ulysses, w->ranks, &w->rank_kv_heads));
    CKV_TRY(ckv_rollout_config_size(rollout, w->config.page, &size));
    pool.device = o->device;
    pool.layers = w->config.layers;
    pool.kv_heads = w->rank_kv_heads;
    pool.head_dim = w->head_dim;
    pool.dtype = o->pages;
    pool.tensor_dtype = o->dtype;
    pool.tokens_per_page = w->config.page;
    pool.pool_tokens = size.pool_tokens;
    CKV_TRY(check_memory(w, &pool));
    CKV_TRY(ckv_cache_create(&pool, &w->cache));
    CKV_TRY(ckv_cache_open(w->cache, rollout, bench_timer_stream(w->config.timer)));
    return w->ranks == 1 ? CKV_OK : ckv_ulysses_create(o->comm, &ulysses, &w->ulysses);
}

static ckv_status create_references(bench_workload *w)
{
    w->checked[w->num_checked++] = 0;
    if (w->config.layers > 1)
        w->checked[w->num_checked++] = w->config.layers - 1;
    ckv_reference_config config = ckv_reference_config_default();
    config.layers = w->num_checked;
    config.q_heads = w->q_heads / w->kv_heads;
    config.kv_heads = 1;
    config.head_dim = w->head_dim;
    config.dtype = w->config.options->dtype;
    w->references = calloc((size_t)w->kv_heads, sizeof(ckv_reference *));
    if (w->references == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    for (int64_t head = 0; head < w->kv_heads; head++) {
        CKV_TRY(ckv_reference_create(&config, &w->references[head]));
        CKV_TRY(ckv_reference_open(w->references[head], w->config.options->geometry.pin_tokens, w->window_tokens));
    }
    return CKV_OK;
}

static ckv_status reference_commit(bench_workload *w, int64_t first_id, int64_t tokens)
{
    for (int64_t head = 0; head < w->kv_heads; head++) {
        for (int64_t i = 0; i < w->num_checked; i++) {
            const ckv_kv kv = bench_workload_kv(w, bench_workload_host_qkv(w, w->checked[i]), head);
            CKV_TRY(ckv_reference_write(w->references[head], i, first_id, tokens, &kv));
        }
        CKV_TRY(ckv_reference_commit(w->references[head], tokens));
    }
    return CKV_OK;
}

/* Tokens that were never staged by a forward: the prompt, and the history the benchmark begins with. */
static ckv_status add_history(bench_workload *w, int64_t tokens)
{
    const ckv_cache_state state = ckv_cache_get_state(w->cache);
    const ckv_stream stream = bench_timer_stream(w->config.timer);
    for (int64_t layer = 0; layer < w->config.layers; layer++) {
        const void *qkv = bench_workload_device_qkv(w, layer);
        const ckv_kv mine = bench_workload_rank_kv(w, qkv);
        CKV_TRY(ckv_cache_write_range(w->cache, layer, state.staging_offset, tokens, &mine, stream));
    }
    CKV_TRY(ckv_cache_commit(w->cache, tokens, stream));
    CKV_TRY(reference_commit(w, state.committed_tokens, tokens));
    bench_workload_next_data(w);
    return bench_timer_wait(w->config.timer);
}

static ckv_status roll(bench_workload *w)
{
    int64_t pin = w->config.options->geometry.pin_tokens;
    for (int64_t left = pin; left > 0;) {
        int64_t tokens = left < w->chunk_tokens ? left : w->chunk_tokens;
        CKV_TRY(add_history(w, tokens));
        left -= tokens;
    }
    for (int64_t left = w->window_tokens; left > 0;) {
        int64_t tokens = left < w->chunk_tokens ? left : w->chunk_tokens;
        CKV_TRY(add_history(w, tokens));
        left -= tokens;
    }
    for (int64_t i = 0; i < w->config.chunks_past_window; i++)
        CKV_TRY(add_history(w, w->chunk_tokens));
    return CKV_OK;
}

static ckv_status open_workload(bench_workload *w)
{
    const model_geometry *g = &w->config.options->geometry;
    int64_t sizes[WORKLOAD_MAX_BLOCK_SIZES + 1] = {w->chunk_tokens};
    for (size_t i = 0; i < w->config.num_block_sizes; i++)
        sizes[i + 1] = w->config.block_sizes[i];
    ckv_rollout_config rollout = ckv_rollout_config_default();
    rollout.pin_tokens = g->pin_tokens;
    rollout.window_tokens = w->window_tokens;
    rollout.max_staged_tokens = w->chunk_tokens;
    rollout.causal_block_sizes = sizes;
    rollout.num_causal_block_sizes = w->config.num_block_sizes + 1;
    CKV_TRY(create_cache(w, &rollout));
    CKV_TRY(create_data(w));
    CKV_TRY(create_references(w));
    return roll(w);
}

bench_workload_config bench_workload_of_model(const bench_options *options, bench_timer *timer,
                                              int64_t chunks_past_window)
{
    const model_geometry *g = &options->geometry;
    return (bench_workload_config){.options = options,
                                   .timer = timer,
                                   .window_frames = g->window_frames,
                                   .page = options->page,
                                   .layers = g->layers,
                                   .block_sizes = {g->frame_tokens},
                                   .num_block_sizes = g->clean_in_frames && g->chunk_frames > 1,
                                   .chunks_past_window = chunks_past_window};
}

ckv_status bench_workload_create(const bench_workload_config *config, bench_workload **workload_out)
{
    const model_geometry *g = &config->options->geometry;
    bench_workload *w = calloc(1, sizeof *w);
    if (w == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    w->config = *config;
    w->rank = ckv_comm_rank(config->options->comm);
    w->ranks = ckv_comm_size(config->options->comm);
    w->q_heads = g->q_heads;
    w->kv_heads = g->kv_heads;
    w->head_dim = g->head_dim;
    w->chunk_tokens = g->chunk_frames * g->frame_tokens;
    w->window_tokens = config->window_frames * g->frame_tokens;
    w->rows = ckv_ulysses_rows_per_rank(w->chunk_tokens, w->ranks);
    w->first_row = w->rank * w->rows;
    w->qkv_elements = w->rows * w->ranks * token_elements(w);
    ckv_status status = ckv_comm_agree(config->options->comm, open_workload(w));
    if (status == CKV_OK)
        *workload_out = w;
    else
        bench_workload_destroy(&w);
    return status;
}

void bench_workload_destroy(bench_workload **workload)
{
    if (workload == NULL || *workload == NULL)
        return;
    bench_workload *w = *workload;
    ckv_device_free(w->config.options->device, w->device_out);
    ckv_device_free(w->config.options->device, w->device_data);
    free(w->host_data);
    for (int64_t head = 0; w->references != NULL && head < w->kv_heads; head++)
        ckv_reference_destroy(&w->references[head]);
    free(w->references);
    free(w->pending);
    ckv_ulysses_destroy(&w->ulysses);
    ckv_cache_destroy(&w->cache);
    free(w);
    *workload = NULL;
}

ckv_attention_args bench_forward_args(const bench_forward *forward, int64_t layer)
{
    const bench_workload *w = forward->workload;
    const size_t token_bytes = (size_t)token_elements(w) * element_bytes(w);
    const char *qkv = (const char *)bench_workload_device_qkv(w, layer) + (size_t)w->first_row * token_bytes;
    ckv_attention_args args = ckv_attention_args_default();
    args.cache = w->cache;
    args.layer = layer;
    args.q_heads = w->q_heads;
    args.rows = w->rows;
    args.seq_len = w->chunk_tokens;
    args.causal_block_size = forward->block;
    args.q = qkv;
    args.q_token_stride = token_elements(w);
    args.q_head_stride = w->head_dim;
    args.kv = bench_workload_kv(w, qkv, 0);
    args.out = w->device_out;
    args.out_token_stride = w->q_heads * w->head_dim;
    args.out_head_stride = w->head_dim;
    args.backend = forward->backend;
    return args;
}

ckv_status bench_forward_run(void *forward, ckv_stream stream)
{
    const bench_forward *f = forward;
    for (int64_t layer = f->first_layer; layer < f->first_layer + f->num_layers; layer++) {
        const ckv_attention_args args = bench_forward_args(f, layer);
        CKV_TRY(f->workload->ulysses == NULL ? ckv_attention(&args, stream)
                                             : ckv_ulysses_attention(f->workload->ulysses, &args, stream));
    }
    return CKV_OK;
}

ckv_status bench_workload_stage(bench_workload *workload, int64_t block)
{
    for (int64_t layer = 0; layer < workload->config.layers; layer++) {
        const ckv_kv kv = bench_workload_rank_kv(workload, bench_workload_device_qkv(workload, layer));
        CKV_TRY(ckv_cache_write_staged(workload->cache, layer, workload->chunk_tokens, block, &kv, 1,
                                       bench_timer_stream(workload->config.timer)));
    }
    return CKV_OK;
}

ckv_status bench_workload_committed(bench_workload *workload)
{
    uint64_t *pending = realloc(workload->pending, (workload->num_pending + 1) * sizeof *pending);
    if (pending == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    workload->pending = pending;
    pending[workload->num_pending++] = workload->chunk;
    return CKV_OK;
}

ckv_status bench_workload_follow(bench_workload *workload)
{
    const uint64_t chunk = workload->chunk;
    const int64_t tokens = workload->chunk_tokens, committed = ckv_cache_get_state(workload->cache).committed_tokens;
    ckv_status status = CKV_OK;
    for (size_t i = 0; i < workload->num_pending && status == CKV_OK; i++) {
        workload->chunk = workload->pending[i];
        status = reference_commit(workload, committed - (int64_t)(workload->num_pending - i) * tokens, tokens);
    }
    workload->chunk = chunk;
    workload->num_pending = 0;
    return status;
}

void bench_workload_next_data(bench_workload *workload)
{
    workload->chunk++;
}
