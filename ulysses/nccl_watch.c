/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that looks every few milliseconds whether something has gone wrong that no call would notice: work is on the
 * device, and whoever waits for it waits in CUDA. */
#include "ulysses/nccl_transport.h"

#include "lib/support/error.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* The time between two looks is not constant, so that they do not fall into step with what they look at. */
enum { LOOK_US = 3000, LOOK_JITTER_US = 4000, STOP_SECONDS = 10 };

int64_t ckv_nccl_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int is_busy(const ckv_nccl_transport *self)
{
    for (int slot = 0; slot < CKV_NCCL_SLOTS; slot++)
        if (__atomic_load_n(&self->words->busy[slot], __ATOMIC_ACQUIRE))
            return 1;
    return 0;
}

void ckv_nccl_fail(ckv_nccl_transport *self, ckv_status status, const char *detail)
{
    ncclComm_t doomed = NULL;
    pthread_mutex_lock(&self->lock);
    if (self->failure == CKV_OK) {
        self->failure = status;
        snprintf(self->detail, sizeof self->detail, "%s", detail);
    }
    if (self->windows == 0 || is_busy(self)) {
        doomed = self->nccl;
        self->nccl = NULL;
    }
    pthread_mutex_unlock(&self->lock);
    __atomic_store_n(&self->words->signals.abort, 1, __ATOMIC_RELEASE);
    if (self->board != NULL)
        ckv_board_fail(self->board, status, detail);
    if (doomed != NULL)
        ncclCommAbort(doomed); /* may take its time, so not under the lock */
}

/* A kernel of ours gave up. Unless somebody told it to, the rank it waited for is to blame. */
static void look_at_signals(ckv_nccl_transport *self)
{
    const ckv_peer_signals *signals = &self->words->signals;
    if (!__atomic_load_n(&signals->abort, __ATOMIC_ACQUIRE) || !signals->timed_out)
        return;
    char detail[CKV_NCCL_DETAIL_BYTES], other[128] = "";
    int peer = (int)signals->missing_peer;
    if (self->board != NULL && peer < self->size)
        ckv_board_describe(self->board, peer, other, sizeof other);
    snprintf(detail, sizeof detail, "an exchange of rank %d waited %lld ms for rank %d%s%s", self->rank,
             (long long)self->timeout_ms, peer, other[0] != '\0' ? ": " : "", other);
    ckv_nccl_fail(self, CKV_ERROR_TIMEOUT, detail);
}

ckv_status ckv_nccl_failure(ckv_nccl_transport *self)
{
    pthread_mutex_lock(&self->lock);
    int known = self->failure != CKV_OK;
    pthread_mutex_unlock(&self->lock);
    if (!known)
        look_at_signals(self);
    pthread_mutex_lock(&self->lock);
    ckv_status status = self->failure != CKV_OK ? ckv_fail(self->failure, "%s", self->detail) : CKV_OK;
    pthread_mutex_unlock(&self->lock);
    return status;
}

static void look_at_nccl(ckv_nccl_transport *self)
{
    ncclResult_t state = ncclSuccess;
    pthread_mutex_lock(&self->lock);
    if (self->nccl != NULL)
        ncclCommGetAsyncError(self->nccl, &state);
    pthread_mutex_unlock(&self->lock);
    if (state == ncclSuccess || state == ncclInProgress)
        return;
    char detail[CKV_NCCL_DETAIL_BYTES];
    snprintf(detail, sizeof detail, "NCCL on rank %d: %s", self->rank, ncclGetErrorString(state));
    ckv_nccl_fail(self, CKV_ERROR_COMM, detail);
}

/* What each other rank does, while this one waits. */
static void describe_others(const ckv_nccl_transport *self, char *text, size_t capacity)
{
    size_t length = 0;
    text[0] = '\0';
    for (int rank = 0; self->board != NULL && rank < self->size && length < capacity; rank++) {
        char other[128];
        if (rank == self->rank)
            continue;
        ckv_board_describe(self->board, rank, other, sizeof other);
        length += (size_t)snprintf(text + length, capacity - length, "; %s", other);
    }
}

/* Grouped exchanges that do not end. A slot may serve several replays of a graph, none of which was on the device at
 * every look for so long unless it is stuck. */
static void look_at_slots(ckv_nccl_transport *self)
{
    int64_t now_ms = ckv_nccl_now_ms();
    for (int slot = 0; slot < CKV_NCCL_SLOTS; slot++) {
        if (!__atomic_load_n(&self->words->busy[slot], __ATOMIC_ACQUIRE)) {
            self->busy_since_ms[slot] = 0;
            continue;
        }
        if (self->busy_since_ms[slot] == 0)
            self->busy_since_ms[slot] = now_ms;
        if (now_ms - self->busy_since_ms[slot] <= self->timeout_ms)
            continue;
        char detail[CKV_NCCL_DETAIL_BYTES], others[240];
        describe_others(self, others, sizeof others);
        pthread_mutex_lock(&self->lock);
        unsigned long long operation = self->operation[slot];
        pthread_mutex_unlock(&self->lock);
        snprintf(detail, sizeof detail, "an exchange of rank %d, operation %llu, took more than %lld ms%s", self->rank,
                 operation, (long long)self->timeout_ms, others);
        ckv_nccl_fail(self, CKV_ERROR_TIMEOUT, detail);
        return;
    }
}

static void look_at_others(ckv_nccl_transport *self)
{
    if (self->board == NULL)
        return;
    ckv_comm_record record = ckv_comm_last_operation(self->top);
    ckv_board_show(self->board, &record);
    ckv_status status = ckv_board_failure(self->board);
    if (status != CKV_OK) {
        ckv_nccl_fail(self, status, ckv_last_error());
        return;
    }
    int dead = ckv_board_find_dead(self->board);
    if (dead < 0)
        return;
    char detail[CKV_NCCL_DETAIL_BYTES], last[128];
    ckv_board_describe(self->board, dead, last, sizeof last);
    snprintf(detail, sizeof detail, "a rank's process has ended: %s", last);
    ckv_nccl_fail(self, CKV_ERROR_COMM, detail);
}

static void *watch(void *transport)
{
    ckv_nccl_transport *self = transport;
    unsigned jitter = (unsigned)self->rank;
    cudaSetDevice(self->device);
    while (!atomic_load(&self->stop)) {
        look_at_others(self);
        look_at_signals(self);
        look_at_nccl(self);
        look_at_slots(self);
        jitter = jitter * 1664525u + 1013904223u;
        usleep(LOOK_US + (jitter >> 16) % LOOK_JITTER_US);
    }
    return NULL;
}

ckv_status ckv_nccl_watch(ckv_nccl_transport *self)
{
    if (pthread_create(&self->watcher, NULL, watch, self) != 0)
        return ckv_fail(CKV_ERROR_MEMORY, "nccl: cannot start the thread that watches rank %d", self->rank);
    self->watched = 1;
    return CKV_OK;
}

int ckv_nccl_unwatch(ckv_nccl_transport *self)
{
    struct timespec deadline;
    if (!self->watched)
        return 1;
    atomic_store(&self->stop, 1);
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += STOP_SECONDS;
    self->watched = pthread_timedjoin_np(self->watcher, NULL, &deadline) != 0;
    return !self->watched;
}
