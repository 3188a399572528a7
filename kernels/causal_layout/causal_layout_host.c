/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/causal_layout/causal_layout.h"

#include "lib/layout/row_plan.h"

static int64_t table_slot(const ckv_causal_layout_params *params, int64_t position)
{
    return params->table[position / params->tokens_per_page] * params->tokens_per_page +
           position % params->tokens_per_page;
}

/* Where a committed token lies while the refill has not run: the fixed tail is still in the page that rotated away. */
static int64_t committed_slot(const ckv_causal_layout_params *params, int64_t position)
{
    int64_t tail_begin = params->fixed_tokens - params->refill_tokens;
    if (position >= tail_begin && position < params->fixed_tokens && params->refill_tokens > 0) {
        int64_t moved_page = params->table[params->resident_pages - params->dropped_pages];
        return moved_page * params->tokens_per_page + position % params->tokens_per_page;
    }
    return table_slot(params, position);
}

static int64_t private_slot(const ckv_causal_layout_params *params, const ckv_causal_layout_size *size, int64_t block,
                            int64_t index)
{
    int64_t page = size->private_page_ids[block * size->private_pages + index / params->tokens_per_page];
    return page * params->tokens_per_page + index % params->tokens_per_page;
}

static void write_row(const ckv_causal_layout_params *params, const ckv_causal_layout_size *size, int64_t block,
                      const ckv_row_plan *plan)
{
    int32_t *row = size->rows + block * size->row_pages;
    int32_t *k_offsets = size->kv_block_offsets + block * 2 * size->row_pages;
    int32_t *v_offsets = k_offsets + size->row_pages;
    for (int64_t i = 0; i < size->row_pages; i++) {
        int64_t private_index = i - plan->whole_pages;
        int32_t page = params->guard_page;
        if (private_index < 0)
            page = params->table[ckv_row_plan_page(plan, i)];
        else if (private_index * params->tokens_per_page < plan->partial_tokens + size->block_size)
            page = size->private_page_ids[block * size->private_pages + private_index];
        row[i] = page;
        k_offsets[i] = 2 * page;
        v_offsets[i] = 2 * page + 1;
    }
}

/* The copies in front of the own tokens: made at commit for committed tokens, by every forward for earlier blocks'. */
static void write_private_copies(const ckv_causal_layout_params *params, const ckv_causal_layout_size *size,
                                 int64_t block, const ckv_row_plan *plan)
{
    int64_t current_capacity = 2 * (params->tokens_per_page - 1);
    int64_t committed_capacity = 3 * (params->tokens_per_page - 1);
    int64_t *current_source = size->current_private_source + block * current_capacity;
    int64_t *current_destination = size->current_private_destination + block * current_capacity;
    int64_t *committed_source = size->committed_private_source + block * committed_capacity;
    int64_t *committed_destination = size->committed_private_destination + block * committed_capacity;
    int64_t current = 0, committed = 0;
    for (int64_t i = 0; i < plan->partial_tokens; i++) {
        int64_t position = ckv_row_plan_partial(plan, i);
        int64_t slot = private_slot(params, size, block, i);
        if (position < params->staging_offset) {
            committed_source[committed] = committed_slot(params, position);
            committed_destination[committed++] = slot;
        } else {
            current_source[current] = position - params->staging_offset;
            current_destination[current++] = slot;
        }
    }
    for (; committed < committed_capacity; committed++)
        committed_source[committed] = committed_destination[committed] = -1;
    int64_t first_token = block * size->block_size;
    for (; current < current_capacity; current++) {
        current_source[current] = first_token;
        current_destination[current] = table_slot(params, params->staging_offset + first_token);
    }
}

static void write_block(const ckv_causal_layout_params *params, const ckv_causal_layout_size *size, int64_t block)
{
    ckv_row_plan plan = ckv_row_plan_make(params->tokens_per_page, params->fixed_tokens, params->window_tokens,
                                          params->staging_offset + block * size->block_size, size->block_size);
    size->seq_len_kv[block] = (int32_t)plan.seq_len_kv;
    write_row(params, size, block, &plan);
    for (int64_t i = 0; i < size->block_size; i++)
        size->own_slots[block * size->block_size + i] = private_slot(params, size, block, plan.partial_tokens + i);
    write_private_copies(params, size, block, &plan);
}

ckv_status ckv_causal_layout_host(const ckv_causal_layout_params *params, ckv_stream stream)
{
    (void)stream;
    for (int64_t i = 0; i < params->max_staged_tokens; i++)
        params->staged_slots[i] = table_slot(params, params->staging_offset + i);
    for (int64_t i = 0; i < params->tokens_per_page - 1; i++) {
        int used = i < params->refill_tokens;
        int64_t position = params->fixed_tokens - params->refill_tokens + i;
        params->refill_source[i] = used ? committed_slot(params, position) : -1;
        params->refill_destination[i] = used ? table_slot(params, position) : -1;
    }
    for (int32_t s = 0; s < params->num_sizes; s++)
        for (int64_t block = 0; block < params->sizes[s].num_blocks; block++)
            write_block(params, &params->sizes[s], block);
    return CKV_OK;
}
