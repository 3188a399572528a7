/* SPDX-License-Identifier: Apache-2.0 */
/* ckv window: what scripts print, scripts that cannot be read, and identities inside vectors. */
#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "lib/device/device.h"
#include "tests/support/case.h"
#include "tests/support/workplace.h"
#include "tools/common/cli.h"
#include "tools/window/identity.h"
#include "tools/window/window.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One token of a row: what K and V say it is. */
typedef struct row_key {
    int64_t id, version;
    enum { VALUE_SAME, VALUE_ZERO, VALUE_OTHER } value;
} row_key;

static int compare_keys(const void *left, const void *right)
{
    const row_key *a = left, *b = right;
    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    return (a->version > b->version) - (a->version < b->version);
}

static void read_identity(const json_t *pair, int64_t *id, int64_t *version)
{
    assert_int_equal(json_array_size(pair), 2);
    *id = json_integer_value(json_array_get(pair, 0));
    *version = json_integer_value(json_array_get(pair, 1));
}

/* "N: 0-4@1 5-6@2": N keys, in order of their ids; "/null" behind those whose V is zero. */
static void render_block(FILE *out, json_t *block)
{
    json_t *keys, *values;
    json_int_t count;
    assert_int_equal(json_unpack(block, "{so so sI!}", "keys", &keys, "values", &values, "seq_len_kv", &count), 0);
    assert_int_equal(json_array_size(keys), count);
    assert_int_equal(json_array_size(values), count);
    row_key *row = calloc((size_t)count, sizeof *row);
    assert_non_null(row);
    for (json_int_t i = 0; i < count; i++) {
        json_t *value = json_array_get(values, (size_t)i);
        int64_t id, version;
        read_identity(json_array_get(keys, (size_t)i), &row[i].id, &row[i].version);
        row[i].value = VALUE_ZERO;
        if (json_is_null(value))
            continue;
        read_identity(value, &id, &version);
        row[i].value = id == row[i].id && version == row[i].version ? VALUE_SAME : VALUE_OTHER;
    }
    qsort(row, (size_t)count, sizeof *row, compare_keys);
    static const char *const marks[] = {[VALUE_SAME] = "", [VALUE_ZERO] = "/null", [VALUE_OTHER] = "/other"};
    fprintf(out, " [%" JSON_INTEGER_FORMAT ":", count);
    for (json_int_t first = 0, last; first < count; first = last + 1) {
        for (last = first; last + 1 < count && row[last + 1].id == row[last].id + 1 &&
                           row[last + 1].version == row[first].version && row[last + 1].value == row[first].value;)
            last++;
        fprintf(out, " %lld", (long long)row[first].id);
        if (last > first)
            fprintf(out, "-%lld", (long long)row[last].id);
        fprintf(out, "@%lld%s", (long long)row[first].version, marks[row[first].value]);
    }
    fputs("]", out);
    free(row);
}

/* One output line as text in which order and messages play no part. */
static void render_line(FILE *out, json_t *line)
{
    const char *op = NULL, *error = NULL, *message = NULL;
    json_int_t fixed, history, staging;
    json_t *blocks;
    if (json_unpack(line, "{ss so!}", "op", &op, "blocks", &blocks) == 0) {
        size_t i;
        json_t *block;
        fputs(op, out);
        json_array_foreach(blocks, i, block)
        {
            render_block(out, block);
        }
    } else if (json_unpack(line, "{ss ss s?s!}", "op", &op, "error", &error, "message", &message) == 0) {
        fprintf(out, "%s refused: %s", op, error);
    } else if (json_unpack(line, "{ss sI sI sI!}", "op", &op, "fixed_tokens", &fixed, "history_tokens", &history,
                           "staging_offset", &staging) == 0) {
        fprintf(out, "%s %d+%d=%d", op, (int)fixed, (int)history, (int)staging);
    } else if (json_unpack(line, "{ss!}", "op", &op) == 0) {
        fputs(op, out);
    } else {
        char *text = json_dumps(line, JSON_COMPACT);
        fail_msg("no such output: %s", text);
    }
    fputc('\n', out);
}

