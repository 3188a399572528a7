/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on the CPU, reading K/V through page-table rows exactly as a paged kernel would: the oracle of the kernels,
 * and fast enough to run a model's geometry. Accumulates in float. */
#include "lib/attention/backend.h"
#include "lib/attention/host_tile.h"
#include "lib/device/device.h"
#include "lib/pool/pool.h"
#include "lib/support/checked.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The plan is working memory: the arrays of a tile, whose size depends on head_dim only. */
typedef struct host_plan {
    ckv_host_tile tile;
    float *vector; /* [head_dim] */
    float *memory; /* all of them */
} host_plan;

/* What is the same for every tile of a call. */
typedef struct host_call {
    const ckv_attention_args *args;
    const ckv_block_view *view;
    const ckv_pool_config *pool;
    ckv_pool_view slots;
    ckv_dtype dtype; /* of q and out */
    int64_t group;   /* query heads per K/V head */
    host_plan *plan;
} host_call;

static ckv_status host_supports(const ckv_attention_args *args)
{
    ckv_pool *pool = ckv_cache_pool(args->cache);
    const ckv_device *device = ckv_pool_device(pool);
    if (!device->host_addressable)
        return ckv_fail(CKV_ERROR_UNSUPPORTED, "attention: backend host cannot read the memory of device %s",
                        device->name);
    if (args->mask != CKV_MASK_NONE)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend host takes no mask with a cache: the rows already hold exactly the window");
    if (args->quantization != CKV_QUANT_NONE)
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "attention: backend host takes no quantization with a cache: pages hold %s",
                        ckv_dtype_name(ckv_pool_get_config(pool)->dtype));
    return CKV_OK;
}

/* Cut `count` floats off the plan's memory, rounded up so that the next array is aligned too. With no memory yet, only
 * count. */
static float *take(host_plan *plan, int64_t *used, int64_t count)
{
    int64_t step = CKV_HOST_TILE_ALIGNMENT / (int64_t)sizeof(float);
    float *array = plan->memory == NULL ? NULL : plan->memory + *used;
    *used += ckv_ceil_div_i64(count, step) * step;
    return array;
}

static int64_t lay_out(host_plan *plan)
{
    ckv_host_tile *tile = &plan->tile;
    int64_t used = 0;
    tile->queries = take(plan, &used, CKV_HOST_TILE_QUERIES * tile->head_dim);
    tile->keys = take(plan, &used, CKV_HOST_TILE_KEYS * tile->head_dim);
    tile->values = take(plan, &used, CKV_HOST_TILE_KEYS * tile->padded_dim);
    tile->scores = take(plan, &used, CKV_HOST_TILE_GROUP * CKV_HOST_TILE_KEYS);
    tile->out = take(plan, &used, CKV_HOST_TILE_QUERIES * tile->padded_dim);
    tile->max = take(plan, &used, CKV_HOST_TILE_QUERIES);
    tile->sum = take(plan, &used, CKV_HOST_TILE_QUERIES);
    plan->vector = take(plan, &used, tile->head_dim);
    return used;
}

static void host_release(void *plan)
{
    if (plan != NULL)
        free(((host_plan *)plan)->memory);
    free(plan);
}

static ckv_status host_prepare(const ckv_attention_args *args, const ckv_block_view *view, ckv_stream stream,
                               void **plan_out)
{
    (void)view;
    (void)stream;
    int64_t head_dim = ckv_pool_get_config(ckv_cache_pool(args->cache))->head_dim;
    host_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return ckv_fail(CKV_ERROR_MEMORY, "attention: cannot allocate %zu bytes", sizeof *plan);
    plan->tile.head_dim = head_dim;
    plan->tile.padded_dim = ckv_ceil_div_i64(head_dim, CKV_HOST_TILE_PANEL) * CKV_HOST_TILE_PANEL;
    size_t bytes = (size_t)lay_out(plan) * sizeof(float);
    plan->memory = aligned_alloc(CKV_HOST_TILE_ALIGNMENT, bytes);
    if (plan->memory == NULL) {
        host_release(plan);
        return ckv_fail(CKV_ERROR_MEMORY, "attention: cannot allocate %zu bytes of working memory", bytes);
    }
    memset(plan->memory, 0, bytes); /* channels between head_dim and padded_dim stay zero */
    lay_out(plan);
    *plan_out = plan;
    return CKV_OK;
}

