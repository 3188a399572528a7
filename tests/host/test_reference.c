/* SPDX-License-Identifier: Apache-2.0 */
/* The exact-window reference, against arithmetic by hand and against a mask written out here. */
#include "tests/support/case.h"

#include "tests/support/random_data.h"

#include <ckv/reference.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ckv_reference *new_reference(int64_t q_heads, int64_t kv_heads, int64_t head_dim, ckv_dtype dtype, double scale)
{
    ckv_reference_config config = ckv_reference_config_default();
    config.layers = 2;
    config.q_heads = q_heads;
    config.kv_heads = kv_heads;
    config.head_dim = head_dim;
    config.dtype = dtype;
    config.scale = scale;
    ckv_reference *reference = NULL;
    assert_ok(ckv_reference_create(&config, &reference));
    return reference;
}

/* One head, dense fp32, layer 0. */
static ckv_reference_forward dense_forward(int64_t seq_len, int64_t head_dim, const float *q, const float *k,
                                           const float *v, double *out)
{
    ckv_reference_forward forward = ckv_reference_forward_default();
    forward.seq_len = seq_len;
    forward.q = q;
    forward.q_token_stride = head_dim;
    forward.q_head_stride = head_dim;
    forward.kv = ckv_kv_dense(k, v, 1, head_dim);
    forward.out = out;
    return forward;
}

static void write_dense(ckv_reference *reference, int64_t first_id, int64_t tokens, int64_t head_dim, const float *k,
                        const float *v)
{
    ckv_kv source = ckv_kv_dense(k, v, 1, head_dim);
    assert_ok(ckv_reference_write(reference, 0, first_id, tokens, &source));
}

/* Pin 1, window 1, three committed tokens, one staged: ids 0, 2, 3 with weights 1, 2, 3. */
static void by_hand(void **state)
{
    (void)state;
    ckv_reference *reference = new_reference(1, 1, 2, CKV_FP32, 1);
    assert_ok(ckv_reference_open(reference, 1, 1));
    const float k[] = {0, 9, 50, 50, logf(2), 9};
    const float v[] = {6, 0, 1e6f, 1e6f, 0, 6};
    write_dense(reference, 0, 3, 2, k, v);
    assert_ok(ckv_reference_commit(reference, 3));

    const float q[] = {1, 0}, own_k[] = {logf(3), -9}, own_v[] = {12, 24};
    double out[2], lse;
    ckv_reference_forward forward = dense_forward(1, 2, q, own_k, own_v, out);
    forward.lse = &lse;
    assert_ok(ckv_reference_run(reference, &forward));
    assert_near(out[0], (1 * 6 + 2 * 0 + 3 * 12) / 6.0, 1e-6);
    assert_near(out[1], (1 * 0 + 2 * 6 + 3 * 24) / 6.0, 1e-6);
    assert_near(lse, log(6), 1e-6);

    assert_ok(ckv_reference_zero_values(reference, 0, 2, 1));
    assert_ok(ckv_reference_run(reference, &forward));
    assert_near(out[1], (3 * 24) / 6.0, 1e-6);
    assert_near(lse, log(6), 1e-6);
    ckv_reference_destroy(&reference);
}

/* The definition, one token at a time. */
static int sees(int64_t committed, int64_t pin, int64_t window, int64_t block_size, int64_t row, int64_t id)
{
    int64_t start = committed + row / block_size * block_size;
    if (id >= start)
        return id < start + block_size;
    return (id < pin && id < committed) || id >= start - window;
}

