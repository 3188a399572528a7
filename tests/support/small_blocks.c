/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/small_blocks.h"

ckv_blocks_config small_blocks_config(const ckv_blocks_count *count)
{
    ckv_blocks_config config = ckv_blocks_config_default();
    config.geometry.tokens_per_block = SMALL_BLOCK_TOKENS;
    config.geometry.max_seq_len = SMALL_BLOCKS_WINDOW;
    config.counts = count;
    config.num_counts = 1;
    return config;
}

int64_t small_blocks_row(const int32_t *tokens, int64_t row)
{
    uint64_t hash = 7;
    for (int64_t i = 0; i <= row; i++)
        hash = (hash ^ (uint32_t)tokens[i]) * 0x9e3779b97f4a7c15u + (hash >> 31);
    return (int64_t)(hash >> 1 | 1);
}

int64_t small_blocks_add_random(ckv_blocks *blocks, ckv_random *random, int64_t id)
{
    int32_t tokens[SMALL_BLOCKS_WINDOW];
    ckv_blocks_request request = ckv_blocks_request_default();
    ckv_blocks_admission admission;
    int64_t stream = ckv_random_range(random, 0, 3);
    request.id = id;
    request.tokens = tokens;
    request.num_tokens = ckv_random_range(random, 2, 24);
    for (int i = 0; i < SMALL_BLOCKS_WINDOW; i++)
        tokens[i] = (int32_t)(stream * 50 + i);
    if (ckv_random_range(random, 0, 2) == 0)
        tokens[request.num_tokens - 1] = 999;
    ckv_status status = ckv_blocks_add(blocks, &request, 1, &admission);
    assert_true(status == CKV_OK || status == CKV_ERROR_CAPACITY);
    return status == CKV_OK ? request.num_tokens : 0;
}

void small_blocks_move_some(ckv_blocks *blocks, ckv_random *random)
{
    for (int64_t moves = ckv_random_range(random, 0, 12); moves > 0; moves--) {
        int64_t block = ckv_random_range(random, 0, 13);
        ckv_status status = ckv_random_range(random, 0, 1) ? ckv_blocks_offload(blocks, SMALL_BLOCKS_WINDOW, block)
                                                           : ckv_blocks_onboard(blocks, SMALL_BLOCKS_WINDOW, block);
        assert_true(status == CKV_OK || status == CKV_ERROR_CAPACITY || status == CKV_ERROR_STATE);
    }
}
