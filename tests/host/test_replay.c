/* SPDX-License-Identifier: Apache-2.0 */
/* Traces end to end on one rank and on threads as ranks, and the `ckv replay` program on files. */
#include "tests/support/case.h"

#include "tests/support/random.h"
#include "tests/support/rollout_trace.h"
#include "tests/support/trace_run.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = 6 };

static trace *make_trace(const rollout_spec *spec)
{
    trace *t = rollout_trace_make(spec);
    assert_non_null(t);
    return t;
}

typedef struct rank_run {
    pthread_t thread;
    const trace *trace;
    ckv_comm *comm;
    const trace_run_options *options;
    trace_outcome outcome;
} rank_run;

static void *run_rank(void *argument)
{
    rank_run *run = argument;
    trace_run(run->trace, run->comm, run->options, &run->outcome);
    ckv_comm_destroy(&run->comm);
    return NULL;
}

/* Runs the trace on `ranks` threads; every rank must come to the same result, which is rank 0's. */
static void run_with_options(const trace *t, int ranks, const trace_run_options *options, trace_outcome *outcome)
{
    static rank_run runs[MAX_RANKS];
    ckv_comm *comms[MAX_RANKS];
    memset(runs, 0, sizeof runs);
    if (ranks == 1)
        assert_ok(ckv_comm_create_self(&comms[0]));
    else
        assert_ok(ckv_comm_create_threads(ranks, 0, comms));
    for (int rank = 0; rank < ranks; rank++) {
        runs[rank].trace = t;
        runs[rank].options = options;
        runs[rank].comm = comms[rank];
        assert_int_equal(pthread_create(&runs[rank].thread, NULL, run_rank, &runs[rank]), 0);
    }
    for (int rank = 0; rank < ranks; rank++)
        assert_int_equal(pthread_join(runs[rank].thread, NULL), 0);
    for (int rank = 1; rank < ranks; rank++) {
        assert_int_equal(runs[rank].outcome.status, runs[0].outcome.status);
        assert_int_equal(runs[rank].outcome.forwards, runs[0].outcome.forwards);
        assert_int_equal(runs[rank].outcome.wrong, runs[0].outcome.wrong);
        assert_string_equal(runs[rank].outcome.why.text, runs[0].outcome.why.text);
        trace_outcome_free(&runs[rank].outcome);
    }
    *outcome = runs[0].outcome;
}

static void run_on_ranks(const trace *t, int ranks, trace_outcome *outcome)
{
    run_with_options(t, ranks, NULL, outcome);
}

static void assert_all_right(const trace_outcome *outcome, size_t forwards)
{
    if (outcome->status != CKV_OK)
        fail_msg("%s", outcome->why.text);
    for (size_t i = 0; i < outcome->forwards; i++) {
        const session_result *result = &outcome->results[i];
        if (!result->output_ok || !result->expected_ok)
            fail_msg("forward %zu: error %g against the exact window, expected %g, tolerance %g", i,
                     result->output.error, result->expected.error, result->tolerance);
    }
    assert_int_equal(outcome->forwards, forwards);
}

static void rollouts_are_right_on_any_ranks(void **state)
{
    (void)state;
    static const int rank_counts[] = {1, 2, 3, 6};
    for (int dtype = CKV_FP32; dtype <= CKV_FP16; dtype++) {
        rollout_spec spec = rollout_spec_default(ckv_test_seed() + (uint64_t)dtype, (ckv_dtype)dtype);
        trace *t = make_trace(&spec);
        for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++) {
            trace_outcome outcome;
            run_on_ranks(t, rank_counts[i], &outcome);
            assert_all_right(&outcome, 16);
            trace_outcome_free(&outcome);
        }
        trace_free(&t);
    }
}

/* Neighbours share a K/V head, which each of them gets of what the trace writes. */
static void fewer_kv_heads_than_ranks(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    spec.model.kv_heads = 2;
    trace *t = make_trace(&spec);
    for (int ranks = 4; ranks <= 6; ranks += 2) {
        trace_outcome outcome;
        run_on_ranks(t, ranks, &outcome);
        assert_all_right(&outcome, 16);
        trace_outcome_free(&outcome);
    }
    trace_free(&t);
}