/* q = 0 and one-hot V: every visible key weighs 1/n, so the output is the set of visible keys. */
static void visible_keys_are_exactly_the_window(void **state)
{
    (void)state;
    enum { DIM = 48, BLOCK = 3, STAGED = 6 };
    static float zeros[DIM * DIM], one_hot[DIM * DIM];
    static double out[STAGED * DIM];
    for (int64_t i = 0; i < DIM; i++)
        one_hot[i * DIM + i] = 1;
    ckv_reference *reference = new_reference(1, 1, DIM, CKV_FP32, 0);
    for (int64_t pin = 0; pin <= 15; pin += 5) {
        for (int64_t window = 0; window <= 20; window += 4) {
            assert_ok(ckv_reference_open(reference, pin, window));
            for (int64_t committed = 0; committed + STAGED <= DIM; committed += STAGED) {
                ckv_reference_forward forward =
                    dense_forward(STAGED, DIM, zeros, zeros, one_hot + committed * DIM, out);
                forward.causal_block_size = BLOCK;
                assert_ok(ckv_reference_run(reference, &forward));
                for (int64_t row = 0; row < STAGED; row++) {
                    int64_t visible = 0;
                    for (int64_t id = 0; id < DIM; id++)
                        visible += sees(committed, pin, window, BLOCK, row, id);
                    for (int64_t id = 0; id < DIM; id++) {
                        double expected = sees(committed, pin, window, BLOCK, row, id) ? 1.0 / (double)visible : 0;
                        assert_near(out[row * DIM + id], expected, 1e-12);
                    }
                }
                assert_ok(ckv_reference_commit(reference, STAGED));
            }
        }
    }
    ckv_reference_destroy(&reference);
}

/* A rollout with everything random; keeps all K/V for the brute-force mask. */
typedef struct rollout {
    ckv_dtype dtype;
    int64_t q_heads, kv_heads, head_dim, pin, window, block, blocks;
    int64_t committed;
    void *k, *v; /* [tokens, kv_heads, head_dim] of every id */
} rollout;

static void brute_force_row(const rollout *r, const void *q, int64_t row, int64_t head, double *out, double *lse)
{
    int64_t kv_head = head / (r->q_heads / r->kv_heads), dim = r->head_dim;
    double sum = 0;
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int64_t id = 0; id < r->committed + r->block * r->blocks; id++) {
        if (!sees(r->committed, r->pin, r->window, r->block, row, id))
            continue;
        double score = 0;
        for (int64_t d = 0; d < dim; d++)
            score += (double)get_element(r->dtype, q, (row * r->q_heads + head) * dim + d) *
                     (double)get_element(r->dtype, r->k, (id * r->kv_heads + kv_head) * dim + d);
        double weight = exp(score / sqrt((double)dim)); /* scores are small: no maximum needed */
        for (int64_t d = 0; d < dim; d++)
            out[d] += weight * (double)get_element(r->dtype, r->v, (id * r->kv_heads + kv_head) * dim + d);
        sum += weight;
    }
    for (int64_t d = 0; d < dim; d++)
        out[d] /= sum;
    *lse = log(sum);
}

static void check_random_forward(const rollout *r, ckv_reference *reference, ckv_random *random)
{
    int64_t seq_len = r->block * r->blocks, dim = r->head_dim;
    size_t bytes = ckv_dtype_bytes(r->dtype);
    int64_t per_token = r->kv_heads * dim;
    void *q = malloc((size_t)(seq_len * r->q_heads * dim) * bytes);
    double *out = calloc((size_t)(seq_len * r->q_heads * dim), sizeof *out);
    double *lse = calloc((size_t)(seq_len * r->q_heads), sizeof *lse), expected[64], expected_lse;
    fill_random(random, r->dtype, q, seq_len * r->q_heads * dim);
    ckv_reference_forward forward = ckv_reference_forward_default();
    forward.layer = 1;
    forward.seq_len = seq_len;
    forward.causal_block_size = r->blocks == 1 ? 0 : r->block;
    forward.q = q;
    forward.q_token_stride = r->q_heads * dim;
    forward.q_head_stride = dim;
    forward.kv = ckv_kv_dense((char *)r->k + (size_t)(r->committed * per_token) * bytes,
                              (char *)r->v + (size_t)(r->committed * per_token) * bytes, r->kv_heads, dim);
    forward.out = out;
    forward.lse = lse;
    assert_ok(ckv_reference_run(reference, &forward));
    for (int64_t row = 0; row < seq_len; row++) {
        for (int64_t head = 0; head < r->q_heads; head++) {
            brute_force_row(r, q, row, head, expected, &expected_lse);
            for (int64_t d = 0; d < dim; d++)
                assert_near(out[(row * r->q_heads + head) * dim + d], expected[d], 1e-12);
            assert_near(lse[row * r->q_heads + head], expected_lse, 1e-12);
        }
    }
    free(lse);
    free(out);
    free(q);
}

