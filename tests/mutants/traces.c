/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/mutants/traces.h"

#include "tests/support/random.h"

#include <stdio.h>

enum { LAYERS = 2, Q_HEADS = 4, KV_HEADS = 2, DIM = 8, PROMPT = 5, WINDOW = 14, MOST = 12, BLOCK = 3, RANKS = 4 };

typedef struct maker {
    trace *trace;
    ckv_random random;
    int names;
    float q[MOST][Q_HEADS][DIM], k[MOST][KV_HEADS][DIM], v[MOST][KV_HEADS][DIM];
} maker;

static void fill(maker *m, void *tensor, size_t bytes)
{
    for (float *value = tensor; value < (float *)tensor + bytes / sizeof(float); value++)
        *value = 2 * ckv_random_float(&m->random);
}

static const char *draw(maker *m, char name[16])
{
    fill(m, m->q, sizeof m->q);
    fill(m, m->k, sizeof m->k);
    fill(m, m->v, sizeof m->v);
    snprintf(name, 16, "t%d", m->names++);
    return name;
}

static bool add_write(maker *m, int64_t start, int64_t tokens)
{
    bool ok = true;
    char name[16];
    for (int64_t layer = 0; layer < LAYERS; layer++)
        ok = ok && trace_add_write_range(m->trace, layer, start, tokens, draw(m, name), m->k, m->v);
    return ok;
}

static bool add_chunk(maker *m, int64_t tokens)
{
    bool ok = true;
    char name[16];
    int64_t rows = (tokens + RANKS - 1) / RANKS * RANKS, last = tokens % BLOCK == 0 ? BLOCK : tokens;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t layer = 0; layer < LAYERS; layer++)
            ok = ok && trace_add_forward(m->trace, layer, rows, tokens, pass == 0 ? 0 : last, draw(m, name), m->q, m->k,
                                         m->v, NULL);
    return ok && trace_add_commit(m->trace, tokens);
}

/* Edits reach over the end of the prompt, and into pages that rotated. */
static bool add_rollout(maker *m, const int64_t *chunks, size_t num_chunks)
{
    int64_t sizes[MOST]; /* all, so that a wrong count of tokens is not refused */
    for (int i = 0; i < MOST; i++)
        sizes[i] = i + 1;
    bool ok = trace_add_open(m->trace, PROMPT, WINDOW, MOST, sizes, MOST) && add_write(m, 0, PROMPT) &&
              trace_add_commit(m->trace, PROMPT);
    for (size_t i = 0; i < num_chunks; i++) {
        if (i > 1)
            ok = ok && add_write(m, 3, 9) && trace_add_zero_values(m->trace, 0, 8, 4);
        ok = ok && add_chunk(m, chunks[i]);
    }
    return ok && trace_add_close(m->trace);
}

trace *mutant_trace_make(int64_t tokens_per_page)
{
    static const int64_t first[] = {5, 11, 12, 9, 12}, second[] = {11, 12, 9};
    trace_config config = {LAYERS, Q_HEADS, KV_HEADS, DIM, CKV_FP32, tokens_per_page, 0};
    maker m = {.trace = trace_create(&config), .random = {1}};
    if (m.trace == NULL || !add_rollout(&m, first, 5) || !add_rollout(&m, second, 3))
        trace_free(&m.trace);
    return m.trace;
}