static char *render(const char *json_lines)
{
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    char *copy = strdup(json_lines);
    for (char *line = strtok(copy, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_error_t error;
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        if (object == NULL)
            fail_msg("not JSON: %s", line);
        render_line(out, object);
        json_decref(object);
    }
    free(copy);
    fclose(out);
    return text;
}

/* Run a script; what it wrote, malloc'd. */
static char *run_text(const char *text, const ckv_device *device, int64_t layer, int *result_out)
{
    window_script script;
    json_lines_error error;
    if (!window_script_parse("test", text, strlen(text), &script, &error))
        fail_msg("%s", error.text);
    char *out;
    size_t bytes;
    FILE *stream = open_memstream(&out, &bytes);
    assert_non_null(stream);
    *result_out = window_script_run(&script, device, layer, stream);
    fclose(stream);
    window_script_free(&script);
    return out;
}

static void expect_script(const char *text, int64_t layer, const char *expected)
{
    const ckv_device *device;
    assert_ok(ckv_device_find(ckv_test_device(), &device));
    int result;
    char *out = run_text(text, device, layer, &result);
    assert_int_equal(result, CLI_OK);
    char *rendered = render(out);
    if (strcmp(rendered, expected) != 0)
        fail_msg("--- got ---\n%s--- expected ---\n%s", rendered, expected);
    free(rendered);
    free(out);
}

#define CREATE(dtype, page, tokens)                                                                                    \
    "{\"op\":\"create\",\"layers\":2,\"kv_heads\":2,\"head_dim\":16,\"dtype\":\"" dtype                                \
    "\",\"tokens_per_page\":" #page ",\"pool_tokens\":" #tokens "}\n"
#define OPEN(pin, window, staged, sizes)                                                                               \
    "{\"op\":\"open\",\"pin_tokens\":" #pin ",\"window_tokens\":" #window ",\"max_staged_tokens\":" #staged            \
    ",\"causal_block_sizes\":" sizes "}\n"
#define WRITE(start, tokens) "{\"op\":\"write_range\",\"start\":" #start ",\"tokens\":" #tokens "}\n"
#define ZERO(start, tokens) "{\"op\":\"zero_values\",\"start\":" #start ",\"tokens\":" #tokens "}\n"
#define FORWARD(tokens, block) "{\"op\":\"forward\",\"tokens\":" #tokens ",\"causal_block_size\":" #block "}\n"
#define COMMIT(tokens) "{\"op\":\"commit\",\"tokens\":" #tokens "}\n"
#define CLOSE "{\"op\":\"close\"}\n"

static void shared_cases(void **state)
{
    (void)state;
    static const char ending[] = ".expected.jsonl";
    glob_t found;
    if (glob(CKV_SHARED_CASES_DIR "/window/*.expected.jsonl", 0, NULL, &found) != 0)
        ckv_test_skip("%s/window holds no cases", CKV_SHARED_CASES_DIR);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char path[512];
        int stem = (int)(strlen(found.gl_pathv[i]) - strlen(ending));
        snprintf(path, sizeof path, "%.*s.jsonl", stem, found.gl_pathv[i]);
        char *script = read_text(path), *json = read_text(found.gl_pathv[i]);
        char *expected = render(json);
        for (int layer = 0; layer < 2; layer++)
            expect_script(script, layer, expected);
        free(expected);
        free(json);
        free(script);
    }
    globfree(&found);
}

/* Fixed tokens end inside a page, the window starts inside a page, blocks start inside a page; a page is dropped. */
static void worked_example_in(const char *dtype)
{
    char script[2048];
    snprintf(script, sizeof script,
             "{\"op\":\"comment\",\"text\":\"\"}\n\n{\"op\":\"create\",\"layers\":2,\"kv_heads\":2,\"head_dim\":18,"
             "\"dtype\":\"%s\",\"tokens_per_page\":4,\"pool_tokens\":76}\r\n%s",
             dtype,
             OPEN(5, 8, 6, "[2,6,2]") WRITE(0, 5) COMMIT(5) FORWARD(6, 6) FORWARD(6, 2) COMMIT(6) FORWARD(6, 2)
                 COMMIT(6) FORWARD(6, 6) COMMIT(6) FORWARD(4, 2));
    static const char expected[] = "open 0+0=0\n"
                                   "write_range 0+0=0\n"
                                   "commit 5+0=5\n"
                                   "forward [11: 0-4@1 5-10@2]\n"
                                   "forward [7: 0-4@1 5-6@3] [9: 0-4@1 5-8@3] [11: 0-4@1 5-10@3]\n"
                                   "commit 5+6=11\n"
                                   "forward [13: 0-4@1 5-10@3 11-12@4] [15: 0-4@1 5-10@3 11-14@4] "
                                   "[15: 0-4@1 7-10@3 11-16@4]\n"
                                   "commit 5+8=13\n"
                                   "forward [19: 0-4@1 9-10@3 11-16@4 17-22@5]\n"
                                   "commit 5+10=15\n"
                                   "forward [15: 0-4@1 15-16@4 17-22@5 23-24@6] [15: 0-4@1 17-22@5 23-26@6]\n";
    for (int layer = 0; layer < 2; layer++)
        expect_script(script, layer, expected);
}

