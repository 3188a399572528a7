/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/killed_ranks.h"

#include "kernels/scatter_kv_slots/scatter_kv_slots.h"
#include "lib/device/device.h"
#include "tests/support/case.h"
#include "tests/support/random.h"
#include "tests/support/ulysses_usual.h"
#include "ulysses/exchange.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A rank shows what it does within SHOWN_MS; others are in their kernels, or wait for it, after WAITING_MS. */
enum {
    SHOWN_MS = 100,
    WAITING_MS = 300,
    MANY = 400,
    MAX_RANKS = 8,
    ROWS = 37,
    HEAD_DIM = 64,
    VECTOR_BYTES = 2 * HEAD_DIM
};

killed_setup killed_uses;

/* One rank's end of an exchange, and its shard of Q, K and V, dense. */
typedef struct rig {
    ckv_comm *comm;
    const ckv_device *device;
    int rank, ranks, last;
    int processes[MAX_RANKS];
    ckv_exchange *exchange;
    ckv_exchange_plan plan;
    char *shard, *back; /* on the device */
    char *before, *after;
    int64_t place_bytes; /* room for each of Q, K, V */
    ckv_shard_tensor there[CKV_TENSORS_THERE], out;
} rig;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void pause_ms(int64_t ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* --- The rig --- */

static void make_exchange(rig *r, rank_report *report)
{
    ckv_ulysses_heads heads;
    ckv_ulysses_shards shards = {.ranks = r->ranks, .base_rows = ROWS};
    RANK_OK(report, ckv_ulysses_plan_heads(4 * r->ranks, r->ranks, HEAD_DIM, r->ranks, &heads));
    RANK_OK(report,
            ckv_exchange_create(r->comm, r->device, &heads, VECTOR_BYTES, 1, killed_uses.exchange, &r->exchange));
    RANK_CHECK(report, strcmp(r->exchange->path->name, killed_uses.exchange) == 0);
    RANK_OK(report, ckv_exchange_make_plan(r->exchange, &shards, 0, &r->plan));
    RANK_OK(report, ckv_exchange_reserve(r->exchange, &r->plan, NULL));
}

static void make_shard(rig *r, rank_report *report)
{
    void *shard, *back;
    ckv_random random = {ckv_test_seed() + (uint64_t)r->rank};
    r->place_bytes = (int64_t)ROWS * 4 * r->ranks * VECTOR_BYTES;
    size_t bytes = (size_t)(CKV_TENSORS_THERE * r->place_bytes);
    r->before = malloc(bytes);
    r->after = malloc((size_t)r->place_bytes);
    RANK_CHECK(report, r->before != NULL && r->after != NULL);
    for (size_t i = 0; i < bytes; i++)
        r->before[i] = (char)ckv_random_next(&random);
    RANK_OK(report, r->device->alloc(bytes, &shard));
    RANK_OK(report, r->device->alloc((size_t)r->place_bytes, &back));
    RANK_OK(report, r->device->upload(shard, r->before, bytes, NULL));
    r->shard = shard;
    r->back = back;
    for (int i = 0; i < CKV_TENSORS_THERE; i++) {
        int64_t heads = i == CKV_PLACE_Q ? 4 * r->ranks : r->ranks;
        r->there[i] =
            (ckv_shard_tensor){(enum ckv_place)i, r->shard + i * r->place_bytes, heads * VECTOR_BYTES, VECTOR_BYTES};
    }
    r->out = (ckv_shard_tensor){CKV_PLACE_OUT, r->back, (int64_t)4 * r->ranks * VECTOR_BYTES, VECTOR_BYTES};
}

static ckv_status go_there(rig *r)
{
    const ckv_scatter_kv_slots_params no_pages = {.tokens_per_page = 1};
    return r->exchange->path->there(r->exchange, &r->plan, 0, r->there, &no_pages, NULL);
}

static ckv_status come_back(rig *r)
{
    return r->exchange->path->back(r->exchange, &r->plan, 0, &r->out, 1, NULL);
}

/* What came of Q goes back as the output: every rank gets what it sent. */
static void round_trip(rig *r, rank_report *report)
{
    const ckv_device *device = r->device;
    char *q = ckv_exchange_slice(r->exchange, &r->plan, CKV_PLACE_Q, 0);
    char *out = ckv_exchange_slice(r->exchange, &r->plan, CKV_PLACE_OUT, 0);
    memset(r->after, 0, (size_t)r->place_bytes);
    RANK_OK(report, go_there(r));
    RANK_OK(report, device->download(r->after, q, (size_t)r->place_bytes, NULL));
    RANK_OK(report, device->upload(out, r->after, (size_t)r->place_bytes, NULL));
    RANK_OK(report, come_back(r));
    RANK_OK(report, device->download(r->after, r->back, (size_t)r->place_bytes, NULL));
    RANK_OK(report, ckv_comm_async_error(r->comm));
    RANK_CHECK(report, memcmp(r->after, r->before, (size_t)r->place_bytes) == 0);
}

/* Who is there; collective. */
static void meet_others(rig *r, rank_report *report, ckv_comm *comm)
{
    *r = (rig){.comm = comm, .device = party_device(), .rank = ckv_comm_rank(comm), .ranks = ckv_comm_size(comm)};
    r->last = r->ranks - 1;
    int mine = (int)getpid();
    RANK_CHECK(report, r->ranks >= 2 && r->ranks <= MAX_RANKS);
    RANK_OK(report, ckv_comm_all_gather(comm, &mine, sizeof mine, r->processes));
}

/* Exchanges have worked when it returns; collective. */
static void rig_open(rig *r, rank_report *report, ckv_comm *comm)
{
    RANK_STEP(report, meet_others(r, report, comm));
    RANK_STEP(report, make_exchange(r, report));
    RANK_STEP(report, make_shard(r, report));
    for (int i = 0; i < 3; i++)
        RANK_STEP(report, round_trip(r, report));
}

static void rig_close(rig *r)
{
    r->device->free(r->shard);
    r->device->free(r->back);
    free(r->before);
    free(r->after);
    ckv_exchange_destroy(&r->exchange);
}

/* --- Dying --- */

static _Noreturn void die_after(int64_t ms)
{
    pause_ms(ms);
    rank_die();
}

static int64_t meanwhile_ms;

static void *die_meanwhile(void *unused)
{
    (void)unused;
    die_after(meanwhile_ms);
}

/* On another thread, while this one goes on. */
static void start_to_die(rank_report *report, int64_t ms)
{
    pthread_t thread;
    meanwhile_ms = ms;
    RANK_CHECK(report, pthread_create(&thread, NULL, die_meanwhile, NULL) == 0);
    pthread_detach(thread);
}

static void await_end(const rig *r, rank_report *report)
{
    for (int waited = 0; waited < KILLED_PATIENCE_MS && !rank_has_ended(r->last); waited++)
        pause_ms(1);
    RANK_CHECK(report, rank_has_ended(r->last));
}

/* --- Surviving --- */

/* The error just returned names the rank; where processes are watched, also its process and what it did last, unless
 * that is not known (NULL). Then, where they are not, one that heard its last message may wait for one that did not. */
static void names_the_dead(const rig *r, rank_report *report, const char *did)
{
    char who[128];
    if (killed_uses.watched)
        snprintf(who, sizeof who, "a rank's process has ended: rank %d (process %d) %s", r->last, r->processes[r->last],
                 did != NULL ? did : "");
    else if (did != NULL)
        snprintf(who, sizeof who, "rank %d", r->last);
    else
        snprintf(who, sizeof who, "rank ");
    RANK_DETAIL(report, who);
}

static void everything_is_refused(rig *r, rank_report *report, ckv_status failure)
{
    int64_t start = now_ms();
    for (int i = 0; i < 3; i++) {
        RANK_STATUS(report, go_there(r), failure);
        RANK_STATUS(report, come_back(r), failure);
        RANK_STATUS(report, ckv_comm_barrier(r->comm), failure);
        RANK_STATUS(report, ckv_comm_async_error(r->comm), failure);
    }
    RANK_CHECK(report, now_ms() - start < 500);
}

static ckv_status expected_failure(void)
{
    return killed_uses.watched ? CKV_ERROR_COMM : CKV_ERROR_TIMEOUT;
}

/* `status` is what the first call with a dead rank came to, begun at `start_ms`. When it was only enqueued, the failure
 * is still to come: by itself where processes are watched, otherwise with the next call that needs everybody. `did` is
 * how the text about the dead rank goes on. */
static void survive(rig *r, rank_report *report, ckv_status status, int64_t start_ms, const char *did)
{
    ckv_status expected = expected_failure();
    if (status == CKV_OK && !killed_uses.watched)
        status = ckv_comm_barrier(r->comm);
    for (; status == CKV_OK && now_ms() - start_ms < KILLED_PATIENCE_MS; pause_ms(1))
        status = ckv_comm_async_error(r->comm);
    RANK_STATUS(report, status, expected);
    RANK_STEP(report, names_the_dead(r, report, did));
    RANK_OK(report, r->device->wait(NULL));
    RANK_CHECK(report, now_ms() - start_ms < KILLED_PATIENCE_MS);
    RANK_STEP(report, everything_is_refused(r, report, expected));
}

/* --- Bodies --- */

void killed_nobody(ckv_comm *comm, rank_report *report)
{
    rig r;
    RANK_STEP(report, rig_open(&r, report, comm));
    rig_close(&r);
}

/* Catches: an exchange with a rank that is long gone, which waits for ever or for its whole deadline. */
void killed_before_its_part(ckv_comm *comm, rank_report *report)
{
    rig r;
    RANK_STEP(report, rig_open(&r, report, comm));
    RANK_OK(report, ckv_comm_barrier(comm));
    if (r.rank == r.last)
        die_after(SHOWN_MS);
    RANK_STEP(report, await_end(&r, report));
    int64_t start_ms = now_ms();
    RANK_STEP(report, survive(&r, report, go_there(&r), start_ms, "has done its part of barrier, operation "));
    rig_close(&r);
}

/* Catches: a kernel, or NCCL's, that goes on waiting on the device. */
void killed_while_others_wait_for_it(ckv_comm *comm, rank_report *report)
{
    rig r;
    RANK_STEP(report, rig_open(&r, report, comm));
    RANK_OK(report, ckv_comm_barrier(comm));
    if (r.rank == r.last)
        die_after(WAITING_MS);
    int64_t start_ms = now_ms();
    RANK_STEP(report, survive(&r, report, go_there(&r), start_ms, "has done its part of barrier, operation "));
    rig_close(&r);
}

/* It is in its kernel, or in its call where that waits; the others come when it has ended. Catches: memory of a dead
 * rank that is written to and is no more. */
void killed_while_it_waits_for_others(ckv_comm *comm, rank_report *report)
{
    rig r;
    RANK_STEP(report, rig_open(&r, report, comm));
    RANK_OK(report, ckv_comm_barrier(comm));
    if (r.rank == r.last) {
        RANK_STEP(report, start_to_die(report, WAITING_MS));
        RANK_OK(report, go_there(&r));
        RANK_OK(report, r.device->wait(NULL));
        pause_ms(KILLED_PATIENCE_MS);
        RANK_CHECK(report, !"still alive");
    }
    RANK_STEP(report, await_end(&r, report));
    int64_t start_ms = now_ms();
    const char *did = strcmp(killed_uses.exchange, "fused") == 0 ? "has done its part of exchange there, operation "
                                                                 : "has done its part of all_to_all, operation ";
    RANK_STEP(report, survive(&r, report, go_there(&r), start_ms, did));
    rig_close(&r);
}

/* Nobody is in a call. Catches: a failure that only a call could notice. */
void killed_afterwards(ckv_comm *comm, rank_report *report)
{
    rig r;
    RANK_STEP(report, rig_open(&r, report, comm));
    if (r.rank == r.last)
        die_after(SHOWN_MS);
    const char *did = strcmp(killed_uses.exchange, "fused") == 0 ? "has done its part of exchange back, operation "
                                                                 : "has done its part of all_to_all, operation ";
    RANK_STEP(report, await_end(&r, report));
    RANK_STEP(report, survive(&r, report, CKV_OK, now_ms(), did));
    rig_close(&r);
}

/* One exchange after the other, until it has happened. Catches: a moment that the cases above do not name. */
void killed_at_any_moment(ckv_comm *comm, rank_report *report)
{
    rig r;
    ckv_random random = {ckv_test_seed() + 77};
    const int64_t soon_ms = ckv_random_range(&random, 5, 60);
    RANK_STEP(report, rig_open(&r, report, comm));
    RANK_OK(report, ckv_comm_barrier(comm));
    if (r.rank == r.last)
        RANK_STEP(report, start_to_die(report, soon_ms));
    ckv_status status = CKV_OK;
    int64_t start_ms = now_ms();
    while (status == CKV_OK && (r.rank == r.last || now_ms() - start_ms < KILLED_PATIENCE_MS)) {
        status = go_there(&r);
        if (status == CKV_OK)
            status = come_back(&r);
        if (status == CKV_OK)
            status = r.device->wait(NULL);
    }
    RANK_STEP(report, survive(&r, report, status, start_ms, NULL));
    rig_close(&r);
}

/* As many exchanges as a forward of many layers has are on the stream by then; the first of them waits. Catches: what
 * is taken away while kernels that have not begun yet still use it. */
void killed_with_many_enqueued(ckv_comm *comm, rank_report *report)
{
    rig r;
    RANK_STEP(report, rig_open(&r, report, comm));
    RANK_OK(report, ckv_comm_barrier(comm));
    if (r.rank == r.last)
        die_after(WAITING_MS);
    ckv_status status = CKV_OK;
    int64_t start_ms = now_ms();
    for (int i = 0; i < MANY && status == CKV_OK; i++) {
        status = go_there(&r);
        if (status == CKV_OK)
            status = come_back(&r);
    }
    RANK_STEP(report, survive(&r, report, status, start_ms, "has done its part of barrier, operation "));
    rig_close(&r);
}

/* The others are in a forward, where ranks agree on the host before anything is on the device. Catches: an agreement
 * that does not ask whoever watches why nobody comes. */
void killed_while_others_agree(ckv_comm *comm, rank_report *report)
{
    rig r;
    party p;
    party_tensors t;
    RANK_STEP(report, meet_others(&r, report, comm));
    RANK_STEP(report, open_usual(&p, report, comm));
    RANK_STEP(report, party_make(&p, report, &usual, &t));
    RANK_OK(report, ckv_comm_barrier(comm));
    if (r.rank == r.last)
        die_after(WAITING_MS);
    int64_t start_ms = now_ms();
    RANK_STATUS(report, ckv_ulysses_attention(p.ulysses, &t.args, NULL), expected_failure());
    RANK_STEP(report, names_the_dead(&r, report, "has done its part of barrier, operation "));
    RANK_CHECK(report, now_ms() - start_ms < KILLED_PATIENCE_MS);
    RANK_STATUS(report, ckv_ulysses_attention(p.ulysses, &t.args, NULL), expected_failure());
    RANK_OK(report, r.device->wait(NULL));
    party_free(&p, &t);
    party_close(&p);
}
