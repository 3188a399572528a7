/* SPDX-License-Identifier: Apache-2.0 */
/* The block manager called from C: refusals, packed tokens, hashes that all machines agree on, cost. */
#include "tests/support/case.h"

#include <ckv/blocks_report.h>
#include <stdbool.h>
#include <string.h>

static ckv_blocks *open_manager(const int64_t *windows, int64_t num_windows, int64_t events)
{
    ckv_blocks_count count = {.blocks = {8, 4}};
    ckv_blocks_config config = ckv_blocks_config_default();
    ckv_blocks *blocks;
    config.geometry.tokens_per_block = 4;
    config.geometry.max_seq_len = 32;
    config.geometry.windows = windows;
    config.geometry.num_windows = num_windows;
    config.counts = &count;
    config.num_counts = 1;
    config.event_buffer = events;
    assert_ok(ckv_blocks_create(&config, &blocks));
    return blocks;
}

static ckv_blocks_request make_request(int64_t id, const int32_t *tokens, int64_t count)
{
    ckv_blocks_request request = ckv_blocks_request_default();
    request.id = id;
    request.tokens = tokens;
    request.num_tokens = count;
    return request;
}

static const int32_t counting[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

#define REFUSED(call) assert_status(call, CKV_ERROR_INVALID)

static void requests_need_a_manager(void **state)
{
    (void)state;
    ckv_blocks_request request = make_request(1, counting, 4);
    ckv_blocks_admission admission;
    ckv_blocks_handles handles;
    int64_t number, copies[1][2];
    int flag;
    REFUSED(ckv_blocks_add(NULL, &request, 1, &admission));
    REFUSED(ckv_blocks_prefill(NULL, 1, 4));
    REFUSED(ckv_blocks_carry_state(NULL, 1, 1, copies, &number));
    REFUSED(ckv_blocks_snapshot_points(NULL, 1, NULL, 0, NULL, &number));
    REFUSED(ckv_blocks_append(NULL, 1, counting, 1));
    REFUSED(ckv_blocks_rewind(NULL, 1, 1, &flag));
    REFUSED(ckv_blocks_store_context(NULL, 1, NULL));
    REFUSED(ckv_blocks_store_new(NULL, 1, NULL));
    REFUSED(ckv_blocks_store_for_reuse(NULL, 1, NULL, NULL));
    REFUSED(ckv_blocks_finish_context(NULL, 1, NULL, NULL));
    REFUSED(ckv_blocks_remove(NULL, 1, 1, NULL));
    REFUSED(ckv_blocks_pin(NULL, 1, &handles));
    REFUSED(ckv_blocks_unpin(NULL, NULL, 0));
    ckv_blocks_destroy(NULL);
    ckv_blocks_handles_free(NULL);
}

static void blocks_need_a_manager(void **state)
{
    (void)state;
    ckv_blocks_request request = make_request(1, counting, 4);
    ckv_blocks_request_info request_info;
    ckv_blocks_block_info block_info;
    ckv_blocks_pool_view view;
    ckv_blocks_window window;
    const uint8_t *packed;
    size_t bytes;
    int64_t number, pair[2];
    REFUSED(ckv_blocks_find(NULL, &request, 32, NULL, &number, NULL));
    REFUSED(ckv_blocks_truncate(NULL, &request, 0, NULL));
    REFUSED(ckv_blocks_make_private(NULL, 1, 32, 0));
    REFUSED(ckv_blocks_block_at(NULL, 1, 32, 0, 0, &number));
    REFUSED(ckv_blocks_offload(NULL, 32, 0));
    REFUSED(ckv_blocks_onboard(NULL, 32, 0));
    REFUSED(ckv_blocks_refresh(NULL, NULL));
    REFUSED(ckv_blocks_get_request(NULL, 1, &request_info));
    REFUSED(ckv_blocks_get_table(NULL, 1, 32, 0, 0, NULL, NULL, NULL));
    REFUSED(ckv_blocks_get_packed(NULL, 1, &packed, &bytes));
    REFUSED(ckv_blocks_get_free(NULL, 32, pair, pair));
    REFUSED(ckv_blocks_get_block(NULL, 32, 0, &block_info));
    REFUSED(ckv_blocks_get_window(NULL, 0, &window));
    REFUSED(ckv_blocks_find_window(NULL, 32, &number));
    REFUSED(ckv_blocks_get_pool(NULL, 32, 0, 0, &view));
    REFUSED(ckv_blocks_step_begin(NULL, NULL));
    REFUSED(ckv_blocks_wait(NULL));
}

static void answers_need_a_manager(void **state)
{
    (void)state;
    ckv_blocks_demand demand;
    ckv_blocks_analysis analysis;
    ckv_blocks_stats stats;
    ckv_blocks_events events;
    ckv_blocks_records records;
    ckv_blocks_iteration iteration;
    ckv_blocks_diagnostics diagnostics;
    int64_t number;
    uint64_t hash;
    int flag;
    REFUSED(ckv_blocks_diagnose(NULL, &diagnostics));
    REFUSED(ckv_blocks_check(NULL));
    REFUSED(ckv_blocks_needed(NULL, 32, 1, NULL, 0, &demand));
    REFUSED(ckv_blocks_remaining(NULL, 32, 1, NULL, &demand));
    REFUSED(ckv_blocks_analyze(NULL, 1, NULL, &analysis));
    REFUSED(ckv_blocks_schedule_start(NULL, NULL));
    REFUSED(ckv_blocks_schedule_release(NULL, 1, NULL));
    REFUSED(ckv_blocks_schedule_fits(NULL, 32, 1, &flag));
    REFUSED(ckv_blocks_max_batch(NULL, 1, 1, &number, NULL));
    REFUSED(ckv_blocks_hashes(NULL, 1, 1, &hash, &number));
    REFUSED(ckv_blocks_flush_events(NULL, NULL));
    REFUSED(ckv_blocks_drain_events(NULL, &events));
    REFUSED(ckv_blocks_get_stats(NULL, &stats));
    REFUSED(ckv_blocks_reset_stats(NULL));
    REFUSED(ckv_blocks_take_iteration(NULL, &iteration));
    REFUSED(ckv_blocks_record(NULL, 1, &number));
    REFUSED(ckv_blocks_drain_records(NULL, &records));
    ckv_blocks_events_free(NULL);
    ckv_blocks_records_free(NULL);
}

static void missing_places_for_answers_are_refused(void **state)
{
    (void)state;
    ckv_blocks *blocks = open_manager(NULL, 0, 0);
    ckv_blocks_request request = make_request(1, counting, 4);
    ckv_blocks_page_table table = {.cache_loc = NULL};
    ckv_blocks_config config = ckv_blocks_config_default();
    ckv_blocks *other = NULL;
    int64_t id = 1;
    REFUSED(ckv_blocks_create(NULL, &other));
    REFUSED(ckv_blocks_create(&config, NULL));
    config.struct_size = 1;
    REFUSED(ckv_blocks_create(&config, &other));
    REFUSED(ckv_blocks_add(blocks, &request, 1, NULL));
    REFUSED(ckv_blocks_add(blocks, NULL, 1, NULL));
    REFUSED(ckv_blocks_add(blocks, NULL, -1, NULL));
    REFUSED(ckv_blocks_rewind(blocks, 1, 1, NULL));
    REFUSED(ckv_blocks_append(blocks, 1, NULL, 1));
    REFUSED(ckv_blocks_pin(blocks, 1, NULL));
    REFUSED(ckv_blocks_unpin(blocks, NULL, 1));
    REFUSED(ckv_blocks_find(blocks, &request, 32, NULL, NULL, NULL));
    REFUSED(ckv_blocks_find(blocks, NULL, 32, NULL, &id, NULL));
    REFUSED(ckv_blocks_truncate(blocks, NULL, 0, NULL));
    REFUSED(ckv_blocks_get_page_table(blocks, 32, &id, NULL, 1, 0, &table));
    REFUSED(ckv_blocks_visit_tree(blocks, 32, NULL, NULL));
    REFUSED(ckv_blocks_get_stats(blocks, NULL));
    REFUSED(ckv_blocks_unpack_tokens("abc", 3, (int32_t[1]){0}));
    request.struct_size = 0;
    REFUSED(ckv_blocks_find(blocks, &request, 32, NULL, &id, NULL));
    request = make_request(1, NULL, 4);
    REFUSED(ckv_blocks_find(blocks, &request, 32, NULL, &id, NULL));
    assert_null(other);
    assert_ok(ckv_blocks_check(blocks));
    ckv_blocks_destroy(&blocks);
    assert_null(blocks);
    ckv_blocks_destroy(&blocks);
}

static void packed_tokens_follow_the_request(void **state)
{
    (void)state;
    ckv_blocks *blocks = open_manager(NULL, 0, 0);
    static const int32_t tokens[] = {1, -2};
    static const uint8_t expected[] = {1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 3, 2, 1, 0};
    ckv_blocks_request request = make_request(1, tokens, 2);
    ckv_blocks_admission admission;
    const uint8_t *packed, *again;
    size_t bytes;
    int32_t back[3], third = 0x010203;
    int known;
    assert_ok(ckv_blocks_add(blocks, &request, 1, &admission));
    assert_ok(ckv_blocks_prefill(blocks, 1, 2));
    assert_ok(ckv_blocks_get_packed(blocks, 1, &packed, &bytes));
    assert_int_equal(bytes, 8);
    assert_memory_equal(packed, expected, 8);
    assert_ok(ckv_blocks_get_packed(blocks, 1, &again, &bytes));
    assert_ptr_equal(packed, again);
    assert_ok(ckv_blocks_append(blocks, 1, &third, 1));
    assert_ok(ckv_blocks_get_packed(blocks, 1, &packed, &bytes));
    assert_int_equal(bytes, 12);
    assert_memory_equal(packed, expected, 12);
    assert_ok(ckv_blocks_unpack_tokens(packed, bytes, back));
    assert_int_equal(back[1], -2);
    assert_int_equal(back[2], third);
    assert_ok(ckv_blocks_rewind(blocks, 1, 1, &known));
    assert_ok(ckv_blocks_get_packed(blocks, 1, &packed, &bytes));
    assert_int_equal(bytes, 8);
    ckv_blocks_destroy(&blocks);
}

/* Windows, what has slid out of them and who is asked make no difference; names and prefixes do. */
static void hashes_depend_on_keys_alone(void **state)
{
    (void)state;
    static const int64_t windows[] = {8, 32};
    ckv_blocks *one = open_manager(NULL, 0, 0), *two = open_manager(windows, 2, 0);
    ckv_blocks_request request = make_request(1, counting, 12), named = make_request(2, counting, 12);
    ckv_blocks_admission admission;
    uint64_t a[4], b[4], c[4];
    int64_t count;
    named.salt_kind = CKV_BLOCKS_SALT_TEXT;
    named.salt_text = "tenant";
    assert_ok(ckv_blocks_add(one, &request, 1, &admission));
    assert_ok(ckv_blocks_add(one, &named, 1, &admission));
    assert_ok(ckv_blocks_add(two, &request, 1, &admission));
    assert_ok(ckv_blocks_prefill(two, 1, 12));
    assert_ok(ckv_blocks_append(two, 1, counting, 4));
    assert_ok(ckv_blocks_hashes(one, 1, 4, a, &count));
    assert_int_equal(count, 3);
    assert_ok(ckv_blocks_hashes(one, 2, 4, c, &count));
    assert_ok(ckv_blocks_hashes(two, 1, 4, b, &count));
    assert_int_equal(count, 4); /* the block just filled is one of them */
    for (int i = 0; i < 3; i++) {
        assert_true(a[i] == b[i]);
        assert_true(a[i] != c[i]);
        assert_true(i == 0 || a[i] != a[i - 1]);
    }
    ckv_blocks_destroy(&one);
    ckv_blocks_destroy(&two);
}

/* Half a million tokens in one request: nothing is recursive. */
static void long_paths(void **state)
{
    (void)state;
    enum { LONG = 500000 };
    static int32_t tokens[LONG];
    ckv_blocks_count count = {.blocks = {LONG, 0}};
    ckv_blocks_config config = ckv_blocks_config_default();
    ckv_blocks *blocks;
    config.geometry.tokens_per_block = 1;
    config.geometry.max_seq_len = LONG;
    config.counts = &count;
    config.num_counts = 1;
    assert_ok(ckv_blocks_create(&config, &blocks));
    ckv_blocks_request request = make_request(1, tokens, LONG);
    ckv_blocks_admission admission;
    int64_t dropped;
    assert_ok(ckv_blocks_add(blocks, &request, 1, &admission));
    assert_ok(ckv_blocks_prefill(blocks, 1, LONG));
    assert_ok(ckv_blocks_remove(blocks, 1, 1, NULL));
    assert_ok(ckv_blocks_add(blocks, &request, 1, &admission));
    assert_int_equal(admission.reused, LONG - 1);
    assert_ok(ckv_blocks_remove(blocks, 1, 1, NULL));
    assert_ok(ckv_blocks_truncate(blocks, &request, 0, &dropped));
    assert_int_equal(dropped, LONG - 1);
    assert_ok(ckv_blocks_check(blocks));
    ckv_blocks_destroy(&blocks);
}

/* A hundred thousand prompts that begin alike and part in their first block: none pays for the others. Looking at each
 * sibling would take minutes, the case has one. */
static void siblings_cost_nothing(void **state)
{
    (void)state;
    enum { PROMPTS = 100000 };
    ckv_blocks_count count = {.blocks = {3 * PROMPTS + 3, 0}};
    ckv_blocks_config config = ckv_blocks_config_default();
    ckv_blocks *blocks;
    config.geometry.tokens_per_block = 4;
    config.geometry.max_seq_len = 16;
    config.counts = &count;
    config.num_counts = 1;
    assert_ok(ckv_blocks_create(&config, &blocks));
    int32_t tokens[] = {7, 7, 0, 1, 2, 3, 4, 5, 6};
    ckv_blocks_request request = make_request(1, tokens, 9);
    ckv_blocks_admission admission;
    int64_t dropped;
    for (int32_t i = 0; i < PROMPTS; i++) {
        tokens[2] = i;
        assert_ok(ckv_blocks_add(blocks, &request, 1, &admission));
        assert_int_equal(admission.prepopulated_tokens, i > 0 ? 2 : 0);
        assert_ok(ckv_blocks_prefill(blocks, 1, 9));
        assert_ok(ckv_blocks_remove(blocks, 1, 1, NULL));
    }
    assert_ok(ckv_blocks_check(blocks));
    for (int32_t i = 0; i < PROMPTS; i++) {
        tokens[2] = i;
        assert_ok(ckv_blocks_truncate(blocks, &request, 0, &dropped));
        assert_int_equal(dropped, 2);
    }
    assert_ok(ckv_blocks_check(blocks));
    ckv_blocks_destroy(&blocks);
}

static const ckv_test_case cases[] = {
    CKV_CASE(requests_need_a_manager),
    CKV_CASE(blocks_need_a_manager),
    CKV_CASE(answers_need_a_manager),
    CKV_CASE(missing_places_for_answers_are_refused),
    CKV_CASE(packed_tokens_follow_the_request),
    CKV_CASE(hashes_depend_on_keys_alone),
    CKV_CASE(long_paths),
    CKV_CASE(siblings_cost_nothing),
};

CKV_TEST_MAIN("blocks_api", cases)
