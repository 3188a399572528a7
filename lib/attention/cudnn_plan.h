/* SPDX-License-Identifier: Apache-2.0 */
/* One paged attention of cuDNN: a shape, the engines that take it, a plan that runs it. The unified operation of the
 * backend API with page tables; knows nothing of the cache. */
#ifndef CKV_ATTENTION_CUDNN_PLAN_H
#define CKV_ATTENTION_CUDNN_PLAN_H

#include <ckv/types.h>
#include <cudnn.h>

/* The first version whose unified operation takes page tables and lengths. */
#define CKV_CUDNN_MIN_VERSION 91500

/* Everything that reaches a descriptor, and nothing else: the key of a plan. Only int64_t, so that keys compare by
 * their bytes. Strides in elements. */
typedef struct ckv_cudnn_shape {
    int64_t dtype;                  /* ckv_dtype */
    int64_t num_blocks, block_size; /* a batch of causal blocks */
    int64_t q_heads, kv_heads, head_dim;
    int64_t tokens_per_page, row_pages, pool_pages; /* pool_pages: with the guard page */
    int64_t q_token_stride, q_head_stride;
    int64_t out_token_stride, out_head_stride;
    int64_t page_stride, head_stride, slot_stride; /* of K and of V in the pool */
    int64_t want_lse;
} ckv_cudnn_shape;

/* Device memory but for scale. lse is [num_blocks * block_size, q_heads], read only if the shape wants it. */
typedef struct ckv_cudnn_tensors {
    const void *q, *k, *v;
    void *out, *lse;
    const int32_t *rows; /* [num_blocks, row_pages] */
    const int32_t *seq_len_q, *seq_len_kv;
    float scale;
} ckv_cudnn_tensors;

/* Descriptors that live and die together. */
enum { CKV_CUDNN_MAX_DESCRIPTORS = 48, CKV_CUDNN_MAX_ENGINES = 8 };
typedef struct ckv_cudnn_bag {
    cudnnBackendDescriptor_t descriptors[CKV_CUDNN_MAX_DESCRIPTORS];
    int count;
} ckv_cudnn_bag;

/* The engine configurations cuDNN proposes for a shape, best first; they belong to the bag. */
typedef struct ckv_cudnn_engines {
    cudnnBackendDescriptor_t configs[CKV_CUDNN_MAX_ENGINES];
    int64_t global_index[CKV_CUDNN_MAX_ENGINES];
    int count;
} ckv_cudnn_engines;

typedef struct ckv_cudnn_plan ckv_cudnn_plan;

/* CKV_OK, or the status with the detail "call: code name: text". ERROR_UNSUPPORTED, ERROR_MEMORY, else ERROR_DEVICE. */
ckv_status ckv_cudnn_status(cudnnStatus_t error, const char *call);

/* ERROR_UNSUPPORTED when the library found at run time is too old, with its version and the one needed. */
ckv_status ckv_cudnn_check_version(size_t version);

/* What this project runs through cuDNN, a part of what cuDNN takes: ERROR_UNSUPPORTED with the reason. `architecture`
 * is 10 * (10 * major + minor). Counts and strides of the batch are not looked at. */
ckv_status ckv_cudnn_check_shape(const ckv_cudnn_shape *shape, int architecture);

/* Engines for a shape on a CUDA device, or, with device_json, on a device so described: that needs no GPU. Descriptors
 * go to the bag, also on failure. ERROR_UNSUPPORTED when there is none. */
ckv_status ckv_cudnn_find_engines(const ckv_cudnn_shape *shape, int device_id, const char *device_json,
                                  ckv_cudnn_bag *bag, ckv_cudnn_engines *engines_out);

void ckv_cudnn_bag_empty(ckv_cudnn_bag *bag);

/* Compiles kernels: takes seconds, and must not happen while a stream is captured. Its workspace is allocated here.
 * `layers` packs of pointers are remembered. */
ckv_status ckv_cudnn_plan_create(const ckv_cudnn_shape *shape, int device_id, int64_t layers,
                                 ckv_cudnn_plan **plan_out);
void ckv_cudnn_plan_destroy(ckv_cudnn_plan *plan);

const ckv_cudnn_shape *ckv_cudnn_plan_shape(const ckv_cudnn_plan *plan);
int64_t ckv_cudnn_plan_engine(const ckv_cudnn_plan *plan);

/* Make these the tensors of the layer. Free of cost when they are so already. */
ckv_status ckv_cudnn_plan_bind(ckv_cudnn_plan *plan, int64_t layer, const ckv_cudnn_tensors *tensors);

/* Enqueue on the handle's stream, with the tensors bound to the layer. */
ckv_status ckv_cudnn_plan_run(const ckv_cudnn_plan *plan, int64_t layer, cudnnHandle_t handle);

#endif
