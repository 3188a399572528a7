/* SPDX-License-Identifier: Apache-2.0 */
/* `ckv explain` on traces of a small model with one mistake. */
#include "tests/support/case.h"
#include "tests/support/slip_trace.h"
#include "tests/support/workplace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void open_ckv(workplace *place)
{
    workplace_open(place, "'" CKV_PROGRAM "'");
}

static void assert_out(const workplace *place, const char *text)
{
    if (strstr(place->out, text) == NULL)
        fail_msg("'%s' is not in:\n%s", text, place->out);
}

static void every_mistake_is_named(void **state)
{
    (void)state;
    static const struct {
        slip slip;
        int block;
        const char *options, *verdict, *keys;
    } rows[] = {
        {SLIP_PADDING_READ, 5, "-f 1 -r 2", "padding: the forward's padding rows are attended with what they hold",
         "read, but should not have been:\n  padding row 5, of forward 1 rank 1\n"},
        {SLIP_PADDING_ZERO, 5, "-f 0 -r 4", "padding: the forward's padding rows are attended with zero keys",
         "  padding row 5, of forward 0 rank 1\n"},
        {SLIP_PADDING_LEFT, 5, "-f 2 -r 5", "padding: a padding row is computed like a token's and left in the output",
         ""},
        {SLIP_COMMIT_FIRST, 5, "-f 2 -r 0", "commit: the first padded chunk was committed with its padding",
         "  padding row 5, of forward 0 rank 1\nnot read, but should have been:\n  token 5, page "},
        {SLIP_COMMIT_ALL, 5, "-f 3 -r 1", "commit: every chunk was committed with its padding", "  padding row 5, of "},
        {SLIP_COMMIT_ZEROS, 5, "-f 3 -r 3", "commit: every chunk was committed with zeros for its padding", ""},
        {SLIP_MASKED, 5, "-f 3 -r 2", "window: padding of all chunks takes room in the window and is masked",
         "not read, but should have been:\n  token 10, page "},
        {SLIP_LATE, 5, "-f 3 -r 0", "window: the first chunk's padding moves the start of every later window: too late",
         "not read, but should have been:\n  token 10, page "},
        {SLIP_EARLY, 5, "-f 3 -r 4",
         "window: the padding of all earlier chunks moves the start of the window: too early",
         "read, but should not have been:\n  token 7, of forward 0 rank 1"},
        {SLIP_PAGE_START, 5, "-f 3 -r 2", "window: the window starts at the first token of a page",
         "read, but should not have been:\n  tokens 8-9, of forward 1 rank 0"},
        {SLIP_LATER_BLOCKS, 1, "-f 1 -r 1", "window: later causal blocks of the forward are read too",
         "  token 10, of "},
        {SLIP_NO_CACHE, 5, "-f 3 -r 1", "window: the cache is not read",
         "not read, but should have been:\n  tokens 0-2, page "},
        {SLIP_SHARD_LENGTH, 5, "-f 1 -r 0", "seq_len: seq_len is that of one rank's shard",
         "not read, but should have been:\n  token 11, page "},
        {SLIP_TRANSPOSED, 5, "-f 2 -r 1", "layout: rows and heads are transposed", ""},
        {SLIP_NEIGHBOUR, 5, "-f 2 -r 1", "layout: the heads are the next rank's", ""},
        {SLIP_REVERSED, 5, "-f 2 -r 1", "layout: the ranks' shards are put together in the opposite order", ""},
        {SLIP_GROUPS, 5, "-f 2 -r 1", "heads: query heads read K/V head h modulo kv_heads", ""},
        {SLIP_CONTEXT, 5, "-f 1 -r 3", "context: keys that every rank holds are counted once per rank",
         "read, but should not have been:\n  tokens 0-2, page "},
        {SLIP_MISSING, 5, "-f 3 -r 3", "key: one key is left out",
         "not read, but should have been:\n  token 16, page "},
        {SLIP_NO_PIN, 5, "-f 2 -r 1", "window: the pinned tokens are not read",
         "not read, but should have been:\n  tokens 0-2, page "},
        {SLIP_PIN_COUNTS, 5, "-f 2 -r 1", "window: the pinned tokens take room in the window",
         "not read, but should have been:\n  token 5, page "},
        {SLIP_OWN_COUNTS, 5, "-f 3 -r 0", "window: the causal block's own tokens take room in the window",
         "not read, but should have been:\n  token 10, page "},
        {SLIP_CHUNK_EARLY, 5, "-f 3 -r 0", "window: the window starts a chunk too early",
         "read, but should not have been:\n  token 5, of forward 0 rank 0, version 2\n"},
        {SLIP_FIRST_WINDOW, 1, "-f 2 -r 4", "window: every causal block reads the window of the first one",
         "read, but should not have been:\n  token 5, of forward 0 rank 0"},
        {SLIP_STALE_STEP, 5, "-f 5 -r 1", "commit: chunks keep K and V of the denoising step before their last one",
         "read, but should not have been:\n  token 5, of forward 0 rank 0"},
    };
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char command[256], verdict[256];
        slip_trace_write(place.folder, rows[i].slip, rows[i].block, true);
        snprintf(command, sizeof command, "explain t --ranks 2 %s", rows[i].options);
        snprintf(verdict, sizeof verdict, "\nverdict: %s", rows[i].verdict);
        workplace_expect(&place, command, 1, NULL, "");
        assert_out(&place, verdict);
        assert_out(&place, rows[i].keys);
    }
    workplace_close(&place);
}

