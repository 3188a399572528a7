/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/cudnn_contiguous.h"

#include "lib/support/error.h"

#if CKV_HAVE_CUDNN
#include "lib/attention/cudnn_plan.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct cudnn_contiguous {
    cudnnHandle_t handle;
    ckv_cudnn_bag bag;
    cudnnBackendDescriptor_t plan, pack;
    float scale;
    void *workspace;
};

#define CUDNN_TRY(call) CKV_TRY(ckv_cudnn_status(call, #call))

/* The bag owns what is made. */
static ckv_status make(cudnn_contiguous *a, cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made_out)
{
    if (a->bag.count == CKV_CUDNN_MAX_DESCRIPTORS)
        return ckv_fail(CKV_ERROR_INTERNAL, "more than %d descriptors", CKV_CUDNN_MAX_DESCRIPTORS);
    CUDNN_TRY(cudnnBackendCreateDescriptor(type, &a->bag.descriptors[a->bag.count]));
    *made_out = a->bag.descriptors[a->bag.count++];
    return CKV_OK;
}

static ckv_status set_descriptor(cudnnBackendDescriptor_t at, cudnnBackendAttributeName_t name,
                                 cudnnBackendDescriptor_t value)
{
    CUDNN_TRY(cudnnBackendSetAttribute(at, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value));
    return CKV_OK;
}

typedef struct operand {
    cudnnBackendAttributeName_t name;
    int64_t id, dims[4], strides[4];
    cudnnDataType_t type;
    bool by_value;
} operand;

static ckv_status add_operand(cudnn_contiguous *a, cudnnBackendDescriptor_t operation, const operand *o)
{
    const int64_t alignment = 16;
    cudnnBackendDescriptor_t t;
    CKV_TRY(make(a, CUDNN_BACKEND_TENSOR_DESCRIPTOR, &t));
    CUDNN_TRY(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &o->id));
    CUDNN_TRY(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &o->type));
    CUDNN_TRY(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, o->dims));
    CUDNN_TRY(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, o->strides));
    CUDNN_TRY(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment));
    CUDNN_TRY(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &o->by_value));
    CUDNN_TRY(cudnnBackendFinalize(t));
    return set_descriptor(operation, o->name, t);
}

static ckv_status make_operation(cudnn_contiguous *a, const cudnn_contiguous_shape *s,
                                 cudnnBackendDescriptor_t *operation_out)
{
    const cudnnDataType_t type = s->dtype == CKV_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const int64_t d = s->head_dim, q_token = s->q_heads * d, kv_token = s->kv_heads * d;
    const operand operands[] = {
        {CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,
         1,
         {1, s->q_heads, s->queries, d},
         {s->queries * s->q_token_stride, d, s->q_token_stride, 1},
         type,
         false},
        {CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
         2,
         {1, s->kv_heads, s->keys, d},
         {s->keys * kv_token, d, kv_token, 1},
         type,
         false},
        {CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
         3,
         {1, s->kv_heads, s->keys, d},
         {s->keys * kv_token, d, kv_token, 1},
         type,
         false},
        {CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
         4,
         {1, s->q_heads, s->queries, d},
         {s->queries * q_token, d, q_token, 1},
         type,
         false},
        {CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, 5, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, true},
    };
    CKV_TRY(make(a, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, operation_out));
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        CKV_TRY(add_operand(a, *operation_out, &operands[i]));
    CUDNN_TRY(cudnnBackendFinalize(*operation_out));
    return CKV_OK;
}

