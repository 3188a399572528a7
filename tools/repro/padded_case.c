/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/repro/padded_case.h"

#include "tools/demo/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORWARDS = 2, STEPS_PER_SEED = 1 << 20 };

typedef struct builder {
    const padded_case *c;
    trace *trace;
    void *tensors[3]; /* by DEMO_Q, DEMO_K, DEMO_V */
    int64_t committed, forwards;
} builder;

const char *padded_fill_name(padded_fill fill)
{
    static const char *const names[] = {
        [PADDED_RANDOM] = "random", [PADDED_ZERO] = "zero", [PADDED_NAN] = "nan", [PADDED_INF] = "inf"};
    return names[fill];
}

int64_t padded_case_rows(const padded_case *c, int64_t tokens)
{
    return (tokens + c->ranks - 1) / c->ranks * c->ranks;
}

static int64_t longest_rows(const padded_case *c)
{
    return padded_case_rows(c, c->tokens > c->chunk_tokens ? c->tokens : c->chunk_tokens);
}

static double row_bytes(const padded_case *c, int64_t heads)
{
    return (double)heads * (double)c->model.head_dim * (double)ckv_dtype_bytes(c->model.dtype);
}

double padded_case_bytes(const padded_case *c)
{
    double forwards = (double)(FORWARDS * c->chunks) * (double)c->model.layers;
    return forwards * (double)longest_rows(c) * row_bytes(c, c->model.q_heads + 2 * c->model.kv_heads);
}

static void fill_padding(const padded_case *c, int64_t heads, int64_t tokens, int64_t rows, void *tensor)
{
    static const float values[] = {[PADDED_ZERO] = 0, [PADDED_NAN] = NAN, [PADDED_INF] = INFINITY};
    size_t element = ckv_dtype_bytes(c->model.dtype), width = (size_t)(heads * c->model.head_dim);
    if (c->fill == PADDED_RANDOM)
        return;
    for (size_t i = (size_t)tokens * width; i < (size_t)rows * width; i++)
        ckv_convert_from_float(c->model.dtype, &values[c->fill], 1, (char *)tensor + i * element);
}

static bool add_forward(builder *b, int64_t layer, int64_t tokens)
{
    const padded_case *c = b->c;
    int64_t rows = padded_case_rows(c, tokens), step = c->seed * STEPS_PER_SEED + b->forwards;
    for (int tensor = DEMO_Q; tensor <= DEMO_V; tensor++) {
        int64_t heads = tensor == DEMO_Q ? c->model.q_heads : c->model.kv_heads;
        demo_model_fill(tensor, layer, step, b->committed, rows, heads, c->model.head_dim, c->model.dtype,
                        b->tensors[tensor]);
        fill_padding(c, heads, tokens, rows, b->tensors[tensor]);
    }
    char name[32];
    snprintf(name, sizeof name, "f%" PRId64, b->forwards++);
    return trace_add_forward(b->trace, layer, rows, tokens, tokens, name, b->tensors[DEMO_Q], b->tensors[DEMO_K],
                             b->tensors[DEMO_V], NULL);
}

static bool add_chunk(builder *b, int64_t tokens)
{
    bool ok = true;
    for (int forward = 0; forward < FORWARDS; forward++)
        for (int64_t layer = 0; layer < b->c->model.layers; layer++)
            ok = ok && add_forward(b, layer, tokens);
    b->committed += tokens;
    return ok && trace_add_commit(b->trace, tokens);
}

static bool add_rollout(builder *b)
{
    const padded_case *c = b->c;
    const int64_t sizes[] = {c->tokens, c->chunk_tokens};
    int64_t longest = c->tokens > c->chunk_tokens ? c->tokens : c->chunk_tokens;
    bool ok = trace_add_open(b->trace, c->pin_tokens, c->window_tokens, longest, sizes, 2);
    for (int64_t chunk = 0; chunk < c->chunks && ok; chunk++)
        ok = add_chunk(b, chunk == 0 ? c->tokens : c->chunk_tokens);
    return ok && trace_add_close(b->trace);
}

trace *padded_case_make(const padded_case *c)
{
    builder b = {.c = c, .trace = trace_create(&c->model)};
    bool ok = b.trace != NULL;
    for (int tensor = DEMO_Q; tensor <= DEMO_V; tensor++) {
        int64_t heads = tensor == DEMO_Q ? c->model.q_heads : c->model.kv_heads;
        b.tensors[tensor] = malloc((size_t)(row_bytes(c, heads) * (double)longest_rows(c)));
        ok = ok && b.tensors[tensor] != NULL;
    }
    if (!ok || !add_rollout(&b))
        trace_free(&b.trace);
    for (int tensor = DEMO_Q; tensor <= DEMO_V; tensor++)
        free(b.tensors[tensor]);
    return b.trace;
}
