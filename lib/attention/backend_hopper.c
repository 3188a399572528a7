/* SPDX-License-Identifier: Apache-2.0 */
/* Paged attention by our own kernels, the one for compute capability 9.0 where it fits, else the portable one: one
 * launch for all causal blocks of a forward, and one that merges where keys of a tile were shared out. What a cache
 * needs is made by its first forward, kept with it and dropped with it; later forwards allocate nothing and wait for
 * nothing. */
#include "kernels/paged_attention/paged_attention.h"
#include "lib/attention/backend.h"
#include "lib/attention/cuda_args.h"
#include "lib/cache/cache.h"
#include "lib/device/cuda_status.h"
#include "lib/device/device.h"
#include "lib/pool/pool.h"
#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>

enum { SM90 = 900, OLDEST = 800, VECTOR_ELEMENTS = 8 };

/* Kept with a cache. */
typedef struct hopper_plan {
    ckv_cache_attachment attachment; /* first: the cache releases through it */
    int device_id;
    ckv_paged_attention_sm90 sm90; /* workspace is NULL when the portable kernel runs */
} hopper_plan;

/* Planes of all layers, [layers][pages + guard][K, V][kv_heads]; -1 when a tensor map cannot number them. */
static int64_t count_planes(const ckv_pool *pool)
{
    const ckv_pool_config *config = ckv_pool_get_config(pool);
    const ckv_pool_view slots = ckv_pool_get_view(pool);
    int64_t planes;
    if (!ckv_mul_i64(slots.layer_stride / slots.head_stride, config->layers, &planes) ||
        planes > INT32_MAX - config->kv_heads)
        return -1;
    return planes;
}

#ifdef CKV_HAVE_SM90A
enum { HAVE_SM90A = 1 };
#else
enum { HAVE_SM90A = 0 };
#endif

static bool fits_sm90(const ckv_pool *pool, int architecture)
{
    const ckv_pool_config *config = ckv_pool_get_config(pool);
    return HAVE_SM90A && architecture == SM90 && (config->head_dim == 64 || config->head_dim == 128) &&
           config->tokens_per_page >= CKV_PAGED_ATTENTION_BOX_TOKENS && count_planes(pool) > 0;
}

static ckv_status check_shape(const ckv_attention_args *args)
{
    const ckv_pool_config *config = ckv_pool_get_config(ckv_cache_pool(args->cache));
    const ckv_dtype dtype = ckv_pool_config_tensor_dtype(config);
    if (dtype != CKV_BF16 && dtype != CKV_FP16)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "attention: backend hopper takes tensors of bf16 and fp16, not %s",
                        ckv_dtype_name(dtype));
    if (config->head_dim % VECTOR_ELEMENTS != 0 || config->head_dim > CKV_PAGED_ATTENTION_MAX_HEAD_DIM)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend hopper takes a head_dim that is a multiple of %d up to %d, not %" PRId64,
                        VECTOR_ELEMENTS, CKV_PAGED_ATTENTION_MAX_HEAD_DIM, config->head_dim);
    int64_t packed_rows;
    if (!ckv_mul_i64(args->seq_len, args->q_heads, &packed_rows) || packed_rows > INT32_MAX / 2)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend hopper takes at most %d rows, not %" PRId64 " tokens of %" PRId64 " heads",
                        INT32_MAX / 2, args->seq_len, args->q_heads);
    return CKV_OK;
}

static ckv_status hopper_supports(const ckv_attention_args *args)
{
    CKV_TRY(ckv_cuda_check_options("hopper", args));
    CKV_TRY(check_shape(args));
    int device_id = 0, architecture = 0;
    CKV_TRY(ckv_cuda_current_device(&device_id));
    CKV_TRY(ckv_cuda_architecture(device_id, &architecture));
    if (architecture < OLDEST)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend hopper needs compute capability 8.0 or newer; this device has %d.%d",
                        architecture / 100, architecture / 10 % 10);
    return ckv_cuda_check_strides("hopper", args);
}