/* The engine that cuDNN thinks best. */
static ckv_status find_engine(cudnn_contiguous *a, cudnnBackendDescriptor_t operation,
                              cudnnBackendDescriptor_t *engine_out)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int32_t device_id = 0;
    int64_t count = 0;
    cudnnBackendDescriptor_t graph, device, heuristics;
    if (cudaGetDevice(&device_id) != cudaSuccess)
        return ckv_fail(CKV_ERROR_DEVICE, "no current CUDA device");
    CKV_TRY(make(a, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &graph));
    CKV_TRY(set_descriptor(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation));
    CUDNN_TRY(cudnnBackendFinalize(graph));
    CKV_TRY(make(a, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device));
    CUDNN_TRY(cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &device_id));
    CUDNN_TRY(cudnnBackendFinalize(device));
    CKV_TRY(make(a, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics));
    CKV_TRY(set_descriptor(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
    CUDNN_TRY(cudnnBackendSetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    CKV_TRY(set_descriptor(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device));
    CUDNN_TRY(cudnnBackendFinalize(heuristics));
    CKV_TRY(make(a, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, engine_out));
    CUDNN_TRY(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                       &count, engine_out));
    return count > 0 ? CKV_OK : ckv_fail(CKV_ERROR_UNSUPPORTED, "cuDNN has no engine for this shape");
}

static ckv_status make_plan(cudnn_contiguous *a, cudnnBackendDescriptor_t operation)
{
    int64_t count = 0, bytes = 0;
    cudnnBackendDescriptor_t engine;
    CKV_TRY(find_engine(a, operation, &engine));
    CKV_TRY(make(a, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &a->plan));
    CKV_TRY(set_descriptor(a->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine));
    CUDNN_TRY(cudnnBackendFinalize(a->plan));
    CUDNN_TRY(cudnnBackendGetAttribute(a->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                       &bytes));
    if (cudaMalloc(&a->workspace, bytes > 0 ? (size_t)bytes : 1) != cudaSuccess)
        return ckv_fail(CKV_ERROR_MEMORY, "workspace of %lld bytes: out of memory", (long long)bytes);
    return CKV_OK;
}

static ckv_status open_attention(cudnn_contiguous *a, const cudnn_contiguous_shape *shape, const void *const tensors[4],
                                 ckv_stream stream)
{
    const int64_t ids[] = {1, 2, 3, 4, 5};
    const void *addresses[] = {tensors[0], tensors[1], tensors[2], tensors[3], &a->scale};
    cudnnBackendDescriptor_t operation;
    if (shape->dtype != CKV_BF16 && shape->dtype != CKV_FP16)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "dtype %s; cuDNN attends bf16 and fp16", ckv_dtype_name(shape->dtype));
    a->scale = 1 / sqrtf((float)shape->head_dim);
    CUDNN_TRY(cudnnCreate(&a->handle));
    CUDNN_TRY(cudnnSetStream(a->handle, stream));
    CKV_TRY(make_operation(a, shape, &operation));
    CKV_TRY(make_plan(a, operation));
    CKV_TRY(make(a, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &a->pack));
    CUDNN_TRY(cudnnBackendSetAttribute(a->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 5, ids));
    CUDNN_TRY(
        cudnnBackendSetAttribute(a->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 5, addresses));
    CUDNN_TRY(
        cudnnBackendSetAttribute(a->pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &a->workspace));
    CUDNN_TRY(cudnnBackendFinalize(a->pack));
    return CKV_OK;
}

ckv_status cudnn_contiguous_create(const cudnn_contiguous_shape *shape, const void *q, const void *k, const void *v,
                                   void *out, ckv_stream stream, cudnn_contiguous **attention_out)
{
    const void *const tensors[] = {q, k, v, out};
    cudnn_contiguous *attention = calloc(1, sizeof *attention);
    if (attention == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    ckv_status status = open_attention(attention, shape, tensors, stream);
    if (status == CKV_OK)
        *attention_out = attention;
    else
        cudnn_contiguous_destroy(&attention);
    return status;
}

ckv_status cudnn_contiguous_run(const cudnn_contiguous *attention)
{
    CUDNN_TRY(cudnnBackendExecute(attention->handle, attention->plan, attention->pack));
    return CKV_OK;
}

void cudnn_contiguous_destroy(cudnn_contiguous **attention)
{
    if (attention == NULL || *attention == NULL)
        return;
    ckv_cudnn_bag_empty(&(*attention)->bag);
    if ((*attention)->handle != NULL)
        cudnnDestroy((*attention)->handle);
    cudaFree((*attention)->workspace);
    free(*attention);
    *attention = NULL;
}

const char *cudnn_version_text(void)
{
    static char text[32];
    size_t version = cudnnGetVersion();
    snprintf(text, sizeof text, "%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    return text;
}
#else
ckv_status cudnn_contiguous_create(const cudnn_contiguous_shape *shape, const void *q, const void *k, const void *v,
                                   void *out, ckv_stream stream, cudnn_contiguous **attention_out)
{
    (void)shape, (void)q, (void)k, (void)v, (void)out, (void)stream, (void)attention_out;
    return ckv_fail(CKV_ERROR_UNSUPPORTED, "this build has no cuDNN");
}

ckv_status cudnn_contiguous_run(const cudnn_contiguous *attention)
{
    (void)attention;
    return ckv_fail(CKV_ERROR_UNSUPPORTED, "this build has no cuDNN");
}

void cudnn_contiguous_destroy(cudnn_contiguous **attention)
{
    (void)attention;
}

const char *cudnn_version_text(void)
{
    return "";
}
#endif
