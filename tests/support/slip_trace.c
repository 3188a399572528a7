/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/slip_trace.h"

#include "tests/support/case.h"
#include "tests/support/random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { Q_HEADS = SLIP_Q_HEADS, KV_HEADS = SLIP_KV_HEADS, DIM = SLIP_DIM, PROMPT = SLIP_PROMPT, TOKENS = SLIP_TOKENS };
enum { ROWS = SLIP_ROWS, CHUNKS = SLIP_CHUNKS, WINDOW = SLIP_WINDOW, PAGE = SLIP_PAGE };
enum { MAX_TOKENS = PROMPT + CHUNKS * TOKENS, MAX_KEYS = 64 };

typedef struct key {
    float k[KV_HEADS][DIM], v[KV_HEADS][DIM];
} key;

typedef struct model {
    slip slip;
    int block;
    ckv_random random;
    key tokens[MAX_TOKENS];  /* by id */
    key earlier[MAX_TOKENS]; /* K and V of the same tokens in the denoising step before */
    key padding[CHUNKS];
    float q[ROWS][Q_HEADS][DIM], out[ROWS][Q_HEADS][DIM];
} model;

typedef struct key_list {
    const key *keys[MAX_KEYS];
    int count;
} key_list;

static const key zero_key;

static void push(key_list *list, const key *one)
{
    assert_true(list->count < MAX_KEYS);
    list->keys[list->count++] = one;
}

/* Rows of the stored past, padding included where the slip stores it; the window counts them. */
static void push_padded_past(const model *m, int chunk, key_list *list)
{
    const key *stored[MAX_KEYS];
    int count = 0;
    for (int id = 0; id < PROMPT + chunk * TOKENS; id++) {
        stored[count++] = &m->tokens[id];
        int of = (id - PROMPT) / TOKENS;
        bool ends_chunk = id >= PROMPT && (id - PROMPT) % TOKENS == TOKENS - 1;
        if (ends_chunk && (of == 0 || m->slip != SLIP_COMMIT_FIRST))
            stored[count++] = m->slip == SLIP_COMMIT_ZEROS ? &zero_key : &m->padding[of];
    }
    for (int i = 0; i < count; i++) {
        bool is_padding = stored[i] == &zero_key || (stored[i] >= m->padding && stored[i] < m->padding + CHUNKS);
        if ((i < PROMPT || i >= count - WINDOW) && !(m->slip == SLIP_MASKED && is_padding))
            push(list, stored[i]);
    }
}

/* Of the window before the causal block at `start`. */
static int first_token(const model *m, int chunk, int start)
{
    int begin = start - WINDOW;
    switch (m->slip) {
    case SLIP_LATE:
        return begin + 1;
    case SLIP_EARLY:
        return begin - 3;
    case SLIP_PAGE_START:
        return begin - begin % PAGE;
    case SLIP_PIN_COUNTS:
        return begin + PROMPT;
    case SLIP_OWN_COUNTS:
        return begin + m->block;
    case SLIP_CHUNK_EARLY:
        return begin - TOKENS;
    case SLIP_FIRST_WINDOW:
        return PROMPT + chunk * TOKENS - WINDOW;
    default:
        return begin;
    }
}

static void push_past(const model *m, int chunk, int start, key_list *list)
{
    int begin = first_token(m, chunk, start);
    for (int id = 0; id < PROMPT + chunk * TOKENS; id++)
        for (int times = 0; times < (m->slip == SLIP_CONTEXT && id < PROMPT ? 2 : 1); times++)
            if ((id < PROMPT ? m->slip != SLIP_NO_PIN : id >= begin) &&
                !(m->slip == SLIP_MISSING && id == PROMPT + chunk * TOKENS - 2))
                push(list, m->slip == SLIP_STALE_STEP && id >= PROMPT ? &m->earlier[id] : &m->tokens[id]);
}

static void read_keys(const model *m, int chunk, int row, key_list *list)
{
    int committed = PROMPT + chunk * TOKENS, end = (row / m->block + 1) * m->block;
    if (m->slip == SLIP_COMMIT_FIRST || m->slip == SLIP_COMMIT_ALL || m->slip == SLIP_COMMIT_ZEROS ||
        m->slip == SLIP_MASKED)
        push_padded_past(m, chunk, list);
    else if (m->slip != SLIP_NO_CACHE)
        push_past(m, chunk, committed + row / m->block * m->block, list);
    end = m->slip == SLIP_LATER_BLOCKS ? TOKENS : m->slip == SLIP_SHARD_LENGTH ? ROWS / 2 : end;
    for (int i = 0; i < end; i++)
        push(list, &m->tokens[committed + i]);
    if (m->slip == SLIP_PADDING_READ || m->slip == SLIP_PADDING_ZERO)
        push(list, m->slip == SLIP_PADDING_ZERO ? &zero_key : &m->padding[chunk]);
}

