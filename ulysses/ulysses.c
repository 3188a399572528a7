/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one forward, sharded. The steps of a call:
 *
 *   check       everything a rank can refuse, on this rank alone
 *   agree       all ranks or none go on, and they mean the same forward
 *   there       q, k, v: rows of a rank x all heads -> all rows x heads of a rank
 *   attention   over this rank's cache, which knows nothing of ranks
 *   agree       attention can still run out of memory or lose its device
 *   back        out (and lse), the other way
 *
 * A rank's heads may go through the last four in parts, the exchange of one beside attention over another. One rank
 * alone attends to what it has. Names no transport and no device. */
#include <ckv/ulysses.h>

#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "lib/attention/attention.h"
#include "lib/cache/cache.h"
#include "lib/device/device.h"
#include "lib/support/checked.h"
#include "lib/support/dtype.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"
#include "ulysses/exchange.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ckv_ulysses {
    ckv_comm *comm;
    const ckv_device *device;
    ckv_dtype dtype;
    ckv_sharding sharding;
    ckv_ulysses_heads heads;
    ckv_exchange *exchange; /* NULL with one rank */
    int64_t parts;
    ckv_stream exchange_stream; /* NULL unless there are parts to overlap */
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
    if (!ckv_dtype_is_tensor(config->dtype))
        return ckv_fail(CKV_ERROR_INVALID, "ulysses config: dtype is %d; it must be fp32, bf16 or fp16",
                        (int)config->dtype);
    if (config->sharding != CKV_SHARDS_PADDED && config->sharding != CKV_SHARDS_UNPADDED)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses config: sharding is %d; it must be padded or unpadded",
                        (int)config->sharding);
    CKV_TRY(ckv_ulysses_plan_heads(config->q_heads, config->kv_heads, config->head_dim, ranks, heads_out));
    if (config->overlap_parts < 0 ||
        (config->overlap_parts > 1 && heads_out->rank_kv_heads % config->overlap_parts != 0))
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses config: overlap_parts is %" PRId64 "; it must divide the %" PRId64
                        " K/V heads of a rank",
                        config->overlap_parts, heads_out->rank_kv_heads);
    return CKV_OK;
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

int64_t ckv_ulysses_rows_of_rank(ckv_sharding sharding, int64_t seq_len, int ranks, int rank)
{
    if (seq_len < 1 || ranks < 1 || rank < 0 || rank >= ranks)
        return 0;
    ckv_ulysses_shards shards = ckv_ulysses_split(sharding, seq_len, ranks);
    return ckv_ulysses_shard_rows(&shards, rank);
}

int64_t ckv_ulysses_rows_per_rank(int64_t seq_len, int ranks)
{
    return ckv_ulysses_rows_of_rank(CKV_SHARDS_PADDED, seq_len, ranks, 0);
}

static ckv_status create_local(ckv_comm *comm, const ckv_ulysses_config *config, ckv_ulysses **ulysses_out)
{
    ckv_ulysses_heads heads = {0};
    int64_t vector_bytes, exchange;
    CKV_TRY(plan_config(config, ckv_comm_size(comm), &heads));
    if (!ckv_mul_i64(heads.head_dim, (int64_t)ckv_dtype_bytes(config->dtype), &vector_bytes))
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: head_dim %" PRId64 " is too large", heads.head_dim);
    CKV_TRY(ckv_exchange_check_wish(config->exchange, &exchange));
    const ckv_device *device = config->device ? config->device : &ckv_device_host;
    const char *moves = ckv_comm_device(comm);
    if (heads.ranks > 1 && strcmp(moves, device->name) != 0 &&
        !(strcmp(moves, "host") == 0 && device->host_addressable))
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "ulysses: transport '%s' moves memory of device '%s', the context is on '%s'",
                        ckv_comm_transport(comm), moves, device->name);
    ckv_ulysses *ulysses = calloc(1, sizeof *ulysses);
    if (ulysses == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "ulysses: out of host memory");
    ulysses->comm = comm;
    ulysses->device = device;
    ulysses->dtype = config->dtype;
    ulysses->sharding = config->sharding;
    ulysses->heads = heads;
    ulysses->parts = config->overlap_parts > 1 && heads.ranks > 1 ? config->overlap_parts : 1;
    ckv_status status = ulysses->parts > 1 ? device->stream_create(&ulysses->exchange_stream) : CKV_OK;
    if (status == CKV_OK)
        *ulysses_out = ulysses;
    else
        free(ulysses);
    return status;
}

