/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks are threads of one process. A rank posts what it sends in its own mailbox, all meet, each reads what the others
 * posted for it, all meet again. Mailboxes belong to the group, so a rank that gave up can leave while a slower one
 * still reads. A group fails once and for all ranks: nobody is left with half an exchange. */
#include "ulysses/comm.h"

#include "kernels/exchange_peers/exchange_peers.h"
#include "lib/device/device.h"
#include "lib/support/error.h"
#include "ulysses/message.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct mailbox {
    char *memory;
    int64_t capacity_bytes;
    int64_t *lengths; /* [ranks] bytes for each reader; messages lie one after another */
} mailbox;

/* Of all ranks: a slow one may still read the memory of one that has freed its window. */
typedef struct shared_window {
    atomic_int users;
    int ranks;
    void *memories[]; /* [ranks] */
} shared_window;

typedef struct thread_group {
    int ranks;
    int64_t timeout_ms;
    mailbox *mailboxes; /* [ranks]; written by its rank before a meeting, read by the others after it */

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    int members; /* who still holds the group; the last one frees it */
    int arrived;
    bool *here; /* [ranks] */
    bool *left; /* [ranks] */
    uint64_t meetings;
    ckv_status failure;
    char detail[320];

    shared_window *shown;     /* the window that is being opened; written by rank 0 before a meeting */
    ckv_peer_signals signals; /* atomic */
} thread_group;

typedef struct thread_rank {
    thread_group *group;
    int rank;
} thread_rank;

static void group_free(thread_group *group)
{
    for (int rank = 0; group->mailboxes != NULL && rank < group->ranks; rank++) {
        free(group->mailboxes[rank].memory);
        free(group->mailboxes[rank].lengths);
    }
    free(group->mailboxes);
    free(group->shown);
    free(group->left);
    free(group->here);
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->mutex);
    free(group);
}

static ckv_status group_create(int ranks, int64_t timeout_ms, thread_group **group_out)
{
    thread_group *group = calloc(1, sizeof *group);
    if (group == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "threads: cannot allocate a group of %d ranks", ranks);
    group->ranks = ranks;
    group->timeout_ms = timeout_ms;
    pthread_mutex_init(&group->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&group->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    group->here = calloc((size_t)ranks, sizeof *group->here);
    group->left = calloc((size_t)ranks, sizeof *group->left);
    group->mailboxes = calloc((size_t)ranks, sizeof *group->mailboxes);
    bool complete = group->here != NULL && group->left != NULL && group->mailboxes != NULL;
    for (int rank = 0; complete && rank < ranks; rank++) {
        group->mailboxes[rank].lengths = calloc((size_t)ranks, sizeof *group->mailboxes[rank].lengths);
        complete = group->mailboxes[rank].lengths != NULL;
    }
    if (!complete) {
        group_free(group);
        return ckv_fail(CKV_ERROR_MEMORY, "threads: cannot allocate a group of %d ranks", ranks);
    }
    *group_out = group;
    return CKV_OK;
}

static void group_join(thread_group *group)
{
    pthread_mutex_lock(&group->mutex);
    group->members++;
    pthread_mutex_unlock(&group->mutex);
}

static void group_leave(thread_group *group)
{
    pthread_mutex_lock(&group->mutex);
    bool last = --group->members == 0;
    pthread_mutex_unlock(&group->mutex);
    if (last)
        group_free(group);
}

/* The first failure stands for everybody. Called with the mutex held. */
static void group_fail(thread_group *group, ckv_status status, const char *detail)
{
    if (group->failure != CKV_OK)
        return;
    group->failure = status;
    snprintf(group->detail, sizeof group->detail, "%s", detail);
    __atomic_store_n(&group->signals.abort, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&group->changed);
}

static ckv_status rank_fail(const thread_rank *self, const char *detail)
{
    thread_group *group = self->group;
    pthread_mutex_lock(&group->mutex);
    group_fail(group, CKV_ERROR_COMM, detail);
    ckv_status status = ckv_fail(group->failure, "%s", group->detail);
    pthread_mutex_unlock(&group->mutex);
    return status;
}

static void describe_absent(const thread_group *group, int waiting, char *detail, size_t capacity)
{
    int length =
        snprintf(detail, capacity, "rank %d waited %lld ms; not there:", waiting, (long long)group->timeout_ms);
    for (int rank = 0; rank < group->ranks && length > 0 && (size_t)length < capacity; rank++)
        if (!group->here[rank])
            length += snprintf(detail + length, capacity - (size_t)length, " rank %d", rank);
}

static struct timespec deadline_after(int64_t timeout_ms)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += (time_t)(timeout_ms / 1000);
    deadline.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000;
    }
    return deadline;
}

