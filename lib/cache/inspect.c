/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at a cache from the host: a block's row as a kernel reads it. */
#include "lib/cache/cache.h"

#include "lib/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One page of K or V of a layer is a dense [kv_heads, tokens_per_page, head_dim]; append its first `tokens` to
 * [tokens, kv_heads, head_dim]. */
static ckv_status append_page(const ckv_cache *cache, int64_t layer, int kv, int32_t page, int64_t tokens,
                              char *scratch, char *out, ckv_stream stream)
{
    const ckv_pool_config *config = ckv_pool_get_config(cache->pool);
    ckv_pool_view pool = ckv_pool_get_view(cache->pool);
    const char *plane =
        (const char *)pool.base + layer * pool.layer_stride + page * pool.page_stride + kv * pool.kv_stride;
    CKV_TRY(config->device->download(scratch, plane, (size_t)pool.kv_stride, stream));
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t head = 0; head < config->kv_heads; head++)
            memcpy(out + (token * config->kv_heads + head) * pool.slot_stride,
                   scratch + head * pool.head_stride + token * pool.slot_stride, (size_t)pool.slot_stride);
    return CKV_OK;
}

static ckv_status read_pages(const ckv_cache *cache, int64_t layer, const int32_t *row, int64_t tokens, char *scratch,
                             void *k_out, void *v_out, ckv_stream stream)
{
    const ckv_pool_config *config = ckv_pool_get_config(cache->pool);
    int64_t token_bytes = config->kv_heads * ckv_pool_row_bytes(cache->pool);
    char *outs[] = {k_out, v_out};
    for (int64_t at = 0; at < tokens; at += config->tokens_per_page) {
        int32_t page = row[at / config->tokens_per_page];
        if (page < 0 || page > ckv_pool_get_view(cache->pool).guard_page)
            return ckv_fail(CKV_ERROR_INTERNAL, "read_row: the row names page %" PRId32 " outside the pool", page);
        int64_t count = tokens - at < config->tokens_per_page ? tokens - at : config->tokens_per_page;
        for (int kv = 0; kv < 2; kv++)
            if (outs[kv] != NULL)
                CKV_TRY(append_page(cache, layer, kv, page, count, scratch, outs[kv] + at * token_bytes, stream));
    }
    return CKV_OK;
}

ckv_status ckv_cache_read_row(const ckv_cache *cache, int64_t layer, int64_t causal_block_size, int64_t block,
                              int64_t capacity_tokens, void *k_out, void *v_out, int64_t *seq_len_kv_out,
                              ckv_stream stream)
{
    ckv_block_view view;
    CKV_TRY(ckv_cache_block_view(cache, causal_block_size, &view));
    if (seq_len_kv_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "read_row: seq_len_kv_out is NULL");
    const ckv_pool_config *config = ckv_pool_get_config(cache->pool);
    if (layer < 0 || layer >= config->layers || block < 0 || block >= view.num_blocks)
        return ckv_fail(CKV_ERROR_INVALID,
                        "read_row: layer %" PRId64 ", block %" PRId64 "; there are %" PRId64 " layers and %" PRId64
                        " blocks of %" PRId64,
                        layer, block, config->layers, view.num_blocks, causal_block_size);
    const ckv_device *device = ckv_pool_device(cache->pool);
    int32_t seq_len_kv;
    CKV_TRY(device->download(&seq_len_kv, view.seq_len_kv + block, sizeof seq_len_kv, stream));
    if (seq_len_kv < 0 || seq_len_kv > view.max_seq_len_kv)
        return ckv_fail(CKV_ERROR_INTERNAL, "read_row: seq_len_kv is %" PRId32 ", the row holds at most %" PRId64,
                        seq_len_kv, view.max_seq_len_kv);
    if ((k_out != NULL || v_out != NULL) && seq_len_kv > capacity_tokens)
        return ckv_fail(CKV_ERROR_CAPACITY, "read_row: the row has %" PRId32 " keys, there is room for %" PRId64,
                        seq_len_kv, capacity_tokens);

    size_t row_bytes = (size_t)view.row_pages * sizeof(int32_t);
    int32_t *row = malloc(row_bytes);
    char *scratch = malloc((size_t)ckv_pool_get_view(cache->pool).kv_stride);
    ckv_status status = CKV_OK;
    if (row == NULL || scratch == NULL)
        status = ckv_fail(CKV_ERROR_MEMORY, "read_row: out of host memory");
    if (status == CKV_OK)
        status = device->download(row, view.rows + block * view.row_pages, row_bytes, stream);
    if (status == CKV_OK)
        status = read_pages(cache, layer, row, seq_len_kv, scratch, k_out, v_out, stream);
    free(row);
    free(scratch);
    if (status == CKV_OK)
        *seq_len_kv_out = seq_len_kv;
    return status;
}
