/* SPDX-License-Identifier: Apache-2.0 */
/* `ckv repro shrink`: how small known mistakes become, that they stay the same, and that the case it writes fails
 * alike. */
#include "tests/support/case.h"
#include "tests/support/ranks.h"
#include "tests/support/slip_trace.h"
#include "tests/support/workplace.h"
#include "tools/repro/reduce.h"
#include "tools/repro/shrink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW_TOKENS = 16 };

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

static int shrunk_tokens(const workplace *place)
{
    int tokens = -1;
    const char *line = strstr(place->out, "shrunk to ");
    if (line == NULL || sscanf(line, "shrunk to %d token", &tokens) != 1)
        fail_msg("no result in:\n%s", place->out);
    return tokens;
}

static trace *read_trace(const workplace *place, const char *name)
{
    char path[128];
    trace *t = NULL;
    problem why;
    snprintf(path, sizeof path, "%s/%s", place->folder, name);
    if (!trace_read(path, &t, &why))
        fail_msg("%s", why.text);
    return t;
}

/* What `ckv explain` says of the worst row of the small trace, on as many ranks as are left. */
static void explain_small(workplace *place)
{
    char *said = strdup(place->out), command[96];
    int forward, row, ranks = 2;
    const char *end = strstr(said, "shrunk to "), *worst = strstr(end, "\nforward "),
               *left = strstr(end, "ranks 2 -> ");
    assert_non_null(worst);
    assert_int_equal(sscanf(worst, "\nforward %d row %d ", &forward, &row), 2);
    if (left != NULL)
        ranks = left[strlen("ranks 2 -> ")] - '0';
    free(said);
    snprintf(command, sizeof command, "explain small --ranks %d -f %d -r %d", ranks, forward, row);
    workplace_expect(place, command, 1, NULL, "");
}

static const struct {
    slip slip;
    int block;
    const char *verdict;
} slips[] = {
    {SLIP_PADDING_READ, SLIP_TOKENS, "padding: the forward's padding rows are attended with what they hold"},
    {SLIP_PADDING_ZERO, SLIP_TOKENS, "padding: the forward's padding rows are attended with zero keys"},
    {SLIP_COMMIT_FIRST, SLIP_TOKENS, "commit: the first padded chunk was committed with its padding"},
    {SLIP_COMMIT_ALL, SLIP_TOKENS, "commit: every chunk was committed with its padding"},
    {SLIP_COMMIT_ZEROS, SLIP_TOKENS, "commit: every chunk was committed with zeros for its padding"},
    {SLIP_MASKED, SLIP_TOKENS, "window: padding of all chunks takes room in the window and is masked"},
    {SLIP_LATE, SLIP_TOKENS, "window: the first chunk's padding moves the start of every later window: too late"},
    {SLIP_EARLY, SLIP_TOKENS, "window: the padding of all earlier chunks moves the start of the window: too early"},
    {SLIP_PAGE_START, SLIP_TOKENS, "window: the window starts at the first token of a page"},
    {SLIP_LATER_BLOCKS, 1, "window: later causal blocks of the forward are read too"},
    {SLIP_NO_CACHE, SLIP_TOKENS, "window: the cache is not read"},
    {SLIP_SHARD_LENGTH, SLIP_TOKENS, "seq_len: seq_len is that of one rank's shard"},
    {SLIP_TRANSPOSED, SLIP_TOKENS, "layout: rows and heads are transposed"},
    {SLIP_NEIGHBOUR, SLIP_TOKENS, "layout: the heads are the next rank's"},
    {SLIP_REVERSED, SLIP_TOKENS, "layout: the ranks' shards are put together in the opposite order"},
    {SLIP_GROUPS, SLIP_TOKENS, "heads: query heads read K/V head h modulo kv_heads"},
    {SLIP_CONTEXT, SLIP_TOKENS, "context: keys that every rank holds are counted once per rank"},
    {SLIP_MISSING, SLIP_TOKENS, "key: one key is left out"},
};

