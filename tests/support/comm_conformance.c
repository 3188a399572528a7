/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/comm_conformance.h"

#include "lib/support/error.h"
#include "ulysses/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_RANKS = 16, MAX_TENSORS = 3 };

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void conform_knows_rank_and_size(ckv_comm *comm, rank_report *report)
{
    int rank = ckv_comm_rank(comm), size = ckv_comm_size(comm);
    RANK_CHECK(report, size >= 1 && size <= MAX_RANKS);
    RANK_CHECK(report, rank >= 0 && rank < size);
    int64_t ranks[MAX_RANKS], mine = rank;
    ckv_comm_transfer transfers[MAX_RANKS];
    for (int peer = 0; peer < size; peer++) {
        ckv_comm_transfer transfer = {&mine, sizeof mine, &ranks[peer], sizeof mine};
        transfers[peer] = transfer;
    }
    RANK_OK(report, ckv_comm_all_to_all(comm, 1, transfers));
    for (int peer = 0; peer < size; peer++)
        RANK_CHECK(report, ranks[peer] == peer);
}

void conform_agree_passes_when_all_pass(ckv_comm *comm, rank_report *report)
{
    RANK_OK(report, ckv_comm_agree(comm, CKV_OK));
    const ckv_comm_fact facts[] = {{"seq_len", 44}, {"layer", -1}};
    RANK_OK(report, ckv_comm_agree_on(comm, CKV_OK, facts, 2));
}

/* Every set of refusing ranks; each refuses with a status and a reason of its own. */
void conform_agree_takes_the_lowest_refusing_rank(ckv_comm *comm, rank_report *report)
{
    static const ckv_status statuses[] = {CKV_ERROR_INVALID, CKV_ERROR_STATE, CKV_ERROR_UNSUPPORTED};
    int rank = ckv_comm_rank(comm), size = ckv_comm_size(comm);
    for (int refusing = 1; refusing < 1 << size; refusing++) {
        ckv_status mine = CKV_OK;
        if (refusing >> rank & 1)
            mine = ckv_fail(statuses[rank % 3], "reason %d", rank * 11);
        int lowest = __builtin_ctz((unsigned)refusing);
        char reason[64];
        snprintf(reason, sizeof reason, "rank %d: reason %d", lowest, lowest * 11);
        RANK_STATUS(report, ckv_comm_agree(comm, mine), statuses[lowest % 3]);
        RANK_CHECK(report, strcmp(ckv_last_error(), reason) == 0);
    }
    RANK_OK(report, ckv_comm_agree(comm, CKV_OK));
}

void conform_agree_names_facts_that_differ(ckv_comm *comm, rank_report *report)
{
    int rank = ckv_comm_rank(comm), size = ckv_comm_size(comm);
    for (int odd = 1; odd < size; odd++) {
        const ckv_comm_fact facts[] = {{"seq_len", 44}, {"history_tokens", rank == odd ? 1234 : 5678}, {"layer", 3}};
        RANK_STATUS(report, ckv_comm_agree_on(comm, CKV_OK, facts, 3), CKV_ERROR_INVALID);
        char numbers[64];
        snprintf(numbers, sizeof numbers, "5678 on rank 0, 1234 on rank %d", odd);
        RANK_DETAIL(report, "history_tokens");
        RANK_DETAIL(report, numbers);
    }
    RANK_OK(report, ckv_comm_barrier(comm));
}

/* A rank that refuses has no facts to compare. */
void conform_refusal_comes_before_facts(ckv_comm *comm, rank_report *report)
{
    int last = ckv_comm_size(comm) - 1;
    const ckv_comm_fact facts[] = {{"seq_len", 44}};
    ckv_status status;
    if (ckv_comm_rank(comm) == last)
        status = ckv_comm_agree(comm, ckv_fail(CKV_ERROR_STATE, "no rollout"));
    else
        status = ckv_comm_agree_on(comm, CKV_OK, facts, 1);
    RANK_STATUS(report, status, CKV_ERROR_STATE);
    RANK_DETAIL(report, "no rollout");
}

