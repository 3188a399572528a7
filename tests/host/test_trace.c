/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: what is built reads back; what does not hold together is refused with the op and the cause. */
#include "tests/support/case.h"

#include "tools/trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG "{\"layers\":2,\"q_heads\":4,\"kv_heads\":2,\"head_dim\":8,\"dtype\":\"fp32\",\"tokens_per_page\":4}"
#define FORWARD(fields) "[{\"op\":\"forward\"," fields "}]"

static char path[64];

static void make_path(void)
{
    snprintf(path, sizeof path, "/tmp/ckv_trace_%ld.safetensors", (long)getpid());
}

/* Tensors for every way to be wrong, 0 in all elements. */
static void write_file(const char *version, const char *config, const char *ops)
{
    static const float zeros[3 * 4 * 8];
    static const struct {
        const char *name;
        safetensors_dtype dtype;
        int num_dimensions;
        int64_t tokens, heads;
    } tensors[] = {
        {"w.k", SAFETENSORS_F32, 3, 3, 2},
        {"w.v", SAFETENSORS_F32, 3, 3, 2},
        {"f.q", SAFETENSORS_F32, 3, 3, 4},
        {"f.k", SAFETENSORS_F32, 3, 3, 2},
        {"f.v", SAFETENSORS_F32, 3, 3, 2},
        {"f.expected", SAFETENSORS_F32, 3, 3, 4},
        {"half.k", SAFETENSORS_F16, 3, 3, 2},
        {"half.v", SAFETENSORS_F32, 3, 3, 2},
        {"heads.k", SAFETENSORS_F32, 3, 3, 2},
        {"heads.v", SAFETENSORS_F32, 3, 3, 1},
        {"tokens.k", SAFETENSORS_F32, 3, 3, 2},
        {"tokens.v", SAFETENSORS_F32, 3, 2, 2},
        {"flat.k", SAFETENSORS_F32, 2, 3, 2},
        {"flat.v", SAFETENSORS_F32, 3, 3, 2},
        {"lone.k", SAFETENSORS_F32, 3, 3, 2},
        {"empty.k", SAFETENSORS_F32, 3, 0, 2},
        {"empty.v", SAFETENSORS_F32, 3, 0, 2},
        {"short.q", SAFETENSORS_F32, 3, 3, 4},
        {"short.k", SAFETENSORS_F32, 3, 3, 2},
        {"short.v", SAFETENSORS_F32, 3, 3, 2},
        {"slip.k", SAFETENSORS_F32, 3, 3, 2},
        {"slip.v", SAFETENSORS_F32, 3, 3, 2},
        {"slip.expectd", SAFETENSORS_F32, 3, 3, 2},
        {"short.expected", SAFETENSORS_F32, 3, 2, 4},
        {"unrelated.thing", SAFETENSORS_U8, 3, 1, 1},
    };
    enum { COUNT = sizeof tensors / sizeof tensors[0] };
    safetensors_tensor list[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        size_t element = tensors[i].dtype == SAFETENSORS_F32 ? 4 : tensors[i].dtype == SAFETENSORS_F16 ? 2 : 1;
        int64_t last = tensors[i].num_dimensions == 3 ? 8 : 1;
        list[i] = (safetensors_tensor){tensors[i].name,
                                       tensors[i].dtype,
                                       tensors[i].num_dimensions,
                                       {tensors[i].tokens, tensors[i].heads, last},
                                       zeros,
                                       (size_t)(tensors[i].tokens * tensors[i].heads * last) * element};
        if (tensors[i].num_dimensions == 2)
            list[i].shape[2] = 0;
    }
    const safetensors_entry metadata[] = {{"ops", ops}, {"config", config}, {"ckv_trace", version}};
    problem why;
    make_path();
    if (!safetensors_write(path, metadata, version == NULL ? 2 : 3, list, COUNT, &why))
        fail_msg("%s", why.text);
}

static void assert_refused(const char *cause)
{
    trace *t = NULL;
    problem why = {""};
    bool accepted = trace_read(path, &t, &why);
    remove(path);
    if (accepted)
        fail_msg("accepted; it should have been refused with: %s", cause);
    assert_null(t);
    if (strstr(why.text, cause) == NULL || strncmp(why.text, path, strlen(path)) != 0)
        fail_msg("'%s' does not say '%s'", why.text, cause);
    assert_null(strchr(why.text, '\n'));
}

