/* SPDX-License-Identifier: Apache-2.0 */
/* `ckv bench` on the host: what it refuses, what it writes, and that a wrong result has no figure. Nothing here depends
 * on how long anything takes. */
#include "tests/support/case.h"
#include "tests/support/workplace.h"
#include "tools/bench/check.h"
#include "tools/bench/geometry_file.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char tiny[] = "{\"q_heads\": 4, \"kv_heads\": 2, \"head_dim\": 16, \"layers\": 3, \"frame_tokens\": 11, "
                           "\"chunk_frames\": 4, \"window_frames\": 7, \"pin_tokens\": 13, \"denoising_forwards\": 2, "
                           "\"clean_in_frames\": 1}";

static const char vast[] = "{\"q_heads\": 4096, \"kv_heads\": 4096, \"head_dim\": 128, \"layers\": 4096, "
                           "\"frame_tokens\": 50, \"chunk_frames\": 1, \"window_frames\": 65536}";

static void open_ckv(workplace *place)
{
    workplace_open(place,
                   "env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK -u PMI_SIZE -u PMI_RANK '" CKV_PROGRAM "'");
    workplace_put(place, "tiny.json", tiny);
}

static void bad_options_are_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"bench", "a benchmark is missing"},
        {"bench everything", "unknown benchmark 'everything'; it must be one of attention, blocks, "},
        {"bench atention", "unknown benchmark 'atention', did you mean 'attention'?"},
        {"bench write commit", "one benchmark at a time: 'commit' is too many"},
        {"bench write --geometry nano", "--geometry is 'nano'; it must be one of cosmos3-nano"},
        {"bench write --geometry none.json", "none.json"},
        {"bench write --page 24", "--page is 24; it must be a power of two"},
        {"bench write --dtype int8", "--dtype: "},
        {"bench write --pages int8", "--pages: "},
        {"bench write --device host --pages fp16", "--pages is fp16 and --dtype bf16"},
        {"bench write --device host --pages fp8_e4m3", "--pages is fp8_e4m3 and --dtype bf16"},
        {"bench attention --dtype fp8_e4m3", "--dtype: "},
        {"bench write --layers 0", "--layers is '0'"},
        {"bench write --runs 0", "--runs is '0'"},
        {"bench write --ranks 3", "--ranks is 3, and 1 runs: mpirun -np 3 ckv bench"},
        {"bench write --graph --eager", "--graph and --eager exclude each other"},
        {"bench write --device host --graph", "--graph needs a GPU"},
        {"bench write --device host --clock cupti", "--clock cupti needs a GPU"},
        {"bench write --device strict", "--device is 'strict'"},
        {"bench write --clock sundial", "--clock is 'sundial'; it must be auto, events or cupti"},
        {"bench write --exchange pigeon", "--exchange is 'pigeon'; it must be auto, fused or sendrecv"},
        {"bench attention --sweep moon", "--sweep is 'moon'; it must be window, page or blocks"},
        {"bench write --tolerance -1", "--tolerance is '-1'"},
        {"bench write --sizes 16", "--sizes is for exchange and blocks, not for write"},
        {"bench roofline --sweep page", "--sweep is for attention, not for roofline"},
        {"bench exchange --sweep window", "--sweep is for attention, not for exchange"},
        {"bench exchange --sizes 1,,2", "--sizes is ''"},
        {"bench attention --device host --backend abacus", "--backend is 'abacus', which this build does not have"},
        {"bench write --device host -g tiny.json --json", "option '--json' needs a value"},
    };
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        workplace_expect(&place, cases[i][0], 2, "", cases[i][1]);
        if (lines_of(place.err) != 1)
            fail_msg("ckv %s: more than one line: %s", cases[i][0], place.err);
    }
    workplace_close(&place);
}

