/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes, and the one line of detail behind the last failure.
 *
 * NULL where an object, a config or an _out pointer is expected is ERROR_INVALID in every call that returns a status.
 * destroy and close accept it; other calls, which cannot fail, need a live object. */
#ifndef CKV_STATUS_H
#define CKV_STATUS_H

#include <ckv/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, value, message */
#define CKV_STATUS_LIST(X)                                                                                             \
    X(OK, 0, "success")                                                                                                \
    X(ERROR_INVALID, -1, "an argument is out of range")                                                                \
    X(ERROR_STATE, -2, "the object is in the wrong state for this call")                                               \
    X(ERROR_CAPACITY, -3, "the pool is too small")                                                                     \
    X(ERROR_UNSUPPORTED, -4, "not supported")                                                                          \
    X(ERROR_MEMORY, -5, "out of memory")                                                                               \
    X(ERROR_DEVICE, -6, "the device reported an error")                                                                \
    X(ERROR_COMM, -7, "the transport reported an error")                                                               \
    X(ERROR_TIMEOUT, -8, "a rank did not arrive in time")                                                              \
    X(ERROR_INTERNAL, -9, "an invariant of the library does not hold")                                                 \
    X(ERROR_NOT_FOUND, -10, "no such object")

typedef enum ckv_status {
#define CKV_STATUS_ENUM(name, value, message) CKV_##name = (value),
    CKV_STATUS_LIST(CKV_STATUS_ENUM)
#undef CKV_STATUS_ENUM
} ckv_status;

#if defined(__GNUC__)
#define CKV_NODISCARD __attribute__((warn_unused_result))
#else
#define CKV_NODISCARD
#endif

/* Every call that returns a status returns ERROR_INVALID for a handle, config or `_out` pointer that is NULL, unless
 * its comment says what NULL means, and writes `_out` only on success. Getters and `destroy` return no status: getters
 * need a handle that is alive. */

/* "OK", "ERROR_INVALID", ...; "UNKNOWN" for a value outside the list. Static storage. */
CKV_API const char *ckv_status_name(ckv_status status);

/* What a status means in a few words. Static storage. */
CKV_API const char *ckv_status_message(ckv_status status);

/* Detail of the last failure on the calling thread: what was refused, where, with the numbers. Never NULL, "" before
 * the first failure; overwritten by the next failure, untouched by success. Owned by the library, valid on this thread.
 */
CKV_API const char *ckv_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
