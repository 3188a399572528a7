/* SPDX-License-Identifier: Apache-2.0 */
/* The integers of an exchange, over all lengths and rank counts that matter. */
#include "tests/support/case.h"

#include "ulysses/plan.h"

#include <ckv/ulysses.h>
#include <string.h>

enum { MAX_RANKS = 16, MAX_LEN = 400 };

/* Kills: pad as len % m; floor division of the rows; a padded length that loses or invents tokens. */
static void padding_completes_every_length(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= MAX_RANKS; ranks++) {
        for (int64_t len = 0; len <= MAX_LEN; len++) {
            int64_t padding = ckv_ulysses_padding(len, ranks);
            assert_in_range(padding, 0, ranks - 1);
            assert_int_equal((len + padding) % ranks, 0);
            assert_int_equal(ckv_ulysses_rows(len, ranks) * ranks, len + padding);
            assert_int_equal(ckv_ulysses_rows_per_rank(len, (int)ranks), ckv_ulysses_rows(len, ranks));
        }
    }
    assert_int_equal(ckv_ulysses_rows(INT64_MAX, 2), INT64_MAX / 2 + 1);
}

/* For `rows` rows a rank, exactly the lengths whose sharding gives `rows` are accepted. Kills: seq_len from the local
 * shard, from the padded length of a bigger shard, and any rule that is off by one. */
static void seq_len_is_what_sharding_can_have_padded(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= MAX_RANKS; ranks++)
        for (int64_t rows = 1; rows <= 12; rows++)
            for (int64_t len = -3; len <= rows * ranks + ranks; len++) {
                int right = len >= 1 && ckv_ulysses_rows(len, ranks) == rows;
                assert_status(ckv_ulysses_check_seq_len(len, rows, ranks), right ? CKV_OK : CKV_ERROR_INVALID);
            }
    assert_status(ckv_ulysses_check_seq_len(1, 0, 2), CKV_ERROR_INVALID);
    assert_status(ckv_ulysses_check_seq_len(1, INT64_MAX / 2, 4), CKV_ERROR_INVALID);
}

static void per_rank_count_is_refused_with_the_numbers(void **state)
{
    (void)state;
    assert_status(ckv_ulysses_check_seq_len(11, 11, 4), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "seq_len 11 with 11 rows on each of 4 ranks"));
    assert_non_null(strstr(ckv_last_error(), "41 to 44"));
}

/* Every K/V head on exactly one rank, with the whole query group that reads it. */
static void heads_divide_or_are_refused(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= MAX_RANKS; ranks++)
        for (int64_t kv = 1; kv <= 40; kv++)
            for (int64_t q = 1; q <= 40; q++) {
                ckv_ulysses_heads heads = {0};
                ckv_status expected = q % kv != 0                                       ? CKV_ERROR_INVALID
                                      : kv < ranks || q % ranks != 0 || kv % ranks != 0 ? CKV_ERROR_UNSUPPORTED
                                                                                        : CKV_OK;
                assert_status(ckv_ulysses_plan_heads(q, kv, 8, ranks, &heads), expected);
                assert_int_equal(heads.ranks, expected == CKV_OK ? ranks : 0);
                if (expected != CKV_OK)
                    continue;
                assert_int_equal(heads.rank_q_heads * ranks, q);
                assert_int_equal(heads.rank_kv_heads * ranks, kv);
                assert_int_equal(heads.rank_q_heads % heads.rank_kv_heads, 0);
                for (int64_t head = 0; head < q; head++) {
                    int64_t rank = head / heads.rank_q_heads, local = head % heads.rank_q_heads;
                    int64_t local_kv = local / (heads.rank_q_heads / heads.rank_kv_heads);
                    assert_int_equal(rank * heads.rank_kv_heads + local_kv, head / (q / kv));
                }
            }
}

static void refused_heads_come_with_the_numbers(void **state)
{
    (void)state;
    ckv_ulysses_heads heads;
    assert_status(ckv_ulysses_plan_heads(20, 20, 8, 8, &heads), CKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(ckv_last_error(), "20 query heads and 20 K/V heads on 8 ranks"));
    assert_status(ckv_ulysses_plan_heads(8, 2, 8, 4, &heads), CKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(ckv_last_error(), "2 K/V heads on 4 ranks; fewer K/V heads than ranks"));
    assert_status(ckv_ulysses_plan_heads(7, 4, 8, 1, &heads), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "7 query heads are no multiple of 4"));
    assert_status(ckv_ulysses_plan_heads(0, 4, 8, 1, &heads), CKV_ERROR_INVALID);
    assert_status(ckv_ulysses_plan_heads(4, 0, 8, 1, &heads), CKV_ERROR_INVALID);
    assert_status(ckv_ulysses_plan_heads(4, 4, 0, 1, &heads), CKV_ERROR_INVALID);
    assert_status(ckv_ulysses_plan_heads(4, 4, 8, 0, &heads), CKV_ERROR_INVALID);
}

static void chunks_tile_the_exchange(void **state)
{
    (void)state;
    ckv_ulysses_chunks chunks;
    assert_ok(ckv_ulysses_plan_chunks(4, 3, 5, 16, &chunks));
    assert_int_equal(chunks.chunk_bytes, 3 * 5 * 16);
    assert_int_equal(chunks.total_bytes, 4 * 3 * 5 * 16);
    assert_status(ckv_ulysses_plan_chunks(4, INT64_MAX / 8, 5, 16, &chunks), CKV_ERROR_INVALID);
}

static const ckv_test_case cases[] = {
    CKV_CASE(padding_completes_every_length),
    CKV_CASE(seq_len_is_what_sharding_can_have_padded),
    CKV_CASE(per_rank_count_is_refused_with_the_numbers),
    CKV_CASE(heads_divide_or_are_refused),
    CKV_CASE(refused_heads_come_with_the_numbers),
    CKV_CASE(chunks_tile_the_exchange),
};

CKV_TEST_MAIN("plan", cases)
