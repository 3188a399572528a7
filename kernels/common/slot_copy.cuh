/* SPDX-License-Identifier: Apache-2.0 */
/* Copying slots of a pool to slots of it, all layers, K and V, all heads, at the memory's speed: what kernels share
 * that know in different ways which slots. */
#ifndef CKV_KERNELS_SLOT_COPY_CUH
#define CKV_KERNELS_SLOT_COPY_CUH

#include "kernels/common/launch.cuh"
#include "lib/layout/pages.h"

#include <ckv/pool.h>

namespace ckv
{

/* Each thread has COPY_LOADS vectors of 16 bytes on their way: 64 KB for 1024 threads of a multiprocessor, several
 * times what the memory's latency needs. */
enum { COPY_LOADS = 4, COPY_GROUP = COPY_LOADS * WARP }; /* vectors a warp copies at a time */

/* A pool in units that a kernel does not have to derive. */
struct slot_copier {
    char *base;
    int64_t layer_stride, page_stride, slot_stride;
    int64_t tokens_per_page, num_slots;
    unsigned kv_vectors, head_vectors; /* the strides, in vectors */
    unsigned heads, row_vectors, layers;
    unsigned groups; /* of vectors in K and V of all heads of one slot and layer */
};

/* What a warp copies of every slot: one group after another, which other warps of its team number copy of other slots
 * and layers. */
struct copy_share {
    unsigned team, teams;
    unsigned group, group_step;
    int vector[COPY_LOADS]; /* this lane's, counted from the slot in a layer; -1: none */
};

/* From where to where, as byte offsets into a layer. */
struct slot_copy {
    int64_t from, to;
};

/* The widest vector: a row of tables of kernels. */
inline int copy_vector_row(const ckv_pool_view &pool, int64_t row_bytes)
{
    return vector_row(bits(pool.base) | bits(pool.layer_stride) | bits(pool.page_stride) | bits(pool.kv_stride) |
                      bits(pool.head_stride) | bits(pool.slot_stride) | bits(row_bytes));
}

inline ckv_status make_slot_copier(const ckv_pool_view &pool, int64_t tokens_per_page, int64_t layers, int64_t kv_heads,
                                   int64_t row_bytes, slot_copier *copier_out)
{
    int64_t bytes = vector_bytes(copy_vector_row(pool, row_bytes));
    int64_t vectors = 2 * kv_heads * (row_bytes / bytes);
    int64_t reach =
        (pool.kv_stride + kv_heads * pool.head_stride) / bytes; /* vectors from a slot's first to its last */
    if (vectors > INT32_MAX || reach > INT32_MAX || layers > INT32_MAX)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "copies: %" PRId64 " layers of %" PRId64 " heads of %" PRId64 " bytes are too many", layers,
                        kv_heads, row_bytes);
    *copier_out = {static_cast<char *>(pool.base),
                   pool.layer_stride,
                   pool.page_stride,
                   pool.slot_stride,
                   tokens_per_page,
                   pool.total_pages * tokens_per_page,
                   static_cast<unsigned>(pool.kv_stride / bytes),
                   static_cast<unsigned>(pool.head_stride / bytes),
                   static_cast<unsigned>(kv_heads),
                   static_cast<unsigned>(row_bytes / bytes),
                   static_cast<unsigned>(layers),
                   static_cast<unsigned>(ceil_div(vectors, COPY_GROUP))};
    return CKV_OK;
}

__device__ inline bool is_slot(const slot_copier &copier, int64_t slot)
{
    return slot >= 0 && slot < copier.num_slots;
}

__device__ inline int64_t slot_offset(const slot_copier &copier, int64_t slot)
{
    return ckv_page_of(slot, copier.tokens_per_page) * copier.page_stride +
           ckv_in_page(slot, copier.tokens_per_page) * copier.slot_stride;
}

__device__ inline void take_group(const slot_copier &copier, unsigned group, copy_share *share)
{
    share->group = group;
    for (unsigned n = 0; n < COPY_LOADS; n++) {
        unsigned vector = group * COPY_GROUP + n * WARP + threadIdx.x % WARP;
        unsigned row = vector / copier.row_vectors;
        unsigned within = vector - row * copier.row_vectors;
        unsigned v = row >= copier.heads; /* K's heads, then V's */
        share->vector[n] =
            row < 2 * copier.heads
                ? static_cast<int>(v * copier.kv_vectors + (row - v * copier.heads) * copier.head_vectors + within)
                : -1;
    }
}

/* The share of warp `warp` of `warps`, at its first group. */
__device__ inline copy_share take_share(const slot_copier &copier, unsigned warp, unsigned warps)
{
    copy_share share;
    share.group_step = copier.groups < warps ? copier.groups : warps;
    share.team = warp / share.group_step;
    share.teams = warps / share.group_step;
    take_group(copier, warp - share.team * share.group_step, &share);
    return share;
}

/* A warp's share of `entries` copies, of its group; all lanes, `entry_of(n)` is the slot_copy of entry n, `from`
 * negative: none. Teams take (layer, entry) pairs `teams` apart, entries innermost: every warp gets as many bytes, and
 * neighbouring teams work on neighbouring slots. Each vector is read and written by one lane. */
template <typename VECTOR, typename ENTRY_OF>
__device__ void copy_group(const slot_copier &copier, const copy_share &share, unsigned entries,
                           const ENTRY_OF &entry_of)
{
    unsigned layer = share.team / entries, entry = share.team % entries;
    unsigned layer_step = share.teams / entries, entry_step = share.teams % entries;
    while (layer < copier.layers) {
        slot_copy copy = entry_of(entry);
        char *base = copier.base + layer * copier.layer_stride;
        const VECTOR *from = reinterpret_cast<const VECTOR *>(base + copy.from);
        VECTOR *to = reinterpret_cast<VECTOR *>(base + copy.to);
        VECTOR held[COPY_LOADS];
#pragma unroll
        for (int n = 0; n < COPY_LOADS; n++)
            if (copy.from >= 0 && share.vector[n] >= 0)
                held[n] = from[share.vector[n]];
#pragma unroll
        for (int n = 0; n < COPY_LOADS; n++)
            if (copy.from >= 0 && share.vector[n] >= 0)
                to[share.vector[n]] = held[n];
        layer += layer_step;
        entry += entry_step;
        if (entry >= entries) {
            entry -= entries;
            layer++;
        }
    }
}

template <typename VECTOR, typename ENTRY_OF>
__device__ void copy_slots(const slot_copier &copier, copy_share share, unsigned entries, const ENTRY_OF &entry_of)
{
    if (entries == 0 || share.team >= share.teams)
        return;
    copy_group<VECTOR>(copier, share, entries, entry_of);
    for (unsigned group = share.group + share.group_step; group < copier.groups; group += share.group_step) {
        take_group(copier, group, &share);
        copy_group<VECTOR>(copier, share, entries, entry_of);
    }
}

} // namespace ckv

#endif
