/* SPDX-License-Identifier: Apache-2.0 */
/* Geometry: which layers form a window, which pools it has, what a block takes. Integers only. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>

enum { MAX_TOKENS_PER_BLOCK = 1 << 20, MAX_SEQ_LEN = 1 << 30, MAX_LAYERS = 1 << 16, MAX_SIZE = 1 << 24 };

const char *ckv_blocks_dtype_name(ckv_blocks_dtype dtype)
{
    switch (dtype) {
#define DTYPE_TEXT(name, text, bits)                                                                                   \
    case CKV_BLOCKS_##name:                                                                                            \
        return text;
        CKV_BLOCKS_DTYPE_LIST(DTYPE_TEXT)
#undef DTYPE_TEXT
    case CKV_BLOCKS_NUM_DTYPES:
        break;
    }
    return "unknown";
}

static int64_t dtype_bits(ckv_blocks_dtype dtype)
{
    static const uint8_t bits_of[] = {
#define DTYPE_BITS(name, text, bits) bits,
        CKV_BLOCKS_DTYPE_LIST(DTYPE_BITS)
#undef DTYPE_BITS
    };
    return bits_of[dtype];
}

int64_t ckv_blocks_element_bytes(ckv_blocks_dtype dtype)
{
    return dtype == CKV_BLOCKS_FP4 ? 1 : dtype_bits(dtype) / 8;
}

int64_t ckv_blocks_clamp_window(int64_t window, int64_t max_seq_len)
{
    return ckv_min_i64(window, max_seq_len);
}

static ckv_status check_between(const char *name, int64_t value, int64_t least, int64_t most)
{
    if (value < least || value > most)
        return ckv_fail(CKV_ERROR_INVALID, "%s is %" PRId64 "; it must be %" PRId64 " to %" PRId64, name, value, least,
                        most);
    return CKV_OK;
}

static int64_t num_layers(const ckv_blocks_geometry *g)
{
    return g->layers > 0 ? g->layers : g->windows == NULL ? 1 : g->num_windows;
}

static int64_t layer_window(const ckv_blocks_geometry *g, int64_t layer)
{
    return g->windows == NULL ? g->max_seq_len
                              : ckv_blocks_clamp_window(g->windows[layer % g->num_windows], g->max_seq_len);
}

static int64_t layer_heads(const ckv_blocks_geometry *g, int64_t layer)
{
    return g->kv_heads != NULL ? g->kv_heads[layer] : g->kv_heads_all;
}

static ckv_status check_element(int64_t size, ckv_blocks_dtype dtype)
{
    CKV_TRY(check_between("dtype", (int64_t)dtype, 0, CKV_BLOCKS_NUM_DTYPES - 1));
    CKV_TRY(check_between("size_per_head", size, 1, MAX_SIZE));
    if (dtype == CKV_BLOCKS_FP4 && size % 16 != 0)
        return ckv_fail(CKV_ERROR_INVALID, "size_per_head is %" PRId64 "; fp4 needs a multiple of 16", size);
    return CKV_OK;
}

static ckv_status check_windows(const ckv_blocks_geometry *g)
{
    if (g->windows != NULL && g->num_windows < 1)
        return ckv_fail(CKV_ERROR_INVALID, "the list of windows is empty");
    for (int64_t i = 0; g->windows != NULL && i < g->num_windows; i++) {
        int64_t window = g->windows[i];
        if (window != CKV_BLOCKS_RECURRENT && window < 1)
            return ckv_fail(CKV_ERROR_INVALID, "window %" PRId64 " is neither -1 nor positive", window);
        if (window == CKV_BLOCKS_RECURRENT && g->state_bytes == 0)
            return ckv_fail(CKV_ERROR_INVALID, "window -1 needs the bytes of a recurrent state");
        if (window > 0 && window < g->max_seq_len && window <= g->sink_tokens)
            return ckv_fail(CKV_ERROR_INVALID, "window %" PRId64 " holds no more than its %" PRId64 " sink tokens",
                            window, g->sink_tokens);
    }
    return CKV_OK;
}

static ckv_status check_indexer(const ckv_blocks_geometry *g)
{
    if (g->indexer_head_dim == 0)
        return CKV_OK;
    CKV_TRY(check_between("indexer head_dim", g->indexer_head_dim, 1, MAX_SIZE));
    CKV_TRY(check_between("indexer quant_block", g->indexer_quant_block, 1, g->indexer_head_dim));
    if (g->indexer_head_dim % g->indexer_quant_block != 0 || (g->indexer_fp4 && g->indexer_head_dim % 2 != 0))
        return ckv_fail(CKV_ERROR_INVALID,
                        "indexer head_dim %" PRId64 " must be a multiple of quant_block %" PRId64 ", and even for fp4",
                        g->indexer_head_dim, g->indexer_quant_block);
    return CKV_OK;
}

static ckv_status check_numbers(const ckv_blocks_geometry *g)
{
    CKV_TRY(check_between("tokens_per_block", g->tokens_per_block, 1, MAX_TOKENS_PER_BLOCK));
    CKV_TRY(check_between("max_seq_len", g->max_seq_len, 1, MAX_SEQ_LEN));
    CKV_TRY(check_between("sink_tokens", g->sink_tokens, 0, MAX_SEQ_LEN));
    CKV_TRY(check_between("state_bytes", g->state_bytes, 0, (int64_t)1 << 40));
    CKV_TRY(check_between("layers", g->layers, 0, MAX_LAYERS));
    CKV_TRY(check_between("number of windows", g->windows == NULL ? 1 : g->num_windows, 1, MAX_LAYERS));
    return check_between("cache", (int64_t)g->cache, CKV_BLOCKS_SELF, CKV_BLOCKS_CROSS);
}

static ckv_status check_geometry(const ckv_blocks_geometry *g)
{
    CKV_TRY(check_numbers(g));
    CKV_TRY(check_windows(g));
    CKV_TRY(check_indexer(g));
    for (int64_t i = 0; i < num_layers(g); i++)
        CKV_TRY(
            check_between("kv_heads", layer_heads(g, i), layer_window(g, i) == CKV_BLOCKS_RECURRENT ? 0 : 1, MAX_SIZE));
    CKV_TRY(check_element(g->size_per_head, g->dtype));
    for (int64_t i = 0; i < g->num_overrides; i++)
        CKV_TRY(check_element(g->overrides[i].size_per_head, g->overrides[i].dtype));
    return CKV_OK;
}

static int ascending(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* Sort and keep one of each; how many are left. */
static int64_t distinct(int64_t *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (kept == 0 || values[kept - 1] != values[i])
            values[kept++] = values[i];
    return kept;
}

