/* SPDX-License-Identifier: Apache-2.0 */
/* Head counts, shardings, parts and context beyond the plain case. All are compared with one rank, so they are also
 * equal to one another. Each case says which mistakes it is there to catch. */
#include "tests/support/ulysses_cases.h"

#include "tests/support/ulysses_usual.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Padded on 2, 3, 4 and 8 ranks, full and as blocks. */
static void roll(party *p, rank_report *report, party_padding padding)
{
    const party_forward whole = {.seq_len = 43, .causal_block_size = 43, .padding = padding};
    const party_forward blocks = {.seq_len = 33, .causal_block_size = 11, .padding = padding, .without_lse = 1};
    RANK_STEP(report, party_step(p, report, &whole, 43));
    RANK_STEP(report, party_step(p, report, &blocks, 22));
    RANK_STEP(report, party_step(p, report, &whole, 43));
}

static void open_and_roll(ckv_comm *comm, rank_report *report, const party_shape *shape, party_padding padding)
{
    party p;
    RANK_STEP(report, party_open(&p, report, comm, shape));
    RANK_STEP(report, roll(&p, report, padding));
    party_close(&p);
}

/* One or two K/V heads on more ranks than that. Catches: a K/V head under the wrong query group, heads taken from the
 * neighbour that holds the same one, a count rounded down to none. */
void ulysses_kv_heads_fewer_than_ranks(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    for (int64_t kv_heads = 1; kv_heads <= 2; kv_heads++)
        for (int sharding = CKV_SHARDS_PADDED; sharding <= CKV_SHARDS_UNPADDED && ranks % kv_heads == 0; sharding++) {
            party_shape shape = small_shape(ranks);
            shape.kv_heads = kv_heads;
            shape.q_heads = 2 * ranks;
            shape.sharding = (ckv_sharding)sharding;
            RANK_STEP(report, open_and_roll(comm, report, &shape, PADDING_NAN));
        }
}

/* Every length around the number of ranks: fewer tokens than ranks leave some without rows or tensors. Catches: rows in
 * the wrong order when shards differ in length, a length rounded up or down, a rank without rows that is waited for. */
void ulysses_unpadded_shards_of_any_length(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    party p;
    party_shape shape = small_shape(ranks);
    shape.sharding = CKV_SHARDS_UNPADDED;
    shape.sizes[2] = 1;
    RANK_STEP(report, party_open(&p, report, comm, &shape));
    for (int64_t seq_len = 1; seq_len <= 2 * ranks + 1; seq_len += party_on_gpu() ? 2 : 1) {
        party_forward forward = {.seq_len = seq_len, .causal_block_size = 1, .without_lse = seq_len % 2 == 0};
        RANK_STEP(report, party_step(&p, report, &forward, (seq_len + 1) / 2));
    }
    party_forward usual_blocks = {.seq_len = 11}, clean = {.seq_len = 44, .causal_block_size = 11};
    RANK_STEP(report, party_step(&p, report, &usual_blocks, 11));
    RANK_STEP(report, party_step(&p, report, &clean, 44));
    party_close(&p);
}

