/* SPDX-License-Identifier: Apache-2.0 */
/* The manager as a whole: creation, locking, windows. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BLOCKS = 1 << 30, MAX_BEAM = 1 << 16 };

ckv_blocks_config ckv_blocks_config_default(void)
{
    return (ckv_blocks_config){.struct_size = sizeof(ckv_blocks_config),
                               .geometry = {.kv_heads_all = 1, .size_per_head = 1, .dtype = CKV_BLOCKS_F16},
                               .max_beam = 1,
                               .reuse = 1,
                               .partial_reuse = 1,
                               .copy_on_partial = 1,
                               .offload_min_priority = 30,
                               .save_last_snapshot = 1,
                               .first_pin_serial = 1};
}

static ckv_status check_number(const char *name, int64_t value, int64_t least, int64_t most)
{
    if (value < least || value > most)
        return ckv_fail(CKV_ERROR_INVALID, "%s is %" PRId64 "; it must be %" PRId64 " to %" PRId64, name, value, least,
                        most);
    return CKV_OK;
}

static ckv_status check_config(const ckv_blocks_config *config)
{
    if (config->struct_size != sizeof *config)
        return ckv_fail(
            CKV_ERROR_INVALID,
            "blocks config: struct_size is not sizeof(ckv_blocks_config); start from ckv_blocks_config_default()");
    CKV_TRY(check_number("max_beam", config->max_beam, 1, MAX_BEAM));
    CKV_TRY(check_number("max_sequences", config->max_sequences, 0, INT64_MAX));
    CKV_TRY(check_number("chunk_size", config->chunk_size, 0, INT32_MAX));
    CKV_TRY(check_number("max_rewind", config->max_rewind, 0, INT32_MAX));
    CKV_TRY(check_number("offload_min_priority", config->offload_min_priority, 0, CKV_BLOCKS_MAX_PRIORITY));
    CKV_TRY(check_number("reuse_policy", (int64_t)config->policy, 0, CKV_BLOCKS_REUSE_PER_REQUEST));
    CKV_TRY(check_number("event_buffer", config->event_buffer, -1, INT64_MAX));
    CKV_TRY(check_number("stats_limit", config->stats_limit, -1, INT64_MAX));
    CKV_TRY(check_number("row_bytes", config->row_bytes, 0, INT32_MAX));
    return check_number("snapshot_interval", config->snapshot_interval, 0, INT32_MAX);
}

static ckv_status check_recurrent(const ckv_blocks *m)
{
    if (m->recurrent == NONE)
        return CKV_OK;
    int64_t interval = m->config.snapshot_interval;
    if (interval < 1 || interval % m->tokens_per_block != 0)
        return ckv_fail(CKV_ERROR_INVALID,
                        "snapshot_interval is %" PRId64 "; it must be a multiple of tokens_per_block %" PRId64,
                        interval, m->tokens_per_block);
    const window_state *largest = &m->windows[m->num_windows - 1];
    if (largest->info.recurrent || largest->info.sliding)
        return ckv_fail(CKV_ERROR_INVALID, "window -1 needs a full window, %" PRId64 ", beside it", m->max_seq_len);
    if (m->config.reuse && m->config.partial_reuse)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "recurrent state cannot be reused in part; switch partial_reuse off");
    return CKV_OK;
}

/* Block counts of one window: every entry that names it must agree. */
static ckv_status count_window(const ckv_blocks *m, const ckv_blocks_config *config, window_state *w)
{
    bool found = false;
    for (int64_t i = 0; i < config->num_counts; i++) {
        const ckv_blocks_count *c = &config->counts[i];
        if (c->window != 0 && ckv_blocks_clamp_window(c->window, m->max_seq_len) != w->info.window)
            continue;
        if (found && (c->blocks[0] != w->info.blocks[0] || c->blocks[1] != w->info.blocks[1]))
            return ckv_fail(CKV_ERROR_INVALID, "two block counts of window %" PRId64 " disagree", w->info.window);
        memcpy(w->info.blocks, c->blocks, sizeof w->info.blocks);
        found = true;
    }
    if (!found)
        return ckv_fail(CKV_ERROR_INVALID, "window %" PRId64 " has no block count", w->info.window);
    CKV_TRY(check_number("primary blocks", w->info.blocks[CKV_BLOCKS_PRIMARY], 1, MAX_BLOCKS));
    CKV_TRY(check_number("host blocks", w->info.blocks[CKV_BLOCKS_HOST], 0, MAX_BLOCKS - 1));
    w->total = (int32_t)(w->info.blocks[CKV_BLOCKS_PRIMARY] + w->info.blocks[CKV_BLOCKS_HOST]);
    return CKV_OK;
}