/* Every output against the recorded one, element by element, without the session's own comparison. */
static void assert_outputs_match(const trace *t, const trace_outcome *outcome)
{
    size_t forward = 0;
    for (size_t i = 0; i < t->num_ops; i++) {
        const trace_op *op = &t->ops[i];
        if (op->kind != TRACE_FORWARD)
            continue;
        size_t row = (size_t)(t->config.q_heads * t->config.head_dim);
        const float *got = outcome->outputs[forward++], *wanted = op->expected;
        for (size_t e = 0; e < (size_t)op->rows * row; e++)
            if (!(fabsf(got[e] - wanted[e]) < 1e-4f)) /* NaN fails too */
                fail_msg("op %zu, row %zu, element %zu: %g, expected %g", i, e / row, e % row, (double)got[e],
                         (double)wanted[e]);
    }
}

static void padded_first_chunk_of_11_in_12(void **state)
{
    (void)state;
    for (int padding = ROLLOUT_PADDING_RANDOM; padding <= ROLLOUT_PADDING_NAN; padding++) {
        rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
        spec.padding = (rollout_padding)padding;
        trace *t = make_trace(&spec);
        for (int ranks = 1; ranks <= 3; ranks++) {
            trace_outcome outcome;
            run_on_ranks(t, ranks, &outcome);
            assert_all_right(&outcome, 16);
            assert_int_equal(outcome.results[0].padded_tokens, 12);
            assert_outputs_match(t, &outcome); /* the recorded padding row is zero */
            trace_outcome_free(&outcome);
        }
        trace_free(&t);
    }
}

/* 11 tokens on 6 ranks need 12 rows, on 3 ranks too; a trace without padding rows gets NaN rows. */
static void rows_are_added_for_more_ranks(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    spec.chunks = 1;
    trace *t = make_trace(&spec);
    for (size_t i = 0; i < t->num_ops; i++)
        if (t->ops[i].kind == TRACE_FORWARD)
            t->ops[i].rows = t->ops[i].seq_len; /* leave the padding row out */
    static const struct {
        int ranks;
        int64_t padded;
    } rows[] = {{1, 11}, {2, 12}, {3, 12}, {6, 12}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        trace_outcome outcome;
        run_on_ranks(t, rows[i].ranks, &outcome);
        assert_all_right(&outcome, 4);
        assert_int_equal(outcome.results[0].padded_tokens, rows[i].padded);
        assert_outputs_match(t, &outcome);
        trace_outcome_free(&outcome);
    }
    trace_free(&t);
}

/* The recorded output of forward 9 (second layer, third chunk, 28 tokens committed) or of the first chunk is wrong. */
static const struct {
    ckv_key_fault fault;
    int64_t token, forward;
} faults[] = {
    {CKV_KEY_PADDING, 11, 0}, {CKV_KEY_PADDING, 11, 3}, {CKV_KEY_MISSING, 3, 0},
    {CKV_KEY_MISSING, 20, 9}, {CKV_KEY_EXTRA, 6, 9},    {CKV_KEY_EXTRA, 13, 9},
};

static void faults_are_found_and_explained(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        rollout_spec spec = rollout_spec_default(ckv_test_seed() + i, CKV_FP32);
        spec.fault = faults[i].fault;
        spec.fault_token = faults[i].token;
        spec.fault_forward = faults[i].forward;
        trace *t = make_trace(&spec);
        for (int ranks = 1; ranks <= 3; ranks++) {
            trace_outcome outcome;
            run_on_ranks(t, ranks, &outcome);
            assert_int_equal(outcome.status, CKV_OK);
            assert_int_equal(outcome.wrong, 1);
            const session_result *result = &outcome.results[faults[i].forward];
            assert_true(result->output_ok);
            assert_false(result->expected_ok);
            assert_int_equal(result->explanation.fault, faults[i].fault);
            assert_int_equal(result->explanation.token, faults[i].token);
            assert_int_equal(result->expected.rank, result->expected.head / (12 / ranks));
            trace_outcome_free(&outcome);
        }
        trace_free(&t);
    }
}

