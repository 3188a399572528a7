/* SPDX-License-Identifier: Apache-2.0 */
/* Each case says which mistakes it is there to catch. */
#include "tests/support/ulysses_cases.h"

#include "lib/device/device.h"
#include "lib/support/error.h"
#include "tests/support/case.h"
#include "tests/support/random.h"
#include "tests/support/ulysses_party.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static party_shape small_shape(int ranks)
{
    party_shape shape = {
        .q_heads = 2 * ranks,
        .kv_heads = ranks,
        .head_dim = 8,
        .dtype = CKV_FP32,
        .tokens_per_page = 4,
        .pin_tokens = 3,
        .window_tokens = 14,
        .max_staged_tokens = 44,
        .sizes = {11, 44, 43},
    };
    return shape;
}

/* --- Results --- */

/* Exact in fp32: at most 64 tokens, 64 heads, 8 channels. */
static float stamp(int64_t token, int64_t head, int64_t dim)
{
    return (float)((token * 64 + head) * 8 + dim);
}

static ckv_status attend_to_themselves(ckv_comm *comm, const party_shape *shape, int64_t tokens, float *tensors[4])
{
    int64_t rows = ckv_ulysses_rows_per_rank(tokens, ckv_comm_size(comm));
    ckv_ulysses_config config = ckv_ulysses_config_default();
    config.q_heads = shape->q_heads;
    config.kv_heads = shape->kv_heads;
    config.head_dim = shape->head_dim;
    ckv_ulysses *ulysses = NULL;
    ckv_cache *cache = NULL;
    ckv_status status = ckv_ulysses_create(comm, &config, &ulysses);
    if (status == CKV_OK)
        status = party_open_cache(shape, shape->kv_heads / ckv_comm_size(comm), NULL, &cache);
    ckv_attention_args args = ckv_attention_args_default();
    args.cache = cache;
    args.q_heads = shape->q_heads;
    args.rows = rows;
    args.seq_len = tokens;
    args.causal_block_size = 1;
    args.q = tensors[0];
    args.q_token_stride = args.out_token_stride = shape->q_heads * shape->head_dim;
    args.q_head_stride = args.out_head_stride = shape->head_dim;
    args.kv = ckv_kv_dense(tensors[1], tensors[2], shape->kv_heads, shape->head_dim);
    args.out = tensors[3];
    if (status == CKV_OK)
        status = ckv_ulysses_attention(ulysses, &args, NULL);
    ckv_cache_destroy(&cache);
    ckv_ulysses_destroy(&ulysses);
    return status;
}

/* Blocks of one token and no history: each token attends to itself alone, and its out is its V, to the bit. Says where
 * a vector went without any oracle. Catches: token-major and head-major mixed up, shards in the wrong order, a
 * neighbour's head slice, the way back transposed, a K/V head under the wrong query group, padding rows left in the
 * output. */
static void check_stamps(ckv_comm *comm, rank_report *report, int64_t tokens, int64_t kv_per_rank, int64_t group)
{
    int rank = ckv_comm_rank(comm), ranks = ckv_comm_size(comm);
    party_shape shape = {.kv_heads = kv_per_rank * ranks, .head_dim = 8, .tokens_per_page = 4, .sizes = {1}};
    shape.q_heads = shape.kv_heads * group;
    shape.max_staged_tokens = tokens;
    int64_t rows = ckv_ulysses_rows_per_rank(tokens, ranks), count = rows * shape.q_heads * 8;
    float *tensors[4];
    for (int i = 0; i < 4; i++)
        tensors[i] = calloc((size_t)count, sizeof(float));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < shape.kv_heads * 8; i++) {
            tensors[1][row * shape.kv_heads * 8 + i] = 1;
            tensors[2][row * shape.kv_heads * 8 + i] = stamp(rank * rows + row, i / 8, i % 8);
        }
    memset(tensors[3], 0x5a, (size_t)count * sizeof(float));
    RANK_OK(report, attend_to_themselves(comm, &shape, tokens, tensors));
    for (int64_t i = 0; i < count; i++) {
        int64_t token = rank * rows + i / (shape.q_heads * 8), head = i / 8 % shape.q_heads;
        float expected = token < tokens ? stamp(token, head / group, i % 8) : 0;
        if (tensors[3][i] != expected) {
            rank_fail(report, __FILE__, __LINE__, "%lld tokens, token %lld head %lld channel %lld: %g where %g belongs",
                      (long long)tokens, (long long)token, (long long)head, (long long)(i % 8), tensors[3][i],
                      expected);
            break;
        }
    }
    for (int i = 0; i < 4; i++)
        free(tensors[i]);
}

