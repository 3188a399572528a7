/* SPDX-License-Identifier: Apache-2.0 */
/* Set-up, time, and questions about geometry. */
#include "lib/support/error.h"
#include "tools/blocks/run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_BYTES = 8, BLOCK_BYTES = 128 }; /* a payload has one integer per token; what a block takes besides it */
#define MOST_BYTES ((int64_t)4 << 30)      /* of one manager */

static const char *const dtypes[] = {
#define DTYPE_TEXT(name, text, bits) text,
    CKV_BLOCKS_DTYPE_LIST(DTYPE_TEXT)
#undef DTYPE_TEXT
        NULL};

static ckv_status op_comment(blocks_run *run, const json_t *in, json_t *out)
{
    const char *text = "";
    (void)out;
    return blocks_text(run, in, "text", &text);
}

static ckv_status op_advance(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t ms = 0;
    CKV_TRY(blocks_integer(run, in, "ms", true, &ms));
    if (ms < 0 || ms > INT64_MAX / 2 - run->now_ms)
        return blocks_refuse(run, CKV_ERROR_INVALID, "the clock cannot advance by %" PRId64 " ms", ms);
    run->now_ms += ms;
    json_object_set_new(out, "now", json_integer(run->now_ms));
    return CKV_OK;
}

static ckv_status op_refresh(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t expired[CKV_BLOCKS_MAX_WINDOWS];
    (void)in;
    CKV_TRY(ckv_blocks_refresh(run->blocks, expired));
    json_object_set_new(out, "expired", blocks_per_window(run, expired));
    return CKV_OK;
}

/* ---- Geometry ---- */

static ckv_status read_layers(blocks_run *run, const json_t *in, ckv_blocks_geometry *g)
{
    int64_t *windows, *heads = NULL, count = 0;
    CKV_TRY(blocks_integers(run, in, "windows", &windows, &g->num_windows));
    g->windows = windows;
    if (json_is_array(blocks_field(in, "kv_heads")))
        CKV_TRY(blocks_integers(run, in, "kv_heads", &heads, &count));
    else
        CKV_TRY(blocks_integer(run, in, "kv_heads", false, &g->kv_heads_all));
    bool given = blocks_field(in, "layers") != NULL;
    CKV_TRY(blocks_integer(run, in, "layers", false, &g->layers));
    if ((given && g->layers < 1) || (heads != NULL && (count < 1 || (given && g->layers != count))))
        return blocks_refuse(run, CKV_ERROR_INVALID, "%" PRId64 " layers with %" PRId64 " kv_heads", g->layers, count);
    g->layers = heads != NULL ? count : g->layers; /* 0: as many as windows, of each rank where ranks have their own */
    g->kv_heads = heads;
    return CKV_OK;
}

static ckv_status read_override(blocks_run *run, const json_t *item, const ckv_blocks_geometry *g,
                                ckv_blocks_override *o)
{
    int dtype = (int)g->dtype;
    *o = (ckv_blocks_override){.size_per_head = g->size_per_head};
    if (!json_is_object(item))
        return blocks_refuse(run, CKV_ERROR_INVALID, "an entry of 'pools' must be an object");
    CKV_TRY(blocks_integer(run, item, "window", true, &o->window));
    CKV_TRY(blocks_integer(run, item, "size_per_head", false, &o->size_per_head));
    CKV_TRY(blocks_word(run, item, "dtype", dtypes, &dtype));
    o->dtype = (ckv_blocks_dtype)dtype;
    return CKV_OK;
}

static ckv_status read_overrides(blocks_run *run, const json_t *in, ckv_blocks_geometry *g)
{
    const json_t *list = blocks_field(in, "pools");
    if (list == NULL)
        return CKV_OK;
    if (!json_is_array(list))
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'pools' must be a list");
    size_t count = json_array_size(list);
    ckv_blocks_override *overrides = arena_alloc(&run->memory, (count + 1) * sizeof *overrides);
    for (size_t i = 0; i < count; i++)
        CKV_TRY(read_override(run, json_array_get(list, i), g, &overrides[i]));
    g->overrides = overrides;
    g->num_overrides = (int64_t)count;
    return CKV_OK;
}