static void random_rollouts_match_a_mask(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    for (int round = 0; round < 60; round++) {
        rollout r = {.dtype = (ckv_dtype)ckv_random_range(&random, 0, 2)};
        r.kv_heads = ckv_random_range(&random, 1, 3);
        r.q_heads = r.kv_heads * ckv_random_range(&random, 1, 4);
        r.head_dim = ckv_random_range(&random, 1, 19);
        r.pin = ckv_random_range(&random, 0, 12);
        r.window = ckv_random_range(&random, 0, 15);
        enum { TOKENS = 80 };
        int64_t count = TOKENS * r.kv_heads * r.head_dim;
        r.k = malloc((size_t)count * ckv_dtype_bytes(r.dtype));
        r.v = malloc((size_t)count * ckv_dtype_bytes(r.dtype));
        fill_random(&random, r.dtype, r.k, count);
        fill_random(&random, r.dtype, r.v, count);
        ckv_reference *reference = new_reference(r.q_heads, r.kv_heads, r.head_dim, r.dtype, 0);
        assert_ok(ckv_reference_open(reference, r.pin, r.window));
        while (r.committed < TOKENS - 12) {
            r.block = ckv_random_range(&random, 1, 4);
            r.blocks = ckv_random_range(&random, 1, 3);
            check_random_forward(&r, reference, &random);
            int64_t commit = ckv_random_range(&random, 1, r.block * r.blocks);
            assert_ok(ckv_reference_commit(reference, commit));
            r.committed += commit;
        }
        ckv_reference_destroy(&reference);
        free(r.k);
        free(r.v);
    }
}

enum { DIM = 8, HISTORY = 20, WINDOW = 6, STAGED = 4, PADDING = 2, BLOCK = 2 };

/* One head, 20 committed tokens (no pin, window 6), 4 staged in blocks of 2, 2 padding rows. */
typedef struct scene {
    ckv_reference *reference;
    float k[(HISTORY + STAGED + PADDING) * DIM], v[(HISTORY + STAGED + PADDING) * DIM];
    float q[STAGED * DIM];
    double out[STAGED * DIM];
    ckv_reference_forward forward;
} scene;

static scene *new_scene(void)
{
    ckv_random random = {ckv_test_seed()};
    scene *s = calloc(1, sizeof *s);
    fill_random(&random, CKV_FP32, s->k, (HISTORY + STAGED + PADDING) * DIM);
    fill_random(&random, CKV_FP32, s->v, (HISTORY + STAGED + PADDING) * DIM);
    fill_random(&random, CKV_FP32, s->q, STAGED * DIM);
    s->reference = new_reference(1, 1, DIM, CKV_FP32, 0);
    assert_ok(ckv_reference_open(s->reference, 0, WINDOW));
    write_dense(s->reference, 0, HISTORY, DIM, s->k, s->v);
    assert_ok(ckv_reference_commit(s->reference, HISTORY));
    s->forward = dense_forward(STAGED, DIM, s->q, s->k + HISTORY * DIM, s->v + HISTORY * DIM, s->out);
    s->forward.causal_block_size = BLOCK;
    return s;
}

static void free_scene(scene *s)
{
    ckv_reference_destroy(&s->reference);
    free(s);
}

