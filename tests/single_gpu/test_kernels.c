/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the cache through the device table: one list of cases for the host twins and for a GPU. */
#include "kernels/copy_kv_slots/copy_kv_slots.h"
#include "kernels/exchange_heads/exchange_heads.h"
#include "kernels/rotate_rows/rotate_rows.h"
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "kernels/zero_row_tails/zero_row_tails.h"
#include "tests/support/device_memory.h"
#include "tests/support/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill_random(ckv_random *random, void *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)memory)[i] = (unsigned char)ckv_random_next(random);
}

/* torch.roll along the last dimension: column c goes to (c + shift) mod columns. */
static void expect_rotation(int64_t rows, int64_t columns, int64_t bytes, int64_t row_stride, int64_t shift)
{
    ckv_random random = {ckv_test_seed()};
    size_t size = (size_t)(rows * row_stride + 16);
    char *before = malloc(size), *after = malloc(size), *expected = malloc(size);
    fill_random(&random, before, size);
    memcpy(expected, before, size);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++) {
            int64_t to = ((column + shift % columns) % columns + columns) % columns;
            memcpy(expected + row * row_stride + to * bytes, before + row * row_stride + column * bytes, (size_t)bytes);
        }
    char *data = test_upload(before, size);
    ckv_rotate_rows_params params = {data, rows, columns, bytes, row_stride, shift};
    assert_ok(test_device()->rotate_rows(&params, NULL));
    test_download(after, data, size);
    if (memcmp(after, expected, size) != 0)
        fail_msg("[%" PRId64 ", %" PRId64 "] of %" PRId64 " bytes, stride %" PRId64 ", shift %" PRId64, rows, columns,
                 bytes, row_stride, shift);
    test_device()->free(data);
    free(before);
    free(after);
    free(expected);
}

static void rotate_rows_like_roll(void **state)
{
    (void)state;
    static const int64_t columns[] = {1, 2, 3, 7, 64, 257};
    static const int64_t shifts[] = {0, 1, -1, 2, -3, 256, -257, 1000003, -1000003};
    for (int64_t bytes = 1; bytes <= 16; bytes *= 2)
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
            for (size_t s = 0; s < sizeof shifts / sizeof *shifts; s++)
                for (int64_t gap = 0; gap <= 32; gap += 32) /* what lies between rows stays */
                    expect_rotation(3, columns[c], bytes, columns[c] * bytes + gap, shifts[s]);
}

static void rotate_rows_extreme_shifts(void **state)
{
    (void)state;
    expect_rotation(2, 11, 4, 44, INT64_MAX);
    expect_rotation(2, 11, 4, 44, INT64_MIN);
    expect_rotation(2, 11, 4, 44, INT64_MIN + 1);
}

static void rotate_rows_more_rows_than_a_grid_dimension(void **state)
{
    (void)state;
    expect_rotation(70000, 3, 4, 12, 1);
}

/* Longer than what a twin sets aside, both ways, and just not. */
static void rotate_rows_long_rows(void **state)
{
    (void)state;
    static const int64_t shifts[] = {49, -49, 256, -256, 257, -257, 624, 625};
    for (size_t s = 0; s < sizeof shifts / sizeof *shifts; s++)
        expect_rotation(2, 1249, 4, 1249 * 4, shifts[s]);
}

static void rotate_rows_empty_shapes(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{3, 0}, {0, 4}, {0, 0}, {5, 1}};
    int32_t untouched[5] = {1, 2, 3, 4, 5}, after[5];
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        void *data = test_upload(untouched, sizeof untouched);
        ckv_rotate_rows_params params = {data, shapes[i][0], shapes[i][1], 4, 4, 3};
        assert_ok(test_device()->rotate_rows(&params, NULL));
        test_download(after, data, sizeof after);
        assert_memory_equal(after, untouched, sizeof after);
        test_device()->free(data);
    }
}

