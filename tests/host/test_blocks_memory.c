/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind the blocks: which bytes copies move, on which device, and what they wait for. */
#include "tests/support/case.h"
#include "tests/support/lazy_device.h"
#include "tests/support/random.h"

#include <ckv/blocks.h>
#include <ckv/blocks_report.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { STEP = 4 };

/* Devices of this build and machine. */
enum { NUM_DEVICES = 3 };

static bool find_device(int index, const ckv_device **device_out)
{
    static const char *const names[NUM_DEVICES] = {"host", "strict", "cuda"};
    ckv_status status = ckv_device_find(names[index], device_out);
    if (index < 2)
        assert_ok(status);
    return status == CKV_OK;
}

static ckv_blocks_config small_config(const ckv_blocks_count *count)
{
    ckv_blocks_config config = ckv_blocks_config_default();
    config.geometry.tokens_per_block = STEP;
    config.geometry.max_seq_len = 32;
    config.counts = count;
    config.num_counts = 1;
    return config;
}

static void add(ckv_blocks *blocks, int64_t id, const int32_t *tokens, int64_t count)
{
    ckv_blocks_request request = ckv_blocks_request_default();
    ckv_blocks_admission admission;
    request.id = id;
    request.tokens = tokens;
    request.num_tokens = count;
    assert_ok(ckv_blocks_add(blocks, &request, 1, &admission));
}

static int64_t slot_of(ckv_blocks *blocks, int64_t id, int64_t position)
{
    int64_t slots[8];
    assert_ok(ckv_blocks_get_table(blocks, id, 32, 0, 8, NULL, slots, NULL));
    return slots[position];
}

/* Bytes of one slot of a pool; from or to the test's memory. */
static void move_slot(ckv_blocks *blocks, const ckv_device *device, int64_t pool, int64_t tier, int64_t slot,
                      uint8_t *bytes, bool write)
{
    ckv_blocks_pool_view view;
    assert_ok(ckv_blocks_get_pool(blocks, 32, pool, tier, &view));
    char *at = (char *)view.base + slot * view.slot_stride_bytes;
    size_t size = (size_t)view.slot_stride_bytes;
    if (tier == CKV_BLOCKS_HOST)
        memcpy(write ? (void *)at : bytes, write ? bytes : (void *)at, size);
    else if (write)
        assert_ok(ckv_device_upload(device, at, bytes, size, NULL));
    else
        assert_ok(ckv_device_download(device, bytes, at, size, NULL));
}

/* Two layers of K and V, two heads of three bf16 numbers: runs of 4 rows of 6 bytes. */
static void a_partial_copy_takes_the_first_rows_of_every_run(void **state)
{
    (void)state;
    static const int32_t first[] = {0, 1, 2, 3, 4, 5, 6, 7, 8}, second[] = {0, 1, 9};
    enum { RUNS = 2 * 2 * 2, ROW = 6, BYTES = RUNS * STEP * ROW };
    for (int d = 0; d < NUM_DEVICES; d++) {
        ckv_blocks_count count = {.blocks = {4, 1}};
        ckv_blocks_config config = small_config(&count);
        ckv_blocks *blocks;
        if (!find_device(d, &config.device))
            continue;
        config.geometry.layers = 2;
        config.geometry.kv_heads_all = 2;
        config.geometry.size_per_head = 3;
        config.geometry.dtype = CKV_BLOCKS_BF16;
        assert_ok(ckv_blocks_create(&config, &blocks));
        uint8_t written[BYTES], copied[BYTES];
        add(blocks, 1, first, 9);
        for (int i = 0; i < BYTES; i++)
            written[i] = (uint8_t)(i % 251 + 1);
        move_slot(blocks, config.device, 0, CKV_BLOCKS_PRIMARY, slot_of(blocks, 1, 0), written, true);
        assert_ok(ckv_blocks_prefill(blocks, 1, 9));
        assert_ok(ckv_blocks_store_context(blocks, 1, NULL));
        add(blocks, 2, second, 3);
        assert_ok(ckv_blocks_wait(blocks));
        move_slot(blocks, config.device, 0, CKV_BLOCKS_PRIMARY, slot_of(blocks, 2, 0), copied, false);
        for (int i = 0; i < BYTES; i++)
            assert_int_equal(copied[i], i / ROW % STEP < 2 ? written[i] : 0);
        assert_ok(ckv_blocks_offload(blocks, 32, 0));
        assert_ok(ckv_blocks_wait(blocks));
        move_slot(blocks, config.device, 0, CKV_BLOCKS_HOST, 0, copied, false);
        assert_memory_equal(copied, written, BYTES);
        assert_ok(ckv_blocks_onboard(blocks, 32, 0));
        assert_ok(ckv_blocks_wait(blocks));
        move_slot(blocks, config.device, 0, CKV_BLOCKS_PRIMARY, slot_of(blocks, 1, 0), copied, false);
        assert_memory_equal(copied, written, BYTES);
        ckv_blocks_destroy(&blocks);
    }
}

