/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: what a peer gets of a shard is packed, or unpacked, by one kernel; the slices need neither, since whole
 * tokens of one rank follow those of another. */
#include "ulysses/exchange.h"

#include "lib/device/device.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

static ckv_status sendrecv_reserve(ckv_exchange *exchange, int64_t box_bytes, ckv_stream stream)
{
    const ckv_device *device = exchange->device;
    void *slices = NULL, *messages = NULL;
    ckv_status status = device->alloc((size_t)box_bytes, &slices);
    if (status == CKV_OK)
        status = device->alloc((size_t)box_bytes, &messages);
    if (status == CKV_OK)
        status = device->wait(stream);
    status = ckv_comm_agree(exchange->comm, status);
    if (status != CKV_OK) {
        device->free(slices);
        device->free(messages);
        return status;
    }
    device->free(exchange->slices);
    device->free(exchange->messages);
    exchange->slices = slices;
    exchange->messages = messages;
    return CKV_OK;
}

static char *messages_of(const ckv_exchange *exchange, const ckv_exchange_plan *plan, enum ckv_place place,
                         int64_t part)
{
    return exchange->messages + plan->offsets[place] + part * plan->part_bytes[place];
}

/* One kernel between shards and messages. */
static ckv_status convert(const ckv_exchange *exchange, const ckv_exchange_plan *plan, int64_t part, int pack,
                          const ckv_shard_tensor *tensors, int count, ckv_stream stream)
{
    ckv_exchange_heads_params params = {.pack = pack, .chunks = exchange->heads.ranks, .num_tensors = count};
    for (int i = 0; i < count; i++) {
        enum ckv_place place = tensors[i].place;
        int64_t part_heads = ckv_exchange_part_heads(exchange, place);
        int is_kv = place == CKV_PLACE_K || place == CKV_PLACE_V;
        params.tensors[i] = (ckv_exchange_tensor){
            .tensor = tensors[i].tensor,
            .token_stride_bytes = tensors[i].token_stride_bytes,
            .head_stride_bytes = tensors[i].head_stride_bytes,
            .packed = messages_of(exchange, plan, place, part),
            .chunk_stride_bytes = plan->rows * plan->token_bytes[place],
            .chunk_tokens = plan->rows,
            .chunk_heads = part_heads,
            .heads = is_kv ? exchange->heads.kv_heads : exchange->heads.q_heads,
            .first_head = part * part_heads,
            .row_bytes = plan->token_bytes[place] / part_heads,
        };
    }
    return exchange->device->exchange_heads(&params, stream);
}

/* Between my message for (or from) each peer and its tokens in the slices. */
static ckv_status carry(const ckv_exchange *exchange, const ckv_exchange_plan *plan, int64_t part, int back,
                        const ckv_shard_tensor *tensors, int count, ckv_stream stream)
{
    int64_t ranks = exchange->heads.ranks;
    for (int i = 0; i < count; i++) {
        enum ckv_place place = tensors[i].place;
        int64_t token_bytes = plan->token_bytes[place], message_bytes = plan->rows * token_bytes;
        for (int64_t peer = 0; peer < ranks; peer++) {
            int64_t source = CKV_MUTANT(shards_reversed) && !back ? ranks - 1 - peer : peer;
            char *message = messages_of(exchange, plan, place, part) + peer * message_bytes;
            char *slice = (char *)ckv_exchange_slice(exchange, plan, place, part) +
                          ckv_ulysses_shard_start(&plan->shards, source) * token_bytes;
            int64_t slice_bytes = ckv_ulysses_shard_rows(&plan->shards, peer) * token_bytes;
            exchange->transfers[i * ranks + peer] =
                back ? (ckv_comm_transfer){slice, slice_bytes, message, message_bytes}
                     : (ckv_comm_transfer){message, message_bytes, slice, slice_bytes};
        }
    }
    return ckv_comm_enqueue_all_to_all(exchange->comm, count, exchange->transfers, stream);
}

static ckv_status sendrecv_there(ckv_exchange *exchange, const ckv_exchange_plan *plan, int64_t part,
                                 const ckv_shard_tensor *tensors, const struct ckv_scatter_kv_slots_params *pages,
                                 ckv_stream stream)
{
    (void)pages;
    CKV_TRY(convert(exchange, plan, part, 1, tensors, CKV_TENSORS_THERE, stream));
    return carry(exchange, plan, part, 0, tensors, CKV_TENSORS_THERE, stream);
}

static ckv_status sendrecv_back(ckv_exchange *exchange, const ckv_exchange_plan *plan, int64_t part,
                                const ckv_shard_tensor *tensors, int count, ckv_stream stream)
{
    CKV_TRY(carry(exchange, plan, part, 1, tensors, count, stream));
    return convert(exchange, plan, part, 0, tensors, count, stream);
}

static void sendrecv_release(ckv_exchange *exchange)
{
    exchange->device->free(exchange->slices);
    exchange->device->free(exchange->messages);
}

const ckv_exchange_path ckv_exchange_sendrecv = {
    .name = "sendrecv",
    .reserve = sendrecv_reserve,
    .there = sendrecv_there,
    .back = sendrecv_back,
    .release = sendrecv_release,
};
