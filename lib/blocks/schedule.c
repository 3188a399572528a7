/* SPDX-License-Identifier: Apache-2.0 */
/* What a scheduler asks: blocks a request needs, what it can reuse, and what releasing others would free. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>

/* Reusable whole blocks of one window, and how many of them somebody holds. */
typedef struct reusable {
    int64_t all, allocated;
} reusable;

static reusable count_reusable(const ckv_blocks *m, const window_state *w, const prefix_match *found)
{
    reusable count = {0, 0};
    for (int64_t k = 0; k < found->full; k++) {
        int32_t id = ckv_match_block(m, w, found, k);
        count.all += id != NONE;
        count.allocated += id != NONE && is_held(&w->blocks[id]);
    }
    return count;
}

/* What admission of a request would surely reuse; nothing for one that is live or whose context comes from elsewhere.
 */
static ckv_status estimate(const ckv_blocks *m, const window_state *w, const live_request *r, reusable *reusable_out)
{
    *reusable_out = (reusable){0, 0};
    if (!m->config.reuse || r->live_at != NONE || r->gen_init || m->config.geometry.cache == CKV_BLOCKS_CROSS)
        return CKV_OK;
    prefix_match found;
    match_options options = {.limit = r->prompt - 1, .full_only = true, .window = NONE};
    CKV_TRY(ckv_blocks_match(m, r, options, &found));
    *reusable_out = count_reusable(m, w, &found);
    free(found.nodes);
    return CKV_OK;
}

static int64_t state_blocks(const ckv_blocks *m, const live_request *r)
{
    int64_t blocks = 0, shared = ckv_request_shared(m, r);
    for (int64_t k = 0; k * m->tokens_per_block < r->prompt; k++)
        if (ckv_state_is_real(m, r, k))
            blocks += k < shared ? 1 : r->beam;
    return blocks;
}

static int64_t new_tokens_left(const live_request *r)
{
    return ckv_max_i64(r->max_new - (r->num_tokens - r->prompt), 0);
}

/* Blocks that `add` more tokens take. */
static int64_t growth(const ckv_blocks *m, const window_state *w, const live_request *r, int64_t add)
{
    int64_t next = r->num_tokens + add, step = m->tokens_per_block;
    if (next > m->max_seq_len)
        return 0;
    int64_t boundaries = ckv_ceil_div_i64(next, step) - ckv_ceil_div_i64(r->num_tokens, step);
    if (w->info.recurrent)
        return boundaries > 0 ? ckv_state_split(m, r) : 0;
    return boundaries * r->beam;
}

static ckv_status needed_context(const ckv_blocks *m, const window_state *w, const live_request *r,
                                 ckv_blocks_demand *demand_out)
{
    int64_t step = m->tokens_per_block, span = w->info.window + m->config.chunk_size;
    int64_t length = ckv_min_i64(r->prompt + ckv_min_i64(r->draft, r->max_new), span);
    reusable found;
    if (w->info.recurrent) {
        *demand_out = (ckv_blocks_demand){state_blocks(m, r), 0};
        return CKV_OK;
    }
    if (m->config.geometry.cache == CKV_BLOCKS_CROSS) {
        *demand_out = (ckv_blocks_demand){ckv_ceil_div_i64(length, step), 0};
        return CKV_OK;
    }
    CKV_TRY(estimate(m, w, r, &found));
    int64_t most = ckv_min_i64(length / step, (ckv_min_i64(r->prompt, span) - 1) / step);
    demand_out->blocks = length / step + (length % step != 0 ? r->beam : 0) - ckv_min_i64(found.allocated, most);
    demand_out->estimated_reusable_tokens = ckv_min_i64(found.all, most) * step;
    return CKV_OK;
}

static ckv_status needed(const ckv_blocks *m, const window_state *w, const live_request *r, bool two_steps,
                         ckv_blocks_demand *demand_out)
{
    *demand_out = (ckv_blocks_demand){0, 0};
    if (r->live_at == NONE)
        return needed_context(m, w, r, demand_out);
    if (r->kv < r->prompt || m->config.geometry.cache == CKV_BLOCKS_CROSS)
        return CKV_OK;
    int64_t add = ckv_min_i64((two_steps ? 2 : 1) * (r->draft + 1), new_tokens_left(r));
    demand_out->blocks = growth(m, w, r, add);
    return CKV_OK;
}

