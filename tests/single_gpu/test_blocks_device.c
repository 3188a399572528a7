/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind the blocks on a device: which bytes copies move between blocks and tiers. */
#include "tests/support/device_memory.h"
#include "tests/support/small_blocks.h"

#include <ckv/blocks_report.h>
#include <stdbool.h>
#include <string.h>

static void add(ckv_blocks *blocks, int64_t id, const int32_t *tokens, int64_t count)
{
    ckv_blocks_request request = ckv_blocks_request_default();
    ckv_blocks_admission admission;
    request.id = id;
    request.tokens = tokens;
    request.num_tokens = count;
    assert_ok(ckv_blocks_add(blocks, &request, 1, &admission));
}

static int64_t first_slot_of(ckv_blocks *blocks, int64_t id)
{
    int64_t slots[SMALL_BLOCKS_PER_REQUEST];
    assert_ok(ckv_blocks_get_table(blocks, id, SMALL_BLOCKS_WINDOW, 0, SMALL_BLOCKS_PER_REQUEST, NULL, slots, NULL));
    return slots[0];
}

/* Where a slot lies; its bytes in *size_out. The host tier is memory of ours, and pinned on a GPU. */
static char *find_slot(ckv_blocks *blocks, int64_t pool, int64_t tier, int64_t slot, size_t *size_out)
{
    ckv_blocks_pool_view view;
    assert_ok(ckv_blocks_get_pool(blocks, SMALL_BLOCKS_WINDOW, pool, tier, &view));
    *size_out = (size_t)view.slot_stride_bytes;
    return (char *)view.base + slot * view.slot_stride_bytes;
}

/* A step of the model that writes one primary slot. */
static void write_slot(ckv_blocks *blocks, int64_t pool, int64_t slot, const uint8_t *bytes)
{
    size_t size;
    char *at = find_slot(blocks, pool, CKV_BLOCKS_PRIMARY, slot, &size);
    assert_ok(ckv_blocks_step_begin(blocks, NULL));
    assert_ok(ckv_device_upload(test_device(), at, bytes, size, NULL));
    assert_ok(ckv_blocks_step_end(blocks, NULL));
}

static void read_slot(ckv_blocks *blocks, int64_t pool, int64_t tier, int64_t slot, uint8_t *bytes)
{
    size_t size;
    const char *at = find_slot(blocks, pool, tier, slot, &size);
    assert_ok(ckv_blocks_wait(blocks));
    if (tier == CKV_BLOCKS_HOST)
        memcpy(bytes, at, size);
    else
        assert_ok(ckv_device_download(test_device(), bytes, at, size, NULL));
}

/* Two layers of K and V, two heads of three bf16 numbers: runs of 4 rows of 6 bytes. */
static void a_partial_copy_takes_the_first_rows_of_every_run(void **state)
{
    (void)state;
    static const int32_t first[] = {0, 1, 2, 3, 4, 5, 6, 7, 8}, second[] = {0, 1, 9};
    enum { RUNS = 2 * 2 * 2, ROW = 6, BYTES = RUNS * SMALL_BLOCK_TOKENS * ROW };
    ckv_blocks_count count = {.blocks = {4, 1}};
    ckv_blocks_config config = small_blocks_config(&count);
    ckv_blocks *blocks;
    config.device = test_device();
    config.geometry.layers = 2;
    config.geometry.kv_heads_all = 2;
    config.geometry.size_per_head = 3;
    config.geometry.dtype = CKV_BLOCKS_BF16;
    assert_ok(ckv_blocks_create(&config, &blocks));
    uint8_t written[BYTES], found[BYTES];
    add(blocks, 1, first, 9);
    for (int i = 0; i < BYTES; i++)
        written[i] = (uint8_t)(i % 251 + 1);
    write_slot(blocks, 0, first_slot_of(blocks, 1), written);
    assert_ok(ckv_blocks_prefill(blocks, 1, 9));
    assert_ok(ckv_blocks_store_context(blocks, 1, NULL));
    add(blocks, 2, second, 3);
    read_slot(blocks, 0, CKV_BLOCKS_PRIMARY, first_slot_of(blocks, 2), found);
    for (int i = 0; i < BYTES; i++)
        assert_int_equal(found[i], i / ROW % SMALL_BLOCK_TOKENS < 2 ? written[i] : 0);
    assert_ok(ckv_blocks_offload(blocks, SMALL_BLOCKS_WINDOW, 0));
    read_slot(blocks, 0, CKV_BLOCKS_HOST, 0, found);
    assert_memory_equal(found, written, BYTES);
    assert_ok(ckv_blocks_onboard(blocks, SMALL_BLOCKS_WINDOW, 0));
    read_slot(blocks, 0, CKV_BLOCKS_PRIMARY, first_slot_of(blocks, 1), found);
    assert_memory_equal(found, written, BYTES);
    ckv_blocks_destroy(&blocks);
}

