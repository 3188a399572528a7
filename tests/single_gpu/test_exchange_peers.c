/* SPDX-License-Identifier: Apache-2.0 */
/* The fused exchange between ranks that share one device: a thread and a stream each. */
#include "kernels/exchange_peers/exchange_peers.h"
#include "tests/support/device_memory.h"
#include "tests/support/random.h"

#include <pthread.h>
#include <stdlib.h>

enum { MAX_RANKS = 4, TENSORS = 3, DEADLINE_MS = 20000, SHORT_MS = 300 };

typedef struct exchange_shape {
    int ranks;
    int64_t base_tokens, long_ranks;
    int64_t heads[TENSORS], slice_heads[TENSORS], first_head[TENSORS], row_bytes[TENSORS];
    int64_t spare_bytes;  /* between the heads of a shard */
    int64_t offset_bytes; /* where the slices begin in a rank's memory */
} exchange_shape;

typedef struct rank_memory {
    char *shards[TENSORS]; /* on the device, as are the rest */
    char *slices;
    uint32_t *flags, *epochs;
    ckv_stream stream;
} rank_memory;

typedef struct party {
    exchange_shape shape;
    const ckv_device *device;
    int64_t total_tokens, slices_bytes;
    int64_t slice_offset[TENSORS];
    ckv_peer_signals *signals;
    rank_memory ranks[MAX_RANKS];
} party;

static int64_t token_stride(const exchange_shape *s, int tensor)
{
    return s->heads[tensor] * (s->row_bytes[tensor] + s->spare_bytes);
}

static int64_t tokens_of(const exchange_shape *s, int rank)
{
    return s->base_tokens + (rank < s->long_ranks);
}

static int64_t first_token(const exchange_shape *s, int rank)
{
    int64_t first = 0;
    for (int r = 0; r < rank; r++)
        first += tokens_of(s, r);
    return first;
}

/* What stands in byte `at` of a head vector of a token, counted over all ranks. */
static char stamp(int round, int tensor, int64_t token, int64_t head, int64_t at)
{
    uint64_t x = (uint64_t)((((round * 7 + tensor) * 100003 + token) * 1009 + head) * 4099 + at);
    x = (x ^ (x >> 13)) * 0x9e3779b97f4a7c15u;
    return (char)(x >> 56);
}

static void *zeros(const ckv_device *device, size_t bytes)
{
    void *memory;
    assert_ok(device->alloc(bytes, &memory));
    assert_ok(device->fill(memory, 0, bytes, NULL));
    return memory;
}

static void open_party(party *p, const exchange_shape *shape)
{
    *p = (party){.shape = *shape, .device = test_device()};
    p->total_tokens = first_token(shape, shape->ranks);
    p->slices_bytes = shape->offset_bytes;
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        p->slice_offset[tensor] = p->slices_bytes;
        p->slices_bytes += (p->total_tokens * shape->slice_heads[tensor] * shape->row_bytes[tensor] + 15) / 16 * 16;
    }
    p->signals = zeros(p->device, sizeof *p->signals);
    for (int rank = 0; rank < shape->ranks; rank++) {
        rank_memory *r = &p->ranks[rank];
        for (int tensor = 0; tensor < TENSORS; tensor++)
            r->shards[tensor] = zeros(p->device, (size_t)(tokens_of(shape, rank) * token_stride(shape, tensor)) + 1);
        r->slices = zeros(p->device, (size_t)p->slices_bytes);
        r->flags = zeros(p->device, (size_t)shape->ranks * CKV_PEER_MAX_BLOCKS * sizeof(uint32_t));
        r->epochs = zeros(p->device, CKV_PEER_MAX_BLOCKS * sizeof(uint32_t));
        assert_ok(p->device->stream_create(&r->stream));
    }
    assert_ok(p->device->wait(NULL));
}

static void close_party(party *p)
{
    for (int rank = 0; rank < p->shape.ranks; rank++) {
        rank_memory *r = &p->ranks[rank];
        for (int tensor = 0; tensor < TENSORS; tensor++)
            p->device->free(r->shards[tensor]);
        p->device->free(r->slices);
        p->device->free(r->flags);
        p->device->free(r->epochs);
        p->device->stream_destroy(r->stream);
    }
    p->device->free(p->signals);
}