void ulysses_stamps_come_back_to_their_place(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    const int64_t lengths[] = {1, ranks > 1 ? ranks - 1 : 1, ranks, ranks + 1, 10, 11, 12};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int64_t kv_per_rank = 1; kv_per_rank <= 2; kv_per_rank++)
            for (int64_t group = 1; group <= 3; group++)
                RANK_STEP(report, check_stamps(comm, report, lengths[i], kv_per_rank, group));
}

/* Chunks of any length over a sliding history, whole query groups of any size, every dtype. Catches: results that
 * depend on the number of ranks; seq_len from the shard; state of one forward left over in the next. */
void ulysses_ranks_equal_one_rank(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    static const ckv_dtype dtypes[] = {CKV_FP32, CKV_BF16, CKV_FP16};
    ckv_random random = {ckv_test_seed()};
    for (int round = 0; round < 6; round++) {
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
        RANK_STEP(report, party_open(&p, report, comm, &shape, NULL));
        for (int chunk = 0; chunk < 3; chunk++) {
            int64_t size = sizes[ckv_random_range(&random, 0, 3)];
            int64_t blocks = ckv_random_range(&random, 1, shape.max_staged_tokens / size);
            party_padding padding = (party_padding)ckv_random_range(&random, 0, NUM_PADDINGS - 1);
            for (int64_t layer = 0; layer < PARTY_LAYERS; layer++) {
                party_forward forward = {layer, size * blocks, size, padding, round % 2};
                RANK_STEP(report, party_run(&p, report, &forward));
            }
            RANK_STEP(report, party_commit(&p, report, ckv_random_range(&random, 1, size * blocks)));
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
        RANK_STEP(report, party_open(&p, report, comm, &shape, NULL));
        for (int chunk = 0; chunk < 4; chunk++) {
            int64_t tokens = chunk == 0 ? 11 : 44;
            for (int64_t layer = 0; layer < PARTY_LAYERS; layer++) {
                party_forward forward = {layer, tokens, 0, padding, 0};
                RANK_STEP(report, party_run(&p, report, &forward));
            }
            RANK_STEP(report, party_commit(&p, report, tokens));
            RANK_CHECK(report, ckv_cache_get_state(p.cache).committed_tokens == 11 + 44 * chunk);
        }
        party_close(&p);
    }
}

/* Four causal blocks of 11 in pages of 8, over a history that starts mid-page; then staged again and committed.
 * Catches: blocks cut at the shards or at the padded rows instead of at the tokens. */
void ulysses_clean_pass_in_unaligned_blocks(ckv_comm *comm, rank_report *report)
{
    party p;
    party_shape shape = small_shape(ckv_comm_size(comm));
    shape.tokens_per_page = 8;
    shape.window_tokens = 25;
    RANK_STEP(report, party_open(&p, report, comm, &shape, NULL));
    for (int chunk = 0; chunk < 3; chunk++) {
        party_forward noisy = {1, 44, 0, PADDING_NAN, 1}, clean = {1, 44, 11, PADDING_NAN, 0};
        party_forward first = {1, 33, 11, PADDING_RANDOM, 0};
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
    RANK_STEP(report, party_open(&p, report, comm, &shape, NULL));
    for (int chunk = 0; chunk < 4; chunk++) {
        party_forward forward = {0, 43, 43, (party_padding)(chunk % NUM_PADDINGS), 0};
        RANK_STEP(report, party_run(&p, report, &forward));
        RANK_STEP(report, party_commit(&p, report, 43));
    }
    party_close(&p);
}

/* --- Refusals: the same on every rank, before anything is exchanged, and the next call works --- */

static const party_forward usual = {.layer = 1, .seq_len = 11, .causal_block_size = 11, .padding = PADDING_RANDOM};

/* A rollout with something in it. */
static void open_usual(party *p, rank_report *report, ckv_comm *comm, const ckv_device *device)
{
    party_shape shape = small_shape(ckv_comm_size(comm));
    RANK_STEP(report, party_open(p, report, comm, &shape, device));
    RANK_STEP(report, party_run(p, report, &usual));
    RANK_STEP(report, party_commit(p, report, 11));
}

static void still_works(party *p, rank_report *report)
{
    RANK_STEP(report, party_run(p, report, &usual));
    RANK_STEP(report, party_commit(p, report, 11));
}

/* Catches: the others enter the collective; a head count taken from the global heads where the cache has a rank's. */
void ulysses_wrong_cache_heads_on_one_rank(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm, NULL));
    for (int odd = 0; odd < p.ranks; odd++) {
        party_tensors t;
        ckv_cache *wrong = NULL;
        char detail[64];
        party_make(&p, &usual, &t);
        RANK_OK(report, party_open_cache(&p.shape, 2 * p.rank_kv_heads, NULL, &wrong));
        if (p.rank == odd)
            t.args.cache = wrong;
        snprintf(detail, sizeof detail, "rank %d: ulysses: the cache has 2 K/V heads; %d over", odd, p.ranks);
        RANK_STEP(report, party_refused(&p, report, &t, &t.args, CKV_ERROR_INVALID, detail));
        ckv_cache_destroy(&wrong);
        party_free(&t);
    }
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

/* Catches: seq_len of one rank taken for everybody's, and more padding than sharding adds. */
void ulysses_per_rank_seq_len_is_refused(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm, NULL));
    const party_forward large = {.layer = 1, .seq_len = 44, .padding = PADDING_RANDOM};
    party_tensors t;
    party_make(&p, &large, &t);
    const int64_t wrong[] = {t.rows, t.padded - p.ranks, t.padded + 1, t.rows * p.ranks * p.ranks, 0, -1};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char detail[96];
        if (p.ranks == 1 && wrong[i] == t.rows)
            continue; /* one rank's count is the global one */
        t.args.seq_len = wrong[i];
        snprintf(detail, sizeof detail, "rank 0: ulysses: seq_len %lld with %lld rows on each of %d ranks",
                 (long long)wrong[i], (long long)t.rows, p.ranks);
        RANK_STEP(report, party_refused(&p, report, &t, &t.args, CKV_ERROR_INVALID, detail));
        t.args.seq_len = p.rank == p.ranks - 1 ? wrong[i] : 44; /* on the last rank only */
        snprintf(detail, sizeof detail, "rank %d: ulysses: seq_len %lld", p.ranks - 1, (long long)wrong[i]);
        RANK_STEP(report, party_refused(&p, report, &t, &t.args, CKV_ERROR_INVALID, detail));
    }
    party_free(&t);
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