static void bad_geometries_are_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "g.json:1: "},
        {"[]", "g.json: Expected object, got array"},
        {"{\"q_heads\": 4}", "g.json: Object item not found: kv_heads"},
        {"{\"q_heads\": 4, \"q_heads\": 4}", "g.json:1: duplicate object key"},
    };
    static const char *const changes[][3] = {
        {"\"layers\": 3", "\"layers\": 0", "g.json: layers is 0; it must be 1 to "},
        {"\"q_heads\": 4", "\"q_heads\": 5", "g.json: q_heads 5 is no multiple of kv_heads 2"},
        {"\"q_heads\": 4", "\"q_heads\": \"4\"", "g.json: Expected integer, got string"},
        {"\"pin_tokens\": 13", "\"pin_tokens\": -1", "g.json: pin_tokens is -1; it must be 0 to "},
        {"\"pin_tokens\": 13", "\"pins\": 13", "g.json: 1 object item(s) left unpacked: pins"},
        {"\"clean_in_frames\": 1", "\"clean_in_frames\": 2", "g.json: clean_in_frames is 2; it must be 0 to 1"},
    };
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        workplace_put(&place, "g.json", cases[i][0]);
        workplace_expect(&place, "bench write -g g.json", 2, "", cases[i][1]);
    }
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char text[1024];
        const char *at = strstr(tiny, changes[i][0]);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - tiny), tiny, changes[i][1], at + strlen(changes[i][0]));
        workplace_put(&place, "g.json", text);
        workplace_expect(&place, "bench write -g g.json", 2, "", changes[i][2]);
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_put(&place, "g.json", vast);
    static const char *const names[] = {"attention", "chunk-cycle", "commit", "write", "roofline"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char command[96];
        snprintf(command, sizeof command, "bench %s --device host -g g.json --runs 1", names[i]);
        workplace_expect(&place, command, 2, "", "this geometry needs ");
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_expect(&place, "--version && mkdir d.json && mkfifo p.json", 0, NULL, "");
    workplace_expect(&place, "bench write -g d.json", 2, "", "--geometry: d.json: not a regular file");
    workplace_expect(&place, "bench write -g p.json", 2, "", "--geometry: p.json: not a regular file");
    workplace_expect(&place, "bench write -g /dev/zero", 2, "", "--geometry: /dev/zero: not a regular file");
    workplace_close(&place);
}

/* The rows of a run whose JSON goes to standard output. The caller drops the object. */
static json_t *run_json(workplace *place, const char *arguments, int code, json_t **rows_out)
{
    char command[256];
    json_error_t error;
    snprintf(command, sizeof command, "bench %s --device host -g tiny.json --runs 3 --json -", arguments);
    workplace_expect(place, command, code, NULL, "");
    json_t *object = json_loads(place->out, 0, &error);
    if (object == NULL)
        fail_msg("ckv %s: %s: %s", command, error.text, place->out);
    *rows_out = json_object_get(object, "rows");
    assert_true(json_array_size(*rows_out) > 0);
    return object;
}

static double number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static const char *text(const json_t *row, const char *key)
{
    const char *value = json_string_value(json_object_get(row, key));
    return value == NULL ? "" : value;
}

static void every_benchmark_writes_its_rows(void **state)
{
    (void)state;
    static const struct {
        const char *name, *group;
    } benchmarks[] = {{"attention", "attention, 4 blocks of 11, eager"},
                      {"chunk-cycle", "chunk cycle, 3 layers: 2 denoising forwards"},
                      {"commit", "commit, 3 layers"},
                      {"write", "K/V write, one of 3 layers, eager"}};
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof benchmarks / sizeof benchmarks[0]; i++) {
        json_t *rows, *object = run_json(&place, benchmarks[i].name, 0, &rows);
        const json_t *facts = json_object_get(object, "facts"), *row;
        size_t index, found = 0;
        assert_int_equal(strncmp(text(facts, "device"), "the host, no GPU", 16), 0);
        assert_non_null(strstr(text(facts, "command"), benchmarks[i].name));
        assert_non_null(strstr(text(facts, "geometry"), "4/2 heads of 16, 3 layers"));
        json_array_foreach(rows, index, row)
        {
            assert_true(text(row, "group")[0] != '\0' && text(row, "variant")[0] != '\0');
            found += strcmp(text(row, "group"), benchmarks[i].group) == 0;
            if (number(row, "median_us") > 0)
                assert_true(number(row, "min_us") <= number(row, "median_us") &&
                            number(row, "median_us") <= number(row, "max_us"));
        }
        assert_true(found > 0);
        json_decref(object);
    }
    workplace_close(&place);
}

