/* SPDX-License-Identifier: Apache-2.0 */
/* The block manager on one core, bookkeeping only: blocks handed out and taken back per second, prefix lookups over the
 * number of tokens and of cached blocks, memory per cached block. One measurement a line, `name key=value ...`; times
 * are medians of the thread's own time. Lines that begin with `summary` compare a quantity with its target.
 *
 *     ckv_blocks_bench [CACHED_BLOCKS]     1,000,000 unless given */
#include <ckv/blocks.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEP = 32, PROMPT = 100000, REPEATS = 21, MAX_TOKENS = 1 << 20 };

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "ckv_blocks_bench: %s: %s\n", what, ckv_last_error());
    exit(1);
}

static void must(ckv_status status, const char *call)
{
    if (status != CKV_OK)
        fail(call);
}
#define MUST(call) must(call, #call)

/* Time this thread has run: others may use the machine. */
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

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

static void summary(const char *quantity, double value, double target, int at_least)
{
    int met = at_least ? value >= target : value <= target;
    printf("summary %s=%.3f target=%.3f met=%s\n", quantity, value, target, met ? "yes" : "no");
}

static ckv_blocks *open_manager(int64_t primary)
{
    ckv_blocks_config config = ckv_blocks_config_default();
    ckv_blocks_count count = {.blocks = {primary, 0}};
    ckv_blocks *blocks;
    config.geometry.tokens_per_block = STEP;
    config.geometry.max_seq_len = MAX_TOKENS;
    config.counts = &count;
    config.num_counts = 1;
    MUST(ckv_blocks_create(&config, &blocks));
    return blocks;
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

/* Bytes in use by malloc. */
static double heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return (double)(info.uordblks + info.hblkhd);
}

/* A request comes, is computed and ends; `store` keeps its blocks. */
static void pass_through(ckv_blocks *blocks, const int32_t *tokens, int64_t count, int store)
{
    ckv_blocks_request request = make_request(tokens, count, 1);
    ckv_blocks_admission admission;
    MUST(ckv_blocks_add(blocks, &request, 1, &admission));
    if (store)
        MUST(ckv_blocks_prefill(blocks, 1, count));
    MUST(ckv_blocks_remove(blocks, 1, store, NULL));
}

static void measure_allocation(int32_t *tokens)
{
    ckv_blocks *blocks = open_manager(8192);
    double us[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        double started = now_us();
        for (int64_t id = 0; id < 64; id++) {
            ckv_blocks_request request = make_request(tokens, 128 * STEP, id);
            ckv_blocks_admission admission;
            MUST(ckv_blocks_add(blocks, &request, 1, &admission));
        }
        for (int64_t id = 0; id < 64; id++)
            MUST(ckv_blocks_remove(blocks, id, 0, NULL));
        us[i] = now_us() - started;
    }
    double per_second = 64 * 128 / median(us, REPEATS) * 1e6;
    printf("allocate requests=64 blocks_each=128 per_second=%.0f\n", per_second);
    summary("million_blocks_allocated_and_released_per_second", per_second / 1e6, 1, 1);
    ckv_blocks_destroy(&blocks);
}

/* Fill with cached prompts; every later one displaces an older one. */
static void measure_turnover(ckv_blocks *blocks, int32_t *tokens, int64_t first)
{
    double us[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        fill_prompt(tokens, 4096 * STEP, first + i);
        double started = now_us();
        pass_through(blocks, tokens, 4096 * STEP, 1);
        us[i] = now_us() - started;
    }
    printf("turn_over blocks=4096 per_second=%.0f\n", 4096 / median(us, REPEATS) * 1e6);
}

/* Each time another prompt, long untouched where there are many; or, with stride 0, the same one. */
static double measure_lookup(ckv_blocks *blocks, int32_t *tokens, int64_t count, int64_t prompts, int64_t stride)
{
    double us[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        fill_prompt(tokens, count, i * stride % prompts);
        ckv_blocks_request request = make_request(tokens, count, 1);
        ckv_blocks_analysis analysis;
        double started = now_us();
        MUST(ckv_blocks_analyze(blocks, 0, &request, &analysis));
        us[i] = now_us() - started;
        if (analysis.tokens != count / STEP * STEP) {
            fprintf(stderr, "ckv_blocks_bench: %" PRId64 " of %" PRId64 " tokens found\n", analysis.tokens, count);
            exit(1);
        }
    }
    return median(us, REPEATS);
}

/* A manager full of cached prompts of PROMPT tokens. */
static ckv_blocks *fill_manager(int64_t cached, int32_t *tokens, int64_t *prompts_out)
{
    int64_t each = PROMPT / STEP, prompts = (cached + each - 1) / each;
    ckv_blocks *blocks = open_manager(prompts * (each + 1));
    for (int64_t n = 0; n < prompts; n++) {
        fill_prompt(tokens, PROMPT + 1, n);
        pass_through(blocks, tokens, PROMPT + 1, 1);
    }
    *prompts_out = prompts;
    return blocks;
}

static void measure_curve(int64_t cached, int32_t *tokens, int judged)
{
    static const int64_t lengths[] = {3200, 10000, 32000, PROMPT};
    int64_t prompts;
    double before = heap_bytes();
    ckv_blocks *blocks = fill_manager(cached, tokens, &prompts);
    int64_t stored = prompts * (PROMPT / STEP);
    double bytes = (heap_bytes() - before) / (double)stored - STEP * (double)sizeof *tokens;
    printf("memory cached=%" PRId64 " bytes_per_block_besides_tokens=%.0f\n", stored, bytes);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        double us = measure_lookup(blocks, tokens, lengths[i], prompts, 7);
        double again = measure_lookup(blocks, tokens, lengths[i], prompts, 0);
        printf("lookup cached=%" PRId64 " tokens=%" PRId64 " us=%.1f ns_per_block=%.0f again_us=%.1f\n", stored,
               lengths[i], us, us * 1e3 * STEP / (double)lengths[i], again);
        if (judged && lengths[i] == PROMPT)
            summary("lookup_of_100000_tokens_ms", us / 1e3, 2, 0);
    }
    if (judged) {
        summary("bytes_per_cached_block_besides_tokens", bytes, 256, 0);
        measure_turnover(blocks, tokens, prompts);
    }
    ckv_blocks_destroy(&blocks);
}

int main(int argc, char **argv)
{
    int64_t cached = argc > 1 ? strtoll(argv[1], NULL, 10) : 1000000;
    int32_t *tokens = malloc(MAX_TOKENS * sizeof *tokens);
    if (tokens == NULL || cached < 1000)
        return 1;
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    fill_prompt(tokens, MAX_TOKENS, -1);
    measure_allocation(tokens);
    for (int64_t part = 100; part >= 1; part /= 10)
        measure_curve(cached / part, tokens, part == 1);
    free(tokens);
    return 0;
}