static void only_the_rows_asked_for(void **state)
{
    (void)state;
    scene *s = new_scene();
    double some[STAGED * DIM], lse[STAGED] = {7, 7, 7, 7};
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    fill_value(CKV_FP32, some, 2 * STAGED * DIM, 1); /* any bytes */
    double untouched = some[0];
    const int64_t rows[] = {3, 1};
    s->forward.rows = rows;
    s->forward.num_rows = 2;
    s->forward.out = some;
    s->forward.lse = lse;
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    for (int64_t i = 0; i < STAGED * DIM; i++)
        assert_true(some[i] == (i / DIM == 1 || i / DIM == 3 ? s->out[i] : untouched));
    assert_true(lse[0] == 7 && lse[2] == 7 && lse[1] != 7 && lse[3] != 7);
    free_scene(s);
}

static void extra_window_tokens_let_in_older_keys(void **state)
{
    (void)state;
    scene *s = new_scene();
    const int64_t extra[STAGED / BLOCK] = {3, 0};
    double exact[STAGED * DIM], wider[STAGED * DIM];
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    memcpy(exact, s->out, sizeof exact);
    s->forward.extra_window_tokens = extra;
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    memcpy(wider, s->out, sizeof wider);
    assert_memory_equal(exact + BLOCK * DIM, wider + BLOCK * DIM, sizeof(double) * BLOCK * DIM);

    assert_ok(ckv_reference_open(s->reference, 0, WINDOW + 3));
    write_dense(s->reference, 0, HISTORY, DIM, s->k, s->v);
    assert_ok(ckv_reference_commit(s->reference, HISTORY));
    s->forward.extra_window_tokens = NULL;
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    assert_memory_equal(s->out, wider, sizeof(double) * BLOCK * DIM);
    free_scene(s);
}

static void nan_nobody_sees_has_no_influence(void **state)
{
    (void)state;
    scene *s = new_scene();
    double before[STAGED * DIM];
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    memcpy(before, s->out, sizeof before);
    for (int64_t i = 0; i < (HISTORY - WINDOW) * DIM; i++)
        s->k[i] = s->v[i] = NAN;
    write_dense(s->reference, 0, HISTORY - WINDOW, DIM, s->k, s->v);
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    assert_memory_equal(before, s->out, sizeof before);

    /* Id 15 leaves the window of the second block, which starts at 22. */
    s->v[15 * DIM] = NAN;
    write_dense(s->reference, 15, 1, DIM, s->k + 15 * DIM, s->v + 15 * DIM);
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    assert_true(isnan(s->out[0]) && isnan(s->out[DIM]));
    assert_memory_equal(before + 2 * DIM, s->out + 2 * DIM, sizeof(double) * 2 * DIM);
    free_scene(s);
}

/* Attention of row `row` over the ids in `ids`, as a faulty implementation would compute it. */
static void faulty_row(const scene *s, int64_t row, const int64_t *ids, int64_t num_ids, double *out)
{
    double sum = 0;
    memset(out, 0, DIM * sizeof *out);
    for (int64_t i = 0; i < num_ids; i++) {
        double score = 0;
        for (int64_t d = 0; d < DIM; d++)
            score += (double)s->q[row * DIM + d] * (double)s->k[ids[i] * DIM + d];
        double weight = exp(score / sqrt((double)DIM));
        for (int64_t d = 0; d < DIM; d++)
            out[d] += weight * (double)s->v[ids[i] * DIM + d];
        sum += weight;
    }
    for (int64_t d = 0; d < DIM; d++)
        out[d] /= sum;
}

static ckv_key_explanation explain(scene *s, int64_t row, const double *observed)
{
    ckv_key_explanation explanation;
    ckv_kv padding = ckv_kv_dense(s->k + (HISTORY + STAGED) * DIM, s->v + (HISTORY + STAGED) * DIM, 1, DIM);
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    assert_ok(ckv_reference_explain(s->reference, &s->forward, row, 0, observed, &padding, PADDING, &explanation));
    return explanation;
}

