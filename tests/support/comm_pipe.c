/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/comm_pipe.h"

#include "kernels/exchange_peers/exchange_peers.h"
#include "lib/support/error.h"
#include "ulysses/message.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEADER_BYTES = sizeof(int64_t), WINDOW_ALIGNMENT = 4096 };

struct comm_pipe {
    int ranks;
    int sockets[COMM_PIPE_MAX_RANKS][COMM_PIPE_MAX_RANKS]; /* [mine][peer's]; -1: none */
    char *windows;                                         /* at one address in every process */
};

typedef struct pipe_rank {
    comm_pipe *pipe;
    int rank;
    int64_t timeout_ms;
    size_t window_bytes; /* taken */
    ckv_peer_signals signals;
} pipe_rank;

/* One message, its length in front. */
typedef struct letter {
    char *memory;
    int64_t bytes, done;
} letter;

/* With one peer. */
typedef struct talk {
    letter out, in;
    int gone;
} talk;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* --- The pipe --- */

static size_t windows_bytes(const comm_pipe *pipe)
{
    return (size_t)pipe->ranks * COMM_PIPE_WINDOW_BYTES;
}

void comm_pipe_close(comm_pipe *pipe)
{
    if (pipe == NULL)
        return;
    for (int mine = 0; mine < pipe->ranks; mine++)
        for (int peer = 0; peer < pipe->ranks; peer++)
            if (pipe->sockets[mine][peer] >= 0)
                close(pipe->sockets[mine][peer]);
    if (pipe->windows != NULL)
        munmap(pipe->windows, windows_bytes(pipe));
    free(pipe);
}

