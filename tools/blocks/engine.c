/* SPDX-License-Identifier: Apache-2.0 */
/* A model's K and V without a model: the value of a row depends on every token up to it and on the request's name
 * space, so a row in the wrong place shows. */
#include "tools/blocks/run.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BAD = 8 };

/* A live request as the engine sees it. */
typedef struct shadow {
    int64_t id;
    int64_t *rows;  /* [tokens] */
    int64_t tokens; /* known so far */
    int64_t capacity;
    bool state_lost; /* by a rewind: the recurrent state is of tokens that are gone */
    uint64_t seed;
} shadow;

static int compare_ids(const void *a, const void *b)
{
    int64_t left = ((const shadow *)a)->id, right = ((const shadow *)b)->id;
    return (left > right) - (left < right);
}

static shadow *find_shadow(blocks_run *run, int64_t id)
{
    shadow wanted = {.id = id};
    void *node = tfind(&wanted, &run->shadows, compare_ids);
    return node != NULL ? *(shadow **)node : NULL;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
    return hash ^ hash >> 32;
}

static void *must_have(void *memory)
{
    if (memory == NULL) {
        fputs("ckv blocks: out of memory\n", stderr);
        exit(3);
    }
    return memory;
}

static void extend(shadow *s, int32_t token, int64_t extra)
{
    if (s->tokens == s->capacity) {
        s->capacity = s->capacity > 0 ? 2 * s->capacity : 16;
        s->rows = must_have(realloc(s->rows, (size_t)s->capacity * sizeof *s->rows));
    }
    uint64_t before = s->tokens > 0 ? (uint64_t)s->rows[s->tokens - 1] : s->seed;
    /* never 0, which is what new memory holds; small enough for JSON */
    s->rows[s->tokens++] = (int64_t)(mix(mix(before, (uint32_t)token), (uint64_t)extra) >> 11 | 1);
}

static uint64_t seed_of(const ckv_blocks_request *request)
{
    uint64_t seed = mix(1, request->has_lora ? (uint64_t)request->lora : 0);
    seed = mix(seed, (uint64_t)request->has_lora << 8 | (uint64_t)request->salt_kind);
    seed = mix(seed, (uint64_t)request->salt);
    for (const char *c = request->salt_text; request->salt_kind == CKV_BLOCKS_SALT_TEXT && *c != '\0'; c++)
        seed = mix(seed, (unsigned char)*c);
    return mix(seed, request->extra_ids != NULL);
}

int64_t *blocks_engine_rows(blocks_run *run, int64_t window_index, int64_t tier, int64_t slot)
{
    ckv_blocks_pool_view view;
    if (ckv_blocks_get_pool(run->blocks, run->windows[window_index].window, 0, tier, &view) != CKV_OK)
        return NULL;
    return (int64_t *)(void *)((char *)view.base + slot * view.slot_stride_bytes);
}

/* Tables of one request in one window. */
typedef struct tables {
    ckv_blocks_request_info info;
    int64_t *slots, *tiers; /* [beam][positions] */
} tables;

static bool read_tables(blocks_run *run, int64_t id, int64_t window_index, tables *t)
{
    if (ckv_blocks_get_request(run->blocks, id, &t->info) != CKV_OK)
        return false;
    int64_t positions = t->info.positions;
    size_t entries = (size_t)(t->info.beam * positions + 1);
    t->slots = must_have(malloc(2 * entries * sizeof *t->slots));
    t->tiers = t->slots + entries;
    for (int64_t beam = 0; beam < t->info.beam; beam++)
        if (ckv_blocks_get_table(run->blocks, id, run->windows[window_index].window, beam, positions, NULL,
                                 t->slots + beam * positions, t->tiers + beam * positions) != CKV_OK)
            return false;
    return true;
}

/* Rows of the block at a position, or NULL for a hole or scratch. */
static int64_t *block_rows(blocks_run *run, const tables *t, int64_t window_index, int64_t beam, int64_t position)
{
    int64_t at = beam * t->info.positions + position;
    bool scratch = position >= t->info.scratch_first[window_index] && position < t->info.scratch_end[window_index];
    if (scratch || position >= t->info.positions || t->slots[at] == CKV_BLOCKS_HOLE)
        return NULL;
    return blocks_engine_rows(run, window_index, t->tiers[at], t->slots[at]);
}

/* The position that holds the recurrent state after `kv` tokens. */
static int64_t state_position(const blocks_run *run, const ckv_blocks_request_info *info)
{
    return info->context_done ? info->positions - 1 : (info->kv - 1) / run->tokens_per_block;
}

/* Set a row; `undo`, unless it is NULL, remembers what it was. */
static void set_row(blocks_undo *undo, int64_t *row, int64_t value)
{
    if (undo != NULL) {
        if (undo->count == undo->capacity) {
            undo->capacity = undo->capacity > 0 ? 2 * undo->capacity : 16;
            undo->rows = must_have(realloc(undo->rows, (size_t)undo->capacity * sizeof *undo->rows));
        }
        undo->rows[undo->count++] = (blocks_undo_row){row, *row};
    }
    *row = value;
}

