/* SPDX-License-Identifier: Apache-2.0 */
/* The integers of causal_layout, for one worker of many: it writes elements worker, worker + workers, ... of a part.
 * The host twin is the only worker, a kernel's threads are many. */
#ifndef CKV_KERNELS_CAUSAL_LAYOUT_PARTS_H
#define CKV_KERNELS_CAUSAL_LAYOUT_PARTS_H

#include "kernels/causal_layout/causal_layout.h"
#include "lib/layout/row_plan.h"

/* One launch: what it commits, and the table it reads, which is not rotated yet. */
typedef struct ckv_layout_step {
    ckv_commit_plan plan;
    int64_t staging_offset; /* after the commit */
    int64_t resident_pages;
    const int32_t *table;
    int32_t *next_table;
    ckv_progress *next_progress;
} ckv_layout_step;

static inline CKV_HOST_DEVICE ckv_layout_step ckv_layout_step_make(const ckv_causal_layout_params *params,
                                                                   int32_t current)
{
    ckv_layout_state *state = params->state;
    ckv_layout_step step;
    step.plan = ckv_commit_plan_apply(params->tokens_per_page, params->window_tokens, state->pin_tokens,
                                      state->progress[current], params->commit_tokens);
    step.staging_offset = step.plan.after.fixed_tokens + step.plan.after.history_tokens;
    step.resident_pages = state->resident_pages;
    step.table = params->tables + current * params->table_pages;
    step.next_table = params->tables + (1 - current) * params->table_pages;
    step.next_progress = &state->progress[1 - current];
    return step;
}

/* Entry of the rotated table. */
static inline CKV_HOST_DEVICE int32_t ckv_layout_page(const ckv_layout_step *step, int64_t index)
{
    int64_t first = step->plan.first_rotated_page;
    if (index < first)
        return step->table[index];
    int64_t moved = index + step->plan.dropped_pages;
    return step->table[moved < step->resident_pages ? moved : moved - (step->resident_pages - first)];
}

static inline CKV_HOST_DEVICE int64_t ckv_layout_slot(const ckv_causal_layout_params *params,
                                                      const ckv_layout_step *step, int64_t position)
{
    int64_t page = ckv_layout_page(step, ckv_page_of(position, params->tokens_per_page));
    return page * params->tokens_per_page + ckv_in_page(position, params->tokens_per_page);
}

/* Where a committed token lies while the refill has not run: the fixed tail is still in the page that rotates away. */
static inline CKV_HOST_DEVICE int64_t ckv_layout_committed_slot(const ckv_causal_layout_params *params,
                                                                const ckv_layout_step *step, int64_t position)
{
    int64_t fixed = step->plan.after.fixed_tokens;
    if (position >= fixed - step->plan.refill_tokens && position < fixed)
        return step->table[step->plan.first_rotated_page] * params->tokens_per_page +
               ckv_in_page(position, params->tokens_per_page);
    return ckv_layout_slot(params, step, position);
}

static inline CKV_HOST_DEVICE int64_t ckv_layout_private_slot(const ckv_causal_layout_params *params,
                                                              const ckv_causal_layout_size *size, int64_t block,
                                                              int64_t index)
{
    int64_t page = size->private_page_ids[block * size->private_pages + ckv_page_of(index, params->tokens_per_page)];
    return page * params->tokens_per_page + ckv_in_page(index, params->tokens_per_page);
}

static inline CKV_HOST_DEVICE void ckv_layout_write_row(const ckv_causal_layout_params *params,
                                                        const ckv_layout_step *step, const ckv_causal_layout_size *size,
                                                        int64_t block, const ckv_row_plan *plan, int64_t worker,
                                                        int64_t workers)
{
    int32_t *row = size->rows + block * size->row_pages;
    int32_t *k_offsets = size->kv_block_offsets + block * 2 * size->row_pages;
    int32_t *v_offsets = k_offsets + size->row_pages;
    for (int64_t i = worker; i < size->row_pages; i += workers) {
        int64_t private_index = i - plan->whole_pages;
        int32_t page = params->guard_page;
        if (private_index < 0)
            page = ckv_layout_page(step, ckv_row_plan_page(plan, i));
        else if (private_index * params->tokens_per_page < plan->partial_tokens + size->block_size)
            page = size->private_page_ids[block * size->private_pages + private_index];
        row[i] = page;
        k_offsets[i] = 2 * page;
        v_offsets[i] = 2 * page + 1;
    }
}