/* A reference with a window shorter by one: for it, the ranks read the token 14 before the block, id 14 of 28. */
static void wrong_ranks_are_found_and_explained(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    spec.with_expected = false;
    trace *t = make_trace(&spec);
    trace_run_options options = trace_run_options_default();
    options.reference_window = spec.window_tokens - 1;
    static const int rank_counts[] = {1, 2, 3, 6};
    for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++) {
        trace_outcome outcome;
        run_with_options(t, rank_counts[i], &options, &outcome);
        assert_int_equal(outcome.status, CKV_OK);
        assert_true(outcome.results[0].output_ok); /* nothing has left either window yet */
        for (int forward = 8; forward < 10; forward++) {
            const session_result *result = &outcome.results[forward];
            assert_false(result->output_ok);
            assert_int_equal(result->explanation.fault, CKV_KEY_EXTRA);
            assert_int_equal(result->explanation.token, 14);
        }
        trace_outcome_free(&outcome);
    }
    trace_free(&t);
}

/* Edits of committed tokens, before and behind the end of the fixed region, reach the reference under the same ids. */
static void edits_and_zeroed_values(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    spec.with_expected = false;
    trace *t = make_trace(&spec);
    trace *edited = trace_create(&t->config);
    assert_non_null(edited);
    int64_t commits = 0;
    for (size_t i = 0; i < t->num_ops; i++) {
        const trace_op *op = &t->ops[i];
        char name[32];
        snprintf(name, sizeof name, "n%zu", i);
        if (op->kind == TRACE_OPEN)
            assert_true(trace_add_open(edited, op->pin_tokens, op->window_tokens, op->max_staged_tokens,
                                       op->causal_block_sizes, op->num_causal_block_sizes));
        else if (op->kind == TRACE_WRITE_RANGE)
            assert_true(trace_add_write_range(edited, op->layer, op->start, op->tokens, name, op->k, op->v));
        else if (op->kind == TRACE_FORWARD)
            assert_true(trace_add_forward(edited, op->layer, op->rows, op->seq_len, op->causal_block_size, name, op->q,
                                          op->k, op->v, NULL));
        else if (op->kind == TRACE_COMMIT)
            assert_true(trace_add_commit(edited, op->tokens));
        if (op->kind != TRACE_COMMIT || ++commits < 4)
            continue;
        /* 40 tokens are committed and some dropped by now; positions 3..8 straddle the fixed region of 5 */
        const trace_op *source = &t->ops[i - 1];
        assert_true(trace_add_write_range(edited, 0, 3, 6, "edit", source->k, source->v));
        assert_true(trace_add_zero_values(edited, 1, 4, 9));
    }
    trace_outcome outcome;
    run_on_ranks(edited, 2, &outcome);
    assert_all_right(&outcome, 16);
    trace_outcome_free(&outcome);
    trace_free(&edited);
    trace_free(&t);
}

/* Rounding a window down to a page shows as soon as the window slides, but not with pages of one token. */
static void page_aligned_windows_are_measured(void **state)
{
    (void)state;
    trace_run_options options = trace_run_options_default();
    options.session.measure_page_aligned = true;
    for (int64_t page = 1; page <= 4; page *= 4) {
        rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
        spec.model.tokens_per_page = page;
        trace *t = make_trace(&spec);
        for (int ranks = 1; ranks <= 2; ranks++) {
            trace_outcome outcome;
            run_with_options(t, ranks, &options, &outcome);
            assert_all_right(&outcome, 16);
            assert_true(outcome.results[0].page_aligned_error == 0); /* nothing has left the window yet */
            for (size_t i = 8; i < 16; i++) /* 28 tokens and more, a window of 14: 2 or more wrong keys */
                assert_true(page == 1 ? outcome.results[i].page_aligned_error == 0
                                      : outcome.results[i].page_aligned_error > 0.01);
            trace_outcome_free(&outcome);
        }
        trace_free(&t);
    }
}