static ckv_exchange_peers_params params_of(const party *p, int rank, int pull, int64_t timeout_ms)
{
    const exchange_shape *s = &p->shape;
    ckv_exchange_peers_params params = {
        .pull = pull,
        .rank = rank,
        .ranks = s->ranks,
        .base_tokens = s->base_tokens,
        .long_ranks = s->long_ranks,
        .num_tensors = TENSORS,
        .meeting = {.epochs = p->ranks[rank].epochs, .signals = p->signals, .timeout_ns = timeout_ms * 1000000}};
    for (int peer = 0; peer < s->ranks; peer++) {
        params.peers[peer] = p->ranks[peer].slices;
        params.meeting.flags[peer] = p->ranks[peer].flags;
    }
    for (int tensor = 0; tensor < TENSORS; tensor++)
        params.tensors[tensor] = (ckv_peer_tensor){.shard = p->ranks[rank].shards[tensor],
                                                   .token_stride_bytes = token_stride(s, tensor),
                                                   .head_stride_bytes = s->row_bytes[tensor] + s->spare_bytes,
                                                   .heads = s->heads[tensor],
                                                   .slice_heads = s->slice_heads[tensor],
                                                   .first_head = s->first_head[tensor],
                                                   .row_bytes = s->row_bytes[tensor],
                                                   .offset_bytes = p->slice_offset[tensor]};
    return params;
}

/* One rank's launches: `rounds` times there and back. */
typedef struct rank_run {
    const party *party;
    int rank, rounds;
    ckv_status status;
} rank_run;

static void *run_rank(void *argument)
{
    rank_run *run = argument;
    const ckv_device *device = run->party->device;
    ckv_stream stream = run->party->ranks[run->rank].stream;
    run->status = CKV_OK;
    for (int launch = 0; launch < 2 * run->rounds - 1 && run->status == CKV_OK; launch++) {
        ckv_exchange_peers_params params = params_of(run->party, run->rank, launch % 2, DEADLINE_MS);
        run->status = device->exchange_peers(&params, stream);
    }
    if (run->status == CKV_OK)
        run->status = device->wait(stream);
    return NULL;
}

/* Push; with more rounds, push and pull in turn, and push at the end. */
static void run_party(const party *p, int rounds)
{
    pthread_t threads[MAX_RANKS];
    rank_run runs[MAX_RANKS];
    for (int rank = 0; rank < p->shape.ranks; rank++) {
        runs[rank] = (rank_run){.party = p, .rank = rank, .rounds = rounds};
        assert_int_equal(pthread_create(&threads[rank], NULL, run_rank, &runs[rank]), 0);
    }
    for (int rank = 0; rank < p->shape.ranks; rank++)
        pthread_join(threads[rank], NULL);
    for (int rank = 0; rank < p->shape.ranks; rank++)
        assert_int_equal(runs[rank].status, CKV_OK);
}

/* Every shard holds its stamps, and 0x55 between the heads. */
static void fill_shards(const party *p, int round)
{
    const exchange_shape *s = &p->shape;
    for (int rank = 0; rank < s->ranks; rank++)
        for (int tensor = 0; tensor < TENSORS; tensor++) {
            int64_t stride = token_stride(s, tensor), head_stride = s->row_bytes[tensor] + s->spare_bytes;
            size_t bytes = (size_t)(tokens_of(s, rank) * stride);
            char *shard = malloc(bytes + 1);
            memset(shard, 0x55, bytes + 1);
            for (int64_t i = 0; i < tokens_of(s, rank) * s->heads[tensor]; i++)
                for (int64_t at = 0; at < s->row_bytes[tensor]; at++)
                    shard[i / s->heads[tensor] * stride + i % s->heads[tensor] * head_stride + at] =
                        stamp(round, tensor, first_token(s, rank) + i / s->heads[tensor], i % s->heads[tensor], at);
            assert_ok(p->device->upload(p->ranks[rank].shards[tensor], shard, bytes, NULL));
            free(shard);
        }
    assert_ok(p->device->wait(NULL));
}

