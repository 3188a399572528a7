/* SPDX-License-Identifier: Apache-2.0 */
/* The causal cache against the list of tokens it must read. */
#include "lib/cache/cache.h"
#include "tests/single_gpu/rollout_case.h"
#include "tests/support/random.h"
#include "tests/support/random_data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void worked_example(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(5, 8, 6, SIZES(6, 2), 2);
    ckv_cache *cache = open_exact(2, 2, 4, &config);
    prompt(cache, 5);
    for (int chunk = 0; chunk < 3; chunk++) {
        forward_and_expect(cache, 6, 6);
        forward_and_expect(cache, 6, 2);
        assert_ok(model_commit(&model, cache, 6));
    }
    ckv_cache_state now = ckv_cache_get_state(cache);
    assert_int_equal(now.fixed_tokens, 5);
    assert_int_equal(now.history_tokens, 10);
    assert_int_equal(now.staging_offset, 15);
    forward_and_expect(cache, 6, 2);
    ckv_block_view view;
    assert_ok(ckv_cache_block_view(cache, 2, &view));
    int32_t keys[3];
    test_download(keys, view.seq_len_kv, sizeof keys);
    assert_int_equal(keys[2], 15); /* 2 whole pages, 5 partial positions, 2 own tokens */
    ckv_cache_destroy(&cache);
}

/* Window over many chunks, long enough to wrap the pages several times. */
static void rollover(int64_t page, int64_t pin, int64_t window, int64_t chunk, const int64_t *sizes, size_t num_sizes)
{
    ckv_rollout_config config = rollout(pin, window, chunk, sizes, num_sizes);
    ckv_cache *cache = open_exact(2, 2, page, &config);
    if (pin > 0)
        prompt(cache, pin);
    int64_t chunks = 4 + (window + 3 * page) / chunk; /* three pages or more are dropped */
    for (int64_t i = 0; i < chunks; i++) {
        for (size_t s = 0; s < num_sizes; s++)
            forward_and_expect(cache, chunk / sizes[s] * sizes[s], sizes[s]);
        assert_ok(model_commit(&model, cache, chunk));
    }
    assert_true(model.evicted > 0);
    ckv_cache_destroy(&cache);
}

static void window_slides_over_pages(void **state)
{
    (void)state;
    rollover(32, 0, 64, 44, SIZES(44, 11), 2);
    rollover(32, 16, 64, 44, SIZES(44, 11), 2); /* clean pass in four page-unaligned blocks */
    rollover(128, 16, 64, 136, SIZES(136, 34), 2);
    rollover(8, 0, 20, 12, SIZES(12, 3), 2);
}

static void odd_geometries(void **state)
{
    (void)state;
    rollover(1, 3, 7, 5, SIZES(5, 1), 2);
    rollover(4, 5, 0, 6, SIZES(6, 2), 2); /* no history is visible */
    rollover(8, 8, 8, 8, SIZES(8, 1), 2); /* everything aligned */
    rollover(4, 7, 3, 13, SIZES(13, 5, 3, 1), 4);
    rollover(16, 1, 1, 1, SIZES(1), 1);
    rollover(64, 65, 63, 7, SIZES(7, 2), 2);
}

static void pin_inside_a_chunk(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(9, 20, 12, SIZES(12, 3), 2);
    ckv_cache *cache = open_exact(2, 1, 8, &config);
    for (int chunk = 0; chunk < 8; chunk++) { /* the first chunk's first 9 tokens become fixed, 3 history */
        forward_and_expect(cache, 12, 3);
        assert_ok(model_commit(&model, cache, 12));
    }
    assert_int_equal(ckv_cache_get_state(cache).fixed_tokens, 9);
    forward_and_expect(cache, 12, 12);
    ckv_cache_destroy(&cache);
}

static void short_first_chunk(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(16, 64, 44, SIZES(44, 11), 2);
    ckv_cache *cache = open_exact(2, 2, 32, &config);
    prompt(cache, 16);
    forward_and_expect(cache, 11, 11);
    assert_ok(model_commit(&model, cache, 11));
    for (int chunk = 0; chunk < 6; chunk++) {
        forward_and_expect(cache, 44, 44);
        forward_and_expect(cache, 44, 11);
        assert_ok(model_commit(&model, cache, 44));
    }
    ckv_cache_destroy(&cache);
}