/* A sample of rows sees a fault that touches all of them, and reads less of the worst error than all rows do. */
static void sampled_rows_still_find_faults(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    spec.fault = CKV_KEY_MISSING;
    spec.fault_token = 20;
    spec.fault_forward = 9;
    trace *t = make_trace(&spec);
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int64_t sample_rows = 1; sample_rows <= 100; sample_rows *= 10) {
            trace_run_options options = trace_run_options_default();
            options.session.sample_rows = sample_rows;
            trace_outcome outcome;
            run_with_options(t, ranks, &options, &outcome);
            assert_int_equal(outcome.status, CKV_OK);
            assert_int_equal(outcome.wrong, 1);
            if (sample_rows == 1) /* the last row of the forward's only block */
                assert_int_equal(outcome.results[8].output.row, 11);
            trace_outcome_free(&outcome);
        }
    }
    trace_free(&t);
}

static void refusals_name_the_cause_on_every_rank(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    trace *t = make_trace(&spec);
    trace_outcome outcome;

    run_on_ranks(t, 5, &outcome); /* 12 heads over 5 ranks */
    assert_int_equal(outcome.status, CKV_ERROR_UNSUPPORTED);
    assert_non_null(strchr(outcome.why.text, '5'));
    trace_outcome_free(&outcome);

    t->ops[0].window_tokens = (int64_t)1 << 40;
    run_on_ranks(t, 2, &outcome);
    assert_int_equal(outcome.status, CKV_ERROR_CAPACITY);
    assert_non_null(strstr(outcome.why.text, "this machine has"));
    trace_outcome_free(&outcome);
    t->ops[0].window_tokens = spec.window_tokens;

    trace_op *forward = &t->ops[4];
    assert_int_equal(forward->kind, TRACE_FORWARD);
    forward->causal_block_size = 4;
    run_on_ranks(t, 2, &outcome);
    assert_int_equal(outcome.status, CKV_ERROR_INVALID);
    assert_string_equal(outcome.why.text, "seq_len 11 is not a multiple of causal_block_size 4");
    trace_outcome_free(&outcome);
    trace_free(&t);
}

static bool add_random_op(trace *t, ckv_random *random, int index, const float *values)
{
    const int64_t sizes[] = {ckv_random_range(random, 1, 5), ckv_random_range(random, 1, 3)};
    int64_t layer = ckv_random_range(random, 0, 1), start = ckv_random_range(random, 0, 11);
    int64_t tokens = ckv_random_range(random, 1, 6), block = ckv_random_range(random, 0, 3);
    char name[32];
    snprintf(name, sizeof name, "t%d", index);
    switch (ckv_random_range(random, 0, 7)) {
    case 0:
        return trace_add_open(t, start % 4, tokens, 6, sizes, 2);
    case 1:
        return trace_add_zero_values(t, layer, start, tokens);
    case 2:
        return ckv_random_range(random, 0, 3) != 0 || trace_add_close(t);
    case 3:
        return trace_add_commit(t, tokens);
    case 4:
        return trace_add_write_range(t, layer, start, tokens, name, values, values);
    default:
        return trace_add_forward(t, layer, tokens, 1 + start % tokens, block, name, values, values, values, NULL);
    }
}

