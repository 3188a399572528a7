/* SPDX-License-Identifier: Apache-2.0 */
/* Paged attention by cuDNN: a forward of n causal blocks is a batch of n sequences, each with its row of the page table
 * and its length on the device. Plans are built once per shape, kept with the cache, and dropped with it; a forward
 * whose plan exists allocates nothing and waits for nothing. */
#include "kernels/zero_row_tails/zero_row_tails.h"
#include "lib/attention/backend.h"
#include "lib/attention/cuda_args.h"
#include "lib/attention/cudnn_plan.h"
#include "lib/cache/cache.h"
#include "lib/device/cuda_status.h"
#include "lib/device/device.h"
#include "lib/pool/pool.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 64 };

/* A handle owns streams and device memory, so a process has one per device, shared by the caches there. */
typedef struct shared_handle {
    cudnnHandle_t handle;
    ckv_stream stream; /* the handle's now */
    int64_t users;
} shared_handle;

static pthread_mutex_t handles_lock =
    PTHREAD_MUTEX_INITIALIZER; /* held from setting the stream to the end of a launch */
static shared_handle handles[MAX_DEVICES];

typedef struct kept_plan {
    struct kept_plan *next;
    ckv_cudnn_plan *plan;
} kept_plan;

/* The plans of one cache. */
typedef struct cache_plans {
    ckv_cache_attachment attachment; /* first: the cache releases through it */
    int device_id;
    kept_plan *plans;
} cache_plans;

static ckv_status acquire_handle(int device_id)
{
    if (device_id >= MAX_DEVICES)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "attention: backend cudnn knows CUDA devices 0 to %d, not %d",
                        MAX_DEVICES - 1, device_id);
    shared_handle *shared = &handles[device_id];
    pthread_mutex_lock(&handles_lock);
    ckv_status status = CKV_OK;
    if (shared->users == 0)
        status = ckv_cudnn_status(cudnnCreate(&shared->handle), "cudnnCreate");
    if (status == CKV_OK && shared->users++ == 0)
        shared->stream = NULL; /* what a new handle has */
    pthread_mutex_unlock(&handles_lock);
    return status;
}

static void release_handle(int device_id)
{
    shared_handle *shared = &handles[device_id];
    pthread_mutex_lock(&handles_lock);
    if (--shared->users == 0)
        cudnnDestroy(shared->handle);
    pthread_mutex_unlock(&handles_lock);
}

/* Without what only a view tells. */
static ckv_cudnn_shape shape_of_args(const ckv_attention_args *args)
{
    ckv_pool *pool = ckv_cache_pool(args->cache);
    const ckv_pool_config *config = ckv_pool_get_config(pool);
    const ckv_pool_view slots = ckv_pool_get_view(pool);
    const int64_t element_bytes = (int64_t)ckv_dtype_bytes(config->dtype);
    const ckv_cuda_strides strides = ckv_cuda_used_strides(args);
    return (ckv_cudnn_shape){
        .dtype = config->dtype,
        .num_blocks = args->causal_block_size > 0 ? args->seq_len / args->causal_block_size : 0,
        .block_size = args->causal_block_size,
        .q_heads = args->q_heads,
        .kv_heads = args->kv_heads,
        .head_dim = config->head_dim,
        .tokens_per_page = config->tokens_per_page,
        .pool_pages = slots.total_pages + 1,
        .q_token_stride = strides.q_token,
        .q_head_stride = strides.q_head,
        .out_token_stride = strides.out_token,
        .out_head_stride = strides.out_head,
        .page_stride = slots.page_stride / element_bytes,
        .head_stride = slots.head_stride / element_bytes,
        .slot_stride = slots.slot_stride / element_bytes,
        .want_lse = args->lse != NULL,
    };
}

