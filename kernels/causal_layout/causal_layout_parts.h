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

/* `state` is what params->state points to, or a copy of it. */
static inline CKV_HOST_DEVICE ckv_layout_step ckv_layout_step_make(const ckv_causal_layout_params *params,
                                                                   const ckv_layout_state *state, int32_t current)
{
    ckv_layout_step step;
    step.plan = ckv_commit_plan_apply(params->tokens_per_page, params->window_tokens, state->pin_tokens,
                                      state->progress[current], params->commit_tokens);
    step.staging_offset = step.plan.after.fixed_tokens + step.plan.after.history_tokens;
    step.resident_pages = state->resident_pages;
    step.table = params->tables + current * params->table_pages;
    step.next_table = params->tables + (1 - current) * params->table_pages;
    step.next_progress = &params->state->progress[1 - current];
    return step;
}

/* Entry of the rotated table. */
static inline CKV_HOST_DEVICE int32_t ckv_layout_page(const ckv_layout_step *step, int64_t index)
{
    int64_t first = step->plan.first_rotated_page;
    if (index < first)
        return step->table[index];
    int64_t moved = index + CKV_MUTATE(rotation_by_one_page, step->plan.dropped_pages > 0, step->plan.dropped_pages);
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
        int32_t page = CKV_MUTATE(unused_entries_name_page_0, 0, params->guard_page);
        if (private_index < 0)
            page = ckv_layout_page(step, ckv_row_plan_page(plan, i));
        else if (private_index * params->tokens_per_page < plan->partial_tokens + size->block_size)
            page = size->private_page_ids[block * size->private_pages + private_index];
        row[i] = page;
        k_offsets[i] = 2 * page;
        v_offsets[i] = 2 * page + 1;
    }
}

/* Partly visible positions of piece i that the commit copies; the others are of earlier blocks of the next forward. */
static inline CKV_HOST_DEVICE int64_t ckv_layout_committed(const ckv_row_plan *plan, int i, int64_t staging_offset)
{
    int64_t below = staging_offset - plan->pieces[i].first;
    if (below <= 0)
        return 0;
    return below < plan->pieces[i].count ? below : plan->pieces[i].count;
}

/* The copies in front of the own tokens that every forward makes, of earlier blocks' tokens; those of committed tokens
 * come before them, because positions ascend. */
static inline CKV_HOST_DEVICE void ckv_layout_write_current(const ckv_causal_layout_params *params,
                                                            const ckv_layout_step *step,
                                                            const ckv_causal_layout_size *size, int64_t block,
                                                            const ckv_row_plan *plan, int64_t worker, int64_t workers)
{
    int64_t committed = 0;
    for (int i = 0; i < CKV_ROW_MAX_PIECES; i++)
        committed += ckv_layout_committed(plan, i, step->staging_offset);
    int64_t used = plan->partial_tokens - committed;
    int64_t capacity = 2 * (params->tokens_per_page - 1);
    int64_t first_token = block * size->block_size;
    int64_t *source = size->current_private_source + block * capacity;
    int64_t *destination = size->current_private_destination + block * capacity;
    for (int64_t i = worker; i < capacity; i += workers) {
        source[i] = i < used ? ckv_row_plan_partial(plan, committed + i) - step->staging_offset : first_token;
        destination[i] = i < used ? ckv_layout_private_slot(params, size, block, committed + i)
                                  : ckv_layout_slot(params, step, step->staging_offset + first_token);
    }
}

static inline CKV_HOST_DEVICE ckv_row_plan ckv_layout_row_plan(const ckv_causal_layout_params *params,
                                                               const ckv_layout_step *step,
                                                               const ckv_causal_layout_size *size, int64_t block)
{
    return ckv_row_plan_make(params->tokens_per_page, step->plan.after.fixed_tokens, params->window_tokens,
                             step->staging_offset + block * size->block_size, size->block_size);
}

enum { CKV_LAYOUT_PARTS = 2 }; /* of a causal block, and of what belongs to none */

