/* SPDX-License-Identifier: Apache-2.0 */
/* What both paths share: choosing one, and where tensors lie. */
#include "ulysses/exchange.h"

#include "lib/device/device.h"
#include "lib/support/checked.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BOX_ALIGNMENT = 256 };

static ckv_ulysses_heads heads_of_the_process; /* of a mutant alone */

static const ckv_exchange_path *const paths[] = {&ckv_exchange_fused, &ckv_exchange_sendrecv};
enum { NUM_PATHS = sizeof paths / sizeof paths[0] };

/* What this rank alone knows against the fused path. */
static ckv_status fused_supported(const ckv_exchange *exchange)
{
    if (exchange->heads.ranks > CKV_MAX_PEERS)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "exchange: the fused path takes at most %d ranks, not %" PRId64,
                        CKV_MAX_PEERS, exchange->heads.ranks);
    if (exchange->device->exchange_peers == NULL)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "exchange: device %s has no fused exchange", exchange->device->name);
    return CKV_OK;
}

/* The flags are small and last as long as the exchange: a window that can be had for them can be had. */
static ckv_status open_flags(ckv_exchange *exchange)
{
    const ckv_device *device = exchange->device;
    size_t flags_bytes = (size_t)exchange->heads.ranks * CKV_PEER_MAX_BLOCKS * sizeof(uint32_t);
    size_t epochs_bytes = CKV_PEER_MAX_BLOCKS * sizeof(uint32_t);
    CKV_TRY(ckv_comm_agree(exchange->comm, fused_supported(exchange)));
    CKV_TRY(ckv_comm_window_create(exchange->comm, flags_bytes, &exchange->flags_window));
    void *epochs = NULL;
    ckv_status status = device->alloc(epochs_bytes, &epochs);
    exchange->epochs = epochs;
    if (status == CKV_OK)
        status = device->fill(epochs, 0, epochs_bytes, NULL);
    if (status == CKV_OK)
        status = device->fill(exchange->flags_window.memory, 0, flags_bytes, NULL);
    if (status == CKV_OK)
        status = device->wait(NULL);
    return ckv_comm_agree(exchange->comm, status); /* nobody writes a flag before all are zero */
}

static ckv_status choose_path(ckv_exchange *exchange, const char *wish)
{
    if (strcmp(wish, ckv_exchange_sendrecv.name) == 0) {
        snprintf(exchange->why_not_fused, sizeof exchange->why_not_fused, "%s was asked for", wish);
        return CKV_OK;
    }
    ckv_status status = open_flags(exchange);
    if (status == CKV_OK) {
        exchange->path = &ckv_exchange_fused;
        return CKV_OK;
    }
    if (status != CKV_ERROR_UNSUPPORTED || strcmp(wish, ckv_exchange_fused.name) == 0)
        return status;
    snprintf(exchange->why_not_fused, sizeof exchange->why_not_fused, "%s", ckv_last_error());
    return CKV_OK;
}

ckv_status ckv_exchange_check_wish(const char *wish, int64_t *index_out)
{
    *index_out = 0;
    if (wish == NULL || strcmp(wish, "auto") == 0 || CKV_MUTANT(wishes_unread))
        return CKV_OK;
    for (int64_t i = 0; i < NUM_PATHS; i++)
        if (strcmp(wish, paths[i]->name) == 0) {
            *index_out = i + 1;
            return CKV_OK;
        }
    return ckv_fail(CKV_ERROR_INVALID, "exchange: there is no '%s'; it must be auto, fused or sendrecv", wish);
}

static ckv_status create_local(ckv_comm *comm, const ckv_device *device, const ckv_ulysses_heads *heads,
                               int64_t vector_bytes, int64_t parts, ckv_exchange **exchange_out)
{
    ckv_exchange *exchange = calloc(1, sizeof *exchange);
    ckv_comm_transfer *transfers = calloc((size_t)heads->ranks * CKV_EXCHANGE_MAX_TENSORS, sizeof *transfers);
    if (exchange == NULL || transfers == NULL) {
        free(transfers);
        free(exchange);
        return ckv_fail(CKV_ERROR_MEMORY, "exchange: out of host memory");
    }
    *exchange = (ckv_exchange){.path = &ckv_exchange_sendrecv,
                               .comm = comm,
                               .device = device,
                               .heads = *heads,
                               .vector_bytes = vector_bytes,
                               .parts = parts,
                               .transfers = transfers};
    *exchange_out = exchange;
    return CKV_OK;
}