static void what_no_mistake_explains_is_said(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    slip_trace_write(place.folder, SLIP_NONSENSE, SLIP_TOKENS, true);
    workplace_expect(&place, "explain t -f 2 -r 3", 1, NULL, "");
    assert_out(&place, "\nverdict: wrong, and no known mistake fits\n");
    workplace_close(&place);
}

/* Of the rows of forward 2, by hand: the window of 8 before token 13 begins at token 5, and the prompt is pinned. */
static void right_rows_show_their_keys(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    slip_trace_write(place.folder, SLIP_NONE, SLIP_TOKENS, true);
    for (int row = 0; row < SLIP_TOKENS; row++) {
        char command[64];
        snprintf(command, sizeof command, "explain t --ranks 2 -f 2 -r %d", row);
        workplace_expect(&place, command, 0, NULL, "");
        assert_out(&place, "block 0 of 5 tokens should read 16 keys:\n  tokens 0-2, page ");
        assert_out(&place, ", written on every rank, version 1\n");
        assert_out(&place, "\n  token 5, page ");
        assert_out(&place, ", of forward 0 rank 0, version 2\n");
        assert_out(&place, ", of forward 2 rank 1, version 4\nrecorded output: right, off by ");
        assert_null(strstr(place.out, "token 4"));
        assert_null(strstr(place.out, "tokens 4"));
        assert_null(strstr(place.out, "padding row"));
    }
    workplace_expect(&place, "explain t -f 2 -r 5", 0, NULL, "");
    assert_out(&place, "row 5 is padding: it reads nothing and comes back zero\nrecorded output: right");
    slip_trace_write(place.folder, SLIP_NONE, SLIP_TOKENS, false);
    workplace_expect(&place, "explain t -f 2 -r 0", 0, NULL, "");
    assert_out(&place, "no output was recorded (f2.expected): nothing to explain\n");
    workplace_close(&place);
}

