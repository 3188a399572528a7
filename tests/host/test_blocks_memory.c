/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind the blocks: what copies wait for, and threads that share a manager. */
#include "tests/support/case.h"
#include "tests/support/lazy_device.h"
#include "tests/support/random.h"
#include "tests/support/small_blocks.h"

#include <ckv/blocks.h>
#include <ckv/blocks_report.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void without_memory_there_are_no_pools(void **state)
{
    (void)state;
    ckv_blocks_count count = {.blocks = {2, 0}};
    ckv_blocks_config config = small_blocks_config(&count);
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
    int64_t *rows, first[SMALL_BLOCK_TOKENS];
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
        const ckv_blocks_pool_view *view = &views[tiers[row / SMALL_BLOCK_TOKENS]];
        v->rows = (int64_t *)(void *)((char *)view->base + slots[row / SMALL_BLOCK_TOKENS] * view->slot_stride_bytes) +
                  row % SMALL_BLOCK_TOKENS;
        v->count = 1;
        v->write = write;
        v->first[0] = small_blocks_row(tokens, row);
        lazy_device_call(stream, make_visit, v);
    }
    assert_ok(ckv_blocks_step_end(blocks, stream));
}

/* Prefixes go to the host and come back, and the model runs behind: every row it reads must be the prefix's own. */
static void copies_wait_for_what_they_depend_on(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    wrong_rows = 0;
    for (int round = 0; round < 60; round++) {
        ckv_blocks_count count = {.blocks = {8, 6}};
        ckv_blocks_config config = small_blocks_config(&count);
        ckv_blocks *blocks;
        ckv_stream stream;
        config.device = lazy_device_open(ckv_random_next(&random));
        config.row_bytes = sizeof(int64_t);
        assert_ok(ckv_blocks_create(&config, &blocks));
        assert_ok(config.device->stream_create(&stream));
        for (int64_t id = 0; id < 40; id++) {
            int64_t tokens = small_blocks_add_random(blocks, &random, id);
            if (tokens == 0)
                continue;
            compute(blocks, stream, id, 0);
            compute(blocks, stream, id, 1);
            assert_ok(ckv_blocks_prefill(blocks, id, tokens));
            lazy_device_run((int)ckv_random_range(&random, 0, 30));
            small_blocks_move_some(blocks, &random);
            compute(blocks, stream, id, 0);
            small_blocks_move_some(blocks, &random);
            assert_ok(ckv_blocks_remove(blocks, id, ckv_random_range(&random, 0, 2) > 0, NULL));
            small_blocks_move_some(blocks, &random);
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
    ckv_blocks_config config = small_blocks_config(&count);
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
    ckv_blocks_config config = small_blocks_config(&count);
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
    CKV_CASE(without_memory_there_are_no_pools),
    CKV_CASE(copies_wait_for_what_they_depend_on),
    CKV_CASE(uploaded_tables_have_memory_of_their_own),
    CKV_CASE(threads_share_a_manager),
};

CKV_TEST_MAIN("blocks_memory", cases)