/* 23 tokens of 4 heads; the small trace is wrong by itself, and in the same way. */
static void known_mistakes_become_small(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof slips / sizeof slips[0]; i++) {
        char verdict[160];
        slip_trace_write(place.folder, slips[i].slip, slips[i].block, true);
        workplace_expect(&place, "repro shrink t --ranks 2 -o small", 1, NULL, "");
        assert_out(&place, slips[i].verdict);
        print_message("%s: %d tokens\n", slips[i].verdict, shrunk_tokens(&place));
        assert_in_range(shrunk_tokens(&place), 1, FEW_TOKENS);
        snprintf(verdict, sizeof verdict, "\nverdict: %s", slips[i].verdict);
        explain_small(&place);
        assert_out(&place, verdict);
        workplace_expect(&place, "replay small", 1, NULL, "");
        assert_out(&place, "  the recorded output (.expected) differs from the exact window");
    }
    workplace_close(&place);
}

/* Nobody knows what that model would have computed with less: its output stays as it was recorded. */
static void what_no_mistake_explains_stays_as_recorded(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    slip_trace_write(place.folder, SLIP_NONSENSE, SLIP_TOKENS, true);
    workplace_expect(&place, "repro shrink t -o small", 1, NULL, "");
    assert_out(&place, "no known mistake fits\n");
    assert_out(&place, "forwards 4 -> 1");
    trace *t = read_trace(&place, "t"), *small = read_trace(&place, "small");
    const trace_op *was = NULL, *is = NULL;
    for (size_t i = t->num_ops; i-- > 0;)
        was = t->ops[i].kind == TRACE_FORWARD ? &t->ops[i] : was;
    for (size_t i = 0; i < small->num_ops; i++)
        is = small->ops[i].kind == TRACE_FORWARD ? &small->ops[i] : is;
    assert_non_null(was);
    assert_non_null(is);
    assert_int_equal(is->seq_len, was->seq_len);
    assert_int_equal(small->config.head_dim, SLIP_DIM);
    int64_t heads = small->config.q_heads;
    for (int64_t row = 0; row < is->seq_len; row++) {
        const float *small_row = (const float *)is->expected + row * heads * SLIP_DIM;
        int found = 0;
        for (int64_t head = 0; head + heads <= SLIP_Q_HEADS; head++)
            found |= memcmp(small_row, (const float *)was->expected + (row * SLIP_Q_HEADS + head) * SLIP_DIM,
                            (size_t)(heads * SLIP_DIM) * sizeof(float)) == 0;
        assert_true(found);
    }
    trace_free(&t);
    trace_free(&small);
    workplace_close(&place);
}

/* Rounding is wrong when nothing else is allowed: a failure of ckv's own output, on threads as ranks. */
static void own_outputs_become_small(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    workplace_expect(&place, "repro padded-first-chunk --ranks 3 --tokens 7 --layers 2 --dtype bf16 -o t", 0, NULL, "");
    workplace_expect(&place, "repro shrink t --ranks 3 --tolerance 0 -o small", 1, NULL, "");
    assert_out(&place, "channel 0 rank 0: ckv computes ");
    assert_in_range(shrunk_tokens(&place), 1, 2);
    workplace_expect(&place, "replay small --tolerance 0", 1, NULL, "");
    assert_out(&place, "  the replayed output differs from the exact window");
    trace *small = read_trace(&place, "small");
    assert_int_equal(small->config.layers, 1);
    for (size_t i = 0; i < small->num_ops; i++)
        assert_null(small->ops[i].expected);
    trace_free(&small);
    workplace_close(&place);
}

static void nothing_wrong_writes_nothing(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    slip_trace_write(place.folder, SLIP_NONE, SLIP_TOKENS, true);
    workplace_expect(&place, "repro shrink t --ranks 2 -o small --case case.c", 0,
                     "4 forwards, nothing wrong on 2 ranks: nothing to shrink\n", "");
    workplace_expect(&place, "replay small", 2, "", "small: No such file or directory");
    workplace_close(&place);
}

