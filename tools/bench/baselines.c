/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/baselines.h"

#include "lib/support/error.h"
#include "tools/bench/cudnn_contiguous.h"

#if CKV_HAVE_CUDNN
#include "lib/attention/cudnn_plan.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

struct bench_baselines {
    const bench_workload *workload;
    cudnn_contiguous *attention;
    size_t token_bytes, history_bytes; /* of K, and of V */
    char *history, *all;               /* K, then V */
    size_t all_bytes;                  /* of K, and of V */
    void *out;
};

static ckv_status cuda_status(cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return CKV_OK;
    return ckv_fail(CKV_ERROR_DEVICE, "%s: %s: %s", call, cudaGetErrorName(error), cudaGetErrorString(error));
}
#define CUDA_TRY(call) CKV_TRY(cuda_status(call, #call))

/* The row ends with the block's own tokens; what stands before them is history. */
static ckv_status read_keys(bench_baselines *b, char *host, int64_t keys)
{
    const bench_workload *w = b->workload;
    const ckv_stream stream = bench_timer_stream(w->config.timer);
    const ckv_kv kv = bench_workload_rank_kv(w, bench_workload_device_qkv(w, 0));
    int64_t length;
    CKV_TRY(ckv_cache_write_staged(w->cache, 0, w->chunk_tokens, w->chunk_tokens, &kv, 1, stream));
    CKV_TRY(ckv_cache_read_row(w->cache, 0, w->chunk_tokens, 0, keys, host, host + b->all_bytes, &length, stream));
    if (length != keys)
        return ckv_fail(CKV_ERROR_INTERNAL, "a row has %lld keys, not %lld", (long long)length, (long long)keys);
    CUDA_TRY(cudaMemcpy(b->all, host, 2 * b->all_bytes, cudaMemcpyHostToDevice));
    CUDA_TRY(cudaMemcpy(b->history, host, b->history_bytes, cudaMemcpyHostToDevice));
    CUDA_TRY(cudaMemcpy(b->history + b->history_bytes, host + b->all_bytes, b->history_bytes, cudaMemcpyHostToDevice));
    return CKV_OK;
}