/* Partial positions before the staging offset: they come first, because positions ascend. */
static inline CKV_HOST_DEVICE int64_t ckv_layout_committed_copies(const ckv_row_plan *plan, int64_t staging_offset)
{
    int64_t copies = 0;
    for (int i = 0; i < CKV_ROW_MAX_PIECES; i++) {
        int64_t below = staging_offset - plan->pieces[i].first;
        if (below > 0)
            copies += below < plan->pieces[i].count ? below : plan->pieces[i].count;
    }
    return copies;
}

/* The copies in front of the own tokens: made at commit for committed tokens, by every forward for earlier blocks'. */
static inline CKV_HOST_DEVICE void ckv_layout_write_copies(const ckv_causal_layout_params *params,
                                                           const ckv_layout_step *step,
                                                           const ckv_causal_layout_size *size, int64_t block,
                                                           const ckv_row_plan *plan, int64_t worker, int64_t workers)
{
    int64_t committed = ckv_layout_committed_copies(plan, step->staging_offset);
    int64_t committed_capacity = 3 * (params->tokens_per_page - 1);
    int64_t *source = size->committed_private_source + block * committed_capacity;
    int64_t *destination = size->committed_private_destination + block * committed_capacity;
    for (int64_t i = worker; i < committed_capacity; i += workers) {
        source[i] = i < committed ? ckv_layout_committed_slot(params, step, ckv_row_plan_partial(plan, i)) : -1;
        destination[i] = i < committed ? ckv_layout_private_slot(params, size, block, i) : -1;
    }
    int64_t current = plan->partial_tokens - committed;
    int64_t current_capacity = 2 * (params->tokens_per_page - 1);
    int64_t first_token = block * size->block_size;
    source = size->current_private_source + block * current_capacity;
    destination = size->current_private_destination + block * current_capacity;
    for (int64_t i = worker; i < current_capacity; i += workers) {
        int used = i < current;
        source[i] = used ? ckv_row_plan_partial(plan, committed + i) - step->staging_offset : first_token;
        destination[i] = used ? ckv_layout_private_slot(params, size, block, committed + i)
                              : ckv_layout_slot(params, step, step->staging_offset + first_token);
    }
}

enum { CKV_LAYOUT_PARTS = 3 }; /* of a causal block, and of what belongs to none */

/* Tensors of one causal block: its row, its own slots, or its copies. */
static inline CKV_HOST_DEVICE void ckv_layout_write_block(const ckv_causal_layout_params *params,
                                                          const ckv_layout_step *step,
                                                          const ckv_causal_layout_size *size, int64_t block, int part,
                                                          int64_t worker, int64_t workers)
{
    ckv_row_plan plan = ckv_row_plan_make(params->tokens_per_page, step->plan.after.fixed_tokens, params->window_tokens,
                                          step->staging_offset + block * size->block_size, size->block_size);
    switch (part) {
    case 0:
        if (worker == 0)
            size->seq_len_kv[block] = (int32_t)plan.seq_len_kv;
        ckv_layout_write_row(params, step, size, block, &plan, worker, workers);
        break;
    case 1:
        for (int64_t i = worker; i < size->block_size; i += workers)
            size->own_slots[block * size->block_size + i] =
                ckv_layout_private_slot(params, size, block, plan.partial_tokens + i);
        break;
    default:
        ckv_layout_write_copies(params, step, size, block, &plan, worker, workers);
    }
}

/* What belongs to no block: the rotated table and the advanced progress, the staged slots, or the refill's copies. */
static inline CKV_HOST_DEVICE void ckv_layout_write_shared(const ckv_causal_layout_params *params,
                                                           const ckv_layout_step *step, int part, int64_t worker,
                                                           int64_t workers)
{
    switch (part) {
    case 0:
        if (worker == 0)
            *step->next_progress = step->plan.after;
        for (int64_t i = worker; i < step->resident_pages; i += workers)
            step->next_table[i] = ckv_layout_page(step, i);
        break;
    case 1:
        for (int64_t i = worker; i < params->max_staged_tokens; i += workers)
            params->staged_slots[i] = ckv_layout_slot(params, step, step->staging_offset + i);
        break;
    default:
        for (int64_t i = worker; i < params->tokens_per_page - 1; i += workers) {
            int used = i < step->plan.refill_tokens;
            int64_t position = step->plan.after.fixed_tokens - step->plan.refill_tokens + i;
            params->refill_source[i] = used ? ckv_layout_committed_slot(params, step, position) : -1;
            params->refill_destination[i] = used ? ckv_layout_slot(params, step, position) : -1;
        }
    }
}

#endif
