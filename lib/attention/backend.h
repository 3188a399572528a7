/* SPDX-License-Identifier: Apache-2.0 */
/* What the dispatcher asks of an attention backend. One static const table each; a backend that is not built has no
 * row. Every entry gets args that the dispatcher has completed: causal_block_size and scale are never 0. */
#ifndef CKV_ATTENTION_BACKEND_H
#define CKV_ATTENTION_BACKEND_H

#include <ckv/attention.h>

typedef struct ckv_attention_backend {
    const char *name;

    /* OK, or ERROR_UNSUPPORTED with the reason. Looks at sizes, types and the device, not at tensors or the rollout. */
    ckv_status (*supports)(const ckv_attention_args *args);

    /* Everything that can fail for want of memory or of a plan, before anything is staged. The plan may be NULL. */
    ckv_status (*prepare)(const ckv_attention_args *args, const ckv_block_view *view, void **plan_out);

    /* Attend from the staged cache: out and lse of the rows before seq_len, and lse (-inf) of those past it. */
    ckv_status (*run)(const ckv_attention_args *args, const ckv_block_view *view, void *plan, ckv_stream stream);

    void (*release)(void *plan);
} ckv_attention_backend;

extern const ckv_attention_backend ckv_attention_backend_host;

#endif