/* Row 0 sees 14..21. Observed with one key left out or let in. */
static void explain_names_the_key(void **state)
{
    (void)state;
    scene *s = new_scene();
    const struct {
        ckv_key_fault fault;
        int64_t token;
    } faults[] = {
        {CKV_KEY_MISSING, 14}, {CKV_KEY_MISSING, 19}, {CKV_KEY_MISSING, 21},
        {CKV_KEY_EXTRA, 13},   {CKV_KEY_EXTRA, 0},    {CKV_KEY_EXTRA, HISTORY + 3}, /* evicted, oldest, later block */
        {CKV_KEY_PADDING, 4},  {CKV_KEY_PADDING, 5},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        int64_t ids[9], num_ids = 0;
        double observed[DIM];
        for (int64_t id = 14; id <= 21; id++)
            if (faults[i].fault != CKV_KEY_MISSING || faults[i].token != id)
                ids[num_ids++] = id;
        if (faults[i].fault != CKV_KEY_MISSING)
            ids[num_ids++] = faults[i].token + (faults[i].fault == CKV_KEY_PADDING ? HISTORY : 0);
        faulty_row(s, 0, ids, num_ids, observed);
        ckv_key_explanation explanation = explain(s, 0, observed);
        assert_int_equal(explanation.fault, faults[i].fault);
        assert_int_equal(explanation.token, faults[i].token);
        assert_true(explanation.error_explained < 1e-12 && explanation.error_before > 1e-4);
    }
    free_scene(s);
}

/* With a score 60 above the others a key holds all the weight but 1e-26, and the output without it is still found. */
static void explain_finds_a_missing_key_that_dominates(void **state)
{
    (void)state;
    scene *s = new_scene();
    for (int64_t d = 0; d < DIM; d++) {
        s->q[d] = 1;
        s->k[17 * DIM + d] = 60 / sqrtf(DIM);
    }
    write_dense(s->reference, 17, 1, DIM, s->k + 17 * DIM, s->v + 17 * DIM);
    const int64_t ids[] = {14, 15, 16, 18, 19, 20, 21};
    double observed[DIM];
    faulty_row(s, 0, ids, 7, observed);
    ckv_key_explanation explanation = explain(s, 0, observed);
    assert_int_equal(explanation.fault, CKV_KEY_MISSING);
    assert_int_equal(explanation.token, 17);
    free_scene(s);
}

static void explain_finds_nan_padding(void **state)
{
    (void)state;
    scene *s = new_scene();
    double observed[DIM];
    s->k[(HISTORY + STAGED + 1) * DIM] = NAN;
    for (int64_t d = 0; d < DIM; d++)
        observed[d] = NAN;
    ckv_key_explanation explanation = explain(s, 2, observed);
    assert_int_equal(explanation.fault, CKV_KEY_PADDING);
    assert_int_equal(explanation.token, STAGED + 1);
    assert_true(isinf(explanation.error_before));
    free_scene(s);
}

static void explain_claims_nothing_it_cannot_show(void **state)
{
    (void)state;
    scene *s = new_scene();
    double observed[DIM];
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    memcpy(observed, s->out, sizeof observed);
    assert_int_equal(explain(s, 0, observed).fault, CKV_KEY_NONE); /* nothing is wrong */

    const int64_t three_more[] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
    faulty_row(s, 0, three_more, 11, observed);
    ckv_key_explanation explanation = explain(s, 0, observed);
    assert_int_equal(explanation.fault, CKV_KEY_NONE);
    assert_true(explanation.error_before > 0 && explanation.error_explained == explanation.error_before);
    free_scene(s);
}

