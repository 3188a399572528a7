/* SPDX-License-Identifier: Apache-2.0 */
/* Results. Each case says which mistakes it is there to catch. */
#include "tests/support/ulysses_cases.h"

#include "tests/support/case.h"
#include "tests/support/random_data.h"
#include "tests/support/ulysses_usual.h"

#include <string.h>

/* Which vector this is and where in it: small integers, exact in every dtype. */
static float stamp(int64_t token, int64_t head, int64_t dim)
{
    const int64_t coordinates[] = {token, head, dim};
    return (float)coordinates[dim % 3];
}

/* V of every real token is its stamp, K all alike. */
static void stamp_tensors(const party *p, const party_tensors *t)
{
    const party_shape *s = &p->shape;
    for (int64_t i = 0; i < t->args.seq_len * 2 * s->kv_heads * s->head_dim; i++) {
        int64_t token = i / (2 * s->kv_heads * s->head_dim), head = i / s->head_dim % (2 * s->kv_heads);
        int64_t at = (token * (s->q_heads + 2 * s->kv_heads) + s->q_heads + head) * s->head_dim + i % s->head_dim;
        float value = head < s->kv_heads ? 1 : stamp(token, head - s->kv_heads, i % s->head_dim);
        set_element(s->dtype, t->qkv, at, value);
    }
}

static void expect_stamps(const party *p, rank_report *report, const party_tensors *t)
{
    const party_shape *s = &p->shape;
    int64_t group = s->q_heads / s->kv_heads;
    for (int64_t i = 0; i < t->rows * s->q_heads * s->head_dim; i++) {
        int64_t row = i / (s->q_heads * s->head_dim), head = i / s->head_dim % s->q_heads, dim = i % s->head_dim;
        int64_t token = t->first_row + row;
        float expected = token < t->args.seq_len ? stamp(token, head / group, dim) : 0;
        float value = get_element(s->dtype, t->out, (row * (s->q_heads + 1) + head) * s->head_dim + dim);
        if (value != expected) {
            rank_fail(report, __FILE__, __LINE__, "%lld tokens, token %lld head %lld channel %lld: %g where %g belongs",
                      (long long)t->args.seq_len, (long long)token, (long long)head, (long long)dim, (double)value,
                      (double)expected);
            return;
        }
    }
}

static void check_stamps(ckv_comm *comm, rank_report *report, const party_shape *shape)
{
    party p;
    party_tensors t;
    party_forward forward = {.seq_len = shape->max_staged_tokens, .causal_block_size = 1, .padding = PADDING_RANDOM};
    RANK_STEP(report, party_open(&p, report, comm, shape));
    RANK_STEP(report, party_make(&p, report, &forward, &t));
    stamp_tensors(&p, &t);
    RANK_STEP(report, party_upload(&p, report, &t));
    RANK_STEP(report, party_attend(&p, report, &t));
    RANK_STEP(report, expect_stamps(&p, report, &t));
    party_free(&p, &t);
    party_close(&p);
}

static void check_stamps_of_heads(ckv_comm *comm, rank_report *report, int64_t tokens, int64_t kv_heads)
{
    int ranks = ckv_comm_size(comm), step = party_on_gpu() ? 2 : 1;
    for (int sharding = CKV_SHARDS_PADDED; sharding <= CKV_SHARDS_UNPADDED; sharding++)
        for (int64_t group = 1; group <= 3; group += step) {
            party_shape shape = {.head_dim = 8, .tokens_per_page = 4, .max_staged_tokens = tokens, .sizes = {1}};
            shape.kv_heads = kv_heads;
            shape.q_heads = (kv_heads < ranks ? ranks : kv_heads) * group;
            shape.sharding = (ckv_sharding)sharding;
            RANK_STEP(report, check_stamps(comm, report, &shape));
        }
}

