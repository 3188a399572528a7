/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ulysses_host_cases.h"

#include "lib/device/device.h"
#include "lib/support/error.h"
#include "tests/support/ulysses_usual.h"

#include <stdio.h>
#include <string.h>

static _Thread_local int device_fails;

static ckv_status fails_on_demand(const struct ckv_scatter_kv_slots_params *params, ckv_stream stream)
{
    if (device_fails)
        return ckv_fail(CKV_ERROR_DEVICE, "staging failed as told");
    return ckv_device_host.scatter_kv_slots(params, stream);
}

static ckv_status fails_to_fill(void *destination, size_t pitch_bytes, int byte, size_t width_bytes, size_t height,
                                ckv_stream stream)
{
    if (device_fails)
        return ckv_fail(CKV_ERROR_DEVICE, "staging failed as told");
    return ckv_device_host.fill_2d(destination, pitch_bytes, byte, width_bytes, height, stream);
}

/* A device that fails in the middle of one rank's attention: when it stages, or, where the exchange has done that, when
 * it blanks the padding. Catches: the others wait for its way back. */
void ulysses_failure_after_the_exchange_is_agreed(ckv_comm *comm, rank_report *report)
{
    party p;
    ckv_device device = ckv_device_host;
    device.scatter_kv_slots = fails_on_demand;
    device.fill_2d = fails_to_fill;
    party_shape shape = small_shape(ckv_comm_size(comm));
    shape.device = &device;
    RANK_STEP(report, party_open(&p, report, comm, &shape));
    RANK_STEP(report, still_works(&p, report));
    for (int odd = 0; odd < p.ranks; odd++) {
        party_tensors t;
        char detail[64];
        RANK_STEP(report, party_make(&p, report, &usual, &t));
        snprintf(detail, sizeof detail, "rank %d: staging failed as told", odd);
        device_fails = p.rank == odd;
        ckv_status status = ckv_ulysses_attention(p.ulysses, &t.args, NULL);
        device_fails = 0;
        RANK_STATUS(report, status, CKV_ERROR_DEVICE);
        RANK_DETAIL(report, detail);
        RANK_STEP(report, party_download(&p, report, &t));
        RANK_CHECK(report, memcmp(t.out, t.out_before, (size_t)t.out_bytes) == 0);
        party_free(&p, &t);
    }
    RANK_STEP(report, still_works(&p, report));
    party_close(&p);
}