/* Nobody waits for a rank that will not come. */
static void fail_if_one_has_left(thread_group *group)
{
    char detail[96];
    for (int rank = 0; rank < group->ranks; rank++) {
        if (!group->left[rank] || group->here[rank])
            continue;
        snprintf(detail, sizeof detail, "rank %d has destroyed its communicator", rank);
        group_fail(group, CKV_ERROR_COMM, detail);
    }
}

static void await_others(thread_group *group, int rank)
{
    uint64_t meeting = group->meetings;
    struct timespec deadline = deadline_after(group->timeout_ms);
    for (;;) {
        if (group->meetings == meeting)
            fail_if_one_has_left(group);
        if (group->meetings != meeting || group->failure != CKV_OK)
            return;
        int error = pthread_cond_timedwait(&group->changed, &group->mutex, &deadline);
        if (error != ETIMEDOUT || group->meetings != meeting)
            continue;
        char detail[sizeof group->detail];
        describe_absent(group, rank, detail, sizeof detail);
        group_fail(group, CKV_ERROR_TIMEOUT, detail);
    }
}

/* Wait until every rank is here, or the group has failed. */
static ckv_status meet(const thread_rank *self)
{
    thread_group *group = self->group;
    pthread_mutex_lock(&group->mutex);
    uint64_t meeting = group->meetings;
    if (group->failure == CKV_OK) {
        group->here[self->rank] = true;
        if (++group->arrived < group->ranks) {
            await_others(group, self->rank);
        } else {
            group->arrived = 0;
            for (int rank = 0; rank < group->ranks; rank++)
                group->here[rank] = false;
            group->meetings++;
            pthread_cond_broadcast(&group->changed);
        }
    }
    /* A meeting that took place counts, even if the group failed before this rank woke up. */
    ckv_status status = CKV_OK;
    if (group->meetings == meeting)
        status = ckv_fail(group->failure, "%s", group->detail);
    pthread_mutex_unlock(&group->mutex);
    return status;
}

static ckv_status post(const thread_rank *self, int64_t tensors, const ckv_comm_transfer *transfers)
{
    int ranks = self->group->ranks;
    mailbox *box = &self->group->mailboxes[self->rank];
    int64_t total = 0;
    for (int reader = 0; reader < ranks; reader++)
        total += ckv_message_send_bytes(transfers, tensors, ranks, reader);
    if (box->memory == NULL || total > box->capacity_bytes) {
        char *memory = realloc(box->memory, total > 0 ? (size_t)total : 1);
        if (memory == NULL) {
            char detail[96];
            snprintf(detail, sizeof detail, "rank %d cannot allocate %lld bytes", self->rank, (long long)total);
            return rank_fail(self, detail);
        }
        box->memory = memory;
        box->capacity_bytes = total;
    }
    char *message = box->memory;
    for (int reader = 0; reader < ranks; reader++) {
        ckv_message_pack(transfers, tensors, ranks, reader, message);
        box->lengths[reader] = ckv_message_send_bytes(transfers, tensors, ranks, reader);
        message += box->lengths[reader];
    }
    return CKV_OK;
}

static ckv_status collect(const thread_rank *self, int64_t tensors, const ckv_comm_transfer *transfers)
{
    int ranks = self->group->ranks;
    for (int sender = 0; sender < ranks; sender++) {
        const mailbox *box = &self->group->mailboxes[sender];
        const char *message = box->memory;
        for (int reader = 0; reader < self->rank; reader++)
            message += box->lengths[reader];
        int64_t expected = ckv_message_receive_bytes(transfers, tensors, ranks, sender);
        if (box->lengths[self->rank] != expected) {
            char detail[128];
            snprintf(detail, sizeof detail, "rank %d sent %lld bytes to rank %d, which expects %lld", sender,
                     (long long)box->lengths[self->rank], self->rank, (long long)expected);
            return rank_fail(self, detail);
        }
        ckv_message_unpack(transfers, tensors, ranks, sender, message);
    }
    return CKV_OK;
}

static ckv_status threads_all_to_all(void *transport, int64_t tensors, const ckv_comm_transfer *transfers)
{
    const thread_rank *self = transport;
    CKV_TRY(post(self, tensors, transfers));
    CKV_TRY(meet(self));
    CKV_TRY(collect(self, tensors, transfers));
    return meet(self);
}

static ckv_status threads_window_supported(void *transport)
{
    (void)transport;
    return CKV_OK;
}

static ckv_status threads_window_alloc(void *transport, size_t bytes, ckv_comm_window *window)
{
    (void)transport;
    return ckv_device_host.alloc(bytes, &window->memory);
}

static void shared_window_free(shared_window *shared)
{
    for (int rank = 0; rank < shared->ranks; rank++)
        ckv_device_host.free(shared->memories[rank]);
    free(shared);
}

