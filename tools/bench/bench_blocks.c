/* SPDX-License-Identifier: Apache-2.0 */
/* ckv bench blocks: the block manager on one core, bookkeeping only: blocks handed out and taken back, prefix lookups
 * over the number of tokens and of cached blocks (--sizes), blocks that displace cached ones, memory per cached block.
 * Times are of the thread itself, since others may use the machine. */
#include "lib/support/error.h"
#include "tools/bench/options.h"

#include <ckv/blocks.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <time.h>

enum { STEP = 32, PROMPT = 100000, MAX_TOKENS = 1 << 20, MAX_RUNS = 1001 };
enum { REQUESTS = 64, REQUEST_BLOCKS = 128, TURNED_OVER = 4096 };
static const int64_t usual_sizes[] = {10000, 100000, 1000000};
static const char group[] = "block manager";

typedef struct bench {
    const bench_options *options;
    bench_results *results;
    int32_t *tokens; /* [MAX_TOKENS] */
    double *us;      /* [runs] */
    int64_t runs;
} bench;

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Times of the runs, each `parts` times what the row is about. */
static void set_time(const bench *b, int64_t parts, bench_row *row)
{
    qsort(b->us, (size_t)b->runs, sizeof *b->us, ascending);
    row->min_us = b->us[0] / (double)parts;
    row->median_us = b->us[b->runs / 2] / (double)parts;
    row->max_us = b->us[b->runs - 1] / (double)parts;
}

static ckv_status open_manager(int64_t blocks, ckv_blocks **blocks_out)
{
    ckv_blocks_config config = ckv_blocks_config_default();
    ckv_blocks_count count = {.blocks = {blocks, 0}};
    config.geometry.tokens_per_block = STEP;
    config.geometry.max_seq_len = MAX_TOKENS;
    config.counts = &count;
    config.num_counts = 1;
    return ckv_blocks_create(&config, blocks_out);
}

/* Prompt number `n`: nothing in common with another one. */
static void fill_prompt(int32_t *tokens, int64_t count, int64_t n)
{
    uint64_t state = (uint64_t)n * 0x9e3779b97f4a7c15u + 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)(state >> 44); /* a vocabulary of a million */
    }
}

static ckv_blocks_request make_request(const int32_t *tokens, int64_t count, int64_t id)
{
    ckv_blocks_request request = ckv_blocks_request_default();
    request.id = id;
    request.tokens = tokens;
    request.num_tokens = count;
    return request;
}

/* A request comes, is computed and ends, and its blocks stay for others. */
static ckv_status pass_through(ckv_blocks *blocks, const int32_t *tokens, int64_t count)
{
    ckv_blocks_request request = make_request(tokens, count, 1);
    ckv_blocks_admission admission;
    CKV_TRY(ckv_blocks_add(blocks, &request, 1, &admission));
    CKV_TRY(ckv_blocks_prefill(blocks, 1, count));
    return ckv_blocks_remove(blocks, 1, 1, NULL);
}

static ckv_status come_and_go(ckv_blocks *blocks, const int32_t *tokens)
{
    for (int64_t id = 0; id < REQUESTS; id++) {
        ckv_blocks_request request = make_request(tokens, REQUEST_BLOCKS * STEP, id);
        ckv_blocks_admission admission;
        CKV_TRY(ckv_blocks_add(blocks, &request, 1, &admission));
    }
    for (int64_t id = 0; id < REQUESTS; id++)
        CKV_TRY(ckv_blocks_remove(blocks, id, 0, NULL));
    return CKV_OK;
}

static ckv_status measure_allocation(bench *b)
{
    ckv_blocks *blocks;
    char params[64];
    bench_row row = bench_row_default();
    CKV_TRY(open_manager(REQUESTS * REQUEST_BLOCKS, &blocks));
    ckv_status status = CKV_OK;
    for (int64_t i = 0; i < b->runs && status == CKV_OK; i++) {
        double started = now_us();
        status = come_and_go(blocks, b->tokens);
        b->us[i] = now_us() - started;
    }
    ckv_blocks_destroy(&blocks);
    CKV_TRY(status);
    snprintf(params, sizeof params, "%d requests of %d blocks", (int)REQUESTS, (int)REQUEST_BLOCKS);
    row.group = group;
    row.variant = "a block allocated and released";
    row.params = params;
    set_time(b, REQUESTS * REQUEST_BLOCKS, &row);
    bench_results_add(b->results, &row);
    return CKV_OK;
}

/* Bytes in use by malloc. */
static double heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return (double)(info.uordblks + info.hblkhd);
}

/* Managers full of cached prompts of PROMPT tokens, nothing else in them. */
typedef struct full_manager {
    ckv_blocks *blocks;
    int64_t prompts, cached;
    double bytes_per_block; /* besides its tokens */
} full_manager;

static ckv_status fill_manager(bench *b, int64_t cached, full_manager *full)
{
    int64_t each = PROMPT / STEP;
    double before = heap_bytes();
    *full = (full_manager){.prompts = (cached + each - 1) / each};
    full->cached = full->prompts * each;
    CKV_TRY(open_manager(full->prompts * (each + 1), &full->blocks));
    for (int64_t n = 0; n < full->prompts; n++) {
        fill_prompt(b->tokens, PROMPT + 1, n);
        CKV_TRY(pass_through(full->blocks, b->tokens, PROMPT + 1));
    }
    full->bytes_per_block = (heap_bytes() - before) / (double)full->cached - STEP * (double)sizeof *b->tokens;
    return CKV_OK;
}