static void rotate_rows_bad_arguments(void **state)
{
    (void)state;
    static const int64_t bytes[] = {0, 3, 5, 32, -4};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        ckv_rotate_rows_params params = {NULL, 2, 2, bytes[i], 64, 1};
        assert_status(test_device()->rotate_rows(&params, NULL), CKV_ERROR_INVALID);
    }
    ckv_rotate_rows_params negative = {NULL, -1, 2, 4, 8, 1};
    assert_status(test_device()->rotate_rows(&negative, NULL), CKV_ERROR_INVALID);
}

enum { PAGES = 5, PAGE = 4, HEADS = 3, ROW = 24, LAYERS = 2, SLOTS = PAGES * PAGE };

/* A small pool in the layout [layers][pages][K, V][heads][page][row], with a guard page. */
enum {
    HEAD_STRIDE = PAGE * ROW,
    KV_STRIDE = HEADS * HEAD_STRIDE,
    PAGE_STRIDE = 2 * KV_STRIDE,
    LAYER_STRIDE = (PAGES + 1) * PAGE_STRIDE,
    POOL_BYTES = LAYERS * LAYER_STRIDE,
};

static ckv_pool_view pool_view(void *base)
{
    return (ckv_pool_view){base, LAYER_STRIDE, PAGE_STRIDE, KV_STRIDE, HEAD_STRIDE, ROW, PAGES, PAGES, NULL};
}

static char *pool_row(char *pool, int layer, int kv, int head, int64_t slot)
{
    return pool + layer * LAYER_STRIDE + slot / PAGE * PAGE_STRIDE + kv * KV_STRIDE + head * HEAD_STRIDE +
           slot % PAGE * ROW;
}

typedef struct scatter_case {
    int64_t k_token, k_head, v_token, v_head; /* strides in bytes */
    int use_source, use_second, skip_k;
} scatter_case;

static void expect_scatter(const scatter_case *c)
{
    enum { ENTRIES = 6, SOURCE_BYTES = 4096 };
    static const int64_t source_index[ENTRIES] = {2, 0, 5, 5, 1, 3};
    static const int64_t destination[ENTRIES] = {7, 0, 19, 3, 12, 4};
    static const int64_t destination2[ENTRIES] = {8, 1, 18, 2, 13, 5};
    ckv_random random = {ckv_test_seed()};
    char pool[LAYER_STRIDE], after[LAYER_STRIDE], k[SOURCE_BYTES], v[SOURCE_BYTES];
    fill_random(&random, pool, sizeof pool);
    fill_random(&random, k, sizeof k);
    fill_random(&random, v, sizeof v);
    char *device_pool = test_upload(pool, sizeof pool), *device_k = test_upload(k, sizeof k),
         *device_v = test_upload(v, sizeof v);
    int64_t *device_source = test_upload(source_index, sizeof source_index),
            *device_first = test_upload(destination, sizeof destination),
            *device_second = test_upload(destination2, sizeof destination2);
    const int64_t middle = SOURCE_BYTES / 2; /* room for negative strides */
    ckv_scatter_kv_slots_params params = {.k_plane = device_pool,
                                          .v_plane = device_pool + KV_STRIDE,
                                          .page_stride = PAGE_STRIDE,
                                          .head_stride = HEAD_STRIDE,
                                          .slot_stride = ROW,
                                          .tokens_per_page = PAGE,
                                          .num_slots = SLOTS,
                                          .kv_heads = HEADS,
                                          .row_bytes = ROW,
                                          .k = c->skip_k ? NULL : device_k + middle,
                                          .v = device_v + middle,
                                          .k_token_stride = c->k_token,
                                          .k_head_stride = c->k_head,
                                          .v_token_stride = c->v_token,
                                          .v_head_stride = c->v_head,
                                          .entries = ENTRIES,
                                          .source_index = c->use_source ? device_source : NULL,
                                          .destination = device_first,
                                          .destination2 = c->use_second ? device_second : NULL};
    assert_ok(test_device()->scatter_kv_slots(&params, NULL));
    test_download(after, device_pool, sizeof after);
    for (int i = 0; i < ENTRIES; i++) {
        int64_t token = c->use_source ? source_index[i] : i;
        for (int head = 0; head < HEADS; head++)
            for (int second = 0; second <= c->use_second; second++) {
                int64_t slot = second ? destination2[i] : destination[i];
                if (!c->skip_k)
                    memcpy(pool_row(pool, 0, 0, head, slot), k + middle + token * c->k_token + head * c->k_head, ROW);
                memcpy(pool_row(pool, 0, 1, head, slot), v + middle + token * c->v_token + head * c->v_head, ROW);
            }
    }
    assert_memory_equal(after, pool, sizeof pool);
    void *all[] = {device_pool, device_k, device_v, device_source, device_first, device_second};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        test_device()->free(all[i]);
}

