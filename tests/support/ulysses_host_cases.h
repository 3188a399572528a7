/* SPDX-License-Identifier: Apache-2.0 */
/* More of ulysses_cases.h, for host memory only: these tamper with the table of the device. */
#ifndef CKV_TESTS_SUPPORT_ULYSSES_HOST_CASES_H
#define CKV_TESTS_SUPPORT_ULYSSES_HOST_CASES_H

#include "tests/support/ranks.h"

#define ULYSSES_HOST_CASES(X)                                                                                          \
    /* tampered tables */                                                                                              \
    X(failure_after_the_exchange_is_agreed)

#define ULYSSES_DECLARE(name) void ulysses_##name(ckv_comm *comm, rank_report *report);
ULYSSES_HOST_CASES(ULYSSES_DECLARE)
#undef ULYSSES_DECLARE

#endif