static ckv_status remaining_attention(const ckv_blocks *m, const window_state *w, const live_request *r,
                                      ckv_blocks_demand *demand_out)
{
    int64_t step = m->tokens_per_block, span = w->info.window + m->config.chunk_size, end = r->prompt + r->max_new;
    int64_t context = ckv_min_i64(r->prompt, span) / step, total = ckv_ceil_div_i64(ckv_min_i64(end, span), step);
    int64_t have = r->tables[w->index].positions - r->tables[w->index].removed;
    reusable found;
    CKV_TRY(estimate(m, w, r, &found));
    int64_t most = ckv_min_i64(context, (r->prompt - 1) / step), credit = ckv_min_i64(found.allocated, most);
    int64_t blocks_at_end = ckv_ceil_div_i64(end, step);
    bool slides =
        end > w->info.window && blocks_at_end > ckv_ceil_div_i64(r->num_tokens, step) && blocks_at_end > total;
    if (have < context - credit)
        demand_out->blocks = context - credit - have + (total - context + slides) * r->beam;
    else
        demand_out->blocks = (total - credit - have + slides) * r->beam;
    demand_out->estimated_reusable_tokens = ckv_min_i64(found.all, most) * step;
    return CKV_OK;
}

static ckv_status remaining(const ckv_blocks *m, const window_state *w, const live_request *r,
                            ckv_blocks_demand *demand_out)
{
    *demand_out = (ckv_blocks_demand){0, 0};
    bool live = r->live_at != NONE;
    if (m->config.geometry.cache == CKV_BLOCKS_CROSS)
        demand_out->blocks = live ? 0 : ckv_ceil_div_i64(r->prompt, m->tokens_per_block);
    else if (w->info.recurrent && !live)
        demand_out->blocks = state_blocks(m, r);
    else if (w->info.recurrent)
        demand_out->blocks = r->kv < r->prompt ? 0 : growth(m, w, r, new_tokens_left(r));
    else
        return remaining_attention(m, w, r, demand_out);
    return CKV_OK;
}

ckv_status ckv_blocks_needed(ckv_blocks *blocks, int64_t wanted, int64_t id, const ckv_blocks_request *request,
                             int two_steps, ckv_blocks_demand *demand_out)
{
    if (demand_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "needed: demand_out is NULL");
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "needed", wanted, &w));
    live_request *r;
    bool temporary;
    ckv_blocks_demand demand;
    ckv_status status = ckv_request_borrow(blocks, id, request, &r, &temporary);
    if (status != CKV_OK)
        return ckv_blocks_leave(blocks, status);
    status = needed(blocks, w, r, two_steps != 0, &demand);
    if (status == CKV_OK)
        *demand_out = demand;
    if (temporary)
        ckv_request_destroy(blocks, r);
    return ckv_blocks_leave(blocks, status);
}

ckv_status ckv_blocks_remaining(ckv_blocks *blocks, int64_t wanted, int64_t id, const ckv_blocks_request *request,
                                ckv_blocks_demand *demand_out)
{
    if (demand_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "remaining: demand_out is NULL");
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "remaining", wanted, &w));
    live_request *r;
    bool temporary;
    ckv_blocks_demand demand;
    ckv_status status = ckv_request_borrow(blocks, id, request, &r, &temporary);
    if (status != CKV_OK)
        return ckv_blocks_leave(blocks, status);
    status = remaining(blocks, w, r, &demand);
    if (status == CKV_OK)
        *demand_out = demand;
    if (temporary)
        ckv_request_destroy(blocks, r);
    return ckv_blocks_leave(blocks, status);
}

static ckv_status analyze(const ckv_blocks *m, const live_request *r, ckv_blocks_analysis *analysis_out)
{
    prefix_match found;
    match_options options = {.limit = r->num_tokens, .full_only = true, .window = NONE};
    CKV_TRY(ckv_blocks_match(m, r, options, &found));
    *analysis_out = (ckv_blocks_analysis){.tokens = found.length, .first_new_block = NONE};
    for (int32_t i = 0; i < m->num_windows; i++) {
        reusable count = count_reusable(m, &m->windows[i], &found);
        analysis_out->reusable_all[i] = count.all;
        analysis_out->reusable_allocated[i] = count.allocated;
    }
    if (found.full < r->num_tokens / m->tokens_per_block)
        analysis_out->first_new_block = found.full;
    free(found.nodes);
    return CKV_OK;
}

