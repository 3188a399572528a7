/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as a trace: the safetensors reader, then the trace on top of it, then every byte of what came out. */
#include "fuzz/fuzz.h"
#include "tools/trace/trace.h"

#include <stdlib.h>

static volatile unsigned sink; /* so that no read is optimised away */

/* Wrong bounds show when the memory is touched. */
static void touch(const void *memory, int64_t tokens, int64_t heads, const trace_config *config)
{
    const unsigned char *bytes = memory;
    size_t count = (size_t)(tokens * heads * config->head_dim) * ckv_dtype_bytes(config->dtype);
    for (size_t i = 0; bytes != NULL && i < count; i++)
        sink = bytes[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trace *t;
    problem why;
    if (!trace_parse("input", data, size, &t, &why))
        return 0;
    for (size_t i = 0; i < t->num_ops; i++) {
        const trace_op *op = &t->ops[i];
        int64_t tokens = op->kind == TRACE_FORWARD ? op->rows : op->tokens;
        if (op->kind == TRACE_FORWARD && op->seq_len > op->rows)
            abort();
        touch(op->q, tokens, t->config.q_heads, &t->config);
        touch(op->k, tokens, t->config.kv_heads, &t->config);
        touch(op->v, tokens, t->config.kv_heads, &t->config);
        touch(op->expected, tokens, t->config.q_heads, &t->config);
    }
    trace_free(&t);
    return 0;
}