static ckv_status count_windows(ckv_blocks *m, const ckv_blocks_config *config)
{
    for (int64_t i = 0; i < config->num_counts; i++)
        if (config->counts[i].window != 0 && !ckv_blocks_is_listed(&config->geometry, config->counts[i].window))
            return ckv_fail(CKV_ERROR_INVALID, "blocks are counted for window %" PRId64 ", which is not listed",
                            config->counts[i].window);
    for (int32_t i = 0; i < m->num_windows; i++)
        CKV_TRY(count_window(m, config, &m->windows[i]));
    return CKV_OK;
}

static ckv_status allocate_windows(ckv_blocks *m)
{
    for (int32_t i = 0; i < m->num_windows; i++) {
        window_state *w = &m->windows[i];
        w->blocks = malloc((size_t)w->total * sizeof *w->blocks);
        w->deadlines = malloc((size_t)w->total * sizeof *w->deadlines);
        if (w->blocks == NULL || w->deadlines == NULL)
            return ckv_fail(CKV_ERROR_MEMORY, "blocks: out of host memory for %d blocks", w->total);
        ckv_lists_init(w);
    }
    if (!trie_init(&m->trie, (int32_t)m->tokens_per_block, m->num_windows))
        return ckv_fail(CKV_ERROR_MEMORY, "blocks: out of host memory");
    return CKV_OK;
}

static ckv_status set_up(ckv_blocks *m, const ckv_blocks_config *config)
{
    CKV_TRY(ckv_blocks_plan_windows(&config->geometry, m->windows, &m->num_windows));
    for (int32_t i = 0; i < m->num_windows; i++)
        if (m->windows[i].info.recurrent)
            m->recurrent = i;
    CKV_TRY(check_recurrent(m));
    CKV_TRY(count_windows(m, config));
    CKV_TRY(allocate_windows(m));
    if (config->device != NULL)
        CKV_TRY(ckv_payload_create(m->config.device, m->windows, m->num_windows, config->row_bytes, m->tokens_per_block,
                                   &m->payload));
    ckv_stats_start(m);
    ckv_events_created(m);
    return CKV_OK;
}

ckv_status ckv_blocks_create(const ckv_blocks_config *config, ckv_blocks **blocks_out)
{
    if (config == NULL || blocks_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "blocks_create: config or blocks_out is NULL");
    CKV_TRY(check_config(config));
    ckv_blocks *m = calloc(1, sizeof *m);
    if (m == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "blocks: out of host memory");
    pthread_mutex_init(&m->lock, NULL);
    m->config = *config;
    m->tokens_per_block = config->geometry.tokens_per_block;
    m->max_seq_len = config->geometry.max_seq_len;
    if (m->config.chunk_size == 0)
        m->config.chunk_size = m->max_seq_len;
    m->recurrent = NONE;
    m->next_serial = config->first_pin_serial;
    m->events.limit = config->event_buffer;
    m->records.limit = config->stats_limit;
    ckv_status status = set_up(m, config);
    if (status != CKV_OK)
        ckv_blocks_destroy(&m);
    else
        *blocks_out = m;
    return status;
}

void ckv_blocks_destroy(ckv_blocks **blocks)
{
    if (blocks == NULL || *blocks == NULL)
        return;
    ckv_blocks *m = *blocks;
    ckv_payload_destroy(&m->payload);
    for (int64_t i = 0; i < m->num_live; i++)
        ckv_request_destroy(m, m->live[i]);
    ckv_events_free(m);
    free(m->records.items);
    for (int32_t i = 0; i < m->num_windows; i++) {
        free(m->windows[i].blocks);
        free(m->windows[i].deadlines);
        free(m->windows[i].removed);
    }
    ckv_blocks_free_plan(m->windows, m->num_windows);
    trie_free(&m->trie);
    id_map_free(&m->by_id);
    id_map_free(&m->pins);
    free(m->live);
    pthread_mutex_destroy(&m->lock);
    free(m);
    *blocks = NULL;
}

