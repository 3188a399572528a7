/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on requests. The engine writes rows as a model would. */
#include "lib/support/error.h"
#include "tools/blocks/run.h"

#include <inttypes.h>

static ckv_status read_id(blocks_run *run, const json_t *in, int64_t *id)
{
    *id = 0;
    return blocks_integer(run, in, "id", true, id);
}

static ckv_status scratch_json(blocks_run *run, int64_t id, json_t *answer)
{
    ckv_blocks_request_info info;
    CKV_TRY(ckv_blocks_get_request(run->blocks, id, &info));
    json_t *scratch = json_object();
    for (int64_t i = 0; i < run->num_windows; i++)
        if (info.scratch_first[i] < info.scratch_end[i])
            blocks_set_window(run, scratch, i,
                              json_pack("[I,I]", (json_int_t)info.scratch_first[i], (json_int_t)info.scratch_end[i]));
    if (json_object_size(scratch) > 0)
        json_object_set(answer, "scratch", scratch);
    json_decref(scratch);
    return CKV_OK;
}

static ckv_status admission_json(blocks_run *run, int64_t id, const ckv_blocks_admission *a, json_t **answer)
{
    json_t *ids;
    CKV_TRY(blocks_ids_json(run, id, &ids));
    *answer =
        json_pack("{sI sI so sI sI sI sI}", "id", (json_int_t)id, "prepopulated", (json_int_t)a->prepopulated_tokens,
                  "ids", ids, "alloc_total", (json_int_t)a->alloc_total, "alloc_new", (json_int_t)a->alloc_new,
                  "reused", (json_int_t)a->reused, "missed", (json_int_t)a->missed);
    return scratch_json(run, id, *answer);
}

static ckv_status op_add(blocks_run *run, const json_t *in, json_t *out)
{
    const json_t *list = blocks_field(in, "requests");
    if (!json_is_array(list))
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'requests' must be a list");
    size_t count = json_array_size(list);
    ckv_blocks_request *requests = arena_alloc(&run->memory, (count + 1) * sizeof *requests);
    ckv_blocks_admission *results = arena_alloc(&run->memory, (count + 1) * sizeof *results);
    for (size_t i = 0; i < count; i++) {
        int64_t id;
        CKV_TRY(blocks_request_object(run, json_array_get(list, i), &requests[i]));
        CKV_TRY(read_id(run, json_array_get(list, i), &id));
    }
    CKV_TRY(ckv_blocks_add(run->blocks, requests, (int64_t)count, results));
    json_t *answers = json_array();
    json_object_set_new(out, "requests", answers);
    for (size_t i = 0; i < count; i++) {
        json_t *answer;
        blocks_engine_add(run, &requests[i], results[i].prepopulated_tokens - requests[i].external);
        CKV_TRY(admission_json(run, requests[i].id, &results[i], &answer));
        json_array_append_new(answers, answer);
    }
    return CKV_OK;
}

static ckv_status op_prefill(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id;
    ckv_blocks_request_info info;
    int64_t to = 0;
    CKV_TRY(read_id(run, in, &id));
    CKV_TRY(blocks_integer(run, in, "to", false, &to));
    CKV_TRY(ckv_blocks_get_request(run->blocks, id, &info));
    int64_t from = info.kv;
    to = blocks_field(in, "to") != NULL ? to : info.prompt;
    CKV_TRY(ckv_blocks_prefill(run->blocks, id, to));
    blocks_engine_prefill(run, id, from, to);
    json_object_set_new(out, "kv", json_integer(to));
    json_object_set_new(out, "context_done", json_boolean(to == info.prompt));
    return CKV_OK;
}

static ckv_status op_carry_state(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id, count;
    ckv_blocks_request_info info;
    CKV_TRY(read_id(run, in, &id));
    CKV_TRY(ckv_blocks_get_request(run->blocks, id, &info));
    int64_t(*copies)[2] = arena_alloc(&run->memory, (size_t)info.beam * sizeof *copies);
    CKV_TRY(ckv_blocks_carry_state(run->blocks, id, info.beam, copies, &count));
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(list, blocks_integers_json(copies[i], 2));
    json_object_set_new(out, "copies", list);
    return CKV_OK;
}

static ckv_status op_snapshot_points(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id, count;
    ckv_blocks_request storage;
    const ckv_blocks_request *request;
    CKV_TRY(blocks_live_or_object(run, in, &id, &storage, &request));
    CKV_TRY(ckv_blocks_snapshot_points(run->blocks, id, request, 0, NULL, &count));
    int64_t *points = arena_alloc(&run->memory, (size_t)(count + 1) * sizeof *points);
    CKV_TRY(ckv_blocks_snapshot_points(run->blocks, id, request, count, points, &count));
    json_object_set_new(out, "points", blocks_integers_json(points, count));
    return CKV_OK;
}

/* "id", "tokens" (how many), "ids". */
static ckv_status grown_json(blocks_run *run, int64_t id, json_t *out)
{
    json_t *ids;
    ckv_blocks_request_info info;
    CKV_TRY(ckv_blocks_get_request(run->blocks, id, &info));
    CKV_TRY(blocks_ids_json(run, id, &ids));
    json_object_set_new(out, "tokens", json_integer(info.tokens));
    json_object_set_new(out, "ids", ids);
    return CKV_OK;
}