/* The same trace shrinks in the same way, to the last bit. */
static void tries_are_always_the_same(void **state)
{
    (void)state;
    workplace place;
    char *files[2], path[128];
    open_ckv(&place);
    slip_trace_write(place.folder, SLIP_COMMIT_ALL, SLIP_TOKENS, true);
    for (int i = 0; i < 2; i++) {
        workplace_expect(&place, "repro shrink t --ranks 2 --case case.c", 1, NULL, "");
        snprintf(path, sizeof path, "%s/case.c", place.folder);
        files[i] = read_text(path);
    }
    assert_string_equal(files[0], files[1]);
    free(files[0]);
    free(files[1]);
    workplace_close(&place);
}

/* Compiled against the public library; it fails as the trace does, and a right `expected` mends it. */
static void a_case_compiles_and_fails_alike(void **state)
{
    (void)state;
    static const struct {
        const char *make, *shrink, *says;
    } rows[] = {
        {NULL, "repro shrink t --ranks 2 --case case.c", ": the recorded output is "},
        {"repro padded-first-chunk --padding nan --dtype fp16 --pin 3 -o t",
         "repro shrink t --ranks 2 --tolerance 0 --case case.c", ": the output is "},
    };
    workplace place, shell;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        slip_trace_write(place.folder, SLIP_CONTEXT, SLIP_TOKENS, true); /* stays on two ranks, and edits */
        if (rows[i].make != NULL)
            workplace_expect(&place, rows[i].make, 0, NULL, "");
        workplace_expect(&place, rows[i].shrink, 1, NULL, "");
        shell = place;
        shell.program = CKV_CASE_COMPILER;
        shell.out = shell.err = NULL;
        workplace_expect(&shell, "-o case case.c " CKV_CASE_LIBRARIES, 0, "", "");
        shell.program = "env -u CKV_TEST_RECORD ./case";
        workplace_expect(&shell, "", 1, NULL, "");
        if (strstr(shell.out, rows[i].says) == NULL && strstr(shell.err, rows[i].says) == NULL)
            fail_msg("'%s' is not in:\n%s%s", rows[i].says, shell.out, shell.err);
        if (rows[i].make == NULL) {
            shell.program = "sed -i 's/, .expected = t[0-9]*_expected//; /_expected/,/^};/d' case.c &&";
            workplace_expect(&shell, CKV_CASE_COMPILER " -o case case.c " CKV_CASE_LIBRARIES, 0, "", "");
            shell.program = "env -u CKV_TEST_RECORD ./case";
            workplace_expect(&shell, "", 0, NULL, "");
        }
        free(shell.out);
        free(shell.err);
    }
    workplace_close(&place);
}

static void no_time_means_no_try(void **state)
{
    (void)state;
    shrinker s = {.trial = {.ranks = 2, .tolerance = -1, .limit_s = 60},
                  .best = slip_trace_make(SLIP_PADDING_READ, SLIP_TOKENS, true)};
    s.target = trial_run(&s.trial, s.best);
    assert_int_equal(s.target.kind, FAILURE_EXPECTED);
    assert_string_equal(s.target.class, "padding");
    shrink_run(&s);
    assert_int_equal(s.tries, 0);
    assert_true(s.is_late);
    assert_int_equal(shrink_size(&s).tokens, SLIP_PROMPT + SLIP_CHUNKS * SLIP_TOKENS);
    trace_free(&s.best);
}

/* A process of its own: a crash is a result, and so is a run without end. */
static void a_crash_is_a_failure(void **state)
{
    (void)state;
    trial c = {.ranks = 1, .tolerance = -1, .limit_s = 60};
    trace *t = slip_trace_make(SLIP_NONE, SLIP_TOKENS, false);
    union {
        uintptr_t address;
        const void *pointer;
    } nowhere = {8};
    assert_int_equal(trial_run(&c, t).kind, FAILURE_NONE);
    c.limit_s = 0;
    assert_int_equal(trial_run(&c, t).kind, FAILURE_LATE);
    c.limit_s = 60;
    for (size_t i = 0; i < t->num_ops; i++)
        if (t->ops[i].kind == TRACE_FORWARD)
            t->ops[i].k = nowhere.pointer;
    assert_int_equal(trial_run(&c, t).kind, FAILURE_CRASH);
    trace_free(&t);
}

