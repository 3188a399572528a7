/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts of cache operations (`ckv window`): parsing, and running them on a real cache. */
#ifndef CKV_TOOLS_WINDOW_H
#define CKV_TOOLS_WINDOW_H

#include "tools/common/json_lines.h"

#include <ckv/cache.h>
#include <stdio.h>

typedef enum window_op_kind {
    WINDOW_CREATE,
    WINDOW_OPEN,
    WINDOW_WRITE_RANGE,
    WINDOW_ZERO_VALUES,
    WINDOW_FORWARD,
    WINDOW_COMMIT,
    WINDOW_CLOSE,
} window_op_kind;

/* Only the fields of its kind are set. */
typedef struct window_op {
    window_op_kind kind;
    ckv_pool_config pool;
    int64_t pin_tokens, window_tokens, max_staged_tokens;
    json_integers causal_block_sizes;
    int64_t start, tokens, causal_block_size;
} window_op;

typedef struct window_script {
    window_op *ops;
    size_t num_ops, capacity;
} window_script;

/* The whole script or none of it. Comments are dropped; a script without a create is unreadable. */
bool window_script_parse(const char *name, const char *text, size_t bytes, window_script *script_out,
                         json_lines_error *error_out);
void window_script_free(window_script *script);

/* Run, printing one JSON object per op that has one. `layer` is the one printed; all layers and heads must agree.
 * Returns CLI_OK, or CLI_INTERNAL after a message on standard error. */
int window_script_run(const window_script *script, const ckv_device *device, int64_t layer, FILE *out);

#endif
