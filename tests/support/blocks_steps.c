/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of random scripts, each on both managers. */
#include "tests/support/blocks_pair.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int draw(ckv_random *random, int least, int most)
{
    return (int)ckv_random_range(random, least, most);
}

static bool same_status(pair *p, const char *what, ckv_status got, ckv_status want)
{
    return got == want || pair_differ(p, "%s answers %s (%s); expected %s", what, ckv_status_name(got),
                                      got != CKV_OK ? ckv_last_error() : "", ckv_status_name(want));
}

/* A live request; NULL when there is none. */
static bm_request *pick_request(pair *p, ckv_random *random)
{
    int live[BM_REQUESTS], count = 0;
    for (int i = 0; i < BM_REQUESTS; i++)
        if (p->model.requests[i].used)
            live[count++] = i;
    return count > 0 ? &p->model.requests[live[draw(random, 0, count - 1)]] : NULL;
}

static bool *state_lost(pair *p, const bm_request *r)
{
    return &p->state_lost[r - p->model.requests];
}

static int pick_window(const pair *p, ckv_random *random)
{
    return draw(random, 0, p->model.num_windows - 1);
}

/* ---- Requests: few prefixes, so that they meet ---- */

static void draw_tokens(ckv_random *random, bm_request *r, int most)
{
    int stream = draw(random, 0, 2), cut = draw(random, 0, 3) == 0 ? draw(random, 0, most) : most;
    r->prompt = r->tokens_n = draw(random, 1, most);
    for (int i = 0; i < r->prompt; i++)
        r->tokens[i] = i < cut ? stream * 100 + i / 2 : draw(random, 0, 1);
    r->space = draw(random, 0, 5) == 0 ? draw(random, 1, 3) : 0;
    r->extra_used = draw(random, 0, 7) == 0;
    for (int i = 0; i < r->prompt; i++)
        r->extra[i] = r->extra_used ? i / 5 : 0;
    r->has_mm = draw(random, 0, 7) == 0;
    if (r->has_mm)
        r->mm = (ckv_blocks_mm){(uint64_t)draw(random, 1, 2), draw(random, 0, r->prompt - 1), 1};
    if (r->has_mm)
        r->mm.length = draw(random, 1, r->prompt - (int)r->mm.position);
}

static void draw_retention(ckv_random *random, bm_request *r)
{
    static const int priorities[] = {0, 10, 34, 35, 36, 80, 100};
    r->decode_priority = draw(random, 0, 3) == 0 ? priorities[draw(random, 0, 6)] : 35;
    r->decode_duration = draw(random, 0, 3) == 0 ? draw(random, 0, 20) : CKV_BLOCKS_NO_DURATION;
    r->num_ranges = draw(random, 0, 2) == 0 ? draw(random, 1, BM_RANGES) : 0;
    int64_t at = 0;
    for (int i = 0; i < r->num_ranges; i++) {
        int64_t start = at + draw(random, 0, 6);
        at = start + draw(random, 1, 12);
        r->ranges[i] = (ckv_blocks_range){start, at, priorities[draw(random, 0, 6)],
                                          draw(random, 0, 1) ? draw(random, 0, 20) : CKV_BLOCKS_NO_DURATION};
    }
    if (r->num_ranges > 0 && draw(random, 0, 1))
        r->ranges[r->num_ranges - 1].end = CKV_BLOCKS_OPEN;
}

static bm_request draw_request(pair *p, ckv_random *random)
{
    bm_request r;
    memset(&r, 0, sizeof r);
    int longest = (int)p->model.config.geometry.max_seq_len;
    draw_tokens(random, &r, draw(random, 0, 3) == 0 ? longest : longest / 2);
    draw_retention(random, &r);
    r.id = ++p->next_id;
    r.beam = draw(random, 0, 4) == 0 ? draw(random, 2, BM_BEAMS) : 1;
    r.max_new = draw(random, 0, 20);
    r.draft = draw(random, 0, 3) == 0 ? draw(random, 1, 3) : 0;
    r.external = draw(random, 0, 15) == 0 ? draw(random, 1, 5) : 0;
    r.dummy = draw(random, 0, 15) == 0;
    r.gen_init = draw(random, 0, 15) == 0;
    return r;
}

