/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one forward, sharded. The steps of a call:
 *
 *   check       everything a rank can refuse, on this rank alone
 *   agree       all ranks or none go on, and they mean the same forward
 *   there       q, k, v cut by heads, one group: tokens of a rank x all heads -> all tokens x heads of a rank
 *   attention   over this rank's cache, which knows nothing of ranks
 *   agree       attention can still run out of memory or lose its device
 *   back        out (and lse) cut by rows, into the caller's strides
 *
 * Names no transport and no device. One rank takes the same way. */
#include <ckv/ulysses.h>

#include "kernels/exchange_heads/exchange_heads.h"
#include "lib/attention/attention.h"
#include "lib/device/device.h"
#include "lib/support/checked.h"
#include "lib/support/error.h"
#include "ulysses/comm.h"
#include "ulysses/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BOX_ALIGNMENT = 64 };

/* Places in the boxes. `out` travels in the place of q, which nobody needs any more by then. */
enum place { PLACE_Q, PLACE_K, PLACE_V, PLACE_LSE, NUM_PLACES, PLACE_OUT = PLACE_Q };

/* One forward, once its numbers are known to be good. */
typedef struct exchange {
    ckv_ulysses_chunks chunks[NUM_PLACES];
    int64_t offsets[NUM_PLACES];
    int64_t box_bytes;
} exchange;

struct ckv_ulysses {
    ckv_comm *comm;
    const ckv_device *device;
    ckv_dtype dtype;
    ckv_ulysses_heads heads;
    ckv_comm_transfer *transfers; /* [CKV_EXCHANGE_MAX_TENSORS * ranks] */
    char *outbox, *inbox;         /* device; box_bytes each, grown on demand */
    int64_t box_bytes;
};

ckv_ulysses_config ckv_ulysses_config_default(void)
{
    return (ckv_ulysses_config){.struct_size = sizeof(ckv_ulysses_config)};
}

static ckv_status plan_config(const ckv_ulysses_config *config, int ranks, ckv_ulysses_heads *heads_out)
{
    if (config == NULL || config->struct_size != sizeof *config)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses config: struct_size is not sizeof(ckv_ulysses_config); start from "
                                           "ckv_ulysses_config_default()");
    if (ckv_dtype_bytes(config->dtype) == 0)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses config: dtype is %d; it must be fp32, bf16 or fp16",
                        (int)config->dtype);
    return ckv_ulysses_plan_heads(config->q_heads, config->kv_heads, config->head_dim, ranks, heads_out);
}

ckv_status ckv_ulysses_kv_heads_per_rank(const ckv_ulysses_config *config, int ranks, int64_t *kv_heads_out)
{
    ckv_ulysses_heads heads;
    if (kv_heads_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: kv_heads_out must not be NULL");
    CKV_TRY(plan_config(config, ranks, &heads));
    *kv_heads_out = heads.rank_kv_heads;
    return CKV_OK;
}

int64_t ckv_ulysses_rows_per_rank(int64_t seq_len, int ranks)
{
    return seq_len > 0 && ranks > 0 ? ckv_ulysses_rows(seq_len, ranks) : 0;
}

static ckv_status create_local(ckv_comm *comm, const ckv_ulysses_config *config, ckv_ulysses **ulysses_out)
{
    int ranks = ckv_comm_size(comm);
    ckv_ulysses_heads heads = {0};
    CKV_TRY(plan_config(config, ranks, &heads));
    const ckv_device *device = config->device ? config->device : &ckv_device_host;
    if (!device->host_addressable)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "ulysses: transport '%s' moves host memory, device is '%s'",
                        ckv_comm_transport(comm), device->name);
    ckv_ulysses *ulysses = calloc(1, sizeof *ulysses);
    ckv_comm_transfer *transfers = calloc((size_t)ranks * CKV_EXCHANGE_MAX_TENSORS, sizeof *transfers);
    if (ulysses == NULL || transfers == NULL) {
        free(transfers);
        free(ulysses);
        return ckv_fail(CKV_ERROR_MEMORY, "ulysses: out of host memory");
    }
    ulysses->comm = comm;
    ulysses->device = device;
    ulysses->dtype = config->dtype;
    ulysses->heads = heads;
    ulysses->transfers = transfers;
    *ulysses_out = ulysses;
    return CKV_OK;
}