/* Every pool of a block moves: K/V, scales, indexer. */
static void all_pools_move(void **state)
{
    (void)state;
    static const int32_t tokens[] = {0, 1, 2, 3, 4};
    ckv_blocks_count count = {.blocks = {2, 2}};
    ckv_blocks_config config = small_config(&count);
    ckv_blocks *blocks;
    ckv_blocks_window info;
    config.geometry.size_per_head = 16;
    config.geometry.dtype = CKV_BLOCKS_FP4;
    config.geometry.indexer_head_dim = 8;
    config.geometry.indexer_quant_block = 4;
    assert_ok(ckv_device_find("host", &config.device));
    assert_ok(ckv_blocks_create(&config, &blocks));
    assert_ok(ckv_blocks_get_window(blocks, 0, &info));
    assert_int_equal(info.num_pools, 3);
    add(blocks, 1, tokens, 5);
    uint8_t bytes[512];
    for (int pool = 0; pool < 3; pool++) {
        memset(bytes, 10 + pool, sizeof bytes);
        move_slot(blocks, config.device, pool, CKV_BLOCKS_PRIMARY, 0, bytes, true);
    }
    assert_ok(ckv_blocks_offload(blocks, 32, 0));
    for (int pool = 0; pool < 3; pool++) {
        move_slot(blocks, config.device, pool, CKV_BLOCKS_HOST, 0, bytes, false);
        assert_int_equal(bytes[0], 10 + pool);
        assert_int_equal(bytes[info.pools[pool].block_bytes - 1], 10 + pool);
    }
    ckv_blocks_pool_view view;
    assert_ok(ckv_blocks_get_pool(blocks, 32, 0, CKV_BLOCKS_PRIMARY, &view));
    assert_int_equal(view.guard_slot, 2);
    assert_status(ckv_blocks_get_pool(blocks, 32, 3, CKV_BLOCKS_PRIMARY, &view), CKV_ERROR_NOT_FOUND);
    assert_status(ckv_blocks_get_pool(blocks, 8, 0, CKV_BLOCKS_PRIMARY, &view), CKV_ERROR_NOT_FOUND);
    ckv_blocks_destroy(&blocks);
}

static void without_memory_there_are_no_pools(void **state)
{
    (void)state;
    ckv_blocks_count count = {.blocks = {2, 0}};
    ckv_blocks_config config = small_config(&count);
    ckv_blocks *blocks;
    ckv_blocks_pool_view view;
    assert_ok(ckv_blocks_create(&config, &blocks));
    assert_status(ckv_blocks_get_pool(blocks, 32, 0, 0, &view), CKV_ERROR_STATE);
    assert_status(ckv_blocks_step_begin(blocks, NULL), CKV_ERROR_STATE);
    assert_status(ckv_blocks_wait(blocks), CKV_ERROR_STATE);
    ckv_blocks_destroy(&blocks);
}

/* ---- Streams that run late ---- */

/* Rows of one block, written or compared when the compute stream comes to it. */
typedef struct visit {
    int64_t *rows, first[STEP];
    int count, write;
} visit;

static int wrong_rows;

static void make_visit(void *argument)
{
    visit *v = argument;
    for (int i = 0; i < v->count; i++) {
        if (v->write)
            v->rows[i] = v->first[i];
        else
            wrong_rows += v->rows[i] != v->first[i];
    }
}

static int64_t value_of(const int32_t *tokens, int64_t row)
{
    uint64_t hash = 7;
    for (int64_t i = 0; i <= row; i++)
        hash = (hash ^ (uint32_t)tokens[i]) * 0x9e3779b97f4a7c15u + (hash >> 31);
    return (int64_t)(hash >> 1 | 1);
}

