/* SPDX-License-Identifier: Apache-2.0 */
/* Pins: holds that belong to no table. A handle names window, block and serial. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>

enum { SEEN = 1 };

void ckv_blocks_handles_free(ckv_blocks_handles *handles)
{
    if (handles == NULL)
        return;
    free(handles->items);
    *handles = (ckv_blocks_handles){NULL, 0};
}

ckv_status ckv_pins_reserve(ckv_blocks *m, ckv_blocks_handles *handles, int64_t most)
{
    *handles = (ckv_blocks_handles){malloc((size_t)(most + 1) * sizeof *handles->items), 0};
    if (handles->items != NULL && id_map_reserve(&m->pins, most))
        return CKV_OK;
    ckv_blocks_handles_free(handles);
    return ckv_fail(CKV_ERROR_MEMORY, "pin: out of host memory for %" PRId64 " pins", most);
}

void ckv_pins_add(ckv_blocks *m, window_state *w, int32_t id, ckv_blocks_handles *handles)
{
    ckv_schedule_touch(m, &w->blocks[id]);
    ckv_block_claim(w, id);
    w->blocks[id].pins++;
    handles->items[handles->count++] = (ckv_blocks_handle){w->info.window, id, m->next_serial};
    id_map_add(&m->pins, m->next_serial++, (int64_t)w->index << 32 | id);
}

/* Pin every block of a request once: windows from the largest, positions, beams. */
static void pin_blocks(ckv_blocks *m, live_request *r, ckv_blocks_handles *handles)
{
    for (int32_t i = m->num_windows - 1; i >= 0; i--) {
        window_state *w = &m->windows[i];
        int64_t first = handles->count, entries = r->tables[i].positions * r->beam;
        for (int64_t n = 0; n < entries; n++) {
            int32_t id = r->tables[i].ids[n];
            if (id == NONE || w->blocks[id].marks != 0)
                continue;
            w->blocks[id].marks = SEEN;
            ckv_pins_add(m, w, id, handles);
        }
        for (int64_t n = first; n < handles->count; n++)
            w->blocks[handles->items[n].block].marks = 0;
    }
}

ckv_status ckv_blocks_pin(ckv_blocks *blocks, int64_t id, ckv_blocks_handles *handles_out)
{
    if (handles_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "pin: handles_out is NULL");
    CKV_TRY(ckv_blocks_enter(blocks, "pin"));
    live_request *r;
    ckv_blocks_handles handles = {NULL, 0};
    int64_t most = 0;
    ckv_status status = ckv_request_find(blocks, id, &r);
    for (int32_t i = 0; status == CKV_OK && i < blocks->num_windows; i++)
        most += r->tables[i].positions * r->beam;
    if (status == CKV_OK)
        status = ckv_pins_reserve(blocks, &handles, most);
    if (status == CKV_OK) {
        pin_blocks(blocks, r, &handles);
        *handles_out = handles;
    }
    return ckv_blocks_leave(blocks, status);
}

static bool is_live(ckv_blocks *m, const ckv_blocks_handle *handle)
{
    const int64_t *pin = id_map_find(&m->pins, handle->serial);
    return pin != NULL &&
           m->windows[*pin >> 32].info.window == ckv_blocks_clamp_window(handle->window, m->max_seq_len) &&
           (int64_t)(uint32_t)*pin == handle->block;
}

static int by_serial(const void *a, const void *b)
{
    uint64_t left = ((const ckv_blocks_handle *)a)->serial, right = ((const ckv_blocks_handle *)b)->serial;
    return (left > right) - (left < right);
}

/* All must be live pins, none named twice. `sorted` is a copy of the list. */
static ckv_status check_handles(ckv_blocks *m, ckv_blocks_handle *sorted, int64_t count)
{
    qsort(sorted, (size_t)count, sizeof *sorted, by_serial);
    for (int64_t i = 0; i < count; i++)
        if (!is_live(m, &sorted[i]) || (i > 0 && sorted[i].serial == sorted[i - 1].serial))
            return ckv_fail(CKV_ERROR_NOT_FOUND,
                            "unpin: [%" PRId64 ", %" PRId64 ", %" PRIu64 "] is no pin, or is named twice",
                            sorted[i].window, sorted[i].block, sorted[i].serial);
    return CKV_OK;
}