/* Each time another prompt, long untouched where there are many; or, with stride 0, the same one. */
static ckv_status measure_lookup(bench *b, const full_manager *full, int64_t count, int64_t stride, bench_row *row)
{
    for (int64_t i = 0; i < b->runs; i++) {
        fill_prompt(b->tokens, count, i * stride % full->prompts);
        ckv_blocks_request request = make_request(b->tokens, count, 1);
        ckv_blocks_analysis analysis;
        double started = now_us();
        CKV_TRY(ckv_blocks_analyze(full->blocks, 0, &request, &analysis));
        b->us[i] = now_us() - started;
        if (analysis.tokens == count / STEP * STEP)
            continue;
        row->failed = 1;
        row->note = "a prefix that is cached was not found";
        return CKV_OK;
    }
    set_time(b, 1, row);
    return CKV_OK;
}

static ckv_status measure_lookups(bench *b, const full_manager *full)
{
    static const int64_t lengths[] = {3200, 10000, 32000, PROMPT};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (int64_t stride = 7; stride >= 0; stride -= 7) {
            char variant[96], params[64];
            bench_row row = bench_row_default();
            snprintf(variant, sizeof variant, "among %" PRId64 " cached blocks%s", full->cached,
                     stride == 0 ? ", the same prompt again" : "");
            snprintf(params, sizeof params, "prompt of %" PRId64 " tokens", lengths[i]);
            row.group = "block manager, prefix looked up";
            row.variant = variant;
            row.params = params;
            row.x_name = "tokens of the prompt";
            row.x = (double)lengths[i];
            CKV_TRY(measure_lookup(b, full, lengths[i], stride, &row));
            bench_results_add(b->results, &row);
        }
    }
    return CKV_OK;
}

static void report_memory(bench *b, const full_manager *full)
{
    char params[64], note[64];
    bench_row row = bench_row_default();
    snprintf(params, sizeof params, "%" PRId64 " cached", full->cached);
    snprintf(note, sizeof note, "%.0f bytes a block besides its tokens", full->bytes_per_block);
    row.group = group;
    row.variant = "memory";
    row.params = params;
    row.note = note;
    bench_results_add(b->results, &row);
}

/* Every block stored displaces a cached one. */
static ckv_status measure_turnover(bench *b, const full_manager *full)
{
    char params[64];
    int64_t turned = full->cached < 2 * TURNED_OVER ? full->cached / 2 : TURNED_OVER;
    bench_row row = bench_row_default();
    for (int64_t i = 0; i < b->runs; i++) {
        fill_prompt(b->tokens, turned * STEP, full->prompts + i);
        double started = now_us();
        CKV_TRY(pass_through(full->blocks, b->tokens, turned * STEP));
        b->us[i] = now_us() - started;
    }
    snprintf(params, sizeof params, "%" PRId64 " cached", full->cached);
    row.group = group;
    row.variant = "a block allocated, stored and displaced";
    row.params = params;
    set_time(b, turned, &row);
    bench_results_add(b->results, &row);
    return CKV_OK;
}

static ckv_status measure_size(bench *b, int64_t cached)
{
    full_manager full;
    ckv_status status = fill_manager(b, cached, &full);
    if (status == CKV_OK) {
        report_memory(b, &full);
        status = measure_lookups(b, &full);
    }
    if (status == CKV_OK)
        status = measure_turnover(b, &full);
    ckv_blocks_destroy(&full.blocks);
    return status;
}

static ckv_status measure_all(bench *b)
{
    const bench_options *o = b->options;
    const int64_t *sizes = o->num_sizes > 0 ? o->sizes : usual_sizes;
    size_t count = o->num_sizes > 0 ? o->num_sizes : sizeof usual_sizes / sizeof *usual_sizes;
    mallopt(M_MMAP_THRESHOLD, 1 << 20); /* or mallinfo2 rounds what large blocks take */
    fill_prompt(b->tokens, MAX_TOKENS, -1);
    CKV_TRY(measure_allocation(b));
    for (size_t i = 0; i < count; i++)
        CKV_TRY(measure_size(b, sizes[i]));
    return CKV_OK;
}

int bench_blocks(const bench_options *options, bench_results *results)
{
    bench b = {.options = options, .results = results};
    b.runs = options->runs < MAX_RUNS ? options->runs : MAX_RUNS;
    b.tokens = malloc(MAX_TOKENS * sizeof *b.tokens);
    b.us = calloc((size_t)b.runs, sizeof *b.us);
    ckv_status status =
        b.tokens != NULL && b.us != NULL ? measure_all(&b) : ckv_fail(CKV_ERROR_MEMORY, "blocks: out of memory");
    bench_results_fact(results, "device", "one thread of the host");
    bench_results_fact(results, "geometry", "blocks of %d tokens", (int)STEP);
    bench_results_fact(results, "each time", "of one thread of the host, the thread's own; median of %" PRId64, b.runs);
    free(b.us);
    free(b.tokens);
    return bench_exit_code(options, status);
}