/* A step of the model: compare what is there, or write what is not. */
static void compute(ckv_blocks *blocks, ckv_stream stream, int64_t id, int write)
{
    ckv_blocks_request_info info;
    int32_t tokens[32];
    int64_t slots[8], tiers[8];
    ckv_blocks_pool_view views[CKV_BLOCKS_TIERS];
    assert_ok(ckv_blocks_get_request(blocks, id, &info));
    assert_ok(ckv_blocks_get_tokens(blocks, id, 32, tokens));
    assert_ok(ckv_blocks_get_table(blocks, id, 32, 0, 8, NULL, slots, tiers));
    for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++)
        assert_ok(ckv_blocks_get_pool(blocks, 32, 0, tier, &views[tier]));
    assert_ok(ckv_blocks_step_begin(blocks, stream));
    for (int64_t row = write ? info.kv : 0; row < (write ? info.prompt : info.kv); row++) {
        visit *v = calloc(1, sizeof *v);
        assert_non_null(v);
        const ckv_blocks_pool_view *view = &views[tiers[row / STEP]];
        v->rows = (int64_t *)(void *)((char *)view->base + slots[row / STEP] * view->slot_stride_bytes) + row % STEP;
        v->count = 1;
        v->write = write;
        v->first[0] = value_of(tokens, row);
        lazy_device_call(stream, make_visit, v);
    }
    assert_ok(ckv_blocks_step_end(blocks, stream));
}

static int64_t add_random(ckv_blocks *blocks, ckv_random *random, int64_t id)
{
    int32_t tokens[32];
    ckv_blocks_request request = ckv_blocks_request_default();
    ckv_blocks_admission admission;
    int64_t stream = ckv_random_range(random, 0, 3);
    request.id = id;
    request.tokens = tokens;
    request.num_tokens = ckv_random_range(random, 2, 24);
    for (int i = 0; i < 32; i++)
        tokens[i] = (int32_t)(stream * 50 + i);
    if (ckv_random_range(random, 0, 2) == 0)
        tokens[request.num_tokens - 1] = 999;
    ckv_status status = ckv_blocks_add(blocks, &request, 1, &admission);
    assert_true(status == CKV_OK || status == CKV_ERROR_CAPACITY);
    return status == CKV_OK ? request.num_tokens : 0;
}

/* Blocks go back and forth between the tiers, without a step of the model between. */
static void move_some(ckv_blocks *blocks, ckv_random *random)
{
    for (int64_t moves = ckv_random_range(random, 0, 12); moves > 0; moves--) {
        int64_t block = ckv_random_range(random, 0, 13);
        ckv_status status = ckv_random_range(random, 0, 1) ? ckv_blocks_offload(blocks, 32, block)
                                                           : ckv_blocks_onboard(blocks, 32, block);
        assert_true(status == CKV_OK || status == CKV_ERROR_CAPACITY || status == CKV_ERROR_STATE);
    }
}

/* Prefixes go to the host and come back, and the model runs behind: every row it reads must be the prefix's own. */
static void copies_wait_for_what_they_depend_on(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    wrong_rows = 0;
    for (int round = 0; round < 60; round++) {
        ckv_blocks_count count = {.blocks = {8, 6}};
        ckv_blocks_config config = small_config(&count);
        ckv_blocks *blocks;
        ckv_stream stream;
        config.device = lazy_device_open(ckv_random_next(&random));
        config.row_bytes = sizeof(int64_t);
        assert_ok(ckv_blocks_create(&config, &blocks));
        assert_ok(config.device->stream_create(&stream));
        for (int64_t id = 0; id < 40; id++) {
            int64_t tokens = add_random(blocks, &random, id);
            if (tokens == 0)
                continue;
            compute(blocks, stream, id, 0);
            compute(blocks, stream, id, 1);
            assert_ok(ckv_blocks_prefill(blocks, id, tokens));
            lazy_device_run((int)ckv_random_range(&random, 0, 30));
            move_some(blocks, &random);
            compute(blocks, stream, id, 0);
            move_some(blocks, &random);
            assert_ok(ckv_blocks_remove(blocks, id, ckv_random_range(&random, 0, 2) > 0, NULL));
            move_some(blocks, &random);
        }
        assert_ok(ckv_blocks_wait(blocks));
        assert_ok(config.device->wait(stream));
        ckv_blocks_destroy(&blocks);
        lazy_device_close();
    }
    assert_int_equal(wrong_rows, 0);
}