static void edits_take_effect_at_the_next_forward(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(5, 20, 12, SIZES(12, 3), 2);
    ckv_cache *cache = open_exact(2, 2, 8, &config);
    prompt(cache, 5);
    for (int chunk = 0; chunk < 6; chunk++) {
        forward_and_expect(cache, 12, 3);
        assert_ok(model_commit(&model, cache, 12));
        int64_t committed = ckv_cache_get_state(cache).staging_offset;
        for (int64_t start = 0; start < committed; start += 4) {
            assert_ok(model_write_range(&model, cache, 1, start, committed - start < 7 ? committed - start : 7));
            assert_ok(model_zero_values(&model, cache, 0, start, 1));
        }
        forward_and_expect(cache, 12, 3);
        forward_and_expect(cache, 12, 12);
    }
    ckv_cache_destroy(&cache);
}

/* Addresses of a geometry stay over close, reopen and other geometries; contents follow the new rollout. */
static void reopen_keeps_addresses(void **state)
{
    (void)state;
    ckv_rollout_config first = rollout(5, 20, 12, SIZES(12, 3), 2), longer_pin = rollout(9, 20, 12, SIZES(3, 12), 2),
                       other = rollout(0, 8, 4, SIZES(4), 1);
    ckv_pool_config pool = pool_config(2, 1, 8, 400);
    ckv_cache *cache;
    assert_ok(ckv_cache_create(&pool, &cache));
    model_create(&model, &pool);
    ckv_block_view views[3];
    const ckv_rollout_config *configs[] = {&first, &other, &longer_pin};
    int64_t bytes_after_two = 0;
    for (int i = 0; i < 3; i++) {
        assert_ok(ckv_cache_open(cache, configs[i], NULL));
        model_open(&model, configs[i]);
        int64_t size = configs[i]->causal_block_sizes[0] == 4 ? 4 : 3;
        assert_ok(ckv_cache_block_view(cache, size, &views[i]));
        for (int chunk = 0; chunk < 6; chunk++) {
            forward_and_expect(cache, configs[i]->max_staged_tokens, size);
            assert_ok(model_commit(&model, cache, configs[i]->max_staged_tokens));
        }
        ckv_block_view again;
        assert_ok(ckv_cache_block_view(cache, size, &again));
        assert_memory_equal(&again, &views[i], sizeof again);
        ckv_cache_close(cache);
        if (i == 1)
            bytes_after_two = ckv_cache_device_bytes(cache);
    }
    assert_memory_equal(&views[0], &views[2], sizeof views[0]);
    assert_int_equal(ckv_cache_device_bytes(cache), bytes_after_two);
    ckv_cache_destroy(&cache);
}

static void close_and_destroy_twice(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(0, 8, 4, SIZES(4), 1);
    ckv_cache *cache = open_exact(1, 1, 4, &config);
    assert_true(ckv_cache_held_pages(cache) > 0);
    ckv_cache_close(cache);
    assert_int_equal(ckv_cache_held_pages(cache), 0);
    ckv_cache_close(cache);
    assert_int_equal(ckv_cache_get_state(cache).is_open, 0);
    ckv_cache_destroy(&cache);
    assert_null(cache);
    ckv_cache_destroy(&cache);
    ckv_cache_destroy(NULL);
    ckv_pool *pool = NULL;
    ckv_pool_destroy(&pool);
    ckv_pool_destroy(NULL);
}

/* Every byte an operation could have changed. */
typedef struct snapshot {
    char *bytes;
    size_t count;
} snapshot;

static snapshot take_snapshot(const ckv_cache *cache)
{
    const ckv_cache_tensors *tensors = cache->tensors;
    size_t pool = (size_t)ckv_pool_bytes(cache->pool), device = tensors ? (size_t)tensors->memory_bytes : 0;
    size_t host = tensors ? (size_t)(tensors->max_resident_pages + tensors->total_private_pages) * 4 : 0;
    snapshot taken = {malloc(sizeof *cache + pool + device + host), sizeof *cache + pool + device + host};
    memcpy(taken.bytes, cache, sizeof *cache);
    test_download(taken.bytes + sizeof *cache, ckv_pool_get_view(cache->pool).base, pool);
    if (tensors != NULL) {
        test_download(taken.bytes + sizeof *cache + pool, tensors->memory, device);
        memcpy(taken.bytes + sizeof *cache + pool + device, tensors->host_pages, host);
    }
    return taken;
}

