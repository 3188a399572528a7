/* SPDX-License-Identifier: Apache-2.0 */
/* The pure model: sizes, rows against a brute-force definition of visibility, commits. */
#include "lib/layout/geometry.h"
#include "lib/layout/row_plan.h"
#include "tests/support/case.h"
#include "tests/support/random.h"

#include <string.h>

#define SIZES(...) ((int64_t[]){__VA_ARGS__})

static ckv_rollout_config rollout(int64_t pin, int64_t window, int64_t staged, const int64_t *sizes, size_t num_sizes)
{
    ckv_rollout_config config = ckv_rollout_config_default();
    config.pin_tokens = pin;
    config.window_tokens = window;
    config.max_staged_tokens = staged;
    config.causal_block_sizes = sizes;
    config.num_causal_block_sizes = num_sizes;
    return config;
}

static void sizes_of_the_worked_example(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(5, 8, 6, SIZES(6, 2), 2);
    ckv_rollout_size size;
    assert_ok(ckv_rollout_config_size(&config, 4, &size));
    assert_int_equal(size.resident_tokens, 6 * 4);
    assert_int_equal(size.private_tokens, (4 + 3 * 3) * 4);
    assert_int_equal(size.pool_tokens, 19 * 4);
}

static void block_sizes_are_a_set(void **state)
{
    (void)state;
    ckv_geometry a, b;
    ckv_rollout_config one = rollout(0, 8, 6, SIZES(6, 2, 6, 2, 2), 5), other = rollout(9, 8, 6, SIZES(2, 6), 2);
    assert_ok(ckv_geometry_init(&one, 4, &a));
    assert_ok(ckv_geometry_init(&other, 4, &b));
    assert_int_equal(a.num_sizes, 2);
    assert_int_equal(a.sizes[0], 2);
    assert_true(ckv_geometry_equal(&a, &b)); /* pin is not part of a geometry */
    assert_int_equal(ckv_geometry_find_size(&a, 6), 1);
    assert_int_equal(ckv_geometry_find_size(&a, 3), -1);
}

