/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/causal_layout/causal_layout_parts.h"
#include "kernels/copy_kv_slots/copy_kv_slots.h"
#include "lib/support/error.h"

#include <inttypes.h>

enum { PIECE = 64 }; /* copies handed on together */

/* The copies of a commit on their way to copy_kv_slots. */
typedef struct copier {
    ckv_copy_kv_slots_params kv;
    int64_t source[PIECE], destination[PIECE];
} copier;

static ckv_status flush(copier *c)
{
    ckv_status status = ckv_copy_kv_slots_host(&c->kv, NULL);
    c->kv.entries = 0;
    return status;
}

static ckv_status check_copies(const ckv_causal_layout_params *params, const ckv_layout_step *step)
{
    int64_t num_slots = params->pool.total_pages * params->tokens_per_page, entry = 0;
    for (int64_t n = 0; n < ckv_layout_num_runs(params); n++) {
        ckv_layout_run run = ckv_layout_run_make(params, step, n);
        for (int64_t i = 0; i < run.count; i++, entry++) {
            ckv_layout_copy copy = ckv_layout_copy_make(params, step, &run, i);
            if (copy.source < 0 || copy.source >= num_slots || copy.destination < 0 || copy.destination >= num_slots)
                return ckv_fail(CKV_ERROR_INVALID,
                                "causal_layout: entry %" PRId64 " copies slot %" PRId64 " to %" PRId64
                                "; the pool has %" PRId64 " slots",
                                entry, copy.source, copy.destination, num_slots);
        }
    }
    return CKV_OK;
}

static ckv_status copy_all(const ckv_causal_layout_params *params, const ckv_layout_step *step)
{
    copier c;
    c.kv = (ckv_copy_kv_slots_params){.pool = params->pool,
                                      .tokens_per_page = params->tokens_per_page,
                                      .layers = params->layers,
                                      .kv_heads = params->kv_heads,
                                      .row_bytes = params->row_bytes,
                                      .source = c.source,
                                      .destination = c.destination,
                                      .check = params->check};
    for (int64_t n = 0; n < ckv_layout_num_runs(params); n++) {
        ckv_layout_run run = ckv_layout_run_make(params, step, n);
        for (int64_t i = 0; i < run.count; i++) {
            ckv_layout_copy copy = ckv_layout_copy_make(params, step, &run, i);
            c.source[c.kv.entries] = copy.source;
            c.destination[c.kv.entries++] = copy.destination;
            if (c.kv.entries == PIECE)
                CKV_TRY(flush(&c));
        }
    }
    return flush(&c);
}

/* A grid of one block. */
ckv_status ckv_causal_layout_host(const ckv_causal_layout_params *params, ckv_stream stream)
{
    (void)stream;
    ckv_layout_step step = ckv_layout_step_make(params, params->state, ckv_layout_current(params->state));
    CKV_TRY(check_copies(params, &step));
    CKV_TRY(copy_all(params, &step));
    for (int part = 0; part < CKV_LAYOUT_PARTS; part++) {
        ckv_layout_write_shared(params, &step, part, 0, 1);
        for (int32_t s = 0; s < params->num_sizes; s++)
            for (int64_t block = 0; block < params->sizes[s].num_blocks; block++)
                ckv_layout_write_block(params, &step, &params->sizes[s], block, part, 0, 1);
    }
    params->state->blocks = 1;
    params->state->arrivals = 1 - params->state->arrivals;
    return CKV_OK;
}