/* Blocks of one token and no history: each token attends to itself alone, and its out is its V, to the bit. Says where
 * a vector went without any oracle. Catches: token-major and head-major mixed up, shards in the wrong order, a
 * neighbour's head slice, the way back transposed, a K/V head under the wrong query group, padding rows left in the
 * output. */
void ulysses_stamps_come_back_to_their_place(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    const int64_t lengths[] = {1, 10, ranks > 1 ? ranks - 1 : 1, ranks, ranks + 1, 12, 11};
    const int64_t kv_heads[] = {1, 2, ranks, 2 * ranks};
    for (int i = 0; i < 7; i += party_on_gpu() ? 2 : 1)
        for (int j = 0; j < 4; j++)
            if (kv_heads[j] % ranks == 0 || ranks % kv_heads[j] == 0)
                RANK_STEP(report, check_stamps_of_heads(comm, report, lengths[i], kv_heads[j]));
}

/* Chunks of 44 over a window of 50 in pages of 8, until every page of the history has been dropped and used again
 * twice. Catches: a page table that rotates on some ranks, or by another number of pages, and keys that a rotation
 * left behind. */
void ulysses_rollout_through_rotations(ckv_comm *comm, rank_report *report)
{
    party p;
    party_shape shape = small_shape(ckv_comm_size(comm));
    shape.tokens_per_page = 8;
    shape.window_tokens = 50;
    RANK_STEP(report, party_open(&p, report, comm, &shape));
    for (int64_t chunk = 1; chunk <= 6; chunk++) {
        party_forward forward = {.seq_len = 44, .padding = PADDING_RANDOM};
        RANK_STEP(report, party_step(&p, report, &forward, 44));
        RANK_CHECK(report, ckv_cache_get_state(p.cache).committed_tokens == 44 * chunk);
    }
    ckv_cache_state state = ckv_cache_get_state(p.cache);
    RANK_CHECK(report, state.committed_tokens > 2 * state.resident_tokens);
    party_close(&p);
}

/* 44 real tokens, then, over the same staged slots, 11 in 12 rows: with and without a commit between. Catches: a length
 * kept from the forward before; staged tokens of a longer forward that a shorter one still sees. */
void ulysses_attention_with_44_then_11_tokens(ckv_comm *comm, rank_report *report)
{
    for (party_padding padding = PADDING_ZERO; padding < NUM_PADDINGS; padding++) {
        party p;
        party_shape shape = small_shape(ckv_comm_size(comm));
        RANK_STEP(report, party_open(&p, report, comm, &shape));
        for (int chunk = 0; chunk < 2; chunk++) {
            party_forward large = {.seq_len = 44, .padding = padding}, small = {.seq_len = 11, .padding = padding};
            if (chunk % 2)
                RANK_STEP(report, party_step(&p, report, &large, 44));
            else
                RANK_STEP(report, party_run(&p, report, &large));
            RANK_STEP(report, party_step(&p, report, &small, 11));
        }
        party_close(&p);
    }
}

/* Chunks of any length over a sliding history, whole query groups of any size, every dtype. Catches: results that
 * depend on the number of ranks; seq_len from the shard; state of one forward left over in the next. */
void ulysses_ranks_equal_one_rank(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    static const ckv_dtype dtypes[] = {CKV_FP32, CKV_BF16, CKV_FP16};
    ckv_random random = {ckv_test_seed()};
    for (int round = 0; round < (party_on_gpu() ? 3 : 6); round++) {
        party p;
        party_shape shape = small_shape(ranks);
        shape.kv_heads = ranks * ckv_random_range(&random, 1, 3);
        shape.q_heads = shape.kv_heads * ckv_random_range(&random, 1, 3);
        shape.dtype = dtypes[round % 3];
        shape.tokens_per_page = (int64_t)1 << ckv_random_range(&random, 0, 4);
        shape.window_tokens = ckv_random_range(&random, 0, 30);
        shape.pin_tokens = ckv_random_range(&random, 0, 9);
        const int64_t sizes[] = {1, ckv_random_range(&random, 2, 9), 10 + ranks, 21};
        memcpy(shape.sizes, sizes, sizeof sizes);
        RANK_STEP(report, party_open(&p, report, comm, &shape));
        for (int chunk = 0; chunk < 3; chunk++) {
            int64_t size = sizes[ckv_random_range(&random, 0, 3)];
            int64_t blocks = ckv_random_range(&random, 1, shape.max_staged_tokens / size);
            party_padding padding = (party_padding)ckv_random_range(&random, 0, NUM_PADDINGS - 1);
            party_forward forward = {.seq_len = size * blocks, .causal_block_size = size, .padding = padding};
            forward.without_lse = round % 2;
            RANK_STEP(report, party_step(&p, report, &forward, ckv_random_range(&random, 1, size * blocks)));
        }
        party_close(&p);
    }
}

