/* SPDX-License-Identifier: Apache-2.0 */
#include <ckv/attention.h>

#include "lib/attention/attention.h"
#include "lib/attention/backend.h"
#include "lib/cache/cache.h"
#include "lib/device/device.h"
#include "lib/pool/pool.h"
#include "lib/support/checked.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* In the order "auto" tries them. */
static const ckv_attention_backend *const backends[] = {
#ifdef CKV_HAVE_CUDNN
    &ckv_attention_backend_cudnn,
#endif
#ifdef CKV_HAVE_CUDA
    &ckv_attention_backend_hopper,
#endif
    &ckv_attention_backend_host,
};
enum { NUM_BACKENDS = sizeof backends / sizeof backends[0] };

/* Names that some build knows. */
static const char *const known_backends[] = {"host", "cudnn", "hopper"};
enum { NUM_KNOWN_BACKENDS = sizeof known_backends / sizeof known_backends[0] };

ckv_attention_args ckv_attention_args_default(void)
{
    return (ckv_attention_args){.struct_size = sizeof(ckv_attention_args)};
}

static const ckv_pool_config *pool_config(const ckv_attention_args *args)
{
    return ckv_pool_get_config(ckv_cache_pool(args->cache));
}

void ckv_attention_args_set_packed(ckv_attention_args *args, const void *qkv)
{
    const ckv_pool_config *pool = pool_config(args);
    int64_t head_dim = pool->head_dim;
    int64_t token_stride = (args->q_heads + 2 * pool->kv_heads) * head_dim;
    size_t head_bytes = (size_t)head_dim * ckv_dtype_bytes(ckv_pool_config_tensor_dtype(pool));
    args->q = qkv;
    args->q_token_stride = token_stride;
    args->q_head_stride = head_dim;
    args->kv = (ckv_kv){
        .k = (const char *)qkv + (size_t)args->q_heads * head_bytes,
        .v = (const char *)qkv + (size_t)(args->q_heads + pool->kv_heads) * head_bytes,
        .k_token_stride = token_stride,
        .k_head_stride = head_dim,
        .v_token_stride = token_stride,
        .v_head_stride = head_dim,
    };
}

size_t ckv_attention_num_backends(void)
{
    return NUM_BACKENDS;
}

const char *ckv_attention_backend_name(size_t index)
{
    return index < NUM_BACKENDS ? backends[index]->name : NULL;
}

static ckv_status find_backend(const char *name, const ckv_attention_backend **backend_out)
{
    for (size_t i = 0; i < NUM_BACKENDS; i++) {
        if (strcmp(name, backends[i]->name) == 0) {
            *backend_out = backends[i];
            return CKV_OK;
        }
    }
    for (size_t i = 0; i < NUM_KNOWN_BACKENDS; i++)
        if (strcmp(name, known_backends[i]) == 0)
            return ckv_fail(CKV_ERROR_UNSUPPORTED, "attention: backend %s is not in this build", name);
    return ckv_fail(CKV_ERROR_INVALID, "attention: no backend is called '%s'; there are auto, host, cudnn, hopper",
                    name);
}

/* The backend the caller names, the first that supports the call and prefers it, or the first that supports it; else
 * every reason. */
static ckv_status choose_backend(const ckv_attention_args *args, const ckv_attention_backend **backend_out)
{
    if (args->backend != NULL && strcmp(args->backend, "auto") != 0) {
        CKV_TRY(find_backend(args->backend, backend_out));
        return (*backend_out)->supports(args);
    }
    for (size_t i = 0; i < NUM_BACKENDS; i++) {
        if (backends[i]->prefers != NULL && backends[i]->prefers(args) && backends[i]->supports(args) == CKV_OK) {
            *backend_out = backends[i];
            return CKV_OK;
        }
    }
    char reasons[384] = "";
    for (size_t i = 0; i < NUM_BACKENDS; i++) {
        if (backends[i]->supports(args) == CKV_OK) {
            *backend_out = backends[i];
            return CKV_OK;
        }
        size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof reasons - used, "%s%s", i > 0 ? "; " : "", ckv_last_error());
    }
    return ckv_fail(CKV_ERROR_UNSUPPORTED, "attention: no backend supports this call: %s", reasons);
}