static void worked_example_in_every_dtype(void **state)
{
    (void)state;
    worked_example_in("fp32");
    worked_example_in("bf16");
    worked_example_in("fp16");
}

static void edits_reach_private_copies(void **state)
{
    (void)state;
    expect_script(CREATE("bf16", 8, 400) OPEN(5, 20, 12, "[12,3]") WRITE(0, 5) COMMIT(5) FORWARD(12, 3) COMMIT(12)
                      WRITE(2, 9) ZERO(4, 1) ZERO(15, 3) FORWARD(6, 3) FORWARD(12, 12),
                  0,
                  "open 0+0=0\nwrite_range 0+0=0\ncommit 5+0=5\n"
                  "forward [8: 0-4@1 5-7@2] [11: 0-4@1 5-10@2] [14: 0-4@1 5-13@2] [17: 0-4@1 5-16@2]\n"
                  "commit 5+12=17\nwrite_range 5+12=17\nzero_values 5+12=17\nzero_values 5+12=17\n"
                  "forward [20: 0-1@1 2-3@3 4@3/null 5-10@3 11-14@2 15-16@2/null 17-19@4] "
                  "[23: 0-1@1 2-3@3 4@3/null 5-10@3 11-14@2 15-16@2/null 17-22@4]\n"
                  "forward [29: 0-1@1 2-3@3 4@3/null 5-10@3 11-14@2 15-16@2/null 17-28@5]\n");
}

/* Ids start again, versions do not. */
static void reopen_counts_tokens_from_zero(void **state)
{
    (void)state;
    expect_script(CREATE("fp32", 4, 200) OPEN(0, 4, 4, "[4]") FORWARD(4, 4) COMMIT(4) FORWARD(4, 4) COMMIT(4)
                      CLOSE CLOSE OPEN(3, 4, 4, "[2]") FORWARD(4, 2) COMMIT(4) FORWARD(2, 2),
                  1,
                  "open 0+0=0\nforward [4: 0-3@1]\ncommit 0+4=4\nforward [8: 0-3@1 4-7@2]\ncommit 0+4=4\nclose\n"
                  "close refused: state\nopen 0+0=0\nforward [2: 0-1@3] [4: 0-3@3]\ncommit 3+1=4\n"
                  "forward [6: 0-3@3 4-5@4]\n");
}

/* The first history position is the first whose id moves when a page is dropped. */
static void edits_after_eviction_keep_ids(void **state)
{
    (void)state;
    expect_script(CREATE("fp32", 4, 200) OPEN(4, 8, 4, "[4]") WRITE(0, 4) COMMIT(4) FORWARD(4, 4) COMMIT(4)
                      FORWARD(4, 4) COMMIT(4) FORWARD(4, 4) COMMIT(4) WRITE(3, 2) FORWARD(4, 4),
                  0,
                  "open 0+0=0\nwrite_range 0+0=0\ncommit 4+0=4\nforward [8: 0-3@1 4-7@2]\ncommit 4+4=8\n"
                  "forward [12: 0-3@1 4-7@2 8-11@3]\ncommit 4+8=12\n"
                  "forward [16: 0-3@1 4-7@2 8-11@3 12-15@4]\ncommit 4+8=12\nwrite_range 4+8=12\n"
                  "forward [16: 0-2@1 3@5 8@5 9-11@3 12-15@4 16-19@6]\n");
}

