/* SPDX-License-Identifier: Apache-2.0 */
/* How many blocks: what a request needs of a window, and what fits in memory. Pure integers. */
#include "lib/blocks/blocks.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <string.h>

enum { MOST = 1 << 30 };
__extension__ typedef __int128 wide;

static ckv_status check_shape(const char *what, int64_t input, int64_t output, int64_t tokens_per_block, int64_t sink,
                              int64_t beam)
{
    if (input < 0 || output < 0 || input > MOST || output > MOST || tokens_per_block < 1 || tokens_per_block > MOST ||
        sink < 0 || sink > MOST || beam < 1 || beam > MOST)
        return ckv_fail(CKV_ERROR_INVALID,
                        "%s: input %" PRId64 ", output %" PRId64 ", tokens_per_block %" PRId64 ", sink %" PRId64
                        ", beam %" PRId64 "; one is out of range",
                        what, input, output, tokens_per_block, sink, beam);
    return CKV_OK;
}

/* Tokens that fill the last sink block. */
static int64_t sink_filler(int64_t sink, int64_t tokens_per_block)
{
    return (tokens_per_block - sink % tokens_per_block) % tokens_per_block;
}

static int64_t require_one_beam(int64_t tokens, int64_t window, int64_t tokens_per_block, int64_t sink)
{
    int64_t held = ckv_min_i64(tokens, window) + sink_filler(sink, tokens_per_block);
    return ckv_ceil_div_i64(held, tokens_per_block) + (tokens > window);
}

static int64_t require(int64_t input, int64_t output, int64_t window, int64_t tokens_per_block, int64_t sink,
                       int64_t beam)
{
    int64_t tokens = input + output;
    if (beam == 1)
        return require_one_beam(tokens, window, tokens_per_block, sink);
    if (window <= output)
        return require_one_beam(output, window, tokens_per_block, sink) * beam;
    int64_t context = ckv_min_i64(window, tokens) - output;
    int64_t shared = (context + sink_filler(sink, tokens_per_block)) / tokens_per_block;
    int64_t own = output + context - shared * tokens_per_block;
    int64_t per_beam = (own > 0 ? ckv_ceil_div_i64(own, tokens_per_block) : 0) + (tokens > window);
    return shared + per_beam * beam;
}

ckv_status ckv_blocks_requirements(int64_t input, int64_t output, int64_t wanted, int64_t tokens_per_block,
                                   int64_t sink, int64_t beam, int64_t *blocks_out)
{
    if (blocks_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "block_requirements: blocks_out is NULL");
    CKV_TRY(check_shape("block_requirements", input, output, tokens_per_block, sink, beam));
    if (wanted < 1)
        return ckv_fail(CKV_ERROR_INVALID, "block_requirements: window %" PRId64 " is not positive", wanted);
    *blocks_out = require(input, output, ckv_min_i64(wanted, 4 * (int64_t)MOST), tokens_per_block, sink, beam);
    return CKV_OK;
}

ckv_status ckv_blocks_max_window(int64_t input, int64_t output, int64_t blocks, int64_t tokens_per_block, int64_t sink,
                                 int64_t beam, int64_t *window_out)
{
    if (window_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "max_window: window_out is NULL");
    CKV_TRY(check_shape("max_window", input, output, tokens_per_block, sink, beam));
    if (blocks < 0 || blocks > MOST)
        return ckv_fail(CKV_ERROR_INVALID, "max_window: %" PRId64 " blocks", blocks);
    int64_t needed = require(0, output, output, tokens_per_block, sink, beam);
    *window_out = needed > blocks ? blocks / beam * tokens_per_block
                                  : ckv_min_i64(output + (blocks - needed) * tokens_per_block, input + output);
    return CKV_OK;
}

/* ---- Pools ---- */

/* a * b / c without overflow; c > 0. */
static int64_t scale(int64_t a, int64_t b, int64_t c)
{
    return (int64_t)((wide)a * b / c);
}

static bool weigh(int64_t span, int64_t bytes_per_token, int64_t *weight_out)
{
    return ckv_mul_i64(span, bytes_per_token, weight_out);
}

