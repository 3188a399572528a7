/* SPDX-License-Identifier: Apache-2.0 */
/* The unified operation needs both length tensors: without them the library crashes while it looks for engines, so the
 * graph here always has them. */
#include "lib/attention/cudnn_plan.h"

#include "lib/device/cuda_status.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* What cuDNN may assume of addresses: one 16-byte access. */
enum { TENSOR_ALIGNMENT = 16, LENGTH_ALIGNMENT = 4 };

enum { ID_Q = 1, ID_K, ID_V, ID_OUT, ID_ROWS, ID_SEQ_LEN_Q, ID_SEQ_LEN_KV, ID_SCALE, ID_LSE, NUM_IDS = ID_LSE };

/* cuDNN keeps the address of the scale, not its value: both live here until the pack is replaced. */
typedef struct pack {
    cudnnBackendDescriptor_t descriptor;
    ckv_cudnn_tensors tensors;
} pack;

struct ckv_cudnn_plan {
    ckv_cudnn_shape shape;
    ckv_cudnn_bag bag;
    cudnnBackendDescriptor_t descriptor;
    int64_t engine;
    void *workspace;
    int64_t layers;
    pack packs[]; /* [layers] */
};

#define TRY_CUDNN(call) CKV_TRY(ckv_cudnn_status(call, #call))