static ckv_blocks_request to_library(const bm_request *r)
{
    ckv_blocks_request q = ckv_blocks_request_default();
    static const char *const salts[] = {NULL, NULL, "a", "b"};
    q.id = r->id;
    q.tokens = r->tokens;
    q.num_tokens = r->prompt;
    q.beam = r->beam;
    q.max_new = r->max_new;
    q.draft = r->draft;
    q.has_lora = r->space == 1;
    q.lora = 7;
    q.salt_kind = salts[r->space] != NULL ? CKV_BLOCKS_SALT_TEXT : CKV_BLOCKS_NO_SALT;
    q.salt_text = salts[r->space];
    q.extra_ids = r->extra_used ? r->extra : NULL;
    q.mm = &r->mm;
    q.num_mm = r->has_mm;
    q.ranges = r->ranges;
    q.num_ranges = r->num_ranges;
    q.decode_priority = r->decode_priority;
    q.decode_duration_ms = r->decode_duration;
    q.external = r->external;
    q.dummy = r->dummy;
    q.gen_init = r->gen_init;
    return q;
}

/* A single request for which there are blocks enough by `needed` must be admitted. */
static bool must_fit(pair *p, const bm_request *r)
{
    for (int w = 0; w < p->model.num_windows; w++)
        for (int b = 0; b < p->model.windows[w].total; b++) {
            const bm_block *block = &p->model.windows[w].blocks[b];
            if (block->tier != 0 && (block->refs > 0 || block->pins > 0))
                return false; /* held on the host: credited, and a block is needed to bring it back */
        }
    for (int w = 0; w < p->model.num_windows; w++) {
        ckv_blocks_demand demand;
        ckv_blocks_request q = to_library(r);
        const bm_window *window = &p->model.windows[w];
        q.draft = 0; /* drafts that fill the last block up hide that beams do not share it */
        if (ckv_blocks_needed(p->blocks, window->window, 0, &q, 0, &demand) != CKV_OK ||
            r->prompt > window->window + p->model.config.chunk_size ||
            demand.blocks + 1 > bm_count_free(window, 0, false))
            return false;
    }
    return true;
}

static bool step_add(pair *p, ckv_random *random)
{
    bm_request wanted[3];
    ckv_blocks_request requests[3];
    ckv_blocks_admission results[3];
    int count = draw(random, 0, 2) == 0 ? draw(random, 2, 3) : 1, live = 0;
    for (int i = 0; i < BM_REQUESTS; i++)
        live += p->model.requests[i].used;
    if (live + count > BM_REQUESTS)
        return true;
    for (int i = 0; i < count; i++) {
        wanted[i] = draw_request(p, random);
        requests[i] = to_library(&wanted[i]);
    }
    if (count > 1 && draw(random, 0, 15) == 0)
        wanted[1].id = requests[1].id = wanted[0].id;
    bool fits = count == 1 && must_fit(p, &wanted[0]);
    ckv_status want = bm_add(&p->model, wanted, count), got = ckv_blocks_add(p->blocks, requests, count, results);
    if (!same_status(p, "add", got, want))
        return false;
    bool full = p->model.config.max_sequences > 0 && live + count > p->model.config.max_sequences;
    if (fits && !full && got == CKV_ERROR_CAPACITY)
        return pair_differ(p, "add: refused though there are as many blocks as needed");
    for (int i = 0; got == CKV_OK && i < count; i++) {
        if (memcmp(&results[i], &wanted[i].result, sizeof results[i]) != 0)
            return pair_differ(
                p, "add: request %d prepopulated %d alloc %d/%d reused %d missed %d; expected %d %d/%d %d %d", i,
                (int)results[i].prepopulated_tokens, (int)results[i].alloc_total, (int)results[i].alloc_new,
                (int)results[i].reused, (int)results[i].missed, (int)wanted[i].result.prepopulated_tokens,
                (int)wanted[i].result.alloc_total, (int)wanted[i].result.alloc_new, (int)wanted[i].result.reused,
                (int)wanted[i].result.missed);
        const bm_request *r = bm_find(&p->model, wanted[i].id);
        *state_lost(p, r) = false;
        pair_write_rows(p, r, r->kv - r->external, r->kv);
    }
    return true;
}

