/* SPDX-License-Identifier: Apache-2.0 */
/* `ckv repro`: what it builds, what it says, and that the trace it keeps means the same elsewhere. */
#include "tests/support/case.h"
#include "tests/support/workplace.h"
#include "tools/repro/padded_case.h"
#include "tools/repro/rank_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void open_ckv(workplace *place)
{
    workplace_open(place,
                   "env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK -u PMI_SIZE -u PMI_RANK '" CKV_PROGRAM "'");
}

static void assert_out(const workplace *place, const char *text)
{
    if (strstr(place->out, text) == NULL)
        fail_msg("'%s' is not in:\n%s", text, place->out);
}

static padded_case small_case(void)
{
    return (padded_case){
        .model = {.layers = 2, .q_heads = 6, .kv_heads = 3, .head_dim = 8, .dtype = CKV_FP32, .tokens_per_page = 4},
        .ranks = 3,
        .tokens = 7,
        .chunk_tokens = 9,
        .chunks = 3,
        .window_tokens = 10,
        .fill = PADDED_NAN,
        .seed = (int64_t)(ckv_test_seed() % 1000),
    };
}

static void any_ranks_and_padding_are_right(void **state)
{
    (void)state;
    static const char *const options[] = {
        "", "--ranks 3 --tokens 7 --padding nan", "--ranks 4 --tokens 1 --padding inf --pin 3 --window 5",
        "--ranks 2 --tokens 5 --chunk-tokens 3 --chunks 6 --dtype bf16 --layers 2 --padding zero",
        "--ranks 4 --kv-heads 2 --q-heads 8 --dtype fp16 --tokens-per-page 8 --seed 9 --window 0"};
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        char command[256];
        snprintf(command, sizeof command, "repro padded-first-chunk %s", options[i]);
        workplace_expect(&place, command, 0, NULL, "");
        assert_out(&place, " forwards, 0 wrong, off by ");
        assert_out(&place, "\nverdict: right\n");
    }
    workplace_close(&place);
}

static void the_case_is_padded_as_asked(void **state)
{
    (void)state;
    padded_case c = small_case();
    trace *t = padded_case_make(&c);
    assert_non_null(t);
    int64_t forwards = 0, commits = 0;
    for (size_t i = 0; i < t->num_ops; i++) {
        const trace_op *op = &t->ops[i];
        commits += op->kind == TRACE_COMMIT;
        if (op->kind != TRACE_FORWARD)
            continue;
        assert_int_equal(op->seq_len, forwards < 4 ? 7 : 9);
        assert_int_equal(op->rows, 9);
        for (int64_t row = 0; row < op->rows; row++)
            assert_int_equal(isnan(((const float *)op->k)[row * 24]) != 0, row >= op->seq_len);
        forwards++;
    }
    assert_int_equal(forwards, 12);
    assert_int_equal(commits, 3);
    trace_free(&t);
}

static void a_kept_trace_replays_and_explains(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    workplace_expect(&place, "repro padded-first-chunk --ranks 2 --tokens 5 --chunks 3 -o t", 0, NULL, "");
    workplace_expect(&place, "replay t", 0, NULL, "");
    assert_out(&place, "forward 0: tokens 5 (padded 6) block 5 ");
    assert_out(&place, "\n6 forwards, 6 ok, 0 wrong\n");
    workplace_expect(&place, "explain t --ranks 2 -f 5 -r 2", 0, NULL, "");
    assert_out(&place, "\nrecorded output: right, off by ");
    workplace_close(&place);
}

/* Rounding is wrong when nothing else is allowed. */
static void wrong_forwards_are_said(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    workplace_expect(&place, "repro padded-first-chunk --tolerance 0", 1, NULL, "");
    assert_out(&place, "2 ranks: 8 forwards, 8 wrong, off by ");
    assert_out(&place, "\n  forward 0: row ");
    assert_out(&place, "\nverdict: wrong\n");
    workplace_close(&place);
}

static void search_finds_nothing_wrong(void **state)
{
    (void)state;
    char command[96];
    workplace place;
    open_ckv(&place);
    snprintf(command, sizeof command, "repro search --seed %llu --seconds 60 --cases 20",
             (unsigned long long)(ckv_test_seed() % 100000));
    workplace_expect(&place, command, 0, "20 cases, 0 wrong\n", "");
    workplace_expect(&place, "repro search --seconds 0", 0, "1 cases, 0 wrong\n", "");
    workplace_close(&place);
}

