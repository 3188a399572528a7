/* SPDX-License-Identifier: Apache-2.0 */
/* What a commit does to the resident tokens: pure integers, shared by the host's mirror and the device. */
#ifndef CKV_LAYOUT_COMMIT_PLAN_H
#define CKV_LAYOUT_COMMIT_PLAN_H

#include "lib/layout/pages.h"
#include "lib/support/mutant.h"

/* Where a rollout stands. */
typedef struct ckv_progress {
    int64_t fixed_tokens;
    int64_t history_tokens;
    int64_t committed_tokens;
} ckv_progress;

typedef struct ckv_commit_plan {
    ckv_progress after;
    int64_t first_rotated_page; /* table entries [first, resident) rotate left by dropped_pages */
    int64_t dropped_pages;
    int64_t
        refill_tokens; /* fixed tokens to copy from the page that was at first_rotated_page to the one that is now */
} ckv_commit_plan;

/* `tokens` is what ckv_commit_plan_make accepts, or 0: nothing is committed or dropped. */
static inline CKV_HOST_DEVICE ckv_commit_plan ckv_commit_plan_apply(int64_t tokens_per_page, int64_t window_tokens,
                                                                    int64_t pin_tokens, ckv_progress before,
                                                                    int64_t tokens)
{
    int64_t to_pin = pin_tokens - before.fixed_tokens;
    int64_t pinned = tokens < to_pin ? tokens : to_pin;
    ckv_commit_plan plan = {
        {before.fixed_tokens + pinned, before.history_tokens + tokens - pinned, before.committed_tokens + tokens},
        0,
        0,
        0};
    if (CKV_MUTANT(window_shifted_by_padding) && before.committed_tokens == 0)
        plan.after.history_tokens += tokens & 1;
    plan.first_rotated_page =
        CKV_MUTATE(pinned_tokens_evicted, 0, ckv_page_of(plan.after.fixed_tokens, tokens_per_page));
    int64_t stale = plan.after.history_tokens - window_tokens + CKV_MUTANT(evicted_one_token_early);
    if (stale >= tokens_per_page) {
        plan.dropped_pages = ckv_page_of(stale, tokens_per_page);
        plan.after.history_tokens -= plan.dropped_pages * tokens_per_page;
        plan.refill_tokens =
            CKV_MUTATE(pinned_tail_left_behind, 0, ckv_in_page(plan.after.fixed_tokens, tokens_per_page));
    }
    return plan;
}

#endif