/* The host is said in the first line, and the error of a page-aligned window is larger than any measured one. */
static void attention_says_what_a_page_aligned_window_costs(void **state)
{
    (void)state;
    workplace place;
    open_ckv(&place);
    json_t *rows, *object = run_json(&place, "attention", 0, &rows);
    const json_t *row;
    size_t index, mistakes = 0;
    double least_mistake = INFINITY, largest = 0;
    json_array_foreach(rows, index, row)
    {
        bool mistake = strcmp(text(row, "variant"), "a window rounded down to a page") == 0;
        mistakes += mistake;
        if (mistake)
            least_mistake = fmin(least_mistake, number(row, "max_error"));
        else
            largest = fmax(largest, number(row, "max_error"));
        assert_true(mistake == (number(row, "median_us") == 0));
    }
    assert_int_equal(mistakes, 2);
    assert_true(largest > 0 && least_mistake > 10 * largest);
    json_decref(object);
    workplace_expect(&place, "bench attention --device host -g tiny.json --runs 1", 0, NULL, "");
    workplace_expect(&place, "bench attention --device host -g tiny.json --runs 1 --pages fp8_e4m3", 0, NULL, "");
    assert_int_equal(strncmp(place.out, "device: the host, no GPU", 24), 0);
    workplace_close(&place);
}

static void sweeps_have_their_points(void **state)
{
    (void)state;
    static const struct {
        const char *name, *x_name;
        double first, factor;
        size_t points;
    } sweeps[] = {{"window", "window, tokens", 11, 0, 3},
                  {"page", "page, tokens", 16, 2, 5},
                  {"blocks", "causal blocks", 1, 2, 3}}; /* a chunk of 44 is no 8 blocks */
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof sweeps / sizeof sweeps[0]; i++) {
        char arguments[64];
        snprintf(arguments, sizeof arguments, "attention --sweep %s", sweeps[i].name);
        json_t *rows, *object = run_json(&place, arguments, 0, &rows);
        const json_t *row;
        size_t index, points = 0;
        double last = 0;
        json_array_foreach(rows, index, row)
        {
            if (strcmp(text(row, "variant"), "host") != 0)
                continue;
            assert_string_equal(text(row, "x_name"), sweeps[i].x_name);
            assert_true(points > 0 || number(row, "x") == sweeps[i].first);
            assert_true(points == 0 || sweeps[i].factor == 0 || number(row, "x") == sweeps[i].factor * last);
            assert_true(number(row, "x") > last);
            last = number(row, "x");
            points++;
        }
        assert_int_equal(points, sweeps[i].points);
        json_decref(object);
    }
    workplace_close(&place);
}

/* Rounding is wrong when nothing else is allowed. */
static void wrong_results_have_no_figure(void **state)
{
    (void)state;
    static const char *const names[] = {"attention", "chunk-cycle", "commit", "write"};
    workplace place;
    open_ckv(&place);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char arguments[64];
        snprintf(arguments, sizeof arguments, "%s --tolerance 0", names[i]);
        json_t *rows, *object = run_json(&place, arguments, 1, &rows);
        const json_t *row;
        size_t index, failed = 0;
        json_array_foreach(rows, index, row)
        {
            bool is_checked = strcmp(text(row, "variant"), "a window rounded down to a page") != 0 &&
                              strcmp(text(row, "variant"), "plain copy") != 0;
            assert_int_equal(json_is_true(json_object_get(row, "failed")), is_checked);
            assert_true(!is_checked || json_object_get(row, "median_us") == NULL);
            failed += is_checked;
        }
        assert_true(failed > 0);
        json_decref(object);
    }
    workplace_close(&place);
}

