/* SPDX-License-Identifier: Apache-2.0 */
/* A block manager of a few small blocks with memory, and random work for it. */
#ifndef CKV_TESTS_SUPPORT_SMALL_BLOCKS_H
#define CKV_TESTS_SUPPORT_SMALL_BLOCKS_H

#include "tests/support/case.h"
#include "tests/support/random.h"

#include <ckv/blocks.h>

enum { SMALL_BLOCK_TOKENS = 4, SMALL_BLOCKS_WINDOW = 32, SMALL_BLOCKS_PER_REQUEST = 8 };

/* One window of 32 tokens in blocks of 4, without memory until device and row_bytes or a geometry are given. */
ckv_blocks_config small_blocks_config(const ckv_blocks_count *count);

/* What the row of a prefix's last token holds; never 0. */
int64_t small_blocks_row(const int32_t *tokens, int64_t row);

/* Add a request whose prompt shares a prefix with one in four others; its tokens, or 0 when there is no room. */
int64_t small_blocks_add_random(ckv_blocks *blocks, ckv_random *random, int64_t id);

/* Move up to a dozen blocks between the tiers, without a step of the model between. */
void small_blocks_move_some(ckv_blocks *blocks, ckv_random *random);

#endif