static bool step_prefill(pair *p, ckv_random *random)
{
    bm_request *r = pick_request(p, random);
    if (r == NULL)
        return true;
    int from = r->kv, to = draw(random, 0, 2) == 0 ? draw(random, 0, r->prompt + 1) : r->prompt;
    ckv_status got = ckv_blocks_prefill(p->blocks, r->id, to);
    if (!same_status(p, "prefill", got, bm_prefill(&p->model, r->id, to)))
        return false;
    if (got == CKV_OK) {
        *state_lost(p, r) = false;
        pair_write_rows(p, r, from, to);
    }
    return true;
}

static bool step_append(pair *p, ckv_random *random)
{
    bm_request *r = pick_request(p, random);
    int32_t tokens[16];
    if (r == NULL)
        return true;
    int count = draw(random, 0, 3) == 0 ? draw(random, 2, 16) : 1, before = r->tokens_n;
    for (int i = 0; i < count; i++)
        tokens[i] = draw(random, 0, 1) ? (before + i) / 2 : draw(random, 0, 1);
    if (r->kv >= r->prompt)
        pair_write_rows(p, r, r->kv, r->tokens_n);
    ckv_status got = ckv_blocks_append(p->blocks, r->id, tokens, count);
    if (!same_status(p, "append", got, bm_append(&p->model, r->id, tokens, count)))
        return false;
    if (got == CKV_OK) {
        *state_lost(p, r) = false;
        pair_write_rows(p, r, before - 1, r->kv);
    }
    return true;
}

static bool step_rewind(pair *p, ckv_random *random)
{
    bm_request *r = pick_request(p, random);
    int known;
    if (r == NULL)
        return true;
    int n = draw(random, 0, 5);
    ckv_status got = ckv_blocks_rewind(p->blocks, r->id, n, &known);
    if (!same_status(p, "rewind", got, bm_rewind(&p->model, r->id, n)))
        return false;
    if (got == CKV_OK && n > 0)
        *state_lost(p, r) = true;
    return true;
}

/* ---- Storing, pins ---- */

static bool same_handles(pair *p, const ckv_blocks_handles *got, const ckv_blocks_handles *want)
{
    bool same = got->count == want->count;
    for (int64_t i = 0; same && i < got->count; i++) {
        const ckv_blocks_handle *a = &got->items[i], *b = &want->items[i];
        same = a->window == b->window && a->block == b->block && a->serial == b->serial;
        p->pins[p->num_pins++] = *a;
    }
    return same || pair_differ(p, "%d handles, or others; expected %d", (int)got->count, (int)want->count);
}

static bool same_counts(pair *p, const char *what, const int64_t *got, const int64_t *want)
{
    for (int w = 0; w < p->model.num_windows; w++)
        if (got[w] != want[w])
            return pair_differ(p, "%s: %d blocks in window %d; expected %d", what, (int)got[w], w, (int)want[w]);
    return true;
}

static bool has_room_for_pins(const pair *p)
{
    return p->num_pins < BM_PINS / 8;
}