static ckv_status read_parts(blocks_run *run, const json_t *in, ckv_blocks_config *config)
{
    ckv_blocks_geometry *g = &config->geometry;
    const json_t *indexer = blocks_field(in, "indexer"), *state = blocks_field(in, "recurrent");
    bool fp4 = false, save_last = true;
    if ((indexer != NULL && !json_is_object(indexer)) || (state != NULL && !json_is_object(state)))
        return blocks_refuse(run, CKV_ERROR_INVALID, "fields 'indexer' and 'recurrent' must be objects");
    if (indexer != NULL) {
        CKV_TRY(blocks_integer(run, indexer, "head_dim", true, &g->indexer_head_dim));
        CKV_TRY(blocks_integer(run, indexer, "quant_block", true, &g->indexer_quant_block));
        CKV_TRY(blocks_boolean(run, indexer, "fp4", &fp4));
        if (g->indexer_head_dim < 1)
            return blocks_refuse(run, CKV_ERROR_INVALID, "indexer head_dim is %" PRId64, g->indexer_head_dim);
        g->indexer_fp4 = fp4;
    }
    if (state != NULL) {
        CKV_TRY(blocks_integer(run, state, "state_bytes", true, &g->state_bytes));
        CKV_TRY(blocks_integer(run, state, "snapshot_interval", true, &config->snapshot_interval));
        CKV_TRY(blocks_boolean(run, state, "save_last", &save_last));
        if (g->state_bytes < 1 || config->snapshot_interval < 1)
            return blocks_refuse(run, CKV_ERROR_INVALID, "state_bytes and snapshot_interval must be positive");
    }
    config->save_last_snapshot = save_last;
    return CKV_OK;
}

static ckv_status read_geometry(blocks_run *run, const json_t *in, ckv_blocks_config *config)
{
    static const char *const caches[] = {"self", "self_k_only", "cross", NULL};
    ckv_blocks_geometry *g = &config->geometry;
    int dtype = (int)g->dtype, cache = 0;
    CKV_TRY(blocks_integer(run, in, "tokens_per_block", true, &g->tokens_per_block));
    CKV_TRY(blocks_integer(run, in, "max_seq_len", true, &g->max_seq_len));
    CKV_TRY(read_layers(run, in, g));
    CKV_TRY(blocks_integer(run, in, "size_per_head", false, &g->size_per_head));
    CKV_TRY(blocks_word(run, in, "dtype", dtypes, &dtype));
    CKV_TRY(blocks_word(run, in, "cache", caches, &cache));
    g->dtype = (ckv_blocks_dtype)dtype;
    g->cache = (ckv_blocks_cache)cache;
    CKV_TRY(blocks_integer(run, in, "sink_tokens", false, &g->sink_tokens));
    CKV_TRY(read_overrides(run, in, g));
    return read_parts(run, in, config);
}

/* ---- init ---- */

static ckv_status read_pair(blocks_run *run, const json_t *list, ckv_blocks_count *count)
{
    int64_t *values, length;
    CKV_TRY(blocks_list(run, list, "blocks", &values, &length));
    if (length != CKV_BLOCKS_TIERS)
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'blocks' must be [primary, host], or that by window");
    memcpy(count->blocks, values, sizeof count->blocks);
    return CKV_OK;
}

static bool read_key(const char *text, int64_t *window)
{
    char *end;
    errno = 0;
    *window = strtoll(text, &end, 10);
    bool digits = text[0] == '-' || (text[0] >= '1' && text[0] <= '9');
    return digits && errno == 0 && end != text && *end == '\0';
}

static ckv_status read_counts(blocks_run *run, const json_t *in, ckv_blocks_config *config)
{
    const json_t *blocks = blocks_field(in, "blocks");
    size_t length = json_is_object(blocks) ? json_object_size(blocks) : 1;
    ckv_blocks_count *counts = arena_alloc(&run->memory, (length + 1) * sizeof *counts);
    config->counts = counts;
    config->num_counts = (int64_t)length;
    if (json_is_array(blocks))
        return read_pair(run, blocks, counts);
    if (!json_is_object(blocks))
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'blocks' must be [primary, host], or that by window");
    json_t *object = json_object_get(in, "blocks"), *value;
    const char *key;
    json_object_foreach(object, key, value)
    {
        if (!read_key(key, &counts->window))
            return blocks_refuse(run, CKV_ERROR_INVALID, "'%.64s' in 'blocks' is no window", key);
        CKV_TRY(read_pair(run, value, counts));
        counts++;
    }
    return CKV_OK;
}