/* Every rank shows the others its part; rank 0 makes what they share. */
static ckv_status threads_window_open(void *transport, size_t bytes, ckv_comm_window *window)
{
    const thread_rank *self = transport;
    thread_group *group = self->group;
    (void)bytes;
    if (self->rank == 0) {
        group->shown = malloc(sizeof *group->shown + (size_t)group->ranks * sizeof(void *));
        if (group->shown == NULL)
            return rank_fail(self, "rank 0 cannot allocate a shared window");
        group->shown->ranks = group->ranks;
        atomic_init(&group->shown->users, group->ranks);
    }
    CKV_TRY(meet(self));
    shared_window *shared = group->shown;
    shared->memories[self->rank] = window->memory;
    CKV_TRY(meet(self));
    if (self->rank == 0)
        group->shown = NULL;
    window->handle = shared; /* from here on the last rank that leaves frees every part */
    memcpy(window->peers, shared->memories, (size_t)group->ranks * sizeof(void *));
    return CKV_OK;
}

static void threads_window_free(void *transport, ckv_comm_window *window)
{
    (void)transport;
    shared_window *shared = window->handle;
    if (shared == NULL)
        ckv_device_host.free(window->memory);
    else if (atomic_fetch_sub(&shared->users, 1) == 1)
        shared_window_free(shared);
}

static ckv_peer_signals *threads_signals(void *transport, int64_t *timeout_ms_out)
{
    const thread_rank *self = transport;
    *timeout_ms_out = self->group->timeout_ms;
    return &self->group->signals;
}

/* A rank that gave up in a kernel fails for everybody. */
static ckv_status threads_async_error(void *transport)
{
    const thread_rank *self = transport;
    thread_group *group = self->group;
    if (!__atomic_load_n(&group->signals.abort, __ATOMIC_ACQUIRE))
        return CKV_OK;
    pthread_mutex_lock(&group->mutex);
    char detail[96];
    snprintf(detail, sizeof detail, "an exchange waited %lld ms for rank %u", (long long)group->timeout_ms,
             group->signals.missing_peer);
    group_fail(group, CKV_ERROR_TIMEOUT, detail);
    ckv_status status = ckv_fail(group->failure, "%s", group->detail);
    pthread_mutex_unlock(&group->mutex);
    return status;
}

static void threads_give_up(void *transport, ckv_status status, const char *detail)
{
    const thread_rank *self = transport;
    char named[sizeof self->group->detail];
    snprintf(named, sizeof named, "rank %d: %s", self->rank, detail);
    pthread_mutex_lock(&self->group->mutex);
    group_fail(self->group, status, named);
    pthread_mutex_unlock(&self->group->mutex);
}

static void threads_destroy(void *transport)
{
    thread_rank *self = transport;
    pthread_mutex_lock(&self->group->mutex);
    self->group->left[self->rank] = true;
    pthread_cond_broadcast(&self->group->changed);
    pthread_mutex_unlock(&self->group->mutex);
    group_leave(self->group);
    free(self);
}

static const ckv_comm_ops threads_ops = {
    .transport = "threads",
    .all_to_all = threads_all_to_all,
    .window_supported = threads_window_supported,
    .window_alloc = threads_window_alloc,
    .window_open = threads_window_open,
    .window_free = threads_window_free,
    .signals = threads_signals,
    .async_error = threads_async_error,
    .give_up = threads_give_up,
    .destroy = threads_destroy,
};

static ckv_status rank_create(thread_group *group, int rank, ckv_comm **comm_out)
{
    thread_rank *self = malloc(sizeof *self);
    if (self == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "threads: cannot allocate rank %d", rank);
    self->group = group;
    self->rank = rank;
    group_join(group);
    return ckv_comm_create_on(&threads_ops, self, rank, group->ranks, comm_out);
}

ckv_status ckv_comm_create_threads(int ranks, int64_t timeout_ms, ckv_comm **comms_out)
{
    if (comms_out == NULL || ranks < 1 || timeout_ms < 0)
        return ckv_fail(CKV_ERROR_INVALID, "comm_create_threads: ranks %d (at least 1), timeout %lld ms (0 or more)%s",
                        ranks, (long long)timeout_ms, comms_out == NULL ? ", comms_out is NULL" : "");
    thread_group *group = NULL;
    CKV_TRY(group_create(ranks, ckv_comm_wait_ms(timeout_ms), &group));
    group_join(group); /* so that the group outlives a rank that cannot be made */
    ckv_status status = CKV_OK;
    int made = 0;
    while (made < ranks && status == CKV_OK) {
        status = rank_create(group, made, &comms_out[made]);
        made += status == CKV_OK;
    }
    while (status != CKV_OK && made > 0)
        ckv_comm_destroy(&comms_out[--made]);
    group_leave(group);
    return status;
}