/* Tables of several steps are in flight at once; none is written over. */
static void uploaded_tables_have_memory_of_their_own(void **state)
{
    (void)state;
    ckv_blocks_count count = {.blocks = {8, 0}};
    ckv_blocks_config config = small_config(&count);
    ckv_blocks *blocks;
    ckv_stream stream;
    int32_t tables[6][3];
    config.device = lazy_device_open(ckv_test_seed());
    config.row_bytes = sizeof(int64_t);
    assert_ok(ckv_blocks_create(&config, &blocks));
    assert_ok(config.device->stream_create(&stream));
    for (int turn = 0; turn < 2; turn++) {
        for (int step = 0; step < 6; step++) {
            int64_t slots[] = {step, CKV_BLOCKS_HOLE, 10 * turn + step};
            assert_ok(ckv_blocks_upload_slots(blocks, 32, slots, 3, tables[step], stream));
        }
        assert_ok(config.device->wait(stream));
        for (int step = 0; step < 6; step++) {
            assert_int_equal(tables[step][0], step);
            assert_int_equal(tables[step][1], 8); /* the guard slot */
            assert_int_equal(tables[step][2], 10 * turn + step);
        }
    }
    assert_ok(ckv_blocks_upload_slots(blocks, 32, NULL, 0, NULL, stream));
    assert_status(ckv_blocks_upload_slots(blocks, 32, NULL, 1, tables[0], stream), CKV_ERROR_INVALID);
    assert_status(ckv_blocks_upload_slots(blocks, 8, NULL, 0, NULL, stream), CKV_ERROR_NOT_FOUND);
    ckv_blocks_destroy(&blocks);
    lazy_device_close();
}

/* ---- Real streams ---- */

/* Write the rows a request has not got, or compare those it has, on a stream between begin and end of a step. */
static void step_on_device(ckv_blocks *blocks, const ckv_device *device, ckv_stream stream, int64_t id, bool write)
{
    ckv_blocks_request_info info;
    int32_t tokens[32];
    int64_t slots[8];
    ckv_blocks_pool_view view;
    assert_ok(ckv_blocks_get_request(blocks, id, &info));
    assert_ok(ckv_blocks_get_tokens(blocks, id, 32, tokens));
    assert_ok(ckv_blocks_get_table(blocks, id, 32, 0, 8, NULL, slots, NULL));
    assert_ok(ckv_blocks_get_pool(blocks, 32, 0, CKV_BLOCKS_PRIMARY, &view));
    assert_ok(ckv_blocks_step_begin(blocks, stream));
    for (int64_t row = write ? info.kv : 0; row < (write ? info.prompt : info.kv); row++) {
        char *at = (char *)view.base + slots[row / STEP] * view.slot_stride_bytes + row % STEP * 8;
        int64_t wanted = value_of(tokens, row), found;
        if (write) {
            assert_ok(device->upload(at, &wanted, sizeof wanted, stream));
        } else {
            assert_ok(device->download(&found, at, sizeof found, stream));
            assert_int_equal(found, wanted);
        }
    }
    assert_ok(ckv_blocks_step_end(blocks, stream));
}

static void prefixes_survive_the_host_tier(void **state)
{
    (void)state;
    for (int d = 0; d < NUM_DEVICES; d++) {
        ckv_random random = {ckv_test_seed()};
        ckv_blocks_count count = {.blocks = {8, 12}};
        ckv_blocks_config config = small_config(&count);
        ckv_blocks *blocks;
        ckv_stream stream;
        if (!find_device(d, &config.device))
            continue;
        config.row_bytes = sizeof(int64_t);
        assert_ok(ckv_blocks_create(&config, &blocks));
        assert_ok(config.device->stream_create(&stream));
        for (int64_t id = 0; id < 300; id++) {
            int64_t tokens = add_random(blocks, &random, id);
            if (tokens == 0)
                continue;
            step_on_device(blocks, config.device, stream, id, false);
            step_on_device(blocks, config.device, stream, id, true);
            assert_ok(ckv_blocks_prefill(blocks, id, tokens));
            assert_ok(ckv_blocks_remove(blocks, id, 1, NULL));
            move_some(blocks, &random);
        }
        ckv_blocks_stats stats;
        assert_ok(ckv_blocks_get_stats(blocks, &stats));
        assert_true(stats.total.onboard_blocks > 20 && stats.total.offload_blocks > 20 && stats.total.copy_blocks > 0);
        assert_ok(ckv_blocks_wait(blocks));
        assert_ok(config.device->wait(stream));
        config.device->stream_destroy(stream);
        ckv_blocks_destroy(&blocks);
    }
}

/* ---- Threads ---- */

enum { THREADS = 4, TURNS = 400 };

typedef struct worker {
    pthread_t thread;
    ckv_blocks *blocks;
    int64_t first_id;
    int failures;
} worker;

static int is_expected(ckv_status status)
{
    return status == CKV_OK || status == CKV_ERROR_CAPACITY || status == CKV_ERROR_STATE ||
           status == CKV_ERROR_NOT_FOUND;
}

