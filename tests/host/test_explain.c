/* SPDX-License-Identifier: Apache-2.0 */
/* `ckv explain` on traces of a small model with one mistake in its attention: computed here from plain lists of keys,
 * so that it shares nothing with the cache, the reference or the mistakes that are tried. */
#include "tests/support/case.h"
#include "tests/support/random.h"
#include "tests/support/workplace.h"
#include "tools/trace/trace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { Q_HEADS = 4, KV_HEADS = 2, DIM = 8, PROMPT = 3, TOKENS = 5, ROWS = 6, CHUNKS = 4, WINDOW = 8, PAGE = 4 };
enum { MAX_TOKENS = PROMPT + CHUNKS * TOKENS, MAX_KEYS = 64 };

typedef enum slip {
    NONE,
    PADDING_READ,
    PADDING_ZERO,
    PADDING_LEFT,
    COMMIT_FIRST,
    COMMIT_ALL,
    COMMIT_ZEROS,
    MASKED,
    LATE,
    EARLY,
    PAGE_START,
    LATER_BLOCKS,
    NO_CACHE,
    SHARD_LENGTH,
    TRANSPOSED,
    NEIGHBOUR,
    REVERSED,
    GROUPS,
    CONTEXT,
    MISSING,
    NONSENSE,
} slip;

typedef struct key {
    float k[KV_HEADS][DIM], v[KV_HEADS][DIM];
} key;

typedef struct model {
    slip slip;
    int block;
    ckv_random random;
    key tokens[MAX_TOKENS]; /* by id */
    key padding[CHUNKS];
    float q[ROWS][Q_HEADS][DIM], out[ROWS][Q_HEADS][DIM];
} model;

typedef struct key_list {
    const key *keys[MAX_KEYS];
    int count;
} key_list;

static const key zero_key;

static void push(key_list *list, const key *one)
{
    assert_true(list->count < MAX_KEYS);
    list->keys[list->count++] = one;
}

/* Rows of the stored past, padding included where the slip stores it; the window counts them. */
static void push_padded_past(const model *m, int chunk, key_list *list)
{
    const key *stored[MAX_KEYS];
    int count = 0;
    for (int id = 0; id < PROMPT + chunk * TOKENS; id++) {
        stored[count++] = &m->tokens[id];
        int of = (id - PROMPT) / TOKENS;
        bool ends_chunk = id >= PROMPT && (id - PROMPT) % TOKENS == TOKENS - 1;
        if (ends_chunk && (of == 0 || m->slip != COMMIT_FIRST))
            stored[count++] = m->slip == COMMIT_ZEROS ? &zero_key : &m->padding[of];
    }
    for (int i = 0; i < count; i++) {
        bool is_padding = stored[i] == &zero_key || (stored[i] >= m->padding && stored[i] < m->padding + CHUNKS);
        if ((i < PROMPT || i >= count - WINDOW) && !(m->slip == MASKED && is_padding))
            push(list, stored[i]);
    }
}

static void push_past(const model *m, int chunk, int start, key_list *list)
{
    int begin = start - WINDOW;
    begin += m->slip == LATE ? 1 : m->slip == EARLY ? -3 : m->slip == PAGE_START ? -(begin % PAGE) : 0;
    for (int id = 0; id < PROMPT + chunk * TOKENS; id++)
        for (int times = 0; times < (m->slip == CONTEXT && id < PROMPT ? 2 : 1); times++)
            if ((id < PROMPT || id >= begin) && !(m->slip == MISSING && id == PROMPT + chunk * TOKENS - 2))
                push(list, &m->tokens[id]);
}

