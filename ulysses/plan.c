/* SPDX-License-Identifier: Apache-2.0 */
#include "ulysses/plan.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

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
    if (CKV_MUTATE(evenness_of_local_heads, q_heads / ranks, q_heads) % ranks != 0)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "ulysses: %lld query heads on %lld ranks; they must divide by the ranks",
                        (long long)q_heads, (long long)ranks);
    if (kv_heads % ranks != 0 && ranks % kv_heads != 0)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "ulysses: %lld K/V heads on %lld ranks; they must divide by the ranks, or the ranks by them",
                        (long long)kv_heads, (long long)ranks);
    ckv_ulysses_heads heads = {
        .ranks = ranks,
        .q_heads = q_heads,
        .kv_heads = kv_heads,
        .rank_q_heads = q_heads / ranks,
        .rank_kv_heads = kv_heads < ranks ? 1 : kv_heads / ranks,
        .head_dim = head_dim,
    };
    *heads_out = heads;
    return CKV_OK;
}

ckv_ulysses_shards ckv_ulysses_split(ckv_sharding sharding, int64_t seq_len, int64_t ranks)
{
    int64_t rest = CKV_MUTATE(unpadded_rest_dropped, 0, seq_len % ranks);
    if (CKV_MUTANT(padding_as_remainder) && sharding == CKV_SHARDS_PADDED)
        return (ckv_ulysses_shards){.ranks = ranks, .base_rows = (seq_len + rest) / ranks};
    if (sharding == CKV_SHARDS_UNPADDED)
        return (ckv_ulysses_shards){.ranks = ranks, .base_rows = seq_len / ranks, .long_ranks = rest};
    return (ckv_ulysses_shards){.ranks = ranks, .base_rows = seq_len / ranks + (rest > 0)};
}

static ckv_status refuse_padded(int64_t seq_len, int64_t rows, int64_t ranks, int64_t padded)
{
    return ckv_fail(CKV_ERROR_INVALID,
                    "ulysses: seq_len %lld with %lld rows on each of %lld ranks: the tokens over all ranks must be "
                    "%lld to %lld (it is global, not one rank's count, and sharding adds at most %lld rows)",
                    (long long)seq_len, (long long)rows, (long long)ranks, (long long)(padded - ranks + 1),
                    (long long)padded, (long long)(ranks - 1));
}

static ckv_status refuse_unpadded(int64_t seq_len, int64_t rows, int64_t rank, const ckv_ulysses_shards *shards)
{
    return ckv_fail(CKV_ERROR_INVALID,
                    "ulysses: seq_len %lld on %lld ranks without padding puts %lld rows on rank %lld, not %lld (it is "
                    "global, not one rank's count)",
                    (long long)seq_len, (long long)shards->ranks, (long long)ckv_ulysses_shard_rows(shards, rank),
                    (long long)rank, (long long)rows);
}

ckv_status ckv_ulysses_plan_shards(ckv_sharding sharding, int64_t seq_len, int64_t rows, int64_t rank, int64_t ranks,
                                   ckv_ulysses_shards *shards_out)
{
    int64_t padded;
    if (rows < (sharding == CKV_SHARDS_PADDED) || !ckv_mul_i64(rows, ranks, &padded))
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: %lld rows on each of %lld ranks; rows must be at least %d",
                        (long long)rows, (long long)ranks, sharding == CKV_SHARDS_PADDED);
    if (sharding == CKV_SHARDS_PADDED) {
        if (!CKV_MUTANT(seq_len_unbounded) && (seq_len > padded || seq_len <= padded - ranks))
            return refuse_padded(seq_len, rows, ranks, padded);
        *shards_out = (ckv_ulysses_shards){.ranks = ranks, .base_rows = rows};
        return CKV_OK;
    }
    if (seq_len < 1)
        return ckv_fail(CKV_ERROR_INVALID, "ulysses: seq_len is %lld; it must be at least 1", (long long)seq_len);
    ckv_ulysses_shards shards = ckv_ulysses_split(sharding, seq_len, ranks);
    if (rows != ckv_ulysses_shard_rows(&shards, rank))
        return refuse_unpadded(seq_len, rows, rank, &shards);
    *shards_out = shards;
    return CKV_OK;
}