ckv_status ckv_blocks_analyze(ckv_blocks *blocks, int64_t id, const ckv_blocks_request *request,
                              ckv_blocks_analysis *analysis_out)
{
    if (analysis_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "analyze: analysis_out is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "analyze"));
    live_request *r;
    bool temporary;
    ckv_status status = ckv_request_borrow(blocks, id, request, &r, &temporary);
    if (status != CKV_OK)
        return ckv_blocks_leave(blocks, status);
    status = analyze(blocks, r, analysis_out);
    if (temporary)
        ckv_request_destroy(blocks, r);
    return ckv_blocks_leave(blocks, status);
}

/* ---- Dry run. Counts are copied when they first change, so that starting a round costs nothing per block. ---- */

void ckv_schedule_touch(const ckv_blocks *m, block_state *b)
{
    if (b->round == m->round)
        return;
    b->round = m->round;
    b->scheduled = b->refs + b->pins;
}

static void copy_free(const ckv_blocks *m, int64_t *free_out)
{
    for (int32_t i = 0; free_out != NULL && i < m->num_windows; i++)
        free_out[i] = m->windows[i].schedule_free;
}

ckv_status ckv_blocks_schedule_start(ckv_blocks *blocks, int64_t *free_out)
{
    CKV_TRY(ckv_blocks_enter(blocks, "schedule_start"));
    blocks->round++;
    for (int32_t i = 0; i < blocks->num_windows; i++)
        blocks->windows[i].schedule_free = free_count(&blocks->windows[i], CKV_BLOCKS_PRIMARY);
    copy_free(blocks, free_out);
    return ckv_blocks_leave(blocks, CKV_OK);
}

static ckv_status check_round(const ckv_blocks *m, const char *call)
{
    return m->round > 0 ? CKV_OK : ckv_fail(CKV_ERROR_STATE, "%s: schedule_start comes first", call);
}

static ckv_status dry_release(ckv_blocks *m, int64_t id)
{
    live_request *r;
    CKV_TRY(ckv_request_find(m, id, &r));
    CKV_TRY(check_round(m, "schedule_release"));
    if (r->released_round == m->round)
        return ckv_fail(CKV_ERROR_STATE, "schedule_release: request %" PRId64 " was released in this round", id);
    r->released_round = m->round;
    for (int32_t i = 0; r->added_round != m->round && i < m->num_windows; i++) {
        window_state *w = &m->windows[i];
        for (int64_t n = 0; n < r->tables[i].positions * r->beam; n++) {
            int32_t at = r->tables[i].ids[n];
            if (at == NONE)
                continue;
            block_state *b = &w->blocks[at];
            ckv_schedule_touch(m, b);
            if (b->scheduled > 0 && --b->scheduled == 0)
                w->schedule_free += b->tier == CKV_BLOCKS_PRIMARY;
        }
    }
    return CKV_OK;
}

ckv_status ckv_blocks_schedule_release(ckv_blocks *blocks, int64_t id, int64_t *free_out)
{
    CKV_TRY(ckv_blocks_enter(blocks, "schedule_release"));
    ckv_status status = dry_release(blocks, id);
    if (status == CKV_OK)
        copy_free(blocks, free_out);
    return ckv_blocks_leave(blocks, status);
}

ckv_status ckv_blocks_schedule_fits(ckv_blocks *blocks, int64_t wanted, int64_t needed_blocks, int *fits_out)
{
    if (fits_out == NULL || needed_blocks < 0)
        return ckv_fail(CKV_ERROR_INVALID, "schedule_fits: %" PRId64 " blocks, or fits_out is NULL", needed_blocks);
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "schedule_fits", wanted, &w));
    ckv_status status = check_round(blocks, "schedule_fits");
    if (status == CKV_OK)
        *fits_out = needed_blocks <= w->schedule_free;
    return ckv_blocks_leave(blocks, status);
}

ckv_status ckv_blocks_max_batch(ckv_blocks *blocks, int64_t input, int64_t output, int64_t *batch_out,
                                int64_t *per_window_out)
{
    if (batch_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "max_batch: batch_out is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "max_batch"));
    int64_t batch = INT64_MAX;
    ckv_status status = CKV_OK;
    for (int32_t i = 0; status == CKV_OK && i < blocks->num_windows; i++) {
        const window_state *w = &blocks->windows[i];
        int64_t sink = w->info.sliding ? blocks->config.geometry.sink_tokens : 0, each = 1;
        live_request shape = {.prompt = input, .beam = 1};
        if (!w->info.recurrent)
            status = ckv_blocks_requirements(input, output, w->info.window, blocks->tokens_per_block, sink, 1, &each);
        else if (input > 0)
            each = state_blocks(blocks, &shape);
        if (status != CKV_OK)
            break;
        int64_t fits = w->info.blocks[CKV_BLOCKS_PRIMARY] / ckv_max_i64(each, 1);
        if (per_window_out != NULL)
            per_window_out[i] = fits;
        batch = ckv_min_i64(batch, fits);
    }
    if (status == CKV_OK)
        *batch_out = batch;
    return ckv_blocks_leave(blocks, status);
}