static ckv_status cudnn_supports(const ckv_attention_args *args)
{
    CKV_TRY(ckv_cuda_check_options("cudnn", args));
    if (ckv_pool_get_config(ckv_cache_pool(args->cache))->dtype == CKV_FP8_E4M3)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend cudnn cannot read pages of fp8_e4m3; backend hopper can");
    const ckv_cudnn_shape shape = shape_of_args(args);
    CKV_TRY(ckv_cudnn_check_version(cudnnGetVersion()));
    int device_id = 0, architecture = 0;
    CKV_TRY(ckv_cuda_current_device(&device_id));
    CKV_TRY(ckv_cuda_architecture(device_id, &architecture));
    CKV_TRY(ckv_cudnn_check_shape(&shape, architecture));
    return ckv_cuda_check_strides("cudnn", args);
}

static void release_plans(ckv_cache_attachment *attachment)
{
    cache_plans *plans = (cache_plans *)attachment;
    while (plans->plans != NULL) {
        kept_plan *kept = plans->plans;
        plans->plans = kept->next;
        ckv_cudnn_plan_destroy(kept->plan);
        free(kept);
    }
    release_handle(plans->device_id);
    free(plans);
}

static ckv_status attach_plans(ckv_cache *cache, int device_id, cache_plans **plans_out)
{
    cache_plans *plans = calloc(1, sizeof *plans);
    if (plans == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "attention: out of host memory for the plans of a cache");
    ckv_status status = acquire_handle(device_id);
    if (status != CKV_OK) {
        free(plans);
        return status;
    }
    plans->device_id = device_id;
    plans->attachment.owner = &ckv_attention_backend_cudnn;
    plans->attachment.release = release_plans;
    ckv_cache_attach(cache, &plans->attachment);
    *plans_out = plans;
    return CKV_OK;
}

static ckv_cudnn_plan *find_plan(const cache_plans *plans, const ckv_cudnn_shape *shape)
{
    for (const kept_plan *kept = plans != NULL ? plans->plans : NULL; kept != NULL; kept = kept->next)
        if (memcmp(ckv_cudnn_plan_shape(kept->plan), shape, sizeof *shape) == 0)
            return kept->plan;
    return NULL;
}

static ckv_status build_plan(ckv_cache *cache, const ckv_cudnn_shape *shape, int device_id, cache_plans *plans,
                             ckv_cudnn_plan **plan_out)
{
    if (plans == NULL)
        CKV_TRY(attach_plans(cache, device_id, &plans));
    kept_plan *kept = calloc(1, sizeof *kept);
    if (kept == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "attention: out of host memory for a plan");
    const int64_t layers = ckv_pool_get_config(ckv_cache_pool(cache))->layers;
    ckv_status status = ckv_cudnn_plan_create(shape, device_id, layers, &kept->plan);
    if (status != CKV_OK) {
        free(kept);
        return status;
    }
    kept->next = plans->plans;
    plans->plans = kept;
    *plan_out = kept->plan;
    return CKV_OK;
}

/* The cache's plan for the shape, built if this is the first call with it. */
static ckv_status get_plan(ckv_cache *cache, const ckv_cudnn_shape *shape, ckv_stream stream, int device_id,
                           ckv_cudnn_plan **plan_out)
{
    cache_plans *plans = (cache_plans *)ckv_cache_find_attachment(cache, &ckv_attention_backend_cudnn);
    if (plans != NULL && plans->device_id != device_id)
        return ckv_fail(CKV_ERROR_STATE, "attention: the cache's plans are for CUDA device %d, the current one is %d",
                        plans->device_id, device_id);
    *plan_out = find_plan(plans, shape);
    if (*plan_out != NULL)
        return CKV_OK;
    int capturing = 0;
    CKV_TRY(ckv_pool_device(ckv_cache_pool(cache))->is_capturing(stream, &capturing));
    if (capturing)
        return ckv_fail(CKV_ERROR_STATE,
                        "attention: the first forward of %" PRId64 " blocks of %" PRId64
                        " tokens with these strides builds its plan, which a stream that is being captured cannot; "
                        "run it once before the capture",
                        shape->num_blocks, shape->block_size);
    return build_plan(cache, shape, device_id, plans, plan_out);
}