static void bad_geometries_are_refused(void **state)
{
    (void)state;
    int64_t many[CKV_MAX_CAUSAL_BLOCK_SIZES + 1];
    for (int i = 0; i < CKV_MAX_CAUSAL_BLOCK_SIZES + 1; i++)
        many[i] = i + 1;
    const struct {
        ckv_rollout_config config;
        int64_t page;
        const char *named; /* must stand in the message */
    } bad[] = {
        {rollout(-1, 8, 6, SIZES(6), 1), 4, "pin_tokens is -1"},
        {rollout(0, -8, 6, SIZES(6), 1), 4, "window_tokens is -8"},
        {rollout(0, 8, 0, SIZES(6), 1), 4, "max_staged_tokens is 0"},
        {rollout(0, 8, 6, SIZES(7), 1), 4, "7"},
        {rollout(0, 8, 6, SIZES(0), 1), 4, "0"},
        {rollout(0, 8, 6, NULL, 1), 4, "empty"},
        {rollout(0, 8, 6, SIZES(6), 0), 4, "empty"},
        {rollout(0, 8, 6, SIZES(6), 1), 3, "tokens_per_page is 3"},
        {rollout(0, 8, 6, SIZES(6), 1), 0, "tokens_per_page is 0"},
        {rollout(INT64_MAX, 8, 6, SIZES(6), 1), 4, "9223372036854775807"},
        {rollout(0, INT64_MAX, 6, SIZES(6), 1), 4, "9223372036854775807"},
        {rollout(0, 8, INT64_MAX, SIZES(6), 1), 4, "9223372036854775807"},
        {rollout(0, 0, 100, many, CKV_MAX_CAUSAL_BLOCK_SIZES + 1), 4, "16 distinct"},
        {rollout(0, 0, (int64_t)1 << 40, SIZES(1), 1), (int64_t)1 << 40, "64 bits"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ckv_rollout_size size = {1, 2, 3};
        assert_status(ckv_rollout_config_size(&bad[i].config, bad[i].page, &size), CKV_ERROR_INVALID);
        if (strstr(ckv_last_error(), bad[i].named) == NULL)
            fail_msg("case %zu: '%s' does not name '%s'", i, ckv_last_error(), bad[i].named);
        assert_int_equal(size.pool_tokens, 3); /* outputs are written on success only */
    }
    ckv_rollout_config unsized = rollout(0, 8, 6, SIZES(6), 1);
    unsized.struct_size = 0;
    ckv_rollout_size size;
    assert_status(ckv_rollout_config_size(&unsized, 4, &size), CKV_ERROR_INVALID);
}

static int visible(int64_t position, int64_t fixed, int64_t window, int64_t start)
{
    return position >= 0 && position < start && (position < fixed || position >= start - window);
}

/* The row's pages and pieces are exactly the visible positions, in order, once each, and within the private pages. */
static void check_row(int64_t page, int64_t fixed, int64_t window, int64_t start, int64_t size)
{
    ckv_row_plan plan = ckv_row_plan_make(page, fixed, window, start, size);
    int64_t next_page = 0, next_partial = 0, keys = size;
    for (int64_t p = 0; p * page < start; p++) {
        int64_t seen = 0;
        for (int64_t i = 0; i < page; i++)
            seen += visible(p * page + i, fixed, window, start);
        keys += seen;
        if (seen == page) {
            assert_true(next_page < plan.whole_pages);
            assert_int_equal(ckv_row_plan_page(&plan, next_page++), p);
            continue;
        }
        for (int64_t i = 0; i < page; i++) {
            if (!visible(p * page + i, fixed, window, start))
                continue;
            assert_true(next_partial < plan.partial_tokens);
            assert_int_equal(ckv_row_plan_partial(&plan, next_partial++), p * page + i);
        }
    }
    assert_int_equal(next_page, plan.whole_pages);
    assert_int_equal(next_partial, plan.partial_tokens);
    assert_int_equal(plan.seq_len_kv, keys);
    assert_true(plan.partial_tokens <= 3 * (page - 1));
}

static void rows_read_exactly_the_window(void **state)
{
    (void)state;
    for (int64_t page = 1; page <= 8; page *= 2)
        for (int64_t fixed = 0; fixed <= 2 * page + 1; fixed++)
            for (int64_t start = fixed; start <= fixed + 4 * page + 1; start++)
                for (int64_t window = 0; window <= 4 * page + 2; window++)
                    check_row(page, fixed, window, start, 3);
}

static void rows_of_random_geometries(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    for (int i = 0; i < 2000; i++) {
        int64_t page = (int64_t)1 << ckv_random_range(&random, 0, 7);
        int64_t fixed = ckv_random_range(&random, 0, 700);
        int64_t start = fixed + ckv_random_range(&random, 0, 2000);
        check_row(page, fixed, ckv_random_range(&random, 0, 2200), start, ckv_random_range(&random, 1, 100));
    }
}

static void commit_pins_then_slides(void **state)
{
    (void)state;
    ckv_geometry geometry;
    ckv_rollout_config config = rollout(5, 8, 6, SIZES(6, 2), 2);
    assert_ok(ckv_geometry_init(&config, 4, &geometry));
    ckv_progress progress = {0};
    const struct {
        int64_t tokens, fixed, history, dropped, refill;
    } steps[] = {{5, 5, 0, 0, 0}, {6, 5, 6, 0, 0}, {6, 5, 8, 1, 1}, {6, 5, 10, 1, 1}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        ckv_commit_plan plan;
        assert_ok(ckv_commit_plan_make(&geometry, 5, &progress, steps[i].tokens, &plan));
        assert_int_equal(plan.after.fixed_tokens, steps[i].fixed);
        assert_int_equal(plan.after.history_tokens, steps[i].history);
        assert_int_equal(plan.dropped_pages, steps[i].dropped);
        assert_int_equal(plan.refill_tokens, steps[i].refill);
        progress = plan.after;
    }
}

static void commit_length_is_bounded(void **state)
{
    (void)state;
    ckv_geometry geometry;
    ckv_rollout_config config = rollout(20, 8, 6, SIZES(6), 1);
    assert_ok(ckv_geometry_init(&config, 4, &geometry));
    ckv_progress progress = {0};
    ckv_commit_plan plan;
    assert_status(ckv_commit_plan_make(&geometry, 20, &progress, 0, &plan), CKV_ERROR_INVALID);
    assert_status(ckv_commit_plan_make(&geometry, 20, &progress, 27, &plan), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "1 to 26"));
    assert_ok(ckv_commit_plan_make(&geometry, 20, &progress, 26, &plan)); /* the excess over max_staged is pinned */
    assert_int_equal(plan.after.fixed_tokens, 20);
    assert_int_equal(plan.after.history_tokens, 6);
    assert_status(ckv_commit_plan_make(&geometry, 20, &plan.after, 7, &plan), CKV_ERROR_INVALID);
}

