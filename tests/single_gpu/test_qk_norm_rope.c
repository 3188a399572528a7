/* SPDX-License-Identifier: Apache-2.0 */
/* RMS norm and rotary embedding against their definitions in double; a rank's slice against the whole. */
#include "tests/support/device_memory.h"
#include "tests/support/random.h"

#include <ckv/qk_norm_rope.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 7 };

typedef struct projection {
    ckv_qk_norm_rope_params params; /* with device pointers */
    int64_t heads;                  /* of a row, V and padding included */
    int64_t elements;
    float *values; /* before, as the dtype holds them */
    float *result;
    float *q_weight, *k_weight, *cosines, *sines; /* host */
} projection;

static float *random_floats(ckv_random *random, int64_t count, float scale)
{
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = scale * ckv_random_float(random);
    return values;
}

static void make(projection *p, ckv_dtype dtype, int64_t q_heads, int64_t kv_heads, int64_t head_dim,
                 ckv_norm_span norm, ckv_rope_pairs pairs)
{
    ckv_random random = {ckv_test_seed()};
    p->heads = q_heads + 2 * kv_heads + 1;
    p->elements = TOKENS * p->heads * head_dim;
    int64_t weights = norm == CKV_NORM_ALL ? q_heads * head_dim : head_dim, half = head_dim / 2;
    p->q_weight = random_floats(&random, weights, 2);
    p->k_weight = random_floats(&random, weights, 2);
    p->cosines = random_floats(&random, TOKENS * half, 1);
    p->sines = random_floats(&random, TOKENS * half, 1);
    p->values = random_floats(&random, p->elements, 3);
    p->result = malloc((size_t)p->elements * sizeof *p->result);
    p->params = (ckv_qk_norm_rope_params){.token_stride = p->heads * head_dim,
                                          .head_stride = head_dim,
                                          .tokens = TOKENS,
                                          .q_heads = q_heads,
                                          .kv_heads = kv_heads,
                                          .total_q_heads = q_heads,
                                          .total_kv_heads = kv_heads,
                                          .head_dim = head_dim,
                                          .dtype = dtype,
                                          .norm = norm,
                                          .pairs = pairs,
                                          .epsilon = 1e-5f};
}

/* Run on the device; values become what the dtype holds, result what the kernel left. */
static void run(projection *p)
{
    const ckv_device *device = test_device();
    size_t bytes = (size_t)p->elements * ckv_dtype_bytes(p->params.dtype);
    int64_t weights = p->params.norm == CKV_NORM_ALL ? p->params.q_heads * p->params.head_dim : p->params.head_dim;
    int64_t angles = TOKENS * p->params.head_dim / 2;
    void *stored = malloc(bytes);
    ckv_convert_from_float(p->params.dtype, p->values, (size_t)p->elements, stored);
    ckv_convert_to_float(p->params.dtype, stored, (size_t)p->elements, p->values);
    void *moved[] = {test_upload(stored, bytes), test_upload(p->q_weight, (size_t)weights * sizeof(float)),
                     test_upload(p->k_weight, (size_t)weights * sizeof(float)),
                     test_upload(p->cosines, (size_t)angles * sizeof(float)),
                     test_upload(p->sines, (size_t)angles * sizeof(float))};
    p->params.qkv = moved[0];
    p->params.q_weight = moved[1];
    p->params.k_weight = moved[2];
    p->params.cosines = moved[3];
    p->params.sines = moved[4];
    assert_ok(ckv_qk_norm_rope(device, &p->params, NULL));
    test_download(stored, moved[0], bytes);
    ckv_convert_to_float(p->params.dtype, stored, (size_t)p->elements, p->result);
    for (size_t i = 0; i < sizeof moved / sizeof *moved; i++)
        device->free(moved[i]);
    free(stored);
}