static void expect_unchanged(const ckv_cache *cache, snapshot before)
{
    snapshot after = take_snapshot(cache);
    assert_int_equal(after.count, before.count);
    assert_memory_equal(after.bytes, before.bytes, before.count);
    free(after.bytes);
    free(before.bytes);
}

#define EXPECT_REFUSED(cache, call, status)                                                                            \
    do {                                                                                                               \
        snapshot before_ = take_snapshot(cache);                                                                       \
        assert_status(call, status);                                                                                   \
        expect_unchanged(cache, before_);                                                                              \
    } while (0)

static void refuse_writes_and_commits(ckv_cache *cache, const ckv_rollout_config *config)
{
    float row[64] = {0};
    ckv_kv kv = ckv_kv_dense(row, row, 2, MODEL_HEAD_DIM), no_v = ckv_kv_dense(row, NULL, 2, MODEL_HEAD_DIM);
    int64_t resident = ckv_cache_get_state(cache).resident_tokens;
    EXPECT_REFUSED(cache, ckv_cache_open(cache, config, NULL), CKV_ERROR_STATE);
    static const int64_t lengths[] = {INT64_MIN, -3, 0, 1, 13, 15, 24, INT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        EXPECT_REFUSED(cache, ckv_cache_write_staged(cache, 0, lengths[i], 12, &kv, 1, NULL), CKV_ERROR_INVALID);
    EXPECT_REFUSED(cache, ckv_cache_write_staged(cache, 0, 4, 4, &kv, 1, NULL), CKV_ERROR_INVALID);
    EXPECT_REFUSED(cache, ckv_cache_write_staged(cache, 2, 12, 12, &kv, 1, NULL), CKV_ERROR_INVALID);
    EXPECT_REFUSED(cache, ckv_cache_write_staged(cache, -1, 12, 12, &kv, 1, NULL), CKV_ERROR_INVALID);
    EXPECT_REFUSED(cache, ckv_cache_write_staged(cache, 0, 12, 12, NULL, 1, NULL), CKV_ERROR_INVALID);
    EXPECT_REFUSED(cache, ckv_cache_write_staged(cache, 0, 12, 12, &no_v, 1, NULL), CKV_ERROR_INVALID);
    static const int64_t commits[] = {INT64_MIN, -1, 0, 13, INT64_MAX};
    for (size_t i = 0; i < sizeof commits / sizeof *commits; i++)
        EXPECT_REFUSED(cache, ckv_cache_commit(cache, commits[i], NULL), CKV_ERROR_INVALID);
    const int64_t ranges[][2] = {{-1, 1},       {0, 0},         {0, -1},        {resident, 1}, {0, resident + 1},
                                 {1, resident}, {INT64_MAX, 1}, {1, INT64_MAX}, {INT64_MIN, 1}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        EXPECT_REFUSED(cache, ckv_cache_write_range(cache, 0, ranges[i][0], ranges[i][1], &kv, NULL),
                       CKV_ERROR_INVALID);
        EXPECT_REFUSED(cache, ckv_cache_zero_values(cache, 0, ranges[i][0], ranges[i][1], NULL), CKV_ERROR_INVALID);
    }
    EXPECT_REFUSED(cache, ckv_cache_write_range(cache, 0, 0, 1, NULL, NULL), CKV_ERROR_INVALID);
    ckv_block_view view;
    EXPECT_REFUSED(cache, ckv_cache_block_view(cache, 5, &view), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "3, 12")); /* the declared ones are named */
}

