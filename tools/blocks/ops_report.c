/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes, events, statistics. */
#include "lib/support/error.h"
#include "tools/blocks/run.h"

#include <inttypes.h>

static ckv_status op_hashes(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id = 0, count;
    CKV_TRY(blocks_integer(run, in, "id", true, &id));
    CKV_TRY(ckv_blocks_hashes(run->blocks, id, 0, NULL, &count));
    uint64_t *hashes = arena_alloc(&run->memory, (size_t)(count + 1) * sizeof *hashes);
    CKV_TRY(ckv_blocks_hashes(run->blocks, id, count, hashes, &count));
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(list, blocks_label(run, hashes[i]));
    json_object_set_new(out, "hashes", list);
    return CKV_OK;
}

/* ---- Events ---- */

static json_t *salt_json(const ckv_blocks_event *event)
{
    if (event->salt_kind == CKV_BLOCKS_SALT_INTEGER)
        return json_integer(event->salt);
    return event->salt_kind == CKV_BLOCKS_SALT_TEXT ? json_string(event->salt_text) : json_null();
}

static json_t *stored_json(blocks_run *run, const ckv_blocks_event *event, const ckv_blocks_stored *block)
{
    json_t *tokens = json_array();
    for (int64_t i = 0; i < block->num_tokens; i++)
        json_array_append_new(tokens, json_integer(block->tokens[i]));
    return json_pack("{so so sI sI so so}", "hash", blocks_label(run, block->hash), "tokens", tokens, "level",
                     (json_int_t)block->level, "priority", (json_int_t)block->priority, "lora",
                     event->has_lora ? json_integer(event->lora) : json_null(), "salt", salt_json(event));
}

static json_t *change_json(const ckv_blocks_event *event)
{
    return json_pack("[I,I]", (json_int_t)event->before, (json_int_t)event->after);
}

/* Labels are given in the order of the fields. */
static json_t *event_json(blocks_run *run, const ckv_blocks_event *event)
{
    static const char *const types[] = {"created", "stored", "removed", "updated", "updated"};
    json_t *object = json_pack("{sI ss sI}", "id", (json_int_t)event->id, "type", types[event->type], "window",
                               (json_int_t)event->window);
    json_t *list = json_array();
    switch (event->type) {
    case CKV_BLOCKS_CREATED:
        json_object_set_new(object, "blocks", blocks_integers_json(event->blocks, CKV_BLOCKS_TIERS));
        break;
    case CKV_BLOCKS_STORED:
        json_object_set_new(object, "parent", event->has_parent ? blocks_label(run, event->parent) : json_null());
        for (int64_t i = 0; i < event->count; i++)
            json_array_append_new(list, stored_json(run, event, &event->stored[i]));
        json_object_set(object, "blocks", list);
        break;
    case CKV_BLOCKS_REMOVED:
        for (int64_t i = 0; i < event->count; i++)
            json_array_append_new(list, blocks_label(run, event->removed[i]));
        json_object_set(object, "hashes", list);
        break;
    case CKV_BLOCKS_LEVEL_UPDATED:
    case CKV_BLOCKS_PRIORITY_UPDATED:
        json_object_set_new(object, "hash", blocks_label(run, event->hash));
        json_object_set_new(object, event->type == CKV_BLOCKS_LEVEL_UPDATED ? "level" : "priority", change_json(event));
        break;
    }
    json_decref(list);
    return object;
}

static ckv_status op_flush_events(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t buffered;
    (void)in;
    CKV_TRY(ckv_blocks_flush_events(run->blocks, &buffered));
    json_object_set_new(out, "buffered", json_integer(buffered));
    return CKV_OK;
}

static ckv_status op_events(blocks_run *run, const json_t *in, json_t *out)
{
    ckv_blocks_events events;
    (void)in;
    CKV_TRY(ckv_blocks_drain_events(run->blocks, &events));
    json_t *list = json_array();
    for (int64_t i = 0; i < events.count; i++)
        json_array_append_new(list, event_json(run, &events.items[i]));
    json_object_set_new(out, "events", list);
    json_object_set_new(out, "dropped", json_integer(events.dropped));
    ckv_blocks_events_free(&events);
    return CKV_OK;
}

