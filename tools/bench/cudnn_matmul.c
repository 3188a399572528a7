/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/cudnn_matmul.h"

#include "lib/support/error.h"

#if CKV_HAVE_CUDNN
#include "lib/attention/cudnn_plan.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdlib.h>

struct cudnn_matmul {
    cudnnHandle_t handle;
    ckv_cudnn_bag bag;
    cudnnBackendDescriptor_t plan, pack;
    void *workspace;
};

#define CUDNN_TRY(call) CKV_TRY(ckv_cudnn_status(call, #call))

static ckv_status make(cudnn_matmul *m, cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made_out)
{
    if (m->bag.count == CKV_CUDNN_MAX_DESCRIPTORS)
        return ckv_fail(CKV_ERROR_INTERNAL, "more than %d descriptors", (int)CKV_CUDNN_MAX_DESCRIPTORS);
    CUDNN_TRY(cudnnBackendCreateDescriptor(type, made_out));
    m->bag.descriptors[m->bag.count++] = *made_out;
    return CKV_OK;
}

static ckv_status set_one(cudnnBackendDescriptor_t at, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, const void *value)
{
    CUDNN_TRY(cudnnBackendSetAttribute(at, name, type, 1, value));
    return CKV_OK;
}

static ckv_status set_descriptor(cudnnBackendDescriptor_t at, cudnnBackendAttributeName_t name,
                                 cudnnBackendDescriptor_t value)
{
    return set_one(at, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value);
}

static ckv_status add_matrix(cudnn_matmul *m, cudnnBackendDescriptor_t operation, cudnnBackendAttributeName_t name,
                             int64_t id, int64_t n, bool by_columns)
{
    const int64_t dims[] = {1, n, n}, strides[] = {n * n, by_columns ? 1 : n, by_columns ? n : 1}, alignment = 16;
    const cudnnDataType_t type = CUDNN_DATA_BFLOAT16;
    cudnnBackendDescriptor_t t;
    CKV_TRY(make(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR, &t));
    CKV_TRY(set_one(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id));
    CKV_TRY(set_one(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type));
    CUDNN_TRY(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 3, dims));
    CUDNN_TRY(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 3, strides));
    CKV_TRY(set_one(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment));
    CUDNN_TRY(cudnnBackendFinalize(t));
    return set_descriptor(operation, name, t);
}

static ckv_status make_graph(cudnn_matmul *m, int64_t n, cudnnBackendDescriptor_t *graph_out)
{
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t product, operation;
    CKV_TRY(make(m, CUDNN_BACKEND_MATMUL_DESCRIPTOR, &product));
    CKV_TRY(set_one(product, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &sums));
    CUDNN_TRY(cudnnBackendFinalize(product));
    CKV_TRY(make(m, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &operation));
    CKV_TRY(add_matrix(m, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, 1, n, false));
    CKV_TRY(add_matrix(m, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, 2, n, true));
    CKV_TRY(add_matrix(m, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, 3, n, false));
    CKV_TRY(set_descriptor(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, product));
    CUDNN_TRY(cudnnBackendFinalize(operation));
    CKV_TRY(make(m, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, graph_out));
    CKV_TRY(set_one(*graph_out, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &m->handle));
    CKV_TRY(set_descriptor(*graph_out, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation));
    CUDNN_TRY(cudnnBackendFinalize(*graph_out));
    return CKV_OK;
}

/* The engine that cuDNN thinks best. */
static ckv_status make_plan(cudnn_matmul *m, cudnnBackendDescriptor_t graph)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t heuristics, config;
    int64_t count = 0, bytes = 0;
    CKV_TRY(make(m, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics));
    CKV_TRY(set_descriptor(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
    CKV_TRY(set_one(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode));
    CUDNN_TRY(cudnnBackendFinalize(heuristics));
    CKV_TRY(make(m, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config));
    CUDNN_TRY(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                       &count, &config));
    if (count < 1)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "cuDNN has no engine for a matrix product");
    CKV_TRY(make(m, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &m->plan));
    CKV_TRY(set_one(m->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &m->handle));
    CKV_TRY(set_descriptor(m->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    CUDNN_TRY(cudnnBackendFinalize(m->plan));
    CUDNN_TRY(cudnnBackendGetAttribute(m->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                       &bytes));
    if (cudaMalloc(&m->workspace, bytes > 0 ? (size_t)bytes : 1) != cudaSuccess)
        return ckv_fail(CKV_ERROR_MEMORY, "no memory for a workspace of %lld bytes", (long long)bytes);
    return CKV_OK;
}

static ckv_status bind(cudnn_matmul *m, const void *a, const void *b, void *c)
{
    const int64_t ids[] = {1, 2, 3};
    const void *const addresses[] = {a, b, c};
    CKV_TRY(make(m, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &m->pack));
    CUDNN_TRY(cudnnBackendSetAttribute(m->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids));
    CUDNN_TRY(
        cudnnBackendSetAttribute(m->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, addresses));
    CKV_TRY(set_one(m->pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &m->workspace));
    CUDNN_TRY(cudnnBackendFinalize(m->pack));
    return CKV_OK;
}

static ckv_status open_all(cudnn_matmul *m, int64_t n, const void *a, const void *b, void *c, ckv_stream stream)
{
    cudnnBackendDescriptor_t graph;
    CUDNN_TRY(cudnnCreate(&m->handle));
    CUDNN_TRY(cudnnSetStream(m->handle, stream));
    CKV_TRY(make_graph(m, n, &graph));
    CKV_TRY(make_plan(m, graph));
    return bind(m, a, b, c);
}

ckv_status cudnn_matmul_create(int64_t n, const void *a, const void *b, void *c, ckv_stream stream,
                               cudnn_matmul **matmul_out)
{
    cudnn_matmul *m = calloc(1, sizeof *m);
    if (m == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "out of memory");
    ckv_status status = open_all(m, n, a, b, c, stream);
    if (status == CKV_OK)
        *matmul_out = m;
    else
        cudnn_matmul_destroy(&m);
    return status;
}

ckv_status cudnn_matmul_run(void *matmul, ckv_stream stream)
{
    const cudnn_matmul *m = matmul;
    (void)stream; /* the handle's */
    CUDNN_TRY(cudnnBackendExecute(m->handle, m->plan, m->pack));
    return CKV_OK;
}

void cudnn_matmul_destroy(cudnn_matmul **matmul)
{
    cudnn_matmul *m = *matmul;
    if (m == NULL)
        return;
    ckv_cudnn_bag_empty(&m->bag);
    cudaFree(m->workspace);
    if (m->handle != NULL)
        cudnnDestroy(m->handle);
    free(m);
    *matmul = NULL;
}
#else
static ckv_status no_cudnn(void)
{
    return ckv_fail(CKV_ERROR_UNSUPPORTED, "this build has no cuDNN");
}

ckv_status cudnn_matmul_create(int64_t n, const void *a, const void *b, void *c, ckv_stream stream,
                               cudnn_matmul **matmul_out)
{
    (void)n, (void)a, (void)b, (void)c, (void)stream, (void)matmul_out;
    return no_cudnn();
}

ckv_status cudnn_matmul_run(void *matmul, ckv_stream stream)
{
    (void)matmul, (void)stream;
    return no_cudnn();
}

void cudnn_matmul_destroy(cudnn_matmul **matmul)
{
    *matmul = NULL;
}
#endif