static void refuse_everything_without_a_rollout(ckv_cache *cache)
{
    float row[64] = {0};
    ckv_kv kv = ckv_kv_dense(row, row, 2, MODEL_HEAD_DIM);
    ckv_block_view view;
    EXPECT_REFUSED(cache, ckv_cache_commit(cache, 1, NULL), CKV_ERROR_STATE);
    EXPECT_REFUSED(cache, ckv_cache_write_range(cache, 0, 0, 1, &kv, NULL), CKV_ERROR_STATE);
    EXPECT_REFUSED(cache, ckv_cache_zero_values(cache, 0, 0, 1, NULL), CKV_ERROR_STATE);
    EXPECT_REFUSED(cache, ckv_cache_write_staged(cache, 0, 12, 12, &kv, 1, NULL), CKV_ERROR_STATE);
    EXPECT_REFUSED(cache, ckv_cache_block_view(cache, 12, &view), CKV_ERROR_STATE);
    ckv_rollout_config too_large = rollout(5, 2000, 12, SIZES(12, 3), 2), bad = rollout(5, 20, 12, SIZES(13), 1);
    EXPECT_REFUSED(cache, ckv_cache_open(cache, &too_large, NULL), CKV_ERROR_CAPACITY);
    EXPECT_REFUSED(cache, ckv_cache_open(cache, &bad, NULL), CKV_ERROR_INVALID);
    EXPECT_REFUSED(cache, ckv_cache_open(cache, NULL, NULL), CKV_ERROR_INVALID);
}

static void refused_operations_change_nothing(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(5, 20, 12, SIZES(12, 3), 2);
    ckv_cache *cache = open_exact(2, 2, 8, &config);
    prompt(cache, 5);
    forward_and_expect(cache, 12, 3);
    refuse_writes_and_commits(cache, &config);
    forward_and_expect(cache, 12, 12); /* and the rollout goes on */
    ckv_cache_close(cache);
    refuse_everything_without_a_rollout(cache);
    assert_ok(ckv_cache_open(cache, &config, NULL));
    ckv_cache_destroy(&cache);
}