/* The try that a lost parent was waiting for is over with it, whatever it does. */
static void no_try_outlives_its_parent(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    workplace_expect(&place, "repro padded-first-chunk --tokens 1701 --chunks 1 -o t", 0, NULL, "");
    place.program = "sh -c '\"" CKV_PROGRAM "\" repro shrink t --tolerance 0 & sleep 0.2; "
                    "c=$(cat /proc/$!/task/$!/children); kill -KILL $!; i=0; "
                    "while [ -n \"$c\" ] && grep -qs \"State:.[^Z]\" /proc/$((c))/status && [ $i -lt 50 ]; do "
                    "sleep 0.01; i=$((i + 1)); done; [ -n \"$c\" ] && [ $i -lt 50 ] && echo over'";
    workplace_expect(&place, "", 0, "over\n", NULL);
    workplace_close(&place);
}

static void lose_a_rank(ckv_comm *comm, rank_report *report)
{
    if (ckv_comm_rank(comm) != 0)
        return;
    shrinker s = {.trial = {.ranks = 2, .comm = comm, .tolerance = -1, .limit_s = 60},
                  .seconds = 60,
                  .best = slip_trace_make(SLIP_PADDING_READ, SLIP_TOKENS, true)};
    s.target = (failure){.kind = FAILURE_OUTPUT};
    shrink_run(&s);
    if (s.meeting == CKV_OK || s.tries != 0)
        rank_fail(report, __FILE__, __LINE__, "%s after %lld tries", ckv_status_name(s.meeting), (long long)s.tries);
    trace_free(&s.best);
}

/* Who does not meet the others any more has not run out of time. */
static void a_lost_rank_is_no_end_of_time(void **state)
{
    (void)state;
    const char *failed = ranks_run_on_threads(2, 300, lose_a_rank);
    if (failed[0] != '\0')
        fail_msg("%s", failed);
}

/* --- Traces from strangers --- */

/* A file of one forward: 3 rows of 2 query heads and a K/V head, 4 elements each, `fill` in every byte. */
typedef struct stranger {
    const char *says;            /* every command; NULL: it is no bad trace */
    const char *dtype, *k_dtype; /* NULL: fp32 and F32 */
    const char *open, *seq_len;  /* NULL: sound ones */
    long long header_bytes;      /* 0: as many as there are */
    size_t cut_bytes;            /* off the end */
    int fill;
    int rows;
} stranger;

/* JSON inside a string of JSON: ' stands for \". */
static int escape(const char *from, char *to)
{
    char *start = to;
    for (; *from != '\0'; from++) {
        if (*from == '\'')
            *to++ = '\\';
        *to++ = *from == '\'' ? '"' : *from;
    }
    *to = '\0';
    return (int)(to - start);
}