ckv_status ckv_ulysses_create(ckv_comm *comm, const ckv_ulysses_config *config, ckv_ulysses **ulysses_out)
{
    if (comm == NULL || ulysses_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: comm and ulysses_out must not be NULL");
    ckv_ulysses *ulysses = NULL;
    ckv_status status = create_local(comm, config, &ulysses);
    ckv_ulysses_config agreed = status == CKV_OK ? *config : ckv_ulysses_config_default();
    const ckv_comm_fact facts[] = {
        {"q_heads", agreed.q_heads}, {"kv_heads", agreed.kv_heads}, {"head_dim", agreed.head_dim},
        {"dtype", agreed.dtype},     {"sharding", agreed.sharding}, {"overlap_parts", agreed.overlap_parts},
    };
    status = ckv_comm_agree_on(comm, status, facts, sizeof facts / sizeof *facts);
    if (ulysses == NULL)
        return status; /* somebody's refusal, maybe this rank's */
    if (status == CKV_OK && ulysses->heads.ranks > 1)
        status = ckv_exchange_create(comm, ulysses->device, &ulysses->heads,
                                     ulysses->heads.head_dim * (int64_t)ckv_dtype_bytes(ulysses->dtype), ulysses->parts,
                                     config->exchange, &ulysses->exchange);
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
    ckv_exchange_destroy(&(*ulysses)->exchange);
    (*ulysses)->device->stream_destroy((*ulysses)->exchange_stream);
    free(*ulysses);
    *ulysses = NULL;
}

const char *ckv_ulysses_exchange(const ckv_ulysses *ulysses, const char **why_not_fused_out)
{
    const ckv_exchange *exchange = ulysses->exchange;
    if (why_not_fused_out != NULL)
        *why_not_fused_out = exchange != NULL ? exchange->why_not_fused : "one rank has nothing to exchange";
    return exchange != NULL ? exchange->path->name : "none";
}

static ckv_status check_cache(const ckv_ulysses *ulysses, const ckv_cache *cache)
{
    if (cache == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: cache must not be NULL");
    const ckv_pool_config *pool = ckv_pool_get_config(ckv_cache_pool(cache));
    const ckv_ulysses_heads *heads = &ulysses->heads;
    if (!CKV_MUTANT(cache_heads_unchecked) && pool->kv_heads != heads->rank_kv_heads)
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses: the cache has %" PRId64 " K/V heads; %" PRId64 " over %" PRId64 " ranks make %" PRId64
                        " on each",
                        pool->kv_heads, heads->kv_heads, heads->ranks, heads->rank_kv_heads);
    if (pool->head_dim != heads->head_dim || ckv_pool_config_tensor_dtype(pool) != ulysses->dtype)
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses: the cache takes head_dim %" PRId64 " in %s, the context head_dim %" PRId64 " in %s",
                        pool->head_dim, ckv_dtype_name(ckv_pool_config_tensor_dtype(pool)), heads->head_dim,
                        ckv_dtype_name(ulysses->dtype));
    if (pool->device != ulysses->device)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: the cache is on device '%s', the context on '%s'",
                        pool->device->name, ulysses->device->name);
    return CKV_OK;
}