static void explain_refuses(void **state)
{
    (void)state;
    scene *s = new_scene();
    ckv_key_explanation explanation;
    double observed[DIM] = {0};
    assert_status(ckv_reference_explain(s->reference, &s->forward, 0, 0, observed, NULL, 0, &explanation),
                  CKV_ERROR_STATE); /* not run yet */
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    assert_ok(ckv_reference_explain(s->reference, &s->forward, 0, 0, observed, NULL, 0, &explanation));
    assert_status(ckv_reference_explain(s->reference, &s->forward, STAGED, 0, observed, NULL, 0, &explanation),
                  CKV_ERROR_INVALID);
    assert_status(ckv_reference_explain(s->reference, &s->forward, 0, 1, observed, NULL, 0, &explanation),
                  CKV_ERROR_INVALID);
    assert_status(ckv_reference_explain(s->reference, &s->forward, 0, 0, NULL, NULL, 0, &explanation),
                  CKV_ERROR_INVALID);
    s->forward.causal_block_size = STAGED;
    assert_status(ckv_reference_explain(s->reference, &s->forward, 0, 0, observed, NULL, 0, &explanation),
                  CKV_ERROR_STATE); /* another forward */
    s->forward.causal_block_size = BLOCK;
    assert_ok(ckv_reference_commit(s->reference, STAGED));
    assert_status(ckv_reference_explain(s->reference, &s->forward, 0, 0, observed, NULL, 0, &explanation),
                  CKV_ERROR_STATE);
    free_scene(s);
}

static void create_refuses(void **state)
{
    (void)state;
    ckv_reference *reference = NULL;
    ckv_reference_config good = ckv_reference_config_default();
    good.layers = good.q_heads = good.kv_heads = good.head_dim = 4;
    assert_ok(ckv_reference_create(&good, &reference));
    ckv_reference_destroy(&reference);
    assert_null(reference);
    ckv_reference_destroy(&reference);
    ckv_reference_destroy(NULL);
    ckv_reference_config bad[] = {good, good, good, good, good, good, good, good};
    bad[0].struct_size = 0;
    bad[1].layers = 0;
    bad[2].q_heads = 6;
    bad[3].kv_heads = 0;
    bad[4].head_dim = -1;
    bad[5].dtype = (ckv_dtype)9;
    bad[6].scale = NAN;
    bad[7].dtype = CKV_FP8_E4M3;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_status(ckv_reference_create(&bad[i], &reference), CKV_ERROR_INVALID);
    assert_status(ckv_reference_create(NULL, &reference), CKV_ERROR_INVALID);
    assert_status(ckv_reference_create(&good, NULL), CKV_ERROR_INVALID);
    assert_null(reference);
}

static void refuse_forwards(scene *s, int64_t count, const ckv_reference_forward *forwards)
{
    for (int64_t i = 0; i < count; i++)
        assert_status(ckv_reference_run(s->reference, &forwards[i]), CKV_ERROR_INVALID);
}