static ckv_status open_baselines(bench_baselines *b)
{
    const bench_workload *w = b->workload;
    const int64_t keys = bench_workload_keys(w, w->chunk_tokens);
    const ckv_attention_args args = bench_forward_args(&(bench_forward){.workload = w, .block = w->chunk_tokens}, 0);
    const cudnn_contiguous_shape shape = {
        w->config.options->dtype, w->chunk_tokens, keys, w->q_heads, w->kv_heads, w->head_dim, args.q_token_stride};
    b->token_bytes = (size_t)(w->kv_heads * w->head_dim) * ckv_dtype_bytes(shape.dtype);
    b->all_bytes = (size_t)keys * b->token_bytes;
    b->history_bytes = (size_t)(keys - w->chunk_tokens) * b->token_bytes;
    void *history, *all;
    CUDA_TRY(cudaMalloc(&history, 2 * b->history_bytes));
    b->history = history;
    CUDA_TRY(cudaMalloc(&all, 2 * b->all_bytes));
    b->all = all;
    CUDA_TRY(cudaMalloc(&b->out, (size_t)(w->chunk_tokens * w->q_heads * w->head_dim) * ckv_dtype_bytes(shape.dtype)));
    char *host = malloc(2 * b->all_bytes);
    if (host == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    ckv_status status = read_keys(b, host, keys);
    free(host);
    CKV_TRY(status);
    return cudnn_contiguous_create(&shape, args.q, b->all, b->all + b->all_bytes, b->out,
                                   bench_timer_stream(w->config.timer), &b->attention);
}

ckv_status bench_baselines_create(const bench_workload *workload, bench_baselines **baselines_out)
{
    bench_baselines *b = calloc(1, sizeof *b);
    if (b == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    b->workload = workload;
    ckv_status status = open_baselines(b);
    if (status == CKV_OK)
        *baselines_out = b;
    else
        bench_baselines_destroy(&b);
    return status;
}

void bench_baselines_destroy(bench_baselines **baselines)
{
    if (baselines == NULL || *baselines == NULL)
        return;
    cudnn_contiguous_destroy(&(*baselines)->attention);
    cudaFree((*baselines)->history);
    cudaFree((*baselines)->all);
    cudaFree((*baselines)->out);
    free(*baselines);
    *baselines = NULL;
}

void *bench_baselines_out(const bench_baselines *baselines)
{
    return baselines->out;
}

ckv_status bench_contiguous_run(void *baselines, ckv_stream stream)
{
    (void)stream; /* made for it */
    return cudnn_contiguous_run(((const bench_baselines *)baselines)->attention);
}

static ckv_status concatenate(const bench_baselines *b, char *all, const char *history, const void *own,
                              size_t own_stride, ckv_stream stream)
{
    CUDA_TRY(cudaMemcpyAsync(all, history, b->history_bytes, cudaMemcpyDeviceToDevice, stream));
    CUDA_TRY(cudaMemcpy2DAsync(all + b->history_bytes, b->token_bytes, own, own_stride, b->token_bytes,
                               (size_t)b->workload->chunk_tokens, cudaMemcpyDeviceToDevice, stream));
    return CKV_OK;
}

ckv_status bench_concatenate_run(void *baselines, ckv_stream stream)
{
    const bench_baselines *b = baselines;
    const bench_workload *w = b->workload;
    const ckv_kv own = bench_workload_rank_kv(w, bench_workload_device_qkv(w, 0));
    const size_t stride = (size_t)own.k_token_stride * ckv_dtype_bytes(w->config.options->dtype);
    CKV_TRY(concatenate(b, b->all, b->history, own.k, stride, stream));
    CKV_TRY(concatenate(b, b->all + b->all_bytes, b->history + b->history_bytes, own.v, stride, stream));
    return cudnn_contiguous_run(b->attention);
}

struct bench_paged {
    ckv_cudnn_plan *plan;
    cudnnHandle_t handle;
};

static ckv_cudnn_shape paged_shape(const bench_workload *w, const ckv_block_view *view, const ckv_attention_args *args)
{
    const ckv_pool_view slots = ckv_pool_get_view(ckv_cache_pool(w->cache));
    const int64_t element = (int64_t)ckv_dtype_bytes(w->config.options->dtype);
    return (ckv_cudnn_shape){
        .dtype = w->config.options->dtype,
        .num_blocks = w->chunk_tokens / view->causal_block_size,
        .block_size = view->causal_block_size,
        .q_heads = w->q_heads,
        .kv_heads = w->kv_heads,
        .head_dim = w->head_dim,
        .tokens_per_page = w->config.page,
        .row_pages = view->row_pages,
        .pool_pages = slots.total_pages + 1,
        .q_token_stride = args->q_token_stride,
        .q_head_stride = args->q_head_stride,
        .out_token_stride = args->out_token_stride,
        .out_head_stride = args->out_head_stride,
        .page_stride = slots.page_stride / element,
        .head_stride = slots.head_stride / element,
        .slot_stride = slots.slot_stride / element,
    };
}

static ckv_status open_paged(bench_paged *p, const bench_workload *w, int64_t block)
{
    const ckv_attention_args args = bench_forward_args(&(bench_forward){.workload = w, .block = block}, 0);
    const ckv_pool_view slots = ckv_pool_get_view(ckv_cache_pool(w->cache));
    int device_id;
    ckv_block_view view;
    CKV_TRY(ckv_cache_block_view(w->cache, block, &view));
    const ckv_cudnn_shape shape = paged_shape(w, &view, &args);
    const ckv_cudnn_tensors tensors = {
        .q = args.q,
        .k = slots.base,
        .v = (const char *)slots.base + slots.kv_stride,
        .out = args.out,
        .rows = view.rows,
        .seq_len_q = view.seq_len_q,
        .seq_len_kv = view.seq_len_kv,
        .scale = 1 / sqrtf((float)w->head_dim),
    };
    CUDA_TRY(cudaGetDevice(&device_id));
    CKV_TRY(ckv_cudnn_status(cudnnCreate(&p->handle), "cudnnCreate"));
    CKV_TRY(ckv_cudnn_status(cudnnSetStream(p->handle, bench_timer_stream(w->config.timer)), "cudnnSetStream"));
    CKV_TRY(ckv_cudnn_plan_create(&shape, device_id, 1, &p->plan));
    return ckv_cudnn_plan_bind(p->plan, 0, &tensors);
}

ckv_status bench_paged_create(const bench_workload *workload, int64_t block, bench_paged **paged_out)
{
    bench_paged *p = calloc(1, sizeof *p);
    if (p == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    ckv_status status = open_paged(p, workload, block);
    if (status == CKV_OK)
        *paged_out = p;
    else
        bench_paged_destroy(&p);
    return status;
}

void bench_paged_destroy(bench_paged **paged)
{
    if (paged == NULL || *paged == NULL)
        return;
    if ((*paged)->plan != NULL)
        ckv_cudnn_plan_destroy((*paged)->plan);
    if ((*paged)->handle != NULL)
        cudnnDestroy((*paged)->handle);
    free(*paged);
    *paged = NULL;
}

ckv_status bench_paged_run(void *paged, ckv_stream stream)
{
    const bench_paged *p = paged;
    (void)stream; /* the handle's */
    return ckv_cudnn_plan_run(p->plan, 0, p->handle);
}
#else
static ckv_status no_cudnn(void)
{
    return ckv_fail(CKV_ERROR_UNSUPPORTED, "this build has no cuDNN");
}

ckv_status bench_baselines_create(const bench_workload *workload, bench_baselines **baselines_out)
{
    (void)workload, (void)baselines_out;
    return no_cudnn();
}

void bench_baselines_destroy(bench_baselines **baselines)
{
    (void)baselines;
}

void *bench_baselines_out(const bench_baselines *baselines)
{
    (void)baselines;
    return NULL;
}

ckv_status bench_contiguous_run(void *baselines, ckv_stream stream)
{
    (void)baselines, (void)stream;
    return no_cudnn();
}

ckv_status bench_concatenate_run(void *baselines, ckv_stream stream)
{
    (void)baselines, (void)stream;
    return no_cudnn();
}

ckv_status bench_paged_create(const bench_workload *workload, int64_t block, bench_paged **paged_out)
{
    (void)workload, (void)block, (void)paged_out;
    return no_cudnn();
}

void bench_paged_destroy(bench_paged **paged)
{
    (void)paged;
}

ckv_status bench_paged_run(void *paged, ckv_stream stream)
{
    (void)paged, (void)stream;
    return no_cudnn();
}
#endif