static void unpin(ckv_blocks *m, const ckv_blocks_handle *handle)
{
    window_state *w = ckv_blocks_lookup_window(m, handle->window);
    int32_t id = (int32_t)handle->block;
    id_map_remove(&m->pins, handle->serial);
    ckv_schedule_touch(m, &w->blocks[id]);
    if (--w->blocks[id].pins == 0 && w->blocks[id].refs == 0)
        ckv_block_release(m, w, id);
}

ckv_status ckv_blocks_unpin(ckv_blocks *blocks, const ckv_blocks_handle *handles, int64_t count)
{
    if (count < 0 || (handles == NULL && count > 0))
        return ckv_fail(CKV_ERROR_INVALID, "unpin: %" PRId64 " handles, or the list is NULL", count);
    CKV_TRY(ckv_blocks_enter(blocks, "unpin"));
    ckv_blocks_handle *sorted = malloc((size_t)(count + 1) * sizeof *sorted);
    ckv_status status = sorted != NULL ? CKV_OK : ckv_fail(CKV_ERROR_MEMORY, "unpin: out of host memory");
    for (int64_t i = 0; status == CKV_OK && i < count; i++)
        sorted[i] = handles[i];
    if (status == CKV_OK && count > 0)
        status = check_handles(blocks, sorted, count);
    for (int64_t i = 0; status == CKV_OK && i < count; i++)
        unpin(blocks, &handles[i]);
    free(sorted);
    return ckv_blocks_leave(blocks, status);
}

/* ---- find ---- */

/* Block of each position of a complete match; false when pinning is asked and one is not in primary memory. */
static bool read_path(const ckv_blocks *m, const window_state *w, const prefix_match *found, bool pin, int64_t *ids,
                      int64_t *count_out)
{
    int64_t count = 0;
    for (int64_t k = 0; k < found->full; k++)
        ids[count++] = ckv_match_block(m, w, found, k);
    if (found->partial[w->index] != NONE)
        ids[count++] = value_of(m, found->partial[w->index], w);
    *count_out = count;
    for (int64_t k = 0; pin && k < count; k++)
        if (ids[k] != NONE && w->blocks[ids[k]].tier != CKV_BLOCKS_PRIMARY)
            return false;
    return true;
}

static ckv_status find(ckv_blocks *m, window_state *w, const live_request *r, int64_t *ids_out, int64_t *count_out,
                       ckv_blocks_handles *handles_out)
{
    int64_t most = ckv_ceil_div_i64(r->num_tokens, m->tokens_per_block), count = 0;
    prefix_match found;
    ckv_blocks_handles handles = {NULL, 0};
    match_options options = {.limit = r->num_tokens, .partial = true, .copy = true, .window = w->index};
    CKV_TRY(ckv_blocks_match(m, r, options, &found));
    int64_t *ids = malloc((size_t)most * sizeof *ids);
    ckv_status status = ids != NULL ? CKV_OK : ckv_fail(CKV_ERROR_MEMORY, "find: out of host memory");
    if (status == CKV_OK && handles_out != NULL)
        status = ckv_pins_reserve(m, &handles, most);
    bool complete =
        status == CKV_OK && found.length == r->num_tokens && read_path(m, w, &found, handles_out != NULL, ids, &count);
    for (int64_t k = 0; complete && k < count; k++) {
        if (ids_out != NULL)
            ids_out[k] = ids[k];
        if (handles_out != NULL && ids[k] != NONE)
            ckv_pins_add(m, w, (int32_t)ids[k], &handles);
    }
    if (status == CKV_OK) {
        *count_out = complete ? count : 0;
        if (handles_out != NULL)
            *handles_out = handles;
    }
    free(ids);
    free(found.nodes);
    return status;
}

ckv_status ckv_blocks_find(ckv_blocks *blocks, const ckv_blocks_request *request, int64_t wanted, int64_t *ids_out,
                           int64_t *count_out, ckv_blocks_handles *handles_out)
{
    if (request == NULL || count_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "find: request or count_out is NULL");
    window_state *w;
    CKV_TRY(ckv_blocks_enter_window(blocks, "find", wanted, &w));
    live_request *r;
    ckv_status status = ckv_request_create(blocks, request, &r);
    if (status == CKV_OK) {
        status = find(blocks, w, r, ids_out, count_out, handles_out);
        ckv_request_destroy(blocks, r);
    }
    return ckv_blocks_leave(blocks, status);
}