static ckv_status library_store(ckv_blocks *blocks, int64_t id, bm_store_kind kind, int64_t *stored,
                                ckv_blocks_handles *handles)
{
    switch (kind) {
    case BM_CONTEXT:
        return ckv_blocks_store_context(blocks, id, stored);
    case BM_NEW:
        return ckv_blocks_store_new(blocks, id, stored);
    case BM_FOR_REUSE:
        return ckv_blocks_store_for_reuse(blocks, id, stored, handles);
    case BM_FINISH:
        break;
    }
    return ckv_blocks_finish_context(blocks, id, stored, handles);
}

static bool step_store(pair *p, ckv_random *random)
{
    bm_request *r = pick_request(p, random);
    if (r == NULL)
        return true;
    bm_store_kind kind = (bm_store_kind)draw(random, 0, 3);
    bool pin = kind >= BM_FOR_REUSE && has_room_for_pins(p) && draw(random, 0, 1) == 0;
    int64_t got_stored[BM_WINDOWS] = {0}, want_stored[BM_WINDOWS] = {0};
    ckv_blocks_handle room[BM_PINS];
    ckv_blocks_handles got_pins = {NULL, 0}, want_pins = {room, 0};
    ckv_status want = bm_store(&p->model, r->id, kind, pin, want_stored, &want_pins);
    ckv_status got = library_store(p->blocks, r->id, kind, got_stored, pin ? &got_pins : NULL);
    bool same =
        same_status(p, "store", got, want) &&
        (got != CKV_OK || (same_counts(p, "store", got_stored, want_stored) && same_handles(p, &got_pins, &want_pins)));
    ckv_blocks_handles_free(&got_pins);
    return same;
}

static bool step_remove(pair *p, ckv_random *random)
{
    bm_request *r = pick_request(p, random);
    int64_t got_stored[BM_WINDOWS] = {0}, want_stored[BM_WINDOWS] = {0};
    if (r == NULL)
        return true;
    int64_t id = r->id;
    bool store = draw(random, 0, 4) != 0;
    ckv_status got = ckv_blocks_remove(p->blocks, id, store, got_stored);
    return same_status(p, "remove", got, bm_remove(&p->model, id, store, want_stored)) &&
           same_counts(p, "remove", got_stored, want_stored);
}

static bool step_pin(pair *p, ckv_random *random)
{
    bm_request *r = pick_request(p, random);
    ckv_blocks_handle room[BM_PINS * 2];
    ckv_blocks_handles got_pins = {NULL, 0}, want_pins = {room, 0};
    if (r == NULL || !has_room_for_pins(p) || r->positions * r->beam * p->model.num_windows > BM_PINS / 2)
        return true;
    ckv_status want = bm_pin_request(&p->model, r->id, &want_pins);
    bool same = same_status(p, "pin", ckv_blocks_pin(p->blocks, r->id, &got_pins), want) &&
                same_handles(p, &got_pins, &want_pins);
    ckv_blocks_handles_free(&got_pins);
    return same;
}

static bool step_unpin(pair *p, ckv_random *random)
{
    ckv_blocks_handle chosen[BM_PINS];
    int count = p->num_pins > 0 ? draw(random, 1, p->num_pins) : 0;
    for (int i = 0; i < count; i++) {
        int at = draw(random, i, p->num_pins - 1);
        ckv_blocks_handle taken = p->pins[at];
        p->pins[at] = p->pins[i];
        p->pins[i] = chosen[i] = taken;
    }
    bool spoilt = count > 0 && draw(random, 0, 5) == 0;
    if (spoilt && draw(random, 0, 1) && count > 1)
        chosen[count - 1] = chosen[0];
    else if (spoilt)
        chosen[draw(random, 0, count - 1)].block += 1;
    ckv_status got = ckv_blocks_unpin(p->blocks, chosen, count);
    if (!same_status(p, "unpin", got, bm_unpin(&p->model, chosen, count)))
        return false;
    if (got == CKV_OK) {
        memmove(p->pins, p->pins + count, (size_t)(p->num_pins - count) * sizeof *p->pins);
        p->num_pins -= count;
    }
    return true;
}