static ckv_status read_reuse(blocks_run *run, const json_t *in, ckv_blocks_config *config)
{
    static const char *const policies[] = {"all", "per_request", "per_conversation", NULL};
    bool reuse = true, partial = true, copy = true, scratch = false;
    int policy = 0;
    CKV_TRY(blocks_boolean(run, in, "reuse", &reuse));
    CKV_TRY(blocks_boolean(run, in, "partial_reuse", &partial));
    CKV_TRY(blocks_boolean(run, in, "copy_on_partial", &copy));
    CKV_TRY(blocks_boolean(run, in, "swa_scratch", &scratch));
    CKV_TRY(blocks_word(run, in, "reuse_policy", policies, &policy));
    if (policy == 2)
        return blocks_refuse(run, CKV_ERROR_UNSUPPORTED, "reuse_policy 'per_conversation' is not supported");
    config->reuse = reuse;
    config->partial_reuse = partial;
    config->copy_on_partial = copy;
    config->swa_scratch = scratch;
    config->policy = (ckv_blocks_policy)policy;
    return CKV_OK;
}

/* A field that, when it is there, must be at least 1; 0 means absent to the library. */
static ckv_status read_positive(blocks_run *run, const json_t *in, const char *name, int64_t *value)
{
    CKV_TRY(blocks_integer(run, in, name, false, value));
    if (blocks_field(in, name) != NULL && *value < 1)
        return blocks_refuse(run, CKV_ERROR_INVALID, "%s is %" PRId64 "; it must be at least 1", name, *value);
    return CKV_OK;
}

static int64_t read_clock(void *context)
{
    return ((const blocks_run *)context)->now_ms;
}

static ckv_status read_config(blocks_run *run, const json_t *in, ckv_blocks_config *config)
{
    *config = ckv_blocks_config_default();
    CKV_TRY(read_geometry(run, in, config));
    CKV_TRY(read_counts(run, in, config));
    CKV_TRY(read_reuse(run, in, config));
    CKV_TRY(read_positive(run, in, "max_beam", &config->max_beam));
    CKV_TRY(read_positive(run, in, "max_sequences", &config->max_sequences));
    CKV_TRY(read_positive(run, in, "chunk_size", &config->chunk_size));
    CKV_TRY(blocks_integer(run, in, "offload_min_priority", false, &config->offload_min_priority));
    CKV_TRY(blocks_integer(run, in, "max_rewind", false, &config->max_rewind));
    CKV_TRY(blocks_integer(run, in, "event_buffer", false, &config->event_buffer));
    CKV_TRY(blocks_integer(run, in, "stats_limit", false, &config->stats_limit));
    config->first_pin_serial = run->next_serial;
    config->now_ms = read_clock;
    config->now_context = run;
    config->row_bytes = ROW_BYTES;
    return ckv_device_find("host", &config->device);
}

/* A script must not take the machine's memory with one line. What is out of range is left to the library. */
static ckv_status check_size(blocks_run *run, const ckv_blocks_config *config)
{
    const ckv_blocks_geometry *g = &config->geometry;
    if (g->tokens_per_block < 1 || g->tokens_per_block > MOST_BYTES)
        return CKV_OK;
    int64_t most = MOST_BYTES / (ROW_BYTES * g->tokens_per_block + BLOCK_BYTES);
    for (int64_t i = 0; i < config->num_counts; i++) {
        int64_t windows = config->counts[i].window == 0 && g->num_windows > 0 ? g->num_windows : 1;
        for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++) {
            int64_t blocks = config->counts[i].blocks[tier];
            if (blocks > most / windows)
                return blocks_refuse(run, CKV_ERROR_CAPACITY, "%" PRId64 " blocks are more than scripts may have",
                                     blocks);
            most -= blocks > 0 ? blocks * windows : 0;
        }
    }
    return CKV_OK;
}

