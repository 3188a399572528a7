/* SPDX-License-Identifier: Apache-2.0 */
/* How a commit reaches the device: what it launches, replays, and what happens when the device fails. */
#include "kernels/copy_kv_slots/copy_kv_slots.h"
#include "kernels/rotate_rows/rotate_rows.h"
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "lib/cache/cache.h"
#include "tests/single_gpu/rollout_case.h"

#include <stdlib.h>
#include <string.h>

/* What a graph does at a replay: the device's half of a commit, with arguments that do not change. */
static void replay_commit(ckv_cache *cache, int64_t tokens)
{
    assert_ok(ckv_cache_enqueue_commit(cache, tokens, NULL));
    assert_status(ckv_cache_check(cache, NULL), CKV_ERROR_INTERNAL); /* the mirror is behind */
    assert_non_null(strstr(ckv_last_error(), "followed"));
    assert_ok(model_follow_commit(&model, cache, tokens));
    assert_ok(ckv_cache_check(cache, NULL));
}

/* Commits whose device work is replayed, and the mirror follows, mixed with commits of either kind and a pin that ends
 * inside a replayed one. */
static void replayed_commits_are_followed(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(9, 20, 12, SIZES(12, 3), 2);
    ckv_cache *cache = open_exact(2, 1, 8, &config);
    for (int chunk = 0; chunk < 20; chunk++) {
        forward_and_expect(cache, 12, chunk % 2 ? 3 : 12);
        if (chunk % 5 == 4)
            assert_ok(model_commit(&model, cache, 12));
        else
            replay_commit(cache, 12);
        assert_ok(model_write_range(&model, cache, 0, 3, 7)); /* host-addressed: needs the mirror */
    }
    forward_and_expect(cache, 12, 3);
    assert_status(ckv_cache_follow_commit(cache, 13), CKV_ERROR_INVALID);
    ckv_cache_close(cache);
    assert_status(ckv_cache_follow_commit(cache, 12), CKV_ERROR_STATE);
    ckv_cache_destroy(&cache);
}

static int launches;

static ckv_status count_layout(const ckv_causal_layout_params *params, ckv_stream stream)
{
    launches++;
    return test_device()->causal_layout(params, stream);
}

static ckv_status refuse_copy(const ckv_copy_kv_slots_params *params, ckv_stream stream)
{
    (void)params;
    (void)stream;
    return CKV_ERROR_INTERNAL;
}

static ckv_status refuse_rotate(const ckv_rotate_rows_params *params, ckv_stream stream)
{
    (void)params;
    (void)stream;
    return CKV_ERROR_INTERNAL;
}

static ckv_status refuse_scatter(const ckv_scatter_kv_slots_params *params, ckv_stream stream)
{
    (void)params;
    (void)stream;
    return CKV_ERROR_INTERNAL;
}

static ckv_status refuse_upload(void *destination, const void *source, size_t bytes, ckv_stream stream)
{
    (void)destination;
    (void)source;
    (void)bytes;
    (void)stream;
    return CKV_ERROR_INTERNAL;
}

/* Every commit, dropping pages and refilling or not, is one launch on the device, and no transfer. */
static void commit_is_one_launch(void **state)
{
    (void)state;
    ckv_device device = *test_device();
    ckv_pool_config pool = pool_config(1, 1, 8, 400);
    pool.device = &device;
    pool.poison_fresh_pages = 0;
    ckv_rollout_config config = rollout(5, 20, 12, SIZES(12, 3), 2);
    ckv_cache *cache;
    assert_ok(ckv_cache_create(&pool, &cache));
    assert_ok(ckv_cache_open(cache, &config, NULL));
    device.causal_layout = count_layout;
    device.copy_kv_slots = refuse_copy;
    device.rotate_rows = refuse_rotate;
    device.scatter_kv_slots = refuse_scatter;
    device.upload = refuse_upload;
    for (int chunk = 1; chunk <= 10; chunk++) {
        launches = 0;
        assert_ok(ckv_cache_commit(cache, 12, NULL));
        assert_int_equal(launches, 1);
    }
    ckv_cache_destroy(&cache);
}

static ckv_status failing_layout(const ckv_causal_layout_params *params, ckv_stream stream)
{
    (void)params;
    (void)stream;
    return CKV_ERROR_DEVICE;
}

/* A device that fails inside a commit leaves a rollout that says so until it is opened again. */
static void failed_commit_loses_the_rollout(void **state)
{
    (void)state;
    ckv_device device = *test_device();
    ckv_pool_config pool = pool_config(1, 1, 8, 400);
    pool.device = &device;
    ckv_rollout_config config = rollout(5, 20, 12, SIZES(12, 3), 2);
    ckv_cache *cache;
    assert_ok(ckv_cache_create(&pool, &cache));
    assert_ok(ckv_cache_open(cache, &config, NULL));
    device.causal_layout = failing_layout;
    assert_status(ckv_cache_commit(cache, 12, NULL), CKV_ERROR_DEVICE);
    device = *test_device();
    assert_status(ckv_cache_commit(cache, 12, NULL), CKV_ERROR_STATE);
    ckv_block_view view;
    assert_status(ckv_cache_block_view(cache, 12, &view), CKV_ERROR_STATE);
    ckv_cache_close(cache);
    assert_ok(ckv_cache_open(cache, &config, NULL));
    assert_ok(ckv_cache_commit(cache, 12, NULL));
    ckv_cache_destroy(&cache);
}