static void put_stranger(const workplace *place, const stranger *s)
{
    enum { ROW = 4 * 4 };
    char header[1024], bytes[4096], *text = bytes + 8;
    int rows = s->rows == 0 ? 3 : s->rows < 0 ? 0 : s->rows, q = rows * 2 * ROW, kv = rows * ROW;
    size_t data_bytes = (size_t)q + 2 * (size_t)kv;
    snprintf(header, sizeof header,
             "{\"__metadata__\":{\"ckv_trace\":\"1\",\"config\":\"{'layers':1,'q_heads':2,'kv_heads':1,'head_dim':4,"
             "'dtype':'%s','tokens_per_page':4}\",\"ops\":\"[{'op':'open',%s,'pin_tokens':0,'causal_block_sizes':[2]},"
             "{'op':'forward','layer':0,'tensor':'f','seq_len':%s,'causal_block_size':2}]\"},"
             "\"f.q\":{\"dtype\":\"F32\",\"shape\":[%d,2,4],\"data_offsets\":[0,%d]},"
             "\"f.k\":{\"dtype\":\"%s\",\"shape\":[%d,1,4],\"data_offsets\":[%d,%d]},"
             "\"f.v\":{\"dtype\":\"F32\",\"shape\":[%d,1,4],\"data_offsets\":[%d,%d]}}",
             s->dtype == NULL ? "fp32" : s->dtype,
             s->open == NULL ? "'window_tokens':4,'max_staged_tokens':4" : s->open,
             s->seq_len == NULL ? "2" : s->seq_len, rows, q, s->k_dtype == NULL ? "F32" : s->k_dtype, rows, q, q + kv,
             rows, q + kv, q + 2 * kv);
    int length = escape(header, text);
    long long header_bytes = s->header_bytes == 0 ? length : s->header_bytes;
    memcpy(bytes, &header_bytes, sizeof header_bytes);
    memset(text + length, s->fill, data_bytes);
    workplace_put_bytes(place, "t", bytes, 8 + (size_t)length + data_bytes - s->cut_bytes);
}

static void bad_traces_are_one_line(void **state)
{
    (void)state;
    static const stranger rows[] = {
        {.says = NULL},
        {.says = NULL, .fill = 0xff}, /* NaN everywhere: what comes out must be NaN */
        {.says = "run past the end of the file", .cut_bytes = 1},
        {.says = "run past the end of the file", .cut_bytes = 48},
        {.says = "header length", .cut_bytes = 600},
        {.says = "is over the limit", .header_bytes = 1LL << 62},
        {.says = "header length", .header_bytes = -1},
        {.says = "dtype 'fp8' is not one of", .dtype = "fp8"},
        {.says = "unknown dtype 'F5'", .k_dtype = "F5"},
        {.says = "need 96", .k_dtype = "F64"},
        {.says = "tensor 'f.k' is I32, config says fp32", .k_dtype = "I32"},
        {.says = "'seq_len' is 0", .seq_len = "0"},
        {.says = "seq_len 4 is more than the 3 rows", .seq_len = "4"},
        {.says = "has no token rows", .rows = -1},
        {.says = "this geometry needs", .open = "'window_tokens':1099511627776,'max_staged_tokens':4"},
        {.says = "this geometry needs", .open = "'window_tokens':0,'max_staged_tokens':1099511627776"},
        {.says = "it must be from 0 to 1099511627776",
         .open = "'window_tokens':9223372036854775807,'max_staged_tokens':4"},
        {.says = "a causal block size is 2; it must be 1 to 1", .open = "'window_tokens':0,'max_staged_tokens':1"},
    };
    static const char *const commands[] = {"replay t", "explain t -f 0 -r 0", "explain t -f 0 -r 2",
                                           "repro shrink t -o small --case case.c", "repro shrink t --ranks 2"};
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put_stranger(&place, &rows[i]);
        for (size_t c = 0; c < sizeof commands / sizeof commands[0]; c++) {
            if (rows[i].says == NULL) {
                workplace_expect(&place, commands[c], 0, NULL, "");
                continue;
            }
            workplace_expect(&place, commands[c], 2, "", rows[i].says);
            assert_int_equal(lines_of(place.err), 1);
        }
    }
    workplace_expect(&place, "replay small", 2, "", "small: No such file or directory");
    workplace_close(&place);
}