static void attend(const model *m, int chunk, int row, int head, float out[DIM])
{
    key_list list = {.count = 0};
    read_keys(m, chunk, row < TOKENS ? row : TOKENS - 1, &list);
    int kv = m->slip == SLIP_GROUPS ? head % KV_HEADS : head / (Q_HEADS / KV_HEADS);
    double sum = 0, values[DIM] = {0};
    for (int i = 0; i < list.count; i++) {
        double score = 0;
        for (int d = 0; d < DIM; d++)
            score += (double)m->q[row][head][d] * list.keys[i]->k[kv][d];
        double weight = exp(score / sqrt(DIM));
        sum += weight;
        for (int d = 0; d < DIM; d++)
            values[d] += weight * list.keys[i]->v[kv][d];
    }
    for (int d = 0; d < DIM; d++)
        out[d] = (float)(values[d] / sum);
}

/* The model's output, on two ranks. */
static void compute(model *m, int chunk)
{
    memset(m->out, 0, sizeof m->out);
    for (int row = 0; row < (m->slip == SLIP_PADDING_LEFT ? ROWS : TOKENS); row++) {
        for (int head = 0; head < Q_HEADS; head++) {
            int from_row = row, from_head = head;
            if (m->slip == SLIP_TRANSPOSED) {
                int index = row * (Q_HEADS / 2) + head % 2;
                from_row = index % ROWS;
                from_head = head / 2 * 2 + index / ROWS;
            }
            if (m->slip == SLIP_NEIGHBOUR)
                from_head = (head + 2) % Q_HEADS;
            if (m->slip == SLIP_REVERSED)
                from_row = (row + ROWS / 2) % ROWS;
            if (from_row < TOKENS || m->slip == SLIP_PADDING_LEFT)
                attend(m, chunk, from_row, from_head, m->out[row][head]);
            for (int d = 0; d < DIM && m->slip == SLIP_NONSENSE; d++)
                m->out[row][head][d] = ckv_random_float(&m->random);
        }
    }
}

static void fill(ckv_random *random, float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = 2 * ckv_random_float(random);
}

static void pack(const key *keys, int count, float k[][KV_HEADS][DIM], float v[][KV_HEADS][DIM])
{
    for (int i = 0; i < count; i++) {
        memcpy(k[i], keys[i].k, sizeof keys[i].k);
        memcpy(v[i], keys[i].v, sizeof keys[i].v);
    }
}

static void add_chunk(model *m, trace *t, int chunk, bool with_expected)
{
    float k[ROWS][KV_HEADS][DIM], v[ROWS][KV_HEADS][DIM];
    char name[16];
    if (m->slip == SLIP_STALE_STEP) {
        snprintf(name, sizeof name, "n%d", chunk);
        pack(&m->earlier[PROMPT + chunk * TOKENS], TOKENS, k, v);
        pack(&m->padding[chunk], 1, k + TOKENS, v + TOKENS);
        assert_true(trace_add_forward(t, 0, ROWS, TOKENS, m->block, name, m->q, k, v, NULL));
    }
    snprintf(name, sizeof name, "f%d", chunk);
    fill(&m->random, m->q[0][0], (size_t)ROWS * Q_HEADS * DIM);
    compute(m, chunk);
    pack(&m->tokens[PROMPT + chunk * TOKENS], TOKENS, k, v);
    pack(&m->padding[chunk], 1, k + TOKENS, v + TOKENS);
    assert_true(
        trace_add_forward(t, 0, ROWS, TOKENS, m->block, name, m->q, k, v, with_expected ? (const void *)m->out : NULL));
    assert_true(trace_add_commit(t, TOKENS));
}

trace *slip_trace_make(slip of, int block, bool with_expected)
{
    static model m;
    trace_config config = {.layers = 1,
                           .q_heads = Q_HEADS,
                           .kv_heads = KV_HEADS,
                           .head_dim = DIM,
                           .dtype = CKV_FP32,
                           .tokens_per_page = PAGE};
    const int64_t sizes[] = {TOKENS, 1};
    float k[PROMPT][KV_HEADS][DIM], v[PROMPT][KV_HEADS][DIM];
    m = (model){.slip = of, .block = block, .random = {ckv_test_seed() + (uint64_t)of}};
    fill(&m.random, m.tokens[0].k[0], (size_t)MAX_TOKENS * 2 * KV_HEADS * DIM);
    fill(&m.random, m.padding[0].k[0], (size_t)CHUNKS * 2 * KV_HEADS * DIM);
    if (of == SLIP_STALE_STEP)
        fill(&m.random, m.earlier[0].k[0], (size_t)MAX_TOKENS * 2 * KV_HEADS * DIM);
    trace *t = trace_create(&config);
    assert_non_null(t);
    assert_true(trace_add_open(t, PROMPT, WINDOW, TOKENS, sizes, 2));
    pack(m.tokens, PROMPT, k, v);
    assert_true(trace_add_write_range(t, 0, 0, PROMPT, "prompt", k, v));
    assert_true(trace_add_commit(t, PROMPT));
    for (int chunk = 0; chunk < CHUNKS; chunk++)
        add_chunk(&m, t, chunk, with_expected);
    assert_true(trace_add_close(t));
    return t;
}

void slip_trace_write(const char *folder, slip of, int block, bool with_expected)
{
    trace *t = slip_trace_make(of, block, with_expected);
    char path[128];
    problem why;
    snprintf(path, sizeof path, "%s/t", folder);
    if (!trace_write(t, path, &why))
        fail_msg("%s", why.text);
    trace_free(&t);
}