ckv_status ckv_blocks_window_share(const int64_t *windows, const int64_t *bytes_per_token, int64_t count,
                                   int64_t *share_ppm_out)
{
    if (count < 1 || count > CKV_BLOCKS_MAX_WINDOWS || windows == NULL || bytes_per_token == NULL ||
        share_ppm_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "window_share: %" PRId64 " windows, or a list is NULL", count);
    int64_t weights[CKV_BLOCKS_MAX_WINDOWS], sum = 0;
    for (int64_t i = 0; i < count; i++)
        if (windows[i] < 1 || bytes_per_token[i] < 1 || !weigh(windows[i], bytes_per_token[i], &weights[i]) ||
            !ckv_add_i64(sum, weights[i], &sum))
            return ckv_fail(CKV_ERROR_INVALID, "window_share: window %" PRId64 " of %" PRId64 " bytes per token",
                            windows[i], bytes_per_token[i]);
    for (int64_t i = 0; i < count; i++)
        share_ppm_out[i] = (int64_t)(((wide)weights[i] * 2000000 + sum) / (2 * (wide)sum));
    return CKV_OK;
}

static ckv_status make_weights(const ckv_blocks_sizing *s, const window_state *windows, int32_t count, int64_t *weights,
                               int64_t *sum_out)
{
    if (s->share == CKV_BLOCKS_SHARE_WEIGHTS && (s->weights == NULL || s->num_weights != count))
        return ckv_fail(CKV_ERROR_INVALID, "size_pools: %" PRId64 " weights for %d windows", s->num_weights, count);
    int64_t sum = 0;
    for (int32_t i = 0; i < count; i++) {
        const ckv_blocks_window *info = &windows[i].info;
        bool fits = true;
        weights[i] = 1;
        if (s->share == CKV_BLOCKS_SHARE_PROPORTIONAL && info->recurrent)
            weights[i] = info->block_bytes;
        else if (s->share == CKV_BLOCKS_SHARE_PROPORTIONAL)
            fits = weigh(info->window, info->block_bytes / s->geometry.tokens_per_block, &weights[i]);
        else if (s->share == CKV_BLOCKS_SHARE_WEIGHTS)
            weights[i] = s->weights[i];
        if (!fits || weights[i] < 0 || !ckv_add_i64(sum, weights[i], &sum))
            return ckv_fail(CKV_ERROR_INVALID, "size_pools: the weight of window %" PRId64 " is out of range",
                            info->window);
    }
    if (sum == 0)
        return ckv_fail(CKV_ERROR_INVALID, "size_pools: all weights are 0");
    *sum_out = sum;
    return CKV_OK;
}

/* One recurrent and one full window without reuse: the states have a fixed number, the rest is for tokens. */
static bool is_static_hybrid(const ckv_blocks_sizing *s, const window_state *windows, int32_t count)
{
    return !s->reuse && count == 2 && windows[0].info.recurrent && !windows[1].info.sliding;
}

static void size_hybrid(const ckv_blocks_sizing *s, const window_state *windows, const int64_t *bytes,
                        ckv_blocks_count *counts_out)
{
    for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++) {
        int64_t states = tier == CKV_BLOCKS_PRIMARY ? s->max_batch : 0, taken;
        if (!ckv_mul_i64(states, windows[0].info.block_bytes, &taken) || taken > bytes[tier])
            states = taken = 0;
        counts_out[0].blocks[tier] = states;
        counts_out[1].blocks[tier] = (bytes[tier] - taken) / windows[1].info.block_bytes;
    }
}

static ckv_status size_rank(const ckv_blocks_sizing *s, const int64_t *rank_bytes, const window_state *windows,
                            int32_t count, ckv_blocks_count *counts_out)
{
    int64_t weights[CKV_BLOCKS_MAX_WINDOWS], sum;
    int64_t bytes[] = {ckv_max_i64(rank_bytes[0] - s->extra_bytes, 0), rank_bytes[1]};
    CKV_TRY(make_weights(s, windows, count, weights, &sum));
    for (int32_t i = 0; i < count; i++) {
        counts_out[i].window = windows[i].info.window;
        for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++)
            counts_out[i].blocks[tier] = scale(bytes[tier], weights[i], sum) / windows[i].info.block_bytes;
    }
    if (is_static_hybrid(s, windows, count))
        size_hybrid(s, windows, bytes, counts_out);
    for (int32_t i = 0; i < count; i++) {
        int64_t *primary = &counts_out[i].blocks[CKV_BLOCKS_PRIMARY];
        if (s->max_tokens > 0 && !windows[i].info.recurrent)
            *primary = ckv_min_i64(*primary, ckv_ceil_div_i64(s->max_tokens, s->geometry.tokens_per_block));
        if (*primary < 1)
            return ckv_fail(CKV_ERROR_CAPACITY,
                            "size_pools: %" PRId64 " bytes leave no block of %" PRId64 " bytes for window %" PRId64,
                            bytes[0], windows[i].info.block_bytes, windows[i].info.window);
    }
    return CKV_OK;
}

