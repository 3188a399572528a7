/* SPDX-License-Identifier: Apache-2.0 */
/* What the cudnn backend says it takes against what cuDNN finds engines for, on described devices: no GPU. CTest puts a
 * stub of the driver in its way, which is all cuDNN wants here. */
#include "tests/support/case.h"

#ifndef CKV_HAVE_CUDNN
#define NO_CUDNN() ckv_test_skip("this build has no cuDNN")
static void accepted_shapes_have_engines(void **state)
{
    (void)state;
    NO_CUDNN();
}
static void shapes_of_real_models_run_on_fast_engines(void **state)
{
    (void)state;
    NO_CUDNN();
}
static void refusals_say_why(void **state)
{
    (void)state;
    NO_CUDNN();
}
static void what_cudnn_refuses_is_refused(void **state)
{
    (void)state;
    NO_CUDNN();
}
#else

#include "lib/attention/cudnn_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct device_facts {
    int architecture;
    int multiprocessors;
    int shared_memory_bytes; /* of a block that asks for it */
    int l2_bytes;
    const char *name;
} device_facts;

static const device_facts devices[] = {
    {900, 132, 232448, 62914560, "H200"},
    {1000, 148, 232448, 132644864, "B200"},
};
enum { NUM_DEVICES = sizeof devices / sizeof devices[0] };

/* The keys cuDNN reads; flags are numbers. */
static void describe(const device_facts *device, char *json, size_t bytes)
{
    snprintf(json, bytes,
             "{\"cudnnVersion\":%zu,\"deviceVer\":%d,\"driverVer\":13000,\"cudaDeviceId\":0,\"deviceName\":\"%s\","
             "\"totalGlobalMem\":150754820096,\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
             "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
             "\"maxSharedMemoryPerBlockOptin\":%d,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
             "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,"
             "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
             "\"l2CacheSize\":%d}",
             cudnnGetVersion(), device->architecture, device->name, device->multiprocessors,
             device->shared_memory_bytes, device->l2_bytes);
}

/* The benchmark's geometry; cases change what they test. */
static ckv_cudnn_shape model_shape(void)
{
    return (ckv_cudnn_shape){.dtype = CKV_BF16,
                             .num_blocks = 1,
                             .block_size = 1576,
                             .q_heads = 32,
                             .kv_heads = 8,
                             .head_dim = 128,
                             .tokens_per_page = 32,
                             .row_pages = 1251};
}

/* Strides of a dense pool, of a dense out and, with `packed`, of q inside a fused projection. */
static void complete(ckv_cudnn_shape *s, int packed)
{
    s->pool_pages = s->num_blocks * s->row_pages + 1;
    s->slot_stride = s->head_dim;
    s->head_stride = s->tokens_per_page * s->slot_stride;
    s->page_stride = 2 * s->kv_heads * s->head_stride;
    s->q_head_stride = s->out_head_stride = s->head_dim;
    s->out_token_stride = s->q_heads * s->head_dim;
    s->q_token_stride = s->out_token_stride + (packed ? 2 * s->kv_heads * s->head_dim : 0);
}

/* Engines of the shape, the first one's index in *first_out. */
static int engines_for(const ckv_cudnn_shape *shape, const device_facts *device, int64_t *first_out)
{
    char json[1024];
    describe(device, json, sizeof json);
    ckv_cudnn_bag bag = {.count = 0};
    ckv_cudnn_engines engines = {.count = 0};
    ckv_status status = ckv_cudnn_find_engines(shape, 0, json, &bag, &engines);
    *first_out = status == CKV_OK ? engines.global_index[0] : -1;
    ckv_cudnn_bag_empty(&bag);
    return status == CKV_OK ? engines.count : 0;
}

static void expect_engine(const ckv_cudnn_shape *shape, const device_facts *device)
{
    int64_t first;
    assert_ok(ckv_cudnn_check_shape(shape, device->architecture));
    if (engines_for(shape, device, &first) == 0)
        fail_msg("accepted on %s, but %s", device->name, ckv_last_error());
}

