/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: what is given is checked and copied, then found by id. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

ckv_blocks_request ckv_blocks_request_default(void)
{
    return (ckv_blocks_request){.struct_size = sizeof(ckv_blocks_request),
                                .beam = 1,
                                .decode_priority = CKV_BLOCKS_DEFAULT_PRIORITY,
                                .decode_duration_ms = CKV_BLOCKS_NO_DURATION};
}

ckv_status ckv_blocks_unpack_tokens(const void *packed, size_t bytes, int32_t *tokens_out)
{
    if ((packed == NULL && bytes > 0) || tokens_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "unpack_tokens: packed or tokens_out is NULL");
    if (bytes % 4 != 0)
        return ckv_fail(CKV_ERROR_INVALID, "packed tokens are %zu bytes; they must be whole 32-bit words", bytes);
    const uint8_t *byte = packed;
    for (size_t i = 0; i < bytes / 4; i++, byte += 4) {
        uint32_t word = (uint32_t)byte[0] | (uint32_t)byte[1] << 8 | (uint32_t)byte[2] << 16 | (uint32_t)byte[3] << 24;
        memcpy(&tokens_out[i], &word, sizeof word);
    }
    return CKV_OK;
}

static ckv_status check_priority(int64_t priority, int64_t duration_ms)
{
    if (priority < 0 || priority > CKV_BLOCKS_MAX_PRIORITY)
        return ckv_fail(CKV_ERROR_INVALID, "priority %" PRId64 " is not 0 to %d", priority, CKV_BLOCKS_MAX_PRIORITY);
    if (duration_ms < 0 && duration_ms != CKV_BLOCKS_NO_DURATION)
        return ckv_fail(CKV_ERROR_INVALID, "a duration of %" PRId64 " ms is negative", duration_ms);
    return CKV_OK;
}

static int by_start(const void *a, const void *b)
{
    int64_t left = ((const ckv_blocks_range *)a)->start, right = ((const ckv_blocks_range *)b)->start;
    return (left > right) - (left < right);
}

static int by_position(const void *a, const void *b)
{
    int64_t left = ((const ckv_blocks_mm *)a)->position, right = ((const ckv_blocks_mm *)b)->position;
    return (left > right) - (left < right);
}

/* Ranges sorted by start. */
ckv_status ckv_blocks_check_ranges(const ckv_blocks_range *ranges, int64_t num_ranges)
{
    for (int64_t i = 0; i < num_ranges; i++) {
        CKV_TRY(check_priority(ranges[i].priority, ranges[i].duration_ms));
        if (ranges[i].start < 0 || ranges[i].end <= ranges[i].start)
            return ckv_fail(CKV_ERROR_INVALID, "retention range [%" PRId64 ", %" PRId64 ") is empty or negative",
                            ranges[i].start, ranges[i].end);
        if (i > 0 && ranges[i].start < ranges[i - 1].end)
            return ckv_fail(CKV_ERROR_INVALID,
                            "retention ranges overlap: one ends at %" PRId64 ", the next starts at %" PRId64,
                            ranges[i - 1].end, ranges[i].start);
    }
    return CKV_OK;
}

static ckv_status check_mm(const ckv_blocks_request *wanted)
{
    for (int64_t i = 0; i < wanted->num_mm; i++) {
        const ckv_blocks_mm *item = &wanted->mm[i];
        if (item->position < 0 || item->length < 1 || item->position > wanted->num_tokens - item->length)
            return ckv_fail(CKV_ERROR_INVALID,
                            "multimodal item of %" PRId64 " tokens at %" PRId64 " is not inside the %" PRId64 " tokens",
                            item->length, item->position, wanted->num_tokens);
    }
    return CKV_OK;
}

static ckv_status check_lists(const ckv_blocks_request *wanted)
{
    if (wanted->tokens == NULL || (wanted->mm == NULL && wanted->num_mm > 0) ||
        (wanted->ranges == NULL && wanted->num_ranges > 0) || wanted->num_mm < 0 || wanted->num_ranges < 0 ||
        wanted->num_mm > INT32_MAX || wanted->num_ranges > INT32_MAX)
        return ckv_fail(CKV_ERROR_INVALID, "request: a list is missing or has a length out of range");
    if (wanted->salt_kind < CKV_BLOCKS_NO_SALT || wanted->salt_kind > CKV_BLOCKS_SALT_TEXT ||
        (wanted->salt_kind == CKV_BLOCKS_SALT_TEXT && wanted->salt_text == NULL))
        return ckv_fail(CKV_ERROR_INVALID, "request: salt_kind %d, or its text is missing", (int)wanted->salt_kind);
    return check_mm(wanted);
}