static ckv_status op_append(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id, count;
    int32_t *tokens;
    CKV_TRY(read_id(run, in, &id));
    CKV_TRY(blocks_tokens(run, in, &tokens, &count));
    if (count == 0)
        return blocks_refuse(run, CKV_ERROR_INVALID, "there are no tokens to append");
    blocks_undo undo = {NULL, 0, 0};
    blocks_engine_before_append(run, id, &undo);
    ckv_status status = ckv_blocks_append(run->blocks, id, tokens, count);
    blocks_engine_undo(&undo, status != CKV_OK);
    if (status != CKV_OK)
        return status;
    blocks_engine_append(run, id, tokens, count);
    return grown_json(run, id, out);
}

static ckv_status op_rewind(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id, n = 0;
    int known;
    ckv_blocks_request_info info;
    CKV_TRY(read_id(run, in, &id));
    CKV_TRY(blocks_integer(run, in, "n", true, &n));
    CKV_TRY(ckv_blocks_rewind(run->blocks, id, n, &known));
    if (!known) {
        json_object_set_new(out, "tokens", json_null());
        return CKV_OK;
    }
    CKV_TRY(ckv_blocks_get_request(run->blocks, id, &info));
    blocks_engine_rewind(run, id, info.tokens);
    return grown_json(run, id, out);
}

static void add_handles(blocks_run *run, json_t *out, ckv_blocks_handles *handles)
{
    json_object_set_new(out, "handles", blocks_handles_json(handles));
    for (int64_t i = 0; i < handles->count; i++)
        run->next_serial = handles->items[i].serial + 1;
    ckv_blocks_handles_free(handles);
}

static ckv_status op_store_context(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id, stored[CKV_BLOCKS_MAX_WINDOWS];
    CKV_TRY(read_id(run, in, &id));
    CKV_TRY(ckv_blocks_store_context(run->blocks, id, stored));
    json_object_set_new(out, "stored", blocks_per_window(run, stored));
    return CKV_OK;
}

static ckv_status op_store_new(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id, stored[CKV_BLOCKS_MAX_WINDOWS];
    CKV_TRY(read_id(run, in, &id));
    CKV_TRY(ckv_blocks_store_new(run->blocks, id, stored));
    json_object_set_new(out, "stored", blocks_per_window(run, stored));
    return CKV_OK;
}

typedef ckv_status (*pinning_store)(ckv_blocks *blocks, int64_t id, int64_t *stored_out,
                                    ckv_blocks_handles *handles_out);

static ckv_status store_and_pin(blocks_run *run, const json_t *in, json_t *out, pinning_store store)
{
    int64_t id, stored[CKV_BLOCKS_MAX_WINDOWS];
    bool pin = false;
    ckv_blocks_handles handles = {NULL, 0};
    CKV_TRY(read_id(run, in, &id));
    CKV_TRY(blocks_boolean(run, in, "pin", &pin));
    CKV_TRY(store(run->blocks, id, stored, pin ? &handles : NULL));
    json_object_set_new(out, "stored", blocks_per_window(run, stored));
    add_handles(run, out, &handles);
    return CKV_OK;
}

static ckv_status op_finish_context(blocks_run *run, const json_t *in, json_t *out)
{
    return store_and_pin(run, in, out, ckv_blocks_finish_context);
}

static ckv_status op_store_for_reuse(blocks_run *run, const json_t *in, json_t *out)
{
    return store_and_pin(run, in, out, ckv_blocks_store_for_reuse);
}

static ckv_status op_remove(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id, stored[CKV_BLOCKS_MAX_WINDOWS];
    bool store = true;
    CKV_TRY(read_id(run, in, &id));
    CKV_TRY(blocks_boolean(run, in, "store", &store));
    CKV_TRY(ckv_blocks_remove(run->blocks, id, store, stored));
    blocks_engine_remove(run, id);
    json_object_set_new(out, "stored", blocks_per_window(run, stored));
    return CKV_OK;
}

static ckv_status op_pin(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id;
    ckv_blocks_handles handles = {NULL, 0};
    CKV_TRY(read_id(run, in, &id));
    CKV_TRY(ckv_blocks_pin(run->blocks, id, &handles));
    add_handles(run, out, &handles);
    return CKV_OK;
}

static ckv_status op_find(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t index, count;
    bool pin = false;
    ckv_blocks_request request;
    ckv_blocks_handles handles = {NULL, 0};
    CKV_TRY(blocks_window_field(run, in, &index));
    CKV_TRY(blocks_request_object(run, in, &request));
    CKV_TRY(blocks_boolean(run, in, "pin", &pin));
    int64_t *ids = arena_alloc(&run->memory, (size_t)(request.num_tokens / run->tokens_per_block + 2) * sizeof *ids);
    CKV_TRY(ckv_blocks_find(run->blocks, &request, run->windows[index].window, ids, &count, pin ? &handles : NULL));
    json_object_set_new(out, "found", json_boolean(count > 0));
    json_object_set_new(out, "blocks", blocks_integers_json(ids, count));
    add_handles(run, out, &handles);
    return CKV_OK;
}

const blocks_op blocks_request_ops[] = {
    {"add", op_add, false, true},
    {"prefill", op_prefill, false, true},
    {"carry_state", op_carry_state, false, false},
    {"snapshot_points", op_snapshot_points, false, false},
    {"append", op_append, false, true},
    {"rewind", op_rewind, false, true},
    {"store_context", op_store_context, false, true},
    {"store_new", op_store_new, false, true},
    {"finish_context", op_finish_context, false, true},
    {"store_for_reuse", op_store_for_reuse, false, true},
    {"remove", op_remove, false, true},
    {"pin", op_pin, false, true},
    {"find", op_find, false, true},
    {NULL, NULL, false, false},
};
