/* SPDX-License-Identifier: Apache-2.0 */
/* A forward's tensors on their way between shards (this rank's rows, all heads; the caller's memory) and slices (all
 * rows, this rank's heads; memory of the exchange, token-major and dense: what attention works on).
 *
 * Two paths, one static ops table each:
 *   sendrecv  pack a message per peer, send and receive in one group; any transport
 *   fused     one kernel moves each vector from where it lies to where it belongs, through windows
 * The heads of a rank may travel in parts, each a whole group of K/V heads with the query heads that read them. */
#ifndef CKV_ULYSSES_EXCHANGE_H
#define CKV_ULYSSES_EXCHANGE_H

#include "kernels/exchange_peers/exchange_peers.h"
#include "ulysses/comm.h"
#include "ulysses/plan.h"

#include <ckv/ulysses.h>

struct ckv_scatter_kv_slots_params;

/* Q, K and V go there, OUT and LSE come back. */
enum ckv_place { CKV_PLACE_Q, CKV_PLACE_K, CKV_PLACE_V, CKV_PLACE_OUT, CKV_PLACE_LSE, CKV_NUM_PLACES };

/* Where one forward's tensors lie in a box. Part i of a place follows part i-1. The same on every rank. */
typedef struct ckv_exchange_plan {
    ckv_ulysses_shards shards;
    int64_t rows;                        /* this rank's */
    int64_t token_bytes[CKV_NUM_PLACES]; /* of one token in one part */
    int64_t part_bytes[CKV_NUM_PLACES];  /* room for every rank's rows, were they all as many as the most */
    int64_t offsets[CKV_NUM_PLACES];
    int64_t box_bytes;
} ckv_exchange_plan;

/* One tensor of a shard. */
typedef struct ckv_shard_tensor {
    enum ckv_place place;
    void *tensor; /* only read on the way there */
    int64_t token_stride_bytes, head_stride_bytes;
} ckv_shard_tensor;

typedef struct ckv_exchange ckv_exchange;

enum { CKV_TENSORS_THERE = 3 };

typedef struct ckv_exchange_path {
    const char *name;
    int fills_pages;

    /* Collective: room for box_bytes. Earlier calls on the stream may still use what there is. */
    ckv_status (*reserve)(ckv_exchange *exchange, int64_t box_bytes, ckv_stream stream);
    /* Q, K and V. `pages` is where a path that fills_pages writes K and V besides the slices: complete but for its
     * source; NULL: nowhere. */
    ckv_status (*there)(ckv_exchange *exchange, const ckv_exchange_plan *plan, int64_t part,
                        const ckv_shard_tensor *tensors, const struct ckv_scatter_kv_slots_params *pages,
                        ckv_stream stream);
    /* OUT, and LSE if it is wanted. */
    ckv_status (*back)(ckv_exchange *exchange, const ckv_exchange_plan *plan, int64_t part,
                       const ckv_shard_tensor *tensors, int count, ckv_stream stream);
    void (*release)(ckv_exchange *exchange);
} ckv_exchange_path;

extern const ckv_exchange_path ckv_exchange_sendrecv, ckv_exchange_fused;

struct ckv_exchange {
    const ckv_exchange_path *path;
    char why_not_fused[256]; /* empty when it is */
    ckv_comm *comm;          /* borrowed */
    const ckv_device *device;
    ckv_ulysses_heads heads;
    int64_t vector_bytes; /* one head of one token */
    int64_t parts;
    char *slices;           /* box of slices, on the device; NULL until reserved */
    int64_t capacity_bytes; /* of each box */

    /* sendrecv */
    char *messages;               /* box of shards cut by peers: [place][part][rank][rows of the shard][heads] */
    ckv_comm_transfer *transfers; /* [CKV_EXCHANGE_MAX_TENSORS * ranks] */

    /* fused: both windows of all ranks */
    ckv_comm_window slices_window, flags_window;
    uint32_t *epochs; /* [CKV_PEER_MAX_BLOCKS] on the device */
};

/* ERROR_INVALID unless `wish` is NULL, "auto", "sendrecv" or "fused"; else its number, 0 for "auto". */
CKV_NODISCARD ckv_status ckv_exchange_check_wish(const char *wish, int64_t *index_out);

/* Collective. `wish` is NULL, "auto", "sendrecv" or "fused". "auto" is fused where every rank can, and remembers why
 * not otherwise. ERROR_INVALID (another wish), ERROR_UNSUPPORTED (fused was asked for), ERROR_MEMORY, ERROR_COMM,
 * ERROR_TIMEOUT; the same on every rank. */
CKV_NODISCARD ckv_status ckv_exchange_create(ckv_comm *comm, const ckv_device *device, const ckv_ulysses_heads *heads,
                                             int64_t vector_bytes, int64_t parts, const char *wish,
                                             ckv_exchange **exchange_out);
void ckv_exchange_destroy(ckv_exchange **exchange);

/* ERROR_INVALID when bytes do not fit 64 bits. */
CKV_NODISCARD ckv_status ckv_exchange_make_plan(const ckv_exchange *exchange, const ckv_ulysses_shards *shards,
                                                int with_lse, ckv_exchange_plan *plan_out);

/* Collective when it grows: room for a plan's boxes. ERROR_STATE on a stream that is being captured. */
CKV_NODISCARD ckv_status ckv_exchange_reserve(ckv_exchange *exchange, const ckv_exchange_plan *plan, ckv_stream stream);

/* Heads of one part of one rank. */
int64_t ckv_exchange_part_heads(const ckv_exchange *exchange, enum ckv_place place);

/* Where part `part` of a place begins in the slices. */
void *ckv_exchange_slice(const ckv_exchange *exchange, const ckv_exchange_plan *plan, enum ckv_place place,
                         int64_t part);

#endif