ckv_status ckv_exchange_create(ckv_comm *comm, const ckv_device *device, const ckv_ulysses_heads *heads,
                               int64_t vector_bytes, int64_t parts, const char *wish, ckv_exchange **exchange_out)
{
    ckv_exchange *exchange = NULL;
    int64_t index;
    ckv_status status = ckv_exchange_check_wish(wish, &index);
    if (status == CKV_OK)
        status = create_local(comm, device, heads, vector_bytes, parts, &exchange);
    const ckv_comm_fact facts[] = {{"the exchange asked for", index}};
    status = ckv_comm_agree_on(comm, status, facts, 1);
    if (exchange == NULL)
        return status; /* somebody's refusal, maybe this rank's */
    if (status == CKV_OK)
        status = choose_path(exchange, wish != NULL ? wish : "auto");
    if (status == CKV_OK)
        *exchange_out = exchange;
    else
        ckv_exchange_destroy(&exchange);
    return status;
}

void ckv_exchange_destroy(ckv_exchange **exchange_at)
{
    ckv_exchange *exchange = *exchange_at;
    if (exchange == NULL)
        return;
    exchange->path->release(exchange);
    ckv_comm_window_destroy(exchange->comm, &exchange->flags_window);
    exchange->device->free(exchange->epochs);
    free(exchange->transfers);
    free(exchange);
    *exchange_at = NULL;
}

int64_t ckv_exchange_part_heads(const ckv_exchange *exchange, enum ckv_place place)
{
    const ckv_ulysses_heads *heads = CKV_MUTATE(heads_of_the_process, &heads_of_the_process, &exchange->heads);
    int is_kv = place == CKV_PLACE_K || place == CKV_PLACE_V;
    return (is_kv ? heads->rank_kv_heads : heads->rank_q_heads) / exchange->parts;
}

static int64_t place_vector_bytes(const ckv_exchange *exchange, enum ckv_place place)
{
    return place == CKV_PLACE_LSE ? (int64_t)sizeof(float) : exchange->vector_bytes;
}

/* Offsets stay aligned for the widest vectors, and whole tokens follow one another. */
ckv_status ckv_exchange_make_plan(const ckv_exchange *exchange, const ckv_ulysses_shards *shards, int with_lse,
                                  ckv_exchange_plan *plan_out)
{
    int64_t rank = ckv_comm_rank(exchange->comm), most_rows = ckv_ulysses_shard_rows(shards, 0);
    ckv_exchange_plan plan = {.shards = *shards, .rows = ckv_ulysses_shard_rows(shards, rank)};
    for (enum ckv_place place = 0; place < CKV_NUM_PLACES; place++) {
        int64_t bytes, all_parts;
        plan.offsets[place] = plan.box_bytes;
        if (place == CKV_PLACE_LSE && !with_lse)
            continue;
        if (!ckv_mul_i64(ckv_exchange_part_heads(exchange, place), place_vector_bytes(exchange, place),
                         &plan.token_bytes[place]) ||
            !ckv_mul_i64(plan.token_bytes[place], most_rows, &bytes) || !ckv_mul_i64(bytes, shards->ranks, &bytes) ||
            !ckv_add_i64(bytes, -bytes & (BOX_ALIGNMENT - 1), &bytes) ||
            !ckv_mul_i64(bytes, exchange->parts, &all_parts) ||
            !ckv_add_i64(plan.box_bytes, all_parts, &plan.box_bytes))
            return ckv_fail(CKV_ERROR_INVALID,
                            "ulysses: %" PRId64 " rows on each of %" PRId64 " ranks take more than 64 bits of bytes",
                            most_rows, shards->ranks);
        plan.part_bytes[place] = bytes;
    }
    *plan_out = plan;
    return CKV_OK;
}

ckv_status ckv_exchange_reserve(ckv_exchange *exchange, const ckv_exchange_plan *plan, ckv_stream stream)
{
    int capturing = 0;
    if (plan->box_bytes <= exchange->capacity_bytes || (CKV_MUTANT(memory_never_grows) && exchange->slices != NULL))
        return CKV_OK;
    ckv_status status = exchange->device->is_capturing(stream, &capturing);
    if (status == CKV_OK && capturing)
        status =
            ckv_fail(CKV_ERROR_STATE,
                     "ulysses: a forward of %" PRId64 " rows needs %" PRId64 " bytes of exchange memory, there are "
                     "%" PRId64 "; run one of that size before the capture",
                     ckv_ulysses_total_rows(&plan->shards), plan->box_bytes, exchange->capacity_bytes);
    CKV_TRY(ckv_comm_agree(exchange->comm, status));
    CKV_TRY(exchange->path->reserve(exchange, plan->box_bytes, stream));
    exchange->capacity_bytes = plan->box_bytes;
    return CKV_OK;
}

void *ckv_exchange_slice(const ckv_exchange *exchange, const ckv_exchange_plan *plan, enum ckv_place place,
                         int64_t part)
{
    return exchange->slices + plan->offsets[place] + part * plan->part_bytes[place];
}
