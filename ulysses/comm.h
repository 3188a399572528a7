/* SPDX-License-Identifier: Apache-2.0 */
/* What a transport implements, and what the Ulysses layer asks of a communicator.
 *
 * A transport is one static ops table. Everything else (verdicts, barriers, records, what happens after a failure) is
 * written once in comm.c on top of it. Not installed; ckv_comm_create_on is exported for transports in a library of
 * their own (libckv_mpi). */
#ifndef CKV_ULYSSES_COMM_H
#define CKV_ULYSSES_COMM_H

#include <ckv/comm.h>

/* What this rank sends to one peer, and receives from it, of one tensor. Host memory. */
typedef struct ckv_comm_transfer {
    const void *send;
    int64_t send_bytes;
    void *receive;
    int64_t receive_bytes;
} ckv_comm_transfer;

typedef struct ckv_comm_ops {
    const char *transport; /* static storage */

    /* Exchange `tensors` tensors with every rank, this one included, as one group: transfers[tensor * size + peer].
     * Both sides of a transfer must name the same number of bytes. No rank returns CKV_OK before every rank that sends
     * it something is here, and none waits longer than the transport's deadline. Returns with the buffers no longer in
     * use, whatever the status: the caller may free them. The detail says what happened; in which operation is added
     * here. ERROR_COMM, ERROR_TIMEOUT. */
    ckv_status (*all_to_all)(void *transport, int64_t tensors, const ckv_comm_transfer *transfers);

    /* Never waits for other ranks. */
    void (*destroy)(void *transport);
} ckv_comm_ops;

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
CKV_NODISCARD ckv_status ckv_comm_all_to_all(ckv_comm *comm, int64_t tensors, const ckv_comm_transfer *transfers);

#endif