static ckv_status check_wanted(const ckv_blocks *m, const ckv_blocks_request *wanted)
{
    if (wanted == NULL || wanted->struct_size != sizeof *wanted)
        return ckv_fail(
            CKV_ERROR_INVALID,
            "request: struct_size is not sizeof(ckv_blocks_request); start from ckv_blocks_request_default()");
    if (wanted->num_tokens < 1 || wanted->num_tokens > m->max_seq_len)
        return ckv_fail(CKV_ERROR_INVALID, "request %" PRId64 " has %" PRId64 " tokens; it must have 1 to %" PRId64,
                        wanted->id, wanted->num_tokens, m->max_seq_len);
    if (wanted->beam < 1 || wanted->beam > m->config.max_beam)
        return ckv_fail(CKV_ERROR_INVALID, "request %" PRId64 " has %" PRId64 " beams; it must have 1 to %" PRId64,
                        wanted->id, wanted->beam, m->config.max_beam);
    if (wanted->max_new < 0 || wanted->max_new > INT32_MAX || wanted->draft < 0 || wanted->draft > INT32_MAX ||
        wanted->external < 0)
        return ckv_fail(CKV_ERROR_INVALID,
                        "request %" PRId64 ": max_new %" PRId64 ", draft %" PRId64 ", external %" PRId64
                        " must be 0 or more, in 32 bits",
                        wanted->id, wanted->max_new, wanted->draft, wanted->external);
    CKV_TRY(check_priority(wanted->decode_priority, wanted->decode_duration_ms));
    return check_lists(wanted);
}

/* A copy of `count` elements with room for one at least; NULL for a NULL source. *ok turns false without memory. */
static void *copy_list(const void *source, int64_t count, size_t bytes_each, bool *ok)
{
    if (source == NULL)
        return NULL;
    void *copy = malloc((size_t)(count > 0 ? count : 1) * bytes_each);
    if (copy == NULL)
        *ok = false;
    else if (count > 0)
        memcpy(copy, source, (size_t)count * bytes_each);
    return copy;
}

static bool copy_lists(live_request *r, const ckv_blocks_request *wanted)
{
    bool ok = true;
    r->tokens = copy_list(wanted->tokens, r->num_tokens, sizeof *r->tokens, &ok);
    r->extra = copy_list(wanted->extra_ids, r->num_tokens, sizeof *r->extra, &ok);
    r->mm = copy_list(wanted->mm, r->num_mm, sizeof *r->mm, &ok);
    r->ranges = copy_list(wanted->ranges, r->num_ranges, sizeof *r->ranges, &ok);
    r->mm_scratch = malloc((size_t)(r->num_mm + 1) * sizeof *r->mm_scratch);
    if (!ok || r->mm_scratch == NULL)
        return false;
    if (r->num_mm > 0)
        qsort(r->mm, (size_t)r->num_mm, sizeof *r->mm, by_position);
    if (r->num_ranges > 0)
        qsort(r->ranges, (size_t)r->num_ranges, sizeof *r->ranges, by_start);
    return true;
}

ckv_status ckv_request_create(ckv_blocks *m, const ckv_blocks_request *wanted, live_request **request_out)
{
    CKV_TRY(check_wanted(m, wanted));
    live_request *r = calloc(1, sizeof *r);
    if (r == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "request: out of host memory");
    *r = (live_request){.id = wanted->id,
                        .num_tokens = wanted->num_tokens,
                        .capacity = wanted->num_tokens,
                        .num_mm = wanted->num_mm,
                        .space = NONE,
                        .prompt = wanted->num_tokens,
                        .beam = wanted->beam,
                        .max_new = wanted->max_new,
                        .draft = wanted->draft,
                        .external = wanted->external,
                        .num_ranges = wanted->num_ranges,
                        .decode_priority = wanted->decode_priority,
                        .decode_duration_ms = wanted->decode_duration_ms,
                        .dummy = wanted->dummy != 0,
                        .gen_init = wanted->gen_init != 0,
                        .live_at = NONE};
    ckv_status status = CKV_OK;
    if (!copy_lists(r, wanted) || (r->space = key_space_acquire(&m->trie.spaces, wanted)) == NONE)
        status = ckv_fail(CKV_ERROR_MEMORY, "request: out of host memory");
    if (status == CKV_OK)
        status = ckv_blocks_check_ranges(r->ranges, r->num_ranges);
    if (status != CKV_OK)
        ckv_request_destroy(m, r);
    else
        *request_out = r;
    return status;
}

void ckv_request_destroy(ckv_blocks *m, live_request *r)
{
    if (r == NULL)
        return;
    if (r->space != NONE)
        key_space_release(&m->trie.spaces, r->space);
    free(r->tokens);
    free(r->extra);
    free(r->mm);
    free(r->mm_scratch);
    free(r->ranges);
    for (int32_t i = 0; i < m->num_windows; i++)
        free(r->tables[i].ids);
    free(r->snapshots);
    free(r->packed);
    free(r);
}

ckv_status ckv_request_find(ckv_blocks *m, int64_t id, live_request **request_out)
{
    int64_t *at = id_map_find(&m->by_id, (uint64_t)id);
    if (at == NULL)
        return ckv_fail(CKV_ERROR_NOT_FOUND, "there is no request %" PRId64, id);
    *request_out = m->live[*at];
    return CKV_OK;
}