/* Whatever the ops and their order: refused with a cause, or run; and what is run is right. */
static void any_ops_are_refused_or_right(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    const trace_config model = {2, 2, 2, 4, CKV_FP32, 2, 0};
    float values[6 * 2 * 4];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        values[i] = ckv_random_float(&random);
    size_t refused = 0, forwards = 0;
    const int64_t sizes[] = {1, 2, 3};
    for (int round = 0; round < 400; round++) {
        trace *t = trace_create(&model);
        assert_non_null(t);
        if (round % 4 != 0) /* most get a start that makes sense */
            assert_true(trace_add_open(t, 1, 3, 6, sizes, 3));
        for (int index = 0; index < 12; index++)
            assert_true(add_random_op(t, &random, index, values));
        trace_outcome outcome;
        run_on_ranks(t, 1 + round % 2, &outcome);
        if (outcome.wrong != 0)
            fail_msg("round %d: %zu of %zu forwards are wrong", round, outcome.wrong, outcome.forwards);
        refused += outcome.status != CKV_OK;
        assert_true(outcome.status == CKV_OK || outcome.why.text[0] != '\0');
        assert_true(outcome.status == CKV_OK || outcome.status == CKV_ERROR_INVALID ||
                    outcome.status == CKV_ERROR_STATE || outcome.status == CKV_ERROR_CAPACITY);
        forwards += outcome.forwards;
        trace_outcome_free(&outcome);
        trace_free(&t);
    }
    assert_in_range(refused, 50, 400);
    assert_in_range(forwards, 100, 400 * 12);
}

/* --- The program --- */

static char output[8192];

/* Exit status of `ckv replay ARGUMENTS`; standard output and error go to `output`. Not as a rank of whatever runs this.
 */
