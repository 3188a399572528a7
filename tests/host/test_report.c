/* SPDX-License-Identifier: Apache-2.0 */
/* `ckv report`: what its page holds, against what other commands and plain counting say of the same trace. */
#include "tests/support/case.h"
#include "tests/support/report_page.h"
#include "tools/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void open_ckv(workplace *place)
{
    workplace_open(place, "'" CKV_PROGRAM "'");
}

static json_t *blocks_of(const json_t *report, const json_t *forward)
{
    const json_t *layouts = json_object_get(report, "layouts");
    json_t *blocks = json_object_get(json_array_get(layouts, (size_t)report_integer(forward, "layout")), "blocks");
    assert_non_null(blocks);
    return blocks;
}

/* --- Against ckv window: the same calls, its keys --- */

static void put_script(const workplace *place, const trace *t)
{
    char path[128];
    snprintf(path, sizeof path, "%s/script", place->folder);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fprintf(out,
            "{\"op\":\"create\",\"layers\":1,\"kv_heads\":1,\"head_dim\":16,\"dtype\":\"fp32\","
            "\"tokens_per_page\":%d,\"pool_tokens\":4096}\n",
            (int)t->config.tokens_per_page);
    for (size_t i = 0; i < t->num_ops; i++) {
        const trace_op *op = &t->ops[i];
        if (op->kind == TRACE_OPEN)
            fprintf(out,
                    "{\"op\":\"open\",\"pin_tokens\":%d,\"window_tokens\":%d,\"max_staged_tokens\":%d,"
                    "\"causal_block_sizes\":[%d,%d,%d]}\n",
                    (int)op->pin_tokens, (int)op->window_tokens, (int)op->max_staged_tokens,
                    (int)op->causal_block_sizes[0], (int)op->causal_block_sizes[1], (int)op->causal_block_sizes[2]);
        if (op->kind == TRACE_WRITE_RANGE && op->layer == 0)
            fprintf(out, "{\"op\":\"write_range\",\"start\":%d,\"tokens\":%d}\n", (int)op->start, (int)op->tokens);
        if (op->kind == TRACE_FORWARD && op->layer == 0)
            fprintf(out, "{\"op\":\"forward\",\"tokens\":%d,\"causal_block_size\":%d}\n", (int)op->seq_len,
                    (int)op->causal_block_size);
        if (op->kind == TRACE_COMMIT)
            fprintf(out, "{\"op\":\"commit\",\"tokens\":%d}\n", (int)op->tokens);
    }
    assert_int_equal(fclose(out), 0);
}

static bool runs_hold(const json_t *runs, int64_t id)
{
    for (size_t i = 0; i + 1 < json_array_size(runs); i += 2) {
        int64_t first = json_integer_value(json_array_get(runs, i));
        if (id >= first && id < first + json_integer_value(json_array_get(runs, i + 1)))
            return true;
    }
    return false;
}

static int64_t runs_total(const json_t *runs)
{
    int64_t total = 0;
    for (size_t i = 1; i < json_array_size(runs); i += 2)
        total += json_integer_value(json_array_get(runs, i));
    return total;
}

static void assert_same_block(const json_t *shown, const json_t *read)
{
    size_t index;
    json_t *key;
    json_t *keys = json_object_get(read, "keys");
    for (size_t list = 1; list <= 2; list++) { /* expected, read */
        const json_t *runs = json_array_get(shown, list);
        assert_int_equal(runs_total(runs), json_array_size(keys));
        json_array_foreach(keys, index, key) assert_true(runs_hold(runs, json_integer_value(json_array_get(key, 0))));
    }
    assert_int_equal(json_integer_value(json_array_get(shown, 4)), json_array_size(keys));
}

static json_t *next_forward(const char **line)
{
    while (**line != '\0') {
        const char *end = strchr(*line, '\n');
        json_t *answer = json_loadb(*line, (size_t)(end - *line), 0, NULL);
        *line = end + 1;
        if (strcmp(report_text(answer, "op"), "forward") == 0)
            return answer;
        json_decref(answer);
    }
    fail_msg("ckv window printed too few forwards");
    return NULL;
}