/* Whatever is committed, history never shrinks below the window nor grows a page beyond it, and staged tokens fit. */
static void commits_keep_their_bounds(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    for (int round = 0; round < 300; round++) {
        int64_t page = (int64_t)1 << ckv_random_range(&random, 0, 5);
        int64_t pin = ckv_random_range(&random, 0, 70), staged = ckv_random_range(&random, 1, 60);
        ckv_rollout_config config = rollout(pin, ckv_random_range(&random, 0, 150), staged, &staged, 1);
        ckv_geometry geometry;
        assert_ok(ckv_geometry_init(&config, page, &geometry));
        int64_t resident = ckv_geometry_resident_pages(&geometry, pin) * page;
        ckv_progress progress = {0};
        for (int step = 0; step < 60; step++) {
            ckv_commit_plan plan;
            int64_t tokens = ckv_random_range(&random, 1, pin - progress.fixed_tokens + staged);
            assert_ok(ckv_commit_plan_make(&geometry, pin, &progress, tokens, &plan));
            assert_true(plan.after.fixed_tokens == pin || plan.after.history_tokens == 0);
            assert_int_equal(progress.history_tokens + tokens - (plan.after.fixed_tokens - progress.fixed_tokens) -
                                 plan.dropped_pages * page,
                             plan.after.history_tokens);
            assert_true(plan.after.history_tokens < config.window_tokens + page);
            assert_true(plan.dropped_pages == 0 || plan.after.history_tokens >= config.window_tokens);
            assert_true(plan.after.fixed_tokens + plan.after.history_tokens + (pin - plan.after.fixed_tokens) +
                            staged <=
                        resident);
            progress = plan.after;
        }
    }
}

static void largest_window_is_the_largest(void **state)
{
    (void)state;
    ckv_pool_config pool = ckv_pool_config_default();
    pool.layers = 3;
    pool.kv_heads = 2;
    pool.head_dim = 64;
    pool.dtype = CKV_BF16;
    pool.tokens_per_page = 32;
    ckv_rollout_config config = rollout(100, 0, 50, SIZES(50, 7), 2);
    for (int64_t budget = 4 << 20; budget < 64 << 20; budget += 3333333) {
        int64_t window, bytes;
        assert_ok(ckv_rollout_max_window(&config, &pool, budget, &window));
        for (int64_t over = 0; over <= 1; over++) {
            ckv_rollout_config with = config;
            with.window_tokens = window + over;
            ckv_rollout_size size;
            assert_ok(ckv_rollout_config_size(&with, 32, &size));
            pool.pool_tokens = size.pool_tokens;
            assert_ok(ckv_pool_config_bytes(&pool, &bytes));
            assert_true(over ? bytes > budget : bytes <= budget);
        }
    }
    int64_t window = -7;
    assert_status(ckv_rollout_max_window(&config, &pool, 1000, &window), CKV_ERROR_CAPACITY);
    assert_int_equal(window, -7);
}

static const ckv_test_case cases[] = {
    CKV_CASE(sizes_of_the_worked_example),   CKV_CASE(block_sizes_are_a_set),
    CKV_CASE(bad_geometries_are_refused),    CKV_CASE(rows_read_exactly_the_window),
    CKV_CASE(rows_of_random_geometries),     CKV_CASE(commit_pins_then_slides),
    CKV_CASE(commit_length_is_bounded),      CKV_CASE(commits_keep_their_bounds),
    CKV_CASE(largest_window_is_the_largest),
};

CKV_TEST_MAIN("layout", cases)
