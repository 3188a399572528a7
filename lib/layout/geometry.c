/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/layout/geometry.h"

#include "lib/support/checked.h"
#include "lib/support/error.h"

#include <inttypes.h>
#include <string.h>

ckv_rollout_config ckv_rollout_config_default(void)
{
    return (ckv_rollout_config){.struct_size = sizeof(ckv_rollout_config)};
}

static ckv_status check_range(const char *name, int64_t value, int64_t minimum, int64_t maximum)
{
    if (value < minimum || value > maximum)
        return ckv_fail(CKV_ERROR_INVALID, "%s is %" PRId64 "; it must be %" PRId64 " to %" PRId64, name, value,
                        minimum, maximum);
    return CKV_OK;
}

/* Insert `size` into the ascending list unless it is there. */
static ckv_status insert_size(ckv_geometry *geometry, int64_t size)
{
    int32_t at = 0;
    while (at < geometry->num_sizes && geometry->sizes[at] < size)
        at++;
    if (at < geometry->num_sizes && geometry->sizes[at] == size)
        return CKV_OK;
    if (geometry->num_sizes == CKV_MAX_CAUSAL_BLOCK_SIZES)
        return ckv_fail(CKV_ERROR_INVALID, "causal_block_sizes holds more than %d distinct sizes",
                        CKV_MAX_CAUSAL_BLOCK_SIZES);
    memmove(&geometry->sizes[at + 1], &geometry->sizes[at], (size_t)(geometry->num_sizes - at) * sizeof(int64_t));
    geometry->sizes[at] = size;
    geometry->num_sizes++;
    return CKV_OK;
}

ckv_status ckv_geometry_init(const ckv_rollout_config *config, int64_t tokens_per_page, ckv_geometry *geometry_out)
{
    if (config == NULL || config->struct_size != sizeof *config)
        return ckv_fail(CKV_ERROR_INVALID, "rollout config: struct_size is not sizeof(ckv_rollout_config); start from "
                                           "ckv_rollout_config_default()");
    if (!ckv_is_power_of_two(tokens_per_page) || tokens_per_page > CKV_MAX_TOKENS)
        return ckv_fail(CKV_ERROR_INVALID, "tokens_per_page is %" PRId64 "; it must be a power of two",
                        tokens_per_page);
    CKV_TRY(check_range("pin_tokens", config->pin_tokens, 0, CKV_MAX_TOKENS));
    CKV_TRY(check_range("window_tokens", config->window_tokens, 0, CKV_MAX_TOKENS));
    CKV_TRY(check_range("max_staged_tokens", config->max_staged_tokens, 1, CKV_MAX_TOKENS));
    if (config->num_causal_block_sizes == 0 || config->causal_block_sizes == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "causal_block_sizes is empty; name at least one size");

    ckv_geometry geometry = {.tokens_per_page = tokens_per_page,
                             .window_tokens = config->window_tokens,
                             .max_staged_tokens = config->max_staged_tokens};
    for (size_t i = 0; i < config->num_causal_block_sizes; i++) {
        CKV_TRY(check_range("a causal block size", config->causal_block_sizes[i], 1, config->max_staged_tokens));
        CKV_TRY(insert_size(&geometry, config->causal_block_sizes[i]));
    }
    *geometry_out = geometry;
    return CKV_OK;
}

bool ckv_geometry_equal(const ckv_geometry *a, const ckv_geometry *b)
{
    return a->tokens_per_page == b->tokens_per_page && a->window_tokens == b->window_tokens &&
           a->max_staged_tokens == b->max_staged_tokens && a->num_sizes == b->num_sizes &&
           memcmp(a->sizes, b->sizes, (size_t)a->num_sizes * sizeof(int64_t)) == 0;
}

int32_t ckv_geometry_find_size(const ckv_geometry *geometry, int64_t causal_block_size)
{
    for (int32_t i = 0; i < geometry->num_sizes; i++)
        if (geometry->sizes[i] == causal_block_size)
            return i;
    return -1;
}

int64_t ckv_geometry_num_blocks(const ckv_geometry *geometry, int32_t size)
{
    return geometry->max_staged_tokens / geometry->sizes[size];
}

int64_t ckv_geometry_private_pages(const ckv_geometry *geometry, int32_t size)
{
    return ckv_ceil_div_i64(3 * (geometry->tokens_per_page - 1) + geometry->sizes[size], geometry->tokens_per_page);
}

ckv_status ckv_geometry_total_private_pages(const ckv_geometry *geometry, int64_t *pages_out)
{
    int64_t total = 0;
    for (int32_t i = 0; i < geometry->num_sizes; i++) {
        int64_t pages;
        if (!ckv_mul_i64(ckv_geometry_num_blocks(geometry, i), ckv_geometry_private_pages(geometry, i), &pages) ||
            !ckv_add_i64(total, pages, &total))
            return ckv_fail(CKV_ERROR_INVALID, "private pages of causal block size %" PRId64 " do not fit 64 bits",
                            geometry->sizes[i]);
    }
    *pages_out = total;
    return CKV_OK;
}

int64_t ckv_geometry_resident_pages(const ckv_geometry *geometry, int64_t pin_tokens)
{
    return ckv_ceil_div_i64(pin_tokens + geometry->window_tokens + geometry->max_staged_tokens,
                            geometry->tokens_per_page) +
           1;
}

ckv_status ckv_rollout_config_size(const ckv_rollout_config *config, int64_t tokens_per_page,
                                   ckv_rollout_size *size_out)
{
    if (size_out == NULL)
        return ckv_fail(CKV_ERROR_INVALID, "rollout_config_size: size_out is NULL");
    ckv_geometry geometry;
    CKV_TRY(ckv_geometry_init(config, tokens_per_page, &geometry));
    int64_t private_pages;
    CKV_TRY(ckv_geometry_total_private_pages(&geometry, &private_pages));
    int64_t resident_pages = ckv_geometry_resident_pages(&geometry, config->pin_tokens);
    ckv_rollout_size size;
    if (!ckv_mul_i64(private_pages, tokens_per_page, &size.private_tokens) ||
        !ckv_mul_i64(resident_pages, tokens_per_page, &size.resident_tokens) ||
        !ckv_add_i64(size.private_tokens, size.resident_tokens, &size.pool_tokens))
        return ckv_fail(CKV_ERROR_INVALID,
                        "%" PRId64 " resident and %" PRId64 " private pages of %" PRId64 " tokens do not fit 64 bits",
                        resident_pages, private_pages, tokens_per_page);
    *size_out = size;
    return CKV_OK;
}

ckv_status ckv_commit_plan_make(const ckv_geometry *geometry, int64_t pin_tokens, const ckv_progress *before,
                                int64_t tokens, ckv_commit_plan *plan_out)
{
    int64_t to_pin = pin_tokens - before->fixed_tokens;
    int64_t most = to_pin + geometry->max_staged_tokens;
    if (tokens < 1 || tokens > most)
        return ckv_fail(CKV_ERROR_INVALID,
                        "commit of %" PRId64 " tokens; it must be 1 to %" PRId64 " (%" PRId64
                        " still to pin and max_staged_tokens %" PRId64 ")",
                        tokens, most, to_pin, geometry->max_staged_tokens);

    *plan_out = ckv_commit_plan_apply(geometry->tokens_per_page, geometry->window_tokens, pin_tokens, *before, tokens);
    return CKV_OK;
}