ckv_status ckv_ulysses_create(ckv_comm *comm, const ckv_ulysses_config *config, ckv_ulysses **ulysses_out)
{
    if (comm == NULL || ulysses_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: comm and ulysses_out must not be NULL");
    ckv_ulysses *ulysses = NULL;
    ckv_status status = create_local(comm, config, &ulysses);
    ckv_ulysses_config agreed = status == CKV_OK ? *config : ckv_ulysses_config_default();
    const ckv_comm_fact facts[] = {
        {"q_heads", agreed.q_heads},
        {"kv_heads", agreed.kv_heads},
        {"head_dim", agreed.head_dim},
        {"dtype", agreed.dtype},
    };
    status = ckv_comm_agree_on(comm, status, facts, sizeof facts / sizeof *facts);
    if (status == CKV_OK)
        *ulysses_out = ulysses;
    else
        ckv_ulysses_destroy(&ulysses);
    return status;
}

void ckv_ulysses_destroy(ckv_ulysses **ulysses)
{
    if (ulysses == NULL || *ulysses == NULL)
        return;
    (*ulysses)->device->free((*ulysses)->outbox);
    (*ulysses)->device->free((*ulysses)->inbox);
    free((*ulysses)->transfers);
    free(*ulysses);
    *ulysses = NULL;
}

static ckv_status check_cache(const ckv_ulysses *ulysses, const ckv_cache *cache)
{
    if (cache == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: cache must not be NULL");
    const ckv_pool_config *pool = ckv_pool_get_config(ckv_cache_pool(cache));
    const ckv_ulysses_heads *heads = &ulysses->heads;
    if (pool->kv_heads != heads->rank_kv_heads)
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses: the cache has %" PRId64 " K/V heads; %" PRId64 " over %" PRId64 " ranks make %" PRId64
                        " on each",
                        pool->kv_heads, heads->kv_heads, heads->ranks, heads->rank_kv_heads);
    if (pool->head_dim != heads->head_dim || pool->dtype != ulysses->dtype)
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses: the cache has head_dim %" PRId64 " in %s, the context head_dim %" PRId64 " in %s",
                        pool->head_dim, ckv_dtype_name(pool->dtype), heads->head_dim, ckv_dtype_name(ulysses->dtype));
    if (pool->device != ulysses->device)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: the cache is on device '%s', the context on '%s'",
                        pool->device->name, ulysses->device->name);
    return CKV_OK;
}

static ckv_status check_args(const ckv_ulysses *ulysses, const ckv_attention_args *args)
{
    if (args == NULL || args->struct_size != sizeof *args)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: struct_size is not sizeof(ckv_attention_args); start from "
                                           "ckv_attention_args_default()");
    if (args->q_heads != ulysses->heads.q_heads)
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses: q_heads is %" PRId64 "; the context has %" PRId64 " over all ranks", args->q_heads,
                        ulysses->heads.q_heads);
    CKV_TRY(check_cache(ulysses, args->cache));
    CKV_TRY(ckv_attention_check_tensors(args));
    return ckv_ulysses_check_seq_len(args->seq_len, args->rows, ulysses->heads.ranks);
}

static ckv_status plan_exchange(const ckv_ulysses *ulysses, int64_t rows, int with_lse, exchange *exchange_out)
{
    const ckv_ulysses_heads *heads = &ulysses->heads;
    int64_t vector_bytes;
    if (!ckv_mul_i64(heads->head_dim, (int64_t)ckv_dtype_bytes(ulysses->dtype), &vector_bytes))
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: head_dim %" PRId64 " is too large", heads->head_dim);
    exchange plan = {0};
    for (int place = 0; place < NUM_PLACES; place++) {
        ckv_ulysses_chunks *chunks = &plan.chunks[place];
        int64_t rank_heads = place == PLACE_K || place == PLACE_V ? heads->rank_kv_heads : heads->rank_q_heads;
        if (place != PLACE_LSE)
            CKV_TRY(ckv_ulysses_plan_chunks(heads->ranks, rows, rank_heads, vector_bytes, chunks));
        else if (with_lse)
            CKV_TRY(ckv_ulysses_plan_chunks(heads->ranks, rows, rank_heads, sizeof(float), chunks));
        plan.offsets[place] = plan.box_bytes;
        if (!ckv_add_i64(plan.box_bytes, chunks->total_bytes, &plan.box_bytes) ||
            !ckv_add_i64(plan.box_bytes, -plan.box_bytes & (BOX_ALIGNMENT - 1), &plan.box_bytes))
            return ckv_fail(CKV_ERROR_INVALID, "ulysses: %" PRId64 " rows take more than 64 bits of bytes", rows);
    }
    *exchange_out = plan;
    return CKV_OK;
}