ckv_status ckv_blocks_enter(ckv_blocks *m, const char *call)
{
    if (m == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "%s: blocks is NULL", call);
    pthread_mutex_lock(&m->lock);
    m->entered = ckv_payload_ticket(m->payload);
    return CKV_OK;
}

/* Copies were decided in order under the lock; they are made in that order outside of it, so that readers of events and
 * statistics do not wait for them. */
ckv_status ckv_blocks_leave(ckv_blocks *m, ckv_status status)
{
    ckv_stats_sample(m);
    uint64_t ticket = ckv_payload_ticket(m->payload);
    bool moves = ticket > m->entered;
    pthread_mutex_unlock(&m->lock);
    ckv_status moved = moves ? ckv_payload_run(m->payload, ticket) : CKV_OK;
    return status != CKV_OK ? status : moved;
}

window_state *ckv_blocks_lookup_window(ckv_blocks *m, int64_t wanted)
{
    int64_t clamped = ckv_blocks_clamp_window(wanted, m->max_seq_len);
    for (int32_t i = 0; i < m->num_windows; i++)
        if (m->windows[i].info.window == clamped)
            return &m->windows[i];
    return NULL;
}

ckv_status ckv_blocks_no_window(int64_t wanted)
{
    return ckv_fail(CKV_ERROR_NOT_FOUND, "there is no window %" PRId64, wanted);
}

ckv_status ckv_blocks_enter_window(ckv_blocks *m, const char *call, int64_t wanted, window_state **window_out)
{
    CKV_TRY(ckv_blocks_enter(m, call));
    *window_out = ckv_blocks_lookup_window(m, wanted);
    return *window_out != NULL ? CKV_OK : ckv_blocks_leave(m, ckv_blocks_no_window(wanted));
}

int64_t ckv_blocks_num_windows(const ckv_blocks *blocks)
{
    return blocks->num_windows;
}

static ckv_status check_index(const ckv_blocks *m, int64_t index)
{
    if (index < 0 || index >= m->num_windows)
        return ckv_fail(CKV_ERROR_NOT_FOUND, "window index %" PRId64 " of %d", index, m->num_windows);
    return CKV_OK;
}

ckv_status ckv_blocks_get_window(const ckv_blocks *blocks, int64_t index, ckv_blocks_window *window_out)
{
    if (blocks == NULL || window_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "get_window: blocks or window_out is NULL");
    CKV_TRY(check_index(blocks, index));
    *window_out = blocks->windows[index].info;
    return CKV_OK;
}

ckv_status ckv_blocks_find_window(const ckv_blocks *blocks, int64_t wanted, int64_t *index_out)
{
    if (blocks == NULL || index_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "find_window: blocks or index_out is NULL");
    int64_t clamped = ckv_blocks_clamp_window(wanted, blocks->max_seq_len);
    for (int32_t i = 0; i < blocks->num_windows; i++) {
        if (blocks->windows[i].info.window == clamped) {
            *index_out = i;
            return CKV_OK;
        }
    }
    return ckv_blocks_no_window(wanted);
}

ckv_status ckv_blocks_get_layers(const ckv_blocks *blocks, int64_t index, int64_t *layers_out, int64_t *kv_heads_out)
{
    if (blocks == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "get_layers: blocks is NULL");
    CKV_TRY(check_index(blocks, index));
    const window_state *w = &blocks->windows[index];
    for (int64_t i = 0; layers_out != NULL && i < w->info.num_layers; i++)
        layers_out[i] = w->layers[i];
    for (int64_t i = 0; kv_heads_out != NULL && i < w->info.num_kv_heads; i++)
        kv_heads_out[i] = w->kv_heads[i];
    return CKV_OK;
}