static void scatter_reads_any_stride(void **state)
{
    (void)state;
    static const int64_t strides[][4] = {
        {HEADS * ROW, ROW, HEADS * ROW, ROW},         /* dense */
        {9 * ROW, ROW, 9 * ROW, ROW},                 /* slices of a fused projection */
        {ROW, 6 * ROW, ROW, 6 * ROW},                 /* head-major */
        {-HEADS * ROW, ROW, HEADS * ROW, -ROW},       /* backwards */
        {0, 0, 0, 0},                                 /* one vector for all */
        {HEADS * ROW + 2, ROW, HEADS * ROW, ROW + 2}, /* addresses that allow narrow loads only */
        {HEADS * ROW, ROW, ROW, 6 * ROW},             /* K and V differ */
    };
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++)
        for (int mode = 0; mode < 8; mode++) {
            scatter_case c = {strides[i][0], strides[i][1], strides[i][2], strides[i][3],
                              mode & 1,      mode >> 1 & 1, mode >> 2 & 1};
            expect_scatter(&c);
        }
}

/* A fault record and claims on the device. */
static ckv_slot_check upload_check(void)
{
    static const int64_t claims[SLOTS];
    static const ckv_slot_fault none;
    return (ckv_slot_check){test_upload(&none, sizeof none), test_upload(claims, sizeof claims)};
}

/* The launch of a list with a fault at `entry`: refused by host twins, else run without the entry and reported. Claims
 * are released either way. */
static void expect_fault(ckv_slot_check check, ckv_status status, int kind, int list, int64_t entry, int64_t slot)
{
    if (test_kernels_refuse()) {
        char named[32];
        snprintf(named, sizeof named, "entry %" PRId64, entry);
        assert_int_equal(status, CKV_ERROR_INVALID);
        assert_non_null(strstr(ckv_last_error(), named));
    } else {
        ckv_slot_fault fault;
        assert_int_equal(status, CKV_OK);
        test_download(&fault, check.fault, sizeof fault);
        assert_int_equal(fault.kind, kind);
        assert_int_equal(fault.list, list);
        assert_int_equal(fault.entry, entry);
        assert_int_equal(fault.slot, slot);
    }
    int64_t claims[SLOTS], none[SLOTS] = {0};
    test_download(claims, check.claims, sizeof claims);
    assert_memory_equal(claims, none, sizeof none);
    test_device()->free(check.fault);
    test_device()->free(check.claims);
}

static ckv_scatter_kv_slots_params scatter_params(void *pool, const void *kv, int64_t entries,
                                                  const int64_t *destination, const int64_t *destination2)
{
    return (ckv_scatter_kv_slots_params){.k_plane = pool,
                                         .v_plane = (char *)pool + KV_STRIDE,
                                         .page_stride = PAGE_STRIDE,
                                         .head_stride = HEAD_STRIDE,
                                         .slot_stride = ROW,
                                         .tokens_per_page = PAGE,
                                         .num_slots = SLOTS,
                                         .kv_heads = HEADS,
                                         .row_bytes = ROW,
                                         .k = kv,
                                         .v = kv,
                                         .entries = entries,
                                         .destination = destination,
                                         .destination2 = destination2,
                                         .check = upload_check()};
}