/* Nobody leaves before the last one came; one clock for all ranks of a machine. */
void conform_barrier_waits_for_the_last(ckv_comm *comm, rank_report *report)
{
    int rank = ckv_comm_rank(comm), size = ckv_comm_size(comm);
    int64_t entered[MAX_RANKS];
    ckv_comm_transfer transfers[MAX_RANKS];
    for (int late = 0; late < size; late++) {
        struct timespec pause = {0, 20000000};
        if (rank == late)
            nanosleep(&pause, NULL);
        int64_t mine = now_ns();
        RANK_OK(report, ckv_comm_barrier(comm));
        int64_t left = now_ns();
        for (int peer = 0; peer < size; peer++) {
            ckv_comm_transfer transfer = {&mine, sizeof mine, &entered[peer], sizeof mine};
            transfers[peer] = transfer;
        }
        RANK_OK(report, ckv_comm_all_to_all(comm, 1, transfers));
        for (int peer = 0; peer < size; peer++)
            RANK_CHECK(report, entered[peer] <= left);
    }
}

/* What `from` sends to `to`: another number for each pair, tensor, round and byte. */
static unsigned char stamp(int from, int to, int64_t tensor, int round, int64_t index)
{
    uint64_t mixed = (uint64_t)(((from * 16 + to) * 4 + tensor) * 64 + round) * 0x9e3779b97f4a7c15u +
                     (uint64_t)index * 0xbf58476d1ce4e5b9u;
    return (unsigned char)(mixed >> 56 ^ mixed >> 24);
}

typedef int64_t (*size_of)(int from, int to, int64_t tensor);

/* One exchange with buffers of exactly the size, so that AddressSanitizer sees a byte too many. */
static void exchange_stamps(ckv_comm *comm, rank_report *report, int64_t tensors, size_of bytes, int round)
{
    int rank = ckv_comm_rank(comm), size = ckv_comm_size(comm);
    ckv_comm_transfer transfers[MAX_TENSORS * MAX_RANKS];
    unsigned char *sent[MAX_TENSORS * MAX_RANKS], *received[MAX_TENSORS * MAX_RANKS];
    int64_t count = tensors * size;
    for (int64_t i = 0; i < count; i++) {
        int peer = (int)(i % size);
        int64_t out = bytes(rank, peer, i / size), in = bytes(peer, rank, i / size);
        sent[i] = malloc(out > 0 ? (size_t)out : 1);
        received[i] = calloc(in > 0 ? (size_t)in : 1, 1);
        for (int64_t byte = 0; byte < out; byte++)
            sent[i][byte] = stamp(rank, peer, i / size, round, byte);
        ckv_comm_transfer transfer = {sent[i], out, received[i], in};
        transfers[i] = transfer;
    }
    ckv_status status = ckv_comm_all_to_all(comm, tensors, transfers);
    if (status != CKV_OK)
        rank_fail(report, __FILE__, __LINE__, "%s", ckv_last_error());
    for (int64_t i = 0; i < count; i++) {
        int peer = (int)(i % size);
        for (int64_t byte = 0; status == CKV_OK && byte < transfers[i].receive_bytes; byte++) {
            if (received[i][byte] == stamp(peer, rank, i / size, round, byte))
                continue;
            rank_fail(report, __FILE__, __LINE__, "byte %lld of tensor %lld from rank %d is wrong", (long long)byte,
                      (long long)(i / size), peer);
            break;
        }
        free(sent[i]);
        free(received[i]);
    }
}

static int64_t size_alike(int from, int to, int64_t tensor)
{
    (void)from;
    (void)to;
    (void)tensor;
    return 1000;
}

static int64_t size_uneven(int from, int to, int64_t tensor)
{
    return (from * 7 + to * 3 + tensor * 5) % 4 * 321; /* zero among them */
}

static int64_t size_long(int from, int to, int64_t tensor)
{
    (void)tensor;
    return from == 0 && to == 1 ? (1 << 24) + 12345 : 10; /* over a piece of the mpi transport */
}

void conform_every_byte_reaches_its_rank(ckv_comm *comm, rank_report *report)
{
    exchange_stamps(comm, report, 1, size_alike, 0);
}

void conform_one_group_carries_tensors_of_any_size(ckv_comm *comm, rank_report *report)
{
    exchange_stamps(comm, report, MAX_TENSORS, size_uneven, 0);
}

void conform_long_messages_arrive_whole(ckv_comm *comm, rank_report *report)
{
    exchange_stamps(comm, report, 1, size_long, 0);
}

