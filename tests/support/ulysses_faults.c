/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ulysses_faults.h"

#include "lib/device/device.h"
#include "lib/support/error.h"
#include "tests/support/ulysses_usual.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

int64_t fault_deadline_ms = 1000;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int is_last(const party *p)
{
    return p->rank == p->ranks - 1;
}

/* Nothing works any more, and says so without waiting again. */
static void everything_is_refused(party *p, rank_report *report, const party_tensors *t)
{
    int64_t start = now_ms();
    ckv_status failure = ckv_comm_async_error(p->comm);
    RANK_CHECK(report, failure == CKV_ERROR_TIMEOUT || failure == CKV_ERROR_COMM);
    for (int i = 0; i < 3; i++)
        RANK_STATUS(report, ckv_ulysses_attention(p->ulysses, &t->args, NULL), failure);
    RANK_CHECK(report, ckv_comm_barrier(p->comm) == failure);
    RANK_CHECK(report, now_ms() - start < fault_deadline_ms / 2);
}

/* A forward that one rank spoils: an error for everybody who takes part, in time, that names the rank. */
static void expect_failure(party *p, rank_report *report, const party_tensors *t, const char *who)
{
    int64_t start = now_ms();
    ckv_status status = ckv_ulysses_attention(p->ulysses, &t->args, NULL);
    RANK_CHECK(report, status == CKV_ERROR_TIMEOUT || status == CKV_ERROR_COMM || status == CKV_ERROR_DEVICE);
    RANK_DETAIL(report, who);
    RANK_CHECK(report, now_ms() - start < 4 * fault_deadline_ms);
    if (status != CKV_ERROR_DEVICE) /* a device's failure is not the communicator's */
        everything_is_refused(p, report, t);
}

/* Catches: ranks that wait for ever, a failure that the next call has forgotten. */
void ulysses_rank_that_stays_away(ckv_comm *comm, rank_report *report)
{
    party p;
    party_tensors t;
    char who[32];
    RANK_STEP(report, open_usual(&p, report, comm));
    RANK_STEP(report, party_make(&p, report, &usual, &t));
    snprintf(who, sizeof who, "rank %d", p.ranks - 1);
    if (!is_last(&p))
        RANK_STEP(report, expect_failure(&p, report, &t, who));
    party_free(&p, &t);
    party_close(&p);
}

/* It destroys what it has, in good order, while the others wait. Catches: memory that the others still use given back;
 * a destroy that waits. */
void ulysses_rank_that_leaves(ckv_comm *comm, rank_report *report)
{
    party p;
    RANK_STEP(report, open_usual(&p, report, comm));
    if (is_last(&p)) {
        party_close(&p);
        return;
    }
    party_tensors t;
    RANK_STEP(report, party_make(&p, report, &usual, &t));
    RANK_STEP(report, expect_failure(&p, report, &t, "rank"));
    party_free(&p, &t);
    party_close(&p);
}

/* --- Tampered tables --- */

typedef enum exchange_way { WORKS, FAILS, COMES_TOO_LATE } exchange_way;

static _Thread_local exchange_way way;

static ckv_status exchange_heads(const struct ckv_exchange_heads_params *params, ckv_stream stream)
{
    if (way == FAILS)
        return ckv_fail(CKV_ERROR_DEVICE, "the exchange failed as told");
    return ckv_device_host.exchange_heads(params, stream);
}

static ckv_status exchange_peers(const struct ckv_exchange_peers_params *params, ckv_stream stream)
{
    if (way == FAILS)
        return ckv_fail(CKV_ERROR_DEVICE, "the exchange failed as told");
    int64_t late_ms = way == COMES_TOO_LATE ? 2 * fault_deadline_ms : 0;
    struct timespec pause = {.tv_sec = late_ms / 1000, .tv_nsec = late_ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
    return ckv_device_host.exchange_peers(params, stream);
}

static void spoil_exchange(ckv_comm *comm, rank_report *report, exchange_way how, const char *exchange)
{
    party p;
    party_tensors t;
    ckv_device device = ckv_device_host;
    device.exchange_heads = exchange_heads;
    device.exchange_peers = exchange_peers;
    party_shape shape = small_shape(ckv_comm_size(comm));
    shape.device = &device;
    shape.exchange = exchange;
    RANK_STEP(report, party_open(&p, report, comm, &shape));
    RANK_STEP(report, still_works(&p, report));
    RANK_STEP(report, party_make(&p, report, &usual, &t));
    char who[32];
    snprintf(who, sizeof who, "rank %d", p.ranks - 1);
    if (is_last(&p)) /* a late one hears what the others made of it, and need not find out by waiting for them */
        snprintf(who, sizeof who, how == FAILS ? "failed as told" : "an exchange waited");
    way = is_last(&p) ? how : WORKS;
    RANK_STEP(report, expect_failure(&p, report, &t, who));
    way = WORKS;
    party_free(&p, &t);
    party_close(&p);
}

/* Past the point where ranks agree. Catches: a rank that returns alone and leaves the others waiting. */
void ulysses_rank_that_fails_inside_the_exchange(ckv_comm *comm, rank_report *report)
{
    spoil_exchange(comm, report, FAILS, NULL);
}

/* When its kernel writes into the others' memory, they have given up and their contexts are destroyed. Catches: a
 * kernel that waits without a deadline, one that gives up without telling, windows given back while a peer may still
 * write. */
void ulysses_exchange_whose_peer_comes_too_late(ckv_comm *comm, rank_report *report)
{
    spoil_exchange(comm, report, COMES_TOO_LATE, "fused");
}