static ckv_status op_init(blocks_run *run, const json_t *in, json_t *out)
{
    ckv_blocks_config config;
    ckv_blocks *blocks;
    CKV_TRY(read_config(run, in, &config));
    CKV_TRY(check_size(run, &config));
    CKV_TRY(ckv_blocks_create(&config, &blocks));
    blocks_engine_clear(run);
    ckv_blocks_destroy(&run->blocks);
    run->blocks = blocks;
    run->num_windows = ckv_blocks_num_windows(blocks);
    run->tokens_per_block = config.geometry.tokens_per_block;
    run->max_seq_len = config.geometry.max_seq_len;
    json_t *windows = json_array();
    for (int64_t i = 0; i < run->num_windows; i++) {
        CKV_TRY(ckv_blocks_get_window(blocks, i, &run->windows[i]));
        json_array_append_new(windows, json_integer(run->windows[i].window));
    }
    json_object_set_new(out, "windows", windows);
    return CKV_OK;
}

static json_t *pool_json(const ckv_blocks_pool *pool)
{
    static const char *const kinds[] = {"kv", "scale", "indexer", "state"};
    return json_pack("{ss sI sI sI sI}", "kind", kinds[pool->kind], "heads", (json_int_t)pool->heads, "size_per_head",
                     (json_int_t)pool->size_per_head, "layers", (json_int_t)pool->layers, "block_bytes",
                     (json_int_t)pool->block_bytes);
}

static ckv_status window_json(blocks_run *run, int64_t index, json_t **value)
{
    const ckv_blocks_window *w = &run->windows[index];
    int64_t *layers = arena_alloc(&run->memory, (size_t)(w->num_layers + 1) * sizeof *layers);
    int64_t *heads = arena_alloc(&run->memory, (size_t)(w->num_kv_heads + 1) * sizeof *heads);
    CKV_TRY(ckv_blocks_get_layers(run->blocks, index, layers, heads));
    json_t *pools = json_array();
    for (int64_t i = 0; i < w->num_pools; i++)
        json_array_append_new(pools, pool_json(&w->pools[i]));
    *value =
        json_pack("{sb sI sI sI ss so so so sI sI sI sI}", "swa", w->sliding, "primary",
                  (json_int_t)w->blocks[CKV_BLOCKS_PRIMARY], "secondary", (json_int_t)w->blocks[CKV_BLOCKS_HOST],
                  "size_per_head", (json_int_t)w->size_per_head, "dtype", ckv_blocks_dtype_name(w->dtype), "layers",
                  blocks_integers_json(layers, w->num_layers), "kv_heads", blocks_integers_json(heads, w->num_kv_heads),
                  "pools", pools, "block_bytes", (json_int_t)w->block_bytes, "max_tokens", (json_int_t)w->max_tokens,
                  "max_blocks_per_seq", (json_int_t)w->max_blocks_per_seq, "sink_blocks", (json_int_t)w->sink_blocks);
    return CKV_OK;
}

static ckv_status op_windows(blocks_run *run, const json_t *in, json_t *out)
{
    json_t *windows = json_object();
    json_object_set_new(out, "windows", windows);
    (void)in;
    for (int64_t i = 0; i < run->num_windows; i++) {
        json_t *value;
        CKV_TRY(window_json(run, i, &value));
        blocks_set_window(run, windows, i, value);
    }
    return CKV_OK;
}

/* ---- Sizing ---- */

static ckv_status read_rank(blocks_run *run, const json_t *object, ckv_blocks_rank *rank)
{
    int64_t *windows;
    if (!json_is_object(object))
        return blocks_refuse(run, CKV_ERROR_INVALID, "an entry of 'ranks' must be an object");
    *rank = (ckv_blocks_rank){{0}, NULL, 0};
    CKV_TRY(blocks_integer(run, object, "primary_bytes", true, &rank->bytes[CKV_BLOCKS_PRIMARY]));
    CKV_TRY(blocks_integer(run, object, "secondary_bytes", false, &rank->bytes[CKV_BLOCKS_HOST]));
    CKV_TRY(blocks_integers(run, object, "windows", &windows, &rank->num_windows));
    rank->windows = windows;
    return CKV_OK;
}

static ckv_status read_ranks(blocks_run *run, const json_t *in, ckv_blocks_sizing *sizing)
{
    const json_t *list = blocks_field(in, "ranks");
    size_t count = list != NULL ? json_array_size(list) : 1;
    ckv_blocks_rank *ranks = arena_alloc(&run->memory, (count + 1) * sizeof *ranks);
    sizing->ranks = ranks;
    sizing->num_ranks = (int64_t)count;
    if (list == NULL) {
        CKV_TRY(read_rank(run, in, &ranks[0]));
        ranks[0].windows = NULL; /* the geometry's own */
        return CKV_OK;
    }
    for (size_t i = 0; i < count; i++)
        CKV_TRY(read_rank(run, json_array_get(list, i), &ranks[i]));
    return CKV_OK;
}