static void check_slices(const party *p, int round)
{
    const exchange_shape *s = &p->shape;
    char *slices = malloc((size_t)p->slices_bytes);
    for (int rank = 0; rank < s->ranks; rank++) {
        test_download(slices, p->ranks[rank].slices, (size_t)p->slices_bytes);
        for (int tensor = 0; tensor < TENSORS; tensor++) {
            int64_t first = rank * s->heads[tensor] / s->ranks + s->first_head[tensor];
            const char *slice = slices + p->slice_offset[tensor];
            for (int64_t i = 0; i < p->total_tokens * s->slice_heads[tensor]; i++)
                for (int64_t at = 0; at < s->row_bytes[tensor]; at++, slice++)
                    if (*slice !=
                        stamp(round, tensor, i / s->slice_heads[tensor], first + i % s->slice_heads[tensor], at))
                        fail_msg("rank %d, tensor %d, token %lld, head %lld of the slice, byte %lld is wrong", rank,
                                 tensor, (long long)(i / s->slice_heads[tensor]),
                                 (long long)(i % s->slice_heads[tensor]), (long long)at);
        }
    }
    free(slices);
}

/* Whether some peer's slice holds the head. */
static int is_sliced(const exchange_shape *s, int tensor, int64_t head)
{
    for (int peer = 0; peer < s->ranks; peer++) {
        int64_t first = peer * s->heads[tensor] / s->ranks + s->first_head[tensor];
        if (head >= first && head < first + s->slice_heads[tensor])
            return 1;
    }
    return 0;
}

/* After a pull of what `round` pushed into shards of zeros: the sliced heads are back, and nothing else is written. */
static void check_shards(const party *p, int round)
{
    const exchange_shape *s = &p->shape;
    for (int rank = 0; rank < s->ranks; rank++)
        for (int tensor = 0; tensor < TENSORS; tensor++) {
            int64_t stride = token_stride(s, tensor), head_stride = s->row_bytes[tensor] + s->spare_bytes;
            char *shard = malloc((size_t)(tokens_of(s, rank) * stride) + 1);
            test_download(shard, p->ranks[rank].shards[tensor], (size_t)(tokens_of(s, rank) * stride));
            for (int64_t i = 0; i < tokens_of(s, rank) * s->heads[tensor]; i++)
                for (int64_t at = 0; at < head_stride; at++) {
                    int64_t token = i / s->heads[tensor], head = i % s->heads[tensor];
                    char expected = at < s->row_bytes[tensor] && is_sliced(s, tensor, head)
                                        ? stamp(round, tensor, first_token(s, rank) + token, head, at)
                                        : 0;
                    if (shard[token * stride + head * head_stride + at] != expected)
                        fail_msg("rank %d, tensor %d, token %lld, head %lld, byte %lld is wrong", rank, tensor,
                                 (long long)token, (long long)head, (long long)at);
                }
            free(shard);
        }
}

static void blank_shards(const party *p)
{
    for (int rank = 0; rank < p->shape.ranks; rank++)
        for (int tensor = 0; tensor < TENSORS; tensor++)
            assert_ok(p->device->fill(p->ranks[rank].shards[tensor], 0,
                                      (size_t)(tokens_of(&p->shape, rank) * token_stride(&p->shape, tensor)), NULL));
    assert_ok(p->device->wait(NULL));
}

static void *pull_rank(void *argument)
{
    rank_run *run = argument;
    ckv_exchange_peers_params params = params_of(run->party, run->rank, 1, DEADLINE_MS);
    ckv_stream stream = run->party->ranks[run->rank].stream;
    run->status = run->party->device->exchange_peers(&params, stream);
    if (run->status == CKV_OK)
        run->status = run->party->device->wait(stream);
    return NULL;
}

static void pull_party(const party *p)
{
    pthread_t threads[MAX_RANKS];
    rank_run runs[MAX_RANKS];
    for (int rank = 0; rank < p->shape.ranks; rank++) {
        runs[rank] = (rank_run){.party = p, .rank = rank};
        assert_int_equal(pthread_create(&threads[rank], NULL, pull_rank, &runs[rank]), 0);
    }
    for (int rank = 0; rank < p->shape.ranks; rank++) {
        pthread_join(threads[rank], NULL);
        assert_int_equal(runs[rank].status, CKV_OK);
    }
}

static void check_shape(const exchange_shape *shape)
{
    party p;
    open_party(&p, shape);
    fill_shards(&p, 1);
    run_party(&p, 1);
    check_slices(&p, 1);
    blank_shards(&p);
    pull_party(&p);
    check_shards(&p, 1);
    fill_shards(&p, 2);
    run_party(&p, 5);
    check_slices(&p, 2);
    close_party(&p);
}