/* Address of the vector of `token`, counted along a block's row, in one K/V head of the call: kv 0 for K, 1 for V. */
static const void *key_vector(const host_call *call, const int32_t *row, int64_t token, int64_t kv, int64_t kv_head)
{
    const ckv_pool_view *slots = &call->slots;
    int64_t page = row[token / call->pool->tokens_per_page];
    int64_t slot = token % call->pool->tokens_per_page;
    slot = CKV_MUTATE(pages_of_eight_at_most, slot % 8, slot);
    return (const char *)slots->base + call->args->layer * slots->layer_stride + page * slots->page_stride +
           kv * slots->kv_stride + (call->args->first_kv_head + kv_head) * slots->head_stride +
           slot * slots->slot_stride;
}

/* The vector in float, with what a code is worth: kv as above. */
static const float *load_vector(const host_call *call, const void *source, int64_t kv, int64_t kv_head)
{
    float *vector = call->plan->vector;
    const int64_t head_dim = call->pool->head_dim;
    ckv_convert_to_float(call->pool->dtype, source, (size_t)head_dim, vector);
    if (call->slots.scales == NULL)
        return vector;
    const float scale =
        call->slots.scales[(call->args->layer * 2 + kv) * call->pool->kv_heads + call->args->first_kv_head + kv_head];
    for (int64_t d = 0; d < head_dim; d++)
        vector[d] *= scale;
    return vector;
}

/* K and V of `num_keys` tokens of a row from `first` become the panels of the tile. */
static void gather_keys(const host_call *call, const int32_t *row, int64_t first, int64_t num_keys, int64_t kv_head)
{
    ckv_host_tile *tile = &call->plan->tile;
    int64_t head_dim = tile->head_dim;
    tile->num_keys = num_keys;
    for (int64_t key = 0; key < num_keys; key++) {
        int64_t lane = key % CKV_HOST_TILE_PANEL;
        float *keys = tile->keys + (key - lane) * head_dim + lane;
        const float *vector = load_vector(call, key_vector(call, row, first + key, 0, kv_head), 0, kv_head);
        for (int64_t d = 0; d < head_dim; d++)
            keys[d * CKV_HOST_TILE_PANEL] = vector[d];

        vector = load_vector(call, key_vector(call, row, first + key, 1, kv_head), 1, kv_head);
        for (int64_t d = 0; d < head_dim; d += CKV_HOST_TILE_PANEL) {
            float *values = tile->values + d * CKV_HOST_TILE_KEYS + key * CKV_HOST_TILE_PANEL;
            int64_t channels = ckv_min_i64(CKV_HOST_TILE_PANEL, head_dim - d);
            memcpy(values, vector + d, (size_t)channels * sizeof *values);
        }
    }
}

/* Query i of a causal block and K/V head is token i / group of the block, query head i % group of those that share it.
 */
typedef struct query_place {
    int64_t row, head;
} query_place;

static query_place place_of(const host_call *call, int64_t block, int64_t kv_head, int64_t query)
{
    return (query_place){.row = block * call->args->causal_block_size + query / call->group,
                         .head = kv_head * call->group + query % call->group};
}