/* One way each to spoil a call. */
typedef struct spoiled {
    ckv_status status;
    const char *detail;
    ckv_attention_args args;
} spoiled;

enum { NUM_SPOILED = 16 };

static int spoil(const ckv_attention_args *good, spoiled *list)
{
    int n = 0;
#define SPOIL(expected, text, member, value)                                                                           \
    do {                                                                                                               \
        list[n] = (spoiled){expected, text, *good};                                                                    \
        list[n++].args.member = value;                                                                                 \
    } while (0)
    SPOIL(CKV_ERROR_INVALID, "struct_size", struct_size, 8);
    SPOIL(CKV_ERROR_INVALID, "cache must not be NULL", cache, NULL);
    SPOIL(CKV_ERROR_INVALID, "q_heads is", q_heads, good->q_heads + 1);
    SPOIL(CKV_ERROR_INVALID, "q is NULL", q, NULL);
    SPOIL(CKV_ERROR_INVALID, "k is NULL", kv.k, NULL);
    SPOIL(CKV_ERROR_INVALID, "v is NULL", kv.v, NULL);
    SPOIL(CKV_ERROR_INVALID, "out is NULL", out, NULL);
    SPOIL(CKV_ERROR_INVALID, "in one place", out_head_stride, 0);
    SPOIL(CKV_ERROR_INVALID, "layer 2", layer, 2);
    SPOIL(CKV_ERROR_INVALID, "causal_block_size 7", causal_block_size, 7);
    SPOIL(CKV_ERROR_INVALID, "causal block size 1 ", causal_block_size, 1);
    SPOIL(CKV_ERROR_INVALID, "no backend is called", backend, "nobody");
    SPOIL(CKV_ERROR_INVALID, "scale", scale, NAN);
    SPOIL(CKV_ERROR_UNSUPPORTED, "mask", mask, CKV_MASK_KEY_PADDING);
    SPOIL(CKV_ERROR_UNSUPPORTED, "quantization", quantization, CKV_QUANT_FP8);
    SPOIL(CKV_ERROR_INVALID, "rows", rows, 0);
#undef SPOIL
    return n;
}