/* 11 tokens come as 12 rows (on 2, 3 and 4 ranks), then chunks of 44 until the window has slid. 11 are committed, 11
 * are seen, and what padding holds makes no difference. Catches: seq_len from the padded length; padding cached,
 * attended or left in the output; a padded first chunk that shifts every later window. */
void ulysses_padded_first_chunk_then_sliding_window(ckv_comm *comm, rank_report *report)
{
    for (party_padding padding = PADDING_ZERO; padding < NUM_PADDINGS; padding++) {
        party p;
        party_shape shape = small_shape(ckv_comm_size(comm));
        shape.tokens_per_page = 8;
        shape.window_tokens = 50;
        RANK_STEP(report, party_open(&p, report, comm, &shape));
        for (int chunk = 0; chunk < 4; chunk++) {
            int64_t tokens = chunk == 0 ? 11 : 44;
            party_forward forward = {.seq_len = tokens, .padding = padding};
            RANK_STEP(report, party_step(&p, report, &forward, tokens));
            RANK_CHECK(report, ckv_cache_get_state(p.cache).committed_tokens == 11 + 44 * chunk);
        }
        party_close(&p);
    }
}

/* Four causal blocks of 11 in pages of 8, over a history that starts mid-page; then staged again and committed.
 * Catches: blocks cut at the shards or at the padded rows instead of at the tokens. */
void ulysses_clean_pass_in_four_unaligned_blocks(ckv_comm *comm, rank_report *report)
{
    party p;
    party_shape shape = small_shape(ckv_comm_size(comm));
    shape.tokens_per_page = 8;
    shape.window_tokens = 25;
    RANK_STEP(report, party_open(&p, report, comm, &shape));
    for (int chunk = 0; chunk < 3; chunk++) {
        party_forward noisy = {.layer = 1, .seq_len = 44, .padding = PADDING_NAN, .without_lse = 1};
        party_forward clean = {.layer = 1, .seq_len = 44, .causal_block_size = 11, .padding = PADDING_NAN};
        party_forward first = {.layer = 1, .seq_len = 33, .causal_block_size = 11, .padding = PADDING_RANDOM};
        RANK_STEP(report, party_run(&p, report, &noisy));
        RANK_STEP(report, party_run(&p, report, chunk == 0 ? &first : &clean));
        RANK_STEP(report, party_commit(&p, report, chunk == 0 ? 33 : 44));
    }
    party_close(&p);
}

/* 43 tokens a chunk, uneven on 2, 3 and 4 ranks: padding anew every time. Catches: padding that adds up. */
void ulysses_every_chunk_padded(ckv_comm *comm, rank_report *report)
{
    party p;
    party_shape shape = small_shape(ckv_comm_size(comm));
    RANK_STEP(report, party_open(&p, report, comm, &shape));
    for (int chunk = 0; chunk < 4; chunk++) {
        party_forward forward = {.seq_len = 43, .causal_block_size = 43};
        forward.padding = (party_padding)(chunk % NUM_PADDINGS);
        RANK_STEP(report, party_run(&p, report, &forward));
        RANK_STEP(report, party_commit(&p, report, 43));
    }
    party_close(&p);
}