/* What is refused leaves the next forward's result as it was, to the bit. */
static void refusals_change_nothing(void **state)
{
    (void)state;
    scene *s = new_scene();
    double before[STAGED * DIM];
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    memcpy(before, s->out, sizeof before);

    const int64_t bad_rows[] = {STAGED}, bad_extra[] = {0, -1};
    ckv_reference_forward bad[8];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bad[i] = s->forward;
        bad[i].kv = ckv_kv_dense(s->k, s->v, 1, DIM); /* other data: it must not be staged */
    }
    bad[0].struct_size = 1;
    bad[1].layer = 2;
    bad[2].seq_len = 0;
    bad[3].causal_block_size = 3;
    bad[4].q = NULL;
    bad[5].out = NULL;
    bad[6].rows = bad_rows;
    bad[6].num_rows = 1;
    bad[7].extra_window_tokens = bad_extra;
    refuse_forwards(s, 8, bad);
    assert_memory_equal(before, s->out, sizeof before);

    ckv_kv source = ckv_kv_dense(s->k, s->v, 1, DIM), none = {0};
    assert_status(ckv_reference_write(s->reference, 0, -1, 1, &source), CKV_ERROR_INVALID);
    assert_status(ckv_reference_write(s->reference, 0, 16, 0, &source), CKV_ERROR_INVALID);
    assert_status(ckv_reference_write(s->reference, 0, 16, 1, &none), CKV_ERROR_INVALID);
    assert_status(ckv_reference_write(s->reference, 0, INT64_MAX, 1, &source), CKV_ERROR_INVALID);
    assert_status(ckv_reference_write(s->reference, 0, INT64_MAX - 1, 1, &source), CKV_ERROR_MEMORY);
    assert_status(ckv_reference_zero_values(s->reference, -1, 16, 1), CKV_ERROR_INVALID);
    assert_status(ckv_reference_commit(s->reference, 0), CKV_ERROR_INVALID);
    assert_status(ckv_reference_commit(s->reference, INT64_MAX), CKV_ERROR_INVALID);
    assert_status(ckv_reference_open(s->reference, -1, 0), CKV_ERROR_INVALID);
    assert_status(ckv_reference_open(s->reference, 0, -1), CKV_ERROR_INVALID);

    memset(s->out, 0, sizeof s->out);
    assert_ok(ckv_reference_run(s->reference, &s->forward));
    assert_memory_equal(before, s->out, sizeof before);
    free_scene(s);
}

static void tokens_never_written_are_not_read(void **state)
{
    (void)state;
    scene *s = new_scene();
    s->forward.layer = 1;
    assert_status(ckv_reference_run(s->reference, &s->forward), CKV_ERROR_STATE);
    assert_non_null(strstr(ckv_last_error(), "token 14"));

    ckv_reference *fresh = new_reference(1, 1, DIM, CKV_FP32, 0);
    assert_status(ckv_reference_run(fresh, &s->forward), CKV_ERROR_STATE); /* no rollout */
    assert_status(ckv_reference_commit(fresh, 1), CKV_ERROR_STATE);
    assert_ok(ckv_reference_open(fresh, 2, 0));
    write_dense(fresh, 1, 1, DIM, s->k, s->v);
    assert_ok(ckv_reference_commit(fresh, 5));
    s->forward.layer = 0;
    assert_status(ckv_reference_run(fresh, &s->forward), CKV_ERROR_STATE);
    assert_non_null(strstr(ckv_last_error(), "token 0"));
    write_dense(fresh, 0, 1, DIM, s->k, s->v);
    assert_ok(ckv_reference_run(fresh, &s->forward)); /* ids 2..4 are in no window */
    assert_ok(ckv_reference_open(fresh, 2, 0));       /* forgets them */
    assert_ok(ckv_reference_commit(fresh, 1));
    assert_status(ckv_reference_run(fresh, &s->forward), CKV_ERROR_STATE);
    ckv_reference_destroy(&fresh);
    free_scene(s);
}

static const ckv_test_case cases[] = {
    CKV_CASE(by_hand),
    CKV_CASE(visible_keys_are_exactly_the_window),
    CKV_CASE(random_rollouts_match_a_mask),
    CKV_CASE(only_the_rows_asked_for),
    CKV_CASE(extra_window_tokens_let_in_older_keys),
    CKV_CASE(nan_nobody_sees_has_no_influence),
    CKV_CASE(explain_names_the_key),
    CKV_CASE(explain_finds_a_missing_key_that_dominates),
    CKV_CASE(explain_finds_nan_padding),
    CKV_CASE(explain_claims_nothing_it_cannot_show),
    CKV_CASE(explain_refuses),
    CKV_CASE(create_refuses),
    CKV_CASE(refusals_change_nothing),
    CKV_CASE(tokens_never_written_are_not_read),
};
CKV_TEST_MAIN("reference", cases)
