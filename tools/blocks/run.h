/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts of block-manager operations (`ckv blocks`): one answer for every line, on a real manager in host memory. */
#ifndef CKV_TOOLS_BLOCKS_RUN_H
#define CKV_TOOLS_BLOCKS_RUN_H

#include "tools/common/arena.h"

#include <ckv/blocks.h>
#include <ckv/blocks_report.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct blocks_run {
    ckv_blocks *blocks; /* NULL before init */
    int64_t num_windows, tokens_per_block, max_seq_len;
    ckv_blocks_window windows[CKV_BLOCKS_MAX_WINDOWS];
    int64_t now_ms;
    uint64_t next_serial; /* of pins, over the whole run */
    json_t *labels;       /* hash in hexadecimal -> number, over the whole run */
    void *shadows;        /* what the engine knows of live requests: a tree by id */
    arena memory;         /* of one line */
    char message[512];    /* why the line is refused; "": the library says */
} blocks_run;

/* One operation. Fills `out` and returns CKV_OK, or refuses and leaves everything as it was. */
typedef ckv_status (*blocks_handler)(blocks_run *run, const json_t *in, json_t *out);

typedef struct blocks_op {
    const char *name;
    blocks_handler handler;
    bool pure;  /* allowed before init */
    bool frees; /* answers "free" too */
} blocks_op;

/* Tables end with a NULL name. */
extern const blocks_op blocks_setup_ops[], blocks_request_ops[], blocks_block_ops[], blocks_view_ops[],
    blocks_schedule_ops[], blocks_report_ops[];

void blocks_run_init(blocks_run *run);
void blocks_run_free(blocks_run *run);

/* Answer every line of `text`. False when the output could not be written. */
bool blocks_run_text(blocks_run *run, const char *text, size_t bytes, FILE *out);

/* Record a message and be the status. */
ckv_status blocks_refuse(blocks_run *run, ckv_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- Fields. Absent and null are the same. ---- */

const json_t *blocks_field(const json_t *object, const char *name); /* NULL: absent */
/* Leave `value` alone when the field is absent and not required. */
ckv_status blocks_integer(blocks_run *run, const json_t *object, const char *name, bool required, int64_t *value);
ckv_status blocks_boolean(blocks_run *run, const json_t *object, const char *name, bool *value);
ckv_status blocks_text(blocks_run *run, const json_t *object, const char *name, const char **value);
/* In the line's memory; *values NULL when absent. */
ckv_status blocks_integers(blocks_run *run, const json_t *object, const char *name, int64_t **values, int64_t *count);
/* A list of integers without a name. */
ckv_status blocks_list(blocks_run *run, const json_t *list, const char *name, int64_t **values, int64_t *count);
/* The `window` field, or the only window. */
ckv_status blocks_window_field(blocks_run *run, const json_t *object, int64_t *index);
/* Index of a word in a list that ends with NULL. */
ckv_status blocks_word(blocks_run *run, const json_t *object, const char *name, const char *const *words, int *value);

/* Tokens of `tokens`, `range` or `tokens_i32`; exactly one of them. */
ckv_status blocks_tokens(blocks_run *run, const json_t *object, int32_t **tokens, int64_t *count);
bool blocks_has_tokens(const json_t *object);
ckv_status blocks_request_object(blocks_run *run, const json_t *object, ckv_blocks_request *request);
/* A live id, or a request object: then *request is `storage`, else NULL. */
ckv_status blocks_live_or_object(blocks_run *run, const json_t *object, int64_t *id, ckv_blocks_request *storage,
                                 const ckv_blocks_request **request);
ckv_status blocks_retention_object(blocks_run *run, const json_t *object, ckv_blocks_request *request);

/* ---- Answers ---- */

json_t *blocks_integers_json(const int64_t *values, int64_t count);
/* {window: values[index]} */
json_t *blocks_per_window(const blocks_run *run, const int64_t *values);
void blocks_set_window(const blocks_run *run, json_t *object, int64_t index, json_t *value);
json_t *blocks_handles_json(const ckv_blocks_handles *handles);
json_t *blocks_label(blocks_run *run, uint64_t hash);
ckv_status blocks_ids_json(blocks_run *run, int64_t id, json_t **ids); /* {window: [per beam]} */

/* ---- The simulated engine: rows whose values depend on the whole prefix ---- */

void blocks_engine_clear(blocks_run *run);
void blocks_engine_add(blocks_run *run, const ckv_blocks_request *request, int64_t reused);
void blocks_engine_remove(blocks_run *run, int64_t id);
void blocks_engine_prefill(blocks_run *run, int64_t id, int64_t from, int64_t to);
/* The row of the last token, before the tokens that follow are known to fit: take it back when they do not. */
typedef struct blocks_undo_row {
    int64_t *row, value;
} blocks_undo_row;

typedef struct blocks_undo {
    blocks_undo_row *rows;
    int64_t count, capacity;
} blocks_undo;

void blocks_engine_before_append(blocks_run *run, int64_t id, blocks_undo *undo);
void blocks_engine_undo(blocks_undo *undo, bool take_back);
void blocks_engine_append(blocks_run *run, int64_t id, const int32_t *tokens, int64_t count);
void blocks_engine_rewind(blocks_run *run, int64_t id, int64_t tokens);
void blocks_engine_verify(blocks_run *run, int64_t id, json_t *out);
int64_t *blocks_engine_rows(blocks_run *run, int64_t window_index, int64_t tier, int64_t slot);

#endif
