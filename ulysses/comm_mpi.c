/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks are MPI processes; host memory. One message a peer each way, non-blocking, polled until a deadline: a missing
 * rank is an error with a name, not a hang. Messages lie in this file's own boxes, because MPI cannot take an
 * unfinished operation back: after a failure the boxes are left to it, and the caller's buffers are free. */
#include <ckv/mpi.h>

#include "lib/support/error.h"
#include "ulysses/message.h"

#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 1 << 24, /* MPI counts in int; longer messages travel in pieces, in order */
    BUSY_POLLS = 2000,     /* yield this often before sleeping: ranks may share a core */
    SLEEP_US = 50,
    TAG = 0,
};

typedef struct mpi_transport {
    MPI_Comm comm;
    int rank, size;
    int64_t timeout_ms;
    bool failed;                /* MPI may still use comm, boxes and requests: they are never freed */
    struct mpi_transport *next; /* of the abandoned ones */
    char *outbox, *inbox;
    int64_t outbox_bytes, inbox_bytes;
    MPI_Request *requests;
    int *peers;   /* whom each request is about */
    int receives; /* the first ones; sends follow */
    int64_t request_capacity;
} mpi_transport;

/* Left to MPI for good, and kept in sight of leak checkers. */
static _Atomic(mpi_transport *) abandoned;

static void abandon(mpi_transport *self)
{
    self->next = atomic_exchange(&abandoned, self);
}

