/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals: the same on every rank, before anything is exchanged, and the next call works. Each case says which
 * mistakes it is there to catch. */
#include "tests/support/ulysses_cases.h"

#include "tests/support/ulysses_usual.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Catches: the others enter the collective; a head count taken from the global heads where the cache has a rank's. */
void ulysses_head_count_guard(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm));
    for (int odd = 0; odd < p.ranks; odd++) {
        party_tensors t;
        ckv_cache *wrong = NULL;
        char detail[64];
        RANK_STEP(report, party_make(&p, report, &usual, &t));
        RANK_OK(report, party_open_cache(&p.shape, 2 * p.rank_kv_heads, &wrong));
        if (p.rank == odd)
            t.args.cache = wrong;
        snprintf(detail, sizeof detail, "rank %d: ulysses: the cache has 2 K/V heads; %d over", odd, p.ranks);
        RANK_STEP(report, party_refused(&p, report, &t, &t.args, CKV_ERROR_INVALID, detail));
        ckv_cache_destroy(&wrong);
        party_free(&p, &t);
    }
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

/* Catches: seq_len of one rank taken for everybody's, and more padding than sharding adds. */
void ulysses_per_rank_seq_len_is_refused(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm));
    const party_forward large = {.layer = 1, .seq_len = 44, .padding = PADDING_RANDOM};
    party_tensors t;
    RANK_STEP(report, party_make(&p, report, &large, &t));
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
    party_free(&p, &t);
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
    RANK_STEP(report, open_usual(&p, report, comm));
    party_tensors t;
    RANK_STEP(report, party_make(&p, report, &usual, &t));
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
    party_free(&p, &t);
    party_close(&p);
    RANK_STEP(report, open_usual(&p, report, comm));
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

/* Each of these is good on its own rank. Catches: ranks that silently attend different forwards. */
void ulysses_ranks_that_differ_are_refused(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm));
    const party_forward large = {.layer = 1, .seq_len = 44, .padding = PADDING_RANDOM};
    party_tensors t;
    RANK_STEP(report, party_make(&p, report, &large, &t));
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
    party_free(&p, &t);
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

/* Catches: a rank that missed a commit, or holds another window, and attends other keys than the rest. */
void ulysses_ranks_with_other_histories_are_refused(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm));
    if (p.ranks > 1) {
        party_tensors t;
        ckv_cache *mine = p.cache, *other = NULL;
        party_shape shape = p.shape;
        RANK_STEP(report, party_make(&p, report, &usual, &t));
        shape.window_tokens++;
        RANK_OK(report, party_open_cache(&shape, p.rank_kv_heads, &other));
        t.args.cache = p.cache = p.rank == 1 ? other : mine;
        RANK_STEP(report, party_refused(&p, report, &t, &t.args, CKV_ERROR_INVALID,
                                        "window_tokens: 14 on rank 0, 15 on rank 1"));
        ckv_cache_destroy(&other);
        RANK_OK(report, party_open_cache(&p.shape, p.rank_kv_heads, &other));
        t.args.cache = p.cache = p.rank == 1 ? other : mine;
        RANK_STEP(report, party_refused(&p, report, &t, &t.args, CKV_ERROR_INVALID,
                                        "committed_tokens: 11 on rank 0, 0 on rank 1"));
        ckv_cache_destroy(&other);
        p.cache = mine;
        party_free(&p, &t);
    }
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

static void refused_config(ckv_comm *comm, rank_report *report, int64_t q_heads, int64_t kv_heads, ckv_status expected,
                           const char *detail)
{
    ckv_ulysses *ulysses = NULL;
    ckv_ulysses_config config = ckv_ulysses_config_default();
    config.q_heads = q_heads;
    config.kv_heads = kv_heads;
    config.head_dim = 8;
    config.device = party_device();
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
    RANK_STEP(report, open_usual(&p, report, comm));
    party_close(&p);
}