static void scatter_finds_slots_outside_the_pool(void **state)
{
    (void)state;
    char pool[LAYER_STRIDE] = {0}, after[LAYER_STRIDE], kv[ROW * HEADS] = {0};
    const int64_t good[2] = {0, 1}, bad[][2] = {{0, SLOTS}, {-1, 5}, {0, INT64_MAX}};
    void *device_pool = test_upload(pool, sizeof pool), *device_kv = test_upload(kv, sizeof kv);
    void *device_good = test_upload(good, sizeof good);
    memset(pool, 1, sizeof pool); /* what a write outside its entry would change */
    assert_ok(test_device()->upload(device_pool, pool, sizeof pool, NULL));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        void *device_bad = test_upload(bad[i], sizeof bad[i]);
        int entry = bad[i][0] < 0 ? 0 : 1;
        ckv_scatter_kv_slots_params params = scatter_params(device_pool, device_kv, 2, device_good, device_bad);
        ckv_status status = test_device()->scatter_kv_slots(&params, NULL);
        expect_fault(params.check, status, CKV_SLOT_FAULT_OUTSIDE, 1, entry, bad[i][entry]);
        params = scatter_params(device_pool, device_kv, 2, device_bad, NULL);
        status = test_device()->scatter_kv_slots(&params, NULL);
        expect_fault(params.check, status, CKV_SLOT_FAULT_OUTSIDE, 0, entry, bad[i][entry]);
        test_device()->free(device_bad);
    }
    test_download(after, device_pool, sizeof after);
    static const int64_t written[] = {0, 1, 5}; /* by the entries without a fault, where the launch was not refused */
    for (size_t i = 0; !test_kernels_refuse() && i < sizeof written / sizeof *written; i++)
        for (int plane = 0; plane < 2; plane++)
            for (int head = 0; head < HEADS; head++)
                memset(pool_row(pool, 0, plane, head, written[i]), 0, ROW);
    assert_memory_equal(after, pool, sizeof pool);
    test_device()->free(device_pool);
    test_device()->free(device_kv);
    test_device()->free(device_good);
}

/* Two tokens for one slot are a fault, in one list or over both; the same token twice is not. */
static void scatter_finds_slots_written_twice(void **state)
{
    (void)state;
    char pool[LAYER_STRIDE] = {0}, kv[ROW * HEADS] = {0};
    const int64_t first[3] = {4, 5, 6}, again[3] = {7, 8, 4}, repeat[3] = {4, 5, 6}, sources[3] = {0, 1, 0};
    void *device_pool = test_upload(pool, sizeof pool), *device_kv = test_upload(kv, sizeof kv);
    int64_t *device_first = test_upload(first, sizeof first), *device_again = test_upload(again, sizeof again),
            *device_repeat = test_upload(repeat, sizeof repeat), *device_sources = test_upload(sources, sizeof sources);
    ckv_scatter_kv_slots_params params = scatter_params(device_pool, device_kv, 3, device_first, device_again);
    ckv_status status = test_device()->scatter_kv_slots(&params, NULL);
    expect_fault(params.check, status, CKV_SLOT_FAULT_TWICE, 1, 2, 4);
    params = scatter_params(device_pool, device_kv, 3, device_first, device_repeat);
    params.source_index = device_sources; /* entries 0 and 2 are the same token */
    assert_ok(test_device()->scatter_kv_slots(&params, NULL));
    ckv_slot_fault fault;
    test_download(&fault, params.check.fault, sizeof fault);
    assert_int_equal(fault.kind, CKV_SLOT_FAULT_NONE);
    void *all[] = {device_pool,   device_kv,      device_first,       device_again,
                   device_repeat, device_sources, params.check.fault, params.check.claims};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        test_device()->free(all[i]);
}

static ckv_copy_kv_slots_params copy_params(void *pool, int64_t entries, const int64_t *source,
                                            const int64_t *destination)
{
    return (ckv_copy_kv_slots_params){.pool = pool_view(pool),
                                      .tokens_per_page = PAGE,
                                      .layers = LAYERS,
                                      .kv_heads = HEADS,
                                      .row_bytes = ROW,
                                      .entries = entries,
                                      .source = source,
                                      .destination = destination};
}

