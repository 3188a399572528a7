/* SPDX-License-Identifier: Apache-2.0 */
/* Traces on one rank and the device of the case: sessions, and the `ckv replay` program on files. */
#include "tests/support/device_memory.h"
#include "tests/support/rollout_trace.h"
#include "tests/support/trace_run.h"
#include "tests/support/workplace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run(const rollout_spec *spec, int64_t reference_window, trace_outcome *outcome)
{
    (void)test_device(); /* skips where there is none */
    trace *t = rollout_trace_make(spec);
    ckv_comm *comm = NULL;
    assert_non_null(t);
    assert_ok(ckv_comm_create_self(&comm));
    trace_run_options options = trace_run_options_default();
    options.session.device = ckv_test_device();
    options.session.backend = ckv_test_backend();
    options.reference_window = reference_window;
    trace_run(t, comm, &options, outcome);
    ckv_comm_destroy(&comm);
    trace_free(&t);
    if (outcome->status != CKV_OK)
        fail_msg("%s", outcome->why.text);
    assert_int_equal(outcome->forwards, 16);
}

static void rollouts_are_right(void **state)
{
    (void)state;
    for (int dtype = CKV_BF16; dtype <= CKV_FP16; dtype++) {
        for (int padding = ROLLOUT_PADDING_RANDOM; padding <= ROLLOUT_PADDING_NAN; padding++) {
            rollout_spec spec = rollout_spec_cudnn(ckv_test_seed() + (uint64_t)dtype, (ckv_dtype)dtype);
            spec.padding = (rollout_padding)padding;
            spec.model.kv_heads = padding == ROLLOUT_PADDING_NAN ? 2 : 12;
            trace_outcome outcome;
            run(&spec, -1, &outcome);
            for (size_t i = 0; i < outcome.forwards; i++)
                if (!outcome.results[i].output_ok || !outcome.results[i].expected_ok)
                    fail_msg("%s, padding %d, forward %zu: error %g, expected %g, tolerance %g",
                             ckv_dtype_name((ckv_dtype)dtype), padding, i, outcome.results[i].output.error,
                             outcome.results[i].expected.error, outcome.results[i].tolerance);
            trace_outcome_free(&outcome);
        }
    }
}

/* A reference with a window shorter by one: for it the device reads the token 14 before the block, id 14 of 28. */
static void wrong_forwards_are_explained(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_cudnn(ckv_test_seed(), CKV_BF16);
    spec.with_expected = false;
    trace_outcome outcome;
    run(&spec, spec.window_tokens - 1, &outcome);
    assert_true(outcome.results[0].output_ok); /* nothing has left either window yet */
    for (int forward = 8; forward < 10; forward++) {
        assert_false(outcome.results[forward].output_ok);
        assert_int_equal(outcome.results[forward].explanation.fault, CKV_KEY_EXTRA);
        assert_int_equal(outcome.results[forward].explanation.token, 14);
    }
    trace_outcome_free(&outcome);
}

/* --- The program --- */

static void open_program(workplace *place, const rollout_spec *spec)
{
    (void)test_device();
    workplace_open(place, "env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_LOCAL_RANK "
                          "-u PMI_SIZE -u PMI_RANK '" CKV_PROGRAM "' replay t.safetensors");
    char path[128];
    snprintf(path, sizeof path, "%s/t.safetensors", place->folder);
    trace *t = rollout_trace_make(spec);
    problem why = {"out of memory"};
    if (t == NULL || !trace_write(t, path, &why))
        fail_msg("%s", why.text);
    trace_free(&t);
}

/* On the device and the backend of the case. */
static void run_program(workplace *place, const char *options)
{
    char arguments[256];
    snprintf(arguments, sizeof arguments, "--device %s --backend %s %s", ckv_test_device(), ckv_test_backend(),
             options);
    workplace_run(place, arguments);
}

static void assert_in(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("'%s' is not in:\n%s", part, text);
}

static void program_replays_a_sound_trace(void **state)
{
    (void)state;
    enum { ROW = 12 * 64 };
    rollout_spec spec = rollout_spec_cudnn(ckv_test_seed(), CKV_BF16);
    workplace place;
    open_program(&place, &spec);
    run_program(&place, "--out o.safetensors");
    assert_string_equal(place.err, "");
    assert_int_equal(place.code, 0);
    assert_in(place.out, "forward 0: tokens 11 (padded 12) block 11 max_error ");
    assert_in(place.out, " ok\n16 forwards, 16 ok, 0 wrong\n"); /* one rank exchanges nothing */
    char path[128];
    snprintf(path, sizeof path, "%s/o.safetensors", place.folder);
    safetensors *out = NULL;
    problem why;
    if (!safetensors_read(path, &out, &why))
        fail_msg("%s", why.text);
    const safetensors_tensor *first = safetensors_find(out, "f0.o");
    assert_non_null(first);
    assert_int_equal(first->bytes, 12 * ROW * sizeof(uint16_t));
    const uint16_t *values = first->data;
    for (int i = 0; i < ROW; i++)
        assert_int_equal(values[11 * ROW + i], 0);
    assert_int_not_equal(values[0], 0);
    safetensors_free(&out);
    workplace_close(&place);
}

static void program_explains_the_first_wrong_forward(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_cudnn(ckv_test_seed(), CKV_BF16);
    spec.fault = CKV_KEY_PADDING;
    spec.fault_token = 11;
    spec.fault_forward = 1;
    workplace place;
    open_program(&place, &spec);
    run_program(&place, "");
    assert_int_equal(place.code, 1);
    assert_in(place.out, "  the recorded output (.expected) differs from the exact window by ");
    assert_in(place.out, "padding row 11 was read");
    assert_in(place.out, "16 forwards, 15 ok, 1 wrong\n");
    workplace_close(&place);
}

/* A backend of other memory than the device's. */
static void program_refuses_a_backend_that_cannot(void **state)
{
    (void)state;
    rollout_spec spec = rollout_spec_cudnn(ckv_test_seed(), CKV_BF16);
    workplace place;
    open_program(&place, &spec);
    const char *other = strcmp(ckv_test_device(), "host") == 0 ? "cudnn" : "host";
    char options[64];
    snprintf(options, sizeof options, "--backend %s", other); /* the last one counts */
    run_program(&place, options);
    assert_int_equal(place.code, 2);
    assert_int_equal(lines_of(place.err), 1);
    assert_in(place.err, "backend ");
    assert_in(place.err, other);
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(rollouts_are_right),
    CKV_CASE(wrong_forwards_are_explained),
    CKV_CASE(program_replays_a_sound_trace),
    CKV_CASE(program_explains_the_first_wrong_forward),
    CKV_CASE(program_refuses_a_backend_that_cannot),
};

CKV_TEST_MAIN("replay_device", cases)