static void read_keys(const model *m, int chunk, int row, key_list *list)
{
    int committed = PROMPT + chunk * TOKENS, end = (row / m->block + 1) * m->block;
    if (m->slip == COMMIT_FIRST || m->slip == COMMIT_ALL || m->slip == COMMIT_ZEROS || m->slip == MASKED)
        push_padded_past(m, chunk, list);
    else if (m->slip != NO_CACHE)
        push_past(m, chunk, committed + row / m->block * m->block, list);
    end = m->slip == LATER_BLOCKS ? TOKENS : m->slip == SHARD_LENGTH ? ROWS / 2 : end;
    for (int i = 0; i < end; i++)
        push(list, &m->tokens[committed + i]);
    if (m->slip == PADDING_READ || m->slip == PADDING_ZERO)
        push(list, m->slip == PADDING_ZERO ? &zero_key : &m->padding[chunk]);
}

static void attend(const model *m, int chunk, int row, int head, float out[DIM])
{
    key_list list = {.count = 0};
    read_keys(m, chunk, row < TOKENS ? row : TOKENS - 1, &list);
    int kv = m->slip == GROUPS ? head % KV_HEADS : head / (Q_HEADS / KV_HEADS);
    double sum = 0, values[DIM] = {0};
    for (int i = 0; i < list.count; i++) {
        double score = 0;
        for (int d = 0; d < DIM; d++)
            score += (double)m->q[row][head][d] * list.keys[i]->k[kv][d];
        double weight = exp(score / sqrt(DIM));
        sum += weight;
        for (int d = 0; d < DIM; d++)
            values[d] += weight * list.keys[i]->v[kv][d];
    }
    for (int d = 0; d < DIM; d++)
        out[d] = (float)(values[d] / sum);
}

/* The model's output, on two ranks. */
static void compute(model *m, int chunk)
{
    memset(m->out, 0, sizeof m->out);
    for (int row = 0; row < (m->slip == PADDING_LEFT ? ROWS : TOKENS); row++) {
        for (int head = 0; head < Q_HEADS; head++) {
            int from_row = row, from_head = head;
            if (m->slip == TRANSPOSED) {
                int index = row * (Q_HEADS / 2) + head % 2;
                from_row = index % ROWS;
                from_head = head / 2 * 2 + index / ROWS;
            }
            if (m->slip == NEIGHBOUR)
                from_head = (head + 2) % Q_HEADS;
            if (m->slip == REVERSED)
                from_row = (row + ROWS / 2) % ROWS;
            if (from_row < TOKENS || m->slip == PADDING_LEFT)
                attend(m, chunk, from_row, from_head, m->out[row][head]);
            for (int d = 0; d < DIM && m->slip == NONSENSE; d++)
                m->out[row][head][d] = ckv_random_float(&m->random);
        }
    }
}

static void fill(ckv_random *random, float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = 2 * ckv_random_float(random);
}

static void pack(const key *keys, int count, float k[][KV_HEADS][DIM], float v[][KV_HEADS][DIM])
{
    for (int i = 0; i < count; i++) {
        memcpy(k[i], keys[i].k, sizeof keys[i].k);
        memcpy(v[i], keys[i].v, sizeof keys[i].v);
    }
}

static void add_chunk(model *m, trace *t, int chunk, bool with_expected)
{
    float k[ROWS][KV_HEADS][DIM], v[ROWS][KV_HEADS][DIM];
    char name[16];
    snprintf(name, sizeof name, "f%d", chunk);
    fill(&m->random, m->q[0][0], (size_t)ROWS * Q_HEADS * DIM);
    compute(m, chunk);
    pack(&m->tokens[PROMPT + chunk * TOKENS], TOKENS, k, v);
    pack(&m->padding[chunk], 1, k + TOKENS, v + TOKENS);
    assert_true(
        trace_add_forward(t, 0, ROWS, TOKENS, m->block, name, m->q, k, v, with_expected ? (const void *)m->out : NULL));
    assert_true(trace_add_commit(t, TOKENS));
}