/* q of 8 heads and k, v of 4, as rows of 256 bytes. */
static exchange_shape model_shape(int ranks, int64_t tokens)
{
    exchange_shape shape = {.ranks = ranks,
                            .base_tokens = tokens,
                            .heads = {8, 4, 4},
                            .slice_heads = {8 / ranks, 4 / ranks, 4 / ranks},
                            .row_bytes = {256, 256, 256}};
    return shape;
}

static void skip_without_exchange(void)
{
    if (test_device()->exchange_peers == NULL)
        ckv_test_skip("device %s has no fused exchange", ckv_test_device());
}

/* Catches: a head slice of a neighbour; tokens of a rank in another's place; tiles lost at the end. */
static void heads_go_there_and_come_back(void **state)
{
    (void)state;
    skip_without_exchange();
    static const int64_t tokens[] = {1, 2, 7, 33, 130};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        for (int ranks = 1; ranks <= MAX_RANKS; ranks *= 2) {
            exchange_shape shape = model_shape(ranks, tokens[i]);
            check_shape(&shape);
        }
}

/* Every vector width, dense and with a gap between heads. */
static void any_alignment_is_moved(void **state)
{
    (void)state;
    skip_without_exchange();
    static const int64_t rows[] = {16, 8, 4, 2, 1, 6, 24, 48};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int64_t spare = 0; spare <= 2 * rows[i]; spare += rows[i]) {
            exchange_shape shape = model_shape(2, 5);
            for (int tensor = 0; tensor < TENSORS; tensor++)
                shape.row_bytes[tensor] = rows[i];
            shape.spare_bytes = spare;
            shape.offset_bytes = 48;
            check_shape(&shape);
        }
}

/* Shards of unequal length, some empty; heads that several ranks share; a part of each rank's heads. */
static void uneven_shards_and_shared_heads(void **state)
{
    (void)state;
    skip_without_exchange();
    exchange_shape uneven = model_shape(4, 1);
    uneven.long_ranks = 2;
    check_shape(&uneven);
    uneven.base_tokens = 0;
    uneven.long_ranks = 1;
    check_shape(&uneven);
    exchange_shape shared = {
        .ranks = 4, .base_tokens = 3, .heads = {8, 2, 1}, .slice_heads = {2, 1, 1}, .row_bytes = {64, 64, 4}};
    check_shape(&shared);
    exchange_shape part = model_shape(2, 9);
    part.slice_heads[0] = 2, part.slice_heads[1] = part.slice_heads[2] = 1;
    check_shape(&part);
    part.first_head[0] = 2, part.first_head[1] = part.first_head[2] = 1;
    check_shape(&part);
}

/* Larger than a launch: every block takes several tiles of each tensor. */
static void long_shards(void **state)
{
    (void)state;
    skip_without_exchange();
    exchange_shape shape = model_shape(2, 6000);
    check_shape(&shape);
}

/* Two ranks, of which one comes: it gives up after its deadline, says for whom it waited, and whoever comes later gives
 * up at once. */
static void a_rank_that_does_not_come(void **state)
{
    (void)state;
    skip_without_exchange();
    for (int pull = 0; pull <= 1; pull++) {
        party p;
        exchange_shape shape = model_shape(2, 3);
        open_party(&p, &shape);
        int refuses = test_kernels_refuse();
        ckv_exchange_peers_params alone = params_of(&p, 0, pull, SHORT_MS);
        assert_int_equal(p.device->exchange_peers(&alone, p.ranks[0].stream), refuses ? CKV_ERROR_TIMEOUT : CKV_OK);
        assert_ok(p.device->wait(p.ranks[0].stream));
        ckv_peer_signals signals;
        test_download(&signals, p.signals, sizeof signals);
        assert_int_equal(signals.abort, 1);
        assert_int_equal(signals.timed_out, 1);
        assert_int_equal(signals.missing_peer, 1);
        ckv_exchange_peers_params again = params_of(&p, 0, pull, 1000000);
        assert_int_equal(p.device->exchange_peers(&again, p.ranks[0].stream), refuses ? CKV_ERROR_COMM : CKV_OK);
        assert_ok(p.device->wait(p.ranks[0].stream)); /* or the case runs into its own deadline */
        close_party(&p);
    }
}

static const ckv_test_case cases[] = {
    CKV_CASE(heads_go_there_and_come_back),   CKV_CASE(any_alignment_is_moved),
    CKV_CASE(uneven_shards_and_shared_heads), CKV_CASE(long_shards),
    CKV_CASE(a_rank_that_does_not_come),
};

CKV_TEST_MAIN("exchange_peers", cases)