/* Every argument, spoiled on one rank at a time. Catches: a check after the exchange, which leaves the others in it. */
void ulysses_refusal_of_one_rank_is_everybodys(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm, NULL));
    party_tensors t;
    party_make(&p, &usual, &t);
    spoiled list[NUM_SPOILED];
    int count = spoil(&t.args, list);
    for (int i = 0; i < count; i++)
        for (int odd = 0; odd < p.ranks; odd++) {
            char who[32];
            snprintf(who, sizeof who, "rank %d: ", odd);
            RANK_STEP(report, party_refused(&p, report, &t, p.rank == odd ? &list[i].args : &t.args, list[i].status,
                                            list[i].detail));
            RANK_DETAIL(report, who);
        }
    RANK_STEP(report,
              party_refused(&p, report, &t, p.rank == p.ranks - 1 ? NULL : &t.args, CKV_ERROR_INVALID, "struct_size"));
    if (p.rank == 0)
        ckv_cache_close(p.cache);
    RANK_STEP(report, party_refused(&p, report, &t, &t.args, CKV_ERROR_STATE, "rank 0: attention: the cache has no"));
    RANK_STATUS(report, ckv_ulysses_attention(NULL, &t.args, NULL), CKV_ERROR_INVALID);
    party_free(&t);
    party_close(&p);
    RANK_STEP(report, open_usual(&p, report, comm, NULL));
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

/* Each of these is good on its own rank. Catches: ranks that silently attend different forwards. */
void ulysses_ranks_that_differ_are_refused(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm, NULL));
    const party_forward large = {.layer = 1, .seq_len = 44, .padding = PADDING_RANDOM};
    party_tensors t;
    party_make(&p, &large, &t);
    for (int odd = 1; odd < p.ranks; odd++) {
        ckv_attention_args others[5];
        static const char *const details[] = {
            "ranks differ in seq_len: 44 on rank 0, 43 on rank", "ranks differ in causal_block_size: 0 on rank 0, 11",
            "ranks differ in layer: 1 on rank 0, 0 on rank", "ranks differ in whether lse is wanted",
            "ranks differ in the bits of scale"};
        for (int i = 0; i < 5; i++)
            others[i] = t.args;
        others[0].seq_len = 43; /* as many rows as 44 tokens, on any number of ranks above one */
        others[1].causal_block_size = 11;
        others[2].layer = 0;
        others[3].lse = NULL;
        others[4].scale = 0.5;
        for (int i = 0; i < 5; i++)
            RANK_STEP(report, party_refused(&p, report, &t, p.rank == odd ? &others[i] : &t.args, CKV_ERROR_INVALID,
                                            details[i]));
    }
    party_free(&t);
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

/* Catches: a rank that missed a commit, or holds another window, and attends other keys than the rest. */
void ulysses_ranks_with_other_histories_are_refused(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm, NULL));
    if (p.ranks > 1) {
        party_tensors t;
        ckv_cache *mine = p.cache, *other = NULL;
        party_shape shape = p.shape;
        party_make(&p, &usual, &t);
        shape.window_tokens++;
        RANK_OK(report, party_open_cache(&shape, p.rank_kv_heads, NULL, &other));
        t.args.cache = p.cache = p.rank == 1 ? other : mine;
        RANK_STEP(report, party_refused(&p, report, &t, &t.args, CKV_ERROR_INVALID,
                                        "window_tokens: 14 on rank 0, 15 on rank 1"));
        ckv_cache_destroy(&other);
        RANK_OK(report, party_open_cache(&p.shape, p.rank_kv_heads, NULL, &other));
        t.args.cache = p.cache = p.rank == 1 ? other : mine;
        RANK_STEP(report, party_refused(&p, report, &t, &t.args, CKV_ERROR_INVALID,
                                        "committed_tokens: 11 on rank 0, 0 on rank 1"));
        ckv_cache_destroy(&other);
        p.cache = mine;
        party_free(&t);
    }
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

static _Thread_local int device_fails;

static ckv_status fails_on_demand(const struct ckv_scatter_kv_slots_params *params, ckv_stream stream)
{
    if (device_fails)
        return ckv_fail(CKV_ERROR_DEVICE, "staging failed as told");
    return ckv_device_host.scatter_kv_slots(params, stream);
}