static ckv_status check_struct(const ckv_attention_args *args)
{
    if (args == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "attention: args is NULL");
    if (args->struct_size != sizeof *args)
        return ckv_fail(CKV_ERROR_INVALID, "attention: struct_size is %zu, this library's is %zu", args->struct_size,
                        sizeof *args);
    if (args->cache == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "attention: cache is NULL; this call attends over a cache");
    return CKV_OK;
}

/* 0 heads are all of them. */
static ckv_status check_heads(const ckv_attention_args *args, int64_t cache_heads)
{
    int64_t kv_heads = args->kv_heads != 0 ? args->kv_heads : cache_heads;
    if (kv_heads < 1 || args->first_kv_head < 0 || kv_heads > cache_heads ||
        args->first_kv_head > cache_heads - kv_heads)
        return ckv_fail(CKV_ERROR_INVALID, "attention: K/V heads %" PRId64 " from %" PRId64 "; the cache has %" PRId64,
                        kv_heads, args->first_kv_head, cache_heads);
    if (args->q_heads < 1 || args->q_heads % kv_heads != 0)
        return ckv_fail(CKV_ERROR_INVALID,
                        "attention: q_heads %" PRId64 " is not a positive multiple of the %s kv_heads %" PRId64,
                        args->q_heads, kv_heads == cache_heads ? "cache's" : "call's", kv_heads);
    return CKV_OK;
}

static ckv_status check_sizes(const ckv_attention_args *args)
{
    const ckv_pool_config *pool = pool_config(args);
    if (args->layer < 0 || args->layer >= pool->layers)
        return ckv_fail(CKV_ERROR_INVALID, "attention: layer %" PRId64 " is outside [0, %" PRId64 ")", args->layer,
                        pool->layers);
    CKV_TRY(check_heads(args, pool->kv_heads));
    if (args->seq_len == 0)
        return ckv_fail(CKV_ERROR_INVALID,
                        "attention: seq_len must be given with a cache: the number of real tokens among the %" PRId64
                        " rows, "
                        "which the tensors do not tell and padding must not enter the cache",
                        args->rows);
    if (args->seq_len < 0 || args->seq_len > args->rows)
        return ckv_fail(CKV_ERROR_INVALID, "attention: seq_len %" PRId64 " is outside [1, rows = %" PRId64 "]",
                        args->seq_len, args->rows);
    if (args->causal_block_size < 0 || (args->causal_block_size > 0 && args->seq_len % args->causal_block_size != 0))
        return ckv_fail(CKV_ERROR_INVALID,
                        "attention: seq_len %" PRId64 " is not a multiple of causal_block_size %" PRId64, args->seq_len,
                        args->causal_block_size);
    return CKV_OK;
}

static int64_t magnitude(int64_t stride)
{
    return stride >= 0 ? stride : -ckv_max_i64(stride, -INT64_MAX);
}

/* Whether no two vectors of `out` share an element: each stride steps over all that the smaller one spans. */
static bool results_are_apart(const ckv_attention_args *args, int64_t head_dim)
{
    const struct {
        int64_t stride, count;
    } token = {magnitude(args->out_token_stride), args->rows}, head = {magnitude(args->out_head_stride), args->q_heads};
    bool head_inside = head.stride <= token.stride;
    const int64_t strides[] = {head_inside ? head.stride : token.stride, head_inside ? token.stride : head.stride};
    const int64_t counts[] = {head_inside ? head.count : token.count, head_inside ? token.count : head.count};
    int64_t span = head_dim;
    for (int i = 0; i < 2; i++) {
        if (counts[i] <= 1)
            continue;
        int64_t steps;
        if (strides[i] < span || !ckv_mul_i64(strides[i], counts[i] - 1, &steps) || !ckv_add_i64(span, steps, &span))
            return false;
    }
    return true;
}