static void slots_never_written_show(void **state)
{
    (void)state;
    expect_script(
        CREATE("fp16", 4, 200) OPEN(0, 8, 4, "[4,1]") FORWARD(2, 1) COMMIT(4) FORWARD(1, 1) ZERO(3, 1) FORWARD(1, 1), 0,
        "open 0+0=0\nforward [1: 0@1] [2: 0-1@1]\ncommit 0+4=4\nforward [5: -1@0 -1@0 0-1@1 4@2]\n"
        "zero_values 0+4=4\nforward [5: -1@0 -1@0/null 0-1@1 4@3]\n");
}

static void refusals_change_nothing(void **state)
{
    (void)state;
    expect_script(
        CREATE("fp32", 4, 64) COMMIT(1) WRITE(0, 1) ZERO(0, 1) FORWARD(4, 4) CLOSE OPEN(0, 4, 4, "[]")
            OPEN(0, 4, 4, "[5]") OPEN(-1, 4, 4, "[4]") OPEN(0, 4000, 4, "[4]") OPEN(0, 9223372036854775807, 4, "[4]")
                OPEN(0, 4, 4, "[4]") OPEN(0, 4, 4, "[4]") FORWARD(4, 2) FORWARD(8, 4) FORWARD(0, 4) FORWARD(4, 4)
                    COMMIT(5) COMMIT(0) COMMIT(-9223372036854775808) WRITE(9223372036854775807, 2) WRITE(-1, 2)
                        WRITE(0, 9223372036854775807) ZERO(0, 0) ZERO(11, 2) COMMIT(4) FORWARD(4, 4),
        0,
        "commit refused: state\nwrite_range refused: state\nzero_values refused: state\nforward refused: state\n"
        "close refused: state\nopen refused: invalid\nopen refused: invalid\nopen refused: invalid\n"
        "open refused: capacity\nopen refused: invalid\nopen 0+0=0\nopen refused: state\nforward refused: invalid\n"
        "forward refused: invalid\nforward refused: invalid\nforward [4: 0-3@1]\ncommit refused: invalid\n"
        "commit refused: invalid\ncommit refused: invalid\nwrite_range refused: invalid\nwrite_range refused: invalid\n"
        "write_range refused: invalid\nzero_values refused: invalid\nzero_values refused: invalid\ncommit 0+4=4\n"
        "forward [8: 0-3@1 4-7@2]\n");
}

static void refused_create_refuses_the_rest(void **state)
{
    (void)state;
    static const char *const creates[] = {
        CREATE("fp32", 3, 64),
        CREATE("fp32", 4, 63),
        CREATE("fp32", 4, 9223372036854775804),
        ("{\"op\":\"create\",\"layers\":1,\"kv_heads\":1,\"head_dim\":15,\"dtype\":\"fp32\",\"tokens_per_page\":4,"
         "\"pool_tokens\":64}\n"),
    };
    for (size_t i = 0; i < sizeof creates / sizeof *creates; i++) {
        char script[1024];
        snprintf(script, sizeof script, "%s%s", creates[i], OPEN(0, 4, 4, "[4]") CLOSE);
        expect_script(script, 0, "create refused: invalid\nopen refused: state\nclose refused: state\n");
    }
}

/* A device whose scatter goes wrong in one way. */
typedef enum fault { FAULT_HEADS_ALIKE, FAULT_HEAD_SKIPPED, FAULT_LAYERS_ALIKE, FAULT_LAYER_SKIPPED, FAULT_KV } fault;
static fault injected;
static ckv_scatter_kv_slots_params first_write;

static ckv_status faulty_scatter(const ckv_scatter_kv_slots_params *params, ckv_stream stream)
{
    ckv_scatter_kv_slots_params wrong = *params;
    if (first_write.v_plane == NULL)
        first_write = *params;
    switch (injected) {
    case FAULT_HEADS_ALIKE:
        wrong.k_head_stride = 0;
        break;
    case FAULT_HEAD_SKIPPED:
        wrong.kv_heads = 1;
        break;
    case FAULT_LAYERS_ALIKE:
        wrong.v_plane = first_write.v_plane;
        break;
    case FAULT_LAYER_SKIPPED:
        if (wrong.v_plane != first_write.v_plane)
            wrong.k = wrong.v = NULL;
        break;
    case FAULT_KV:
        wrong.k = params->v;
        break;
    }
    return ckv_device_host.scatter_kv_slots(&wrong, stream);
}

