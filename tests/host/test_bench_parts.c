/* SPDX-License-Identifier: Apache-2.0 */
/* `ckv bench` exchange, blocks, roofline and report: that a wrong exchange is noticed, and which rows there are. What
 * they measure is tested by nobody. */
#include "lib/device/device.h"
#include "tests/support/case.h"
#include "tests/support/random.h"
#include "tests/support/ranks.h"
#include "tests/support/workplace.h"
#include "tools/bench/exchange_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- The check of an exchange --- */

enum { DEADLINE_MS = 20000 };
static struct {
    const char *path;
    int64_t q_heads, kv_heads, head_dim, tokens;
    ckv_dtype dtype;
    int64_t spoiled_byte; /* of the last rank's shard; -1: none */
} uses;

static bench_options options_of(ckv_comm *comm)
{
    return (bench_options){.geometry = {.q_heads = uses.q_heads, .kv_heads = uses.kv_heads, .head_dim = uses.head_dim},
                           .page = 4,
                           .dtype = uses.dtype,
                           .device = &ckv_device_host,
                           .host = comm,
                           .comm = comm};
}

static void exchange_body(ckv_comm *comm, rank_report *report)
{
    bench_options options = options_of(comm);
    exchange_case c;
    RANK_OK(report, exchange_case_open(&c, &options, uses.tokens, NULL));
    RANK_OK(report, exchange_case_take_path(&c, uses.path, NULL));
    if (uses.spoiled_byte >= 0 && c.rank == c.ranks - 1)
        c.qkv[uses.spoiled_byte] ^= 1;
    if (uses.spoiled_byte >= 0) {
        RANK_STATUS(report, exchange_case_check(&c, NULL), CKV_ERROR_INTERNAL);
        RANK_DETAIL(report, "is not what was sent");
    } else {
        RANK_OK(report, exchange_case_check(&c, NULL));
        RANK_OK(report, exchange_case_check(&c, NULL));
    }
    RANK_OK(report, ckv_comm_barrier(comm));
    exchange_case_close(&c);
}

static void run_exchange(int ranks)
{
    static const char *const paths[] = {"fused", "sendrecv"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        uses.path = paths[i];
        const char *failure = ranks_run_on_threads(ranks, ranks_patience_ms(DEADLINE_MS), exchange_body);
        if (failure[0] != '\0')
            fail_msg("%s, %d ranks, %d tokens: %s", paths[i], ranks, (int)uses.tokens, failure);
    }
}

static void right_exchanges_pass(void **state)
{
    (void)state;
    static const int64_t tokens[] = {1, 7, 300};
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
            for (int64_t kv_heads = 2; kv_heads <= 4; kv_heads += 2) { /* 2 are fewer than 4 ranks */
                uses.q_heads = 8;
                uses.kv_heads = kv_heads;
                uses.head_dim = i == 1 ? 3 : 8;
                uses.tokens = tokens[i];
                uses.dtype = i == 1 ? CKV_BF16 : CKV_FP32;
                uses.spoiled_byte = -1;
                run_exchange(ranks);
            }
        }
    }
}

/* Up to 64 tokens, one bit anywhere in q, k or v. */
static void a_wrong_bit_is_noticed(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    for (int i = 0; i < 40; i++) {
        int64_t rows = ckv_random_range(&random, 1, 16);
        uses.q_heads = 8;
        uses.kv_heads = 4;
        uses.head_dim = 4;
        uses.dtype = CKV_BF16;
        uses.tokens = 4 * rows;
        uses.spoiled_byte = ckv_random_range(&random, 0, rows * (8 + 2 * 4) * 4 * 2 - 1);
        run_exchange(4);
    }
}

/* --- The commands --- */

typedef struct place {
    workplace at;
    char json[128];
} place;

static void open_place(place *p)
{
    workplace_open(&p->at,
                   "env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK -u PMI_SIZE -u PMI_RANK '" CKV_PROGRAM "'");
    snprintf(p->json, sizeof p->json, "%s/r.json", p->at.folder);
    workplace_put(&p->at, "g.json",
                  "{\"q_heads\": 4, \"kv_heads\": 2, \"head_dim\": 8, \"layers\": 2, \"frame_tokens\": 6, "
                  "\"chunk_frames\": 2, \"window_frames\": 3, \"pin_tokens\": 5, \"denoising_forwards\": 1, "
                  "\"clean_in_frames\": 1}");
}