static void drop(projection *p)
{
    float *all[] = {p->values, p->result, p->q_weight, p->k_weight, p->cosines, p->sines};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* Element i of a head after norm and rotation, by definition. */
static double expected(const projection *p, int64_t token, int64_t head, int64_t i)
{
    const ckv_qk_norm_rope_params *params = &p->params;
    int is_k = head >= params->q_heads;
    int64_t dim = params->head_dim, first = is_k ? params->q_heads : 0,
            heads = is_k ? params->kv_heads : params->q_heads;
    const float *row = p->values + token * params->token_stride;
    int all = params->norm == CKV_NORM_ALL;
    double sum = 0;
    for (int64_t h = all ? first : head; h < (all ? first + heads : head + 1); h++)
        for (int64_t d = 0; d < dim; d++)
            sum += (double)row[h * dim + d] * (double)row[h * dim + d];
    double factor = 1 / sqrt(sum / (double)(all ? heads * dim : dim) + (double)params->epsilon);
    int halves = params->pairs == CKV_ROPE_HALVES;
    int64_t pair = halves ? i % (dim / 2) : i / 2;
    int64_t a = halves ? pair : 2 * pair, b = halves ? pair + dim / 2 : 2 * pair + 1;
    const float *weight = (is_k ? p->k_weight : p->q_weight) + (all ? (head - first) * dim : 0);
    double x = (double)row[head * dim + a] * factor * (double)weight[a];
    double y = (double)row[head * dim + b] * factor * (double)weight[b];
    double c = (double)p->cosines[token * dim / 2 + pair], s = (double)p->sines[token * dim / 2 + pair];
    return i == a ? x * c - y * s : y * c + x * s;
}

static void expect_definition(projection *p)
{
    static const double unit[] = {[CKV_FP32] = 0x1p-18, [CKV_BF16] = 0x1p-8, [CKV_FP16] = 0x1p-10};
    run(p);
    int64_t dim = p->params.head_dim;
    for (int64_t token = 0; token < TOKENS; token++)
        for (int64_t head = 0; head < p->heads; head++)
            for (int64_t i = 0; i < dim; i++) {
                int64_t at = token * p->params.token_stride + head * dim + i;
                int untouched = head >= p->params.q_heads + p->params.kv_heads;
                double wanted = untouched ? (double)p->values[at] : expected(p, token, head, i);
                double tolerance = untouched ? 0 : unit[p->params.dtype] * (fabs(wanted) + 1e-3 + 1);
                if (!(fabs((double)p->result[at] - wanted) <= tolerance))
                    fail_msg("token %d, head %d, element %d: %.9g instead of %.9g", (int)token, (int)head, (int)i,
                             (double)p->result[at], wanted);
            }
}

static void matches_the_definition(void **state)
{
    (void)state;
    static const int64_t dims[] = {2, 6, 64, 128, 1024};
    for (ckv_dtype dtype = CKV_FP32; dtype <= CKV_FP16; dtype++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (int mode = 0; mode < 4; mode++) {
                projection p;
                make(&p, dtype, 5, 2, dims[d], mode & 1 ? CKV_NORM_ALL : CKV_NORM_HEAD,
                     mode & 2 ? CKV_ROPE_INTERLEAVED : CKV_ROPE_HALVES);
                expect_definition(&p);
                drop(&p);
            }
}

static void missing_weights_are_ones(void **state)
{
    (void)state;
    projection with, without;
    make(&with, CKV_FP32, 4, 2, 16, CKV_NORM_HEAD, CKV_ROPE_HALVES);
    for (int i = 0; i < 16; i++)
        with.q_weight[i] = with.k_weight[i] = 1;
    run(&with);
    make(&without, CKV_FP32, 4, 2, 16, CKV_NORM_HEAD, CKV_ROPE_HALVES);
    void *qkv = test_upload(without.values, (size_t)without.elements * sizeof(float));
    void *cosines = test_upload(without.cosines, TOKENS * 8 * sizeof(float));
    void *sines = test_upload(without.sines, TOKENS * 8 * sizeof(float));
    without.params.qkv = qkv;
    without.params.cosines = cosines;
    without.params.sines = sines;
    assert_ok(ckv_qk_norm_rope(test_device(), &without.params, NULL));
    test_download(without.result, qkv, (size_t)without.elements * sizeof(float));
    assert_memory_equal(without.result, with.result, (size_t)with.elements * sizeof(float));
    test_device()->free(qkv);
    test_device()->free(cosines);
    test_device()->free(sines);
    drop(&with);
    drop(&without);
}

/* Heads [r*q, ...) of the whole, run with rank-local counts, are bit for bit the slice of the whole result. */
static void slice_of_a_rank_matches_the_whole(void **state)
{
    (void)state;
    for (int64_t ranks = 2; ranks <= 4; ranks *= 2) {
        projection whole, slice;
        make(&whole, CKV_BF16, 8, 4, 32, CKV_NORM_HEAD, CKV_ROPE_HALVES);
        run(&whole);
        int64_t q = 8 / ranks, kv = 4 / ranks, dim = 32;
        for (int64_t rank = 0; rank < ranks; rank++) {
            make(&slice, CKV_BF16, q, kv, dim, CKV_NORM_HEAD, CKV_ROPE_HALVES);
            slice.params.total_q_heads = 8;
            slice.params.total_kv_heads = 4;
            memcpy(slice.q_weight, whole.q_weight, (size_t)dim * sizeof(float));
            memcpy(slice.k_weight, whole.k_weight, (size_t)dim * sizeof(float));
            memcpy(slice.cosines, whole.cosines, TOKENS * (size_t)dim / 2 * sizeof(float));
            memcpy(slice.sines, whole.sines, TOKENS * (size_t)dim / 2 * sizeof(float));
            for (int64_t token = 0; token < TOKENS; token++)
                for (int64_t head = 0; head < q + kv; head++) {
                    int64_t from = head < q ? rank * q + head : 8 + rank * kv + head - q;
                    memcpy(slice.values + token * slice.params.token_stride + head * dim,
                           whole.values + token * whole.params.token_stride + from * dim, (size_t)dim * sizeof(float));
                }
            run(&slice);
            for (int64_t token = 0; token < TOKENS; token++)
                for (int64_t head = 0; head < q + kv; head++) {
                    int64_t from = head < q ? rank * q + head : 8 + rank * kv + head - q;
                    assert_memory_equal(slice.result + token * slice.params.token_stride + head * dim,
                                        whole.result + token * whole.params.token_stride + from * dim,
                                        (size_t)dim * sizeof(float));
                }
            drop(&slice);
        }
        drop(&whole);
    }
}

static void refuses(void **state)
{
    (void)state;
    projection p;
    make(&p, CKV_FP32, 4, 2, 16, CKV_NORM_ALL, CKV_ROPE_HALVES);
    p.params.qkv = p.values;
    p.params.cosines = p.cosines;
    p.params.sines = p.sines;
    const ckv_qk_norm_rope_params good = p.params;
    p.params.total_q_heads = 8; /* a norm over all heads with fewer than all */
    assert_status(ckv_qk_norm_rope(test_device(), &p.params, NULL), CKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(ckv_last_error(), "4 of 8"));
    const struct {
        size_t offset;
        int64_t value;
    } bad[] = {
        {offsetof(ckv_qk_norm_rope_params, head_dim), 15},      {offsetof(ckv_qk_norm_rope_params, head_dim), 0},
        {offsetof(ckv_qk_norm_rope_params, head_dim), 1026},    {offsetof(ckv_qk_norm_rope_params, tokens), -1},
        {offsetof(ckv_qk_norm_rope_params, q_heads), -1},       {offsetof(ckv_qk_norm_rope_params, total_kv_heads), 1},
        {offsetof(ckv_qk_norm_rope_params, tokens), INT64_MAX}, {offsetof(ckv_qk_norm_rope_params, qkv), 0},
        {offsetof(ckv_qk_norm_rope_params, cosines), 0},        {offsetof(ckv_qk_norm_rope_params, sines), 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p.params = good;
        memcpy((char *)&p.params + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        assert_status(ckv_qk_norm_rope(test_device(), &p.params, NULL), CKV_ERROR_INVALID);
    }
    p.params = good;
    p.params.epsilon = -1;
    assert_status(ckv_qk_norm_rope(test_device(), &p.params, NULL), CKV_ERROR_INVALID);
    p.params = good;
    p.params.dtype = CKV_FP8_E4M3;
    assert_status(ckv_qk_norm_rope(test_device(), &p.params, NULL), CKV_ERROR_INVALID);
    p.params.dtype = (ckv_dtype)9;
    assert_status(ckv_qk_norm_rope(test_device(), &p.params, NULL), CKV_ERROR_INVALID);
    p.params = good;
    p.params.tokens = 0; /* nothing to do, nothing touched */
    assert_ok(ckv_qk_norm_rope(test_device(), &p.params, NULL));
    drop(&p);
}

static const ckv_test_case cases[] = {
    CKV_CASE(matches_the_definition),
    CKV_CASE(missing_weights_are_ones),
    CKV_CASE(slice_of_a_rank_matches_the_whole),
    CKV_CASE(refuses),
};

CKV_TEST_MAIN("qk_norm_rope", cases)