/* The same seed draws the same cases, and what is printed is wrong alone too. */
static void search_prints_commands(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    workplace_expect(&place, "repro search --seed 70000 --cases 3 --tolerance 0", 1, NULL, "");
    assert_out(&place, "\n3 cases, 3 wrong\n");
    char *first = strdup(place.out);
    assert_non_null(first);
    workplace_expect(&place, "repro search --seed 70000 --cases 3 --tolerance 0", 1, first, "");
    static const char start[] = "wrong: ckv ";
    assert_memory_equal(first, start, sizeof start - 1);
    first[strcspn(first, "\n")] = '\0';
    workplace_expect(&place, first + sizeof start - 1, 1, NULL, "");
    assert_out(&place, "\nverdict: wrong\n");
    workplace_expect(&place, "repro search --seed 70001 --cases 3 --tolerance 0", 1, NULL, "");
    place.out[strcspn(place.out, "\n")] = '\0';
    assert_string_not_equal(place.out, first);
    free(first);
    workplace_close(&place);
}

static void a_refused_op_is_everyones_refusal(void **state)
{
    (void)state;
    padded_case c = small_case();
    trace *t = padded_case_make(&c);
    assert_non_null(t);
    for (size_t i = 0; i < t->num_ops; i++)
        if (t->ops[i].kind == TRACE_COMMIT)
            t->ops[i].tokens = 100;
    rank_run run;
    problem why;
    assert_int_equal(rank_run_trace(t, &(rank_run_options){3, -1, NULL}, &run, &why), CKV_ERROR_INVALID);
    assert_non_null(strstr(why.text, "op 5 (commit): "));
    assert_int_equal(run.forwards, 4);
    rank_run_free(&run);
    rank_run_free(&run);
    trace_free(&t);
}

static void refusals_are_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *cause;
    } rows[] = {
        {"", "the case is missing; there is 'padded-first-chunk'"},
        {"padded-last-chunk", "unknown case 'padded-last-chunk', did you mean 'padded-first-chunk'?"},
        {"shrnk t", "unknown case 'shrnk', did you mean 'shrink'?"},
        {"nothing", "unknown case 'nothing'; there is 'padded-first-chunk'"},
        {"padded-first-chunk --tokens 100001 -o /nowhere/t", "/nowhere/t: No such file or directory"},
        {"padded-first-chunk twice", "one case at a time"},
        {"padded-first-chunk --ranks 1", "--ranks is '1'; it must be an integer from 2 to 64"},
        {"padded-first-chunk --tokens 12", "12 tokens need no padding on 2 ranks"},
        {"padded-first-chunk --padding ones", "--padding is 'ones'"},
        {"padded-first-chunk --dtype fp8", "--dtype: "},
        {"padded-first-chunk --tolerance=-1", "--tolerance is '-1'"},
        {"padded-first-chunk --q-heads 3", "3 query heads"},
        {"padded-first-chunk --tokens-per-page 3", "tokens_per_page"},
        {"padded-first-chunk --tokens 1000001 --q-heads 1024 --head-dim 1024", "GiB of tensors, 1 at most"},
        {"search --seconds x", "--seconds is 'x'"},
        {"search --seed -1", "--seed is '-1'"},
        {"search more", "unexpected argument 'more'"},
        {"padded-first-chunk -o /nowhere/t", "/nowhere/t: No such file or directory"},
    };
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char command[256];
        snprintf(command, sizeof command, "repro %s", rows[i].arguments);
        workplace_expect(&place, command, 2, "", rows[i].cause);
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(any_ranks_and_padding_are_right),   CKV_CASE(the_case_is_padded_as_asked),
    CKV_CASE(a_kept_trace_replays_and_explains), CKV_CASE(wrong_forwards_are_said),
    CKV_CASE(search_finds_nothing_wrong),        CKV_CASE(search_prints_commands),
    CKV_CASE(a_refused_op_is_everyones_refusal), CKV_CASE(refusals_are_one_line),
};

CKV_TEST_MAIN("repro", cases)