static bool step_find(pair *p, ckv_random *random)
{
    bm_request r = draw_request(p, random);
    ckv_blocks_request q = to_library(&r);
    int w = pick_window(p, random), want_count;
    bool pin = has_room_for_pins(p) && draw(random, 0, 3) == 0;
    int64_t got_ids[BM_POSITIONS], want_ids[BM_POSITIONS], got_count;
    ckv_blocks_handle room[BM_PINS];
    ckv_blocks_handles got_pins = {NULL, 0}, want_pins = {room, 0};
    want_count = bm_find_blocks(&p->model, &r, w, pin, want_ids, &want_pins);
    ckv_status got =
        ckv_blocks_find(p->blocks, &q, p->model.windows[w].window, got_ids, &got_count, pin ? &got_pins : NULL);
    bool same = same_status(p, "find", got, CKV_OK);
    if (same && (got_count != want_count || memcmp(got_ids, want_ids, (size_t)want_count * sizeof *got_ids) != 0))
        same = pair_differ(p, "find: %d blocks, or others; expected %d", (int)got_count, want_count);
    same = same && same_handles(p, &got_pins, &want_pins);
    ckv_blocks_handles_free(&got_pins);
    return same;
}

static bool step_truncate(pair *p, ckv_random *random)
{
    bm_request r = draw_request(p, random);
    ckv_blocks_request q = to_library(&r);
    int64_t got[BM_WINDOWS] = {0}, want[BM_WINDOWS] = {0};
    int keep = draw(random, 0, r.prompt);
    bm_truncate(&p->model, &r, keep, want);
    return same_status(p, "truncate", ckv_blocks_truncate(p->blocks, &q, keep, got), CKV_OK) &&
           same_counts(p, "truncate", got, want);
}

/* ---- Blocks, time, questions ---- */

static bool step_private(pair *p, ckv_random *random)
{
    bm_request *r = pick_request(p, random);
    if (r == NULL)
        return true;
    int w = pick_window(p, random), index = draw(random, 0, r->positions);
    ckv_status got = ckv_blocks_make_private(p->blocks, r->id, p->model.windows[w].window, index);
    return same_status(p, "make_private", got, bm_private(&p->model, r->id, w, index));
}

static bool step_move(pair *p, ckv_random *random)
{
    int w = pick_window(p, random), block = draw(random, -1, p->model.windows[w].total), tier = draw(random, 0, 1);
    int64_t window = p->model.windows[w].window;
    ckv_status got =
        tier == 1 ? ckv_blocks_offload(p->blocks, window, block) : ckv_blocks_onboard(p->blocks, window, block);
    ckv_status want = bm_move(&p->model, w, block, tier);
    bm_sample(&p->model);
    return same_status(p, "move", got, want);
}

static bool step_refresh(pair *p, ckv_random *random)
{
    int64_t got[BM_WINDOWS] = {0}, want[BM_WINDOWS] = {0};
    p->now_ms += draw(random, 0, 8);
    p->model.now = p->now_ms;
    bm_refresh(&p->model, want);
    return same_status(p, "refresh", ckv_blocks_refresh(p->blocks, got), CKV_OK) &&
           same_counts(p, "refresh", got, want);
}

static bool step_carry(pair *p, ckv_random *random)
{
    bm_request *r = pick_request(p, random);
    int64_t got[BM_BEAMS][2], want[BM_BEAMS][2], count;
    if (r == NULL)
        return true;
    int expected = bm_carry(&p->model, r->id, want);
    if (!same_status(p, "carry_state", ckv_blocks_carry_state(p->blocks, r->id, BM_BEAMS, got, &count), CKV_OK))
        return false;
    if (count != expected || memcmp(got, want, (size_t)count * sizeof *got) != 0)
        return pair_differ(p, "carry_state: %d copies, or others; expected %d", (int)count, expected);
    return true;
}

