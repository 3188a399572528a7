/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/recorded_calls.h"

#include "tests/support/ranks.h"

#include <ckv/reference.h>
#include <ckv/ulysses.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const recorded_calls *played; /* by all ranks */

typedef struct player {
    const recorded_calls *calls;
    ckv_comm *comm;
    rank_report *report;
    ckv_ulysses *ulysses;
    ckv_cache *cache;
    ckv_reference *reference;
    void *tensors[4]; /* q, k, v, out in the dtype: what a call is given */
    double *exact;
    size_t at; /* op */
} player;

static ckv_kv dense(const player *p, const void *k, const void *v)
{
    return ckv_kv_dense(k, v, p->calls->kv_heads, p->calls->head_dim);
}

static int64_t row_values(const player *p, int tensor)
{
    return (tensor == 1 || tensor == 2 ? p->calls->kv_heads : p->calls->q_heads) * p->calls->head_dim;
}

/* `rows` from `first` on, which continue with NaN where the tensor ends. */
static void load(player *p, int tensor, const float *values, int64_t present, int64_t first, int64_t rows)
{
    int64_t width = row_values(p, tensor);
    size_t element = ckv_dtype_bytes(p->calls->dtype);
    free(p->tensors[tensor]);
    p->tensors[tensor] = malloc((size_t)(rows * width) * element + 1);
    for (int64_t i = 0; p->tensors[tensor] != NULL && i < rows * width; i++) {
        float value = values != NULL && first * width + i < present * width ? values[first * width + i] : NAN;
        ckv_convert_from_float(p->calls->dtype, &value, 1, (char *)p->tensors[tensor] + (size_t)i * element);
    }
}

static ckv_rollout_config config_of(const recorded_op *op)
{
    ckv_rollout_config config = ckv_rollout_config_default();
    config.pin_tokens = op->pin_tokens;
    config.window_tokens = op->window_tokens;
    config.max_staged_tokens = op->max_staged_tokens;
    config.causal_block_sizes = op->causal_block_sizes;
    config.num_causal_block_sizes = op->num_causal_block_sizes;
    return config;
}

static void create_cache(player *p, int64_t kv_heads)
{
    ckv_pool_config pool = ckv_pool_config_default();
    pool.layers = p->calls->layers;
    pool.kv_heads = kv_heads;
    pool.head_dim = p->calls->head_dim;
    pool.dtype = p->calls->dtype;
    pool.tokens_per_page = pool.pool_tokens = p->calls->tokens_per_page;
    for (size_t i = 0; i < p->calls->num_ops; i++) {
        ckv_rollout_config config = config_of(&p->calls->ops[i]);
        ckv_rollout_size size;
        if (p->calls->ops[i].kind != RECORDED_OPEN)
            continue;
        RANK_OK(p->report, ckv_rollout_config_size(&config, pool.tokens_per_page, &size));
        pool.pool_tokens = size.pool_tokens > pool.pool_tokens ? size.pool_tokens : pool.pool_tokens;
    }
    RANK_OK(p->report, ckv_cache_create(&pool, &p->cache));
}

static void create(player *p)
{
    ckv_ulysses_config ulysses = ckv_ulysses_config_default();
    ulysses.q_heads = p->calls->q_heads;
    ulysses.kv_heads = p->calls->kv_heads;
    ulysses.head_dim = p->calls->head_dim;
    ulysses.dtype = p->calls->dtype;
    int64_t kv_heads;
    RANK_OK(p->report, ckv_ulysses_kv_heads_per_rank(&ulysses, p->calls->ranks, &kv_heads));
    RANK_OK(p->report, ckv_ulysses_create(p->comm, &ulysses, &p->ulysses));
    ckv_reference_config reference = ckv_reference_config_default();
    reference.layers = p->calls->layers;
    reference.q_heads = p->calls->q_heads;
    reference.kv_heads = p->calls->kv_heads;
    reference.head_dim = p->calls->head_dim;
    reference.dtype = p->calls->dtype;
    reference.scale = p->calls->scale;
    RANK_OK(p->report, ckv_reference_create(&reference, &p->reference));
    create_cache(p, kv_heads);
}

/* Resident positions as the reference's ids, one after the other. */
static void edit(player *p, const recorded_op *op)
{
    ckv_cache_state state = ckv_cache_get_state(p->cache);
    bool is_write = op->kind == RECORDED_WRITE_RANGE;
    size_t row_bytes = (size_t)row_values(p, 1) * ckv_dtype_bytes(p->calls->dtype);
    load(p, 1, op->k, op->tokens, 0, op->tokens);
    load(p, 2, op->v, op->tokens, 0, op->tokens);
    ckv_kv kv = dense(p, p->tensors[1], p->tensors[2]);
    if (is_write)
        RANK_OK(p->report,
                ckv_ulysses_write_replicated(p->ulysses, p->cache, op->layer, op->start, op->tokens, &kv, NULL));
    else
        RANK_OK(p->report, ckv_cache_zero_values(p->cache, op->layer, op->start, op->tokens, NULL));
    for (int64_t i = 0; i < op->tokens; i++) {
        int64_t position = op->start + i;
        int64_t moved = position < state.fixed_tokens ? 0 : state.committed_tokens - state.staging_offset;
        ckv_kv one =
            dense(p, (char *)p->tensors[1] + (size_t)i * row_bytes, (char *)p->tensors[2] + (size_t)i * row_bytes);
        if (is_write)
            RANK_OK(p->report, ckv_reference_write(p->reference, op->layer, position + moved, 1, &one));
        else
            RANK_OK(p->report, ckv_reference_zero_values(p->reference, op->layer, position + moved, 1));
    }
}