/* Told before anything is measured; what was measured is kept whatever cannot be drawn of it. */
static void outputs_are_told_and_kept(void **state)
{
    (void)state;
    static const char *const refused[][2] = {
        {"--json /nowhere/a", "--json: /nowhere/a: No such file or directory"},
        {"--plot /nowhere/a", "--plot: /nowhere/a: No such file or directory"},
        {"--json=", "--json: : No such file or directory"},
        {"--plot=", "--plot: : No such file or directory"},
        {"--json folder", "--json: folder: Is a directory"},
        {"--plot folder", "--plot: folder: Is a directory"},
        {"--json a --plot ./a", "--json and --plot are both ./a; give two files"},
        {"--json tiny.json", "--json tiny.json is the geometry itself; give another file"},
        {"--plot linked", "--plot linked is the geometry itself; give another file"},
    };
    workplace place;
    open_ckv(&place);
    workplace_expect(&place, "--version && mkdir folder && ln -s tiny.json linked && echo old >old", 0, NULL, "");
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char command[256];
        snprintf(command, sizeof command, "bench write --device host -g tiny.json --runs 1 %s", refused[i][0]);
        workplace_expect(&place, command, 2, "", refused[i][1]);
        assert_int_equal(lines_of(place.err), 1);
    }
    workplace_expect(&place, "bench write --device host -g tiny.json --runs 1 --json kept --plot a", 2, NULL,
                     "--plot: a: nothing to plot");
    workplace_expect(&place, "bench report kept", 0, NULL, "");
    workplace_expect(&place, "bench write --device host -g tiny.json --runs 1 --json kept --plot a --tolerance 0", 1,
                     NULL, "--plot: a: nothing to plot");
    workplace_expect(&place, "bench report kept", 0, NULL, "");
    assert_non_null(strstr(place.out, "failed: wrong: off by "));
    workplace_expect(&place, "bench write --device host -g tiny.json --runs 1 --json /dev/full", 3, NULL,
                     "--json: /dev/full: No space left on device");
    workplace_expect(&place, "--version && ls | tr '\\n' ' '", 0, "err folder kept linked old out tiny.json ", "");
    workplace_close(&place);
}

/* --- The check itself --- */

typedef struct rollout {
    bench_options options;
    bench_timer *timer;
    bench_workload *workload;
    bench_check *check;
} rollout;

static void open_rollout(rollout *r)
{
    *r = (rollout){
        .options = {
            .page = 8, .runs = 1, .tolerance = -1, .dtype = CKV_BF16, .pages = CKV_BF16, .launch = BENCH_EAGER}};
    bench_options *o = &r->options;
    o->geometry = (model_geometry){.name = "tiny",
                                   .q_heads = 6,
                                   .kv_heads = 3,
                                   .head_dim = 16,
                                   .layers = 2,
                                   .frame_tokens = 7,
                                   .chunk_frames = 3,
                                   .pin_tokens = 5,
                                   .window_frames = 4};
    assert_int_equal(ckv_comm_create_self(&o->host), CKV_OK);
    o->comm = o->host;
    assert_int_equal(ckv_device_find("host", &o->device), CKV_OK);
    assert_int_equal(bench_timer_create(o, &r->timer), CKV_OK);
    const bench_workload_config config = {.options = o,
                                          .timer = r->timer,
                                          .window_frames = 4,
                                          .page = 8,
                                          .layers = 2,
                                          .block_sizes = {7},
                                          .num_block_sizes = 1,
                                          .chunks_past_window = 2};
    assert_int_equal(bench_workload_create(&config, &r->workload), CKV_OK);
    assert_int_equal(bench_check_create(r->workload, 1, 7, &r->check), CKV_OK);
}

static void close_rollout(rollout *r)
{
    bench_check_destroy(&r->check);
    bench_workload_destroy(&r->workload);
    bench_timer_destroy(&r->timer);
    ckv_comm_destroy(&r->options.host);
}

/* A forward, and then something is done to its output. */
typedef struct fault {
    bench_forward forward;
    bool runs;
    int64_t row;   /* -1: none is touched */
    float changed; /* the row's last value */
} fault;

static ckv_status run_fault(void *argument, ckv_stream stream)
{
    fault *f = argument;
    const bench_workload *w = f->forward.workload;
    ckv_status status = f->runs ? bench_forward_run(&f->forward, stream) : CKV_OK;
    const size_t row_elements = (size_t)(w->q_heads * w->head_dim);
    if (status == CKV_OK && f->row >= 0)
        ckv_convert_from_float(CKV_BF16, &f->changed, 1,
                               (uint16_t *)w->device_out + (size_t)(f->row + 1) * row_elements - 1);
    return status;
}

