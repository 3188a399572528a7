/* SPDX-License-Identifier: Apache-2.0 */
/* Recording why a call failed. The function that decides an error calls ckv_fail; everyone above only forwards. */
#ifndef CKV_SUPPORT_ERROR_H
#define CKV_SUPPORT_ERROR_H

#include <ckv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Record one line of detail for ckv_last_error(). Exported for libckv_mpi. */
CKV_API void ckv_record_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif

/* Record why, and be `status`. A macro, so that static analysis sees that a failure is not CKV_OK. */
#define ckv_fail(status, ...) (ckv_record_error(__VA_ARGS__), (status))

#define CKV_TRY(expression)                                                                                            \
    do {                                                                                                               \
        ckv_status ckv_try_status_ = (expression);                                                                     \
        if (ckv_try_status_ != CKV_OK)                                                                                 \
            return ckv_try_status_;                                                                                    \
    } while (0)

/* Needs a local `ckv_status status`. */
#define CKV_TRY_GOTO(expression, label)                                                                                \
    do {                                                                                                               \
        status = (expression);                                                                                         \
        if (status != CKV_OK)                                                                                          \
            goto label;                                                                                                \
    } while (0)

#endif
