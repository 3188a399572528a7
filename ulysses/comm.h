/* SPDX-License-Identifier: Apache-2.0 */
/* What a transport implements, and what the Ulysses layer asks of a communicator.
 *
 * A transport is one static ops table. Everything else (verdicts, barriers, records, what happens after a failure) is
 * written once in comm.c on top of it. Not installed; ckv_comm_create_on is exported for transports in a library of
 * their own (libckv_mpi). */
#ifndef CKV_ULYSSES_COMM_H
#define CKV_ULYSSES_COMM_H

#include <ckv/comm.h>

/* What this rank sends to one peer, and receives from it, of one tensor. */
typedef struct ckv_comm_transfer {
    const void *send;
    int64_t send_bytes;
    void *receive;
    int64_t receive_bytes;
} ckv_comm_transfer;

struct ckv_peer_signals;

/* Memory of which every rank has a part of the same size that the others' devices can address. */
typedef struct ckv_comm_window {
    void *memory; /* mine; of the transport's device */
    void **peers; /* [size] each rank's part as this rank's device addresses it; peers[rank] == memory */
    void *handle; /* the transport's */
} ckv_comm_window;

typedef struct ckv_comm_ops {
    const char *transport; /* static storage */

    /* Exchange `tensors` tensors with every rank, this one included, as one group: transfers[tensor * size + peer],
     * host memory. Both sides of a transfer must name the same number of bytes. No rank returns CKV_OK before every
     * rank that sends it something is here, and none waits longer than the transport's deadline. Returns with the
     * buffers no longer in use, whatever the status: the caller may free them. The detail says what happened; in which
     * operation is added here. ERROR_COMM, ERROR_TIMEOUT. */
    ckv_status (*all_to_all)(void *transport, int64_t tensors, const ckv_comm_transfer *transfers);

    /* The same for memory of device `device`, in order of the stream, without waiting; safe to capture. Both NULL:
     * all_to_all takes care of the host's. */
    const char *device;
    ckv_status (*enqueue_all_to_all)(void *transport, int64_t tensors, const ckv_comm_transfer *transfers,
                                     ckv_stream stream);

    /* Windows; all NULL where there are none. Every rank calls window_alloc, and when all have succeeded window_open,
     * which fills `peers` [size]. signals is where a kernel that waits for peers learns that it shall not, and how long
     * it may. A failed window_open leaves the memory to window_free. */
    ckv_status (*window_supported)(void *transport); /* ERROR_UNSUPPORTED with the reason */
    ckv_status (*window_alloc)(void *transport, size_t bytes, ckv_comm_window *window);
    ckv_status (*window_open)(void *transport, size_t bytes, ckv_comm_window *window);
    void (*window_free)(void *transport, ckv_comm_window *window);
    struct ckv_peer_signals *(*signals)(void *transport, int64_t *timeout_ms_out);

    /* What has gone wrong since, outside any call; NULL where nothing can. ERROR_COMM, ERROR_TIMEOUT. */
    ckv_status (*async_error)(void *transport);

    /* This rank does not come to what the others have begun; whoever can be told need not wait for it. May be NULL. */
    void (*give_up)(void *transport, ckv_status status, const char *detail);

    /* Never waits for other ranks. */
    void (*destroy)(void *transport);
} ckv_comm_ops;

/* How long a rank waits when it was told timeout_ms: 60 s for 0, and never so long (127 years) that a clock and the
 * wait, in nanoseconds, leave 64 bits: a caller may say INT64_MAX and mean for ever. */
static inline int64_t ckv_comm_wait_ms(int64_t timeout_ms)
{
    const int64_t most_ms = INT64_C(4000000000000);
    if (timeout_ms <= 0)
        return 60000;
    return timeout_ms < most_ms ? timeout_ms : most_ms;
}

/* The calling rank's end of a transport; owns `transport` from here on, and destroys it when this fails. ERROR_MEMORY.
 */
CKV_NODISCARD CKV_API ckv_status ckv_comm_create_on(const ckv_comm_ops *ops, void *transport, int rank, int size,
                                                    ckv_comm **comm_out);

/* Something every rank must hold alike. Names and their order are the same on every rank. */
typedef struct ckv_comm_fact {
    const char *name;
    int64_t value;
} ckv_comm_fact;

enum { CKV_COMM_MAX_FACTS = 32 };

/* ckv_comm_agree, and when every rank's status is CKV_OK the facts are compared: the first one that differs is refused
 * on every rank with ERROR_INVALID, naming both ranks and values. A rank that hands in an error need not know its
 * facts. */
CKV_NODISCARD ckv_status ckv_comm_agree_on(ckv_comm *comm, ckv_status status, const ckv_comm_fact *facts, size_t count);

/* The transport's all_to_all, recorded. After any failure every further operation of this rank fails alike at once. */
CKV_NODISCARD CKV_API ckv_status ckv_comm_all_to_all(ckv_comm *comm, int64_t tensors,
                                                     const ckv_comm_transfer *transfers);

/* The device whose memory ckv_comm_enqueue_all_to_all moves: "host" where it waits, and any host memory will do. */
const char *ckv_comm_device(const ckv_comm *comm);
CKV_NODISCARD CKV_API ckv_status ckv_comm_enqueue_all_to_all(ckv_comm *comm, int64_t tensors,
                                                             const ckv_comm_transfer *transfers, ckv_stream stream);

/* A window of `bytes` on every rank. Collective; waits. All ranks or none. ERROR_UNSUPPORTED with the reason,
 * ERROR_MEMORY, ERROR_COMM, ERROR_TIMEOUT. Free it before the communicator, when no rank uses it any more. */
CKV_NODISCARD ckv_status ckv_comm_window_create(ckv_comm *comm, size_t bytes, ckv_comm_window *window_out);
void ckv_comm_window_destroy(ckv_comm *comm, ckv_comm_window *window); /* accepts one that is all zero */
struct ckv_peer_signals *ckv_comm_signals(const ckv_comm *comm, int64_t *timeout_ms_out);

/* Around an operation that a kernel of ours carries out, over windows: the record, the refusal after a failure, and the
 * failure of this one. */
CKV_NODISCARD ckv_status ckv_comm_enter(ckv_comm *comm, const char *operation, int64_t bytes);
CKV_NODISCARD ckv_status ckv_comm_leave(ckv_comm *comm, ckv_status status);

/* This rank cannot do its part of what the others have begun: nothing works from here on, and the others fail alike
 * where the transport can tell them, at their deadline elsewhere. Returns `status`, with its detail; CKV_OK changes
 * nothing. */
CKV_NODISCARD ckv_status ckv_comm_break(ckv_comm *comm, ckv_status status);

#endif