static ckv_status check_sizing(const ckv_blocks_sizing *s)
{
    if (s->ranks == NULL || s->num_ranks < 1 || s->extra_bytes < 0 || s->max_tokens < 0 || s->max_batch < 1)
        return ckv_fail(CKV_ERROR_INVALID,
                        "size_pools: %" PRId64 " ranks, extra_bytes %" PRId64 ", max_tokens %" PRId64
                        ", max_batch %" PRId64 "; one is out of range",
                        s->num_ranks, s->extra_bytes, s->max_tokens, s->max_batch);
    for (int64_t i = 0; i < s->num_ranks; i++)
        if (s->ranks[i].bytes[0] < 0 || s->ranks[i].bytes[1] < 0)
            return ckv_fail(CKV_ERROR_INVALID, "size_pools: rank %" PRId64 " has negative bytes", i);
    return CKV_OK;
}

/* One rank: the least of its counts and those so far. */
static ckv_status merge_rank(const ckv_blocks_sizing *s, int64_t rank, ckv_blocks_count *counts, int64_t *block_bytes,
                             int64_t *num_windows)
{
    ckv_blocks_geometry geometry = s->geometry;
    if (s->ranks[rank].windows != NULL) {
        geometry.windows = s->ranks[rank].windows;
        geometry.num_windows = s->ranks[rank].num_windows;
    }
    window_state windows[CKV_BLOCKS_MAX_WINDOWS];
    ckv_blocks_count own[CKV_BLOCKS_MAX_WINDOWS];
    int32_t count;
    CKV_TRY(ckv_blocks_plan_windows(&geometry, windows, &count));
    ckv_status status = size_rank(s, s->ranks[rank].bytes, windows, count, own);
    if (status == CKV_OK && rank > 0 && *num_windows != count)
        status = ckv_fail(CKV_ERROR_INVALID, "size_pools: rank %" PRId64 " has %d windows, rank 0 has %" PRId64, rank,
                          count, *num_windows);
    for (int32_t i = 0; status == CKV_OK && i < count; i++) {
        if (rank == 0) {
            counts[i] = own[i];
            block_bytes[i] = windows[i].info.block_bytes;
        } else if (own[i].window != counts[i].window) {
            status = ckv_fail(CKV_ERROR_INVALID, "size_pools: rank %" PRId64 " has window %" PRId64 ", rank 0 %" PRId64,
                              rank, own[i].window, counts[i].window);
        }
        for (int tier = 0; tier < CKV_BLOCKS_TIERS; tier++)
            counts[i].blocks[tier] = ckv_min_i64(counts[i].blocks[tier], own[i].blocks[tier]);
    }
    *num_windows = count;
    ckv_blocks_free_plan(windows, count);
    return status;
}

ckv_status ckv_blocks_size_pools(const ckv_blocks_sizing *sizing, ckv_blocks_count *counts_out,
                                 int64_t *block_bytes_out, int64_t *num_windows_out)
{
    if (sizing == NULL || counts_out == NULL || block_bytes_out == NULL || num_windows_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "size_pools: an argument is NULL");
    CKV_TRY(check_sizing(sizing));
    ckv_blocks_count counts[CKV_BLOCKS_MAX_WINDOWS] = {{0}};
    int64_t block_bytes[CKV_BLOCKS_MAX_WINDOWS] = {0}, num_windows = 0;
    for (int64_t i = 0; i < sizing->num_ranks; i++)
        CKV_TRY(merge_rank(sizing, i, counts, block_bytes, &num_windows));
    memcpy(counts_out, counts, (size_t)num_windows * sizeof *counts);
    memcpy(block_bytes_out, block_bytes, (size_t)num_windows * sizeof *block_bytes);
    *num_windows_out = num_windows;
    return CKV_OK;
}