static void keys_are_those_of_ckv_window(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    trace *t = report_rollout(CKV_KEY_NONE, 0, 0);
    report_write_trace(&place, t);
    put_script(&place, t);
    json_t *report = report_make(&place, "", 0);
    workplace_expect(&place, "window script", 0, NULL, "");
    const char *line = place.out;
    size_t forwards = json_array_size(json_object_get(report, "forwards")), many = 0;
    assert_int_equal(forwards, 16);
    for (size_t i = 0; i < forwards; i += 2) { /* a layer each */
        json_t *read = next_forward(&line), *blocks = json_object_get(read, "blocks");
        for (size_t layer = 0; layer < 2; layer++) {
            json_t *shown = blocks_of(report, report_forward(report, i + layer));
            assert_int_equal(json_array_size(shown), json_array_size(blocks));
            for (size_t block = 0; block < json_array_size(blocks); block++)
                assert_same_block(json_array_get(shown, block), json_array_get(blocks, block));
            many += json_array_size(blocks) > 1;
        }
        json_decref(read);
    }
    assert_int_equal(many, 6); /* clean forwards after the first chunk, in both layers */
    json_decref(report);
    trace_free(&t);
    workplace_close(&place);
}

/* --- What pages hold --- */

/* Token ids of resident pages at a state: how often each is there, from the changes since the rollout began. */
static void count_resident(const json_t *report, size_t wanted, int *counts, int64_t most)
{
    const json_t *states = json_object_get(report, "states");
    const json_t *cells = json_object_get(json_array_get(json_object_get(report, "rollouts"), 0), "cells");
    for (size_t cell = 0; cell < json_array_size(cells); cell++) {
        const json_t *last = NULL;
        for (size_t i = 0; i <= wanted; i++) {
            size_t index;
            json_t *change;
            json_array_foreach(json_object_get(json_array_get(states, i), "changed"), index,
                               change) if (json_integer_value(json_array_get(change, 0)) == (json_int_t)cell) last =
                change;
        }
        if (json_integer_value(json_array_get(json_array_get(cells, cell), 2)) == 1)
            continue;
        for (size_t i = 2; i < json_array_size(last); i += 3)
            for (int64_t n = 0; n < json_integer_value(json_array_get(last, i + 1)); n++) {
                int64_t id = json_integer_value(json_array_get(last, i)) + n;
                assert_in_range(id, 0, most - 1);
                counts[id]++;
            }
    }
}

static void assert_resident(const json_t *report, size_t forward, int64_t committed, int64_t staged)
{
    enum { MOST = 5 + 11 + 3 * 12 };
    int counts[MOST] = {0};
    size_t shown = (size_t)report_integer(report_forward(report, forward), "state");
    const json_t *at = json_array_get(json_object_get(report, "states"), shown);
    int64_t fixed = report_integer(at, "fixed"), history = report_integer(at, "history");
    assert_int_equal(report_integer(at, "committed"), committed);
    assert_int_equal(report_integer(at, "staged"), staged);
    assert_int_equal(fixed, 5);
    assert_in_range(history, committed - 5 < 14 ? committed - 5 : 14, 14 + 3); /* a page begins before the window */
    count_resident(report, shown, counts, MOST);
    for (int64_t id = 0; id < MOST; id++)
        assert_int_equal(counts[id], id < fixed || (id >= committed - history && id < committed + staged));
}

/* Pinned ones, the window and what shares a page with its start, staged ones. */
static void pages_hold_every_resident_token_once(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    trace *t = report_rollout(CKV_KEY_NONE, 0, 0);
    report_write_trace(&place, t);
    json_t *report = report_make(&place, "", 0);
    assert_resident(report, 0, 5, 11);
    assert_resident(report, 4, 16, 12);
    assert_resident(report, 15, 40, 12);
    json_decref(report);
    trace_free(&t);
    workplace_close(&place);
}