/* The rows of `ckv bench ARGUMENTS` on the host. */
static bench_results *measured(place *p, const char *arguments)
{
    char command[256];
    problem why;
    snprintf(command, sizeof command, "bench %s --device host --runs 2 --json r.json", arguments);
    workplace_expect(&p->at, command, 0, NULL, "");
    bench_results *results = bench_results_create();
    if (!bench_results_read_json(results, p->json, &why))
        fail_msg("%s", why.text);
    assert_int_equal(bench_results_failures(results), 0);
    return results;
}

static const bench_row *find(const bench_results *results, const char *group, const char *variant, double x)
{
    for (size_t i = 0; i < bench_results_count(results); i++) {
        const bench_row *row = bench_results_row(results, i);
        if (strcmp(row->group, group) == 0 && strcmp(row->variant, variant) == 0 && row->x == x)
            return row;
    }
    fail_msg("no row: %s, %s, %g", group, variant, x);
}

static void exchange_has_every_way_path_and_size(void **state)
{
    (void)state;
    static const struct {
        const char *group, *variant;
        int heads; /* of a token to the other rank */
    } wanted[] = {
        {"exchange, there", "fused", 4},
        {"exchange, there", "sendrecv", 4},
        {"exchange, there", "raw", 4},
        {"exchange, there and into pages", "fused", 4},
        {"exchange, there and into pages", "sendrecv", 4},
        {"exchange, back", "fused", 2},
        {"exchange, back", "sendrecv", 2},
        {"exchange, back", "raw", 2},
    };
    enum { WANTED = sizeof wanted / sizeof wanted[0] };
    place p;
    open_place(&p);
    bench_results *results = measured(&p, "exchange -g ./g.json --sizes 1,11");
    assert_non_null(strstr(bench_results_fact_value(results, "ranks"), "nothing to exchange"));
    assert_int_equal(bench_results_count(results), 2 * WANTED);
    for (int i = 0; i < 2 * WANTED; i++) {
        int tokens = i % 2 == 0 ? 1 : 11, rows = (tokens + 1) / 2;
        const bench_row *row = find(results, wanted[i / 2].group, wanted[i / 2].variant, tokens);
        assert_true(row->min_us > 0 && row->min_us <= row->median_us && row->median_us <= row->max_us);
        assert_int_equal((int64_t)row->bytes, rows * wanted[i / 2].heads * 8 * 2);
        assert_string_equal(row->x_name, "tokens over all ranks");
    }
    bench_results_destroy(&results);
    workplace_close(&p.at);
}

static void blocks_finds_what_is_cached(void **state)
{
    (void)state;
    place p;
    open_place(&p);
    bench_results *results = measured(&p, "blocks --sizes 100");
    assert_int_equal(bench_results_count(results), 3 + 2 * 4);
    static const double lengths[] = {3200, 10000, 32000, 100000};
    for (int i = 0; i < 8; i++) {
        const char *variant =
            i % 2 == 0 ? "among 3125 cached blocks" : "among 3125 cached blocks, the same prompt again";
        assert_true(find(results, "block manager, prefix looked up", variant, lengths[i / 2])->median_us > 0);
    }
    assert_true(find(results, "block manager", "a block allocated and released", 0)->median_us > 0);
    assert_true(find(results, "block manager", "a block allocated, stored and displaced", 0)->median_us > 0);
    const bench_row *memory = find(results, "block manager", "memory", 0);
    assert_true(memory->median_us == 0);
    assert_non_null(strstr(memory->note, " bytes a block besides its tokens"));
    bench_results_destroy(&results);
    workplace_close(&p.at);
}

