/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/session.h"

#include "tools/trace/session_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

session_config session_config_default(void)
{
    session_config config = {.tolerance = -1};
    return config;
}

double session_default_tolerance(ckv_dtype dtype, double largest_value)
{
    static const double relative[] = {[CKV_FP32] = 1e-4, [CKV_BF16] = 0x1p-6, [CKV_FP16] = 0x1p-9};
    return relative[dtype] * largest_value + 0x1p-24; /* the smallest fp16 value, for outputs near zero */
}

ckv_status session_check(ckv_status status, problem *why)
{
    if (status != CKV_OK)
        problem_format(why, "%s", ckv_last_error());
    return status;
}

ckv_status session_agree(ckv_comm *comm, ckv_status status, problem *why)
{
    typedef struct verdict {
        ckv_status status;
        problem why;
    } verdict;
    verdict mine = {.status = status};
    if (status != CKV_OK)
        mine.why = *why;
    int ranks = ckv_comm_size(comm);
    verdict *all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL) { /* the others notice by their deadline */
        problem_format(why, "out of memory");
        return CKV_ERROR_MEMORY;
    }
    ckv_status agreed = session_check(ckv_comm_all_gather(comm, &mine, sizeof mine, all), why);
    for (int rank = 0; rank < ranks && agreed == CKV_OK; rank++) {
        agreed = all[rank].status;
        if (agreed != CKV_OK && rank == 0)
            *why = all[rank].why;
        else if (agreed != CKV_OK)
            problem_format(why, "rank %d: %s", rank, all[rank].why.text);
    }
    free(all);
    return agreed;
}

void *session_reserve(session_buffer *buffer, size_t bytes)
{
    if (buffer->memory == NULL || buffer->bytes < bytes) {
        free(buffer->memory);
        buffer->memory = malloc(bytes == 0 ? 1 : bytes);
        buffer->bytes = buffer->memory == NULL ? 0 : bytes;
    }
    return buffer->memory;
}

ckv_status session_upload(const session *s, session_buffer *buffer, const void *source, size_t bytes)
{
    if (buffer->memory == NULL || buffer->bytes < bytes) {
        ckv_device_free(s->device, buffer->memory);
        *buffer = (session_buffer){0};
        ckv_status status = ckv_device_alloc(s->device, bytes == 0 ? 1 : bytes, &buffer->memory);
        if (status != CKV_OK)
            return status;
        buffer->bytes = bytes;
    }
    return ckv_device_upload(s->device, buffer->memory, source, bytes, NULL);
}

static ckv_ulysses_config ulysses_config(const session *s)
{
    const session_config *config = &s->config;
    ckv_ulysses_config ulysses = ckv_ulysses_config_default();
    ulysses.q_heads = config->model.q_heads;
    ulysses.kv_heads = config->model.kv_heads;
    ulysses.head_dim = config->model.head_dim;
    ulysses.dtype = config->model.dtype;
    ulysses.device = s->device;
    ulysses.exchange = config->exchange;
    return ulysses;
}

static ckv_status create_cache(session *s)
{
    ckv_ulysses_config ulysses = ulysses_config(s);
    ckv_status status = ckv_ulysses_kv_heads_per_rank(&ulysses, s->ranks, &s->kv_heads);
    if (status != CKV_OK)
        return status;
    ckv_pool_config pool = ckv_pool_config_default();
    pool.device = s->device;
    pool.layers = s->config.model.layers;
    pool.kv_heads = s->kv_heads;
    pool.head_dim = s->config.model.head_dim;
    pool.dtype = s->config.model.dtype;
    pool.tokens_per_page = s->config.model.tokens_per_page;
    pool.pool_tokens = s->config.pool_tokens;
    return ckv_cache_create(&pool, &s->cache);
}

static ckv_status create_reference(session *s)
{
    ckv_reference_config reference = ckv_reference_config_default();
    reference.layers = s->config.model.layers;
    reference.q_heads = s->config.model.q_heads;
    reference.kv_heads = s->config.model.kv_heads;
    reference.head_dim = s->config.model.head_dim;
    reference.dtype = s->config.model.dtype;
    reference.scale = s->config.model.scale;
    return ckv_reference_create(&reference, &s->reference);
}

static ckv_status create_parts(session *s, problem *why)
{
    ckv_status status = ckv_device_find(s->config.device == NULL ? "host" : s->config.device, &s->device);
    if (status == CKV_OK)
        status = create_cache(s);
    if (status == CKV_OK)
        status = create_reference(s);
    status = session_agree(s->comm, session_check(status, why), why);
    if (status != CKV_OK)
        return status;
    ckv_ulysses_config ulysses = ulysses_config(s);
    return session_check(ckv_ulysses_create(s->comm, &ulysses, &s->ulysses), why);
}

ckv_status session_create(ckv_comm *comm, const session_config *config, session **session_out, problem *why)
{
    session *s = calloc(1, sizeof *s);
    if (s == NULL) {
        problem_format(why, "out of memory");
        return CKV_ERROR_MEMORY;
    }
    s->config = *config;
    s->comm = comm;
    s->rank = ckv_comm_rank(comm);
    s->ranks = ckv_comm_size(comm);
    s->element_bytes = ckv_dtype_bytes(config->model.dtype);
    s->q_row = config->model.q_heads * config->model.head_dim;
    s->kv_row = config->model.kv_heads * config->model.head_dim;
    ckv_status status = create_parts(s, why);
    if (status == CKV_OK)
        *session_out = s;
    else
        session_destroy(&s);
    return status;
}

