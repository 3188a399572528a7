/* SPDX-License-Identifier: Apache-2.0 */
/* Gauges, counters, peaks, and bounded lists of iterations. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>

enum { MAX_RECORDS_AT_ONCE = 100000 };

static peaks current(const window_state *w, int tier)
{
    const free_lists *lists = &w->free[tier];
    return (peaks){
        .used = w->info.blocks[tier] - lists->count, .free = lists->count, .evictable = lists->count - lists->empty};
}

void ckv_stats_sample_window(window_state *w)
{
    for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++) {
        peaks now = current(w, tier), *most = &w->peaks[tier];
        most->used = ckv_max_i64(most->used, now.used);
        most->free = ckv_max_i64(most->free, now.free);
        most->evictable = ckv_max_i64(most->evictable, now.evictable);
    }
}

void ckv_stats_sample(ckv_blocks *m)
{
    for (int32_t i = 0; i < m->num_windows; i++)
        ckv_stats_sample_window(&m->windows[i]);
}

static void start_interval(window_state *w)
{
    w->last_counters = w->counters;
    for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++)
        w->peaks[tier] = current(w, tier);
}

void ckv_stats_start(ckv_blocks *m)
{
    for (int32_t i = 0; i < m->num_windows; i++) {
        m->windows[i].counters = (ckv_blocks_counters){0};
        start_interval(&m->windows[i]);
    }
}

static void read_gauges(const window_state *w, ckv_blocks_gauges *gauges, bool with_peaks)
{
    for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++) {
        peaks now = current(w, tier);
        gauges[tier] = (ckv_blocks_gauges){
            .max = w->info.blocks[tier], .free = now.free, .used = now.used, .evictable = now.evictable};
        if (!with_peaks)
            continue;
        gauges[tier].peak_used = w->peaks[tier].used;
        gauges[tier].peak_free = w->peaks[tier].free;
        gauges[tier].peak_evictable = w->peaks[tier].evictable;
    }
}

int64_t ckv_blocks_hit_rate_ppm(const ckv_blocks_counters *counters)
{
    int64_t all = counters->reused + counters->missed;
    return all > 0 ? (counters->reused * 2000000 + all) / (2 * all) : 0;
}

ckv_status ckv_blocks_get_stats(ckv_blocks *blocks, ckv_blocks_stats *stats_out)
{
    if (stats_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "get_stats: stats_out is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "get_stats"));
    *stats_out = (ckv_blocks_stats){.allocated_bytes = 0};
    for (int32_t i = 0; i < blocks->num_windows; i++) {
        const window_state *w = &blocks->windows[i];
        read_gauges(w, stats_out->windows[i].tiers, false);
        stats_out->windows[i].counters = w->counters;
        stats_out->allocated_bytes += w->info.blocks[CKV_BLOCKS_PRIMARY] * w->info.block_bytes;
#define ADD_COUNTER(name) stats_out->total.name += w->counters.name;
        CKV_BLOCKS_COUNTER_LIST(ADD_COUNTER)
#undef ADD_COUNTER
    }
    return ckv_blocks_leave(blocks, CKV_OK);
}

ckv_status ckv_blocks_reset_stats(ckv_blocks *blocks)
{
    CKV_TRY(ckv_blocks_enter(blocks, "reset_stats"));
    ckv_stats_start(blocks);
    return ckv_blocks_leave(blocks, CKV_OK);
}

static void take_iteration(ckv_blocks *m, ckv_blocks_iteration *iteration_out)
{
    *iteration_out = (ckv_blocks_iteration){.number = m->records.next_number++};
    for (int32_t i = 0; i < m->num_windows; i++) {
        window_state *w = &m->windows[i];
        ckv_blocks_window_stats *stats = &iteration_out->windows[i];
        read_gauges(w, stats->tiers, true);
#define SUBTRACT_COUNTER(name) stats->counters.name = w->counters.name - w->last_counters.name;
        CKV_BLOCKS_COUNTER_LIST(SUBTRACT_COUNTER)
#undef SUBTRACT_COUNTER
        start_interval(w);
    }
}

ckv_status ckv_blocks_take_iteration(ckv_blocks *blocks, ckv_blocks_iteration *iteration_out)
{
    if (iteration_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "take_iteration: iteration_out is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "take_iteration"));
    take_iteration(blocks, iteration_out);
    return ckv_blocks_leave(blocks, CKV_OK);
}

/* Room for `more` records beside those that may stay. */
static bool reserve_records(records *list, int64_t more)
{
    int64_t needed = list->count + more;
    if (list->limit > 0)
        needed = ckv_min_i64(needed, list->limit);
    if (needed <= list->capacity)
        return true;
    if (list->limit < 0)
        needed = ckv_max_i64(needed, 2 * list->capacity);
    ckv_blocks_iteration *items = malloc((size_t)needed * sizeof *items);
    if (items == NULL)
        return false;
    for (int64_t i = 0; i < list->count; i++)
        items[i] = list->items[(list->first + i) % list->capacity];
    free(list->items);
    list->items = items;
    list->capacity = needed;
    list->first = 0;
    return true;
}

static void record_one(ckv_blocks *m)
{
    records *list = &m->records;
    if (list->count == list->limit) {
        list->first = (list->first + 1) % list->capacity;
        list->count--;
        list->dropped++;
    }
    take_iteration(m, &list->items[(list->first + list->count++) % list->capacity]);
}

ckv_status ckv_blocks_record(ckv_blocks *blocks, int64_t count, int64_t *kept_out)
{
    if (kept_out == NULL || count < 0 || count > MAX_RECORDS_AT_ONCE)
        return ckv_fail(CKV_ERROR_INVALID, "record: count is %" PRId64 ", at most %d; or kept_out is NULL", count,
                        MAX_RECORDS_AT_ONCE);
    CKV_TRY(ckv_blocks_enter(blocks, "record"));
    ckv_status status = CKV_OK;
    if (blocks->records.limit != 0 && !reserve_records(&blocks->records, count))
        status = ckv_fail(CKV_ERROR_MEMORY, "record: out of host memory for %" PRId64 " iterations", count);
    for (int64_t i = 0; status == CKV_OK && blocks->records.limit != 0 && i < count; i++)
        record_one(blocks);
    if (status == CKV_OK)
        *kept_out = blocks->records.count;
    return ckv_blocks_leave(blocks, status);
}

ckv_status ckv_blocks_drain_records(ckv_blocks *blocks, ckv_blocks_records *records_out)
{
    if (records_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "drain_records: records_out is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "drain_records"));
    records *list = &blocks->records;
    ckv_blocks_iteration *items = malloc((size_t)(list->count + 1) * sizeof *items);
    ckv_status status = items != NULL ? CKV_OK : ckv_fail(CKV_ERROR_MEMORY, "drain_records: out of host memory");
    if (status == CKV_OK) {
        for (int64_t i = 0; i < list->count; i++)
            items[i] = list->items[(list->first + i) % list->capacity];
        *records_out = (ckv_blocks_records){items, list->count, list->dropped};
        free(list->items);
        *list = (records){.limit = list->limit, .next_number = list->next_number};
    }
    return ckv_blocks_leave(blocks, status);
}

void ckv_blocks_records_free(ckv_blocks_records *list)
{
    if (list == NULL)
        return;
    free(list->items);
    *list = (ckv_blocks_records){NULL, 0, 0};
}