static void walk_shapes(const device_facts *device)
{
    static const int64_t dims[] = {8, 16, 40, 64, 72, 96, 120, 128, 136, 192, 256};
    static const int64_t heads[][2] = {{32, 8}, {32, 32}, {32, 1}, {30, 10}, {5, 5}, {12, 12}, {4, 1}, {1, 1}};
    static const int64_t blocks[][2] = {{1, 1576}, {4, 394}, {1, 1}, {3, 2}, {2, 11}, {1, 8192}};
    for (int64_t page = 1; page <= 1024; page *= 2) {
        for (int variant = 0; variant < 4; variant++) {
            ckv_cudnn_shape shape = model_shape();
            shape.tokens_per_page = page;
            shape.row_pages = 39912 / page + 3;
            shape.dtype = variant % 2 ? CKV_FP16 : CKV_BF16;
            shape.want_lse = variant / 2;
            complete(&shape, variant % 2);
            expect_engine(&shape, device);
        }
    }
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
        for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++) {
            for (size_t b = (d + h) % 3; b < sizeof blocks / sizeof blocks[0]; b += 3) { /* each costs 20 ms */
                ckv_cudnn_shape shape = model_shape();
                shape.head_dim = dims[d];
                shape.q_heads = heads[h][0], shape.kv_heads = heads[h][1];
                shape.num_blocks = blocks[b][0], shape.block_size = blocks[b][1];
                shape.want_lse = (int64_t)(h + b) % 2;
                complete(&shape, (int)(d + b) % 2);
                expect_engine(&shape, device);
            }
        }
    }
}

static void accepted_shapes_have_engines(void **state)
{
    (void)state;
    assert_ok(ckv_cudnn_check_version(cudnnGetVersion()));
    for (int i = 0; i < NUM_DEVICES; i++)
        walk_shapes(&devices[i]);
}

/* Engine 8 is cuDNN's general one; 9 and 10 are those written for these devices. */
static void shapes_of_real_models_run_on_fast_engines(void **state)
{
    (void)state;
    static const int64_t fast[] = {9, 10};
    static const int64_t heads[][2] = {{32, 8}, {16, 4}, {8, 2}, {4, 1}, {12, 12}};
    for (int i = 0; i < NUM_DEVICES; i++) {
        for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++) {
            for (int64_t page = 16; page <= 128; page *= 2) {
                ckv_cudnn_shape shape = model_shape();
                shape.q_heads = heads[h][0], shape.kv_heads = heads[h][1];
                shape.tokens_per_page = page;
                shape.row_pages = 39912 / page + 3;
                complete(&shape, 1);
                int64_t first;
                assert_true(engines_for(&shape, &devices[i], &first) > 0);
                assert_int_equal(first, fast[i]);
            }
        }
    }
}

static void expect_refusal(const ckv_cudnn_shape *shape, int architecture, const char *says)
{
    assert_status(ckv_cudnn_check_shape(shape, architecture), CKV_ERROR_UNSUPPORTED);
    if (strstr(ckv_last_error(), says) == NULL)
        fail_msg("does not say '%s': %s", says, ckv_last_error());
}

static void refusals_say_why(void **state)
{
    (void)state;
    const ckv_cudnn_shape good = model_shape();
    ckv_cudnn_shape shape = good;
    shape.dtype = CKV_FP32;
    expect_refusal(&shape, 900, "not fp32");
    shape = good, shape.head_dim = 100;
    expect_refusal(&shape, 900, "not 100");
    shape = good, shape.head_dim = 264;
    expect_refusal(&shape, 900, "not 264");
    shape = good, shape.tokens_per_page = 48;
    expect_refusal(&shape, 900, "not 48");
    shape = good, shape.tokens_per_page = 2048;
    expect_refusal(&shape, 900, "not 2048");
    shape = good, shape.q_heads = 12;
    expect_refusal(&shape, 900, "12 of 8");
    expect_refusal(&good, 860, "8.6");
    expect_refusal(&good, 1200, "12.0");
    assert_status(ckv_cudnn_check_version(91400), CKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(ckv_last_error(), "9.15"));
    assert_non_null(strstr(ckv_last_error(), "9.14.0"));
    assert_ok(ckv_cudnn_check_version(91500));
}

/* The other direction: no engine, then no promise. */
static void what_cudnn_refuses_is_refused(void **state)
{
    (void)state;
    static const int64_t dims[] = {4, 12, 100, 124}, pages[] = {3, 24, 48, 96};
    for (int i = 0; i < NUM_DEVICES; i++) {
        for (int j = 0; j < 8; j++) {
            ckv_cudnn_shape shape = model_shape();
            if (j < 4)
                shape.head_dim = dims[j];
            else
                shape.tokens_per_page = pages[j - 4];
            complete(&shape, 0);
            int64_t first;
            assert_int_equal(engines_for(&shape, &devices[i], &first), 0);
            assert_status(ckv_cudnn_check_shape(&shape, devices[i].architecture), CKV_ERROR_UNSUPPORTED);
        }
    }
}
#endif

static const ckv_test_case cases[] = {
    CKV_CASE(accepted_shapes_have_engines),
    CKV_CASE(shapes_of_real_models_run_on_fast_engines),
    CKV_CASE(refusals_say_why),
    CKV_CASE(what_cudnn_refuses_is_refused),
};
CKV_TEST_MAIN("cudnn_support", cases)