static void write_trace(const workplace *place, slip of, int block, bool with_expected)
{
    static model m;
    trace_config config = {.layers = 1,
                           .q_heads = Q_HEADS,
                           .kv_heads = KV_HEADS,
                           .head_dim = DIM,
                           .dtype = CKV_FP32,
                           .tokens_per_page = PAGE};
    const int64_t sizes[] = {TOKENS, 1};
    float k[PROMPT][KV_HEADS][DIM], v[PROMPT][KV_HEADS][DIM];
    m = (model){.slip = of, .block = block, .random = {ckv_test_seed() + (uint64_t)of}};
    fill(&m.random, m.tokens[0].k[0], (size_t)MAX_TOKENS * 2 * KV_HEADS * DIM);
    fill(&m.random, m.padding[0].k[0], (size_t)CHUNKS * 2 * KV_HEADS * DIM);
    trace *t = trace_create(&config);
    assert_non_null(t);
    assert_true(trace_add_open(t, PROMPT, WINDOW, TOKENS, sizes, 2));
    pack(m.tokens, PROMPT, k, v);
    assert_true(trace_add_write_range(t, 0, 0, PROMPT, "prompt", k, v));
    assert_true(trace_add_commit(t, PROMPT));
    for (int chunk = 0; chunk < CHUNKS; chunk++)
        add_chunk(&m, t, chunk, with_expected);
    assert_true(trace_add_close(t));
    char path[128];
    problem why;
    snprintf(path, sizeof path, "%s/t", place->folder);
    if (!trace_write(t, path, &why))
        fail_msg("%s", why.text);
    trace_free(&t);
}

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
        {PADDING_READ, 5, "-f 1 -r 2", "padding: the forward's padding rows are attended with what they hold",
         "read, but should not have been:\n  padding row 5, of forward 1 rank 1\n"},
        {PADDING_ZERO, 5, "-f 0 -r 4", "padding: the forward's padding rows are attended with zero keys",
         "  padding row 5, of forward 0 rank 1\n"},
        {PADDING_LEFT, 5, "-f 2 -r 5", "padding: a padding row is computed like a token's and left in the output", ""},
        {COMMIT_FIRST, 5, "-f 2 -r 0", "commit: the first padded chunk was committed with its padding",
         "  padding row 5, of forward 0 rank 1\nnot read, but should have been:\n  token 5, page "},
        {COMMIT_ALL, 5, "-f 3 -r 1", "commit: every chunk was committed with its padding", "  padding row 5, of "},
        {COMMIT_ZEROS, 5, "-f 3 -r 3", "commit: every chunk was committed with zeros for its padding", ""},
        {MASKED, 5, "-f 3 -r 2", "window: padding of all chunks takes room in the window and is masked",
         "not read, but should have been:\n  token 10, page "},
        {LATE, 5, "-f 3 -r 0", "window: the first chunk's padding moves the start of every later window: too late",
         "not read, but should have been:\n  token 10, page "},
        {EARLY, 5, "-f 3 -r 4", "window: the padding of all earlier chunks moves the start of the window: too early",
         "read, but should not have been:\n  token 7, of forward 0 rank 1"},
        {PAGE_START, 5, "-f 3 -r 2", "window: the window starts at the first token of a page",
         "read, but should not have been:\n  tokens 8-9, of forward 1 rank 0"},
        {LATER_BLOCKS, 1, "-f 1 -r 1", "window: later causal blocks of the forward are read too", "  token 10, of "},
        {NO_CACHE, 5, "-f 3 -r 1", "window: the cache is not read",
         "not read, but should have been:\n  tokens 0-2, page "},
        {SHARD_LENGTH, 5, "-f 1 -r 0", "seq_len: seq_len is that of one rank's shard",
         "not read, but should have been:\n  token 11, page "},
        {TRANSPOSED, 5, "-f 2 -r 1", "layout: rows and heads are transposed", ""},
        {NEIGHBOUR, 5, "-f 2 -r 1", "layout: the heads are the next rank's", ""},
        {REVERSED, 5, "-f 2 -r 1", "layout: the ranks' shards are put together in the opposite order", ""},
        {GROUPS, 5, "-f 2 -r 1", "heads: query heads read K/V head h modulo kv_heads", ""},
        {CONTEXT, 5, "-f 1 -r 3", "context: keys that every rank holds are counted once per rank",
         "read, but should not have been:\n  tokens 0-2, page "},
        {MISSING, 5, "-f 3 -r 3", "key: one key is left out", "not read, but should have been:\n  token 16, page "},
    };
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char command[256], verdict[256];
        write_trace(&place, rows[i].slip, rows[i].block, true);
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
    write_trace(&place, NONSENSE, TOKENS, true);
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
    write_trace(&place, NONE, TOKENS, true);
    for (int row = 0; row < TOKENS; row++) {
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
    write_trace(&place, NONE, TOKENS, false);
    workplace_expect(&place, "explain t -f 2 -r 0", 0, NULL, "");
    assert_out(&place, "no output was recorded (f2.expected): nothing to explain\n");
    workplace_close(&place);
}