static void bad_pools_are_refused(void **state)
{
    (void)state;
    const struct {
        size_t offset;
        int64_t value;
    } bad[] = {
        {offsetof(ckv_pool_config, layers), 0},           {offsetof(ckv_pool_config, kv_heads), -1},
        {offsetof(ckv_pool_config, head_dim), 0},         {offsetof(ckv_pool_config, tokens_per_page), 3},
        {offsetof(ckv_pool_config, tokens_per_page), 0},  {offsetof(ckv_pool_config, pool_tokens), 9},
        {offsetof(ckv_pool_config, pool_tokens), 0},      {offsetof(ckv_pool_config, pool_tokens), INT64_MAX},
        {offsetof(ckv_pool_config, head_dim), INT64_MAX}, {offsetof(ckv_pool_config, layers), INT64_MIN},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ckv_pool_config config = pool_config(1, 1, 4, 16);
        memcpy((char *)&config + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        ckv_pool *pool = NULL;
        int64_t bytes = -1;
        assert_status(ckv_pool_create(&config, &pool), CKV_ERROR_INVALID);
        assert_status(ckv_pool_config_bytes(&config, &bytes), CKV_ERROR_INVALID);
        assert_null(pool);
        assert_int_equal(bytes, -1);
    }
    ckv_pool_config huge = pool_config(INT32_MAX, INT32_MAX, 1 << 20, 1 << 30);
    int64_t bytes;
    assert_status(ckv_pool_config_bytes(&huge, &bytes), CKV_ERROR_INVALID);
    assert_non_null(strstr(ckv_last_error(), "64 bits"));
}

static void pool_bytes_are_what_is_taken(void **state)
{
    (void)state;
    ckv_pool_config config = pool_config(3, 2, 8, 64);
    ckv_pool *pool;
    int64_t bytes;
    assert_ok(ckv_pool_config_bytes(&config, &bytes));
    assert_ok(ckv_pool_create(&config, &pool));
    assert_int_equal(ckv_pool_bytes(pool), bytes);
    int64_t element = (int64_t)ckv_dtype_bytes(config.dtype), scales = config.dtype == CKV_FP8_E4M3 ? 3 * 2 * 2 * 4 : 0;
    int64_t asked = (64 + 8) * 3 * 2 * 2 * config.head_dim * element + scales; /* with the guard page */
    assert_int_equal(bytes, ckv_device_allocation_bytes(config.device, asked));
    ckv_pool_view view = ckv_pool_get_view(pool);
    assert_int_equal(view.total_pages, 8);
    assert_int_equal(view.guard_page, 8);
    char guard[2 * 2 * 8 * MODEL_HEAD_DIM * MODEL_DIGITS * sizeof(float)];
    int64_t half = 2 * 8 * config.head_dim;
    for (int layer = 0; layer < 3; layer++) {
        test_download(guard, (char *)view.base + layer * view.layer_stride + view.guard_page * view.page_stride,
                      (size_t)view.page_stride);
        for (int64_t i = 0; i < half; i++) {
            assert_true(isnan(get_element(config.dtype, guard, i)));      /* K */
            assert_true(get_element(config.dtype, guard, half + i) == 0); /* V */
        }
    }
    ckv_pool_destroy(&pool);
}

/* Two rollouts of different geometries, interleaved on one pool, pages accounted to each. */
static void rollouts_share_a_pool(void **state)
{
    (void)state;
    static rollout_model other_model;
    ckv_pool_config config = pool_config(2, 1, 8, 400);
    ckv_pool *pool;
    ckv_cache *one, *two, *three;
    assert_ok(ckv_pool_create(&config, &pool));
    assert_ok(ckv_cache_create_on_pool(pool, 0, &one));
    assert_ok(ckv_cache_create_on_pool(pool, 160, &two));
    assert_ok(ckv_cache_create_on_pool(pool, 0, &three));
    ckv_rollout_config a = rollout(5, 20, 12, SIZES(12, 3), 2), b = rollout(0, 16, 6, SIZES(6), 1);
    assert_ok(ckv_cache_open(one, &a, NULL));
    assert_ok(ckv_cache_open(two, &b, NULL));
    model_create(&model, &config);
    model_open(&model, &a);
    model_create(&other_model, &config);
    model_open(&other_model, &b);
    other_model.last_version = 100000;
    assert_int_equal(ckv_pool_free_pages(pool), 50 - ckv_cache_held_pages(one) - ckv_cache_held_pages(two));
    for (int chunk = 0; chunk < 8; chunk++) {
        for (int64_t layer = 0; layer < 2; layer++) {
            assert_ok(model_forward(&model, one, layer, 12, 3, 0));
            assert_ok(model_forward(&other_model, two, layer, 6, 6, 0));
            model_expect_rows(&model, one, layer, 12, 3);
            model_expect_rows(&other_model, two, layer, 6, 6);
        }
        assert_ok(model_commit(&model, one, 12));
        assert_ok(model_commit(&other_model, two, 6));
    }
    ckv_rollout_config large = rollout(0, 110, 12, SIZES(12), 1);
    assert_status(ckv_cache_open(three, &large, NULL), CKV_ERROR_CAPACITY); /* free pages are short */
    assert_int_equal(ckv_cache_held_pages(three), 0);
    ckv_cache_close(two);
    assert_status(ckv_cache_open(two, &large, NULL), CKV_ERROR_CAPACITY); /* its own limit is short */
    ckv_pool_destroy(&pool);                                              /* caches still hold it */
    ckv_cache_destroy(&one);
    assert_ok(ckv_cache_open(three, &large, NULL));
    ckv_cache_destroy(&two);
    ckv_cache_destroy(&three);
}

/* A device whose allocations fail on demand. */
static int64_t allocations_left;

static ckv_status failing_alloc(size_t bytes, void **memory_out)
{
    if (allocations_left-- > 0)
        return test_device()->alloc(bytes, memory_out);
    return CKV_ERROR_MEMORY;
}

static void failed_open_leaves_nothing_open(void **state)
{
    (void)state;
    ckv_device device = *test_device();
    device.alloc = failing_alloc;
    ckv_pool_config config = pool_config(1, 1, 8, 400);
    config.device = &device;
    ckv_cache *cache = NULL;
    allocations_left = 0;
    assert_status(ckv_cache_create(&config, &cache), CKV_ERROR_MEMORY);
    assert_null(cache);
    allocations_left = 1;
    assert_ok(ckv_cache_create(&config, &cache));
    ckv_rollout_config rollout_config = rollout(5, 20, 12, SIZES(12, 3), 2);
    for (int attempt = 0; attempt < 2; attempt++) {
        allocations_left = 0;
        EXPECT_REFUSED(cache, ckv_cache_open(cache, &rollout_config, NULL), CKV_ERROR_MEMORY);
        assert_int_equal(ckv_cache_get_state(cache).is_open, 0);
        assert_int_equal(ckv_pool_free_pages(ckv_cache_pool(cache)), 50);
    }
    allocations_left = 1;
    assert_ok(ckv_cache_open(cache, &rollout_config, NULL)); /* can be retried */
    ckv_cache_close(cache);
    allocations_left = 0;
    assert_ok(ckv_cache_open(cache, &rollout_config, NULL)); /* tensors are kept */
    ckv_cache_destroy(&cache);
}

/* The check must fail while an element of a device array is off by one, and pass again afterwards. */
static void expect_corruption_found(const ckv_cache *cache, void *address, size_t bytes)
{
    int64_t held = 0, wrong;
    test_download(&held, address, bytes);
    wrong = held + 1; /* little endian: the low bytes are the element */
    assert_ok(test_device()->upload(address, &wrong, bytes, NULL));
    assert_status(ckv_cache_check(cache, NULL), CKV_ERROR_INTERNAL);
    assert_ok(test_device()->upload(address, &held, bytes, NULL));
    assert_ok(ckv_cache_check(cache, NULL));
}

/* The check itself must see a corrupted table, mirror, state, row, length, copy list and copy. */
static void check_finds_corruption(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(5, 20, 12, SIZES(12, 3), 2);
    ckv_cache *cache = open_exact(1, 1, 8, &config);
    prompt(cache, 5);
    forward_and_expect(cache, 12, 3);
    assert_ok(model_commit(&model, cache, 12));
    assert_ok(ckv_cache_check(cache, NULL));
    cache->tensors->host_pages[0] += 1;
    assert_status(ckv_cache_check(cache, NULL), CKV_ERROR_INTERNAL);
    cache->tensors->host_pages[0] -= 1;
    const ckv_causal_layout_params *layout = &cache->tensors->layout;
    ckv_layout_state device_state;
    test_download(&device_state, layout->state, sizeof device_state);
    int32_t *table = layout->tables + ckv_layout_current(&device_state) * layout->table_pages;
    const ckv_causal_layout_size *size = &layout->sizes[0];
    int32_t *entries[] = {table, size->rows, size->seq_len_kv, size->rows + size->row_pages - 1,
                          cache->tensors->private_page_ids};
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        expect_corruption_found(cache, entries[i], sizeof *entries[i]);
    int64_t *slots[] = {size->own_slots, size->current_private_source + 3 * 14,
                        size->current_private_destination + 3 * 14, &layout->state->pin_tokens,
                        &layout->state->progress[ckv_layout_current(&device_state)].history_tokens};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        expect_corruption_found(cache, slots[i], sizeof *slots[i]);
    expect_corruption_found(cache, &layout->state->arrivals, sizeof layout->state->arrivals);
    /* The first private page begins with the copy of position 16. */
    ckv_pool_view pool = ckv_pool_get_view(cache->pool);
    char *copy = (char *)pool.base + ckv_cache_private_pages(cache, 0, 0)[0] * pool.page_stride;
    expect_corruption_found(cache, copy, sizeof(float));
    expect_corruption_found(cache, copy + pool.kv_stride, sizeof(float));
    ckv_cache_destroy(&cache);
}

typedef struct random_rollout {
    ckv_random random;
    ckv_cache *cache;
    int64_t sizes[4];
    ckv_rollout_config config;
} random_rollout;

static void open_random(random_rollout *r, int64_t page)
{
    ckv_random *random = &r->random;
    r->config.max_staged_tokens = ckv_random_range(random, 1, 40);
    r->config.pin_tokens = ckv_random_range(random, 0, 2) ? ckv_random_range(random, 0, 3 * page) : 0;
    r->config.window_tokens = ckv_random_range(random, 0, 5 * page);
    r->config.num_causal_block_sizes = (size_t)ckv_random_range(random, 1, 4);
    for (size_t i = 0; i < r->config.num_causal_block_sizes; i++)
        r->sizes[i] = ckv_random_range(random, 1, r->config.max_staged_tokens);
    r->config.causal_block_sizes = r->sizes;
    ckv_status status = ckv_cache_open(r->cache, &r->config, NULL);
    if (status == CKV_OK)
        model_open(&model, &r->config);
    else
        assert_int_equal(status, CKV_ERROR_CAPACITY);
}

static void random_forward(random_rollout *r, int64_t layer)
{
    int64_t block = r->sizes[ckv_random_range(&r->random, 0, (int64_t)r->config.num_causal_block_sizes - 1)];
    int64_t blocks = ckv_random_range(&r->random, 1, r->config.max_staged_tokens / block);
    assert_ok(model_forward(&model, r->cache, layer, blocks * block, block, (int)ckv_random_range(&r->random, 0, 1)));
    model_expect_rows(&model, r->cache, layer, blocks * block, block);
}

/* One operation, often out of range: accepted or refused, the model must agree afterwards. */
static void random_operation(random_rollout *r)
{
    ckv_random *random = &r->random;
    ckv_cache_state now = ckv_cache_get_state(r->cache);
    int64_t layer = ckv_random_range(random, 0, model.pool.layers - 1);
    int64_t most_commit = now.pin_tokens - now.fixed_tokens + now.max_staged_tokens;
    int64_t start = ckv_random_range(random, -2, now.resident_tokens + 1);
    int64_t tokens = ckv_random_range(random, 0, 30);
    int in_range = start >= 0 && tokens >= 1 && start + tokens <= now.resident_tokens;
    if (model.committed + 500 > MODEL_MAX_TOKENS) {
        ckv_cache_close(r->cache);
        return;
    }
    switch (ckv_random_range(random, 0, 9)) {
    case 0:
        assert_status(model_write_range(&model, r->cache, layer, start, tokens), in_range ? CKV_OK : CKV_ERROR_INVALID);
        break;
    case 1:
        assert_status(model_zero_values(&model, r->cache, layer, start, tokens), in_range ? CKV_OK : CKV_ERROR_INVALID);
        break;
    case 2:
    case 3:
        tokens = ckv_random_range(random, -1, most_commit + 2);
        assert_status(model_commit(&model, r->cache, tokens),
                      tokens >= 1 && tokens <= most_commit ? CKV_OK : CKV_ERROR_INVALID);
        break;
    case 4:
        if (ckv_random_range(random, 0, 20) == 0)
            ckv_cache_close(r->cache);
        break;
    default:
        random_forward(r, layer);
    }
}

static void random_operations(void **state)
{
    (void)state;
    /* 100,000 operations; a twentieth where every look at the device is a transfer */
    enum { ROUNDS = 200, OPERATIONS = 500 };
    int rounds = test_device()->host_addressable ? ROUNDS : ROUNDS / 20;
    random_rollout r = {.random = {ckv_test_seed()}, .config = ckv_rollout_config_default()};
    for (int round = 0; round < rounds; round++) {
        int64_t page = (int64_t)1 << ckv_random_range(&r.random, 0, 5);
        ckv_pool_config pool = pool_config(ckv_random_range(&r.random, 1, MODEL_MAX_LAYERS),
                                           ckv_random_range(&r.random, 1, 3), page, 64 * page);
        assert_ok(ckv_cache_create(&pool, &r.cache));
        model_create(&model, &pool);
        for (int i = 0; i < OPERATIONS; i++) {
            if (ckv_cache_get_state(r.cache).is_open)
                random_operation(&r);
            else
                open_random(&r, page);
        }
        assert_ok(ckv_cache_check(r.cache, NULL));
        ckv_cache_destroy(&r.cache);
    }
}

static const ckv_test_case cases[] = {
    CKV_CASE(worked_example),
    CKV_CASE(window_slides_over_pages),
    CKV_CASE(odd_geometries),
    CKV_CASE(pin_inside_a_chunk),
    CKV_CASE(short_first_chunk),
    CKV_CASE(edits_take_effect_at_the_next_forward),
    CKV_CASE(reopen_keeps_addresses),
    CKV_CASE(close_and_destroy_twice),
    CKV_CASE(refused_operations_change_nothing),
    CKV_CASE(bad_pools_are_refused),
    CKV_CASE(pool_bytes_are_what_is_taken),
    CKV_CASE(rollouts_share_a_pool),
    CKV_CASE(failed_open_leaves_nothing_open),
    CKV_CASE(check_finds_corruption),
    CKV_CASE(random_operations),
};

CKV_TEST_MAIN("cache", cases)