static void copy_moves_all_layers_and_heads(void **state)
{
    (void)state;
    static const int64_t source[] = {0, 5, -1, 19, 5, 2, -1}, destination[] = {1, 6, 7, 18, 4, -1, -1};
    enum { ENTRIES = sizeof source / sizeof *source };
    ckv_random random = {ckv_test_seed()};
    char pool[POOL_BYTES], expected[POOL_BYTES], after[POOL_BYTES];
    fill_random(&random, pool, sizeof pool);
    memcpy(expected, pool, sizeof pool);
    for (int i = 0; i < ENTRIES; i++)
        for (int layer = 0; layer < LAYERS && source[i] >= 0 && destination[i] >= 0; layer++)
            for (int kv = 0; kv < 2; kv++)
                for (int head = 0; head < HEADS; head++)
                    memcpy(pool_row(expected, layer, kv, head, destination[i]),
                           pool_row(pool, layer, kv, head, source[i]), ROW);
    void *device_pool = test_upload(pool, sizeof pool);
    int64_t *from = test_upload(source, sizeof source), *to = test_upload(destination, sizeof destination);
    ckv_copy_kv_slots_params params = copy_params(device_pool, ENTRIES, from, to);
    assert_ok(test_device()->copy_kv_slots(&params, NULL));
    test_download(after, device_pool, sizeof after);
    assert_memory_equal(after, expected, sizeof after);
    params.entries = 0;
    assert_ok(test_device()->copy_kv_slots(&params, NULL));
    test_device()->free(device_pool);
    test_device()->free(from);
    test_device()->free(to);
}

/* More entries than a kernel looks at together, most of them unused, and vectors of every width. */
static void copy_moves_many_slots(void **state)
{
    (void)state;
    enum { MANY_PAGES = 512, ENTRIES = 1500, MANY_LAYERS = 3, MANY_HEADS = 2 };
    static const int64_t row_bytes[] = {1, 6, 4, 24, 48, 512};
    static int64_t source[ENTRIES], destination[ENTRIES];
    ckv_random random = {ckv_test_seed()};
    for (size_t r = 0; r < sizeof row_bytes / sizeof *row_bytes; r++) {
        ckv_pool_view view = {.slot_stride = row_bytes[r], .head_stride = PAGE * row_bytes[r]};
        view.kv_stride = MANY_HEADS * view.head_stride;
        view.page_stride = 2 * view.kv_stride;
        view.layer_stride = (MANY_PAGES + 1) * view.page_stride;
        view.total_pages = view.guard_page = MANY_PAGES;
        size_t bytes = (size_t)(MANY_LAYERS * view.layer_stride);
        char *pool = malloc(bytes), *after = malloc(bytes);
        fill_random(&random, pool, bytes);
        view.base = test_upload(pool, bytes);
        for (int64_t i = 0; i < ENTRIES; i++) { /* even slots to odd ones */
            int used = i % 3 == 1 && i < MANY_PAGES * PAGE / 2;
            source[i] = used ? 2 * ckv_random_range(&random, 0, MANY_PAGES * PAGE / 2 - 1) : -1;
            destination[i] = used ? 2 * i + 1 : i % 2 ? 1 : -1;
            for (int64_t vector = 0; used && vector < MANY_LAYERS * 2 * MANY_HEADS; vector++) {
                char *plane =
                    pool + vector / (2 * MANY_HEADS) * view.layer_stride + vector % (2 * MANY_HEADS) * view.head_stride;
                memcpy(plane + destination[i] / PAGE * view.page_stride + destination[i] % PAGE * view.slot_stride,
                       plane + source[i] / PAGE * view.page_stride + source[i] % PAGE * view.slot_stride,
                       (size_t)row_bytes[r]);
            }
        }
        int64_t *from = test_upload(source, sizeof source), *to = test_upload(destination, sizeof destination);
        ckv_copy_kv_slots_params params = {.pool = view,
                                           .tokens_per_page = PAGE,
                                           .layers = MANY_LAYERS,
                                           .kv_heads = MANY_HEADS,
                                           .row_bytes = row_bytes[r],
                                           .entries = ENTRIES,
                                           .source = from,
                                           .destination = to};
        assert_ok(test_device()->copy_kv_slots(&params, NULL));
        test_download(after, view.base, bytes);
        assert_memory_equal(after, pool, bytes);
        test_device()->free(view.base);
        test_device()->free(from);
        test_device()->free(to);
        free(pool);
        free(after);
    }
}