static void write_rows(blocks_run *run, const shadow *s, int64_t from, int64_t to, blocks_undo *undo)
{
    for (int64_t i = 0; i < run->num_windows; i++) {
        tables t;
        if (!read_tables(run, s->id, i, &t))
            continue;
        int64_t step = run->tokens_per_block;
        for (int64_t beam = 0; beam < t.info.beam; beam++) {
            for (int64_t n = from; n < to && !run->windows[i].recurrent; n++) {
                int64_t *rows = block_rows(run, &t, i, beam, n / step);
                if (rows != NULL)
                    set_row(undo, &rows[n % step], s->rows[n]);
            }
            int64_t *state = run->windows[i].recurrent && t.info.kv > 0
                                 ? block_rows(run, &t, i, beam, state_position(run, &t.info))
                                 : NULL;
            for (int64_t n = 0; state != NULL && n < step; n++)
                set_row(undo, &state[n], s->rows[t.info.kv - 1]);
        }
        free(t.slots);
    }
}

void blocks_engine_add(blocks_run *run, const ckv_blocks_request *request, int64_t reused)
{
    shadow *s = must_have(calloc(1, sizeof *s));
    s->id = request->id;
    s->seed = seed_of(request) >> 11;
    for (int64_t i = 0; i < request->num_tokens; i++)
        extend(s, request->tokens[i], request->extra_ids != NULL ? request->extra_ids[i] : 0);
    must_have(tsearch(s, &run->shadows, compare_ids));
    if (request->external > 0)
        write_rows(run, s, reused, reused + request->external, NULL);
}

static void free_shadow(void *memory)
{
    shadow *s = memory;
    free(s->rows);
    free(s);
}

void blocks_engine_remove(blocks_run *run, int64_t id)
{
    shadow *s = find_shadow(run, id);
    if (s == NULL)
        return;
    tdelete(s, &run->shadows, compare_ids);
    free_shadow(s);
}

void blocks_engine_clear(blocks_run *run)
{
    tdestroy(run->shadows, free_shadow);
    run->shadows = NULL;
}

void blocks_engine_prefill(blocks_run *run, int64_t id, int64_t from, int64_t to)
{
    shadow *s = find_shadow(run, id);
    s->state_lost = false;
    write_rows(run, s, from, to, NULL);
}

void blocks_engine_before_append(blocks_run *run, int64_t id, blocks_undo *undo)
{
    shadow *s = find_shadow(run, id);
    ckv_blocks_request_info info;
    if (s != NULL && ckv_blocks_get_request(run->blocks, id, &info) == CKV_OK && info.context_done)
        write_rows(run, s, info.kv, info.tokens, undo);
}

void blocks_engine_undo(blocks_undo *undo, bool take_back)
{
    while (take_back && undo->count > 0) {
        const blocks_undo_row *last = &undo->rows[--undo->count];
        *last->row = last->value;
    }
    free(undo->rows);
    *undo = (blocks_undo){NULL, 0, 0};
}

void blocks_engine_append(blocks_run *run, int64_t id, const int32_t *tokens, int64_t count)
{
    shadow *s = find_shadow(run, id);
    int64_t before = s->tokens;
    if (count == 0)
        return;
    for (int64_t i = 0; i < count; i++)
        extend(s, tokens[i], 0);
    s->state_lost = false;
    write_rows(run, s, before - 1, s->tokens - 1, NULL);
}

void blocks_engine_rewind(blocks_run *run, int64_t id, int64_t tokens)
{
    shadow *s = find_shadow(run, id);
    if (tokens == s->tokens)
        return;
    s->tokens = tokens;
    s->state_lost = true;
}

/* Compare the rows of one window in one beam; how many were compared. */
static int64_t verify_beam(blocks_run *run, const shadow *s, const tables *t, int64_t index, int64_t beam, json_t *bad)
{
    int64_t checked = 0, step = run->tokens_per_block, window = run->windows[index].window;
    bool recurrent = run->windows[index].recurrent;
    int64_t end = recurrent && (t->info.kv == 0 || s->state_lost) ? 0 : recurrent ? step : t->info.kv;
    for (int64_t n = 0; n < end; n++) {
        int64_t position = recurrent ? state_position(run, &t->info) : n / step;
        const int64_t *rows = block_rows(run, t, index, beam, position);
        if (rows == NULL)
            continue;
        checked++;
        int64_t wanted = s->rows[recurrent ? t->info.kv - 1 : n];
        if (rows[n % step] != wanted && json_array_size(bad) < MOST_BAD)
            json_array_append_new(bad, json_pack("[I,I,I]", (json_int_t)window, (json_int_t)beam, (json_int_t)n));
    }
    return checked;
}

void blocks_engine_verify(blocks_run *run, int64_t id, json_t *out)
{
    const shadow *s = find_shadow(run, id);
    json_t *bad = json_array();
    int64_t checked[CKV_BLOCKS_MAX_WINDOWS] = {0};
    for (int64_t i = 0; i < run->num_windows; i++) {
        tables t;
        if (!read_tables(run, id, i, &t))
            continue;
        for (int64_t beam = 0; beam < t.info.beam; beam++)
            checked[i] += verify_beam(run, s, &t, i, beam, bad);
        free(t.slots);
    }
    json_object_set_new(out, "ok", json_boolean(json_array_size(bad) == 0));
    json_object_set_new(out, "checked", blocks_per_window(run, checked));
    json_object_set_new(out, "bad", bad);
}