static int run_program(const char *arguments)
{
    char command[2048];
    snprintf(command, sizeof command,
             "env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK -u PMI_SIZE -u PMI_RANK '%s' replay %s 2>&1",
             CKV_PROGRAM, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(output, 1, sizeof output - 1, pipe);
    output[length] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void assert_prints(const char *text)
{
    if (strstr(output, text) == NULL)
        fail_msg("'%s' is not in:\n%s", text, output);
}

static char trace_path[64], out_path[64];

static void write_trace(const rollout_spec *spec)
{
    snprintf(trace_path, sizeof trace_path, "/tmp/ckv_replay_%ld.safetensors", (long)getpid());
    snprintf(out_path, sizeof out_path, "/tmp/ckv_replay_%ld.out", (long)getpid());
    trace *t = make_trace(spec);
    problem why;
    if (!trace_write(t, trace_path, &why))
        fail_msg("%s", why.text);
    trace_free(&t);
}

static int run_on_trace(const char *options)
{
    char arguments[512];
    snprintf(arguments, sizeof arguments, "%s %s", options, trace_path);
    return run_program(arguments);
}

static void program_replays_a_sound_trace(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_BF16);
    write_trace(&spec);
    char options[128];
    snprintf(options, sizeof options, "--out %s", out_path);
    assert_int_equal(run_on_trace(options), 0);
    assert_prints("forward 0: tokens 11 (padded 12) block 11 max_error ");
    assert_prints("forward 15: tokens 12 (padded 12) block 3 max_error ");
    assert_prints(" ok\n16 forwards, 16 ok, 0 wrong\n");
    safetensors *out;
    problem why;
    if (!safetensors_read(out_path, &out, &why))
        fail_msg("%s", why.text);
    assert_int_equal(safetensors_num_tensors(out), 16);
    const safetensors_tensor *first = safetensors_find(out, "f0.o");
    assert_non_null(first);
    assert_int_equal(first->dtype, SAFETENSORS_BF16);
    assert_int_equal(first->shape[0], 12);
    assert_int_equal(first->shape[1], 12);
    assert_int_equal(first->shape[2], 8);
    const uint16_t *values = first->data;
    for (int i = 0; i < 96; i++)
        assert_int_equal(values[11 * 96 + i], 0);
    assert_int_not_equal(values[0], 0);
    safetensors_free(&out);
    remove(out_path);
    remove(trace_path);
}

static void program_explains_the_first_wrong_forward(void **state)
{
    (void)state;
    static const char *const words[] = {
        [CKV_KEY_MISSING] = "token 20 is missing",
        [CKV_KEY_EXTRA] = "token 6 should not have been read",
        [CKV_KEY_PADDING] = "padding row 11 was read",
    };
    static const int64_t tokens[] = {0, 20, 6, 11}, forwards[] = {0, 9, 9, 1};
    for (int fault = CKV_KEY_MISSING; fault <= CKV_KEY_PADDING; fault++) {
        rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
        spec.fault = (ckv_key_fault)fault;
        spec.fault_token = tokens[fault];
        spec.fault_forward = forwards[fault];
        write_trace(&spec);
        assert_int_equal(run_on_trace(""), 1);
        assert_prints(" wrong\n  the recorded output (.expected) differs from the exact window by ");
        assert_prints("  worst at row ");
        assert_prints(words[fault]);
        assert_prints("16 forwards, 15 ok, 1 wrong\n");
        assert_int_equal(run_on_trace("--tolerance 1000"), 0);
    }
    assert_int_equal(run_on_trace("--tolerance 0"), 1); /* rounding is wrong then, and no key's fault */
    assert_prints("  the replayed output differs from the exact window by ");
    assert_prints("  no single key explains it\n");
    remove(trace_path);
}

static void assert_one_line(const char *text)
{
    assert_prints(text);
    assert_ptr_equal(strchr(output, '\n'), output + strlen(output) - 1);
}

/* CUDA is not there: not built in, or shown no GPU. */
static void program_refuses_without_a_gpu(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    const ckv_device *device;
    char cause[600];
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* the program sees it too */
    assert_status(ckv_device_find("cuda", &device), CKV_ERROR_UNSUPPORTED);
    snprintf(cause, sizeof cause, "ckv replay: --device cuda: %s\n", ckv_last_error());
    write_trace(&spec);
    assert_int_equal(run_on_trace("--device cuda --exchange fused"), 2);
    assert_string_equal(output, cause);
    remove(trace_path);
}

static void program_refuses_with_one_line(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    write_trace(&spec);
    static const struct {
        const char *arguments, *cause;
        bool on_trace;
    } rows[] = {
        {"", "the trace is missing", false},
        {"/nowhere/x", "/nowhere/x: No such file or directory", false},
        {"/dev/null", "/dev/null: not a regular file", false},
        {"--faster", "unknown option", true},
        {"--tolerance x", "--tolerance is 'x'", true},
        {"--tolerance=-1", "--tolerance is '-1'", true},
        {"--device tpu", "--device tpu: ", true},
        {"--backend magic", "--backend magic: this build has no such backend", true},
        {"--exchange ring", "--exchange is 'ring'", true},
        {"--device cuda --exchange ring", "it must be auto, sendrecv or fused", true},
        {"--exchange fused", "--exchange fused is for tensors in GPU memory; on the host device use auto", true},
        {"--exchange sendrecv", "--exchange sendrecv is for tensors in GPU memory", true},
        {"extra", "one trace at a time", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int code = rows[i].on_trace ? run_on_trace(rows[i].arguments) : run_program(rows[i].arguments);
        assert_int_equal(code, 2);
        assert_one_line(rows[i].cause);
    }
    assert_int_equal(run_on_trace("--out /nowhere/o"), 2); /* after the forwards */
    assert_prints("/nowhere/o: No such file or directory");
    assert_int_equal(truncate(trace_path, 1000), 0);
    assert_int_equal(run_on_trace(""), 2);
    assert_one_line(": truncated: header length");
    remove(trace_path);
}

static const ckv_test_case cases[] = {
    CKV_CASE(rollouts_are_right_on_any_ranks),
    CKV_CASE(fewer_kv_heads_than_ranks),
    CKV_CASE(padded_first_chunk_of_11_in_12),
    CKV_CASE(rows_are_added_for_more_ranks),
    CKV_CASE(faults_are_found_and_explained),
    CKV_CASE(wrong_ranks_are_found_and_explained),
    CKV_CASE(edits_and_zeroed_values),
    CKV_CASE(page_aligned_windows_are_measured),
    CKV_CASE(sampled_rows_still_find_faults),
    CKV_CASE(refusals_name_the_cause_on_every_rank),
    CKV_CASE(any_ops_are_refused_or_right),
    CKV_CASE(program_replays_a_sound_trace),
    CKV_CASE(program_explains_the_first_wrong_forward),
    CKV_CASE(program_refuses_without_a_gpu),
    CKV_CASE(program_refuses_with_one_line),
};

CKV_TEST_MAIN("replay", cases)