/* Two rollouts of one trace: each shows the pages it holds, and none of the other's tokens. */
static void every_rollout_has_its_own_pages(void **state)
{
    (void)state;
    static float values[64];
    const struct {
        int64_t window, staged;
    } rollouts[] = {{40, 8}, {6, 4}, {20, 8}};
    const trace_config config = {
        .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 2, .dtype = CKV_FP32, .tokens_per_page = 2};
    workplace place;
    open_ckv(&place);
    trace *t = trace_create(&config);
    assert_non_null(t);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        assert_true(trace_add_open(t, 0, rollouts[i].window, rollouts[i].staged, &rollouts[i].staged, 1));
        assert_true(trace_add_forward(t, 0, rollouts[i].staged, rollouts[i].staged, rollouts[i].staged, name, values,
                                      values, values, NULL));
        assert_true(trace_add_close(t));
    }
    report_write_trace(&place, t);
    trace_free(&t);
    json_t *report = report_make(&place, "", 0);
    for (int i = 0; i < 3; i++) {
        ckv_rollout_config rollout = ckv_rollout_config_default();
        rollout.window_tokens = rollouts[i].window;
        rollout.max_staged_tokens = rollouts[i].staged;
        rollout.causal_block_sizes = &rollouts[i].staged;
        rollout.num_causal_block_sizes = 1;
        ckv_rollout_size size;
        assert_ok(ckv_rollout_config_size(&rollout, 2, &size));
        const json_t *cells = json_object_get(json_array_get(json_object_get(report, "rollouts"), (size_t)i), "cells");
        int64_t private = 0;
        for (size_t n = 0; n < json_array_size(cells); n++)
        private += json_integer_value(json_array_get(json_array_get(cells, n), 2));
        assert_int_equal(json_array_size(cells), size.pool_tokens / 2);
        assert_int_equal(private, size.private_tokens / 2);
        const json_t *at = json_array_get(json_object_get(report, "states"), (size_t)i);
        assert_int_equal(report_integer(at, "rollout"), i);
        int64_t tokens = 0;
        size_t index;
        json_t *change;
        json_array_foreach(json_object_get(at, "changed"), index, change)
        {
            for (size_t n = 3; n < json_array_size(change); n += 3)
                tokens += json_integer_value(json_array_get(change, n));
        }
        assert_int_equal(tokens, 2 * rollouts[i].staged); /* home and own slots */
    }
    json_decref(report);
    workplace_close(&place);
}

/* --- What explains it --- */

static void explanations_are_those_of_ckv_explain(void **state)
{
    (void)state;
    static const struct {
        ckv_key_fault fault;
        int64_t token, forward;
        const char *list; /* of the wrong block that holds a key */
        int64_t first;    /* that key */
        bool is_padding;
    } rows[] = {
        {CKV_KEY_PADDING, 11, 1, "extra", 11, true},
        {CKV_KEY_EXTRA, 7, 12, "extra", 7, false},
        {CKV_KEY_MISSING, 38, 15, "missing", 38, false},
    };
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        trace *t = report_rollout(rows[i].fault, rows[i].token, rows[i].forward);
        report_write_trace(&place, t);
        json_t *report = report_make(&place, "--ranks 2", 1);
        assert_int_equal(report_integer(report, "num_wrong"), 1);
        json_t *forward = report_forward(report, (size_t)rows[i].forward),
               *explained = json_object_get(forward, "explained");
        assert_string_equal(report_text(forward, "verdict"), "wrong");
        assert_string_equal(report_text(explained, "output"), "recorded");
        json_t *worst = json_array_get(json_object_get(explained, "blocks"), 0);
        assert_int_equal(report_integer(worst, "row"), report_integer(json_object_get(forward, "recorded"), "row"));
        json_t *key = json_array_get(json_object_get(worst, rows[i].list), 0);
        assert_int_equal(report_integer(key, "first"), rows[i].first);
        assert_int_equal(report_integer(key, "count"), 1);
        assert_int_equal(json_is_true(json_object_get(key, "padding")), rows[i].is_padding);
        char command[128];
        snprintf(command, sizeof command, "explain t -f %d -r %d --ranks 2", (int)rows[i].forward,
                 (int)report_integer(worst, "row"));
        workplace_expect(&place, command, 1, report_text(explained, "text"), "");
        for (size_t n = 0; n < 16; n++)
            if (n != (size_t)rows[i].forward)
                assert_null(json_object_get(report_forward(report, n), "explained"));
        json_decref(report);
        trace_free(&t);
    }
    workplace_close(&place);
}