/* The window's element, after overrides that must agree. */
static ckv_status apply_overrides(const ckv_blocks_geometry *g, window_state *w)
{
    bool found = false;
    w->info.size_per_head = w->info.recurrent ? 0 : g->size_per_head;
    w->info.dtype = g->dtype;
    for (int64_t i = 0; i < g->num_overrides; i++) {
        const ckv_blocks_override *o = &g->overrides[i];
        if (ckv_blocks_clamp_window(o->window, g->max_seq_len) != w->info.window)
            continue;
        int64_t size = w->info.recurrent ? 0 : o->size_per_head;
        if (found && (size != w->info.size_per_head || o->dtype != w->info.dtype))
            return ckv_fail(CKV_ERROR_INVALID, "two overrides of window %" PRId64 " disagree", w->info.window);
        w->info.size_per_head = size;
        w->info.dtype = o->dtype;
        found = true;
    }
    return CKV_OK;
}

static ckv_status add_pool(window_state *w, ckv_blocks_pool pool, int64_t bytes_per_layer)
{
    if (w->info.num_pools == CKV_BLOCKS_MAX_POOLS)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "window %" PRId64 " has more than %d pools", w->info.window,
                        CKV_BLOCKS_MAX_POOLS);
    if (!ckv_mul_i64(bytes_per_layer, pool.layers, &pool.block_bytes) ||
        !ckv_add_i64(w->info.block_bytes, pool.block_bytes, &w->info.block_bytes) ||
        w->info.block_bytes > (int64_t)1 << 50)
        return ckv_fail(CKV_ERROR_INVALID, "a block of window %" PRId64 " is too large", w->info.window);
    w->info.pools[w->info.num_pools++] = pool;
    return CKV_OK;
}

static int64_t layers_with(const ckv_blocks_geometry *g, const window_state *w, int64_t heads)
{
    int64_t count = 0;
    for (int64_t i = 0; i < w->info.num_layers; i++)
        count += layer_heads(g, w->layers[i]) == heads;
    return count;
}

/* Token rows of K, and of V unless the cache has none, in one layer. */
static int64_t rows_per_layer(const ckv_blocks_geometry *g)
{
    return (g->cache == CKV_BLOCKS_SELF_K_ONLY ? 1 : 2) * g->tokens_per_block;
}

static ckv_status add_kv_pools(const ckv_blocks_geometry *g, window_state *w, bool scales)
{
    for (int64_t i = 0; i < w->info.num_kv_heads; i++) {
        int64_t heads = w->kv_heads[i], size = w->info.size_per_head;
        ckv_blocks_pool pool = {CKV_BLOCKS_POOL_KV, heads, size, layers_with(g, w, heads), 0};
        int64_t bytes = size * dtype_bits(w->info.dtype) / 8;
        if (w->info.dtype == CKV_BLOCKS_FP4)
            pool.size_per_head = size / 2;
        if (scales) {
            pool.kind = CKV_BLOCKS_POOL_SCALE;
            pool.size_per_head = bytes = size / 16;
        }
        int64_t row_bytes;
        if (!ckv_mul_i64(rows_per_layer(g) * heads, bytes, &row_bytes))
            return ckv_fail(CKV_ERROR_INVALID, "a block of window %" PRId64 " is too large", w->info.window);
        CKV_TRY(add_pool(w, pool, row_bytes));
    }
    return CKV_OK;
}