/* The prompt is committed but never written: row 0 would read it, row 4 not. */
static void a_token_never_written_is_refused(void **state)
{
    (void)state;
    enum { BLOCK = 1, SMALL_WINDOW = 2 };
    static float values[SLIP_TOKENS][SLIP_Q_HEADS][SLIP_DIM];
    const int64_t size = BLOCK;
    trace_config config = {.layers = 1,
                           .q_heads = SLIP_Q_HEADS,
                           .kv_heads = SLIP_KV_HEADS,
                           .head_dim = SLIP_DIM,
                           .dtype = CKV_FP32,
                           .tokens_per_page = SLIP_PAGE};
    workplace place;
    open_ckv(&place);
    trace *t = trace_create(&config);
    assert_non_null(t);
    assert_true(trace_add_open(t, 0, SMALL_WINDOW, SLIP_TOKENS, &size, 1));
    assert_true(trace_add_commit(t, SLIP_PROMPT));
    assert_true(trace_add_forward(t, 0, SLIP_TOKENS, SLIP_TOKENS, BLOCK, "f0", values, values, values, values));
    char path[128];
    problem why;
    snprintf(path, sizeof path, "%s/t", place.folder);
    if (!trace_write(t, path, &why))
        fail_msg("%s", why.text);
    trace_free(&t);
    for (int row = 0; row < SLIP_TOKENS; row++) {
        char command[64];
        snprintf(command, sizeof command, "explain t -f 0 -r %d", row);
        workplace_expect(&place, command, 2, "", "t: forward 0 would read a token that was never written in layer 0\n");
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_close(&place);
}

/* Two tokens of values 1 and 3 and two padding rows of 8 and 20, all keys alike: with the first padding row the mean
 * is 4. Of two ranks each has room for a token; one rank has room for all. */
static void padding_that_no_shard_has_room_for_is_no_ranks(void **state)
{
    (void)state;
    enum { TOKENS = 2, ROWS = 4, HEADS = 2 };
    static const float keys[ROWS][HEADS];
    const float values[ROWS][HEADS] = {{1, 1}, {3, 3}, {8, 8}, {20, 20}}, expected[ROWS][HEADS] = {{4, 4}, {4, 4}};
    const int64_t size = TOKENS;
    trace_config config = {
        .layers = 1, .q_heads = HEADS, .kv_heads = HEADS, .head_dim = 1, .dtype = CKV_FP32, .tokens_per_page = 2};
    workplace place;
    open_ckv(&place);
    trace *t = trace_create(&config);
    assert_non_null(t);
    assert_true(trace_add_open(t, 0, 0, TOKENS, &size, 1));
    assert_true(trace_add_forward(t, 0, ROWS, TOKENS, TOKENS, "f0", keys, keys, values, expected));
    char path[128];
    problem why;
    snprintf(path, sizeof path, "%s/t", place.folder);
    if (!trace_write(t, path, &why))
        fail_msg("%s", why.text);
    trace_free(&t);
    workplace_expect(&place, "explain t -f 0 -r 0 --ranks 2", 1, NULL, "");
    assert_out(&place, "\nverdict: key: one key too many\n");
    assert_out(&place, "\n  padding row 2, of forward 0, in no rank's shard\n");
    workplace_expect(&place, "explain t -f 0 -r 0", 1, NULL, "");
    assert_out(&place, "\n  padding row 2, of forward 0 rank 0\n");
    workplace_close(&place);
}

static double off_by(workplace *place, int forward, int row)
{
    char command[64];
    snprintf(command, sizeof command, "explain t --ranks 2 -f %d -r %d", forward, row);
    workplace_run(place, command);
    const char *off = strstr(place->out, "off by ");
    assert_non_null(off);
    return strtod(off + strlen("off by "), NULL);
}

/* Who has a wrong video knows no forward and no row. This mistake spares the first forwards. */
static void the_worst_row_of_the_first_wrong_forward_is_the_default(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    slip_trace_write(place.folder, SLIP_PAGE_START, SLIP_TOKENS, true);
    workplace_expect(&place, "explain t --ranks 2", 1, NULL, "");
    assert_out(&place, "\nread, but should not have been:\n  token 4, of forward 0 rank 0, version 2\n");
    int forward = 0, row = -1;
    assert_int_equal(sscanf(place.out, "forward %d: %*[^;]; row %d", &forward, &row), 2);
    assert_true(forward > 0);
    double error = off_by(&place, forward, row);
    for (int i = 0; i < SLIP_TOKENS; i++)
        assert_true(off_by(&place, forward, i) <= error);
    for (int i = 0; i < forward; i++) {
        char command[64];
        snprintf(command, sizeof command, "explain t -f %d", i);
        workplace_expect(&place, command, 0, NULL, "");
        assert_out(&place, "\nrecorded output: right, off by ");
    }
    slip_trace_write(place.folder, SLIP_NONE, SLIP_TOKENS, true);
    workplace_expect(&place, "explain t", 0,
                     "4 forwards, no recorded output is wrong: --forward and --row name a row to show\n", "");
    workplace_close(&place);
}

static void refusals_are_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *cause;
    } rows[] = {
        {"explain", "the trace is missing"},
        {"explain t -r 0", "--forward is missing"},
        {"explain t t -f 0 -r 0", "one trace at a time"},
        {"explain t -f x -r 0", "--forward is 'x'"},
        {"explain t -f 4", "there is no forward 4: the trace has 4"},
        {"explain t -f 4 -r 0", "there is no forward 4: the trace has 4"},
        {"explain t -f 0 -r 6", "--row 6: forward 0 has 6 rows"},
        {"explain t -f 0 -r 0 --ranks 0", "--ranks is '0'"},
        {"explain t -f 0 -r 0 --ranks 3", "--ranks 3: 4 query heads do not share out evenly"},
        {"explain nowhere -f 0 -r 0", "nowhere: No such file or directory"},
        {"explain bad -f 0 -r 0", "bad: header length"},
    };
    workplace place;
    open_ckv(&place);
    slip_trace_write(place.folder, SLIP_NONE, SLIP_TOKENS, true);
    workplace_put(&place, "bad", "not a trace");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        workplace_expect(&place, rows[i].arguments, 2, "", rows[i].cause);
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(every_mistake_is_named),
    CKV_CASE(what_no_mistake_explains_is_said),
    CKV_CASE(right_rows_show_their_keys),
    CKV_CASE(a_token_never_written_is_refused),
    CKV_CASE(padding_that_no_shard_has_room_for_is_no_ranks),
    CKV_CASE(the_worst_row_of_the_first_wrong_forward_is_the_default),
    CKV_CASE(refusals_are_one_line),
};

CKV_TEST_MAIN("explain", cases)