static bool compare_demand(pair *p, const char *what, ckv_blocks_demand got, ckv_blocks_demand want)
{
    return (got.blocks == want.blocks && got.estimated_reusable_tokens == want.estimated_reusable_tokens) ||
           pair_differ(p, "%s: %d blocks, %d tokens; expected %d and %d", what, (int)got.blocks,
                       (int)got.estimated_reusable_tokens, (int)want.blocks, (int)want.estimated_reusable_tokens);
}

static bool step_ask(pair *p, ckv_random *random)
{
    bm_request *live = draw(random, 0, 1) ? pick_request(p, random) : NULL, fresh = draw_request(p, random);
    const bm_request *r = live != NULL ? live : &fresh;
    ckv_blocks_request q = to_library(&fresh);
    const ckv_blocks_request *request = live != NULL ? NULL : &q;
    int w = pick_window(p, random), two = draw(random, 0, 1);
    int64_t window = p->model.windows[w].window;
    ckv_blocks_demand got;
    ckv_blocks_analysis analysis;
    if (!same_status(p, "needed", ckv_blocks_needed(p->blocks, window, r->id, request, two, &got), CKV_OK) ||
        !compare_demand(p, "needed", got, bm_needed(&p->model, w, r, live != NULL, two)))
        return false;
    if (!same_status(p, "remaining", ckv_blocks_remaining(p->blocks, window, r->id, request, &got), CKV_OK) ||
        !compare_demand(p, "remaining", got, bm_remaining(&p->model, w, r, live != NULL)))
        return false;
    bm_match found = bm_find_match(&p->model, r, (bm_options){.limit = r->tokens_n, .full_only = true, .window = -1});
    if (!same_status(p, "analyze", ckv_blocks_analyze(p->blocks, r->id, request, &analysis), CKV_OK))
        return false;
    int64_t first = found.full < r->tokens_n / p->model.step ? found.full : -1;
    if (analysis.tokens != found.length || analysis.first_new_block != first)
        return pair_differ(p, "analyze: %d tokens, block %d is new; expected %d and %d", (int)analysis.tokens,
                           (int)analysis.first_new_block, found.length, (int)first);
    return true;
}

/* Release some requests dry: what that frees is what really releasing them would. */
static bool step_dry_run(pair *p, ckv_random *random)
{
    int64_t got[CKV_BLOCKS_MAX_WINDOWS], want[BM_WINDOWS] = {0};
    if (!same_status(p, "schedule_start", ckv_blocks_schedule_start(p->blocks, got), CKV_OK))
        return false;
    bm *copy = malloc(sizeof *copy);
    if (copy == NULL)
        abort();
    memcpy(copy, &p->model, sizeof *copy);
    bool same = true;
    for (int i = 0; same && i < BM_REQUESTS; i++) {
        int64_t id = p->model.requests[i].id, ignored[BM_WINDOWS];
        if (!p->model.requests[i].used || draw(random, 0, 1))
            continue;
        same =
            same_status(p, "schedule_release", ckv_blocks_schedule_release(p->blocks, id, got), CKV_OK) &&
            same_status(p, "second schedule_release", ckv_blocks_schedule_release(p->blocks, id, got), CKV_ERROR_STATE);
        bm_remove(copy, id, false, ignored);
    }
    for (int w = 0; w < p->model.num_windows; w++)
        want[w] = bm_count_free(&copy->windows[w], 0, false);
    free(copy);
    return same && same_counts(p, "dry run", got, want);
}

