/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds what: the pure integers of an exchange. No memory, no ranks talking. */
#ifndef CKV_ULYSSES_PLAN_H
#define CKV_ULYSSES_PLAN_H

#include <ckv/status.h>
#include <stdint.h>

/* Heads of a context, fixed for its life. Rank r holds query heads [r*rank_q_heads, (r+1)*rank_q_heads) and K/V heads
 * [r*rank_kv_heads, (r+1)*rank_kv_heads): whole query groups, since both counts divide by the ranks. */
typedef struct ckv_ulysses_heads {
    int64_t ranks;
    int64_t q_heads, kv_heads; /* over all ranks */
    int64_t rank_q_heads, rank_kv_heads;
    int64_t head_dim;
} ckv_ulysses_heads;

/* ERROR_INVALID (not positive, q_heads no multiple of kv_heads), ERROR_UNSUPPORTED (heads that do not divide by the
 * ranks), each with the numbers. */
CKV_NODISCARD ckv_status ckv_ulysses_plan_heads(int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t ranks,
                                                ckv_ulysses_heads *heads_out);

/* Rows a sharder adds behind seq_len tokens so that every rank gets the same number: (-seq_len) mod ranks. */
int64_t ckv_ulysses_padding(int64_t seq_len, int64_t ranks);

/* Rows of each rank: (seq_len + padding) / ranks. */
int64_t ckv_ulysses_rows(int64_t seq_len, int64_t ranks);

/* Whether seq_len is what a sharder would have made `rows` rows a rank of: ranks*rows - ranks < seq_len <= ranks*rows.
 * A count of one rank's tokens, and more padding than sharding can add, are refused. ERROR_INVALID with the numbers. */
CKV_NODISCARD ckv_status ckv_ulysses_check_seq_len(int64_t seq_len, int64_t rows, int64_t ranks);

/* One tensor [rows, heads over all ranks, vector] of this rank's shard, cut by heads: chunk p, rank p's heads of all my
 * rows, goes to rank p. What rank p sends me lands as chunk p, so the chunks together are [ranks*rows, heads of a rank,
 * vector], token-major and dense: what attention reads, with no unpacking. The way back is the same with the sides
 * swapped: chunk p is rank p's rows of my heads. */
typedef struct ckv_ulysses_chunks {
    int64_t rows;       /* of a rank */
    int64_t rank_heads; /* of a rank */
    int64_t vector_bytes;
    int64_t chunk_bytes; /* rows * rank_heads * vector_bytes */
    int64_t total_bytes; /* ranks * chunk_bytes */
} ckv_ulysses_chunks;

/* ERROR_INVALID when the bytes do not fit 64 bits. */
CKV_NODISCARD ckv_status ckv_ulysses_plan_chunks(int64_t ranks, int64_t rows, int64_t rank_heads, int64_t vector_bytes,
                                                 ckv_ulysses_chunks *chunks_out);

#endif
