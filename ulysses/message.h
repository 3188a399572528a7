/* SPDX-License-Identifier: Apache-2.0 */
/* All tensors for one peer as one contiguous message: what a host-memory transport puts on its wire. */
#ifndef CKV_ULYSSES_MESSAGE_H
#define CKV_ULYSSES_MESSAGE_H

#include "ulysses/comm.h"

#include <string.h>

static inline int64_t ckv_message_send_bytes(const ckv_comm_transfer *transfers, int64_t tensors, int size, int peer)
{
    int64_t bytes = 0;
    for (int64_t tensor = 0; tensor < tensors; tensor++)
        bytes += transfers[tensor * size + peer].send_bytes;
    return bytes;
}

static inline int64_t ckv_message_receive_bytes(const ckv_comm_transfer *transfers, int64_t tensors, int size, int peer)
{
    int64_t bytes = 0;
    for (int64_t tensor = 0; tensor < tensors; tensor++)
        bytes += transfers[tensor * size + peer].receive_bytes;
    return bytes;
}

static inline void ckv_message_pack(const ckv_comm_transfer *transfers, int64_t tensors, int size, int peer,
                                    char *message)
{
    for (int64_t tensor = 0; tensor < tensors; tensor++) {
        const ckv_comm_transfer *transfer = &transfers[tensor * size + peer];
        if (transfer->send_bytes > 0)
            memcpy(message, transfer->send, (size_t)transfer->send_bytes);
        message += transfer->send_bytes;
    }
}

static inline void ckv_message_unpack(const ckv_comm_transfer *transfers, int64_t tensors, int size, int peer,
                                      const char *message)
{
    for (int64_t tensor = 0; tensor < tensors; tensor++) {
        const ckv_comm_transfer *transfer = &transfers[tensor * size + peer];
        if (transfer->receive_bytes > 0)
            memcpy(transfer->receive, message, (size_t)transfer->receive_bytes);
        message += transfer->receive_bytes;
    }
}

#endif
