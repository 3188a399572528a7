/* SPDX-License-Identifier: Apache-2.0 */
/* The integers of an exchange, over all lengths and rank counts that matter. */
#include "tests/support/case.h"

#include "ulysses/plan.h"

#include <ckv/ulysses.h>
#include <string.h>

enum { MAX_RANKS = 16, MAX_LEN = 400 };

static int64_t total_of(ckv_sharding sharding, int64_t len, int64_t ranks)
{
    int64_t total = 0;
    ckv_ulysses_shards shards = ckv_ulysses_split(sharding, len, ranks);
    for (int64_t rank = 0; rank < ranks; rank++) {
        assert_int_equal(ckv_ulysses_shard_start(&shards, rank), total);
        assert_int_equal(ckv_ulysses_rows_of_rank(sharding, len, (int)ranks, (int)rank),
                         ckv_ulysses_shard_rows(&shards, rank));
        total += ckv_ulysses_shard_rows(&shards, rank);
    }
    assert_int_equal(ckv_ulysses_total_rows(&shards), total);
    return total;
}

/* Kills: pad as len % m; floor division of the rows; a padded length that loses or invents tokens. */
static void padding_completes_every_length(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= MAX_RANKS; ranks++) {
        for (int64_t len = 1; len <= MAX_LEN; len++) {
            int64_t padding = total_of(CKV_SHARDS_PADDED, len, ranks) - len;
            assert_in_range(padding, 0, ranks - 1);
            assert_int_equal(ckv_ulysses_rows_per_rank(len, (int)ranks) * ranks, len + padding);
        }
    }
    assert_int_equal(ckv_ulysses_rows_per_rank(INT64_MAX, 2), INT64_MAX / 2 + 1);
}

/* Kills: a remainder that is dropped, or given to the last rank. */
static void unpadded_shards_hold_the_tokens_and_no_more(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= MAX_RANKS; ranks++) {
        for (int64_t len = 1; len <= MAX_LEN; len++) {
            assert_int_equal(total_of(CKV_SHARDS_UNPADDED, len, ranks), len);
            int64_t most = ckv_ulysses_rows_of_rank(CKV_SHARDS_UNPADDED, len, (int)ranks, 0);
            int64_t least = ckv_ulysses_rows_of_rank(CKV_SHARDS_UNPADDED, len, (int)ranks, (int)ranks - 1);
            assert_in_range(most - least, 0, 1);
        }
    }
}

static ckv_status check_padded(int64_t len, int64_t rows, int64_t ranks)
{
    ckv_ulysses_shards shards;
    return ckv_ulysses_plan_shards(CKV_SHARDS_PADDED, len, rows, 0, ranks, &shards);
}

/* For `rows` rows a rank, exactly the lengths whose sharding gives `rows` are accepted. Kills: seq_len from the local
 * shard, from the padded length of a bigger shard, and any rule that is off by one. */
static void seq_len_is_what_sharding_can_have_padded(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= MAX_RANKS; ranks++)
        for (int64_t rows = 1; rows <= 12; rows++)
            for (int64_t len = -3; len <= rows * ranks + ranks; len++) {
                int right = len >= 1 && ckv_ulysses_rows_per_rank(len, (int)ranks) == rows;
                assert_status(check_padded(len, rows, ranks), right ? CKV_OK : CKV_ERROR_INVALID);
            }
    assert_status(check_padded(1, 0, 2), CKV_ERROR_INVALID);
    assert_status(check_padded(1, INT64_MAX / 2, 4), CKV_ERROR_INVALID);
}

/* The same without padding, for every rank. */
static void unpadded_rows_are_this_ranks_part(void **state)
{
    (void)state;
    ckv_ulysses_shards shards;
    for (int64_t ranks = 1; ranks <= 5; ranks++)
        for (int64_t rank = 0; rank < ranks; rank++)
            for (int64_t len = -2; len <= 12; len++)
                for (int64_t rows = -1; rows <= 13; rows++) {
                    int right =
                        len >= 1 && rows == ckv_ulysses_rows_of_rank(CKV_SHARDS_UNPADDED, len, (int)ranks, (int)rank);
                    assert_status(ckv_ulysses_plan_shards(CKV_SHARDS_UNPADDED, len, rows, rank, ranks, &shards),
                                  right ? CKV_OK : CKV_ERROR_INVALID);
                }
    assert_status(ckv_ulysses_plan_shards(CKV_SHARDS_UNPADDED, 11, 6, 1, 2, &shards), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "seq_len 11 on 2 ranks without padding puts 5 rows on rank 1, not 6"));
}

