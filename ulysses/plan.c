/* SPDX-License-Identifier: Apache-2.0 */
#include "ulysses/plan.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

ckv_status ckv_ulysses_plan_heads(int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t ranks,
                                  ckv_ulysses_heads *heads_out)
{
    if (q_heads < 1 || kv_heads < 1 || head_dim < 1 || ranks < 1)
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses: q_heads %lld, kv_heads %lld, head_dim %lld, ranks %lld; each must be at least 1",
                        (long long)q_heads, (long long)kv_heads, (long long)head_dim, (long long)ranks);
    if (q_heads % kv_heads != 0)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: %lld query heads are no multiple of %lld K/V heads",
                        (long long)q_heads, (long long)kv_heads);
    if (kv_heads < ranks)
        return ckv_fail(
            CKV_ERROR_UNSUPPORTED,
            "ulysses: %lld K/V heads on %lld ranks; fewer K/V heads than ranks are not supported, use at most "
            "%lld ranks",
            (long long)kv_heads, (long long)ranks, (long long)kv_heads);
    if (q_heads % ranks != 0 || kv_heads % ranks != 0)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "ulysses: %lld query heads and %lld K/V heads on %lld ranks; both must divide by the ranks",
                        (long long)q_heads, (long long)kv_heads, (long long)ranks);
    ckv_ulysses_heads heads = {
        .ranks = ranks,
        .q_heads = q_heads,
        .kv_heads = kv_heads,
        .rank_q_heads = q_heads / ranks,
        .rank_kv_heads = kv_heads / ranks,
        .head_dim = head_dim,
    };
    *heads_out = heads;
    return CKV_OK;
}

int64_t ckv_ulysses_padding(int64_t seq_len, int64_t ranks)
{
    int64_t rest = seq_len % ranks;
    return rest == 0 ? 0 : ranks - rest;
}

int64_t ckv_ulysses_rows(int64_t seq_len, int64_t ranks)
{
    return seq_len / ranks + (ckv_ulysses_padding(seq_len, ranks) > 0);
}

ckv_status ckv_ulysses_check_seq_len(int64_t seq_len, int64_t rows, int64_t ranks)
{
    int64_t padded;
    if (rows < 1 || !ckv_mul_i64(rows, ranks, &padded))
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: %lld rows on each of %lld ranks; rows must be at least 1",
                        (long long)rows, (long long)ranks);
    if (seq_len > padded || seq_len <= padded - ranks)
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses: seq_len %lld with %lld rows on each of %lld ranks: the tokens over all ranks must be "
                        "%lld to %lld (it is global, not one rank's count, and sharding adds at most %lld rows)",
                        (long long)seq_len, (long long)rows, (long long)ranks, (long long)(padded - ranks + 1),
                        (long long)padded, (long long)(ranks - 1));
    return CKV_OK;
}

ckv_status ckv_ulysses_plan_chunks(int64_t ranks, int64_t rows, int64_t rank_heads, int64_t vector_bytes,
                                   ckv_ulysses_chunks *chunks_out)
{
    ckv_ulysses_chunks chunks = {.rows = rows, .rank_heads = rank_heads, .vector_bytes = vector_bytes};
    if (!ckv_mul_i64(rank_heads, vector_bytes, &chunks.chunk_bytes) ||
        !ckv_mul_i64(chunks.chunk_bytes, rows, &chunks.chunk_bytes) ||
        !ckv_mul_i64(chunks.chunk_bytes, ranks, &chunks.total_bytes))
        return ckv_fail(CKV_ERROR_INVALID,
                        "ulysses: %lld ranks of %lld rows, %lld heads, %lld bytes a head: more than 64 bits of bytes",
                        (long long)ranks, (long long)rows, (long long)rank_heads, (long long)vector_bytes);
    *chunks_out = chunks;
    return CKV_OK;
}