/* Tensors of one causal block: its row, or what forwards write to its private pages. */
static inline CKV_HOST_DEVICE void ckv_layout_write_block(const ckv_causal_layout_params *params,
                                                          const ckv_layout_step *step,
                                                          const ckv_causal_layout_size *size, int64_t block, int part,
                                                          int64_t worker, int64_t workers)
{
    ckv_row_plan plan = ckv_layout_row_plan(params, step, size, block);
    if (part == 0) {
        if (worker == 0)
            size->seq_len_kv[block] = (int32_t)plan.seq_len_kv;
        ckv_layout_write_row(params, step, size, block, &plan, worker, workers);
        return;
    }
    for (int64_t i = worker; i < size->block_size; i += workers)
        size->own_slots[block * size->block_size + i] =
            ckv_layout_private_slot(params, size, block, plan.partial_tokens + i);
    ckv_layout_write_current(params, step, size, block, &plan, worker, workers);
}

/* What belongs to no block: the rotated table and the advanced progress, or the staged slots. */
static inline CKV_HOST_DEVICE void ckv_layout_write_shared(const ckv_causal_layout_params *params,
                                                           const ckv_layout_step *step, int part, int64_t worker,
                                                           int64_t workers)
{
    if (part == 0) {
        if (worker == 0)
            *step->next_progress = step->plan.after;
        for (int64_t i = worker; i < step->resident_pages; i += workers)
            step->next_table[i] = ckv_layout_page(step, i);
        return;
    }
    for (int64_t i = worker; i < params->max_staged_tokens; i += workers)
        params->staged_slots[i] = ckv_layout_slot(params, step, step->staging_offset + i);
}

/* What a commit copies, in runs of consecutive positions: run 0 is the refill, then CKV_ROW_MAX_PIECES of every causal
 * block of every size. */
typedef struct ckv_layout_run {
    int64_t first; /* position */
    int64_t count;
    int64_t private_index; /* of `first` in the private pages of the block */
    int64_t block;
    int32_t size; /* index; -1: the refill, which goes home */
} ckv_layout_run;

typedef struct ckv_layout_copy {
    int64_t source, destination; /* slots */
} ckv_layout_copy;

static inline CKV_HOST_DEVICE int64_t ckv_layout_num_blocks(const ckv_causal_layout_params *params)
{
    int64_t blocks = 0;
    for (int32_t s = 0; s < params->num_sizes; s++)
        blocks += params->sizes[s].num_blocks;
    return blocks;
}

static inline CKV_HOST_DEVICE int64_t ckv_layout_num_runs(const ckv_causal_layout_params *params)
{
    return 1 + CKV_ROW_MAX_PIECES * ckv_layout_num_blocks(params);
}

static inline CKV_HOST_DEVICE ckv_layout_run ckv_layout_run_make(const ckv_causal_layout_params *params,
                                                                 const ckv_layout_step *step, int64_t number)
{
    int64_t refill = step->plan.refill_tokens;
    ckv_layout_run run = {step->plan.after.fixed_tokens - refill, refill, 0, 0, -1};
    if (number == 0)
        return run;
    int64_t block = (number - 1) / CKV_ROW_MAX_PIECES;
    int piece = (int)(number - 1 - block * CKV_ROW_MAX_PIECES);
    for (run.size = 0; block >= params->sizes[run.size].num_blocks; run.size++)
        block -= params->sizes[run.size].num_blocks;
    ckv_row_plan plan = ckv_layout_row_plan(params, step, &params->sizes[run.size], block);
    run.block = block;
    for (int i = 0; i < CKV_ROW_MAX_PIECES && i <= piece; i++) {
        if (i > 0)
            run.private_index += run.count;
        run.first = plan.pieces[i].first;
        run.count = ckv_layout_committed(&plan, i, step->staging_offset);
    }
    return run;
}

/* The i-th copy of a run. */
static inline CKV_HOST_DEVICE ckv_layout_copy ckv_layout_copy_make(const ckv_causal_layout_params *params,
                                                                   const ckv_layout_step *step,
                                                                   const ckv_layout_run *run, int64_t i)
{
    ckv_layout_copy copy;
    copy.source = ckv_layout_committed_slot(params, step, run->first + i);
    copy.destination =
        run->size < 0 ? ckv_layout_slot(params, step, run->first + i)
                      : ckv_layout_private_slot(params, &params->sizes[run->size], run->block, run->private_index + i);
    return copy;
}

#endif
