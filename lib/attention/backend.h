/* SPDX-License-Identifier: Apache-2.0 */
/* What the dispatcher asks of an attention backend. One static const table each; a backend that is not built has no
 * row. Every entry gets args that the dispatcher has completed: causal_block_size, kv_heads and scale are never 0. */
#ifndef CKV_ATTENTION_BACKEND_H
#define CKV_ATTENTION_BACKEND_H

#include <ckv/attention.h>
#include <stdbool.h>

typedef struct ckv_attention_backend {
    const char *name;

    /* OK, or ERROR_UNSUPPORTED with the reason. Looks at sizes, types and the device, not at tensors or the rollout. */
    ckv_status (*supports)(const ckv_attention_args *args);

    /* Whether "auto" takes the backend before others for a call that it supports; NULL: never. */
    bool (*prefers)(const ckv_attention_args *args);

    /* Everything that can fail for want of memory, of a plan or of a usable tensor, before anything is staged. Enqueues
     * nothing. The plan may be NULL. */
    ckv_status (*prepare)(const ckv_attention_args *args, const ckv_block_view *view, ckv_stream stream,
                          void **plan_out);

    /* Attend from the staged cache: out and lse of the rows before seq_len. Those past it are the dispatcher's. */
    ckv_status (*run)(const ckv_attention_args *args, const ckv_block_view *view, void *plan, ckv_stream stream);

    /* At the end of the call, also of one that failed. A plan that outlives the call belongs to the cache. */
    void (*release)(void *plan);
} ckv_attention_backend;

extern const ckv_attention_backend ckv_attention_backend_host;
#ifdef CKV_HAVE_CUDA
extern const ckv_attention_backend ckv_attention_backend_hopper;
#endif
#ifdef CKV_HAVE_CUDNN
extern const ckv_attention_backend ckv_attention_backend_cudnn;
#endif

#endif