static void per_rank_count_is_refused_with_the_numbers(void **state)
{
    (void)state;
    assert_status(check_padded(11, 11, 4), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "seq_len 11 with 11 rows on each of 4 ranks"));
    assert_non_null(strstr(ckv_last_error(), "41 to 44"));
}

static ckv_status expected_of_heads(int64_t q, int64_t kv, int64_t ranks)
{
    if (q % kv != 0)
        return CKV_ERROR_INVALID;
    return q % ranks == 0 && (kv % ranks == 0 || ranks % kv == 0) ? CKV_OK : CKV_ERROR_UNSUPPORTED;
}

/* Every query head finds the K/V head it reads on its own rank, and no rank holds one that nobody there reads. */
static void heads_divide_or_are_refused(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= MAX_RANKS; ranks++)
        for (int64_t kv = 1; kv <= 40; kv++)
            for (int64_t q = 1; q <= 40; q++) {
                ckv_ulysses_heads heads = {0};
                ckv_status expected = expected_of_heads(q, kv, ranks);
                assert_status(ckv_ulysses_plan_heads(q, kv, 8, ranks, &heads), expected);
                assert_int_equal(heads.ranks, expected == CKV_OK ? ranks : 0);
                if (expected != CKV_OK)
                    continue;
                assert_int_equal(heads.rank_q_heads * ranks, q);
                assert_int_equal(heads.rank_kv_heads * ranks, kv > ranks ? kv : ranks);
                assert_int_equal(heads.rank_q_heads % heads.rank_kv_heads, 0);
                for (int64_t head = 0; head < q; head++) {
                    int64_t rank = head / heads.rank_q_heads, local = head % heads.rank_q_heads;
                    int64_t local_kv = local / (heads.rank_q_heads / heads.rank_kv_heads);
                    assert_int_equal(ckv_ulysses_first_kv_head(&heads, rank) + local_kv, head / (q / kv));
                }
            }
}

static void refused_heads_come_with_the_numbers(void **state)
{
    (void)state;
    ckv_ulysses_heads heads;
    assert_status(ckv_ulysses_plan_heads(20, 20, 8, 8, &heads), CKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(ckv_last_error(), "20 query heads on 8 ranks"));
    assert_status(ckv_ulysses_plan_heads(12, 4, 8, 6, &heads), CKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(ckv_last_error(), "4 K/V heads on 6 ranks"));
    assert_status(ckv_ulysses_plan_heads(7, 4, 8, 1, &heads), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "7 query heads are no multiple of 4"));
    assert_status(ckv_ulysses_plan_heads(0, 4, 8, 1, &heads), CKV_ERROR_INVALID);
    assert_status(ckv_ulysses_plan_heads(4, 0, 8, 1, &heads), CKV_ERROR_INVALID);
    assert_status(ckv_ulysses_plan_heads(4, 4, 0, 1, &heads), CKV_ERROR_INVALID);
    assert_status(ckv_ulysses_plan_heads(4, 4, 8, 0, &heads), CKV_ERROR_INVALID);
}

static const ckv_test_case cases[] = {
    CKV_CASE(padding_completes_every_length),
    CKV_CASE(unpadded_shards_hold_the_tokens_and_no_more),
    CKV_CASE(seq_len_is_what_sharding_can_have_padded),
    CKV_CASE(unpadded_rows_are_this_ranks_part),
    CKV_CASE(per_rank_count_is_refused_with_the_numbers),
    CKV_CASE(heads_divide_or_are_refused),
    CKV_CASE(refused_heads_come_with_the_numbers),
};

CKV_TEST_MAIN("plan", cases)