static void *work(void *argument)
{
    worker *w = argument;
    ckv_random random = {(uint64_t)w->first_id};
    for (int64_t turn = 0; turn < TURNS; turn++) {
        int64_t id = w->first_id + turn, stored[1];
        int32_t tokens[24], next = 5;
        ckv_blocks_request request = ckv_blocks_request_default();
        ckv_blocks_admission admission;
        ckv_blocks_handles handles = {NULL, 0};
        request.id = id;
        request.tokens = tokens;
        request.num_tokens = ckv_random_range(&random, 1, 24);
        for (int i = 0; i < 24; i++)
            tokens[i] = (int32_t)(ckv_random_range(&random, 0, 3) == 0 ? id : i);
        ckv_status status = ckv_blocks_add(w->blocks, &request, 1, &admission);
        w->failures += !is_expected(status);
        if (status != CKV_OK)
            continue;
        w->failures += ckv_blocks_prefill(w->blocks, id, request.num_tokens) != CKV_OK;
        w->failures += !is_expected(ckv_blocks_append(w->blocks, id, &next, 1));
        w->failures += ckv_blocks_store_for_reuse(w->blocks, id, stored, &handles) != CKV_OK;
        w->failures += !is_expected(ckv_blocks_offload(w->blocks, 32, ckv_random_range(&random, 0, 31)));
        w->failures += !is_expected(ckv_blocks_onboard(w->blocks, 32, ckv_random_range(&random, 0, 31)));
        w->failures += ckv_blocks_remove(w->blocks, id, 1, stored) != CKV_OK;
        w->failures += ckv_blocks_unpin(w->blocks, handles.items, handles.count) != CKV_OK;
        ckv_blocks_handles_free(&handles);
    }
    return NULL;
}

static void *watch(void *argument)
{
    worker *w = argument;
    for (int turn = 0; turn < TURNS; turn++) {
        ckv_blocks_stats stats;
        ckv_blocks_events events;
        ckv_blocks_diagnostics diagnostics;
        int64_t expired[1];
        w->failures += ckv_blocks_get_stats(w->blocks, &stats) != CKV_OK;
        w->failures += ckv_blocks_drain_events(w->blocks, &events) != CKV_OK;
        ckv_blocks_events_free(&events);
        w->failures += ckv_blocks_diagnose(w->blocks, &diagnostics) != CKV_OK;
        w->failures += ckv_blocks_refresh(w->blocks, expired) != CKV_OK;
        w->failures += turn % 16 == 0 && ckv_blocks_check(w->blocks) != CKV_OK;
    }
    return NULL;
}

static void threads_share_a_manager(void **state)
{
    (void)state;
    ckv_blocks_count count = {.blocks = {20, 12}};
    ckv_blocks_config config = small_config(&count);
    worker workers[THREADS + 1] = {{0}};
    ckv_blocks *blocks;
    config.event_buffer = 64;
    config.row_bytes = sizeof(int64_t);
    assert_ok(ckv_device_find("host", &config.device));
    assert_ok(ckv_blocks_create(&config, &blocks));
    for (int i = 0; i <= THREADS; i++) {
        workers[i].blocks = blocks;
        workers[i].first_id = 1000 * (i + 1);
        assert_int_equal(pthread_create(&workers[i].thread, NULL, i < THREADS ? work : watch, &workers[i]), 0);
    }
    for (int i = 0; i <= THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].failures, 0);
    }
    int64_t free_blocks[CKV_BLOCKS_TIERS], empty[CKV_BLOCKS_TIERS];
    assert_ok(ckv_blocks_check(blocks));
    assert_ok(ckv_blocks_get_free(blocks, 32, free_blocks, empty));
    assert_int_equal(free_blocks[CKV_BLOCKS_PRIMARY], 20);
    assert_int_equal(free_blocks[CKV_BLOCKS_HOST], 12);
    ckv_blocks_destroy(&blocks);
}

static const ckv_test_case cases[] = {
    CKV_CASE(a_partial_copy_takes_the_first_rows_of_every_run),
    CKV_CASE(all_pools_move),
    CKV_CASE(without_memory_there_are_no_pools),
    CKV_CASE(copies_wait_for_what_they_depend_on),
    CKV_CASE(uploaded_tables_have_memory_of_their_own),
    CKV_CASE(prefixes_survive_the_host_tier),
    CKV_CASE(threads_share_a_manager),
};

CKV_TEST_MAIN("blocks_memory", cases)
