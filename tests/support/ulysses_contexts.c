/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts. Each case says which mistakes it is there to catch. */
#include "tests/support/ulysses_cases.h"

#include "tests/support/ulysses_usual.h"

#include <string.h>

/* Two models with different heads, interleaved; one is destroyed while the other goes on. Catches: state of one used
 * for the other. */
void ulysses_two_contexts_live_side_by_side(ckv_comm *comm, rank_report *report)
{
    party narrow, wide;
    party_shape shape = small_shape(ckv_comm_size(comm));
    RANK_STEP(report, party_open(&narrow, report, comm, &shape));
    shape.kv_heads *= 3;
    shape.q_heads = shape.kv_heads;
    shape.head_dim = 16;
    shape.dtype = CKV_BF16;
    RANK_STEP(report, party_open(&wide, report, comm, &shape));
    for (int chunk = 0; chunk < 3; chunk++) {
        RANK_STEP(report, still_works(&narrow, report));
        RANK_STEP(report, still_works(&wide, report));
    }
    party_close(&wide);
    RANK_STEP(report, still_works(&narrow, report));
    party_close(&narrow);
}
