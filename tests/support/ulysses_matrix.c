/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ulysses_matrix.h"

#include "tests/support/case.h"
#include "tests/support/pairwise.h"
#include "tests/support/random.h"
#include "tests/support/ulysses_usual.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum factor {
    RANKS,
    Q_HEADS,
    KV_HEADS,
    LENGTH,
    NUM_BOUND, /* the ones above do not all go together */
    PADDING = NUM_BOUND,
    PADDED_CHUNK,
    CONTEXTS,
    SHARDING,
    EXCHANGE,
    DTYPE,
    BLOCKS,
    PAGE,
    NUM_FACTORS
};

static const int all_ranks[] = {1, 2, 3, 4, 8};
static const int64_t all_q_heads[] = {1, 4, 5, 7, 12, 32};
enum { FEWER_KV_HEADS = 0 }; /* than ranks: their largest proper divisor */
static const int64_t all_kv_heads[] = {1, 2, 4, 8, FEWER_KV_HEADS};
enum { RANKS_MINUS_1 = 0 };
static const int64_t all_lengths[] = {1, 10, 11, 12, 394, 1576, RANKS_MINUS_1};
static const char *const paddings[NUM_PADDINGS] = {"zero", "random", "NaN", "inf"};
static const char *const padded_chunks[] = {"first", "later", "every"};
static const char *const exchanges[] = {"sendrecv", "fused"};
static const int64_t pages[] = {8, 32};

enum { NUM_CHUNKS = 3, EVEN_TOKENS = 24, BLOCK_TOKENS = 197, MOST_REFERENCE_TOKENS = 24 };

/* One row in numbers. */
typedef struct setting {
    int ranks, padded_chunk, contexts;
    int64_t length, block;
    party_padding padding;
    party_shape shape;
} setting;

static int64_t kv_heads_of(const pairwise_row *row)
{
    int64_t ranks = all_ranks[row->values[RANKS]], kv_heads = all_kv_heads[row->values[KV_HEADS]];
    for (int64_t i = 1; kv_heads == FEWER_KV_HEADS && i < ranks; i++)
        if (ranks % (ranks - i) == 0)
            return ranks - i;
    return kv_heads;
}

static int64_t length_of(const pairwise_row *row)
{
    int64_t length = all_lengths[row->values[LENGTH]];
    return length == RANKS_MINUS_1 ? all_ranks[row->values[RANKS]] - 1 : length;
}

static int goes_into_ranks(int64_t q_heads, int64_t kv_heads, int64_t ranks)
{
    return q_heads % kv_heads == 0 && q_heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0);
}

/* One rank has no fewer K/V heads than ranks, and no token less than one. */
static int admits(const pairwise_row *row)
{
    int64_t kv_heads = kv_heads_of(row);
    return length_of(row) > 0 && kv_heads != FEWER_KV_HEADS &&
           goes_into_ranks(all_q_heads[row->values[Q_HEADS]], kv_heads, all_ranks[row->values[RANKS]]);
}

static const pairwise_table table = {
    .num_factors = NUM_FACTORS,
    .num_values = {[RANKS] = 5,
                   [Q_HEADS] = 6,
                   [KV_HEADS] = 5,
                   [LENGTH] = 7,
                   [PADDING] = NUM_PADDINGS,
                   [PADDED_CHUNK] = 3,
                   [CONTEXTS] = 2,
                   [SHARDING] = 2,
                   [EXCHANGE] = 2,
                   [DTYPE] = 3,
                   [BLOCKS] = 2,
                   [PAGE] = 2},
    .admits = admits,
    .num_bound = NUM_BOUND,
};

/* The largest divisor up to BLOCK_TOKENS that is not the length itself, if there is one. */
static int64_t block_of(int64_t length)
{
    int64_t block = length / 2 < BLOCK_TOKENS ? length / 2 : BLOCK_TOKENS;
    while (block > 1 && length % block != 0)
        block--;
    return block > 0 ? block : 1;
}

/* Long forwards come in blocks only: they are attended once per rank and once more by one rank. */
static setting setting_of(const pairwise_row *row)
{
    const int *v = row->values;
    int64_t length = length_of(row);
    setting s = {
        .ranks = all_ranks[v[RANKS]],
        .padded_chunk = v[PADDED_CHUNK],
        .contexts = 1 + v[CONTEXTS],
        .length = length,
        .block = v[BLOCKS] || length > 2 * BLOCK_TOKENS ? block_of(length) : length,
        .padding = (party_padding)v[PADDING],
    };
    s.shape = (party_shape){
        .q_heads = all_q_heads[v[Q_HEADS]],
        .kv_heads = kv_heads_of(row),
        .head_dim = 8,
        .dtype = (ckv_dtype)v[DTYPE],
        .tokens_per_page = pages[v[PAGE]],
        .pin_tokens = 5,
        .window_tokens = 50,
        .max_staged_tokens = length > EVEN_TOKENS ? length : EVEN_TOKENS,
        .sizes = {EVEN_TOKENS, s.block},
        .sharding = (ckv_sharding)v[SHARDING],
        .exchange = party_uses.exchange ? party_uses.exchange : exchanges[v[EXCHANGE]],
        .without_reference = length > MOST_REFERENCE_TOKENS,
    };
    return s;
}