/* Every pool of a block moves, there and back: K/V, scales, indexer. */
static void all_pools_move(void **state)
{
    (void)state;
    static const int32_t tokens[] = {0, 1, 2, 3, 4};
    enum { POOLS = 3 };
    ckv_blocks_count count = {.blocks = {2, 2}};
    ckv_blocks_config config = small_blocks_config(&count);
    ckv_blocks *blocks;
    ckv_blocks_window info;
    config.device = test_device();
    config.geometry.size_per_head = 16;
    config.geometry.dtype = CKV_BLOCKS_FP4;
    config.geometry.indexer_head_dim = 8;
    config.geometry.indexer_quant_block = 4;
    assert_ok(ckv_blocks_create(&config, &blocks));
    assert_ok(ckv_blocks_get_window(blocks, 0, &info));
    assert_int_equal(info.num_pools, POOLS);
    add(blocks, 1, tokens, 5);
    uint8_t written[POOLS][512], found[512];
    for (int pool = 0; pool < POOLS; pool++) {
        for (int i = 0; i < 512; i++)
            written[pool][i] = (uint8_t)(i * 7 + pool);
        write_slot(blocks, pool, first_slot_of(blocks, 1), written[pool]);
    }
    assert_ok(ckv_blocks_offload(blocks, SMALL_BLOCKS_WINDOW, 0));
    for (int pool = 0; pool < POOLS; pool++) {
        read_slot(blocks, pool, CKV_BLOCKS_HOST, 0, found);
        assert_memory_equal(found, written[pool], (size_t)info.pools[pool].block_bytes);
    }
    assert_ok(ckv_blocks_onboard(blocks, SMALL_BLOCKS_WINDOW, 0));
    for (int pool = 0; pool < POOLS; pool++) {
        read_slot(blocks, pool, CKV_BLOCKS_PRIMARY, first_slot_of(blocks, 1), found);
        assert_memory_equal(found, written[pool], (size_t)info.pools[pool].block_bytes);
    }
    ckv_blocks_pool_view view;
    assert_ok(ckv_blocks_get_pool(blocks, SMALL_BLOCKS_WINDOW, 0, CKV_BLOCKS_PRIMARY, &view));
    assert_int_equal(view.guard_slot, 2);
    assert_status(ckv_blocks_get_pool(blocks, SMALL_BLOCKS_WINDOW, POOLS, CKV_BLOCKS_PRIMARY, &view),
                  CKV_ERROR_NOT_FOUND);
    assert_status(ckv_blocks_get_pool(blocks, 8, 0, CKV_BLOCKS_PRIMARY, &view), CKV_ERROR_NOT_FOUND);
    ckv_blocks_destroy(&blocks);
}