static ckv_status mpi_fail(const char *what, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return ckv_fail(CKV_ERROR_COMM, "%s: %.300s", what, text);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* One turn of a polling loop: false when the deadline had passed before the turn. A rank that was stopped for longer
 * thus looks once more before it blames the others. */
static bool keep_waiting(int64_t *polls, int64_t deadline_ms)
{
    bool in_time = now_ms() < deadline_ms;
    if (++*polls <= BUSY_POLLS)
        sched_yield();
    else
        usleep(SLEEP_US);
    return in_time;
}

static ckv_status grow_box(char **box, int64_t *capacity, int64_t bytes)
{
    if (*box != NULL && bytes <= *capacity)
        return CKV_OK;
    char *memory = realloc(*box, bytes > 0 ? (size_t)bytes : 1);
    if (memory == NULL)
        return ckv_fail(CKV_ERROR_COMM, "cannot allocate %lld bytes", (long long)bytes);
    *box = memory;
    *capacity = bytes;
    return CKV_OK;
}

static ckv_status grow_requests(mpi_transport *self, int64_t count)
{
    if (count < 1 || count <= self->request_capacity)
        return CKV_OK;
    MPI_Request *requests = realloc(self->requests, (size_t)count * sizeof(MPI_Request));
    if (requests != NULL)
        self->requests = requests;
    int *peers = realloc(self->peers, (size_t)count * sizeof *peers);
    if (peers != NULL)
        self->peers = peers;
    if (requests == NULL || peers == NULL)
        return ckv_fail(CKV_ERROR_COMM, "cannot allocate %lld requests", (long long)count);
    self->request_capacity = count;
    return CKV_OK;
}

static int64_t pieces_of(int64_t bytes)
{
    return (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
}

static ckv_status make_room(mpi_transport *self, int64_t tensors, const ckv_comm_transfer *transfers)
{
    int64_t send_bytes = 0, receive_bytes = 0, requests = 0;
    for (int peer = 0; peer < self->size; peer++) {
        int64_t out = ckv_message_send_bytes(transfers, tensors, self->size, peer);
        int64_t in = ckv_message_receive_bytes(transfers, tensors, self->size, peer);
        send_bytes += out;
        receive_bytes += in;
        requests += pieces_of(out) + pieces_of(in);
    }
    CKV_TRY(grow_box(&self->outbox, &self->outbox_bytes, send_bytes));
    CKV_TRY(grow_box(&self->inbox, &self->inbox_bytes, receive_bytes));
    return grow_requests(self, requests);
}

/* Start the pieces of one message; `count` counts requests. */
static ckv_status start(mpi_transport *self, bool receive, char *message, int64_t bytes, int peer, int *count)
{
    for (int64_t done = 0; done < bytes; done += PIECE_BYTES) {
        int piece = (int)(bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES);
        MPI_Request *request = &self->requests[*count];
        int error = receive ? MPI_Irecv(message + done, piece, MPI_BYTE, peer, TAG, self->comm, request)
                            : MPI_Isend(message + done, piece, MPI_BYTE, peer, TAG, self->comm, request);
        if (error != MPI_SUCCESS)
            return mpi_fail(receive ? "MPI_Irecv" : "MPI_Isend", error);
        self->peers[(*count)++] = peer;
    }
    return CKV_OK;
}

static ckv_status start_all(mpi_transport *self, int64_t tensors, const ckv_comm_transfer *transfers, int *count)
{
    char *in = self->inbox;
    for (int peer = 0; peer < self->size; peer++) {
        int64_t bytes = ckv_message_receive_bytes(transfers, tensors, self->size, peer);
        CKV_TRY(start(self, true, in, bytes, peer, count));
        in += bytes;
    }
    self->receives = *count;
    char *out = self->outbox;
    for (int peer = 0; peer < self->size; peer++) {
        int64_t bytes = ckv_message_send_bytes(transfers, tensors, self->size, peer);
        ckv_message_pack(transfers, tensors, self->size, peer, out);
        CKV_TRY(start(self, false, out, bytes, peer, count));
        out += bytes;
    }
    return CKV_OK;
}

/* The ranks behind the unfinished ones of requests [first, end), each once. */
static void name_pending(const mpi_transport *self, int first, int end, char *names, size_t capacity)
{
    int last = -1;
    size_t length = 0;
    names[0] = '\0';
    for (int i = first; i < end && length < capacity; i++) {
        int complete = 1;
        if (self->peers[i] == last)
            continue;
        MPI_Request_get_status(self->requests[i], &complete, MPI_STATUS_IGNORE);
        if (complete)
            continue;
        last = self->peers[i];
        length += (size_t)snprintf(names + length, capacity - length, " rank %d", last);
    }
}

static ckv_status timed_out(const mpi_transport *self, int count)
{
    char silent[128], deaf[128];
    name_pending(self, 0, self->receives, silent, sizeof silent);
    name_pending(self, self->receives, count, deaf, sizeof deaf);
    return ckv_fail(CKV_ERROR_TIMEOUT, "rank %d waited %lld ms; nothing from:%s; not taken by:%s", self->rank,
                    (long long)self->timeout_ms, silent[0] != '\0' ? silent : " nobody",
                    deaf[0] != '\0' ? deaf : " nobody");
}

static ckv_status await_all(mpi_transport *self, int count)
{
    int64_t polls = 0, deadline_ms = now_ms() + self->timeout_ms;
    for (;;) {
        int complete = 0;
        int error = MPI_Testall(count, self->requests, &complete, MPI_STATUSES_IGNORE);
        if (error != MPI_SUCCESS)
            return mpi_fail("MPI_Testall", error);
        if (complete)
            return CKV_OK;
        if (!keep_waiting(&polls, deadline_ms))
            return timed_out(self, count);
    }
}

static ckv_status mpi_all_to_all(void *transport, int64_t tensors, const ckv_comm_transfer *transfers)
{
    mpi_transport *self = transport;
    int count = 0;
    CKV_TRY(make_room(self, tensors, transfers));
    ckv_status status = start_all(self, tensors, transfers, &count);
    if (status == CKV_OK)
        status = await_all(self, count);
    self->failed = status != CKV_OK;
    CKV_TRY(status);
    const char *message = self->inbox;
    for (int peer = 0; peer < self->size; peer++) {
        ckv_message_unpack(transfers, tensors, self->size, peer, message);
        message += ckv_message_receive_bytes(transfers, tensors, self->size, peer);
    }
    return CKV_OK;
}

static void mpi_destroy(void *transport)
{
    mpi_transport *self = transport;
    if (self->failed) {
        abandon(self);
        return;
    }
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && self->comm != MPI_COMM_NULL)
        MPI_Comm_free(&self->comm);
    free(self->outbox);
    free(self->inbox);
    free(self->requests);
    free(self->peers);
    free(self);
}

static const ckv_comm_ops mpi_ops = {
    .transport = "mpi",
    .all_to_all = mpi_all_to_all,
    .destroy = mpi_destroy,
};

static ckv_status duplicate(mpi_transport *self, MPI_Comm comm)
{
    MPI_Request request;
    int error = MPI_Comm_idup(comm, &self->comm, &request);
    if (error != MPI_SUCCESS)
        return mpi_fail("MPI_Comm_idup", error);
    int64_t polls = 0, deadline_ms = now_ms() + self->timeout_ms;
    for (int complete = 0; !complete;) {
        error = MPI_Test(&request, &complete, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS)
            return mpi_fail("MPI_Comm_idup", error);
        if (!complete && !keep_waiting(&polls, deadline_ms))
            return ckv_fail(CKV_ERROR_TIMEOUT, "comm_create_mpi: rank %d waited %lld ms to duplicate the communicator",
                            self->rank, (long long)self->timeout_ms);
    }
    error = MPI_Comm_set_errhandler(self->comm, MPI_ERRORS_RETURN);
    return error == MPI_SUCCESS ? CKV_OK : mpi_fail("MPI_Comm_set_errhandler", error);
}

/* What ckv_comm_create_mpi is given, as far as it can be told. */
static ckv_status check_arguments(const void *mpi_comm, int64_t timeout_ms, ckv_comm *const *comm_out)
{
    int initialized = 0, finalized = 0, inter = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (mpi_comm == NULL || comm_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "comm_create_mpi: %s is NULL", mpi_comm == NULL ? "mpi_comm" : "comm_out");
    if (timeout_ms < 0)
        return ckv_fail(CKV_ERROR_INVALID, "comm_create_mpi: timeout_ms is %lld; it must be 0 or more",
                        (long long)timeout_ms);
    if (!initialized || finalized)
        return ckv_fail(CKV_ERROR_INVALID, "comm_create_mpi: MPI is %s",
                        finalized ? "finalized already" : "not initialised; call MPI_Init first");
    MPI_Comm comm = *(const MPI_Comm *)mpi_comm;
    if (comm == MPI_COMM_NULL)
        return ckv_fail(CKV_ERROR_INVALID, "comm_create_mpi: the communicator is MPI_COMM_NULL");
    int error = MPI_Comm_test_inter(comm, &inter);
    if (error != MPI_SUCCESS)
        return mpi_fail("MPI_Comm_test_inter", error);
    if (inter)
        return ckv_fail(CKV_ERROR_INVALID,
                        "comm_create_mpi: an intercommunicator has two groups of ranks; give one of one");
    return CKV_OK;
}

ckv_status ckv_comm_create_mpi(const void *mpi_comm, int64_t timeout_ms, ckv_comm **comm_out)
{
    CKV_TRY(check_arguments(mpi_comm, timeout_ms, comm_out));
    MPI_Comm comm = *(const MPI_Comm *)mpi_comm;
    int rank, size;
    int error = MPI_Comm_size(comm, &size);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_rank(comm, &rank);
    if (error != MPI_SUCCESS)
        return mpi_fail("MPI_Comm_size", error);
    if (size == 1)
        return ckv_comm_create_self(comm_out);
    mpi_transport *self = calloc(1, sizeof *self);
    if (self == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "comm_create_mpi: cannot allocate rank %d of %d", rank, size);
    self->comm = MPI_COMM_NULL;
    self->rank = rank;
    self->size = size;
    self->timeout_ms = ckv_comm_wait_ms(timeout_ms);
    ckv_status status = duplicate(self, comm);
    if (status != CKV_OK) {
        abandon(self); /* MPI may still write the new communicator */
        return status;
    }
    return ckv_comm_create_on(&mpi_ops, self, rank, size, comm_out);
}