static void refuses_what_is_no_trace(void **state)
{
    (void)state;
    write_file(NULL, CONFIG, "[]");
    assert_refused("not a trace: __metadata__ has no 'ckv_trace'");
    write_file("2", CONFIG, "[]");
    assert_refused("trace version '2'; this program reads version 1");
    write_file("1", CONFIG, "[{]");
    assert_refused("ops is not valid JSON");
    write_file("1", CONFIG, "{}");
    assert_refused("ops: not an array");
}

static void refuses_bad_configs(void **state)
{
    (void)state;
    static const struct {
        const char *config, *cause;
    } rows[] = {
        {"[]", "config: not an object"},
        {"{", "config is not valid JSON"},
        {"{\"layers\":1,\"layers\":1}", "duplicate object key"},
        {"{\"layers\":0}", "config: 'layers' is 0; it must be from 1 to"},
        {"{\"layers\":1.5}", "config: 'layers' is not an integer"},
        {"{\"layers\":1}", "config: 'q_heads' is missing"},
        {"{\"layers\":1,\"speed\":1}", "config: unknown field 'speed'"},
        {"{\"layers\":1,\"q_heads\":3,\"kv_heads\":2,\"head_dim\":8,\"dtype\":\"fp32\",\"tokens_per_page\":4}",
         "config: q_heads 3 is not a multiple of kv_heads 2"},
        {"{\"layers\":1,\"q_heads\":2,\"kv_heads\":2,\"head_dim\":8,\"dtype\":\"fp31\",\"tokens_per_page\":4}",
         "config: dtype 'fp31' is not one of"},
        {"{\"layers\":1,\"q_heads\":2,\"kv_heads\":2,\"head_dim\":8,\"dtype\":\"fp32\",\"tokens_per_page\":6}",
         "config: tokens_per_page 6 is not a power of two"},
        {"{\"layers\":1,\"q_heads\":2,\"kv_heads\":2,\"head_dim\":9223372036854775807,\"dtype\":\"fp32\","
         "\"tokens_per_page\":4}",
         "config: 'head_dim' is 9223372036854775807"},
        {"{\"layers\":1,\"q_heads\":2,\"kv_heads\":2,\"head_dim\":8,\"dtype\":\"fp32\",\"tokens_per_page\":4,"
         "\"scale\":\"x\"}",
         "config: 'scale' is not a number above 0"},
        {"{\"layers\":1,\"q_heads\":2,\"kv_heads\":2,\"head_dim\":8,\"dtype\":\"fp32\",\"tokens_per_page\":4,"
         "\"scale\":0}",
         "config: 'scale' is not a number above 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_file("1", rows[i].config, "[]");
        assert_refused(rows[i].cause);
    }
}

static void refuses_bad_ops(void **state)
{
    (void)state;
    static const struct {
        const char *ops, *cause;
    } rows[] = {
        {"[7]", "op 0: not an object"},
        {"[{}]", "op 0: 'op' is missing"},
        {"[{\"op\":1}]", "op 0: 'op' is not a string"},
        {"[{\"op\":\"close\"},{\"op\":\"fly\"}]", "op 1: unknown op 'fly'"},
        {"[{\"op\":\"close\",\"why\":1}]", "op 0 (close): unknown field 'why'"},
        {"[{\"op\":\"commit\"}]", "op 0 (commit): 'tokens' is missing"},
        {"[{\"op\":\"commit\",\"tokens\":\"3\"}]", "op 0 (commit): 'tokens' is not an integer"},
        {"[{\"op\":\"commit\",\"tokens\":-3}]", "op 0 (commit): 'tokens' is -3; it must be from"},
        {"[{\"op\":\"open\",\"pin_tokens\":0,\"window_tokens\":8,\"max_staged_tokens\":4,\"causal_block_sizes\":4}]",
         "op 0 (open): 'causal_block_sizes' is not an array"},
        {"[{\"op\":\"open\",\"pin_tokens\":0,\"window_tokens\":8,\"max_staged_tokens\":4,\"causal_block_sizes\":[]}]",
         "op 0 (open): 'causal_block_sizes' is not an array"},
        {"[{\"op\":\"open\",\"pin_tokens\":0,\"window_tokens\":8,\"max_staged_tokens\":4,\"causal_block_sizes\":[4,0]}"
         "]",
         "op 0 (open): entry 1 of 'causal_block_sizes'"},
        {"[{\"op\":\"zero_values\",\"layer\":2,\"start\":0,\"tokens\":1}]",
         "op 0 (zero_values): 'layer' is 2; it must be from 0 to 1"},
        {"[{\"op\":\"write_range\",\"layer\":0,\"start\":0,\"tensor\":7}]", "'tensor' is not a string"},
        {"[{\"op\":\"write_range\",\"layer\":0,\"start\":0,\"tensor\":\"no\"}]",
         "op 0 (write_range): tensor 'no.k' is missing"},
        {"[{\"op\":\"write_range\",\"layer\":0,\"start\":0,\"tensor\":\"lone\"}]", "tensor 'lone.v' is missing"},
        {"[{\"op\":\"write_range\",\"layer\":0,\"start\":0,\"tensor\":\"half\"}]",
         "tensor 'half.k' is F16, config says fp32"},
        {"[{\"op\":\"write_range\",\"layer\":0,\"start\":0,\"tensor\":\"heads\"}]",
         "tensor 'heads.v' is [3, 1, 8]; by the config it must be [tokens, 2, 8]"},
        {"[{\"op\":\"write_range\",\"layer\":0,\"start\":0,\"tensor\":\"tokens\"}]",
         "tensor 'tokens.v' has 2 token rows, the op's other tensors have 3"},
        {"[{\"op\":\"write_range\",\"layer\":0,\"start\":0,\"tensor\":\"flat\"}]",
         "tensor 'flat.k' has 2 dimensions; it must have 3"},
        {"[{\"op\":\"write_range\",\"layer\":0,\"start\":0,\"tensor\":\"empty\"}]",
         "tensor 'empty.k' has no token rows"},
        {"[{\"op\":\"write_range\",\"layer\":0,\"start\":0,\"tensor\":\"slip\"}]",
         "tensor 'slip.expectd': unknown suffix"},
        {FORWARD("\"layer\":0,\"tensor\":\"w\",\"seq_len\":3,\"causal_block_size\":3"),
         "op 0 (forward): tensor 'w.q' is missing"},
        {FORWARD("\"layer\":0,\"tensor\":\"f\",\"seq_len\":4,\"causal_block_size\":4"),
         "op 0 (forward): seq_len 4 is more than the 3 rows of tensor 'f.q'"},
        {FORWARD("\"layer\":0,\"tensor\":\"f\",\"seq_len\":0,\"causal_block_size\":4"), "'seq_len' is 0"},
        {FORWARD("\"layer\":0,\"tensor\":\"f\",\"seq_len\":3"), "'causal_block_size' is missing"},
        {FORWARD("\"layer\":0,\"tensor\":\"short\",\"seq_len\":3,\"causal_block_size\":3"),
         "tensor 'short.expected' has 2 token rows"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_file("1", CONFIG, rows[i].ops);
        assert_refused(rows[i].cause);
    }
}

static void fill(float *values, size_t count, float first)
{
    for (size_t i = 0; i < count; i++)
        values[i] = first + (float)i;
}

static void assert_same_config(const trace_config *a, const trace_config *b)
{
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->q_heads, b->q_heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->tokens_per_page, b->tokens_per_page);
    assert_true(a->scale == b->scale);
}

static void what_is_built_reads_back(void **state)
{
    (void)state;
    const trace_config config = {2, 4, 2, 8, CKV_FP32, 4, 0.25};
    const int64_t sizes[] = {3, 1};
    float q[3 * 4 * 8], k[3 * 2 * 8], v[3 * 2 * 8], expected[3 * 4 * 8];
    fill(q, 96, 0);
    fill(k, 48, 1000);
    fill(v, 48, 2000);
    fill(expected, 96, 3000);
    trace *built = trace_create(&config);
    assert_non_null(built);
    assert_true(trace_add_open(built, 5, 8, 3, sizes, 2));
    assert_true(trace_add_write_range(built, 1, 2, 3, "w0", k, v));
    assert_true(trace_add_zero_values(built, 0, 1, 2));
    assert_true(trace_add_forward(built, 1, 3, 2, 1, "f0", q, k, v, expected));
    assert_true(trace_add_forward(built, 0, 3, 3, 0, "f1", q, k, v, NULL));
    assert_true(trace_add_commit(built, 2));
    assert_true(trace_add_close(built));
    make_path();
    problem why = {""};
    trace *t = NULL;
    if (!trace_write(built, path, &why) || !trace_read(path, &t, &why))
        fail_msg("%s", why.text);
    remove(path);
    trace_free(&built);

    assert_same_config(&t->config, &config);
    assert_int_equal(t->num_ops, 7);
    assert_int_not_equal(t->digest, 0);
    for (size_t i = 0; i < t->num_ops - 3; i++)
        assert_int_equal(t->ops[i].kind, (trace_op_kind)i);
    const trace_op *open = &t->ops[0], *write = &t->ops[1], *zero = &t->ops[2], *forward = &t->ops[3];
    assert_int_equal(open->pin_tokens, 5);
    assert_int_equal(open->window_tokens, 8);
    assert_int_equal(open->max_staged_tokens, 3);
    assert_int_equal(open->num_causal_block_sizes, 2);
    assert_memory_equal(open->causal_block_sizes, sizes, sizeof sizes);
    assert_int_equal(write->layer, 1);
    assert_int_equal(write->start, 2);
    assert_int_equal(write->tokens, 3);
    assert_string_equal(write->tensor, "w0");
    assert_memory_equal(write->k, k, sizeof k);
    assert_memory_equal(write->v, v, sizeof v);
    assert_int_equal(zero->start, 1);
    assert_int_equal(zero->tokens, 2);
    assert_int_equal(forward->rows, 3);
    assert_int_equal(forward->seq_len, 2);
    assert_int_equal(forward->causal_block_size, 1);
    assert_memory_equal(forward->q, q, sizeof q);
    assert_memory_equal(forward->expected, expected, sizeof expected);
    assert_null(t->ops[4].expected);
    assert_int_equal(t->ops[5].kind, TRACE_COMMIT);
    assert_int_equal(t->ops[5].tokens, 2);
    assert_int_equal(t->ops[6].kind, TRACE_CLOSE);
    trace_free(&t);
    trace_free(&t);
}

/* The format asks for no alignment; values must come out right, and at aligned addresses, wherever a tensor lies. */
static void aligns_tensors_at_odd_places(void **state)
{
    (void)state;
    float k[3 * 2 * 8], v[3 * 2 * 8];
    fill(k, 48, 1);
    fill(v, 48, 100);
    const unsigned char byte = 7;
    const safetensors_tensor tensors[] = {
        {"odd", SAFETENSORS_U8, 1, {1}, &byte, 1},
        {"w.k", SAFETENSORS_F32, 3, {3, 2, 8}, k, sizeof k},
        {"w.v", SAFETENSORS_F32, 3, {3, 2, 8}, v, sizeof v},
    };
    const safetensors_entry metadata[] = {
        {"ckv_trace", "1"},
        {"config", CONFIG},
        {"ops", "[{\"op\":\"write_range\",\"layer\":0,\"start\":0,\"tensor\":\"w\"}]"},
    };
    make_path();
    problem why = {""};
    trace *t = NULL;
    if (!safetensors_write(path, metadata, 3, tensors, 3, &why) || !trace_read(path, &t, &why))
        fail_msg("%s", why.text);
    remove(path);
    assert_int_equal((uintptr_t)t->ops[0].k % sizeof(float), 0);
    assert_int_equal((uintptr_t)t->ops[0].v % sizeof(float), 0);
    assert_memory_equal(t->ops[0].k, k, sizeof k);
    assert_memory_equal(t->ops[0].v, v, sizeof v);
    trace_free(&t);
}

static const ckv_test_case cases[] = {
    CKV_CASE(refuses_what_is_no_trace), CKV_CASE(refuses_bad_configs),          CKV_CASE(refuses_bad_ops),
    CKV_CASE(what_is_built_reads_back), CKV_CASE(aligns_tensors_at_odd_places),
};

CKV_TEST_MAIN("trace", cases)