static void mix_ups_are_internal_errors(void **state)
{
    (void)state;
    ckv_device device = ckv_device_host;
    device.scatter_kv_slots = faulty_scatter;
    for (injected = FAULT_HEADS_ALIKE; injected <= FAULT_KV; injected++) {
        first_write = (ckv_scatter_kv_slots_params){0};
        int result;
        char *out = run_text(CREATE("fp32", 4, 64) OPEN(0, 4, 4, "[4]") FORWARD(4, 4), &device, 0, &result);
        assert_int_equal(result, CLI_INTERNAL);
        assert_null(strstr(out, "forward"));
        free(out);
    }
}

static void identities_survive_every_dtype(void **state)
{
    (void)state;
    static const identity tokens[] = {{0, 1},
                                      {1, 1},
                                      {127, 128},
                                      {128, 127},
                                      {16384, 16383},
                                      {2097151, 2097152},
                                      {1099511627775, 34359738367},
                                      {4398046511103, 34359738367}};
    static const identity_place places[] = {{0, 0, 0}, {1, 0, 0}, {0, 127, 128}, {1, 16383, 16383}};
    static const int64_t head_dims[] = {16, 17, 31, 128};
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
        for (size_t p = 0; p < sizeof places / sizeof *places; p++)
            for (size_t h = 0; h < sizeof head_dims / sizeof *head_dims; h++)
                for (ckv_dtype dtype = CKV_FP32; dtype <= CKV_FP16; dtype++) {
                    float vector[128], stored[128];
                    identity found = {-1, -1};
                    size_t count = (size_t)head_dims[h];
                    identity_encode(tokens[t], places[p], head_dims[h], vector);
                    ckv_convert_from_float(dtype, vector, count, stored);
                    memset(vector, 0, sizeof vector);
                    ckv_convert_to_float(dtype, stored, count, vector);
                    assert_int_equal(identity_decode(vector, places[p], head_dims[h], &found), IDENTITY_TOKEN);
                    assert_int_equal(found.id, tokens[t].id);
                    assert_int_equal(found.version, tokens[t].version);
                }
}