/* Token 28 is in the window of the first of four blocks and too old for the others. */
static void every_wrong_block_is_explained(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    trace *t = report_rollout(CKV_KEY_EXTRA, 28, 15); /* windows begin at 26, 29, 32 and 35 */
    report_write_trace(&place, t);
    json_t *report = report_make(&place, "", 1), *explained = json_object_get(report_forward(report, 15), "explained");
    json_t *blocks = json_object_get(explained, "blocks"), *block;
    size_t index;
    bool found[4] = {false};
    assert_int_equal(report_integer(explained, "blocks_left_out"), 0);
    json_array_foreach(blocks, index, block)
    {
        found[report_integer(block, "block")] = true;
        json_t *extra = json_object_get(block, "extra");
        assert_int_equal(json_array_size(extra), 1);
        assert_int_equal(report_integer(json_array_get(extra, 0), "first"), 28);
        assert_int_equal(json_array_size(json_object_get(block, "missing")), 0);
    }
    assert_int_equal(json_array_size(blocks), 3);
    assert_true(!found[0] && found[1] && found[2] && found[3]);
    json_decref(report);
    trace_free(&t);
    workplace_close(&place);
}

/* Change one element of a recorded output. */
static void spoil(trace *t, size_t forward, int64_t row, int64_t head, float by)
{
    size_t n = 0, i = 0;
    while (t->ops[i].kind != TRACE_FORWARD || n++ != forward)
        i++;
    const trace_op *op = &t->ops[i];
    size_t values = (size_t)(op->rows * t->config.q_heads * t->config.head_dim);
    float *copy = malloc(values * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, op->expected, values * sizeof *copy);
    copy[(row * t->config.q_heads + head) * t->config.head_dim] += by;
    t->ops[i].expected = copy; /* the test's: freed by unspoil */
}

static void unspoil(const void *expected)
{
    union {
        const void *borrowed;
        void *owned;
    } copy = {expected};
    free(copy.owned);
}

static const trace_op *nth_forward(const trace *t, size_t forward)
{
    size_t n = 0, i = 0;
    while (t->ops[i].kind != TRACE_FORWARD || n++ != forward)
        i++;
    return &t->ops[i];
}

enum { SPOILT_ROW = 7, SPOILT_HEAD = 4, HEADS = 12 };

/* A recorded output that is off by so many times the tolerance in one place: the report. */
static json_t *spoilt_report(workplace *place, double times)
{
    trace *t = report_rollout(CKV_KEY_NONE, 0, 0);
    report_write_trace(place, t);
    json_t *report = report_make(place, "", 0);
    double tolerance = json_number_value(json_object_get(report_forward(report, 3), "tolerance"));
    json_decref(report);
    spoil(t, 3, SPOILT_ROW, SPOILT_HEAD, (float)(times * tolerance));
    report_write_trace(place, t);
    unspoil(nth_forward(t, 3)->expected);
    trace_free(&t);
    return report_make(place, "", times > 1);
}