static void copy_finds_slots_outside_the_pool(void **state)
{
    (void)state;
    char pool[POOL_BYTES] = {0}, after[POOL_BYTES];
    const int64_t inside[] = {-1, 1}, outside[] = {2, SLOTS}, twice[] = {3, 3}, sources[] = {0, 1};
    void *device_pool = test_upload(pool, sizeof pool);
    int64_t *device_inside = test_upload(inside, sizeof inside), *device_outside = test_upload(outside, sizeof outside),
            *device_twice = test_upload(twice, sizeof twice), *device_sources = test_upload(sources, sizeof sources);
    ckv_copy_kv_slots_params params = copy_params(device_pool, 2, device_inside, device_outside);
    params.check = upload_check();
    ckv_status status = test_device()->copy_kv_slots(&params, NULL);
    expect_fault(params.check, status, CKV_SLOT_FAULT_OUTSIDE, 0, 1, SLOTS);
    params = copy_params(device_pool, 2, device_outside, device_inside);
    params.check = upload_check();
    status = test_device()->copy_kv_slots(&params, NULL);
    expect_fault(params.check, status, CKV_SLOT_FAULT_OUTSIDE, 2, 1, SLOTS);
    test_download(after, device_pool, sizeof after);
    assert_memory_equal(after, pool, sizeof pool);
    params = copy_params(device_pool, 2, device_sources, device_twice);
    params.check = upload_check();
    status = test_device()->copy_kv_slots(&params, NULL);
    if (test_kernels_refuse())
        expect_fault(params.check, status, CKV_SLOT_FAULT_TWICE, 0, 1, 3);
    else { /* which of the two entries came second is the device's choice */
        ckv_slot_fault fault;
        test_download(&fault, params.check.fault, sizeof fault);
        expect_fault(params.check, status, CKV_SLOT_FAULT_TWICE, 0, fault.entry, 3);
    }
    void *all[] = {device_pool, device_inside, device_outside, device_twice, device_sources};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        test_device()->free(all[i]);
}

/* Packing then unpacking with other strides moves every vector where plan arithmetic says. */
static void exchange_heads_packs_and_unpacks(void **state)
{
    (void)state;
    enum { TOKENS = 5, ALL_HEADS = 6, RANKS = 3, MINE = ALL_HEADS / RANKS, BYTES = TOKENS * ALL_HEADS * ROW };
    ckv_random random = {ckv_test_seed()};
    char tensor[BYTES], packed[BYTES], back[BYTES];
    fill_random(&random, tensor, sizeof tensor);
    char *device_tensor = test_upload(tensor, sizeof tensor), *device_packed = test_upload(packed, sizeof packed),
         *device_back = test_upload(tensor, sizeof tensor);
    ckv_exchange_heads_params params = {.pack = 1, .chunks = RANKS, .num_tensors = 1};
    params.tensors[0] = (ckv_exchange_tensor){.tensor = device_tensor,
                                              .token_stride_bytes = ALL_HEADS * ROW,
                                              .head_stride_bytes = ROW,
                                              .packed = device_packed,
                                              .chunk_stride_bytes = TOKENS * MINE * ROW,
                                              .chunk_tokens = TOKENS,
                                              .chunk_heads = MINE,
                                              .heads = ALL_HEADS,
                                              .row_bytes = ROW};
    assert_ok(test_device()->exchange_heads(&params, NULL));
    test_download(packed, device_packed, sizeof packed);
    for (int rank = 0; rank < RANKS; rank++)
        for (int token = 0; token < TOKENS; token++)
            for (int head = 0; head < MINE; head++)
                assert_memory_equal(packed + ((rank * TOKENS + token) * MINE + head) * ROW,
                                    tensor + (token * ALL_HEADS + rank * MINE + head) * ROW, ROW);
    params.pack = 0;
    params.tensors[0].tensor = device_back; /* head-major this time */
    params.tensors[0].token_stride_bytes = ROW;
    params.tensors[0].head_stride_bytes = TOKENS * ROW;
    assert_ok(test_device()->exchange_heads(&params, NULL));
    test_download(back, device_back, sizeof back);
    for (int token = 0; token < TOKENS; token++)
        for (int head = 0; head < ALL_HEADS; head++)
            assert_memory_equal(back + (head * TOKENS + token) * ROW, tensor + (token * ALL_HEADS + head) * ROW, ROW);
    test_device()->free(device_tensor);
    test_device()->free(device_packed);
    test_device()->free(device_back);
}

