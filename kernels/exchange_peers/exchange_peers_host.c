/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/exchange_peers/exchange_peers.h"

#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <time.h>

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static ckv_status give_up(ckv_peer_signals *signals, int rank, int peer, uint32_t epoch, int64_t timeout_ns)
{
    if (__atomic_load_n(&signals->abort, __ATOMIC_ACQUIRE))
        return ckv_fail(CKV_ERROR_COMM, "rank %d gave up waiting for rank %d: the exchange was aborted", rank, peer);
    signals->missing_peer = (uint32_t)peer;
    signals->epoch = epoch;
    signals->timed_out = 1;
    __atomic_store_n(&signals->abort, CKV_MUTATE(giving_up_in_silence, 0, 1), __ATOMIC_RELEASE);
    return ckv_fail(CKV_ERROR_TIMEOUT, "rank %d waited %" PRId64 " ms for rank %d", rank, timeout_ns / 1000000, peer);
}

/* One block: what was written before is seen by every rank after it. */
static ckv_status meet(const ckv_exchange_peers_params *params)
{
    const ckv_peer_meeting *meeting = &params->meeting;
    uint32_t epoch = ++meeting->epochs[0];
    for (int peer = 0; peer < params->ranks; peer++)
        __atomic_store_n(&meeting->flags[peer][params->rank * CKV_PEER_MAX_BLOCKS], epoch, __ATOMIC_RELEASE);
    int64_t deadline_ns = now_ns() + meeting->timeout_ns;
    for (int peer = 0; peer < params->ranks; peer++) {
        const uint32_t *flag = &meeting->flags[params->rank][peer * CKV_PEER_MAX_BLOCKS];
        while ((int32_t)(__atomic_load_n(flag, __ATOMIC_ACQUIRE) - epoch) < 0) {
            if (__atomic_load_n(&meeting->signals->abort, __ATOMIC_ACQUIRE) ||
                (now_ns() > deadline_ns && !CKV_MUTANT(meeting_without_deadline)))
                return give_up(meeting->signals, params->rank, peer, epoch, meeting->timeout_ns);
            sched_yield();
        }
    }
    return CKV_OK;
}

/* Between this rank's tokens of the shard and one peer's slice. */
static void move_slice(const ckv_exchange_peers_params *params, const ckv_peer_tensor *tensor, int peer)
{
    int source = CKV_MUTANT(fused_slice_of_a_neighbour) && !params->pull ? (peer + 1) % params->ranks : peer;
    int64_t first_head = CKV_MUTANT(fused_kv_head_of_another_group) && tensor->heads < params->ranks
                             ? source % tensor->heads
                             : source * tensor->heads / params->ranks + tensor->first_head;
    int place = CKV_MUTANT(fused_shards_reversed) && !params->pull ? params->ranks - 1 - params->rank : params->rank;
    char *first = (char *)params->peers[peer] + tensor->offset_bytes +
                  ckv_peer_first_token(params, place) * tensor->slice_heads * tensor->row_bytes;
    char *slice = first;
    int64_t tokens = ckv_peer_tokens(params, params->rank);
    for (int64_t token = 0; token < tokens; token++) {
        for (int64_t head = 0; head < tensor->slice_heads; head++, slice += tensor->row_bytes) {
            if (params->pull && CKV_MUTANT(fused_head_major_back))
                slice = first + (head * tokens + token) * tensor->row_bytes;
            char *row = (char *)tensor->shard + token * tensor->token_stride_bytes +
                        (first_head + head) * tensor->head_stride_bytes;
            if (params->pull)
                memcpy(row, slice, (size_t)tensor->row_bytes);
            else
                memcpy(slice, row, (size_t)tensor->row_bytes);
        }
    }
}

static void write_slot(const ckv_exchange_peers_params *params, const ckv_peer_tensor *tensor, int64_t slot,
                       const char *slice)
{
    const ckv_peer_pages *pages = &params->pages;
    if (slot < 0 || slot >= pages->num_slots)
        return;
    char *row = (char *)tensor->plane + ckv_page_of(slot, pages->tokens_per_page) * pages->page_stride +
                ckv_in_page(slot, pages->tokens_per_page) * pages->slot_stride;
    for (int64_t head = 0; head < tensor->slice_heads; head++)
        memcpy(row + head * pages->head_stride, slice + head * tensor->row_bytes, (size_t)tensor->row_bytes);
}

/* What has arrived in this rank's slice, token by token. */
static void fill_pages(const ckv_exchange_peers_params *params, const ckv_peer_tensor *tensor)
{
    const char *slice = (const char *)params->peers[params->rank] + tensor->offset_bytes;
    for (int64_t token = 0; tensor->plane != NULL && token < params->pages.tokens; token++) {
        write_slot(params, tensor, params->pages.home[token], slice);
        if (!CKV_MUTANT(fused_own_slots_unfilled))
            write_slot(params, tensor, params->pages.own[token], slice);
        slice += tensor->slice_heads * tensor->row_bytes;
    }
}

ckv_status ckv_exchange_peers_host(const ckv_exchange_peers_params *params, ckv_stream stream)
{
    (void)stream;
    if (params->pull)
        CKV_TRY(meet(params));
    for (int64_t i = 0; i < params->num_tensors; i++)
        for (int peer = 0; peer < params->ranks; peer++)
            move_slice(params, &params->tensors[i], peer);
    if (params->pull)
        return CKV_OK;
    CKV_TRY(meet(params));
    for (int64_t i = 0; i < params->num_tensors; i++)
        fill_pages(params, &params->tensors[i]);
    return CKV_OK;
}