void conform_all_gather_keeps_rank_order(ckv_comm *comm, rank_report *report)
{
    enum { MOST_RANKS = 16 };
    int rank = ckv_comm_rank(comm), size = ckv_comm_size(comm);
    RANK_CHECK(report, size <= MOST_RANKS);
    const int64_t mine[2] = {100 + rank, -rank};
    int64_t all[MOST_RANKS + 1][2] = {{0}};
    RANK_STATUS(report, ckv_comm_all_gather(comm, mine, -1, all), CKV_ERROR_INVALID);
    RANK_STATUS(report, ckv_comm_all_gather(comm, NULL, sizeof mine, all), CKV_ERROR_INVALID);
    RANK_STATUS(report, ckv_comm_all_gather(NULL, mine, sizeof mine, all), CKV_ERROR_INVALID);
    RANK_OK(report, ckv_comm_all_gather(comm, mine, 0, NULL));
    RANK_OK(report, ckv_comm_all_gather(comm, mine, sizeof mine, all));
    for (int peer = 0; peer < size; peer++)
        RANK_CHECK(report, all[peer][0] == 100 + peer && all[peer][1] == -peer);
    RANK_CHECK(report, all[size][0] == 0);
    RANK_CHECK(report, strcmp(ckv_comm_last_operation(comm).operation, "all_gather") == 0);
}

void conform_many_operations_stay_in_step(ckv_comm *comm, rank_report *report)
{
    for (int round = 0; round < 40 && !report->failed; round++) {
        exchange_stamps(comm, report, 1 + round % MAX_TENSORS, round % 2 ? size_uneven : size_alike, round);
        RANK_OK(report, ckv_comm_agree(comm, CKV_OK));
    }
}

void conform_records_the_last_operation(ckv_comm *comm, rank_report *report)
{
    int rank = ckv_comm_rank(comm), size = ckv_comm_size(comm);
    ckv_comm_record before = ckv_comm_last_operation(comm);
    exchange_stamps(comm, report, 2, size_uneven, 0);
    ckv_comm_record record = ckv_comm_last_operation(comm);
    int64_t bytes = 0;
    for (int peer = 0; peer < size; peer++)
        bytes += peer == rank ? 0 : size_uneven(rank, peer, 0) + size_uneven(rank, peer, 1);
    RANK_CHECK(report, strcmp(record.operation, "all_to_all") == 0);
    RANK_CHECK(report, record.sequence == before.sequence + 1);
    RANK_CHECK(report, record.bytes == bytes);
    RANK_CHECK(report, !record.in_progress);
    RANK_OK(report, ckv_comm_barrier(comm));
    record = ckv_comm_last_operation(comm);
    RANK_CHECK(report, strcmp(record.operation, "barrier") == 0 && record.sequence == before.sequence + 2);
}

typedef ckv_status (*comm_operation)(ckv_comm *comm);

static ckv_status do_agree(ckv_comm *comm)
{
    return ckv_comm_agree(comm, CKV_OK);
}

static ckv_status do_all_to_all(ckv_comm *comm)
{
    static const char nothing[100];
    char received[MAX_RANKS][100];
    ckv_comm_transfer transfers[MAX_RANKS];
    for (int peer = 0; peer < ckv_comm_size(comm); peer++) {
        ckv_comm_transfer transfer = {nothing, sizeof nothing, received[peer], sizeof nothing};
        transfers[peer] = transfer;
    }
    return ckv_comm_all_to_all(comm, 1, transfers);
}

static void expect_timeout(ckv_comm *comm, rank_report *report, comm_operation operation, const char *name)
{
    int absent = ckv_comm_size(comm) - 1;
    RANK_OK(report, operation(comm));
    if (ckv_comm_rank(comm) == absent)
        return;
    int64_t start = now_ns();
    RANK_STATUS(report, operation(comm), CKV_ERROR_TIMEOUT);
    int64_t waited_ms = (now_ns() - start) / 1000000;
    RANK_CHECK(report, waited_ms < 5 * COMM_SHORT_MS);
    char who[32];
    snprintf(who, sizeof who, " rank %d", absent);
    RANK_DETAIL(report, name);
    RANK_DETAIL(report, "operation 2");
    RANK_DETAIL(report, who);
    ckv_comm_record record = ckv_comm_last_operation(comm);
    RANK_CHECK(report, strcmp(record.operation, name) == 0 && record.sequence == 2 && !record.in_progress);
    start = now_ns();
    RANK_STATUS(report, ckv_comm_barrier(comm), CKV_ERROR_TIMEOUT);
    RANK_CHECK(report, (now_ns() - start) / 1000000 < COMM_SHORT_MS); /* at once: nobody waits twice */
}

void conform_agree_times_out(ckv_comm *comm, rank_report *report)
{
    expect_timeout(comm, report, do_agree, "agree");
}

void conform_all_to_all_times_out(ckv_comm *comm, rank_report *report)
{
    expect_timeout(comm, report, do_all_to_all, "all_to_all");
}