/* Only V, only of the last page, only past the keys; a row that fills its page has no tail. */
static void zero_row_tails_clears_what_follows_the_keys(void **state)
{
    (void)state;
    enum { BLOCKS = 3, ROW_PAGES = 3 };
    static const int32_t rows[BLOCKS * ROW_PAGES] = {2, 4, PAGES, 1, PAGES, PAGES, 0, 3, PAGES};
    static const int32_t keys[BLOCKS] = {PAGE + 1, PAGE, 2 * PAGE - 1}; /* tails: page 4 from 1, none, page 3 from 3 */
    ckv_random random = {ckv_test_seed()};
    char pool[LAYER_STRIDE], expected[LAYER_STRIDE], after[LAYER_STRIDE];
    fill_random(&random, pool, sizeof pool);
    memcpy(expected, pool, sizeof pool);
    for (int head = 0; head < HEADS; head++) {
        for (int64_t slot = 4 * PAGE + 1; slot < 5 * PAGE; slot++)
            memset(pool_row(expected, 0, 1, head, slot), 0, ROW);
        memset(pool_row(expected, 0, 1, head, 4 * PAGE - 1), 0, ROW);
    }
    char *device_pool = test_upload(pool, sizeof pool);
    int32_t *device_rows = test_upload(rows, sizeof rows), *device_keys = test_upload(keys, sizeof keys);
    ckv_zero_row_tails_params params = {.v_plane = device_pool + KV_STRIDE,
                                        .page_stride = PAGE_STRIDE,
                                        .head_stride = HEAD_STRIDE,
                                        .slot_stride = ROW,
                                        .tokens_per_page = PAGE,
                                        .kv_heads = HEADS,
                                        .row_bytes = ROW,
                                        .num_blocks = BLOCKS,
                                        .row_pages = ROW_PAGES,
                                        .rows = device_rows,
                                        .seq_len_kv = device_keys};
    assert_ok(test_device()->zero_row_tails(&params, NULL));
    test_download(after, device_pool, sizeof after);
    assert_memory_equal(after, expected, sizeof after);
    params.num_blocks = 0;
    assert_ok(test_device()->zero_row_tails(&params, NULL));
    test_device()->free(device_pool);
    test_device()->free(device_rows);
    test_device()->free(device_keys);
}

static const ckv_test_case cases[] = {
    CKV_CASE(rotate_rows_like_roll),
    CKV_CASE(rotate_rows_extreme_shifts),
    CKV_CASE(rotate_rows_more_rows_than_a_grid_dimension),
    CKV_CASE(rotate_rows_long_rows),
    CKV_CASE(rotate_rows_empty_shapes),
    CKV_CASE(rotate_rows_bad_arguments),
    CKV_CASE(scatter_reads_any_stride),
    CKV_CASE(scatter_finds_slots_outside_the_pool),
    CKV_CASE(scatter_finds_slots_written_twice),
    CKV_CASE(copy_moves_all_layers_and_heads),
    CKV_CASE(copy_moves_many_slots),
    CKV_CASE(copy_finds_slots_outside_the_pool),
    CKV_CASE(exchange_heads_packs_and_unpacks),
    CKV_CASE(zero_row_tails_clears_what_follows_the_keys),
};

CKV_TEST_MAIN("kernels", cases)