void session_destroy(session **s)
{
    if (s == NULL || *s == NULL)
        return;
    session_buffer *buffers[] = {&(*s)->shard,   &(*s)->out,    &(*s)->gathered, &(*s)->exact,  &(*s)->aligned,
                                 &(*s)->sampled, &(*s)->floats, &(*s)->extra,    &(*s)->records};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        free(buffers[i]->memory);
    session_buffer *on_device[] = {&(*s)->device_q, &(*s)->device_k, &(*s)->device_v, &(*s)->device_out};
    for (size_t i = 0; i < sizeof on_device / sizeof on_device[0]; i++)
        ckv_device_free((*s)->device, on_device[i]->memory);
    ckv_reference_destroy(&(*s)->reference);
    ckv_ulysses_destroy(&(*s)->ulysses);
    ckv_cache_destroy(&(*s)->cache);
    free(*s);
    *s = NULL;
}

ckv_cache_state session_state(const session *s)
{
    return ckv_cache_get_state(s->cache);
}

const char *session_exchange(const session *s, const char **why_not_fused_out)
{
    return ckv_ulysses_exchange(s->ulysses, why_not_fused_out);
}

ckv_status session_open(session *s, const ckv_rollout_config *config, problem *why)
{
    ckv_status status = ckv_cache_open(s->cache, config, NULL);
    if (status == CKV_OK)
        status = ckv_reference_open(s->reference, config->pin_tokens, config->window_tokens);
    return session_agree(s->comm, session_check(status, why), why);
}

/* Resident positions as token ids: the fixed region keeps its numbers, everything after it has moved up by the tokens
 * that were dropped. A range over the end of the fixed region is two ranges of ids. */
typedef struct id_range {
    int64_t offset; /* from the start of the range of positions */
    int64_t id, tokens;
} id_range;

static int split_positions(const ckv_cache_state *state, int64_t start, int64_t tokens, id_range ranges[2])
{
    int64_t fixed = state->fixed_tokens, dropped = state->committed_tokens - state->staging_offset;
    int count = 0;
    int64_t in_fixed = start >= fixed ? 0 : start + tokens <= fixed ? tokens : fixed - start;
    if (in_fixed > 0)
        ranges[count++] = (id_range){0, start, in_fixed};
    if (in_fixed < tokens)
        ranges[count++] = (id_range){in_fixed, start + in_fixed + dropped, tokens - in_fixed};
    return count;
}

static ckv_status write_reference(session *s, int64_t layer, int64_t start, int64_t tokens, const void *k,
                                  const void *v)
{
    ckv_cache_state state = ckv_cache_get_state(s->cache);
    id_range ranges[2];
    int count = split_positions(&state, start, tokens, ranges);
    ckv_status status = CKV_OK;
    for (int i = 0; i < count && status == CKV_OK; i++) {
        size_t skip = (size_t)(ranges[i].offset * s->kv_row) * s->element_bytes;
        ckv_kv kv = ckv_kv_dense((const char *)k + skip, (const char *)v + skip, s->config.model.kv_heads,
                                 s->config.model.head_dim);
        status = ckv_reference_write(s->reference, layer, ranges[i].id, ranges[i].tokens, &kv);
    }
    return status;
}

ckv_status session_write_range(session *s, int64_t layer, int64_t start, int64_t tokens, const void *k, const void *v,
                               problem *why)
{
    size_t bytes = (size_t)(tokens * s->kv_row) * s->element_bytes;
    ckv_status status = session_upload(s, &s->device_k, k, bytes);
    if (status == CKV_OK)
        status = session_upload(s, &s->device_v, v, bytes);
    if (status == CKV_OK) {
        ckv_kv kv =
            ckv_kv_dense(s->device_k.memory, s->device_v.memory, s->config.model.kv_heads, s->config.model.head_dim);
        status = ckv_ulysses_write_replicated(s->ulysses, s->cache, layer, start, tokens, &kv, NULL);
    }
    if (status == CKV_OK)
        status = write_reference(s, layer, start, tokens, k, v);
    return session_agree(s->comm, session_check(status, why), why);
}

ckv_status session_zero_values(session *s, int64_t layer, int64_t start, int64_t tokens, problem *why)
{
    ckv_cache_state state = ckv_cache_get_state(s->cache);
    ckv_status status = ckv_cache_zero_values(s->cache, layer, start, tokens, NULL);
    id_range ranges[2];
    int count = status == CKV_OK ? split_positions(&state, start, tokens, ranges) : 0;
    for (int i = 0; i < count && status == CKV_OK; i++)
        status = ckv_reference_zero_values(s->reference, layer, ranges[i].id, ranges[i].tokens);
    return session_agree(s->comm, session_check(status, why), why);
}

ckv_status session_commit(session *s, int64_t tokens, problem *why)
{
    ckv_status status = ckv_cache_commit(s->cache, tokens, NULL);
    if (status == CKV_OK)
        status = ckv_reference_commit(s->reference, tokens);
    return session_agree(s->comm, session_check(status, why), why);
}

ckv_status session_close(session *s, problem *why)
{
    ckv_status status = CKV_OK;
    if (ckv_cache_get_state(s->cache).is_open) {
        ckv_cache_close(s->cache);
    } else {
        problem_format(why, "no rollout is open");
        status = CKV_ERROR_STATE;
    }
    return session_agree(s->comm, status, why);
}
