/* SPDX-License-Identifier: Apache-2.0 */
/* Apart from case.c, so that only suites that communicate pull in the communicators. */
#include "tests/support/case.h"
#include "tests/support/record.h"

void ckv_test_set_comm(const ckv_comm *comm)
{
    record_set_operation_source(ckv_comm_last_operation, comm);
}