ckv_status ckv_attention_check_tensors(const ckv_attention_args *args)
{
    const ckv_pool_config *pool = pool_config(args);
    const struct {
        const char *name;
        const void *tensor;
    } tensors[] = {{"q", args->q}, {"kv.k", args->kv.k}, {"kv.v", args->kv.v}, {"out", args->out}};
    size_t element_bytes = ckv_dtype_bytes(ckv_pool_config_tensor_dtype(pool));
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (tensors[i].tensor == NULL)
            return ckv_fail(CKV_ERROR_INVALID, "attention: %s is NULL", tensors[i].name);
        if ((uintptr_t)tensors[i].tensor % element_bytes != 0)
            return ckv_fail(CKV_ERROR_INVALID, "attention: %s is at %p, not aligned to its elements of %zu bytes",
                            tensors[i].name, tensors[i].tensor, element_bytes);
    }
    if ((uintptr_t)args->lse % _Alignof(float) != 0)
        return ckv_fail(CKV_ERROR_INVALID, "attention: lse is at %p, not aligned to floats", (void *)args->lse);
    if (!results_are_apart(args, pool->head_dim))
        return ckv_fail(CKV_ERROR_INVALID,
                        "attention: out strides %" PRId64 " (token) and %" PRId64
                        " (head) put several results of %" PRId64 " elements in one place",
                        args->out_token_stride, args->out_head_stride, pool->head_dim);
    return CKV_OK;
}

static ckv_status check_options(const ckv_attention_args *args)
{
    if (!isfinite(args->scale) || args->scale < 0)
        return ckv_fail(CKV_ERROR_INVALID, "attention: scale %g must be finite and not negative", args->scale);
    if (args->mask < CKV_MASK_NONE || args->mask > CKV_MASK_CUSTOM)
        return ckv_fail(CKV_ERROR_INVALID, "attention: unknown mask %d", (int)args->mask);
    if (args->quantization < CKV_QUANT_NONE || args->quantization > CKV_QUANT_FP8)
        return ckv_fail(CKV_ERROR_INVALID, "attention: unknown quantization %d", (int)args->quantization);
    return CKV_OK;
}

/* The rollout can stage this forward; fetches what its kernels read. */
static ckv_status check_state(const ckv_attention_args *args, ckv_block_view *view_out)
{
    ckv_cache_state state = ckv_cache_get_state(args->cache);
    if (!state.is_open)
        return ckv_fail(CKV_ERROR_STATE, "attention: the cache has no open rollout");
    if (args->seq_len > state.max_staged_tokens)
        return ckv_fail(CKV_ERROR_INVALID,
                        "attention: seq_len %" PRId64 " exceeds the rollout's max_staged_tokens %" PRId64,
                        args->seq_len, state.max_staged_tokens);
    return ckv_cache_block_view(args->cache, args->causal_block_size, view_out);
}

static ckv_attention_args completed(const ckv_attention_args *args)
{
    ckv_attention_args full = *args;
    if (full.causal_block_size == 0)
        full.causal_block_size = full.seq_len;
    if (full.kv_heads == 0)
        full.kv_heads = pool_config(args)->kv_heads;
    if (full.scale == 0)
        full.scale = 1 / sqrt((double)pool_config(args)->head_dim);
    return full;
}

/* Zero padding rows of out: a 2-D fill per row or per head, whichever is less, or one where heads lie side by side.
 * Each starts at its lowest address because pitches are unsigned. */
static ckv_status zero_padding_rows(const ckv_attention_args *args, ckv_stream stream)
{
    const ckv_pool_config *pool = pool_config(args);
    const ckv_device *device = ckv_pool_device(ckv_cache_pool(args->cache));
    int64_t element_bytes = (int64_t)ckv_dtype_bytes(ckv_pool_config_tensor_dtype(pool));
    int64_t outer_count = args->rows - args->seq_len, outer_stride = args->out_token_stride;
    int64_t inner_count = args->q_heads, inner_stride = args->out_head_stride, width = pool->head_dim;
    char *first = (char *)args->out + args->seq_len * args->out_token_stride * element_bytes;
    if (inner_stride == width) {
        width *= inner_count;
        inner_count = 1;
    }
    if (outer_count > inner_count) {
        int64_t count = outer_count, stride = outer_stride;
        outer_count = inner_count, outer_stride = inner_stride;
        inner_count = count, inner_stride = stride;
    }
    if (inner_stride < 0) {
        first += (inner_count - 1) * inner_stride * element_bytes;
        inner_stride = -inner_stride;
    }
    for (int64_t i = 0; i < outer_count; i++)
        CKV_TRY(device->fill_2d(first + i * outer_stride * element_bytes, (size_t)(inner_stride * element_bytes), 0,
                                (size_t)(width * element_bytes), (size_t)inner_count, stream));
    return CKV_OK;
}