static ckv_status read_share(blocks_run *run, const json_t *in, ckv_blocks_sizing *sizing)
{
    static const char *const shares[] = {"equal", "proportional", NULL};
    int share = 0;
    int64_t *weights = NULL;
    if (json_is_array(blocks_field(in, "share"))) {
        CKV_TRY(blocks_integers(run, in, "share", &weights, &sizing->num_weights));
        share = CKV_BLOCKS_SHARE_WEIGHTS;
    } else {
        CKV_TRY(blocks_word(run, in, "share", shares, &share));
    }
    sizing->weights = weights;
    sizing->share = (ckv_blocks_share)share;
    return CKV_OK;
}

static ckv_status op_size_pools(blocks_run *run, const json_t *in, json_t *out)
{
    ckv_blocks_config config = ckv_blocks_config_default();
    ckv_blocks_sizing sizing = {.max_batch = 1};
    bool reuse = true;
    CKV_TRY(read_geometry(run, in, &config));
    CKV_TRY(read_ranks(run, in, &sizing));
    CKV_TRY(read_share(run, in, &sizing));
    CKV_TRY(blocks_integer(run, in, "extra_bytes", false, &sizing.extra_bytes));
    CKV_TRY(read_positive(run, in, "max_tokens", &sizing.max_tokens));
    CKV_TRY(blocks_integer(run, in, "max_batch", false, &sizing.max_batch));
    CKV_TRY(blocks_boolean(run, in, "reuse", &reuse));
    sizing.geometry = config.geometry;
    sizing.reuse = reuse;
    ckv_blocks_count counts[CKV_BLOCKS_MAX_WINDOWS];
    int64_t block_bytes[CKV_BLOCKS_MAX_WINDOWS], num_windows;
    CKV_TRY(ckv_blocks_size_pools(&sizing, counts, block_bytes, &num_windows));
    json_t *windows = json_object();
    for (int64_t i = 0; i < num_windows; i++) {
        char name[24];
        snprintf(name, sizeof name, "%" PRId64, counts[i].window);
        json_object_set_new(windows, name,
                            json_pack("{so sI}", "blocks", blocks_integers_json(counts[i].blocks, CKV_BLOCKS_TIERS),
                                      "block_bytes", (json_int_t)block_bytes[i]));
    }
    json_object_set_new(out, "windows", windows);
    return CKV_OK;
}

static ckv_status op_window_share(blocks_run *run, const json_t *in, json_t *out)
{
    const json_t *list = blocks_field(in, "windows");
    int64_t windows[CKV_BLOCKS_MAX_WINDOWS], bytes[CKV_BLOCKS_MAX_WINDOWS], share[CKV_BLOCKS_MAX_WINDOWS];
    size_t count = json_array_size(list);
    if (count < 1 || count > CKV_BLOCKS_MAX_WINDOWS)
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'windows' must be a list of 1 to %d windows",
                             CKV_BLOCKS_MAX_WINDOWS);
    for (size_t i = 0; i < count; i++) {
        CKV_TRY(blocks_integer(run, json_array_get(list, i), "window", true, &windows[i]));
        CKV_TRY(blocks_integer(run, json_array_get(list, i), "bytes_per_token", true, &bytes[i]));
    }
    CKV_TRY(ckv_blocks_window_share(windows, bytes, (int64_t)count, share));
    json_t *object = json_object();
    for (size_t i = 0; i < count; i++) {
        char name[24];
        snprintf(name, sizeof name, "%" PRId64, windows[i]);
        json_object_set_new(object, name, json_integer(share[i]));
    }
    json_object_set_new(out, "share_ppm", object);
    return CKV_OK;
}

const blocks_op blocks_setup_ops[] = {
    {"comment", op_comment, true, false},           {"init", op_init, true, true},
    {"advance_ms", op_advance, false, false},       {"refresh", op_refresh, false, true},
    {"windows", op_windows, false, false},          {"size_pools", op_size_pools, true, false},
    {"window_share", op_window_share, true, false}, {NULL, NULL, false, false},
};