/* ---- Statistics ---- */

static json_t *gauges_json(const ckv_blocks_gauges *gauges, bool with_peaks)
{
    json_t *object = json_pack("{sI sI sI sI}", "max", (json_int_t)gauges->max, "free", (json_int_t)gauges->free,
                               "used", (json_int_t)gauges->used, "evictable", (json_int_t)gauges->evictable);
    if (with_peaks) {
        json_object_set_new(object, "peak_used", json_integer(gauges->peak_used));
        json_object_set_new(object, "peak_free", json_integer(gauges->peak_free));
        json_object_set_new(object, "peak_evictable", json_integer(gauges->peak_evictable));
    }
    return object;
}

static void add_counters(json_t *object, const ckv_blocks_counters *counters)
{
#define ADD_COUNTER(name) json_object_set_new(object, #name, json_integer(counters->name));
    CKV_BLOCKS_COUNTER_LIST(ADD_COUNTER)
#undef ADD_COUNTER
    json_object_set_new(object, "hit_rate_ppm", json_integer(ckv_blocks_hit_rate_ppm(counters)));
}

static json_t *windows_json(const blocks_run *run, const ckv_blocks_window_stats *stats, bool with_peaks)
{
    json_t *windows = json_object();
    for (int64_t i = 0; i < run->num_windows; i++) {
        json_t *object = json_object();
        json_object_set_new(object, "primary", gauges_json(&stats[i].tiers[CKV_BLOCKS_PRIMARY], with_peaks));
        json_object_set_new(object, "secondary", gauges_json(&stats[i].tiers[CKV_BLOCKS_HOST], with_peaks));
        add_counters(object, &stats[i].counters);
        blocks_set_window(run, windows, i, object);
    }
    return windows;
}

static ckv_status op_stats(blocks_run *run, const json_t *in, json_t *out)
{
    ckv_blocks_stats stats;
    (void)in;
    CKV_TRY(ckv_blocks_get_stats(run->blocks, &stats));
    json_t *total = json_object();
    add_counters(total, &stats.total);
    json_object_set_new(total, "allocated_bytes", json_integer(stats.allocated_bytes));
    json_object_set_new(out, "windows", windows_json(run, stats.windows, false));
    json_object_set_new(out, "total", total);
    return CKV_OK;
}

static ckv_status op_iteration(blocks_run *run, const json_t *in, json_t *out)
{
    ckv_blocks_iteration iteration;
    (void)in;
    CKV_TRY(ckv_blocks_take_iteration(run->blocks, &iteration));
    json_object_set_new(out, "iteration", json_integer(iteration.number));
    json_object_set_new(out, "windows", windows_json(run, iteration.windows, true));
    return CKV_OK;
}

static ckv_status op_reset_stats(blocks_run *run, const json_t *in, json_t *out)
{
    (void)in;
    (void)out;
    return ckv_blocks_reset_stats(run->blocks);
}

static ckv_status op_record(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t count = 1, kept;
    CKV_TRY(blocks_integer(run, in, "count", false, &count));
    CKV_TRY(ckv_blocks_record(run->blocks, count, &kept));
    json_object_set_new(out, "kept", json_integer(kept));
    return CKV_OK;
}

static ckv_status op_records(blocks_run *run, const json_t *in, json_t *out)
{
    ckv_blocks_records records;
    (void)in;
    CKV_TRY(ckv_blocks_drain_records(run->blocks, &records));
    json_t *numbers = json_array();
    for (int64_t i = 0; i < records.count; i++)
        json_array_append_new(numbers, json_integer(records.items[i].number));
    json_object_set_new(out, "iterations", numbers);
    json_object_set_new(out, "dropped", json_integer(records.dropped));
    ckv_blocks_records_free(&records);
    return CKV_OK;
}

const blocks_op blocks_report_ops[] = {
    {"hashes", op_hashes, false, false},
    {"flush_events", op_flush_events, false, false},
    {"events", op_events, false, false},
    {"stats", op_stats, false, false},
    {"iteration", op_iteration, false, false},
    {"reset_stats", op_reset_stats, false, false},
    {"record", op_record, false, false},
    {"records", op_records, false, false},
    {NULL, NULL, false, false},
};