/* -inf in the lse of padding rows, byte by byte of the float. */
static ckv_status blank_padding_lse(const ckv_attention_args *args, ckv_stream stream)
{
    const ckv_device *device = ckv_pool_device(ckv_cache_pool(args->cache));
    const float minus_infinity = -INFINITY;
    unsigned char bytes[sizeof minus_infinity];
    memcpy(bytes, &minus_infinity, sizeof bytes);
    char *first = (char *)(args->lse + args->seq_len * args->q_heads);
    size_t count = (size_t)((args->rows - args->seq_len) * args->q_heads);
    for (size_t i = 0; i < sizeof bytes; i++)
        CKV_TRY(device->fill_2d(first + i, sizeof bytes, bytes[i], 1, count, stream));
    return CKV_OK;
}

/* Rows at and past seq_len of what the backend wrote. */
static ckv_status finish_padding_rows(const ckv_attention_args *args, ckv_stream stream)
{
    if (args->rows == args->seq_len || CKV_MUTANT(padding_left_in_out))
        return CKV_OK;
    CKV_TRY(zero_padding_rows(args, stream));
    return args->lse != NULL && !CKV_MUTANT(padding_left_in_lse) ? blank_padding_lse(args, stream) : CKV_OK;
}

ckv_status ckv_attention_supports(const char *backend, const ckv_attention_args *args)
{
    CKV_TRY(check_struct(args));
    if (backend == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "attention: backend name is NULL");
    const ckv_attention_backend *found = NULL;
    CKV_TRY(find_backend(backend, &found));
    ckv_attention_args full = completed(args);
    return found->supports(&full);
}

/* All that can be refused, and what the call then runs with. Tensors may be left out of it. */
static ckv_status validate(const ckv_attention_args *args, int with_tensors, ckv_attention_args *full_out,
                           ckv_block_view *view_out, const ckv_attention_backend **backend_out)
{
    CKV_TRY(check_struct(args));
    CKV_TRY(check_sizes(args));
    if (with_tensors)
        CKV_TRY(ckv_attention_check_tensors(args));
    CKV_TRY(check_options(args));
    *full_out = completed(args);
    CKV_TRY(check_state(full_out, view_out));
    return choose_backend(full_out, backend_out);
}

ckv_status ckv_attention_validate_sizes(const ckv_attention_args *args)
{
    ckv_attention_args full;
    ckv_block_view view;
    const ckv_attention_backend *backend = NULL;
    return validate(args, 0, &full, &view, &backend);
}

ckv_status ckv_attention_validate(const ckv_attention_args *args)
{
    ckv_attention_args full;
    ckv_block_view view;
    const ckv_attention_backend *backend = NULL;
    return validate(args, 1, &full, &view, &backend);
}

/* K and V into the cache, but for what is there already. */
static ckv_status stage(const ckv_attention_args *args, int staged, ckv_stream stream)
{
    const ckv_staged_heads heads = {.layer = args->layer,
                                    .first_kv_head = args->first_kv_head,
                                    .kv_heads = args->kv_heads,
                                    .tokens = args->seq_len,
                                    .causal_block_size = args->causal_block_size};
    return staged ? ckv_cache_copy_staged(args->cache, &heads, &args->kv, stream)
                  : ckv_cache_write_staged_heads(args->cache, &heads, &args->kv, 1, stream);
}

static ckv_status attend(const ckv_attention_args *args, int staged, ckv_stream stream)
{
    ckv_attention_args full;
    ckv_block_view view;
    const ckv_attention_backend *backend = NULL;
    CKV_TRY(validate(args, 1, &full, &view, &backend));

    void *plan = NULL;
    CKV_TRY(backend->prepare(&full, &view, stream, &plan));
    ckv_status status;
    CKV_TRY_GOTO(stage(&full, staged, stream), release);
    CKV_TRY_GOTO(backend->run(&full, &view, plan, stream), release);
    status = finish_padding_rows(&full, stream);
release:
    backend->release(plan);
    return status;
}

ckv_status ckv_attention(const ckv_attention_args *args, ckv_stream stream)
{
    return attend(args, 0, stream);
}

ckv_status ckv_attention_staged(const ckv_attention_args *args, ckv_stream stream)
{
    return attend(args, 1, stream);
}
