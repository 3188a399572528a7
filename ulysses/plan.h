/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds what: the pure integers of an exchange. No memory, no ranks talking. */
#ifndef CKV_ULYSSES_PLAN_H
#define CKV_ULYSSES_PLAN_H

#include <ckv/ulysses.h>
#include <stdint.h>

/* Heads of a context, fixed for its life. Rank r holds query heads [r*rank_q_heads, (r+1)*rank_q_heads) and the K/V
 * heads they read: rank_kv_heads from ckv_ulysses_first_kv_head(r). Where there are fewer K/V heads than ranks,
 * ranks/kv_heads neighbours hold the same one. */
typedef struct ckv_ulysses_heads {
    int64_t ranks;
    int64_t q_heads, kv_heads; /* over all ranks */
    int64_t rank_q_heads, rank_kv_heads;
    int64_t head_dim;
} ckv_ulysses_heads;

/* ERROR_INVALID (not positive, q_heads no multiple of kv_heads), ERROR_UNSUPPORTED (query heads that do not divide by
 * the ranks; K/V heads that neither divide by the ranks nor divide them), each with the numbers. */
CKV_NODISCARD ckv_status ckv_ulysses_plan_heads(int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t ranks,
                                                ckv_ulysses_heads *heads_out);

static inline int64_t ckv_ulysses_first_kv_head(const ckv_ulysses_heads *heads, int64_t rank)
{
    return rank * heads->kv_heads / heads->ranks;
}

/* Token rows of each rank: base_rows, and one more on the first long_ranks. Rank r's come after those of ranks 0..r-1.
 */
typedef struct ckv_ulysses_shards {
    int64_t ranks;
    int64_t base_rows;
    int64_t long_ranks;
} ckv_ulysses_shards;

static inline int64_t ckv_ulysses_shard_rows(const ckv_ulysses_shards *shards, int64_t rank)
{
    return shards->base_rows + (rank < shards->long_ranks);
}

static inline int64_t ckv_ulysses_shard_start(const ckv_ulysses_shards *shards, int64_t rank)
{
    return rank * shards->base_rows + (rank < shards->long_ranks ? rank : shards->long_ranks);
}

static inline int64_t ckv_ulysses_total_rows(const ckv_ulysses_shards *shards)
{
    return ckv_ulysses_shard_start(shards, shards->ranks);
}

/* How a sharder splits seq_len >= 1 tokens. CKV_SHARDS_PADDED: ceil(seq_len / ranks) rows on every rank, padding after
 * the last token. CKV_SHARDS_UNPADDED: as many rows as tokens. */
ckv_ulysses_shards ckv_ulysses_split(ckv_sharding sharding, int64_t seq_len, int64_t ranks);

/* The split that gives `rank` its `rows`. Padded, any seq_len with ranks*rows - ranks < seq_len <= ranks*rows is that
 * of a sharder; a count of one rank's tokens, and more padding than sharding can add, are refused. Unpadded, rows must
 * be this rank's part of seq_len. ERROR_INVALID with the numbers. */
CKV_NODISCARD ckv_status ckv_ulysses_plan_shards(ckv_sharding sharding, int64_t seq_len, int64_t rows, int64_t rank,
                                                 int64_t ranks, ckv_ulysses_shards *shards_out);

#endif