/* Earlier calls on the stream may still use the old boxes. */
static ckv_status grow_boxes(ckv_ulysses *ulysses, int64_t box_bytes, ckv_stream stream)
{
    if (box_bytes <= ulysses->box_bytes)
        return CKV_OK;
    const ckv_device *device = ulysses->device;
    void *outbox = NULL, *inbox = NULL;
    ckv_status status = device->alloc((size_t)box_bytes, &outbox);
    CKV_TRY_GOTO(status, failed);
    CKV_TRY_GOTO(device->alloc((size_t)box_bytes, &inbox), failed);
    CKV_TRY_GOTO(device->wait(stream), failed);
    device->free(ulysses->outbox);
    device->free(ulysses->inbox);
    ulysses->outbox = outbox;
    ulysses->inbox = inbox;
    ulysses->box_bytes = box_bytes;
    return CKV_OK;
failed:
    device->free(inbox);
    device->free(outbox);
    return status;
}

/* The same forward as this rank sees it between the exchanges: all tokens, its heads. */
static ckv_attention_args local_args(const ckv_ulysses *ulysses, const exchange *plan, const ckv_attention_args *args)
{
    const ckv_ulysses_heads *heads = &ulysses->heads;
    ckv_attention_args local = *args;
    local.q_heads = heads->rank_q_heads;
    local.rows = heads->ranks * args->rows;
    local.q = ulysses->inbox + plan->offsets[PLACE_Q];
    local.q_token_stride = heads->rank_q_heads * heads->head_dim;
    local.q_head_stride = heads->head_dim;
    local.kv = ckv_kv_dense(ulysses->inbox + plan->offsets[PLACE_K], ulysses->inbox + plan->offsets[PLACE_V],
                            heads->rank_kv_heads, heads->head_dim);
    local.out = ulysses->outbox + plan->offsets[PLACE_OUT];
    local.out_token_stride = local.q_token_stride;
    local.out_head_stride = local.q_head_stride;
    local.lse = args->lse ? (float *)(void *)(ulysses->outbox + plan->offsets[PLACE_LSE]) : NULL;
    return local;
}

/* Everything this rank can refuse; afterwards only a device or a transport can fail. */
static ckv_status check(ckv_ulysses *ulysses, const ckv_attention_args *args, ckv_stream stream, exchange *plan_out)
{
    CKV_TRY(check_args(ulysses, args));
    CKV_TRY(plan_exchange(ulysses, args->rows, args->lse != NULL, plan_out));
    CKV_TRY(grow_boxes(ulysses, plan_out->box_bytes, stream));
    ckv_attention_args local = local_args(ulysses, plan_out, args);
    return ckv_attention_validate(&local);
}

/* All ranks go on, or none; and all mean the same forward over the same history. */
static ckv_status agree(const ckv_ulysses *ulysses, const ckv_attention_args *args, ckv_status status)
{
    if (status != CKV_OK)
        return ckv_comm_agree(ulysses->comm, status);
    ckv_cache_state state = ckv_cache_get_state(args->cache);
    int64_t scale_bits;
    memcpy(&scale_bits, &args->scale, sizeof scale_bits);
    const ckv_comm_fact facts[] = {
        {"seq_len", args->seq_len},
        {"rows", args->rows},
        {"causal_block_size", args->causal_block_size},
        {"layer", args->layer},
        {"whether lse is wanted", args->lse != NULL},
        {"the bits of scale", scale_bits},
        {"mask", args->mask},
        {"quantization", args->quantization},
        {"pin_tokens", state.pin_tokens},
        {"window_tokens", state.window_tokens},
        {"max_staged_tokens", state.max_staged_tokens},
        {"committed_tokens", state.committed_tokens},
        {"fixed_tokens", state.fixed_tokens},
        {"tokens_per_page", ckv_pool_get_config(ckv_cache_pool(args->cache))->tokens_per_page},
        {"history_tokens", state.history_tokens},
    };
    return ckv_comm_agree_on(ulysses->comm, CKV_OK, facts, sizeof facts / sizeof *facts);
}

