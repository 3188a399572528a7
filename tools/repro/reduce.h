/* SPDX-License-Identifier: Apache-2.0 */
/* Smaller traces: what of a trace to leave out, and the trace that remains. */
#ifndef CKV_TOOLS_REPRO_REDUCE_H
#define CKV_TOOLS_REPRO_REDUCE_H

#include "tools/trace/trace.h"

/* Neighbours in a list: of ops, layers, heads. */
typedef struct trace_range {
    size_t first, count;
} trace_range;

/* One number of one op. */
typedef enum trace_number {
    NUMBER_NONE,
    NUMBER_PIN,
    NUMBER_WINDOW,
    NUMBER_STAGED,
    NUMBER_START,   /* of a write_range or zero_values */
    NUMBER_TOKENS,  /* of a write_range, zero_values or commit */
    NUMBER_PADDING, /* rows of a forward at and past seq_len */
    NUMBER_BLOCKS,  /* causal blocks of a forward; must divide its tokens */
} trace_number;

/* Of which forwards NAME.expected stays. */
typedef enum expected_kept { EXPECTED_ALL, EXPECTED_LAST, EXPECTED_NONE } expected_kept;

typedef struct reduction {
    trace_range ops, layers, kv_heads, group; /* left out; a K/V head goes with its query heads, `group` is of each */
    int64_t head_dim, tokens_per_page;        /* 0: as they are */
    trace_range capped;                       /* ops whose tokens are at most... */
    int64_t cap_tokens;                       /* ...this many, the first ones; 0: all */
    trace_number number;                      /* that op `number_op` gets */
    size_t number_op;
    int64_t value;
    bool only_used_blocks; /* declare no causal block sizes but those of forwards */
    expected_kept expected;
    bool round_values; /* to eighths */
} reduction;

/* A built trace, or NULL: out of memory, or the reduction leaves nothing that could be one. */
trace *reduce(const trace *t, const reduction *r);

/* Ops of a file may share a tensor; those of a trace that is written may not. False when out of memory. */
bool trace_name_apart(trace *t);

/* Tokens of a trace: what each chunk, the ops up to a commit, commits or stages. */
int64_t trace_tokens(const trace *t);

/* Chunks, and the ops of one; open and close belong to none. */
size_t trace_chunks(const trace *t);
trace_range trace_chunk(const trace *t, size_t index);

/* The number as the op has it; -1 when ops of its kind have none. */
int64_t trace_get_number(const trace_op *op, trace_number number);

/* Most tokens that an op among these has. */
int64_t trace_most_tokens(const trace *t, trace_range ops);

#endif
