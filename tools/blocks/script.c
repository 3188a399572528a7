/* SPDX-License-Identifier: Apache-2.0 */
/* Line by line: parse, dispatch, answer. */
#include "lib/support/error.h"
#include "tools/blocks/run.h"

#include <inttypes.h>
#include <string.h>

void blocks_run_init(blocks_run *run)
{
    *run = (blocks_run){.next_serial = 1, .labels = json_object()};
}

void blocks_run_free(blocks_run *run)
{
    blocks_engine_clear(run);
    ckv_blocks_destroy(&run->blocks);
    json_decref(run->labels);
    arena_free(&run->memory);
    *run = (blocks_run){0};
}

static const char *code_of(ckv_status status)
{
    switch (status) {
    case CKV_ERROR_STATE:
        return "state";
    case CKV_ERROR_CAPACITY:
    case CKV_ERROR_MEMORY:
        return "capacity";
    case CKV_ERROR_NOT_FOUND:
        return "not_found";
    case CKV_ERROR_UNSUPPORTED:
        return "unsupported";
    default:
        return "invalid";
    }
}

static const blocks_op *find_op(const char *name)
{
    static const blocks_op *const tables[] = {blocks_setup_ops, blocks_request_ops,  blocks_block_ops,
                                              blocks_view_ops,  blocks_schedule_ops, blocks_report_ops};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        for (const blocks_op *op = tables[i]; op->name != NULL; op++)
            if (strcmp(op->name, name) == 0)
                return op;
    return NULL;
}

static json_t *free_json(const blocks_run *run)
{
    int64_t primary[CKV_BLOCKS_MAX_WINDOWS] = {0};
    for (int64_t i = 0; i < run->num_windows; i++) {
        int64_t levels[CKV_BLOCKS_TIERS], empty[CKV_BLOCKS_TIERS];
        if (ckv_blocks_get_free(run->blocks, run->windows[i].window, levels, empty) == CKV_OK)
            primary[i] = levels[CKV_BLOCKS_PRIMARY];
    }
    return blocks_per_window(run, primary);
}

static ckv_status dispatch(blocks_run *run, const json_t *in, json_t *out)
{
    const char *name = json_string_value(json_object_get(in, "op"));
    if (name == NULL)
        return blocks_refuse(run, CKV_ERROR_INVALID, "the line is no object with a string 'op'");
    const blocks_op *op = find_op(name);
    if (op == NULL)
        return blocks_refuse(run, CKV_ERROR_INVALID, "there is no op '%.64s'", name);
    if (!op->pure && run->blocks == NULL)
        return blocks_refuse(run, CKV_ERROR_STATE, "'%s' needs a manager; 'init' comes first", name);
    json_object_set_new(out, "name", json_string(name));
    if (json_is_integer(json_object_get(in, "id")))
        json_object_set(out, "id", json_object_get(in, "id"));
    CKV_TRY(op->handler(run, in, out));
    if (op->frees)
        json_object_set_new(out, "free", free_json(run));
    return CKV_OK;
}

/* Messages may end inside of a character of the input. */
static json_t *printable(const char *text)
{
    char copy[512];
    size_t length = 0;
    for (; text[length] != '\0' && length + 1 < sizeof copy; length++)
        copy[length] = text[length] >= ' ' && text[length] <= '~' ? text[length] : '?';
    copy[length] = '\0';
    return json_string(copy);
}

static json_t *answer(blocks_run *run, const char *line, size_t length, long number)
{
    json_error_t error;
    json_t *in = json_loadb(line, length, JSON_REJECT_DUPLICATES, &error);
    json_t *out = json_pack("{sI}", "op", (json_int_t)number);
    run->message[0] = '\0';
    ckv_status status =
        in != NULL ? dispatch(run, in, out)
                   : blocks_refuse(run, CKV_ERROR_INVALID, "not JSON: %s (column %d)", error.text, error.column);
    if (status != CKV_OK) {
        json_decref(out);
        out = json_pack("{ss sI so}", "error", code_of(status), "op", (json_int_t)number, "message",
                        printable(run->message[0] != '\0' ? run->message : ckv_last_error()));
    }
    json_decref(in);
    arena_free(&run->memory);
    return out;
}

static bool is_blank(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

bool blocks_run_text(blocks_run *run, const char *text, size_t bytes, FILE *out)
{
    long number = 0;
    for (size_t at = 0; at < bytes;) {
        const char *line = text + at, *end = memchr(line, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - line) : bytes - at;
        at += length + 1;
        number++;
        if (is_blank(line, length))
            continue;
        json_t *object = answer(run, line, length, number);
        bool written = json_dumpf(object, out, JSON_COMPACT) == 0 && fputc('\n', out) != EOF;
        json_decref(object);
        if (!written)
            return false;
    }
    return true;
}