static bool hopper_prefers(const ckv_attention_args *args)
{
    const ckv_pool *pool = ckv_cache_pool(args->cache);
    int device_id = 0, architecture = 0;
    return ckv_pool_device(pool) == &ckv_device_cuda && ckv_cuda_current_device(&device_id) == CKV_OK &&
           ckv_cuda_architecture(device_id, &architecture) == CKV_OK && fits_sm90(pool, architecture);
}

/* The driver is found at run time, as the CUDA runtime finds it. */
static ckv_status encode_pool(const ckv_pool *pool, CUtensorMap *map_out)
{
    typedef CUresult (*encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    union {
        void *address;
        encoder function;
    } encode = {NULL};
    enum cudaDriverEntryPointQueryResult found;
    CKV_TRY(ckv_cuda_status(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode.address, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion"));
    if (found != cudaDriverEntryPointSuccess)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "attention: the CUDA driver has no cuTensorMapEncodeTiled; it must be "
                                               "of version 12.0 or newer");
    const ckv_pool_config *config = ckv_pool_get_config(pool);
    const ckv_pool_view slots = ckv_pool_get_view(pool);
    const cuuint64_t sizes[] = {(cuuint64_t)config->head_dim, (cuuint64_t)config->tokens_per_page,
                                (cuuint64_t)count_planes(pool)};
    const cuuint64_t strides[] = {(cuuint64_t)slots.slot_stride, (cuuint64_t)slots.head_stride};
    const int codes = config->dtype == CKV_FP8_E4M3;
    const cuuint32_t box[] = {codes ? (cuuint32_t)config->head_dim : CKV_PAGED_ATTENTION_BOX_ELEMENTS,
                              CKV_PAGED_ATTENTION_BOX_TOKENS, 1};
    const cuuint32_t steps[] = {1, 1, 1};
    const CUtensorMapDataType type = codes                       ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : config->dtype == CKV_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const CUtensorMapSwizzle swizzle = codes ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B;
    const CUresult result =
        encode.function(map_out, type, 3, slots.base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return ckv_fail(CKV_ERROR_DEVICE, "attention: cuTensorMapEncodeTiled: %d", (int)result);
    return CKV_OK;
}

static ckv_status make_sm90(const ckv_pool *pool, int device_id, ckv_paged_attention_sm90 *sm90_out)
{
    const int32_t kv_heads = (int32_t)ckv_pool_get_config(pool)->kv_heads;
    ckv_paged_attention_sm90 sm90 = {
        .planes = (int32_t)count_planes(pool), .page_planes = 2 * kv_heads, .kv_planes = kv_heads};
    int multiprocessors = 0;
    CKV_TRY(ckv_cuda_status(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_id),
                            "cudaDeviceGetAttribute"));
    sm90.multiprocessors = (int32_t)ckv_min_i64(multiprocessors, CKV_PAGED_ATTENTION_MAX_MULTIPROCESSORS);
    CKV_TRY(encode_pool(pool, &sm90.pool));
    CKV_TRY(ckv_paged_attention_sm90_prepare());
    const int64_t bytes =
        ckv_paged_attention_sm90_workspace_bytes(sm90.multiprocessors, (int32_t)ckv_pool_get_config(pool)->head_dim);
    CKV_TRY(ckv_device_cuda.alloc((size_t)bytes, &sm90.workspace));
    *sm90_out = sm90;
    return CKV_OK;
}

static void release_plan(ckv_cache_attachment *attachment)
{
    hopper_plan *plan = (hopper_plan *)attachment;
    ckv_device_cuda.free(plan->sm90.workspace);
    free(plan);
}

static ckv_status make_plan(ckv_cache *cache, int device_id, hopper_plan **plan_out)
{
    const ckv_pool *pool = ckv_cache_pool(cache);
    int architecture = 0;
    CKV_TRY(ckv_cuda_architecture(device_id, &architecture));
    hopper_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "attention: out of host memory for the plan of a cache");
    plan->device_id = device_id;
    ckv_status status = fits_sm90(pool, architecture) ? make_sm90(pool, device_id, &plan->sm90) : CKV_OK;
    if (status != CKV_OK) {
        free(plan);
        return status;
    }
    plan->attachment.owner = &ckv_attention_backend_hopper;
    plan->attachment.release = release_plan;
    ckv_cache_attach(cache, &plan->attachment);
    *plan_out = plan;
    return CKV_OK;
}

static ckv_status hopper_prepare(const ckv_attention_args *args, const ckv_block_view *view, ckv_stream stream,
                                 void **plan_out)
{
    (void)view;
    int device_id = 0, capturing = 0;
    CKV_TRY(ckv_cuda_current_device(&device_id));
    CKV_TRY(ckv_cuda_check_addresses(args, device_id));
    hopper_plan *plan = (hopper_plan *)ckv_cache_find_attachment(args->cache, &ckv_attention_backend_hopper);
    if (plan != NULL && plan->device_id != device_id)
        return ckv_fail(CKV_ERROR_STATE, "attention: the cache's plan is for CUDA device %d, the current one is %d",
                        plan->device_id, device_id);
    if (plan == NULL) {
        CKV_TRY(ckv_device_cuda.is_capturing(stream, &capturing));
        if (capturing)
            return ckv_fail(CKV_ERROR_STATE, "attention: the first forward of a cache makes its plan, which a stream "
                                             "that is being captured cannot; run it once before the capture");
        CKV_TRY(make_plan(args->cache, device_id, &plan));
    }
    *plan_out = plan;
    return CKV_OK;
}

static ckv_status hopper_run(const ckv_attention_args *args, const ckv_block_view *view, void *plan, ckv_stream stream)
{
    const ckv_pool *pool = ckv_cache_pool(args->cache);
    const ckv_pool_config *config = ckv_pool_get_config(pool);
    const ckv_pool_view slots = ckv_pool_get_view(pool);
    const ckv_cuda_strides strides = ckv_cuda_used_strides(args);
    const float *scales =
        slots.scales != NULL ? slots.scales + args->layer * 2 * config->kv_heads + args->first_kv_head : NULL;
    const ckv_paged_attention_params params = {
        .dtype = ckv_pool_config_tensor_dtype(config),
        .head_dim = (int32_t)config->head_dim,
        .q_heads = (int32_t)args->q_heads,
        .kv_heads = (int32_t)args->kv_heads,
        .num_blocks = (int32_t)(args->seq_len / view->causal_block_size),
        .block_size = (int32_t)view->causal_block_size,
        .tokens_per_page = (int32_t)config->tokens_per_page,
        .row_pages = (int32_t)view->row_pages,
        .rows = view->rows,
        .seq_len_kv = view->seq_len_kv,
        .q = args->q,
        .q_token_stride = strides.q_token,
        .q_head_stride = strides.q_head,
        .out = args->out,
        .out_token_stride = strides.out_token,
        .out_head_stride = strides.out_head,
        .lse = args->lse,
        .kv = (const char *)slots.base + args->layer * slots.layer_stride + args->first_kv_head * slots.head_stride,
        .page_stride = slots.page_stride,
        .kv_stride = slots.kv_stride,
        .head_stride = slots.head_stride,
        .slot_stride = slots.slot_stride,
        .scale = (float)args->scale,
        .k_scales = scales,
        .v_scales = scales != NULL ? scales + config->kv_heads : NULL,
    };
    ckv_paged_attention_sm90 sm90 = ((const hopper_plan *)plan)->sm90;
    if (sm90.workspace == NULL)
        return ckv_paged_attention_portable_cuda(&params, stream);
    sm90.first_plane = (int32_t)(args->layer * (slots.layer_stride / slots.head_stride) + args->first_kv_head);
    return ckv_paged_attention_sm90_cuda(&params, &sm90, stream);
}

static void hopper_release(void *plan)
{
    (void)plan; /* the cache keeps it */
}

const ckv_attention_backend ckv_attention_backend_hopper = {
    .name = "hopper",
    .supports = hopper_supports,
    .prefers = hopper_prefers,
    .prepare = hopper_prepare,
    .run = hopper_run,
    .release = hopper_release,
};