/* A place's tensor on the strided side. Every chunk is all of this rank's rows of one rank's heads. */
static ckv_exchange_tensor describe(const exchange *plan, enum place place, const void *tensor, void *box,
                                    int64_t token_stride_bytes, int64_t head_stride_bytes)
{
    const ckv_ulysses_chunks *chunks = &plan->chunks[place];
    void *strided = (void *)(uintptr_t)tensor; /* NOLINT(performance-no-int-to-ptr): only read when packing */
    ckv_exchange_tensor description = {
        .tensor = strided,
        .token_stride_bytes = token_stride_bytes,
        .head_stride_bytes = head_stride_bytes,
        .packed = (char *)box + plan->offsets[place],
        .chunk_stride_bytes = chunks->chunk_bytes,
        .chunk_tokens = chunks->rows,
        .chunk_heads = chunks->rank_heads,
        .chunk_head_step = chunks->rank_heads,
        .row_bytes = chunks->vector_bytes,
    };
    return description;
}

/* Chunk p of each place to rank p, its chunk into place p of the inbox. */
static ckv_status send_places(ckv_ulysses *ulysses, const exchange *plan, const enum place *places, int num_places,
                              ckv_stream stream)
{
    int64_t ranks = ulysses->heads.ranks;
    for (int i = 0; i < num_places; i++) {
        int64_t bytes = plan->chunks[places[i]].chunk_bytes;
        for (int64_t peer = 0; peer < ranks; peer++) {
            int64_t at = plan->offsets[places[i]] + peer * bytes;
            ckv_comm_transfer transfer = {ulysses->outbox + at, bytes, ulysses->inbox + at, bytes};
            ulysses->transfers[i * ranks + peer] = transfer;
        }
    }
    CKV_TRY(ulysses->device->wait(stream)); /* the transport reads the outbox now, not in stream order */
    return ckv_comm_all_to_all(ulysses->comm, num_places, ulysses->transfers);
}

static ckv_status exchange_there(ckv_ulysses *ulysses, const exchange *plan, const ckv_attention_args *args,
                                 ckv_stream stream)
{
    static const enum place places[] = {PLACE_Q, PLACE_K, PLACE_V};
    const int64_t element = (int64_t)ckv_dtype_bytes(ulysses->dtype);
    const ckv_kv *kv = &args->kv;
    ckv_exchange_heads_params params = {
        .pack = 1,
        .chunks = ulysses->heads.ranks,
        .num_tensors = 3,
        .tensors =
            {
                describe(plan, PLACE_Q, args->q, ulysses->outbox, args->q_token_stride * element,
                         args->q_head_stride * element),
                describe(plan, PLACE_K, kv->k, ulysses->outbox, kv->k_token_stride * element,
                         kv->k_head_stride * element),
                describe(plan, PLACE_V, kv->v, ulysses->outbox, kv->v_token_stride * element,
                         kv->v_head_stride * element),
            },
    };
    CKV_TRY(ulysses->device->exchange_heads(&params, stream));
    return send_places(ulysses, plan, places, 3, stream);
}

/* What attention wrote is token-major, so the rows of each rank are a chunk already: nothing to pack. */
static ckv_status exchange_back(ckv_ulysses *ulysses, const exchange *plan, const ckv_attention_args *args,
                                ckv_stream stream)
{
    static const enum place places[] = {PLACE_OUT, PLACE_LSE};
    const int num_places = args->lse ? 2 : 1;
    const int64_t element = (int64_t)ckv_dtype_bytes(ulysses->dtype);
    CKV_TRY(send_places(ulysses, plan, places, num_places, stream));
    ckv_exchange_heads_params params = {
        .pack = 0,
        .chunks = ulysses->heads.ranks,
        .num_tensors = num_places,
        .tensors =
            {
                describe(plan, PLACE_OUT, args->out, ulysses->inbox, args->out_token_stride * element,
                         args->out_head_stride * element),
                describe(plan, PLACE_LSE, args->lse, ulysses->inbox, args->q_heads * (int64_t)sizeof(float),
                         sizeof(float)),
            },
    };
    return ulysses->device->exchange_heads(&params, stream);
}

ckv_status ckv_ulysses_attention(ckv_ulysses *ulysses, const ckv_attention_args *args, ckv_stream stream)
{
    if (ulysses == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: the context must not be NULL");
    exchange plan = {0};
    CKV_TRY(agree(ulysses, args, check(ulysses, args, stream, &plan)));
    CKV_TRY(exchange_there(ulysses, &plan, args, stream));
    ckv_attention_args local = local_args(ulysses, &plan, args);
    CKV_TRY(ckv_comm_agree(ulysses->comm, ckv_attention(&local, stream)));
    return exchange_back(ulysses, &plan, args, stream);
}