/* The prompt is committed but never written: row 0 would read it, row 4 not. */
static void a_token_never_written_is_refused(void **state)
{
    (void)state;
    enum { BLOCK = 1, SMALL_WINDOW = 2 };
    static float values[TOKENS][Q_HEADS][DIM];
    const int64_t size = BLOCK;
    trace_config config = {.layers = 1,
                           .q_heads = Q_HEADS,
                           .kv_heads = KV_HEADS,
                           .head_dim = DIM,
                           .dtype = CKV_FP32,
                           .tokens_per_page = PAGE};
    workplace place;
    open_ckv(&place);
    trace *t = trace_create(&config);
    assert_non_null(t);
    assert_true(trace_add_open(t, 0, SMALL_WINDOW, TOKENS, &size, 1));
    assert_true(trace_add_commit(t, PROMPT));
    assert_true(trace_add_forward(t, 0, TOKENS, TOKENS, BLOCK, "f0", values, values, values, values));
    char path[128];
    problem why;
    snprintf(path, sizeof path, "%s/t", place.folder);
    if (!trace_write(t, path, &why))
        fail_msg("%s", why.text);
    trace_free(&t);
    for (int row = 0; row < TOKENS; row++) {
        char command[64];
        snprintf(command, sizeof command, "explain t -f 0 -r %d", row);
        workplace_expect(&place, command, 2, "", "t: forward 0 would read a token that was never written in layer 0\n");
        assert_int_equal(lines_of(place.err), 1);
    }
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
        {"explain t -f 0", "--row is missing"},
        {"explain t t -f 0 -r 0", "one trace at a time"},
        {"explain t -f x -r 0", "--forward is 'x'"},
        {"explain t -f 4 -r 0", "there is no forward 4: the trace has 4"},
        {"explain t -f 0 -r 6", "--row 6: forward 0 has 6 rows"},
        {"explain t -f 0 -r 0 --ranks 0", "--ranks is '0'"},
        {"explain t -f 0 -r 0 --ranks 3", "--ranks 3: 4 query heads do not share out evenly"},
        {"explain nowhere -f 0 -r 0", "nowhere: No such file or directory"},
        {"explain bad -f 0 -r 0", "bad: header length"},
    };
    workplace place;
    open_ckv(&place);
    write_trace(&place, NONE, TOKENS, true);
    workplace_put(&place, "bad", "not a trace");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        workplace_expect(&place, rows[i].arguments, 2, "", rows[i].cause);
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(every_mistake_is_named),     CKV_CASE(what_no_mistake_explains_is_said),
    CKV_CASE(right_rows_show_their_keys), CKV_CASE(a_token_never_written_is_refused),
    CKV_CASE(refusals_are_one_line),
};

CKV_TEST_MAIN("explain", cases)