static void load_queries(const host_call *call, int64_t block, int64_t kv_head, int64_t first, int64_t count)
{
    const ckv_attention_args *args = call->args;
    ckv_host_tile *tile = &call->plan->tile;
    int64_t element_bytes = (int64_t)ckv_dtype_bytes(call->dtype);
    float scale = (float)args->scale;
    for (int64_t i = 0; i < count; i++) {
        query_place place = place_of(call, block, kv_head, first + i);
        int64_t offset = place.row * args->q_token_stride + place.head * args->q_head_stride;
        float *query = tile->queries + i * tile->head_dim;
        ckv_convert_to_float(call->dtype, (const char *)args->q + offset * element_bytes, (size_t)tile->head_dim,
                             query);
        for (int64_t d = 0; d < tile->head_dim; d++)
            query[d] *= scale;
        tile->max[i] = -INFINITY;
        tile->sum[i] = 0;
    }
    memset(tile->out, 0, (size_t)(count * tile->padded_dim) * sizeof *tile->out);
    tile->num_queries = ckv_ceil_div_i64(count, CKV_HOST_TILE_ROWS) * CKV_HOST_TILE_ROWS;
}

static void store_results(const host_call *call, int64_t block, int64_t kv_head, int64_t first, int64_t count)
{
    const ckv_attention_args *args = call->args;
    const ckv_host_tile *tile = &call->plan->tile;
    int64_t element_bytes = (int64_t)ckv_dtype_bytes(call->dtype);
    for (int64_t i = 0; i < count; i++) {
        query_place place = place_of(call, block, kv_head, first + i);
        int64_t offset = place.row * args->out_token_stride + place.head * args->out_head_stride;
        float *out = tile->out + i * tile->padded_dim;
        for (int64_t d = 0; d < tile->head_dim; d++)
            out[d] /= tile->sum[i];
        ckv_convert_from_float(call->dtype, out, (size_t)tile->head_dim, (char *)args->out + offset * element_bytes);
        if (args->lse != NULL)
            args->lse[place.row * args->q_heads + place.head] = tile->max[i] + logf(tile->sum[i]);
    }
}

static void attend_block(const host_call *call, int64_t block, int64_t kv_head)
{
    const int32_t *row = call->view->rows + block * call->view->row_pages;
    int64_t num_keys = call->view->seq_len_kv[block];
    num_keys += CKV_MUTATE(padding_attended, call->args->rows - call->args->seq_len, 0);
    int64_t num_queries = call->args->causal_block_size * call->group;
    for (int64_t first = 0; first < num_queries; first += CKV_HOST_TILE_QUERIES) {
        int64_t count = ckv_min_i64(CKV_HOST_TILE_QUERIES, num_queries - first);
        load_queries(call, block, kv_head, first, count);
        for (int64_t key = 0; key < num_keys; key += CKV_HOST_TILE_KEYS) {
            gather_keys(call, row, key, ckv_min_i64(CKV_HOST_TILE_KEYS, num_keys - key), kv_head);
            ckv_host_tile_attend(&call->plan->tile);
        }
        store_results(call, block, kv_head, first, count);
    }
}

static ckv_status host_run(const ckv_attention_args *args, const ckv_block_view *view, void *plan, ckv_stream stream)
{
    ckv_pool *pool = ckv_cache_pool(args->cache);
    host_call call = {
        .args = args,
        .view = view,
        .pool = ckv_pool_get_config(pool),
        .slots = ckv_pool_get_view(pool),
        .dtype = ckv_pool_config_tensor_dtype(ckv_pool_get_config(pool)),
        .plan = plan,
    };
    call.group = args->q_heads / args->kv_heads;
    CKV_TRY(ckv_pool_device(pool)->wait(stream));
    for (int64_t block = 0; block < args->seq_len / args->causal_block_size; block++)
        for (int64_t kv_head = 0; kv_head < args->kv_heads; kv_head++)
            attend_block(&call, block, kv_head);
    return CKV_OK;
}

const ckv_attention_backend ckv_attention_backend_host = {
    .name = "host",
    .supports = host_supports,
    .prepare = host_prepare,
    .run = host_run,
    .release = host_release,
};