static bool step_iterate(pair *p, ckv_random *random)
{
    ckv_blocks_iteration iteration;
    (void)random;
    if (!same_status(p, "take_iteration", ckv_blocks_take_iteration(p->blocks, &iteration), CKV_OK))
        return false;
    for (int w = 0; w < p->model.num_windows; w++) {
        bm_window *window = &p->model.windows[w];
        for (int tier = 0; tier < 2; tier++) {
            if (iteration.windows[w].tiers[tier].peak_used != window->peak_used[tier])
                return pair_differ(p, "window %d tier %d peak_used is %d; expected %d", w, tier,
                                   (int)iteration.windows[w].tiers[tier].peak_used, (int)window->peak_used[tier]);
            window->peak_used[tier] = window->counts[tier] - bm_count_free(window, tier, false);
        }
#define COMPARE(name)                                                                                                  \
    if (iteration.windows[w].counters.name != window->counters.name - p->interval[w].name)                             \
        return pair_differ(p, "iteration: " #name " of window %d", w);
        CKV_BLOCKS_COUNTER_LIST(COMPARE)
#undef COMPARE
        p->interval[w] = window->counters;
    }
    return true;
}

/* Refusals that need no prediction: only that nothing changes. */
static bool step_misuse(pair *p, ckv_random *random)
{
    bm_request r = draw_request(p, random);
    ckv_blocks_request q = to_library(&r);
    ckv_blocks_admission result;
    int64_t window = p->model.windows[0].window, unknown = p->next_id + 1000;
    const bm_request *live = pick_request(p, random);
    int32_t token = 1;
    ckv_blocks_handle foreign = {window, 0, 1u << 30};
    switch (draw(random, 0, 7)) {
    case 0:
        q.num_tokens = 0;
        return same_status(p, "empty prompt", ckv_blocks_add(p->blocks, &q, 1, &result), CKV_ERROR_INVALID);
    case 1:
        q.beam = BM_BEAMS + 1;
        return same_status(p, "too many beams", ckv_blocks_add(p->blocks, &q, 1, &result), CKV_ERROR_INVALID);
    case 2:
        return same_status(p, "unknown id", ckv_blocks_append(p->blocks, unknown, &token, 1), CKV_ERROR_NOT_FOUND);
    case 3:
        return same_status(p, "unknown id", ckv_blocks_remove(p->blocks, unknown, 1, NULL), CKV_ERROR_NOT_FOUND);
    case 4:
        return same_status(p, "foreign pin", ckv_blocks_unpin(p->blocks, &foreign, 1), CKV_ERROR_NOT_FOUND);
    case 5:
        q.decode_priority = 101;
        return same_status(p, "priority 101", ckv_blocks_add(p->blocks, &q, 1, &result), CKV_ERROR_INVALID);
    case 6:
        return same_status(p, "unknown window", ckv_blocks_offload(p->blocks, 3, 0), CKV_ERROR_NOT_FOUND);
    default:
        if (live != NULL)
            q.id = live->id;
        q.external = 0;
        return live == NULL || same_status(p, "id in use", ckv_blocks_add(p->blocks, &q, 1, &result), CKV_ERROR_STATE);
    }
}

bool pair_step(pair *p, const script_op *op)
{
    static bool (*const steps[])(pair * p, ckv_random * random) = {
        [SCRIPT_ADD] = step_add,           [SCRIPT_PREFILL] = step_prefill, [SCRIPT_APPEND] = step_append,
        [SCRIPT_REWIND] = step_rewind,     [SCRIPT_STORE] = step_store,     [SCRIPT_REMOVE] = step_remove,
        [SCRIPT_PIN] = step_pin,           [SCRIPT_UNPIN] = step_unpin,     [SCRIPT_FIND] = step_find,
        [SCRIPT_TRUNCATE] = step_truncate, [SCRIPT_PRIVATE] = step_private, [SCRIPT_MOVE] = step_move,
        [SCRIPT_REFRESH] = step_refresh,   [SCRIPT_CARRY] = step_carry,     [SCRIPT_ASK] = step_ask,
        [SCRIPT_DRY_RUN] = step_dry_run,   [SCRIPT_ITERATE] = step_iterate, [SCRIPT_MISUSE] = step_misuse,
    };
    ckv_random random = {op->seed};
    return steps[op->kind](p, &random);
}
