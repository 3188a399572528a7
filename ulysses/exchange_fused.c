/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: every rank's slices are in memory that all devices address, and one kernel fills or reads them. */
#include "ulysses/exchange.h"

#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "lib/device/device.h"
#include "lib/support/error.h"

static ckv_status fused_reserve(ckv_exchange *exchange, int64_t box_bytes, ckv_stream stream)
{
    ckv_comm_window window = {0};
    CKV_TRY(ckv_comm_agree(exchange->comm, exchange->device->wait(stream))); /* nobody uses the old one any more */
    CKV_TRY(ckv_comm_window_create(exchange->comm, (size_t)box_bytes, &window));
    ckv_comm_window_destroy(exchange->comm, &exchange->slices_window);
    exchange->slices_window = window;
    exchange->slices = window.memory;
    return CKV_OK;
}

static ckv_peer_tensor describe(const ckv_exchange *exchange, const ckv_exchange_plan *plan, int64_t part,
                                const ckv_shard_tensor *tensor)
{
    enum ckv_place place = tensor->place;
    int64_t part_heads = ckv_exchange_part_heads(exchange, place);
    int is_kv = place == CKV_PLACE_K || place == CKV_PLACE_V;
    return (ckv_peer_tensor){
        .shard = tensor->tensor,
        .token_stride_bytes = tensor->token_stride_bytes,
        .head_stride_bytes = tensor->head_stride_bytes,
        .heads = is_kv ? exchange->heads.kv_heads : exchange->heads.q_heads,
        .slice_heads = part_heads,
        .first_head = part * part_heads,
        .row_bytes = plan->token_bytes[place] / part_heads,
        .offset_bytes = plan->offsets[place] + part * plan->part_bytes[place],
    };
}

/* One launch between shards and slices. */
static ckv_status launch(ckv_exchange *exchange, const ckv_exchange_plan *plan, int64_t part,
                         const ckv_shard_tensor *tensors, ckv_exchange_peers_params *params, ckv_stream stream)
{
    int ranks = ckv_comm_size(exchange->comm);
    int64_t timeout_ms, bytes = 0;
    params->rank = ckv_comm_rank(exchange->comm);
    params->ranks = ranks;
    params->base_tokens = plan->shards.base_rows;
    params->long_ranks = plan->shards.long_ranks;
    params->meeting.epochs = exchange->epochs;
    params->meeting.signals = ckv_comm_signals(exchange->comm, &timeout_ms);
    params->meeting.timeout_ns = timeout_ms * 1000000;
    for (int peer = 0; peer < ranks; peer++) {
        params->peers[peer] = exchange->slices_window.peers[peer];
        params->meeting.flags[peer] = exchange->flags_window.peers[peer];
    }
    for (int64_t i = 0; i < params->num_tensors; i++) {
        void *plane = params->tensors[i].plane;
        params->tensors[i] = describe(exchange, plan, part, &tensors[i]);
        params->tensors[i].plane = plane;
        bytes += plan->rows * (ranks - 1) * plan->token_bytes[tensors[i].place];
    }
    CKV_TRY(ckv_comm_enter(exchange->comm, params->pull ? "exchange back" : "exchange there", bytes));
    return ckv_comm_leave(exchange->comm, exchange->device->exchange_peers(params, stream));
}

static ckv_status fused_there(ckv_exchange *exchange, const ckv_exchange_plan *plan, int64_t part,
                              const ckv_shard_tensor *tensors, const ckv_scatter_kv_slots_params *pages,
                              ckv_stream stream)
{
    ckv_exchange_peers_params params = {.num_tensors = CKV_TENSORS_THERE};
    if (pages != NULL) {
        params.tensors[CKV_PLACE_K].plane = pages->k_plane;
        params.tensors[CKV_PLACE_V].plane = pages->v_plane;
        params.pages = (ckv_peer_pages){.tokens = pages->entries,
                                        .home = pages->destination,
                                        .own = pages->destination2,
                                        .page_stride = pages->page_stride,
                                        .head_stride = pages->head_stride,
                                        .slot_stride = pages->slot_stride,
                                        .tokens_per_page = pages->tokens_per_page,
                                        .num_slots = pages->num_slots};
    }
    return launch(exchange, plan, part, tensors, &params, stream);
}

static ckv_status fused_back(ckv_exchange *exchange, const ckv_exchange_plan *plan, int64_t part,
                             const ckv_shard_tensor *tensors, int count, ckv_stream stream)
{
    ckv_exchange_peers_params params = {.pull = 1, .num_tensors = count};
    return launch(exchange, plan, part, tensors, &params, stream);
}

static void fused_release(ckv_exchange *exchange)
{
    ckv_comm_window_destroy(exchange->comm, &exchange->slices_window);
}

const ckv_exchange_path ckv_exchange_fused = {
    .name = "fused",
    .fills_pages = 1,
    .reserve = fused_reserve,
    .there = fused_there,
    .back = fused_back,
    .release = fused_release,
};
