/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/qk_norm_rope/qk_norm_rope.h"

#include "lib/support/dtype.h"
#include "lib/support/error.h"
#include "lib/support/mutant.h"

#include <inttypes.h>
#include <math.h>

enum { MAX_HEAD_DIM = 1024 };

static ckv_status check_sizes(const ckv_qk_norm_rope_params *params)
{
    if (params->tokens < 0 || params->tokens > INT32_MAX || params->q_heads < 0 || params->kv_heads < 0)
        return ckv_fail(CKV_ERROR_INVALID,
                        "qk_norm_rope: %" PRId64 " tokens, %" PRId64 " query and %" PRId64
                        " K/V heads; none may be negative, nor tokens more than %d",
                        params->tokens, params->q_heads, params->kv_heads, INT32_MAX);
    if (params->head_dim < 2 || params->head_dim > MAX_HEAD_DIM || params->head_dim % 2 != 0)
        return ckv_fail(CKV_ERROR_INVALID, "qk_norm_rope: head_dim is %" PRId64 "; it must be even, 2 to %d",
                        params->head_dim, MAX_HEAD_DIM);
    if (params->total_q_heads < params->q_heads || params->total_kv_heads < params->kv_heads)
        return ckv_fail(CKV_ERROR_INVALID,
                        "qk_norm_rope: %" PRId64 "/%" PRId64 " heads here are more than %" PRId64 "/%" PRId64
                        " over all ranks",
                        params->q_heads, params->kv_heads, params->total_q_heads, params->total_kv_heads);
    return CKV_OK;
}

ckv_status ckv_qk_norm_rope_check(const ckv_qk_norm_rope_params *params)
{
    CKV_TRY(check_sizes(params));
    if (!ckv_dtype_is_tensor(params->dtype))
        return ckv_fail(CKV_ERROR_INVALID, "qk_norm_rope: dtype is %d; it must be fp32, bf16 or fp16",
                        (int)params->dtype);
    if (params->qkv == NULL || params->cosines == NULL || params->sines == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "qk_norm_rope: qkv, cosines and sines must not be NULL");
    if (!(params->epsilon >= 0))
        return ckv_fail(CKV_ERROR_INVALID, "qk_norm_rope: epsilon is %g; it must not be negative",
                        (double)params->epsilon);
    if (params->norm == CKV_NORM_ALL &&
        (params->q_heads != params->total_q_heads || params->kv_heads != params->total_kv_heads))
        return ckv_fail(CKV_ERROR_UNSUPPORTED,
                        "qk_norm_rope: a norm over all heads needs all of them; this rank has %" PRId64 " of %" PRId64
                        " query and %" PRId64 " of %" PRId64 " K/V heads; use per-head norm weights",
                        params->q_heads, params->total_q_heads, params->kv_heads, params->total_kv_heads);
    return CKV_OK;
}

typedef struct head_group {
    char *first; /* of this token */
    int64_t heads;
    const float *weight; /* NULL: ones */
} head_group;

static float *load_head(const ckv_qk_norm_rope_params *params, const head_group *group, int64_t head, float *vector)
{
    const char *source = group->first + head * params->head_stride * (int64_t)ckv_dtype_bytes(params->dtype);
    ckv_convert_to_float(params->dtype, source, (size_t)params->head_dim, vector);
    return vector;
}

static float sum_of_squares(const float *vector, int64_t count)
{
    float sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += vector[i] * vector[i];
    return sum;
}

static void rotate(const ckv_qk_norm_rope_params *params, int64_t token, float *vector)
{
    int64_t half = params->head_dim / 2;
    token = CKV_MUTATE(positions_restart, token % (params->tokens - params->tokens / 2), token);
    token = CKV_MUTATE(positions_of_valid_tokens, token < params->tokens - 1 ? token : 0, token);
    const float *cosines = params->cosines + token * half, *sines = params->sines + token * half;
    for (int64_t i = 0; i < half; i++) {
        float *a = params->pairs == CKV_ROPE_HALVES ? &vector[i] : &vector[2 * i];
        float *b = params->pairs == CKV_ROPE_HALVES ? &vector[i + half] : &vector[2 * i + 1];
        float x = *a, y = *b;
        *a = x * cosines[i] - y * sines[i];
        *b = y * cosines[i] + x * sines[i];
    }
}

static void norm_and_rotate(const ckv_qk_norm_rope_params *params, int64_t token, const head_group *group)
{
    float vector[MAX_HEAD_DIM];
    float sum = 0;
    for (int64_t head = 0; params->norm == CKV_NORM_ALL && head < group->heads; head++)
        sum += sum_of_squares(load_head(params, group, head, vector), params->head_dim);
    for (int64_t head = 0; head < group->heads; head++) {
        load_head(params, group, head, vector);
        int64_t normed = params->norm == CKV_NORM_ALL ? group->heads * params->head_dim : params->head_dim;
        if (params->norm == CKV_NORM_HEAD)
            sum = sum_of_squares(vector, params->head_dim);
        float factor = 1 / sqrtf(sum / (float)normed + params->epsilon);
        const float *weight = group->weight;
        if (weight != NULL && params->norm == CKV_NORM_ALL)
            weight += head * params->head_dim;
        for (int64_t i = 0; i < params->head_dim; i++)
            vector[i] *= weight != NULL ? factor * weight[i] : factor;
        rotate(params, token, vector);
        ckv_convert_from_float(params->dtype, vector, (size_t)params->head_dim,
                               group->first + head * params->head_stride * (int64_t)ckv_dtype_bytes(params->dtype));
    }
}

ckv_status ckv_qk_norm_rope_host(const ckv_qk_norm_rope_params *params, ckv_stream stream)
{
    (void)stream;
    CKV_TRY(ckv_qk_norm_rope_check(params));
    int64_t element = (int64_t)ckv_dtype_bytes(params->dtype);
    for (int64_t token = 0; token < params->tokens; token++) {
        char *first = (char *)params->qkv + token * params->token_stride * element;
        head_group q = {first, params->q_heads, params->q_weight};
        head_group k = {first + params->q_heads * params->head_stride * element, params->kv_heads, params->k_weight};
        norm_and_rotate(params, token, &q);
        norm_and_rotate(params, token, &k);
    }
    return CKV_OK;
}