/* Catches: rows that are no part of seq_len on one rank alone, which the others would wait for. */
void ulysses_unpadded_rows_are_checked(ckv_comm *comm, rank_report *report)
{
    party p;
    party_shape shape = small_shape(ckv_comm_size(comm));
    shape.sharding = CKV_SHARDS_UNPADDED;
    RANK_STEP(report, party_open(&p, report, comm, &shape));
    for (int odd = 0; odd < p.ranks; odd++) {
        party_tensors t;
        char detail[96];
        RANK_STEP(report, party_make(&p, report, &usual, &t));
        if (p.rank == odd)
            t.args.rows++;
        int64_t rows = ckv_ulysses_rows_of_rank(CKV_SHARDS_UNPADDED, usual.seq_len, p.ranks, odd);
        snprintf(detail, sizeof detail, "rank %d: ulysses: seq_len 11 on %d ranks without padding puts %lld rows on",
                 odd, p.ranks, (long long)rows);
        RANK_STEP(report, party_refused(&p, report, &t, &t.args, CKV_ERROR_INVALID, detail));
        party_free(&p, &t);
    }
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

/* The exchange of one part of the heads beside attention over another, with a cache. Catches: a part that is staged
 * over another one, slices overwritten while they are read, parts in the wrong order. */
void ulysses_overlap_parts_change_nothing(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    for (int64_t parts = 2; parts <= 4; parts += 2) {
        party_shape shape = small_shape(ranks);
        shape.kv_heads = 4 * ranks;
        shape.q_heads = 8 * ranks;
        shape.overlap_parts = parts;
        shape.sharding = parts == 4 ? CKV_SHARDS_UNPADDED : CKV_SHARDS_PADDED;
        RANK_STEP(report, open_and_roll(comm, report, &shape, PADDING_INFINITY));
    }
    party_shape shape = small_shape(ranks);
    shape.overlap_parts = 2;
    shape = party_fit(&shape);
    ckv_ulysses *ulysses = NULL;
    ckv_ulysses_config config = party_config(&shape);
    RANK_STATUS(report, ckv_ulysses_create(comm, &config, &ulysses), CKV_ERROR_INVALID);
    RANK_DETAIL(report, "overlap_parts is 2; it must divide the 1 K/V heads");
}

/* A prompt that every rank holds, pinned. Catches: its keys counted once per rank (the lse grows by the logarithm of
 * the ranks), or another rank's heads of it. */
void ulysses_replicated_context_enters_once(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    for (int few = 0; few <= 1; few++) {
        party p;
        party_shape shape = small_shape(ranks);
        shape.kv_heads = few ? 1 : 2 * ranks;
        shape.pin_tokens = 10;
        shape.tokens_per_page = 8;
        RANK_STEP(report, party_open(&p, report, comm, &shape));
        RANK_STEP(report, party_prompt(&p, report, 10));
        RANK_CHECK(report, ckv_cache_get_state(p.cache).fixed_tokens == 10);
        RANK_STEP(report, roll(&p, report, PADDING_RANDOM));
        party_close(&p);
    }
}

/* Whoever stages makes the codes. Catches: tensors copied into pages of codes; an exchange that fills pages itself and
 * is believed to have done so. */
void ulysses_pages_of_fp8(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    for (int64_t parts = 1; parts <= 2; parts++) {
        party p;
        party_shape shape = small_shape(ranks);
        shape.fp8_pages = 1;
        shape.kv_heads = 2 * ranks;
        shape.q_heads = 4 * ranks;
        shape.overlap_parts = parts;
        shape.pin_tokens = 10;
        RANK_STEP(report, party_open(&p, report, comm, &shape));
        RANK_STEP(report, party_prompt(&p, report, 10));
        RANK_STEP(report, roll(&p, report, PADDING_NAN));
        party_close(&p);
    }
    party_shape shape = small_shape(ranks);
    shape = party_fit(&shape);
    ckv_ulysses *ulysses = NULL;
    ckv_ulysses_config config = party_config(&shape);
    config.dtype = CKV_FP8_E4M3; /* no tensor has it */
    RANK_STATUS(report, ckv_ulysses_create(comm, &config, &ulysses), CKV_ERROR_INVALID);
    RANK_DETAIL(report, "dtype is 3");
}

/* Catches: a write into another model's cache. */
void ulysses_replicated_context_is_checked(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm));
    ckv_cache *wrong = NULL;
    ckv_kv none = {0};
    char byte = 0;
    ckv_kv some = ckv_kv_dense(&byte, &byte, p.shape.kv_heads, p.shape.head_dim); /* never looked at */
    RANK_OK(report, party_open_cache(&p.shape, 2 * p.rank_kv_heads, &wrong));
    RANK_STATUS(report, ckv_ulysses_write_replicated(p.ulysses, p.cache, 0, 0, 1, &none, NULL), CKV_ERROR_INVALID);
    RANK_STATUS(report, ckv_ulysses_write_replicated(NULL, p.cache, 0, 0, 1, &some, NULL), CKV_ERROR_INVALID);
    RANK_STATUS(report, ckv_ulysses_write_replicated(p.ulysses, wrong, 0, 0, 1, &some, NULL), CKV_ERROR_INVALID);
    RANK_DETAIL(report, "the cache has 2 K/V heads");
    ckv_cache_destroy(&wrong);
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}

/* Small, large, small again, with and without lse, in both shardings. Catches: memory that does not grow, or grows on
 * some ranks only; offsets of one forward used for another. */
void ulysses_exchange_memory_grows(ckv_comm *comm, rank_report *report)
{
    for (int sharding = CKV_SHARDS_PADDED; sharding <= CKV_SHARDS_UNPADDED; sharding++) {
        party p;
        party_shape shape = small_shape(ckv_comm_size(comm));
        shape.sharding = (ckv_sharding)sharding;
        shape.max_staged_tokens = 132;
        RANK_STEP(report, party_open(&p, report, comm, &shape));
        static const int64_t lengths[] = {11, 22, 43, 44, 132, 11, 132, 44};
        for (int i = 0; i < 8; i++) {
            party_forward forward = {.seq_len = lengths[i], .padding = PADDING_RANDOM, .without_lse = i % 3 == 1};
            forward.causal_block_size = lengths[i] == 43 ? 43 : lengths[i] < 43 ? 11 : 44;
            RANK_STEP(report, party_step(&p, report, &forward, (lengths[i] + 3) / 4));
        }
        party_close(&p);
    }
}

/* Catches: a rank that goes on when another has only begun. */
void ulysses_slow_rank_is_waited_for(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm));
    for (int slow = 0; slow < p.ranks; slow++) {
        struct timespec pause = {.tv_nsec = p.rank == slow ? 20000000 : 0};
        nanosleep(&pause, NULL);
        RANK_STEP(report, still_works(&p, report));
    }
    party_close(&p);
}