/* Write the rows a request has not got, or compare those it has, on a stream between begin and end of a step. */
static void step(ckv_blocks *blocks, ckv_stream stream, int64_t id, bool write)
{
    ckv_blocks_request_info info;
    int32_t tokens[SMALL_BLOCKS_WINDOW];
    int64_t slots[SMALL_BLOCKS_PER_REQUEST];
    ckv_blocks_pool_view view;
    assert_ok(ckv_blocks_get_request(blocks, id, &info));
    assert_ok(ckv_blocks_get_tokens(blocks, id, SMALL_BLOCKS_WINDOW, tokens));
    assert_ok(ckv_blocks_get_table(blocks, id, SMALL_BLOCKS_WINDOW, 0, SMALL_BLOCKS_PER_REQUEST, NULL, slots, NULL));
    assert_ok(ckv_blocks_get_pool(blocks, SMALL_BLOCKS_WINDOW, 0, CKV_BLOCKS_PRIMARY, &view));
    assert_ok(ckv_blocks_step_begin(blocks, stream));
    for (int64_t row = write ? info.kv : 0; row < (write ? info.prompt : info.kv); row++) {
        int64_t wanted = small_blocks_row(tokens, row), found;
        char *at = (char *)view.base + slots[row / SMALL_BLOCK_TOKENS] * view.slot_stride_bytes +
                   row % SMALL_BLOCK_TOKENS * (int64_t)sizeof wanted;
        if (write) {
            assert_ok(ckv_device_upload(test_device(), at, &wanted, sizeof wanted, stream));
        } else {
            assert_ok(ckv_device_download(test_device(), &found, at, sizeof found, stream));
            assert_int_equal(found, wanted);
        }
    }
    assert_ok(ckv_blocks_step_end(blocks, stream));
}

static void prefixes_survive_the_host_tier(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    ckv_blocks_count count = {.blocks = {8, 12}};
    ckv_blocks_config config = small_blocks_config(&count);
    ckv_blocks *blocks;
    ckv_stream stream;
    config.device = test_device();
    config.row_bytes = sizeof(int64_t);
    assert_ok(ckv_blocks_create(&config, &blocks));
    assert_ok(config.device->stream_create(&stream));
    for (int64_t id = 0; id < 300; id++) {
        int64_t tokens = small_blocks_add_random(blocks, &random, id);
        if (tokens == 0)
            continue;
        step(blocks, stream, id, false);
        step(blocks, stream, id, true);
        assert_ok(ckv_blocks_prefill(blocks, id, tokens));
        assert_ok(ckv_blocks_remove(blocks, id, 1, NULL));
        small_blocks_move_some(blocks, &random);
    }
    ckv_blocks_stats stats;
    assert_ok(ckv_blocks_get_stats(blocks, &stats));
    assert_true(stats.total.onboard_blocks > 20 && stats.total.offload_blocks > 20 && stats.total.copy_blocks > 0);
    assert_ok(ckv_blocks_wait(blocks));
    assert_ok(config.device->wait(stream));
    config.device->stream_destroy(stream);
    ckv_blocks_destroy(&blocks);
}

/* Tables of several steps are in flight at once; the device has each as it was given, and a guard slot for holes. */
static void uploaded_tables_arrive(void **state)
{
    (void)state;
    enum { STEPS = 6, ENTRIES = 3 };
    ckv_blocks_count count = {.blocks = {8, 0}};
    ckv_blocks_config config = small_blocks_config(&count);
    ckv_blocks *blocks;
    ckv_stream stream;
    int32_t found[STEPS][ENTRIES] = {0}, *tables;
    config.device = test_device();
    config.row_bytes = sizeof(int64_t);
    assert_ok(ckv_blocks_create(&config, &blocks));
    assert_ok(config.device->stream_create(&stream));
    tables = test_upload(found, sizeof found);
    for (int i = 0; i < STEPS; i++) {
        int64_t slots[ENTRIES] = {i, CKV_BLOCKS_HOLE, 10 + i};
        assert_ok(ckv_blocks_upload_slots(blocks, SMALL_BLOCKS_WINDOW, slots, ENTRIES, tables + i * ENTRIES, stream));
    }
    assert_ok(ckv_device_download(test_device(), found, tables, sizeof found, stream));
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(found[i][0], i);
        assert_int_equal(found[i][1], 8);
        assert_int_equal(found[i][2], 10 + i);
    }
    config.device->free(tables);
    config.device->stream_destroy(stream);
    ckv_blocks_destroy(&blocks);
}

static const ckv_test_case cases[] = {
    CKV_CASE(a_partial_copy_takes_the_first_rows_of_every_run),
    CKV_CASE(all_pools_move),
    CKV_CASE(prefixes_survive_the_host_tier),
    CKV_CASE(uploaded_tables_arrive),
};

CKV_TEST_MAIN("blocks_device", cases)
