/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at tables, blocks and the tree. */
#include "lib/support/error.h"
#include "tools/blocks/run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- table ---- */

static ckv_status table_json(blocks_run *run, int64_t id, int64_t index, const ckv_blocks_request_info *info,
                             json_t **value)
{
    size_t bytes = (size_t)(info->positions + 1) * sizeof(int64_t);
    int64_t *lists[3] = {arena_alloc(&run->memory, bytes), arena_alloc(&run->memory, bytes),
                         arena_alloc(&run->memory, bytes)};
    json_t *beams[3] = {json_array(), json_array(), json_array()};
    ckv_status status = CKV_OK;
    for (int64_t beam = 0; status == CKV_OK && beam < info->beam; beam++) {
        status = ckv_blocks_get_table(run->blocks, id, run->windows[index].window, beam, info->positions, lists[0],
                                      lists[1], lists[2]);
        for (int i = 0; i < 3; i++)
            json_array_append_new(beams[i], blocks_integers_json(lists[i], info->positions));
    }
    *value = json_pack("{so so so sI sI}", "ids", beams[0], "slots", beams[1], "levels", beams[2], "front_removed",
                       (json_int_t)info->front_removed[index], "sinks", (json_int_t)run->windows[index].sink_blocks);
    return status;
}

static ckv_status op_table(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id = 0;
    ckv_blocks_request_info info;
    CKV_TRY(blocks_integer(run, in, "id", true, &id));
    CKV_TRY(ckv_blocks_get_request(run->blocks, id, &info));
    json_t *windows = json_object();
    json_object_set_new(out, "tokens", json_integer(info.tokens));
    json_object_set_new(out, "kv", json_integer(info.kv));
    json_object_set_new(out, "windows", windows);
    for (int64_t i = 0; i < run->num_windows; i++) {
        json_t *value;
        CKV_TRY(table_json(run, id, i, &info, &value));
        blocks_set_window(run, windows, i, value);
    }
    return CKV_OK;
}

/* ---- page_table ---- */

typedef struct batch {
    int64_t *ids, *lens, count, beam, pages;
} batch;

static ckv_status read_batch(blocks_run *run, const json_t *in, batch *b)
{
    int64_t num_lens;
    *b = (batch){0};
    CKV_TRY(blocks_integers(run, in, "ids", &b->ids, &b->count));
    CKV_TRY(blocks_integers(run, in, "lens", &b->lens, &num_lens));
    CKV_TRY(blocks_integer(run, in, "beam", false, &b->beam));
    if (b->ids == NULL || (b->lens != NULL && num_lens != b->count))
        return blocks_refuse(run, CKV_ERROR_INVALID, "%" PRId64 " lens for %" PRId64 " ids", num_lens, b->count);
    for (int64_t i = 0; i < b->count; i++) {
        ckv_blocks_request_info info;
        CKV_TRY(ckv_blocks_get_request(run->blocks, b->ids[i], &info));
        b->pages += info.positions;
    }
    return CKV_OK;
}

static int64_t *integers(blocks_run *run, int64_t count)
{
    return arena_alloc(&run->memory, (size_t)(count + 1) * sizeof(int64_t));
}

static ckv_status pages_json(blocks_run *run, const batch *b, int64_t index, json_t **value)
{
    ckv_blocks_page_table t = {.cache_loc_capacity = b->pages,
                               .cache_loc = integers(run, b->pages),
                               .cu_num_pages = integers(run, b->count + 1),
                               .last_page_len = integers(run, b->count),
                               .extra_page = integers(run, b->count),
                               .page_offset = integers(run, b->count),
                               .cached = integers(run, b->count)};
    CKV_TRY(ckv_blocks_get_page_table(run->blocks, run->windows[index].window, b->ids, b->lens, b->count, b->beam, &t));
    json_t *object = json_object();
    json_object_set_new(object, "cache_loc", blocks_integers_json(t.cache_loc, t.cache_loc_count));
    if (!run->windows[index].recurrent) {
        json_object_set_new(object, "cu_num_pages", blocks_integers_json(t.cu_num_pages, b->count + 1));
        json_object_set_new(object, "last_page_len", blocks_integers_json(t.last_page_len, b->count));
        json_object_set_new(object, "extra_page", blocks_integers_json(t.extra_page, b->count));
        json_object_set_new(object, "page_offset", blocks_integers_json(t.page_offset, b->count));
        json_object_set_new(object, "cached", blocks_integers_json(t.cached, b->count));
    }
    *value = object;
    return CKV_OK;
}

