/* SPDX-License-Identifier: Apache-2.0 */
/* exchange_peers: a Ulysses exchange in one launch on every rank, over memory that all ranks' devices can address.
 *
 * Push: this rank's shard [tokens, heads over all ranks] goes straight to the slices of the peers, head slice p to peer
 * p, at this rank's tokens; then the ranks meet, so that when the launch ends every peer's share of mine has arrived.
 * Pull: the ranks meet, so that every peer's slices are complete; then this rank's tokens of each peer's heads come
 * straight into the shard. K and V of a push also go on into this rank's pages, so that nothing has to write them there
 * afterwards.
 *
 * A push needs the peers' slices to be free, and slices may change when their pulls are over. A pull of every rank
 * between two pushes makes sure of both: it begins when all have stopped reading what was pushed, and a push ends when
 * all have pulled. */
#ifndef CKV_KERNELS_EXCHANGE_PEERS_H
#define CKV_KERNELS_EXCHANGE_PEERS_H

#include "kernels/exchange_heads/exchange_heads.h"
#include "lib/layout/pages.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CKV_MAX_PEERS = 64, CKV_PEER_MAX_BLOCKS = 256 };

/* In memory that host and device can address. Whoever waits looks at `abort` and gives up when it is set; a wait that
 * runs out of time sets it, and says for whom it waited. */
typedef struct ckv_peer_signals {
    uint32_t abort; /* 0: go on */
    uint32_t timed_out;
    uint32_t missing_peer;
    uint32_t epoch;
} ckv_peer_signals;

/* Where ranks meet, block by block. Block b writes its launch count into flags of every peer and waits for theirs. */
typedef struct ckv_peer_meeting {
    uint32_t *flags[CKV_MAX_PEERS]; /* of each rank, in peers' memory: [ranks][CKV_PEER_MAX_BLOCKS], zero at first */
    uint32_t *epochs;               /* [CKV_PEER_MAX_BLOCKS] launches so far, mine, zero at first */
    ckv_peer_signals *signals;
    int64_t timeout_ns;
} ckv_peer_meeting;

/* One head slice of all tokens on each rank: [tokens over all ranks, slice heads], dense. */
typedef struct ckv_peer_tensor {
    void *shard; /* [tokens, heads], strided */
    int64_t token_stride_bytes, head_stride_bytes;
    int64_t heads;        /* over all ranks: peer p's first one is p * heads / ranks, plus first_head */
    int64_t slice_heads;  /* moved to or from each peer */
    int64_t first_head;   /* of the slice, among a peer's own */
    int64_t row_bytes;    /* one head vector */
    int64_t offset_bytes; /* of the slice in every peer's memory */
    void *plane;          /* push: this rank's K or V pages of the slice's heads, or NULL */
} ckv_peer_tensor;

/* Push: where the vectors of tensors with a plane go besides the slices, once they have arrived; slots as in
 * scatter_kv_slots. */
typedef struct ckv_peer_pages {
    int64_t tokens;                                /* the first ones, over all ranks; the rest is padding. 0: none */
    const int64_t *home, *own;                     /* [tokens] slot ids of this rank's pool */
    int64_t page_stride, head_stride, slot_stride; /* bytes */
    int64_t tokens_per_page;
    int64_t num_slots;
} ckv_peer_pages;

typedef struct ckv_exchange_peers_params {
    int pull; /* 0: push, then meet; 1: meet, then pull */
    int rank, ranks;
    int64_t base_tokens, long_ranks; /* shards: base_tokens on every rank, one more on the first long_ranks */
    void *peers[CKV_MAX_PEERS];
    int64_t num_tensors;
    ckv_peer_tensor tensors[CKV_EXCHANGE_MAX_TENSORS];
    ckv_peer_pages pages;
    ckv_peer_meeting meeting;
} ckv_exchange_peers_params;

static inline CKV_HOST_DEVICE int64_t ckv_peer_tokens(const ckv_exchange_peers_params *params, int64_t rank)
{
    return params->base_tokens + (rank < params->long_ranks);
}

static inline CKV_HOST_DEVICE int64_t ckv_peer_first_token(const ckv_exchange_peers_params *params, int64_t rank)
{
    return rank * params->base_tokens + (rank < params->long_ranks ? rank : params->long_ranks);
}

/* The host twin waits; a meeting that fails is ERROR_TIMEOUT or ERROR_COMM. A GPU's ends, and `signals` tells. */
ckv_status ckv_exchange_peers_host(const ckv_exchange_peers_params *params, ckv_stream stream);
ckv_status ckv_exchange_peers_cuda(const ckv_exchange_peers_params *params, ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