static void refusals_are_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *cause;
    } rows[] = {
        {"", "the trace is missing"},
        {"t t", "one trace at a time"},
        {"t --ranks 0", "--ranks is '0'"},
        {"t --ranks 3", "t: ulysses: 4 query heads on 3 ranks"},
        {"t --seconds 0", "--seconds is '0'"},
        {"t --tolerance x", "--tolerance is 'x'"},
        {"t --exchange pigeons", "--exchange is 'pigeons'"},
        {"t --faster", "unknown option '--faster'"},
        {"nowhere", "nowhere: No such file or directory"},
    };
    workplace place;
    open_ckv(&place);
    slip_trace_write(place.folder, SLIP_PADDING_READ, SLIP_TOKENS, true);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char command[128];
        snprintf(command, sizeof command, "repro shrink %s", rows[i].arguments);
        workplace_expect(&place, command, 2, "", rows[i].cause);
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_close(&place);
}

/* Told before anything is tried; the trace, and what was there, stay as they were. */
static void outputs_spare_the_trace_and_each_other(void **state)
{
    (void)state;
    static const char trace_itself[] = " is the trace itself; give another file";
    static const struct {
        const char *arguments, *cause;
    } rows[] = {
        {"-o t", trace_itself},
        {"-o ./t", trace_itself},
        {"-o linked", trace_itself},
        {"--case t", trace_itself},
        {"--case hard", trace_itself},
        {"-o small --case small", "--out and --case are both small; give two files"},
        {"-o small --case ./small", "--out and --case are both small; give two files"},
        {"-o there --case hard_there", "--out and --case are both there; give two files"},
        {"-o /nowhere/small", "/nowhere/small: No such file or directory"},
        {"--case /nowhere/c.c", "/nowhere/c.c: No such file or directory"},
        {"--case folder", "folder: Is a directory"},
        {"-o folder", "folder: not a regular file"},
        {"-o pipe", "pipe: not a regular file"},
    };
    workplace place;
    open_ckv(&place);
    slip_trace_write(place.folder, SLIP_PADDING_READ, SLIP_TOKENS, true);
    workplace_put(&place, "there", "old");
    workplace_expect(&place,
                     "--version && cp t copy && ln -s t linked && ln t hard && ln there hard_there && mkdir folder "
                     "&& mkfifo pipe",
                     0, NULL, "");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char command[128];
        snprintf(command, sizeof command, "repro shrink t %s", rows[i].arguments);
        workplace_expect(&place, command, 2, "", rows[i].cause);
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_expect(&place, "--version && cmp t copy && ls | tr '\n' ' '", 0, NULL, "");
    assert_out(&place, "copy err folder hard hard_there linked out pipe t there ");
    workplace_expect(&place, "repro shrink t --case /dev/full", 2, NULL, "/dev/full: No space left on device");
    workplace_expect(&place, "repro shrink t -o small --case there", 1, NULL, "");
    workplace_close(&place);
}

/* What stands where a trace is expected is not waited for. */
static void a_pipe_is_no_trace(void **state)
{
    (void)state;
    static const char *const commands[] = {"replay pipe", "explain pipe -f 0 -r 0", "repro shrink pipe"};
    workplace place;
    open_ckv(&place);
    workplace_expect(&place, "--version && mkfifo pipe", 0, NULL, "");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        workplace_expect(&place, commands[i], 2, "", "pipe: not a regular file");
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_close(&place);
}

/* --- Smaller traces --- */

static trace *reduced(const trace *t, reduction r)
{
    trace *small = reduce(t, &r);
    assert_non_null(small);
    return small;
}