static ckv_status op_page_table(blocks_run *run, const json_t *in, json_t *out)
{
    batch b;
    CKV_TRY(read_batch(run, in, &b));
    json_t *windows = json_object();
    json_object_set_new(out, "windows", windows);
    for (int64_t i = 0; i < run->num_windows; i++) {
        json_t *value;
        CKV_TRY(pages_json(run, &b, i, &value));
        blocks_set_window(run, windows, i, value);
    }
    return CKV_OK;
}

/* ---- tokens, free, diag, check ---- */

static ckv_status op_tokens(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id = 0;
    ckv_blocks_request_info info;
    const uint8_t *packed;
    size_t bytes;
    CKV_TRY(blocks_integer(run, in, "id", true, &id));
    CKV_TRY(ckv_blocks_get_request(run->blocks, id, &info));
    int32_t *tokens = arena_alloc(&run->memory, (size_t)info.tokens * sizeof *tokens);
    CKV_TRY(ckv_blocks_get_tokens(run->blocks, id, info.tokens, tokens));
    CKV_TRY(ckv_blocks_get_packed(run->blocks, id, &packed, &bytes));
    char *hex = arena_alloc(&run->memory, 2 * bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        hex[2 * i] = "0123456789abcdef"[packed[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[packed[i] & 15];
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < info.tokens; i++)
        json_array_append_new(list, json_integer(tokens[i]));
    json_object_set_new(out, "tokens", list);
    json_object_set_new(out, "prompt", json_integer(info.prompt));
    json_object_set_new(out, "packed", json_string(hex));
    return CKV_OK;
}

static ckv_status op_free(blocks_run *run, const json_t *in, json_t *out)
{
    json_t *levels = json_object(), *empty = json_object();
    (void)in;
    json_object_set_new(out, "levels", levels);
    json_object_set_new(out, "empty", empty);
    for (int64_t i = 0; i < run->num_windows; i++) {
        int64_t free_blocks[CKV_BLOCKS_TIERS], empty_blocks[CKV_BLOCKS_TIERS];
        CKV_TRY(ckv_blocks_get_free(run->blocks, run->windows[i].window, free_blocks, empty_blocks));
        blocks_set_window(run, levels, i, blocks_integers_json(free_blocks, CKV_BLOCKS_TIERS));
        blocks_set_window(run, empty, i, blocks_integers_json(empty_blocks, CKV_BLOCKS_TIERS));
    }
    return CKV_OK;
}

static ckv_status op_diag(blocks_run *run, const json_t *in, json_t *out)
{
    ckv_blocks_diagnostics d;
    (void)in;
    CKV_TRY(ckv_blocks_diagnose(run->blocks, &d));
    json_object_set_new(out, "sequences", json_integer(d.sequences));
    json_object_set_new(out, "context", json_integer(d.context));
    json_object_set_new(out, "generation", json_integer(d.generation));
    json_object_set_new(out, "pins", json_integer(d.pins));
    json_t *levels = json_object(), *evictable = json_object(), *stalled = json_object();
    for (int64_t i = 0; i < run->num_windows; i++) {
        blocks_set_window(run, levels, i, blocks_integers_json(d.free[i], CKV_BLOCKS_TIERS));
        blocks_set_window(run, evictable, i, blocks_integers_json(d.evictable[i], CKV_BLOCKS_TIERS));
        blocks_set_window(run, stalled, i, json_boolean(d.stalled[i]));
    }
    json_object_set_new(out, "levels", levels);
    json_object_set_new(out, "evictable", evictable);
    json_object_set_new(out, "stalled", stalled);
    return CKV_OK;
}

static ckv_status op_check(blocks_run *run, const json_t *in, json_t *out)
{
    (void)in;
    json_t *violations = json_array();
    ckv_status status = ckv_blocks_check(run->blocks);
    if (status != CKV_OK)
        json_array_append_new(violations, json_string(ckv_last_error()));
    json_object_set_new(out, "ok", json_boolean(status == CKV_OK));
    json_object_set_new(out, "violations", violations);
    return CKV_OK;
}

/* ---- tree ---- */

typedef struct entry {
    int32_t *tokens;
    int64_t num_tokens, block;
} entry;

typedef struct entries {
    blocks_run *run;
    entry *items;
    int64_t count;
} entries;

static void collect(void *context, const int32_t *tokens, int64_t num_tokens, int64_t block)
{
    entries *list = context;
    entry *e = &list->items[list->count++];
    *e = (entry){arena_alloc(&list->run->memory, (size_t)num_tokens * sizeof *tokens), num_tokens, block};
    memcpy(e->tokens, tokens, (size_t)num_tokens * sizeof *tokens);
}

static int by_tokens(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    for (int64_t i = 0; i < a->num_tokens && i < b->num_tokens; i++)
        if (a->tokens[i] != b->tokens[i])
            return a->tokens[i] < b->tokens[i] ? -1 : 1;
    if (a->num_tokens != b->num_tokens)
        return a->num_tokens < b->num_tokens ? -1 : 1;
    return (a->block > b->block) - (a->block < b->block);
}

static ckv_status entry_json(blocks_run *run, int64_t window, const entry *e, json_t **value)
{
    ckv_blocks_block_info info;
    CKV_TRY(ckv_blocks_get_block(run->blocks, window, e->block, &info));
    json_t *tokens = json_array();
    for (int64_t i = 0; i < e->num_tokens; i++)
        json_array_append_new(tokens, json_integer(e->tokens[i]));
    *value = json_pack("{so sI sI sI sI sI}", "tokens", tokens, "block", (json_int_t)e->block, "level",
                       (json_int_t)info.tier, "priority", (json_int_t)info.priority, "refs", (json_int_t)info.refs,
                       "pins", (json_int_t)info.pins);
    return CKV_OK;
}

static ckv_status op_tree(blocks_run *run, const json_t *in, json_t *out)
{
    json_t *windows = json_object();
    (void)in;
    json_object_set_new(out, "windows", windows);
    for (int64_t i = 0; i < run->num_windows; i++) {
        const ckv_blocks_window *w = &run->windows[i];
        entries list = {.run = run};
        list.items = arena_alloc(&run->memory, (size_t)(w->blocks[0] + w->blocks[1]) * sizeof *list.items);
        CKV_TRY(ckv_blocks_visit_tree(run->blocks, w->window, collect, &list));
        qsort(list.items, (size_t)list.count, sizeof *list.items, by_tokens);
        json_t *values = json_array();
        blocks_set_window(run, windows, i, values);
        for (int64_t n = 0; n < list.count; n++) {
            json_t *value;
            CKV_TRY(entry_json(run, w->window, &list.items[n], &value));
            json_array_append_new(values, value);
        }
    }
    return CKV_OK;
}

const blocks_op blocks_view_ops[] = {
    {"table", op_table, false, false},   {"page_table", op_page_table, false, false},
    {"tokens", op_tokens, false, false}, {"free", op_free, false, false},
    {"tree", op_tree, false, false},     {"diag", op_diag, false, false},
    {"check", op_check, false, false},   {NULL, NULL, false, false},
};