/* A device that fails in the middle of one rank's attention. Catches: the others wait for its way back. */
void ulysses_failure_after_the_exchange_is_agreed(ckv_comm *comm, rank_report *report)
{
    party p;
    ckv_device device = ckv_device_host;
    device.scatter_kv_slots = fails_on_demand;
    RANK_STEP(report, open_usual(&p, report, comm, &device));
    for (int odd = 0; odd < p.ranks; odd++) {
        party_tensors t;
        char detail[64];
        party_make(&p, &usual, &t);
        snprintf(detail, sizeof detail, "rank %d: staging failed as told", odd);
        device_fails = p.rank == odd;
        ckv_status status = ckv_ulysses_attention(p.ulysses, &t.args, NULL);
        device_fails = 0;
        RANK_STATUS(report, status, CKV_ERROR_DEVICE);
        RANK_DETAIL(report, detail);
        RANK_CHECK(report, memcmp(t.out, t.out_before, (size_t)t.out_bytes) == 0);
        party_free(&t);
    }
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

/* --- Contexts --- */

/* Two models with different heads, interleaved; one is destroyed while the other goes on. Catches: state of one used
 * for the other. */
void ulysses_two_contexts_live_side_by_side(ckv_comm *comm, rank_report *report)
{
    party narrow, wide;
    party_shape shape = small_shape(ckv_comm_size(comm));
    RANK_STEP(report, party_open(&narrow, report, comm, &shape, NULL));
    shape.kv_heads *= 3;
    shape.q_heads = shape.kv_heads;
    shape.head_dim = 16;
    shape.dtype = CKV_BF16;
    RANK_STEP(report, party_open(&wide, report, comm, &shape, NULL));
    for (int chunk = 0; chunk < 3; chunk++) {
        RANK_STEP(report, still_works(&narrow, report));
        RANK_STEP(report, still_works(&wide, report));
    }
    party_close(&wide);
    RANK_STEP(report, still_works(&narrow, report));
    party_close(&narrow);
}

static void refused_config(ckv_comm *comm, rank_report *report, int64_t q_heads, int64_t kv_heads, ckv_status expected,
                           const char *detail)
{
    ckv_ulysses *ulysses = NULL;
    ckv_ulysses_config config = ckv_ulysses_config_default();
    config.q_heads = q_heads;
    config.kv_heads = kv_heads;
    config.head_dim = 8;
    RANK_STATUS(report, ckv_ulysses_create(comm, &config, &ulysses), expected);
    RANK_DETAIL(report, detail);
    RANK_CHECK(report, ulysses == NULL);
}

/* Catches: evenness judged from the local head count; heads dropped by a floor division. */
void ulysses_uneven_heads_are_refused_at_creation(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    char detail[96];
    RANK_STEP(report, refused_config(comm, report, 3 * ranks, 2 * ranks, CKV_ERROR_INVALID, "no multiple"));
    RANK_STEP(report, refused_config(comm, report, 0, 1, CKV_ERROR_INVALID, "q_heads 0"));
    ckv_ulysses *ulysses = NULL;
    RANK_STATUS(report, ckv_ulysses_create(NULL, NULL, &ulysses), CKV_ERROR_INVALID);
    RANK_STATUS(report, ckv_ulysses_create(comm, NULL, &ulysses), CKV_ERROR_INVALID);
    if (ranks == 1)
        return;
    snprintf(detail, sizeof detail, "%d query heads on %d ranks", ranks + 1, ranks);
    RANK_STEP(report, refused_config(comm, report, ranks + 1, ranks + 1, CKV_ERROR_UNSUPPORTED, detail));
    snprintf(detail, sizeof detail, "%d K/V heads on %d ranks", ranks + 1, ranks);
    RANK_STEP(report, refused_config(comm, report, ranks * (ranks + 1), ranks + 1, CKV_ERROR_UNSUPPORTED, detail));
}

void ulysses_configs_that_differ_are_refused(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm), last = ckv_comm_rank(comm) == ranks - 1;
    if (ranks > 1) {
        RANK_STEP(report, refused_config(comm, report, (last ? 4 : 2) * ranks, ranks, CKV_ERROR_INVALID, "q_heads"));
        RANK_STEP(report, refused_config(comm, report, 4 * ranks, (last ? 2 : 1) * ranks, CKV_ERROR_INVALID,
                                         "ranks differ in kv_heads"));
    }
    party p;
    RANK_STEP(report, open_usual(&p, report, comm, NULL));
    party_close(&p);
}