static void name_setting(const setting *s, char *name, size_t bytes)
{
    snprintf(name, bytes,
             "ranks %d, tokens %" PRId64 " in blocks of %" PRId64 ", heads %" PRId64 "/%" PRId64
             ", padding %s in %s chunk, contexts %d, %s, %s, %s, page %" PRId64,
             s->ranks, s->length, s->block, s->shape.q_heads, s->shape.kv_heads, paddings[s->padding],
             padded_chunks[s->padded_chunk], s->contexts, s->shape.sharding ? "unpadded" : "padded", s->shape.exchange,
             ckv_dtype_name(s->shape.dtype), s->shape.tokens_per_page);
}

/* The chunk of interest is the first, the second, or every one; the others divide by any number of ranks. A second
 * context, if there is one, has a forward in between. */
static void run_chunks(rank_report *report, const setting *s, party *p, party *other)
{
    for (int chunk = 0; chunk < NUM_CHUNKS; chunk++) {
        int padded = s->padded_chunk == 2 || s->padded_chunk == chunk;
        party_forward forward = {.layer = 1, .seq_len = EVEN_TOKENS, .causal_block_size = EVEN_TOKENS};
        if (padded)
            forward.seq_len = s->length, forward.causal_block_size = s->block;
        forward.padding = s->padding;
        RANK_STEP(report, party_run(p, report, &forward));
        if (other != NULL)
            RANK_STEP(report, still_works(other, report));
        RANK_STEP(report, party_commit(p, report, forward.seq_len));
    }
}

static void run_setting(ckv_comm *comm, rank_report *report, const setting *s)
{
    party p, other;
    party_shape small = small_shape(s->ranks);
    small.q_heads *= 3;
    if (s->contexts > 1)
        RANK_STEP(report, party_open(&other, report, comm, &small));
    RANK_STEP(report, party_open(&p, report, comm, &s->shape));
    RANK_STEP(report, run_chunks(report, s, &p, s->contexts > 1 ? &other : NULL));
    party_close(&p);
    if (s->contexts > 1)
        party_close(&other);
}

/* Run a row of this communicator's size, and say which one it was. */
static void run_row(ckv_comm *comm, rank_report *report, const pairwise_row *row)
{
    setting s = setting_of(row);
    char name[256], why[sizeof report->text];
    if (s.ranks != ckv_comm_size(comm))
        return;
    name_setting(&s, name, sizeof name);
    if (ckv_comm_rank(comm) == 0)
        printf("%s\n", name);
    run_setting(comm, report, &s);
    if (report->failed) {
        memcpy(why, report->text, sizeof why);
        snprintf(report->text, sizeof report->text, "%s: %.380s", name, why);
    }
}

void matrix_any_two_values_meet(ckv_comm *comm, rank_report *report)
{
    int count;
    pairwise_row *rows = pairwise_choose(&table, &count);
    RANK_CHECK(report, pairwise_missing(&table, rows, count) == 0);
    for (int i = 0; i < count && !report->failed; i++)
        run_row(comm, report, &rows[i]);
    free(rows);
}

/* All combinations of the first `count` factors; the other values are drawn. */
static void run_all(ckv_comm *comm, rank_report *report, int count)
{
    ckv_random random = {ckv_test_seed()};
    pairwise_row row = {{0}};
    do {
        for (int f = count; f < NUM_FACTORS; f++)
            row.values[f] = (int)ckv_random_range(&random, 0, table.num_values[f] - 1);
        if (admits(&row))
            RANK_STEP(report, run_row(comm, report, &row));
    } while (pairwise_next(&table, count, &row));
}

void matrix_every_heads_and_length(ckv_comm *comm, rank_report *report)
{
    run_all(comm, report, NUM_BOUND);
}

void matrix_every_combination(ckv_comm *comm, rank_report *report)
{
    run_all(comm, report, CONTEXTS + 1);
}

/* On this number of ranks. The refusal says what does not go into what. */
static void refuse_heads(ckv_comm *comm, rank_report *report, int64_t q_heads, int64_t kv_heads)
{
    int ranks = ckv_comm_size(comm);
    char detail[96];
    ckv_ulysses *ulysses = NULL;
    party_shape shape = {.q_heads = q_heads, .kv_heads = kv_heads, .head_dim = 8};
    shape = party_fit(&shape);
    ckv_ulysses_config config = party_config(&shape);
    ckv_status expected = q_heads % kv_heads != 0 ? CKV_ERROR_INVALID : CKV_ERROR_UNSUPPORTED;
    if (q_heads % kv_heads != 0)
        snprintf(detail, sizeof detail, "%" PRId64 " query heads are no multiple of %" PRId64, q_heads, kv_heads);
    else if (q_heads % ranks != 0)
        snprintf(detail, sizeof detail, "%" PRId64 " query heads on %d ranks", q_heads, ranks);
    else
        snprintf(detail, sizeof detail, "%" PRId64 " K/V heads on %d ranks", kv_heads, ranks);
    RANK_STATUS(report, ckv_ulysses_create(comm, &config, &ulysses), expected);
    RANK_DETAIL(report, detail);
    RANK_CHECK(report, ulysses == NULL);
}

void matrix_uneven_heads_are_refused(ckv_comm *comm, rank_report *report)
{
    static const int64_t kv_heads[] = {1, 2, 3, 4, 6, 8};
    int refused = 0;
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++)
            if (!goes_into_ranks(all_q_heads[i], kv_heads[j], ckv_comm_size(comm))) {
                RANK_STEP(report, refuse_heads(comm, report, all_q_heads[i], kv_heads[j]));
                refused++;
            }
    RANK_CHECK(report, refused > 0);
}