/* Tensors of a rank without rows are never looked at. */
static ckv_status check_args(const ckv_ulysses *ulysses, const ckv_attention_args *args, ckv_ulysses_shards *shards_out)
{
    if (args == NULL || args->struct_size != sizeof *args)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: struct_size is not sizeof(ckv_attention_args); start from "
                                           "ckv_attention_args_default()");
    if (args->q_heads != ulysses->heads.q_heads)
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses: q_heads is %" PRId64 "; the context has %" PRId64 " over all ranks", args->q_heads,
                        ulysses->heads.q_heads);
    if (args->first_kv_head != 0 || args->kv_heads != 0)
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses: first_kv_head %" PRId64 ", kv_heads %" PRId64
                        ": a sharded forward takes all heads (0, 0)",
                        args->first_kv_head, args->kv_heads);
    CKV_TRY(check_cache(ulysses, args->cache));
    CKV_TRY(ckv_ulysses_plan_shards(ulysses->sharding, args->seq_len, args->rows, ckv_comm_rank(ulysses->comm),
                                    ulysses->heads.ranks, shards_out));
    return args->rows > 0 ? ckv_attention_check_tensors(args) : CKV_OK;
}

/* What the caller says, whatever a rank could make of its rows. */
static int64_t real_tokens(const ckv_ulysses *ulysses, const ckv_exchange_plan *plan, int64_t seq_len)
{
    if (CKV_MUTANT(seq_len_of_the_shard))
        return plan->rows;
    if (CKV_MUTANT(seq_len_of_the_shard_times_ranks))
        return plan->rows * plan->shards.ranks;
    if (CKV_MUTANT(seq_len_of_the_local_mask))
        return ckv_min_i64(plan->rows, seq_len - ckv_ulysses_shard_start(&plan->shards, ckv_comm_rank(ulysses->comm)));
    if (CKV_MUTANT(seq_len_with_padding))
        return ckv_ulysses_total_rows(&plan->shards);
    if (CKV_MUTANT(seq_len_rounded_down))
        return seq_len - seq_len % plan->shards.ranks;
    return seq_len;
}

/* The same forward as this rank sees it between the exchanges: all rows, one part of its heads. */
static ckv_attention_args part_args(const ckv_ulysses *ulysses, const ckv_exchange_plan *plan, int64_t part,
                                    const ckv_attention_args *args)
{
    const ckv_exchange *exchange = ulysses->exchange;
    int64_t q_heads = ckv_exchange_part_heads(exchange, CKV_PLACE_Q);
    int64_t kv_heads = ckv_exchange_part_heads(exchange, CKV_PLACE_K), head_dim = ulysses->heads.head_dim;
    ckv_attention_args local = *args;
    local.q_heads = q_heads;
    local.first_kv_head = CKV_MUTATE(parts_share_a_head, 0, part * kv_heads);
    local.kv_heads = kv_heads;
    local.rows = ckv_ulysses_total_rows(&plan->shards);
    local.seq_len = real_tokens(ulysses, plan, args->seq_len);
    local.q = ckv_exchange_slice(exchange, plan, CKV_PLACE_Q, part);
    local.kv = ckv_kv_dense(ckv_exchange_slice(exchange, plan, CKV_PLACE_K, part),
                            ckv_exchange_slice(exchange, plan, CKV_PLACE_V, part), kv_heads, head_dim);
    local.out = ckv_exchange_slice(exchange, plan, CKV_PLACE_OUT, part);
    local.q_token_stride = local.out_token_stride = q_heads * head_dim;
    local.q_head_stride = local.out_head_stride = head_dim;
    local.lse = args->lse ? ckv_exchange_slice(exchange, plan, CKV_PLACE_LSE, part) : NULL;
    return local;
}

/* Everything this rank can refuse; afterwards only memory, a device or a transport can fail. */
static ckv_status check(ckv_ulysses *ulysses, const ckv_attention_args *args, ckv_exchange_plan *plan_out)
{
    ckv_ulysses_shards shards;
    CKV_TRY(check_args(ulysses, args, &shards));
    CKV_TRY(ckv_exchange_make_plan(ulysses->exchange, &shards, args->lse != NULL, plan_out));
    ckv_attention_args local = part_args(ulysses, plan_out, 0, args);
    return ckv_attention_validate_sizes(&local); /* before memory is there for its tensors */
}