static void the_check_notices_what_is_wrong(void **state)
{
    (void)state;
    rollout r;
    open_rollout(&r);
    const bench_forward right = {.workload = r.workload, .first_layer = 1, .num_layers = 1, .block = 7};
    bench_forward layer = right, block = right;
    layer.first_layer = 0;
    block.block = 21;
    const struct {
        fault fault;
        bool ok;
    } cases[] = {
        {{right, true, -1, 0}, true},    {{right, false, -1, 0}, false},      {{layer, true, -1, 0}, false},
        {{block, true, -1, 0}, false},   {{right, true, 20, 2.5f}, false},    {{right, true, 0, 2.5f}, false},
        {{right, true, 20, NAN}, false}, {{right, true, 0, INFINITY}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench_verdict verdict;
        fault f = cases[i].fault;
        bench_row row = bench_row_default();
        assert_int_equal(bench_check_run(r.check, run_fault, &f, r.workload->device_out, &verdict), CKV_OK);
        if (verdict.ok != cases[i].ok)
            fail_msg("case %zu: off by %g, allowed %g", i, verdict.error, verdict.tolerance);
        assert_int_equal(bench_verdict_to_row(&verdict, &row), cases[i].ok);
        assert_int_equal(row.failed, !cases[i].ok);
    }
    close_rollout(&r);
}

/* A chunk that the cache commits and the reference does not is noticed, and the other way round. */
static void the_reference_follows_commits(void **state)
{
    (void)state;
    rollout r;
    bench_verdict verdict;
    open_rollout(&r);
    assert_int_equal(bench_workload_stage(r.workload, 7), CKV_OK);
    assert_int_equal(ckv_cache_commit(r.workload->cache, 21, NULL), CKV_OK);
    assert_int_equal(bench_workload_committed(r.workload), CKV_OK);
    bench_workload_next_data(r.workload);
    assert_int_equal(bench_check_forward(r.workload, 7, "host", &verdict), CKV_OK);
    assert_false(verdict.ok);
    assert_int_equal(bench_workload_stage(r.workload, 7), CKV_OK);
    assert_int_equal(ckv_cache_commit(r.workload->cache, 21, NULL), CKV_OK);
    assert_int_equal(bench_workload_committed(r.workload), CKV_OK);
    assert_int_equal(bench_workload_follow(r.workload), CKV_OK);
    bench_workload_next_data(r.workload);
    assert_int_equal(bench_check_forward(r.workload, 7, "host", &verdict), CKV_OK);
    assert_true(verdict.ok);
    close_rollout(&r);
}

static void scaled_geometries_keep_their_chunk(void **state)
{
    (void)state;
    const model_geometry *full = geometry_find("cosmos3-nano");
    model_geometry g = *full;
    geometry_scale(&g, geometry_forward_operations(full));
    assert_memory_equal(&g, full, sizeof g);
    geometry_scale(&g, 2e10);
    assert_true(geometry_forward_operations(&g) <= 2e10);
    assert_int_equal(g.frame_tokens * g.chunk_frames, full->frame_tokens * full->chunk_frames);
    assert_int_equal(g.q_heads / g.kv_heads, full->q_heads / full->kv_heads);
    geometry_scale(&g, 1);
    assert_int_equal(g.window_frames, 1);
}

static const ckv_test_case cases[] = {
    CKV_CASE(bad_options_are_refused),         CKV_CASE(bad_geometries_are_refused),
    CKV_CASE(every_benchmark_writes_its_rows), CKV_CASE(attention_says_what_a_page_aligned_window_costs),
    CKV_CASE(sweeps_have_their_points),        CKV_CASE(wrong_results_have_no_figure),
    CKV_CASE(outputs_are_told_and_kept),       CKV_CASE(the_check_notices_what_is_wrong),
    CKV_CASE(the_reference_follows_commits),   CKV_CASE(scaled_geometries_keep_their_chunk),
};

CKV_TEST_MAIN("bench", cases)
