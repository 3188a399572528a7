/* SPDX-License-Identifier: Apache-2.0 */
/* What one causal block's table row reads: pure integers, shared by the host, the kernels and the checks.
 *
 * A block that starts at resident position s sees [0, fixed) and [max(fixed, s - window), s), then its own tokens.
 * Pages it sees in full are read in place; the visible positions of the at most three pages it sees in part (where the
 * fixed region ends, where the window starts, where the block starts) are copied, densely and in order, to the front of
 * its private pages; its own tokens follow them. */
#ifndef CKV_LAYOUT_ROW_PLAN_H
#define CKV_LAYOUT_ROW_PLAN_H

#include "lib/layout/pages.h"
#include "lib/support/mutant.h"

enum { CKV_ROW_MAX_RUNS = 2, CKV_ROW_MAX_PIECES = 3 };

/* A half-open range: of pages, as indices into the table, or of resident positions. */
typedef struct ckv_range {
    int64_t first;
    int64_t count;
} ckv_range;

typedef struct ckv_row_plan {
    ckv_range runs[CKV_ROW_MAX_RUNS]; /* whole pages, in logical order; unused ones have count 0 */
    ckv_range
        pieces[CKV_ROW_MAX_PIECES]; /* partly visible positions, ascending, each inside one page; unused: count 0 */
    int64_t whole_pages;            /* sum over runs */
    int64_t partial_tokens;         /* sum over pieces; also the private index of the first own token */
    int64_t seq_len_kv;
} ckv_row_plan;

/* Split the visible positions [begin, end) into a piece, whole pages and a piece. */
static inline CKV_HOST_DEVICE void ckv_row_plan_split(int64_t begin, int64_t end, int64_t tokens_per_page,
                                                      ckv_range *head, ckv_range *pages, ckv_range *tail)
{
    if (begin >= end)
        return;
    int64_t first_page = ckv_page_of(begin + tokens_per_page - 1, tokens_per_page);
    int64_t end_page = ckv_page_of(end, tokens_per_page);
    int64_t head_end = first_page * tokens_per_page < end ? first_page * tokens_per_page : end;
    int64_t tail_begin = end_page * tokens_per_page;
    if (begin < head_end) {
        head->first = begin;
        head->count = head_end - begin;
    }
    if (first_page < end_page) {
        pages->first = first_page;
        pages->count = end_page - first_page;
    }
    if (tail_begin >= head_end && tail_begin < end) {
        tail->first = tail_begin;
        tail->count = end - tail_begin;
    }
}

/* 0 <= fixed <= block_start; window >= 0; tokens_per_page a power of two; block_size positive. */
static inline CKV_HOST_DEVICE ckv_row_plan ckv_row_plan_make(int64_t tokens_per_page, int64_t fixed, int64_t window,
                                                             int64_t block_start, int64_t block_size)
{
    ckv_row_plan plan = {{{0, 0}, {0, 0}}, {{0, 0}, {0, 0}, {0, 0}}, 0, 0, 0};
    window += CKV_MUTANT(window_one_token_long) - CKV_MUTANT(window_one_token_short);
    int64_t window_start = block_start - window > fixed ? block_start - window : fixed;
    if (CKV_MUTANT(window_starts_on_a_page)) {
        int64_t page_start = window_start - ckv_in_page(window_start, tokens_per_page);
        window_start = page_start > fixed ? page_start : fixed;
    }
    int64_t first_end = window_start == fixed ? block_start : fixed;
    /* The first range starts on a page, so it has no head. Constant indices keep a kernel's plan in registers. */
    ckv_row_plan_split(0, first_end, tokens_per_page, &plan.pieces[0], &plan.runs[0], &plan.pieces[0]);
    if (window_start != fixed)
        ckv_row_plan_split(window_start, block_start, tokens_per_page, &plan.pieces[1], &plan.runs[1], &plan.pieces[2]);
    plan.whole_pages = plan.runs[0].count + plan.runs[1].count;
    plan.partial_tokens = plan.pieces[0].count + plan.pieces[1].count + plan.pieces[2].count;
    plan.seq_len_kv = plan.whole_pages * tokens_per_page + plan.partial_tokens + block_size;
    plan.seq_len_kv -= CKV_MUTANT(last_own_token_unseen);
    return plan;
}

/* Table index of the n-th whole page of the row, 0 <= n < whole_pages. */
static inline CKV_HOST_DEVICE int64_t ckv_row_plan_page(const ckv_row_plan *plan, int64_t n)
{
    return n < plan->runs[0].count ? plan->runs[0].first + n : plan->runs[1].first + n - plan->runs[0].count;
}

/* Resident position of the n-th partly visible token, 0 <= n < partial_tokens. */
static inline CKV_HOST_DEVICE int64_t ckv_row_plan_partial(const ckv_row_plan *plan, int64_t n)
{
    if (n < plan->pieces[0].count)
        return plan->pieces[0].first + n;
    n -= plan->pieces[0].count;
    if (n < plan->pieces[1].count)
        return plan->pieces[1].first + n;
    return plan->pieces[2].first + n - plan->pieces[1].count;
}

#endif