#define SET(descriptor, attribute, type, count, values)                                                                \
    CKV_TRY(ckv_cudnn_status(cudnnBackendSetAttribute(descriptor, attribute, type, count, values),                     \
                             "cudnnBackendSetAttribute(" #attribute ")"))
#define GET(descriptor, attribute, type, capacity, count_out, values)                                                  \
    CKV_TRY(ckv_cudnn_status(cudnnBackendGetAttribute(descriptor, attribute, type, capacity, count_out, values),       \
                             "cudnnBackendGetAttribute(" #attribute ")"))
#define FINALIZE(descriptor, what)                                                                                     \
    CKV_TRY(ckv_cudnn_status(cudnnBackendFinalize(descriptor), "cudnnBackendFinalize(" what ")"))

ckv_status ckv_cudnn_status(cudnnStatus_t error, const char *call)
{
    if (error == CUDNN_STATUS_SUCCESS)
        return CKV_OK;
    char text[256] = "";
    cudnnGetLastErrorString(text, sizeof text);
    text[strcspn(text, "\n")] = '\0';
    ckv_record_error("%s: %d %s: %s", call, (int)error, cudnnGetErrorString(error), text);
    if (error == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        error == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        return CKV_ERROR_MEMORY;
    if (CUDNN_STATUS_CATEGORY((int)error) == (int)CUDNN_STATUS_NOT_SUPPORTED)
        return CKV_ERROR_UNSUPPORTED;
    return CKV_ERROR_DEVICE;
}

ckv_status ckv_cudnn_check_version(size_t version)
{
    if (version >= CKV_CUDNN_MIN_VERSION)
        return CKV_OK;
    return ckv_fail(
        CKV_ERROR_UNSUPPORTED,
        "attention: backend cudnn needs cuDNN %d.%d or newer for page tables, the library found is %zu.%zu.%zu",
        CKV_CUDNN_MIN_VERSION / 10000, CKV_CUDNN_MIN_VERSION / 100 % 100, version / 10000, version / 100 % 100,
        version % 100);
}

ckv_status ckv_cudnn_check_shape(const ckv_cudnn_shape *shape, int architecture)
{
    if (architecture / 100 != 9 && architecture / 100 != 10)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend cudnn runs on compute capability 9.x and 10.x, not %d.%d",
                        architecture / 100, architecture / 10 % 10);
    if (shape->dtype != CKV_BF16 && shape->dtype != CKV_FP16)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "attention: backend cudnn takes bf16 and fp16, not %s",
                        ckv_dtype_name((ckv_dtype)shape->dtype));
    if (shape->head_dim % 8 != 0 || shape->head_dim < 8 || shape->head_dim > 256)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend cudnn takes a head_dim of 8 to 256 in steps of 8, not %" PRId64,
                        shape->head_dim);
    int64_t page = shape->tokens_per_page;
    if (page < 1 || page > 1024 || (page & (page - 1)) != 0)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend cudnn takes pages of a power of two up to 1024 tokens, not %" PRId64, page);
    if (shape->kv_heads < 1 || shape->q_heads % shape->kv_heads != 0)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend cudnn takes a multiple of the K/V heads as query heads, not %" PRId64
                        " of %" PRId64,
                        shape->q_heads, shape->kv_heads);
    return CKV_OK;
}

static ckv_status add(ckv_cudnn_bag *bag, cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor_out)
{
    if (bag->count == CKV_CUDNN_MAX_DESCRIPTORS)
        return ckv_fail(CKV_ERROR_INTERNAL, "cudnn: more than %d descriptors in a plan", CKV_CUDNN_MAX_DESCRIPTORS);
    TRY_CUDNN(cudnnBackendCreateDescriptor(type, descriptor_out));
    bag->descriptors[bag->count++] = *descriptor_out;
    return CKV_OK;
}

void ckv_cudnn_bag_empty(ckv_cudnn_bag *bag)
{
    while (bag->count > 0)
        cudnnBackendDestroyDescriptor(bag->descriptors[--bag->count]);
}

typedef struct tensor {
    int64_t id;
    cudnnDataType_t type;
    int64_t alignment;
    bool by_value;
    int64_t dims[4], strides[4];
} tensor;

static ckv_status add_tensor(ckv_cudnn_bag *bag, const tensor *t, cudnnBackendDescriptor_t *descriptor_out)
{
    cudnnBackendDescriptor_t descriptor;
    CKV_TRY(add(bag, CUDNN_BACKEND_TENSOR_DESCRIPTOR, &descriptor));
    SET(descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &t->id);
    SET(descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t->type);
    SET(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t->dims);
    SET(descriptor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t->strides);
    SET(descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &t->alignment);
    SET(descriptor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &t->by_value);
    FINALIZE(descriptor, "tensor");
    *descriptor_out = descriptor;
    return CKV_OK;
}

/* The operation's tensors in the order of their ids, from 1. */
static int describe(const ckv_cudnn_shape *s, tensor tensors[NUM_IDS])
{
    const cudnnDataType_t element = s->dtype == CKV_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const int64_t blocks = s->num_blocks, rows = s->block_size;
    const tensor all[NUM_IDS] = {
        {ID_Q,
         element,
         TENSOR_ALIGNMENT,
         false,
         {blocks, s->q_heads, rows, s->head_dim},
         {rows * s->q_token_stride, s->q_head_stride, s->q_token_stride, 1}},
        {ID_K,
         element,
         TENSOR_ALIGNMENT,
         false,
         {s->pool_pages, s->kv_heads, s->tokens_per_page, s->head_dim},
         {s->page_stride, s->head_stride, s->slot_stride, 1}},
        {ID_V,
         element,
         TENSOR_ALIGNMENT,
         false,
         {s->pool_pages, s->kv_heads, s->tokens_per_page, s->head_dim},
         {s->page_stride, s->head_stride, s->slot_stride, 1}},
        {ID_OUT,
         element,
         TENSOR_ALIGNMENT,
         false,
         {blocks, s->q_heads, rows, s->head_dim},
         {rows * s->out_token_stride, s->out_head_stride, s->out_token_stride, 1}},
        {ID_ROWS,
         CUDNN_DATA_INT32,
         LENGTH_ALIGNMENT,
         false,
         {blocks, 1, s->row_pages, 1},
         {s->row_pages, s->row_pages, 1, 1}},
        {ID_SEQ_LEN_Q, CUDNN_DATA_INT32, LENGTH_ALIGNMENT, false, {blocks, 1, 1, 1}, {1, 1, 1, 1}},
        {ID_SEQ_LEN_KV, CUDNN_DATA_INT32, LENGTH_ALIGNMENT, false, {blocks, 1, 1, 1}, {1, 1, 1, 1}},
        {ID_SCALE, CUDNN_DATA_FLOAT, LENGTH_ALIGNMENT, true, {1, 1, 1, 1}, {1, 1, 1, 1}},
        {ID_LSE,
         CUDNN_DATA_FLOAT,
         LENGTH_ALIGNMENT,
         false,
         {blocks, s->q_heads, rows, 1},
         {rows * s->q_heads, 1, s->q_heads, 1}},
    };
    memcpy(tensors, all, sizeof all);
    return s->want_lse ? NUM_IDS : NUM_IDS - 1;
}

static ckv_status add_operation(ckv_cudnn_bag *bag, const ckv_cudnn_shape *shape, cudnnBackendDescriptor_t *graph_out)
{
    tensor tensors[NUM_IDS];
    cudnnBackendDescriptor_t of[NUM_IDS + 1], operation, graph;
    int count = describe(shape, tensors);
    for (int i = 0; i < count; i++)
        CKV_TRY(add_tensor(bag, &tensors[i], &of[tensors[i].id]));

    CKV_TRY(add(bag, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, &operation));
#define SET_TENSOR(attribute, id) SET(operation, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &of[id])
    SET_TENSOR(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, ID_Q);
    SET_TENSOR(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, ID_K);
    SET_TENSOR(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, ID_V);
    SET_TENSOR(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, ID_OUT);
    SET_TENSOR(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, ID_SCALE);
    SET_TENSOR(CUDNN_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_KDESC, ID_ROWS);
    SET_TENSOR(CUDNN_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_VDESC, ID_ROWS);
    SET_TENSOR(CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, ID_SEQ_LEN_Q);
    SET_TENSOR(CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, ID_SEQ_LEN_KV);
    if (shape->want_lse)
        SET_TENSOR(CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, ID_LSE);
#undef SET_TENSOR
    FINALIZE(operation, "SDPA operation");

    CKV_TRY(add(bag, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &graph));
    SET(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation);
    FINALIZE(graph, "operation graph");
    *graph_out = graph;
    return CKV_OK;
}

static ckv_status add_device(ckv_cudnn_bag *bag, int device_id, const char *json, cudnnBackendDescriptor_t *device_out)
{
    const int32_t id = device_id;
    CKV_TRY(add(bag, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, device_out));
    if (json != NULL)
        SET(*device_out, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(json) + 1, json);
    else
        SET(*device_out, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &id);
    FINALIZE(*device_out, "device properties");
    return CKV_OK;
}

static ckv_status engine_index(ckv_cudnn_bag *bag, cudnnBackendDescriptor_t config, int64_t *index_out)
{
    cudnnBackendDescriptor_t engine;
    int64_t count;
    CKV_TRY(add(bag, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    GET(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine);
    GET(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, index_out);
    return CKV_OK;
}

ckv_status ckv_cudnn_find_engines(const ckv_cudnn_shape *shape, int device_id, const char *device_json,
                                  ckv_cudnn_bag *bag, ckv_cudnn_engines *engines_out)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A; /* B leads to A, and the fallback list is empty */
    cudnnBackendDescriptor_t graph, device, heuristics;
    CKV_TRY(add_operation(bag, shape, &graph));
    CKV_TRY(add_device(bag, device_id, device_json, &device));
    CKV_TRY(add(bag, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics));
    SET(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    SET(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    SET(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
    FINALIZE(heuristics, "heuristics");

    ckv_cudnn_engines engines = {.count = 0};
    for (int i = 0; i < CKV_CUDNN_MAX_ENGINES; i++)
        CKV_TRY(add(bag, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &engines.configs[i]));
    int64_t count = 0; /* of those that pass cuDNN's own checks, fewer than it has candidates */
    GET(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, CKV_CUDNN_MAX_ENGINES, &count,
        engines.configs);
    engines.count = count < CKV_CUDNN_MAX_ENGINES ? (int)count : CKV_CUDNN_MAX_ENGINES;
    if (engines.count == 0)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: cuDNN %zu has no engine for %" PRId64 " query and %" PRId64 " K/V heads of %" PRId64
                        " in pages of %" PRId64 " tokens, %" PRId64 " blocks of %" PRId64,
                        cudnnGetVersion(), shape->q_heads, shape->kv_heads, shape->head_dim, shape->tokens_per_page,
                        shape->num_blocks, shape->block_size);
    for (int i = 0; i < engines.count; i++)
        CKV_TRY(engine_index(bag, engines.configs[i], &engines.global_index[i]));
    *engines_out = engines;
    return CKV_OK;
}

static ckv_status add_plan(ckv_cudnn_plan *plan, cudnnBackendDescriptor_t config)
{
    cudnnBackendDescriptor_t descriptor;
    CKV_TRY(add(&plan->bag, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &descriptor));
    SET(descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    FINALIZE(descriptor, "execution plan");
    plan->descriptor = descriptor;
    return CKV_OK;
}

/* The first engine, best first, whose kernels compile; then its workspace. */
static ckv_status build(ckv_cudnn_plan *plan, int device_id)
{
    ckv_cudnn_engines engines;
    CKV_TRY(ckv_cudnn_find_engines(&plan->shape, device_id, NULL, &plan->bag, &engines));
    ckv_status status = CKV_ERROR_INTERNAL;
    for (int i = 0; status != CKV_OK && i < engines.count; i++) {
        status = add_plan(plan, engines.configs[i]);
        plan->engine = engines.global_index[i];
    }
    CKV_TRY(status);
    int64_t bytes = 0, count;
    GET(plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes);
    if (bytes > 0)
        CKV_TRY(ckv_cuda_status(cudaMalloc(&plan->workspace, (size_t)bytes), "cudaMalloc of a cuDNN workspace"));
    return CKV_OK;
}

ckv_status ckv_cudnn_plan_create(const ckv_cudnn_shape *shape, int device_id, int64_t layers, ckv_cudnn_plan **plan_out)
{
    ckv_cudnn_plan *plan = calloc(1, sizeof *plan + (size_t)layers * sizeof plan->packs[0]);
    if (plan == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "attention: out of host memory for a plan of %" PRId64 " layers", layers);
    plan->shape = *shape;
    plan->layers = layers;
    ckv_status status = build(plan, device_id);
    if (status != CKV_OK) {
        ckv_cudnn_plan_destroy(plan);
        return status;
    }
    *plan_out = plan;
    return CKV_OK;
}

void ckv_cudnn_plan_destroy(ckv_cudnn_plan *plan)
{
    if (plan == NULL)
        return;
    for (int64_t layer = 0; layer < plan->layers; layer++)
        if (plan->packs[layer].descriptor != NULL)
            cudnnBackendDestroyDescriptor(plan->packs[layer].descriptor);
    ckv_cudnn_bag_empty(&plan->bag);
    cudaFree(plan->workspace);
    free(plan);
}

const ckv_cudnn_shape *ckv_cudnn_plan_shape(const ckv_cudnn_plan *plan)
{
    return &plan->shape;
}

int64_t ckv_cudnn_plan_engine(const ckv_cudnn_plan *plan)
{
    return plan->engine;
}

static bool same_tensors(const ckv_cudnn_tensors *a, const ckv_cudnn_tensors *b)
{
    return a->q == b->q && a->k == b->k && a->v == b->v && a->out == b->out && a->lse == b->lse && a->rows == b->rows &&
           a->seq_len_q == b->seq_len_q && a->seq_len_kv == b->seq_len_kv &&
           memcmp(&a->scale, &b->scale, sizeof a->scale) == 0;
}

static ckv_status fill_pack(const ckv_cudnn_plan *plan, pack *p)
{
    const ckv_cudnn_tensors *t = &p->tensors;
    static const int64_t ids[] = {ID_Q, ID_K, ID_V, ID_OUT, ID_ROWS, ID_SEQ_LEN_Q, ID_SEQ_LEN_KV, ID_SCALE, ID_LSE};
    const void *addresses[] = {t->q, t->k, t->v, t->out, t->rows, t->seq_len_q, t->seq_len_kv, &t->scale, t->lse};
    const int64_t count = plan->shape.want_lse ? NUM_IDS : NUM_IDS - 1;
    SET(p->descriptor, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    SET(p->descriptor, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses);
    SET(p->descriptor, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &plan->workspace);
    FINALIZE(p->descriptor, "variant pack");
    return CKV_OK;
}

ckv_status ckv_cudnn_plan_bind(ckv_cudnn_plan *plan, int64_t layer, const ckv_cudnn_tensors *tensors)
{
    pack *p = &plan->packs[layer];
    if (p->descriptor != NULL && same_tensors(&p->tensors, tensors))
        return CKV_OK;
    if (p->descriptor != NULL) /* a finalized pack takes no other pointers */
        cudnnBackendDestroyDescriptor(p->descriptor);
    p->descriptor = NULL;
    TRY_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &p->descriptor));
    p->tensors = *tensors;
    ckv_status status = fill_pack(plan, p);
    if (status != CKV_OK) {
        cudnnBackendDestroyDescriptor(p->descriptor);
        p->descriptor = NULL;
    }
    return status;
}

ckv_status ckv_cudnn_plan_run(const ckv_cudnn_plan *plan, int64_t layer, cudnnHandle_t handle)
{
    return ckv_cudnn_status(cudnnBackendExecute(handle, plan->descriptor, plan->packs[layer].descriptor),
                            "cudnnBackendExecute");
}