/* Every measured row is compared with a bound that follows from its bytes or operations and a ceiling. */
static void roofline_has_a_bound_for_every_row(void **state)
{
    (void)state;
    place p;
    open_place(&p);
    bench_results *results = measured(&p, "roofline -g ./g.json");
    double copy = 0, operations = 0;
    size_t compared = 0;
    for (size_t i = 0; i < bench_results_count(results); i++) {
        const bench_row *row = bench_results_row(results, i);
        if (strcmp(row->group, "ceiling") == 0) {
            assert_true(row->min_us > 0);
            copy = row->bytes > 0 ? row->bytes / row->min_us : copy;
            operations = row->flops > 0 ? row->flops / row->min_us : operations;
        } else if (strncmp(row->variant, "bound", strlen("bound")) != 0) {
            double ratio = bench_results_ratio(results, row), bound = row->median_us / ratio;
            assert_true(ratio > 0);
            assert_true(bound >= 0.999 * row->bytes / copy);
            assert_true(operations == 0 || bound >= 0.999 * row->flops / operations);
            compared++;
        }
    }
    assert_true(copy > 0);
    assert_true(compared >= 3); /* attention, write and commit at least once each */
    bench_results_destroy(&results);
    workplace_close(&p.at);
}

static void report_shows_what_was_shown(void **state)
{
    (void)state;
    place p;
    open_place(&p);
    bench_results *results = measured(&p, "exchange -g ./g.json --sizes 1,11 --markdown --plot a.svg");
    bench_results_destroy(&results);
    char *shown = strdup(p.at.out), path[128];
    workplace_expect(&p.at, "bench report --markdown r.json", 0, shown, "");
    workplace_expect(&p.at, "bench report --plot b.svg r.json", 0, "", "");
    snprintf(path, sizeof path, "%s/a.svg", p.at.folder);
    char *a = read_text(path);
    path[strlen(path) - strlen("a.svg")] = 'b';
    char *b = read_text(path);
    assert_string_equal(a, b);
    workplace_expect(&p.at, "bench report --plot b.svg --ratio r.json r.json", 0, "", "");
    char *ratios = read_text(path);
    assert_string_not_equal(ratios, b);
    assert_non_null(strstr(ratios, "of the baseline"));
    workplace_expect(&p.at, "bench report r.json r.json", 0, NULL, "");
    assert_non_null(strstr(p.at.out, "\n\ndevice: "));
    free(ratios);
    free(b);
    free(a);
    free(shown);
    workplace_close(&p.at);
}

static void report_refuses_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *cause;
    } rows[] = {
        {"", "files that 'ckv bench --json FILE' wrote are missing"},
        {"nowhere.json", "nowhere.json: "},
        {"g.json", "g.json: "},
        {"--plot x.svg flat.json", "x.svg: nothing to plot"},
        {"--plot /nowhere/x.svg swept.json", "/nowhere/x.svg: No such file or directory"},
        {"--plot swept.json swept.json", "--plot swept.json is one of the files that are drawn"},
        {"--plot ./swept.json flat.json swept.json", "--plot ./swept.json is one of the files that are drawn"},
        {"folder", "folder"},
        {"--plot", "option '--plot' needs a value"},
    };
    place p;
    open_place(&p);
    workplace_put(&p.at, "flat.json",
                  "{\"facts\": {}, \"rows\": [{\"group\": \"g\", \"variant\": \"v\", \"median_us\": 3}]}");
    workplace_put(&p.at, "swept.json",
                  "{\"facts\": {}, \"rows\": [{\"group\": \"g\", \"variant\": \"v\", \"median_us\": 3, \"x\": 1, "
                  "\"x_name\": \"tokens\"}, {\"group\": \"g\", \"variant\": \"v\", \"median_us\": 4, \"x\": 2, "
                  "\"x_name\": \"tokens\"}]}");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char command[128];
        snprintf(command, sizeof command, "bench report %s", rows[i].arguments);
        workplace_expect(&p.at, command, 2, "", rows[i].cause);
        assert_int_equal(lines_of(p.at.err), 1);
    }
    workplace_close(&p.at);
}

static const ckv_test_case cases[] = {
    CKV_CASE(right_exchanges_pass),
    CKV_CASE(a_wrong_bit_is_noticed),
    CKV_CASE(exchange_has_every_way_path_and_size),
    CKV_CASE(blocks_finds_what_is_cached),
    CKV_CASE(roofline_has_a_bound_for_every_row),
    CKV_CASE(report_shows_what_was_shown),
    CKV_CASE(report_refuses_in_one_line),
};

CKV_TEST_MAIN("bench_parts", cases)