static void run_reference(player *p, const recorded_op *op)
{
    ckv_reference_forward forward = ckv_reference_forward_default();
    free(p->exact);
    p->exact = calloc((size_t)(op->rows * row_values(p, 0)), sizeof *p->exact); /* padding rows are zero */
    RANK_CHECK(p->report, p->exact != NULL);
    load(p, 0, op->q, op->rows, 0, op->rows);
    load(p, 1, op->k, op->rows, 0, op->rows);
    load(p, 2, op->v, op->rows, 0, op->rows);
    forward.layer = op->layer;
    forward.seq_len = op->seq_len;
    forward.causal_block_size = op->causal_block_size;
    forward.q = p->tensors[0];
    forward.q_token_stride = row_values(p, 0);
    forward.q_head_stride = p->calls->head_dim;
    forward.kv = dense(p, p->tensors[1], p->tensors[2]);
    forward.out = p->exact;
    RANK_OK(p->report, ckv_reference_run(p->reference, &forward));
}

static void compare(player *p, const char *whose, int64_t row, int64_t index, float observed)
{
    double wanted = p->exact[row * row_values(p, 0) + index], error = fabs((double)observed - wanted);
    if (observed == wanted || error <= p->calls->tolerance || (isnan(observed) && isnan(wanted)))
        return;
    rank_fail(p->report, __FILE__, __LINE__, "op %zu row %lld head %lld channel %lld: %s is %.6g instead of %.6g",
              p->at, (long long)row, (long long)(index / p->calls->head_dim), (long long)(index % p->calls->head_dim),
              whose, (double)observed, wanted);
}

static void attend(player *p, const recorded_op *op, int64_t rows, int64_t first)
{
    ckv_attention_args args = ckv_attention_args_default();
    load(p, 0, op->q, op->rows, first, rows);
    load(p, 1, op->k, op->rows, first, rows);
    load(p, 2, op->v, op->rows, first, rows);
    load(p, 3, NULL, 0, 0, rows);
    args.cache = p->cache;
    args.layer = op->layer;
    args.q_heads = p->calls->q_heads;
    args.rows = rows;
    args.seq_len = op->seq_len;
    args.causal_block_size = op->causal_block_size;
    args.q = p->tensors[0];
    args.kv = dense(p, p->tensors[1], p->tensors[2]);
    args.out = p->tensors[3];
    args.q_token_stride = args.out_token_stride = row_values(p, 0);
    args.q_head_stride = args.out_head_stride = p->calls->head_dim;
    args.scale = p->calls->scale;
    if (p->calls->ranks == 1) /* sharding over one rank adds no padding, attention alone takes any */
        RANK_OK(p->report, ckv_attention(&args, NULL));
    else
        RANK_OK(p->report, ckv_ulysses_attention(p->ulysses, &args, NULL));
}

static void forward(player *p, const recorded_op *op)
{
    int64_t rows = p->calls->ranks == 1 ? op->rows : ckv_ulysses_rows_per_rank(op->seq_len, p->calls->ranks);
    int64_t first = rows * ckv_comm_rank(p->comm), width = row_values(p, 0);
    RANK_STEP(p->report, run_reference(p, op));
    RANK_STEP(p->report, attend(p, op, rows, first));
    for (int64_t i = 0; i < rows * width; i++) {
        float value;
        size_t skip = (size_t)i * ckv_dtype_bytes(p->calls->dtype);
        ckv_convert_to_float(p->calls->dtype, (char *)p->tensors[3] + skip, 1, &value);
        if (first + i / width < op->rows)
            compare(p, "the output", first + i / width, i % width, value);
        else
            RANK_CHECK(p->report, value == 0);
    }
    for (int64_t i = 0; op->expected != NULL && i < op->seq_len * width; i++)
        compare(p, "the recorded output", i / width, i % width, op->expected[i]);
}

static void play_op(player *p, const recorded_op *op)
{
    ckv_rollout_config config = config_of(op);
    switch (op->kind) {
    case RECORDED_OPEN:
        RANK_OK(p->report, ckv_cache_open(p->cache, &config, NULL));
        RANK_OK(p->report, ckv_reference_open(p->reference, op->pin_tokens, op->window_tokens));
        break;
    case RECORDED_WRITE_RANGE:
    case RECORDED_ZERO_VALUES:
        edit(p, op);
        break;
    case RECORDED_FORWARD:
        forward(p, op);
        break;
    case RECORDED_COMMIT:
        RANK_OK(p->report, ckv_cache_commit(p->cache, op->tokens, NULL));
        RANK_OK(p->report, ckv_reference_commit(p->reference, op->tokens));
        break;
    case RECORDED_CLOSE:
        ckv_cache_close(p->cache);
        break;
    }
}

static void play(ckv_comm *comm, rank_report *report)
{
    player p = {.calls = played, .comm = comm, .report = report};
    create(&p);
    for (p.at = 0; p.at < played->num_ops && !report->failed; p.at++)
        play_op(&p, &played->ops[p.at]);
    for (int i = 0; i < 4; i++)
        free(p.tensors[i]);
    free(p.exact);
    ckv_reference_destroy(&p.reference);
    ckv_cache_destroy(&p.cache);
    ckv_ulysses_destroy(&p.ulysses);
}

void recorded_calls_expect_exact(const recorded_calls *calls)
{
    enum { PATIENCE_MS = 10000 };
    played = calls;
    const char *failure = calls->ranks == 1 ? ranks_run_on_self(play)
                                            : ranks_run_on_threads(calls->ranks, ranks_patience_ms(PATIENCE_MS), play);
    if (failure[0] != '\0')
        fail_msg("%s", failure);
}