/* Steps of sqrt(2), and 'K' is the one that ends at the tolerance. */
static void one_wrong_value_is_one_hot_cell(void **state)
{
    (void)state;
    static const struct {
        double times;
        char level;
    } rows[] = {{0.05, 'B'}, {0.9, 'J'}, {1.2, 'L'}, {1.8, 'M'}, {1000, 'e'}};
    workplace place;
    open_ckv(&place);
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        json_t *report = spoilt_report(&place, rows[n].times), *forward = report_forward(report, 3);
        json_t *maps = json_object_get(forward, "heat"), *map = json_object_get(maps, "recorded");
        assert_int_equal(report_integer(map, "rows"), 1);
        assert_int_equal(report_integer(map, "heads"), 1);
        const char *levels = report_text(map, "levels"),
                   *replayed = report_text(json_object_get(maps, "replayed"), "levels");
        assert_int_equal(strlen(levels), 12 * HEADS);
        for (int i = 0; i < 12 * HEADS; i++) {
            bool is_spoilt = i == SPOILT_ROW * HEADS + SPOILT_HEAD;
            assert_true(replayed[i] <= 'K');
            assert_int_equal(levels[i] == '0', i >= 11 * HEADS); /* the padding row */
            assert_true(is_spoilt ? levels[i] == rows[n].level : levels[i] < 'B');
        }
        json_t *recorded = json_object_get(forward, "recorded");
        assert_int_equal(report_integer(recorded, "row"), SPOILT_ROW);
        assert_int_equal(report_integer(recorded, "head"), SPOILT_HEAD);
        const json_t *explained = json_object_get(forward, "explained");
        assert_int_equal(explained != NULL, rows[n].times > 1);
        json_t *worst = json_array_get(json_object_get(explained, "blocks"), 0);
        assert_null(json_object_get(worst, "class")); /* no mistake does that, and none is invented */
        assert_null(json_object_get(worst, "extra"));
        json_decref(report);
    }
    workplace_close(&place);
}

/* As ckv replay has it. A wrong forward is explained from a token's row however much there is in a padding row. */
static void padding_in_the_output_is_noted(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
        trace *t = report_rollout(is_wrong ? CKV_KEY_PADDING : CKV_KEY_NONE, 11, 0);
        spoil(t, 0, 11, 2, 30);
        report_write_trace(&place, t);
        json_t *report = report_make(&place, "--ranks 2", is_wrong), *forward = report_forward(report, 0);
        assert_int_equal(report_integer(report, "num_wrong"), is_wrong);
        assert_string_equal(report_text(forward, "verdict"), is_wrong ? "wrong" : "ok");
        json_t *padding = json_object_get(forward, "padding"), *explained = json_object_get(forward, "explained");
        assert_int_equal(report_integer(padding, "row"), 11);
        assert_int_equal(json_number_value(json_object_get(padding, "error")), 30);
        assert_null(json_object_get(report_forward(report, 1), "padding"));
        assert_int_equal(explained != NULL, is_wrong);
        if (is_wrong)
            assert_string_equal(report_text(json_array_get(json_object_get(explained, "blocks"), 0), "class"),
                                "padding");
        json_decref(report);
        unspoil(nth_forward(t, 0)->expected);
        trace_free(&t);
    }
    workplace_close(&place);
}

/* ckv itself cannot be made wrong from outside, so what it replayed is. */
static void a_wrong_replay_is_explained_from_the_replay(void **state)
{
    (void)state;
    trace *t = report_rollout(CKV_KEY_NONE, 0, 0);
    rank_run run;
    problem why;
    json_t *report = NULL;
    assert_int_equal(rank_run_trace(t, &(rank_run_options){.ranks = 1, .tolerance = -1}, &run, &why), CKV_OK);
    float *output = run.outputs[5];
    output[0] += 2;
    run.results[5].output_ok = false;
    assert_int_equal(report_collect(t, "t", &run, 1, &report, &why), CKV_OK);
    json_t *explained = json_object_get(report_forward(report, 5), "explained");
    assert_string_equal(report_text(explained, "output"), "replayed");
    assert_non_null(strstr(report_text(explained, "text"), "\nreplayed output: off by 2 at head 0 "));
    json_decref(report);
    rank_run_free(&run);
    trace_free(&t);
}

static const ckv_test_case cases[] = {
    CKV_CASE(keys_are_those_of_ckv_window),    CKV_CASE(pages_hold_every_resident_token_once),
    CKV_CASE(every_rollout_has_its_own_pages), CKV_CASE(explanations_are_those_of_ckv_explain),
    CKV_CASE(every_wrong_block_is_explained),  CKV_CASE(one_wrong_value_is_one_hot_cell),
    CKV_CASE(padding_in_the_output_is_noted),  CKV_CASE(a_wrong_replay_is_explained_from_the_replay),
};

CKV_TEST_MAIN("report", cases)