/* Pages that nobody touches cost nothing. */
static char *map_windows(const comm_pipe *pipe)
{
    void *memory =
        mmap(NULL, windows_bytes(pipe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

ckv_status comm_pipe_open(int ranks, comm_pipe **pipe_out)
{
    comm_pipe *pipe = ranks <= COMM_PIPE_MAX_RANKS ? malloc(sizeof *pipe) : NULL;
    if (pipe == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "pipe: no room for %d ranks; %d are the most", ranks, COMM_PIPE_MAX_RANKS);
    *pipe = (comm_pipe){.ranks = ranks};
    for (int mine = 0; mine < ranks; mine++)
        for (int peer = 0; peer < ranks; peer++)
            pipe->sockets[mine][peer] = -1;
    pipe->windows = map_windows(pipe);
    int complete = pipe->windows != NULL;
    for (int mine = 0; mine < ranks; mine++) {
        for (int peer = 0; complete && peer < mine; peer++) {
            int ends[2] = {-1, -1};
            complete = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
            pipe->sockets[mine][peer] = ends[0];
            pipe->sockets[peer][mine] = ends[1];
        }
    }
    if (!complete) {
        comm_pipe_close(pipe);
        return ckv_fail(CKV_ERROR_MEMORY, "pipe: no sockets or memory for %d ranks", ranks);
    }
    *pipe_out = pipe;
    return CKV_OK;
}

/* --- Messages --- */

/* Everything but its header may be left unread by a peer that expects another length. */
static ckv_status check_length(const pipe_rank *self, int sender, const letter *in)
{
    int64_t length;
    memcpy(&length, in->memory, sizeof length);
    if (length == in->bytes - HEADER_BYTES)
        return CKV_OK;
    return ckv_fail(CKV_ERROR_COMM, "rank %d sent %lld bytes to rank %d, which expects %lld", sender, (long long)length,
                    self->rank, (long long)(in->bytes - HEADER_BYTES));
}

static ckv_status write_letters(const pipe_rank *self, int64_t tensors, const ckv_comm_transfer *transfers, talk *talks)
{
    int ranks = self->pipe->ranks;
    for (int peer = 0; peer < ranks; peer++) {
        int64_t length = ckv_message_send_bytes(transfers, tensors, ranks, peer);
        letter *out = &talks[peer].out, *in = &talks[peer].in;
        out->bytes = HEADER_BYTES + length;
        in->bytes = HEADER_BYTES + ckv_message_receive_bytes(transfers, tensors, ranks, peer);
        out->memory = malloc((size_t)out->bytes);
        in->memory = malloc((size_t)in->bytes);
        if (out->memory == NULL || in->memory == NULL)
            return ckv_fail(CKV_ERROR_COMM, "rank %d cannot allocate %lld bytes", self->rank,
                            (long long)(out->bytes + in->bytes));
        memcpy(out->memory, &length, sizeof length);
        ckv_message_pack(transfers, tensors, ranks, peer, out->memory + HEADER_BYTES);
    }
    talk *mine = &talks[self->rank];
    memcpy(mine->in.memory, mine->out.memory, HEADER_BYTES);
    CKV_TRY(check_length(self, self->rank, &mine->in));
    memcpy(mine->in.memory, mine->out.memory, (size_t)mine->out.bytes);
    mine->in.done = mine->out.done = mine->out.bytes;
    return CKV_OK;
}

static int is_pending(const letter *one)
{
    return one->done < one->bytes;
}

/* What a send or a receive came to: 0 bytes when it would have waited, -1 when the peer is gone. */
static int64_t moved(ssize_t result, int would_wait)
{
    if (result > 0)
        return result;
    return would_wait ? 0 : -1;
}

static ckv_status carry_on(const pipe_rank *self, int peer, talk *with)
{
    int file = self->pipe->sockets[self->rank][peer];
    letter *out = &with->out, *in = &with->in;
    if (is_pending(out)) {
        ssize_t sent =
            send(file, out->memory + out->done, (size_t)(out->bytes - out->done), MSG_DONTWAIT | MSG_NOSIGNAL);
        int64_t bytes = moved(sent, sent < 0 && (errno == EAGAIN || errno == EINTR));
        with->gone |= bytes < 0;
        out->done += bytes > 0 ? bytes : 0;
    }
    if (is_pending(in)) {
        int64_t end = in->done < HEADER_BYTES ? HEADER_BYTES : in->bytes; /* no more than is surely ours */
        ssize_t received = recv(file, in->memory + in->done, (size_t)(end - in->done), MSG_DONTWAIT);
        int64_t bytes = moved(received, received < 0 && (errno == EAGAIN || errno == EINTR));
        with->gone |= bytes < 0;
        in->done += bytes > 0 ? bytes : 0;
        if (bytes > 0 && in->done == HEADER_BYTES)
            return check_length(self, peer, in);
    }
    return CKV_OK;
}

static ckv_status timed_out(const pipe_rank *self, int64_t waited_ms, const talk *talks)
{
    char names[128] = "";
    size_t length = 0;
    for (int peer = 0; peer < self->pipe->ranks && length < sizeof names; peer++)
        if (is_pending(&talks[peer].in) || is_pending(&talks[peer].out))
            length += (size_t)snprintf(names + length, sizeof names - length, " rank %d%s", peer,
                                       talks[peer].gone ? " (gone)" : "");
    return ckv_fail(CKV_ERROR_TIMEOUT, "rank %d waited %lld ms for:%s", self->rank, (long long)waited_ms, names);
}

/* Wait until a peer that is still there has something to say or to hear. */
static void await_peers(const pipe_rank *self, const talk *talks, int64_t patience_ms)
{
    struct pollfd files[COMM_PIPE_MAX_RANKS];
    nfds_t count = 0;
    for (int peer = 0; peer < self->pipe->ranks; peer++) {
        int hear = is_pending(&talks[peer].in), say = is_pending(&talks[peer].out);
        if ((hear || say) && !talks[peer].gone)
            files[count++] = (struct pollfd){.fd = self->pipe->sockets[self->rank][peer],
                                             .events = (short)((hear ? POLLIN : 0) | (say ? POLLOUT : 0))};
    }
    poll(files, count, (int)patience_ms);
}

static ckv_status exchange_letters(const pipe_rank *self, talk *talks)
{
    int64_t start_ms = now_ms(), deadline_ms = start_ms + self->timeout_ms;
    for (;;) {
        int pending = 0;
        for (int peer = 0; peer < self->pipe->ranks; peer++) {
            talk *with = &talks[peer];
            int was_gone = with->gone;
            if (!was_gone && (is_pending(&with->in) || is_pending(&with->out)))
                CKV_TRY(carry_on(self, peer, with));
            pending |= is_pending(&with->in) || is_pending(&with->out);
            if (with->gone && !was_gone && now_ms() + COMM_PIPE_GRACE_MS < deadline_ms)
                deadline_ms = now_ms() + COMM_PIPE_GRACE_MS;
        }
        int64_t patience_ms = deadline_ms - now_ms();
        if (!pending)
            return CKV_OK;
        if (patience_ms <= 0)
            return timed_out(self, now_ms() - start_ms, talks);
        await_peers(self, talks, patience_ms);
    }
}

static ckv_status pipe_all_to_all(void *transport, int64_t tensors, const ckv_comm_transfer *transfers)
{
    const pipe_rank *self = transport;
    int ranks = self->pipe->ranks;
    talk talks[COMM_PIPE_MAX_RANKS] = {{{0}, {0}, 0}};
    ckv_status status = write_letters(self, tensors, transfers, talks);
    if (status == CKV_OK)
        status = exchange_letters(self, talks);
    for (int peer = 0; peer < ranks; peer++) {
        if (status == CKV_OK)
            ckv_message_unpack(transfers, tensors, ranks, peer, talks[peer].in.memory + HEADER_BYTES);
        free(talks[peer].in.memory);
        free(talks[peer].out.memory);
    }
    return status;
}

/* --- Windows --- */

static ckv_status pipe_window_supported(void *transport)
{
    (void)transport;
    return CKV_OK;
}

static ckv_status pipe_window_alloc(void *transport, size_t bytes, ckv_comm_window *window)
{
    pipe_rank *self = transport;
    size_t rounded = (bytes + WINDOW_ALIGNMENT - 1) / WINDOW_ALIGNMENT * WINDOW_ALIGNMENT;
    if (rounded < bytes || rounded > COMM_PIPE_WINDOW_BYTES - self->window_bytes)
        return ckv_fail(CKV_ERROR_MEMORY, "pipe: no window of %zu bytes is left; a rank has %d", bytes,
                        COMM_PIPE_WINDOW_BYTES);
    window->memory = self->pipe->windows + (size_t)self->rank * COMM_PIPE_WINDOW_BYTES + self->window_bytes;
    self->window_bytes += rounded;
    return CKV_OK;
}

/* Addresses are the same everywhere. */
static ckv_status pipe_window_open(void *transport, size_t bytes, ckv_comm_window *window)
{
    const pipe_rank *self = transport;
    ckv_comm_transfer transfers[COMM_PIPE_MAX_RANKS];
    (void)bytes;
    for (int peer = 0; peer < self->pipe->ranks; peer++)
        transfers[peer] =
            (ckv_comm_transfer){&window->memory, sizeof(void *), &window->peers[peer], sizeof window->peers[peer]};
    return pipe_all_to_all(transport, 1, transfers);
}

/* Stays until the communicator ends: a slower rank may still use it. */
static void pipe_window_free(void *transport, ckv_comm_window *window)
{
    (void)transport;
    (void)window;
}

static ckv_peer_signals *pipe_signals(void *transport, int64_t *timeout_ms_out)
{
    pipe_rank *self = transport;
    *timeout_ms_out = self->timeout_ms;
    return &self->signals;
}

static ckv_status pipe_async_error(void *transport)
{
    const pipe_rank *self = transport;
    if (!__atomic_load_n(&self->signals.abort, __ATOMIC_ACQUIRE))
        return CKV_OK;
    return ckv_fail(CKV_ERROR_TIMEOUT, "an exchange of rank %d waited %lld ms for rank %u", self->rank,
                    (long long)self->timeout_ms, self->signals.missing_peer);
}

static void pipe_destroy(void *transport)
{
    pipe_rank *self = transport;
    comm_pipe_close(self->pipe);
    free(self);
}

static const ckv_comm_ops pipe_ops = {
    .transport = "pipe",
    .all_to_all = pipe_all_to_all,
    .window_supported = pipe_window_supported,
    .window_alloc = pipe_window_alloc,
    .window_open = pipe_window_open,
    .window_free = pipe_window_free,
    .signals = pipe_signals,
    .async_error = pipe_async_error,
    .destroy = pipe_destroy,
};

ckv_status comm_pipe_join(comm_pipe *pipe, int rank, int64_t timeout_ms, ckv_comm **comm_out)
{
    pipe_rank *self = calloc(1, sizeof *self);
    if (self == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "pipe: cannot allocate rank %d", rank);
    *self = (pipe_rank){.pipe = pipe, .rank = rank, .timeout_ms = timeout_ms};
    for (int other = 0; other < pipe->ranks; other++) {
        for (int peer = 0; other != rank && peer < pipe->ranks; peer++) {
            if (pipe->sockets[other][peer] >= 0)
                close(pipe->sockets[other][peer]);
            pipe->sockets[other][peer] = -1;
        }
    }
    return ckv_comm_create_on(&pipe_ops, self, rank, pipe->ranks, comm_out);
}
