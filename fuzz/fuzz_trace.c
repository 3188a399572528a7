/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as a trace that is run, explained and made smaller: what holds together as a file may still ask for anything.
 */
#include "fuzz/fuzz.h"
#include "tools/explain/mistakes.h"
#include "tools/repro/rank_run.h"
#include "tools/repro/reduce.h"

enum { MOST_OPS = 24, MOST_HEADS = 8, MOST_DIM = 16, MOST_ROWS = 16, MOST_PAGE = 64, MOST_TOKENS = 64 };

/* Large ones are right or refused like small ones, but take too long. */
static bool is_small(const trace *t)
{
    const trace_config *c = &t->config;
    bool small = t->num_ops <= MOST_OPS && c->q_heads <= MOST_HEADS && c->head_dim <= MOST_DIM &&
                 c->layers <= MOST_HEADS && c->tokens_per_page <= MOST_PAGE;
    for (size_t i = 0; i < t->num_ops && small; i++) {
        const trace_op *op = &t->ops[i];
        small = op->rows <= MOST_ROWS && op->window_tokens <= MOST_TOKENS && op->pin_tokens <= MOST_TOKENS &&
                op->max_staged_tokens <= MOST_TOKENS;
    }
    return small;
}

static void explain(const trace *t, int64_t forward, int64_t row, const float *observed)
{
    history h;
    problem why;
    diagnosis found;
    arena memory = {0};
    bool applies;
    ckv_status status = history_open(&h, t, forward, 1, &memory, &why);
    if (status == CKV_OK && row < h.op->rows) {
        history_keys window = history_window(&h, row);
        status = history_locate(&h, row, &window, &why);
        if (status == CKV_OK)
            status = diagnose(&h, row, &window, observed, &found, &why);
        double out[MOST_HEADS * MOST_DIM];
        for (int64_t i = 0; status == CKV_OK && i < found.num_mistakes && row < h.op->seq_len; i++)
            status = imitate(&h, row, &found.mistakes[i], out, &applies, &why);
    }
    history_close(&h);
    arena_free(&memory);
}

static void run(const trace *t)
{
    static const float observed[MOST_HEADS * MOST_DIM] = {1};
    const rank_run_options options = {.ranks = 1, .tolerance = -1};
    rank_run result;
    problem why;
    if (rank_run_trace(t, &options, &result, &why) == CKV_OK)
        for (int64_t forward = 0; forward < (int64_t)result.forwards; forward++)
            for (int64_t row = 0; row < 3; row++)
                explain(t, forward, row, observed);
    rank_run_free(&result);
}

static void run_smaller(const trace *t, reduction r)
{
    trace *small = reduce(t, &r);
    if (small != NULL)
        run(small);
    trace_free(&small);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trace *t;
    problem why;
    if (!trace_parse("input", data, size, &t, &why))
        return 0;
    if (is_small(t)) {
        run(t);
        run_smaller(t, (reduction){.only_used_blocks = true, .round_values = true});
        run_smaller(t, (reduction){.capped = {0, t->num_ops}, .cap_tokens = 2, .group = {0, 1}});
        run_smaller(t, (reduction){.head_dim = 1, .kv_heads = {0, 1}, .expected = EXPECTED_LAST});
        for (size_t i = 0; i < t->num_ops; i++)
            run_smaller(t, (reduction){.ops = {i, 1}});
        for (size_t i = 0; i < trace_chunks(t); i++)
            run_smaller(t, (reduction){.ops = trace_chunk(t, i)});
    }
    trace_free(&t);
    return 0;
}