/* 32 elements hold everything twice: one that changed is noticed. */
static void broken_vectors_are_noticed(void **state)
{
    (void)state;
    static const float odd[] = {-1, 128, 0.5f, 1e30f, INFINITY, NAN};
    identity_place place = {1, 3, 2};
    identity found;
    float vector[32], copy[32];
    identity_encode((identity){70000, 9}, place, 32, vector);
    for (int i = 0; i < 32; i++) {
        for (size_t j = 0; j < sizeof odd / sizeof *odd; j++) {
            memcpy(copy, vector, sizeof copy);
            copy[i] = odd[j];
            assert_int_equal(identity_decode(copy, place, 32, &found), IDENTITY_BROKEN);
        }
        memcpy(copy, vector, sizeof copy);
        copy[i] += 1;
        assert_int_equal(identity_decode(copy, place, 32, &found), IDENTITY_BROKEN);
    }
    identity_encode((identity){70001, 9}, place, 32, copy);
    memcpy(copy, vector, 16 * sizeof *copy); /* halves of two tokens */
    assert_int_equal(identity_decode(copy, place, 32, &found), IDENTITY_BROKEN);
    static const identity_place others[] = {{0, 3, 2}, {1, 2, 2}, {1, 3, 3}, {1, 2, 3}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(identity_decode(vector, others[i], 32, &found), IDENTITY_BROKEN);

    for (int i = 0; i < 32; i++)
        copy[i] = NAN;
    assert_int_equal(identity_decode(copy, place, 32, &found), IDENTITY_NEVER_WRITTEN);
    memset(copy, 0, sizeof copy);
    assert_int_equal(identity_decode(copy, place, 32, &found), IDENTITY_ZERO);
    assert_int_equal(identity_decode(copy, (identity_place){0, 3, 2}, 32, &found), IDENTITY_BROKEN); /* K is never 0 */
}

#define LINE_1 CREATE("fp32", 4, 64)
#define BYTES(text) text, sizeof(text) - 1

static void unreadable_scripts(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t count;
        const char *cause;
    } scripts[] = {
        {BYTES(""), "s.jsonl:1: the script is empty"},
        {BYTES("\n \r\n{\"op\":\"comment\",\"text\":\"x\"}\n"), "s.jsonl:1: the script is empty"},
        {BYTES(CLOSE), "s.jsonl:1: the first op must be 'create'"},
        {BYTES(LINE_1 "\n" LINE_1), "s.jsonl:3: 'create' must be the first op"},
        {BYTES(LINE_1 "{\"op\":\"opne\"}"), "s.jsonl:2: unknown op 'opne'"},
        {BYTES(LINE_1 "{\"op\":\"o\\np\\u001b\"}"), "s.jsonl:2: unknown op 'o?p?'"},
        {BYTES(LINE_1 "{\"op\":\"commit\",\"tokens\":1,\"token\":1}"), "s.jsonl:2: unknown field 'token'"},
        {BYTES(LINE_1 "{\"op\":\"close\",\"a\\nb\":1}"), "s.jsonl:2: unknown field 'a?b'"},
        {BYTES(LINE_1 "{\"op\":\"commit\",\"tokens\":1.0}"), "s.jsonl:2: field 'tokens' must be an integer"},
        {BYTES(LINE_1 "{\"op\":\"commit\",\"tokens\":\"1\"}"), "s.jsonl:2: field 'tokens' must be an integer"},
        {BYTES(LINE_1 "{\"op\":\"commit\",\"tokens\":true}"), "s.jsonl:2: field 'tokens' must be an integer"},
        {BYTES(LINE_1 "{\"op\":\"commit\",\"tokens\":null}"), "s.jsonl:2: field 'tokens' must be an integer"},
        {BYTES(LINE_1 OPEN(0, 4, 4, "4")), "s.jsonl:2: field 'causal_block_sizes' must be a list of integers"},
        {BYTES(LINE_1 OPEN(0, 4, 4, "[4,4.5]")), "s.jsonl:2: field 'causal_block_sizes' must be a list of integers"},
        {BYTES(LINE_1 "{\"op\":\"comment\",\"text\":1}"), "s.jsonl:2: field 'text' must be a string"},
        {BYTES(CREATE("fp64", 4, 64)), "s.jsonl:1: dtype 'fp64'"},
        {BYTES(LINE_1 "{\"op\":\"commit\"}"), "s.jsonl:2: field 'tokens' is missing"},
        {BYTES(LINE_1 "{\"tokens\":1}"), "s.jsonl:2: field 'op' must be a string"},
        {BYTES(LINE_1 "{\"op\":1}"), "s.jsonl:2: field 'op' must be a string"},
        {BYTES(LINE_1 "{\"op\":\"commit\",\"tokens\":1,\"tokens\":1}"), "s.jsonl:2: not a JSON object: duplicate"},
        {BYTES(LINE_1 CLOSE "commit 3\n" CLOSE), "s.jsonl:3: not a JSON object"},
        {BYTES(LINE_1 "{\"op\":\"close\"} {\"op\":\"close\"}"), "s.jsonl:2: not a JSON object"},
        {BYTES(LINE_1 "{\"op\":\n\"close\"}"), "s.jsonl:2: not a JSON object"},
        {BYTES(LINE_1 "[\"op\"]"), "s.jsonl:2: not a JSON object"},
        {BYTES(LINE_1 COMMIT(9223372036854775808)), "s.jsonl:2: not a JSON object: too big integer"},
        {BYTES(LINE_1 COMMIT(1e999)), "s.jsonl:2: not a JSON object: real number overflow"},
        {BYTES(LINE_1 "{\"op\":\"close\"}\0\n"), "s.jsonl:2: not a JSON object"},
        {BYTES(LINE_1 "{\"op\":\"cl\0ose\"}\n"), "s.jsonl:2: not a JSON object"},
        {BYTES(LINE_1 "{\"op\":\"close\\u0000\"}\n"), "s.jsonl:2: not a JSON object"},
        {BYTES(LINE_1 "{\"op\":\"cl\xffose\"}\n"), "s.jsonl:2: not a JSON object"},
        {BYTES("\xef\xbb\xbf" LINE_1), "s.jsonl:1: not a JSON object"},
        {BYTES(LINE_1 "\f\n"), "s.jsonl:2: not a JSON object"},
    };
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' window");
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        workplace_put_bytes(&place, "s.jsonl", scripts[i].bytes, scripts[i].count);
        workplace_expect(&place, "s.jsonl", 2, "", scripts[i].cause);
        if (lines_of(place.err) != 1)
            fail_msg("more than one line: %s", place.err);
    }
    workplace_close(&place);
}

