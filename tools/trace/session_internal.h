/* SPDX-License-Identifier: Apache-2.0 */
/* Between the life of a session (session.c) and its forwards (session_forward.c). */
#ifndef CKV_TOOLS_SESSION_INTERNAL_H
#define CKV_TOOLS_SESSION_INTERNAL_H

#include "tools/trace/session.h"

#include <ckv/ulysses.h>

/* Grows, never shrinks. */
typedef struct session_buffer {
    void *memory;
    size_t bytes;
} session_buffer;

struct session {
    session_config config;
    ckv_comm *comm;
    const ckv_device *device;
    int rank, ranks;
    size_t element_bytes;
    int64_t q_row, kv_row; /* elements of a token row, all heads */
    int64_t kv_heads;      /* of this rank */
    ckv_cache *cache;
    ckv_ulysses *ulysses;
    ckv_reference *reference;
    session_buffer shard, out, gathered, exact, aligned, sampled, floats, extra, records;
    session_buffer device_q, device_k, device_v, device_out; /* what the cache and attention read and write */
};

/* A status of the library with its detail as the cause. */
ckv_status session_check(ckv_status status, problem *why);

/* NULL when out of memory. Contents are lost when it grows. */
void *session_reserve(session_buffer *buffer, size_t bytes);

/* Copy host bytes to the session's device, where `buffer` holds them from then on. Contents are lost when it grows. */
ckv_status session_upload(const session *s, session_buffer *buffer, const void *source, size_t bytes);

#endif
