/* SPDX-License-Identifier: Apache-2.0 */
/* One rank: what it sends is what it receives. */
#include "ulysses/comm.h"

#include "lib/support/error.h"

#include <string.h>

static ckv_status self_all_to_all(void *transport, int64_t tensors, const ckv_comm_transfer *transfers)
{
    (void)transport;
    for (int64_t i = 0; i < tensors; i++) {
        if (transfers[i].send_bytes != transfers[i].receive_bytes)
            return ckv_fail(CKV_ERROR_COMM, "tensor %lld sends %lld bytes and receives %lld", (long long)i,
                            (long long)transfers[i].send_bytes, (long long)transfers[i].receive_bytes);
        if (transfers[i].send_bytes > 0)
            memcpy(transfers[i].receive, transfers[i].send, (size_t)transfers[i].send_bytes);
    }
    return CKV_OK;
}

static void self_destroy(void *transport)
{
    (void)transport;
}

static const ckv_comm_ops self_ops = {
    .transport = "self",
    .all_to_all = self_all_to_all,
    .destroy = self_destroy,
};

ckv_status ckv_comm_create_self(ckv_comm **comm_out)
{
    if (comm_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "comm_create_self: comm_out is NULL");
    return ckv_comm_create_on(&self_ops, NULL, 0, 1, comm_out);
}
