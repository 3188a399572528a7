/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cudnn_contiguous.h"

#include "bench/bench.h"

#include <math.h>
#include <stdbool.h>

static void check(cudnnStatus_t status, const char *call)
{
    if (status != CUDNN_STATUS_SUCCESS)
        bench_fail(call, cudnnGetErrorString(status));
}
#define CUDNN(call) check(call, #call)

static cudnnBackendDescriptor_t create(cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t descriptor;
    CUDNN(cudnnBackendCreateDescriptor(type, &descriptor));
    return descriptor;
}

static cudnnBackendDescriptor_t tensor(int64_t id, cudnnDataType_t type, bool by_value, const int64_t dims[4],
                                       const int64_t strides[4])
{
    const int64_t alignment = 16;
    cudnnBackendDescriptor_t t = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    CUDNN(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    CUDNN(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    CUDNN(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims));
    CUDNN(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides));
    CUDNN(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment));
    CUDNN(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value));
    CUDNN(cudnnBackendFinalize(t));
    return t;
}

static void make_plan(cudnn_contiguous *attention, cudnnBackendDescriptor_t operation)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0, bytes = 0;
    cudnnBackendDescriptor_t graph = create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    CUDNN(cudnnBackendSetAttribute(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation));
    CUDNN(cudnnBackendFinalize(graph));
    int32_t device_id = 0;
    CUDA(cudaGetDevice(&device_id));
    cudnnBackendDescriptor_t device = create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    CUDNN(cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &device_id));
    CUDNN(cudnnBackendFinalize(device));
    cudnnBackendDescriptor_t heuristics = create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    CUDNN(cudnnBackendSetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                   &graph));
    CUDNN(cudnnBackendSetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    CUDNN(cudnnBackendSetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                   &device));
    CUDNN(cudnnBackendFinalize(heuristics));
    cudnnBackendDescriptor_t config = create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    CUDNN(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                   &config));
    attention->plan = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    CUDNN(cudnnBackendSetAttribute(attention->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config));
    CUDNN(cudnnBackendFinalize(attention->plan));
    CUDNN(cudnnBackendGetAttribute(attention->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                   &count, &bytes));
    CUDA(cudaMalloc(&attention->workspace, bytes > 0 ? (size_t)bytes : 1));
}

void cudnn_contiguous_open(cudnn_contiguous *attention, cudnnHandle_t handle, int64_t queries, int64_t keys,
                           int64_t q_heads, int64_t kv_heads, int64_t head_dim, const void *q, const void *k,
                           const void *v, void *out)
{
    const int64_t q_dims[] = {1, q_heads, queries, head_dim}, kv_dims[] = {1, kv_heads, keys, head_dim};
    const int64_t q_strides[] = {queries * q_heads * head_dim, head_dim, q_heads * head_dim, 1};
    const int64_t kv_strides[] = {keys * kv_heads * head_dim, head_dim, kv_heads * head_dim, 1};
    const int64_t one[] = {1, 1, 1, 1}, ids[] = {1, 2, 3, 4, 5};
    const struct {
        cudnnBackendAttributeName_t attribute;
        cudnnBackendDescriptor_t descriptor;
    } operands[] = {
        {CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, tensor(1, CUDNN_DATA_BFLOAT16, false, q_dims, q_strides)},
        {CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, tensor(2, CUDNN_DATA_BFLOAT16, false, kv_dims, kv_strides)},
        {CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, tensor(3, CUDNN_DATA_BFLOAT16, false, kv_dims, kv_strides)},
        {CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, tensor(4, CUDNN_DATA_BFLOAT16, false, q_dims, q_strides)},
        {CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, tensor(5, CUDNN_DATA_FLOAT, true, one, one)},
    };
    cudnnBackendDescriptor_t operation = create(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        CUDNN(cudnnBackendSetAttribute(operation, operands[i].attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                       &operands[i].descriptor));
    CUDNN(cudnnBackendFinalize(operation));
    attention->handle = handle;
    attention->scale = 1 / sqrtf((float)head_dim);
    make_plan(attention, operation);
    const void *addresses[] = {q, k, v, out, &attention->scale};
    attention->pack = create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    CUDNN(cudnnBackendSetAttribute(attention->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 5, ids));
    CUDNN(cudnnBackendSetAttribute(attention->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 5,
                                   addresses));
    CUDNN(cudnnBackendSetAttribute(attention->pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                   &attention->workspace));
    CUDNN(cudnnBackendFinalize(attention->pack));
}

void cudnn_contiguous_run(const cudnn_contiguous *attention)
{
    CUDNN(cudnnBackendExecute(attention->handle, attention->plan, attention->pack));
}