static void reductions_keep_the_rest(void **state)
{
    (void)state;
    trace *t = slip_trace_make(SLIP_NONE, 1, true);
    assert_int_equal(trace_chunks(t), 1 + SLIP_CHUNKS);
    assert_int_equal(trace_tokens(t), SLIP_PROMPT + SLIP_CHUNKS * SLIP_TOKENS);
    trace_range third = trace_chunk(t, 2);
    const trace_op *was = &t->ops[third.first];
    trace *small = reduced(t, (reduction){.capped = third, .cap_tokens = 2, .kv_heads = {0, 1}, .group = {1, 1}});
    assert_int_equal(small->config.q_heads, 1);
    assert_int_equal(small->config.kv_heads, 1);
    const trace_op *is = &small->ops[third.first];
    assert_int_equal(is->seq_len, 2);
    assert_int_equal(is->rows, 3);
    assert_int_equal(is->causal_block_size, 1);
    assert_int_equal(small->ops[third.first + 1].tokens, 2);
    for (int row = 0; row < 3; row++) { /* the padding row is the last one; query head 2 is the first of K/V head 1 */
        int from = row < 2 ? row : SLIP_TOKENS;
        assert_memory_equal((const float *)is->k + row * SLIP_DIM,
                            (const float *)was->k + (from * SLIP_KV_HEADS + 1) * SLIP_DIM, SLIP_DIM * sizeof(float));
        assert_memory_equal((const float *)is->q + row * SLIP_DIM,
                            (const float *)was->q + (from * SLIP_Q_HEADS + 2) * SLIP_DIM, SLIP_DIM * sizeof(float));
    }
    trace_free(&small);
    small = reduced(t, (reduction){.ops = {0, 3}, .head_dim = 3, .expected = EXPECTED_LAST, .only_used_blocks = true});
    assert_int_equal(small->num_ops, t->num_ops - 3);
    assert_null(small->ops[0].expected);
    assert_non_null(small->ops[2 * SLIP_CHUNKS - 2].expected);
    assert_memory_equal((const float *)small->ops[0].v + 3, (const float *)t->ops[3].v + SLIP_DIM, 3 * sizeof(float));
    trace_free(&small);
    assert_null(reduce(t, &(reduction){.layers = {0, 1}}));
    assert_null(reduce(t, &(reduction){.number = NUMBER_BLOCKS, .number_op = third.first, .value = 2}));
    small = reduced(t, (reduction){.number = NUMBER_BLOCKS, .number_op = third.first, .value = 1});
    assert_int_equal(small->ops[third.first].causal_block_size, SLIP_TOKENS);
    trace_free(&small);
    trace_free(&t);
}

/* A file may have one tensor for two ops. */
static void shared_names_are_told_apart(void **state)
{
    (void)state;
    workplace place;
    char path[128];
    problem why;
    open_ckv(&place);
    trace *t = slip_trace_make(SLIP_NONE, SLIP_TOKENS, true);
    snprintf(path, sizeof path, "%s/shared", place.folder);
    for (size_t i = 0; i < t->num_ops; i++)
        if (t->ops[i].kind == TRACE_FORWARD)
            t->ops[i].tensor = i % 4 < 2 ? "f" : "f-0";
    assert_true(trace_name_apart(t));
    if (!trace_write(t, path, &why))
        fail_msg("%s", why.text);
    trace *again = read_trace(&place, "shared");
    assert_int_equal(again->num_ops, t->num_ops);
    for (size_t i = 0; i < t->num_ops; i++)
        if (t->ops[i].kind == TRACE_FORWARD)
            assert_memory_equal(again->ops[i].q, t->ops[i].q, SLIP_ROWS * SLIP_Q_HEADS * SLIP_DIM * sizeof(float));
    trace_free(&again);
    trace_free(&t);
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(known_mistakes_become_small),
    CKV_CASE(what_no_mistake_explains_stays_as_recorded),
    CKV_CASE(own_outputs_become_small),
    CKV_CASE(nothing_wrong_writes_nothing),
    CKV_CASE(tries_are_always_the_same),
    CKV_CASE(a_case_compiles_and_fails_alike),
    CKV_CASE(no_time_means_no_try),
    CKV_CASE(a_crash_is_a_failure),
    CKV_CASE(bad_traces_are_one_line),
    CKV_CASE(refusals_are_one_line),
    CKV_CASE(outputs_spare_the_trace_and_each_other),
    CKV_CASE(a_pipe_is_no_trace),
    CKV_CASE(no_try_outlives_its_parent),
    CKV_CASE(a_lost_rank_is_no_end_of_time),
    CKV_CASE(reductions_keep_the_rest),
    CKV_CASE(shared_names_are_told_apart),
};

CKV_TEST_MAIN("shrink", cases)