static ckv_status cudnn_prepare(const ckv_attention_args *args, const ckv_block_view *view, ckv_stream stream,
                                void **plan_out)
{
    int device_id = 0;
    CKV_TRY(ckv_cuda_current_device(&device_id));
    CKV_TRY(ckv_cuda_check_addresses(args, device_id));
    ckv_cudnn_shape shape = shape_of_args(args);
    shape.row_pages = view->row_pages;
    ckv_cudnn_plan *plan = NULL;
    CKV_TRY(get_plan(args->cache, &shape, stream, device_id, &plan));

    const ckv_pool_view slots = ckv_pool_get_view(ckv_cache_pool(args->cache));
    const char *k =
        (const char *)slots.base + args->layer * slots.layer_stride + args->first_kv_head * slots.head_stride;
    const ckv_cudnn_tensors tensors = {
        .q = args->q,
        .k = k,
        .v = k + slots.kv_stride,
        .out = args->out,
        .lse = args->lse,
        .rows = view->rows,
        .seq_len_q = view->seq_len_q,
        .seq_len_kv = view->seq_len_kv,
        .scale = (float)args->scale,
    };
    CKV_TRY(ckv_cudnn_plan_bind(plan, args->layer, &tensors));
    *plan_out = plan;
    return CKV_OK;
}

/* cuDNN works in tiles: it multiplies the V of keys past a row's end with weights of zero (seen on an H200 with 9.19).
 * The guard page's V is zero always; the end of the row's last page is made so before every forward. */
static ckv_status zero_row_tails(const ckv_attention_args *args, const ckv_block_view *view, ckv_stream stream)
{
    const ckv_pool *pool = ckv_cache_pool(args->cache);
    const ckv_pool_config *config = ckv_pool_get_config(pool);
    const ckv_pool_view slots = ckv_pool_get_view(pool);
    const ckv_zero_row_tails_params tails = {.v_plane = (char *)slots.base + args->layer * slots.layer_stride +
                                                        slots.kv_stride + args->first_kv_head * slots.head_stride,
                                             .page_stride = slots.page_stride,
                                             .head_stride = slots.head_stride,
                                             .slot_stride = slots.slot_stride,
                                             .tokens_per_page = config->tokens_per_page,
                                             .kv_heads = args->kv_heads,
                                             .row_bytes = ckv_pool_row_bytes(pool),
                                             .num_blocks = args->seq_len / view->causal_block_size,
                                             .row_pages = view->row_pages,
                                             .rows = view->rows,
                                             .seq_len_kv = view->seq_len_kv};
    return ckv_pool_device(pool)->zero_row_tails(&tails, stream);
}

static ckv_status cudnn_run(const ckv_attention_args *args, const ckv_block_view *view, void *plan, ckv_stream stream)
{
    int device_id = 0;
    CKV_TRY(ckv_cuda_current_device(&device_id));
    CKV_TRY(zero_row_tails(args, view, stream));
    shared_handle *shared = &handles[device_id];
    ckv_status status = CKV_OK;
    pthread_mutex_lock(&handles_lock);
    if (shared->stream != stream) {
        status = ckv_cudnn_status(cudnnSetStream(shared->handle, stream), "cudnnSetStream");
        if (status == CKV_OK)
            shared->stream = stream;
    }
    if (status == CKV_OK)
        status = ckv_cudnn_plan_run(plan, args->layer, shared->handle);
    pthread_mutex_unlock(&handles_lock);
    return status;
}

static void cudnn_release(void *plan)
{
    (void)plan; /* the cache keeps it */
}

const ckv_attention_backend ckv_attention_backend_cudnn = {
    .name = "cudnn",
    .supports = cudnn_supports,
    .prepare = cudnn_prepare,
    .run = cudnn_run,
    .release = cudnn_release,
};