static ckv_status add_pools(const ckv_blocks_geometry *g, window_state *w)
{
    if (w->info.recurrent) {
        ckv_blocks_pool state = {CKV_BLOCKS_POOL_STATE, 0, 0, w->info.num_layers, 0};
        return add_pool(w, state, g->state_bytes);
    }
    CKV_TRY(add_kv_pools(g, w, false));
    if (w->info.dtype == CKV_BLOCKS_FP4)
        CKV_TRY(add_kv_pools(g, w, true));
    if (g->indexer_head_dim == 0)
        return CKV_OK;
    int64_t d = g->indexer_head_dim;
    int64_t bytes = d / g->indexer_quant_block * 4 + (g->indexer_fp4 ? d / 2 : d);
    ckv_blocks_pool indexer = {CKV_BLOCKS_POOL_INDEXER, 1, bytes, w->info.num_layers, 0};
    return add_pool(w, indexer, rows_per_layer(g) * bytes);
}

static ckv_status plan_window(const ckv_blocks_geometry *g, window_state *w)
{
    ckv_blocks_window *info = &w->info;
    info->recurrent = info->window == CKV_BLOCKS_RECURRENT;
    info->sliding = !info->recurrent && info->window < g->max_seq_len;
    info->max_tokens = g->max_seq_len;
    info->max_blocks_per_seq = ckv_ceil_div_i64(g->max_seq_len, g->tokens_per_block);
    info->sink_blocks = info->sliding ? ckv_ceil_div_i64(g->sink_tokens, g->tokens_per_block) : 0;
    w->recent = info->sliding ? info->window - g->sink_tokens : info->window;
    int64_t layers = num_layers(g);
    w->layers = calloc((size_t)layers, sizeof *w->layers);
    w->kv_heads = calloc((size_t)layers, sizeof *w->kv_heads);
    if (w->layers == NULL || w->kv_heads == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "blocks: out of host memory");
    for (int64_t i = 0; i < layers; i++) {
        if (layer_window(g, i) != info->window)
            continue;
        w->kv_heads[info->num_layers] = layer_heads(g, i);
        w->layers[info->num_layers++] = (int32_t)i;
    }
    info->num_kv_heads = info->recurrent ? 0 : distinct(w->kv_heads, info->num_layers);
    CKV_TRY(apply_overrides(g, w));
    return add_pools(g, w);
}

/* Distinct windows of the layers, ascending. */
static ckv_status list_windows(const ckv_blocks_geometry *g, int64_t *sizes_out, int32_t *count_out)
{
    int64_t layers = num_layers(g), *all = malloc((size_t)layers * sizeof *all);
    if (all == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "blocks: out of host memory");
    for (int64_t i = 0; i < layers; i++)
        all[i] = layer_window(g, i);
    int64_t count = distinct(all, layers);
    for (int64_t i = 0; i < count && i < CKV_BLOCKS_MAX_WINDOWS; i++)
        sizes_out[i] = all[i];
    free(all);
    if (count > CKV_BLOCKS_MAX_WINDOWS)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "%" PRId64 " different windows; at most %d", count,
                        CKV_BLOCKS_MAX_WINDOWS);
    *count_out = (int32_t)count;
    return CKV_OK;
}

bool ckv_blocks_is_listed(const ckv_blocks_geometry *g, int64_t window)
{
    int64_t wanted = ckv_blocks_clamp_window(window, g->max_seq_len);
    for (int64_t i = 0; g->windows != NULL && i < g->num_windows; i++)
        if (ckv_blocks_clamp_window(g->windows[i], g->max_seq_len) == wanted)
            return true;
    return g->windows == NULL && wanted == g->max_seq_len;
}

static ckv_status check_override_windows(const ckv_blocks_geometry *g)
{
    for (int64_t i = 0; i < g->num_overrides; i++)
        if (!ckv_blocks_is_listed(g, g->overrides[i].window))
            return ckv_fail(CKV_ERROR_INVALID, "an override names window %" PRId64 ", which is not listed",
                            g->overrides[i].window);
    return CKV_OK;
}

ckv_status ckv_blocks_plan_windows(const ckv_blocks_geometry *geometry, window_state *windows_out,
                                   int32_t *num_windows_out)
{
    int64_t sizes[CKV_BLOCKS_MAX_WINDOWS];
    int32_t count;
    CKV_TRY(check_geometry(geometry));
    CKV_TRY(list_windows(geometry, sizes, &count));
    ckv_status status = CKV_OK;
    for (int32_t i = 0; i < count; i++) {
        windows_out[i] = (window_state){.info = {.window = sizes[i]}, .index = i};
        if (status == CKV_OK)
            status = plan_window(geometry, &windows_out[i]);
    }
    if (status == CKV_OK)
        status = check_override_windows(geometry);
    if (status != CKV_OK)
        ckv_blocks_free_plan(windows_out, count);
    else
        *num_windows_out = count;
    return status;
}

void ckv_blocks_free_plan(window_state *windows, int32_t num_windows)
{
    for (int32_t i = 0; i < num_windows; i++) {
        free(windows[i].layers);
        free(windows[i].kv_heads);
        windows[i].layers = NULL;
        windows[i].kv_heads = NULL;
    }
}