static void long_lines_are_read(void **state)
{
    (void)state;
    enum { LENGTH = 300000 };
    char *script = malloc(2 * LENGTH + 1024), *deep = malloc(LENGTH + 1024);
    assert_true(script != NULL && deep != NULL);
    int used = sprintf(script, "%s{\"op\":\"comment\",\"text\":\"%*s\"}\n%*s\n", LINE_1, LENGTH, "", LENGTH, "");
    sprintf(script + used, CLOSE);
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' window");
    workplace_put(&place, "s.jsonl", script);
    workplace_expect(&place, "s.jsonl", 0, NULL, "");
    assert_non_null(strstr(place.out, "\"error\":\"state\""));

    used = sprintf(deep, "%s{\"op\":", LINE_1);
    memset(deep + used, '[', LENGTH);
    deep[used + LENGTH] = '\0';
    workplace_put(&place, "s.jsonl", deep);
    workplace_expect(&place, "s.jsonl", 2, "", "s.jsonl:2: not a JSON object: maximum parsing depth");
    assert_int_equal(lines_of(place.err), 1);
    workplace_close(&place);
    free(script);
    free(deep);
}

static void program_options(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *cause;
    } refused[] = {
        {"", "the script is missing"},
        {"s.jsonl s.jsonl", "one script at a time"},
        {"none.jsonl", "none.jsonl: cannot be read: No such file"},
        {".", ".: cannot be read: Is a directory"},
        {"--layer 2 s.jsonl", "--layer is 2; the script's cache has layers 0 to 1"},
        {"--layer -1 s.jsonl", "--layer is '-1'"},
        {"--layer x s.jsonl", "--layer is 'x'"},
        {"--device tpu s.jsonl", "--device: "},
        {"--leyer 1 s.jsonl", "did you mean '--layer'?"},
        {"- <broken.jsonl", "-:1: not a JSON object"},
        {"/dev/zero", "/dev/zero: cannot be read: File too large"},
    };
    workplace place;
    workplace_open(&place, "'" CKV_PROGRAM "' window");
    workplace_put(&place, "broken.jsonl", "{");
    workplace_put(&place, "s.jsonl", LINE_1 OPEN(0, 4, 4, "[4]") FORWARD(4, 4));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        workplace_expect(&place, refused[i].arguments, 2, "", refused[i].cause);
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_expect(&place, "s.jsonl", 0, NULL, "");
    char *first = strdup(place.out);
    static const char *const same[] = {"--layer 1 s.jsonl", "--device host s.jsonl", "--device strict s.jsonl",
                                       "- <s.jsonl", "-l 0 -d host -- s.jsonl"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        workplace_expect(&place, same[i], 0, first, "");
    free(first);
    workplace_expect(&place, "--help", 0, NULL, "");
    assert_non_null(strstr(place.out, "SCRIPT.jsonl"));
    workplace_expect(&place, "s.jsonl >/dev/full; echo $?", 0, "3\n", "");
    workplace_close(&place);
}

static const ckv_test_case cases[] = {
    CKV_CASE(shared_cases),
    CKV_CASE(worked_example_in_every_dtype),
    CKV_CASE(edits_reach_private_copies),
    CKV_CASE(reopen_counts_tokens_from_zero),
    CKV_CASE(edits_after_eviction_keep_ids),
    CKV_CASE(slots_never_written_show),
    CKV_CASE(refusals_change_nothing),
    CKV_CASE(refused_create_refuses_the_rest),
    CKV_CASE(mix_ups_are_internal_errors),
    CKV_CASE(identities_survive_every_dtype),
    CKV_CASE(broken_vectors_are_noticed),
    CKV_CASE(unreadable_scripts),
    CKV_CASE(long_lines_are_read),
    CKV_CASE(program_options),
};

CKV_TEST_MAIN("window", cases)