/* All ranks go on, or none; and all mean the same forward over the same history. */
static ckv_status agree(const ckv_ulysses *ulysses, const ckv_attention_args *args, const ckv_exchange_plan *plan,
                        ckv_status status)
{
    if (status != CKV_OK)
        return CKV_MUTATE(refusal_without_agreement, status, ckv_comm_agree(ulysses->comm, status));
    ckv_cache_state state = ckv_cache_get_state(args->cache);
    int64_t scale_bits;
    memcpy(&scale_bits, &args->scale, sizeof scale_bits);
    const ckv_comm_fact facts[] = {
        {"seq_len", args->seq_len},
        {"rows", plan->shards.base_rows},
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

static void *only_read(const void *tensor)
{
    return (void *)(uintptr_t)tensor; /* NOLINT(performance-no-int-to-ptr): the way there takes the same description */
}

/* Whether K and V are in the pages when the way there is over. Codes are made by whoever writes slots afterwards: what
 * is exchanged are tensors. */
static bool fills_pages(const ckv_ulysses *ulysses, const ckv_attention_args *args)
{
    return ulysses->exchange->path->fills_pages &&
           ckv_pool_get_config(ckv_cache_pool(args->cache))->dtype != CKV_FP8_E4M3;
}

static ckv_status go_there(const ckv_ulysses *ulysses, const ckv_exchange_plan *plan, int64_t part,
                           const ckv_attention_args *args, ckv_stream stream)
{
    const int64_t element = (int64_t)ckv_dtype_bytes(ulysses->dtype);
    const ckv_kv *kv = &args->kv;
    const ckv_shard_tensor tensors[] = {
        {CKV_PLACE_Q, only_read(args->q), args->q_token_stride * element, args->q_head_stride * element},
        {CKV_PLACE_K, only_read(kv->k), kv->k_token_stride * element, kv->k_head_stride * element},
        {CKV_PLACE_V, only_read(kv->v), kv->v_token_stride * element, kv->v_head_stride * element},
    };
    const ckv_attention_args local = part_args(ulysses, plan, part, args);
    const ckv_staged_heads heads = {.layer = local.layer,
                                    .first_kv_head = local.first_kv_head,
                                    .kv_heads = local.kv_heads,
                                    .tokens = local.seq_len,
                                    .causal_block_size =
                                        local.causal_block_size != 0 ? local.causal_block_size : local.seq_len};
    ckv_scatter_kv_slots_params pages;
    CKV_TRY(ckv_cache_plan_staged(args->cache, &heads, &pages));
    return ulysses->exchange->path->there(ulysses->exchange, plan, part, tensors,
                                          fills_pages(ulysses, args) ? &pages : NULL, stream);
}

static ckv_status come_back(const ckv_ulysses *ulysses, const ckv_exchange_plan *plan, int64_t part,
                            const ckv_attention_args *args, ckv_stream stream)
{
    const int64_t element = (int64_t)ckv_dtype_bytes(ulysses->dtype);
    const ckv_shard_tensor tensors[] = {
        {CKV_PLACE_OUT, args->out, args->out_token_stride * element, args->out_head_stride * element},
        {CKV_PLACE_LSE, args->lse, args->q_heads * (int64_t)sizeof(float), sizeof(float)},
    };
    return ulysses->exchange->path->back(ulysses->exchange, plan, part, tensors,
                                         args->lse && !CKV_MUTANT(lse_left_behind) ? 2 : 1, stream);
}

/* Attention over one part failed on some rank, and every rank knows. The next forward may write into the slices once
 * nobody reads them. */
static ckv_status settle(const ckv_ulysses *ulysses, ckv_stream exchanges, ckv_stream stream, ckv_status failure)
{
    char detail[480];
    snprintf(detail, sizeof detail, "%s", ckv_last_error());
    ckv_status status = ulysses->device->wait(stream);
    if (status == CKV_OK && exchanges != stream)
        status = ulysses->device->wait(exchanges);
    CKV_TRY(ckv_comm_agree(ulysses->comm, status));
    return ckv_fail(failure, "%s", detail);
}

/* Exchanges of all parts are in order on their stream; each attention follows its way there, and is followed by its way
 * back. The way there of the next part starts before attention over this one. A failure of attention is agreed; after
 * any other this rank is out of step with the rest. */
static ckv_status run(ckv_ulysses *ulysses, const ckv_exchange_plan *plan, const ckv_attention_args *args,
                      ckv_stream exchanges, ckv_stream stream, int *agreed_out)
{
    const ckv_device *device = ulysses->device;
    CKV_TRY(ckv_device_stream_follow(device, exchanges, stream));
    CKV_TRY(go_there(ulysses, plan, 0, args, exchanges));
    CKV_TRY(ckv_device_stream_follow(device, stream, exchanges));
    for (int64_t part = 0; part < ulysses->parts; part++) {
        if (part + 1 < ulysses->parts)
            CKV_TRY(go_there(ulysses, plan, part + 1, args, exchanges));
        ckv_attention_args local = part_args(ulysses, plan, part, args);
        ckv_status status =
            fills_pages(ulysses, args) ? ckv_attention_staged(&local, stream) : ckv_attention(&local, stream);
        status = CKV_MUTATE(failure_without_agreement, status, ckv_comm_agree(ulysses->comm, status));
        if (status != CKV_OK) {
            *agreed_out = 1;
            return status;
        }
        if (part + 1 < ulysses->parts)
            CKV_TRY(ckv_device_stream_follow(device, stream, exchanges));
        CKV_TRY(ckv_device_stream_follow(device, exchanges, stream));
        CKV_TRY(come_back(ulysses, plan, part, args, exchanges));
    }
    return ckv_device_stream_follow(device, stream, exchanges);
}

static ckv_status attend_alone(const ckv_ulysses *ulysses, const ckv_attention_args *args, ckv_stream stream)
{
    ckv_ulysses_shards all;
    CKV_TRY(check_args(ulysses, args, &all));
    return ckv_attention(args, stream);
}

ckv_status ckv_ulysses_attention(ckv_ulysses *ulysses, const ckv_attention_args *args, ckv_stream stream)
{
    if (ulysses == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: the context must not be NULL");
    if (ulysses->exchange == NULL)
        return ckv_comm_agree(ulysses->comm, attend_alone(ulysses, args, stream));
    ckv_exchange_plan plan = {0};
    CKV_TRY(agree(ulysses, args, &plan, check(ulysses, args, &plan)));
    CKV_TRY(ckv_exchange_reserve(ulysses->exchange, &plan, stream));
    ckv_stream exchanges = ulysses->parts > 1 ? ulysses->exchange_stream : stream;
    int agreed = 0;
    ckv_status status = run(ulysses, &plan, args, exchanges, stream, &agreed);
    return agreed ? settle(ulysses, exchanges, stream, status) : ckv_comm_break(ulysses->comm, status);
}

ckv_status ckv_ulysses_write_replicated(const ckv_ulysses *ulysses, ckv_cache *cache, int64_t layer, int64_t start,
                                        int64_t tokens, const ckv_kv *source, ckv_stream stream)
{
    if (ulysses == NULL || source == NULL || source->k == NULL || source->v == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: the context, K and V must not be NULL");
    CKV_TRY(check_cache(ulysses, cache));
    int64_t first = ckv_ulysses_first_kv_head(&ulysses->heads, ckv_comm_rank(ulysses->comm));
    first = CKV_MUTATE(context_of_the_first_rank, 0, first);
    int64_t element = (int64_t)ckv_dtype_bytes(ulysses->dtype);
    ckv_kv mine = *source;
    mine.k = (const char *)source->k + first * source->k_head_stride * element;
    mine.v = (const char *)source->v + first * source->v_head_stride * element;
    if (CKV_MUTANT(context_counted_twice)) {
        CKV_TRY(ckv_cache_write_range(cache, layer, start, tokens, &mine, stream));
        start++, tokens--;
    }
    return ckv_cache_write_range(cache, layer, start, tokens, &mine, stream);
}