ckv_status ckv_request_borrow(ckv_blocks *m, int64_t id, const ckv_blocks_request *wanted, live_request **request_out,
                              bool *temporary_out)
{
    *temporary_out = wanted != NULL;
    return wanted != NULL ? ckv_request_create(m, wanted, request_out) : ckv_request_find(m, id, request_out);
}

static bool reserve_tokens(live_request *r, int64_t tokens)
{
    if (tokens <= r->capacity)
        return true;
    int64_t capacity = ckv_max_i64(tokens, r->capacity + r->capacity / 2);
    int32_t *larger = realloc(r->tokens, (size_t)capacity * sizeof *larger);
    if (larger == NULL)
        return false;
    r->tokens = larger;
    if (r->extra != NULL) {
        int64_t *extra = realloc(r->extra, (size_t)capacity * sizeof *extra);
        if (extra == NULL)
            return false;
        r->extra = extra;
    }
    r->capacity = capacity;
    return true;
}

ckv_status ckv_request_reserve(ckv_blocks *m, live_request *r, int64_t tokens)
{
    int64_t positions = ckv_ceil_div_i64(tokens, m->tokens_per_block);
    bool ok = reserve_tokens(r, tokens);
    for (int32_t i = 0; ok && i < m->num_windows; i++) {
        struct table *table = &r->tables[i];
        if (positions <= table->capacity)
            continue;
        int64_t capacity = ckv_max_i64(positions, table->capacity + table->capacity / 2);
        int32_t *ids = realloc(table->ids, (size_t)(capacity * r->beam) * sizeof *ids);
        ok = ids != NULL;
        table->ids = ok ? ids : table->ids;
        table->capacity = ok ? capacity : table->capacity;
    }
    return ok ? CKV_OK : ckv_fail(CKV_ERROR_MEMORY, "request %" PRId64 ": out of host memory", r->id);
}

key_source ckv_request_keys(const live_request *r)
{
    return (key_source){.tokens = r->tokens,
                        .extra = r->extra,
                        .mm = r->mm,
                        .num_mm = r->num_mm,
                        .scratch = r->mm_scratch,
                        .space = r->space};
}

/* The range of a sorted list that contains a token; NULL. */
static const ckv_blocks_range *find_range(const ckv_blocks_range *ranges, int64_t num_ranges, int64_t token)
{
    int64_t first = 0,
            end = num_ranges; /* those before `first` start no later than the token, those from `end` on do */
    while (first < end) {
        int64_t middle = first + (end - first) / 2;
        if (ranges[middle].start <= token)
            first = middle + 1;
        else
            end = middle;
    }
    return first > 0 && token < ranges[first - 1].end ? &ranges[first - 1] : NULL;
}

void ckv_request_retention(const ckv_blocks *m, const live_request *r, int64_t position, int64_t *priority_out,
                           int64_t *duration_out)
{
    int64_t token = position * m->tokens_per_block;
    const ckv_blocks_range *range = token < r->prompt ? find_range(r->ranges, r->num_ranges, token) : NULL;
    *priority_out = range != NULL ? range->priority : NONE;
    *duration_out = range != NULL ? range->duration_ms : CKV_BLOCKS_NO_DURATION;
}

int64_t ckv_request_shared(const ckv_blocks *m, const live_request *r)
{
    bool all = r->beam == 1 || m->config.geometry.cache == CKV_BLOCKS_CROSS;
    return all ? ckv_ceil_div_i64(r->prompt, m->tokens_per_block) : r->prompt / m->tokens_per_block;
}

bool ckv_request_is_scratch(const live_request *r, const window_state *w, int64_t position)
{
    const struct table *table = &r->tables[w->index];
    return position >= table->scratch_first && position < table->scratch_end;
}

ckv_status ckv_blocks_retention(const ckv_blocks_range *ranges, int64_t num_ranges, int64_t tokens_per_block,
                                int64_t length, int64_t *priorities_out, int64_t *durations_out)
{
    if ((ranges == NULL && num_ranges > 0) || priorities_out == NULL || durations_out == NULL || num_ranges < 0)
        return ckv_fail(CKV_ERROR_INVALID, "retention: a list is NULL or has a negative length");
    if (tokens_per_block < 1 || length < 0)
        return ckv_fail(CKV_ERROR_INVALID, "retention: tokens_per_block %" PRId64 ", length %" PRId64, tokens_per_block,
                        length);
    bool ok = true;
    ckv_blocks_range *sorted = copy_list(ranges, num_ranges, sizeof *sorted, &ok);
    if (!ok)
        return ckv_fail(CKV_ERROR_MEMORY, "retention: out of host memory");
    if (num_ranges > 0)
        qsort(sorted, (size_t)num_ranges, sizeof *sorted, by_start);
    ckv_status status = ckv_blocks_check_ranges(sorted, num_ranges);
    for (int64_t start = 0; status == CKV_OK && start < length; start += tokens_per_block) {
        const ckv_blocks_range *range = find_range(sorted, num_ranges, start);
        *priorities_out++ = range != NULL ? range->priority : NONE;
        *durations_out++ = range != NULL ? range->duration_ms : CKV_BLOCKS_NO_DURATION;
    }
    free(sorted);
    return status;
}