/* An edit longer than a piece of the slot lists. */
static void long_edits_go_in_pieces(void **state)
{
    (void)state;
    enum { TOKENS = CKV_EDIT_ENTRIES + CKV_EDIT_ENTRIES / 2 };
    ckv_rollout_config config = rollout(TOKENS, 20, 12, SIZES(12, 3), 2);
    ckv_cache *cache = open_exact(1, 1, 8, &config);
    prompt(cache, TOKENS);
    forward_and_expect(cache, 12, 3);
    assert_ok(model_commit(&model, cache, 12));
    assert_ok(model_write_range(&model, cache, 0, 1, TOKENS + 11));
    assert_ok(model_zero_values(&model, cache, 0, 0, TOKENS));
    forward_and_expect(cache, 12, 3);
    ckv_cache_destroy(&cache);
}

/* In builds that check, a copy list that writes one slot twice is named with its entry: at once by host twins, by the
 * next check on a GPU. */
static void faults_of_checked_launches_are_reported(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(5, 20, 12, SIZES(12, 3), 2);
    ckv_cache *cache = open_exact(1, 1, 8, &config);
    if (cache->tensors->check.fault == NULL) {
        ckv_cache_destroy(&cache);
        ckv_test_skip("this build does not check (CKV_CHECKS)");
    }
    static const int64_t source[] = {0, 1, 2}, destination[] = {9, 8, 9};
    void *device_source = test_upload(source, sizeof source);
    void *device_destination = test_upload(destination, sizeof destination);
    ckv_copy_kv_slots_params copy = {.pool = ckv_pool_get_view(cache->pool),
                                     .tokens_per_page = 8,
                                     .layers = 1,
                                     .kv_heads = 1,
                                     .row_bytes = ckv_pool_row_bytes(cache->pool),
                                     .entries = 3,
                                     .source = device_source,
                                     .destination = device_destination,
                                     .check = cache->tensors->check};
    ckv_status status = test_device()->copy_kv_slots(&copy, NULL);
    if (test_kernels_refuse()) {
        assert_status(status, CKV_ERROR_INVALID);
        assert_non_null(strstr(ckv_last_error(), "entry 2"));
    } else {
        assert_ok(status);
        assert_status(ckv_cache_check(cache, NULL), CKV_ERROR_INTERNAL); /* entry 0 or 2, whichever came later */
        assert_non_null(strstr(ckv_last_error(), "slot 9, which another entry writes"));
    }
    test_device()->free(device_source);
    test_device()->free(device_destination);
    ckv_cache_destroy(&cache);
}

/* A private page outside the pool: the copies to it are not made. Host twins refuse the commit and change nothing, a
 * GPU reports the first of them where it checks. */
static void commit_copies_nothing_outside_the_pool(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(5, 20, 12, SIZES(12), 1);
    ckv_cache *cache = open_exact(2, 1, 8, &config);
    prompt(cache, 5);
    forward_and_expect(cache, 12, 12);
    int32_t page, outside = (int32_t)ckv_pool_get_view(cache->pool).total_pages + 7;
    test_download(&page, cache->tensors->private_page_ids, sizeof page);
    assert_ok(test_device()->upload(cache->tensors->private_page_ids, &outside, sizeof outside, NULL));
    ckv_status status = ckv_cache_enqueue_commit(cache, 12, NULL);
    if (test_kernels_refuse()) {
        assert_status(status, CKV_ERROR_INVALID);
        assert_non_null(strstr(ckv_last_error(), "entry 0 copies slot"));
        assert_ok(test_device()->upload(cache->tensors->private_page_ids, &page, sizeof page, NULL));
        assert_ok(ckv_cache_check(cache, NULL));
        assert_ok(model_commit(&model, cache, 12));
        forward_and_expect(cache, 12, 12);
    } else {
        assert_ok(status);
        assert_status(ckv_cache_check(cache, NULL), CKV_ERROR_INTERNAL);
        assert_non_null(
            strstr(ckv_last_error(), cache->tensors->check.fault != NULL ? ", outside the pool" : "mirror"));
    }
    ckv_cache_destroy(&cache);
}

/* More runs of copies than a warp lists at a time, and more copies than a tile of 512. */
static void commit_of_many_blocks(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(13, 100, 40, SIZES(1, 3, 40), 3);
    ckv_cache *cache = open_exact(1, 1, 32, &config);
    for (int chunk = 0; chunk < 8; chunk++) {
        forward_and_expect(cache, 39, chunk % 2 ? 3 : 1);
        assert_ok(model_commit(&model, cache, chunk % 3 ? 39 : 40));
        assert_ok(ckv_cache_check(cache, NULL));
    }
    forward_and_expect(cache, 40, 40);
    ckv_cache_destroy(&cache);
}

/* CKV_POISON=1 poisons whatever the config says. */
static void poison_from_the_environment(void **state)
{
    (void)state;
    ckv_pool_config config = pool_config(1, 1, 8, 64);
    config.poison_fresh_pages = 0;
    const char *values[] = {"1", "0"};
    for (int i = 0; i < 2; i++) {
        ckv_pool *pool;
        setenv("CKV_POISON", values[i], 1);
        assert_ok(ckv_pool_create(&config, &pool));
        unsetenv("CKV_POISON");
        assert_int_equal(ckv_pool_get_config(pool)->poison_fresh_pages, i == 0);
        ckv_pool_destroy(&pool);
    }
}

static const ckv_test_case cases[] = {
    CKV_CASE(replayed_commits_are_followed),
    CKV_CASE(commit_is_one_launch),
    CKV_CASE(failed_commit_loses_the_rollout),
    CKV_CASE(commit_of_many_blocks),
    CKV_CASE(long_edits_go_in_pieces),
    CKV_CASE(poison_from_the_environment),
    CKV_CASE(faults_of_checked_launches_are_reported),
    CKV_CASE(commit_copies_nothing_outside_the_pool),
};

CKV_TEST_MAIN("commit", cases)
