/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on single blocks and on the trie. */
#include "lib/support/error.h"
#include "tools/blocks/run.h"

#include <inttypes.h>

static ckv_status read_handle(blocks_run *run, const json_t *item, ckv_blocks_handle *handle)
{
    int64_t *values, count;
    CKV_TRY(blocks_list(run, item, "handles", &values, &count));
    if (count != 3)
        return blocks_refuse(run, CKV_ERROR_INVALID, "a handle is [window, block, serial]");
    *handle = (ckv_blocks_handle){values[0], values[1], (uint64_t)values[2]};
    return CKV_OK;
}

static ckv_status op_unpin(blocks_run *run, const json_t *in, json_t *out)
{
    const json_t *list = blocks_field(in, "handles");
    (void)out;
    if (!json_is_array(list))
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'handles' must be a list");
    size_t count = json_array_size(list);
    ckv_blocks_handle *handles = arena_alloc(&run->memory, (count + 1) * sizeof *handles);
    for (size_t i = 0; i < count; i++)
        CKV_TRY(read_handle(run, json_array_get(list, i), &handles[i]));
    return ckv_blocks_unpin(run->blocks, handles, (int64_t)count);
}

static ckv_status op_truncate(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t keep = 0, dropped[CKV_BLOCKS_MAX_WINDOWS];
    ckv_blocks_request request;
    CKV_TRY(blocks_request_object(run, in, &request));
    CKV_TRY(blocks_integer(run, in, "keep", true, &keep));
    CKV_TRY(ckv_blocks_truncate(run->blocks, &request, keep, dropped));
    json_object_set_new(out, "dropped", blocks_per_window(run, dropped));
    return CKV_OK;
}

static ckv_status op_make_private(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id = 0, window, index = 0;
    json_t *ids;
    CKV_TRY(blocks_window_field(run, in, &window));
    CKV_TRY(blocks_integer(run, in, "id", true, &id));
    CKV_TRY(blocks_integer(run, in, "index", true, &index));
    CKV_TRY(ckv_blocks_make_private(run->blocks, id, run->windows[window].window, index));
    CKV_TRY(blocks_ids_json(run, id, &ids));
    json_object_set_new(out, "ids", ids);
    return CKV_OK;
}

/* A block named by window and `block`, or by `id`, `index` and `beam`. */
typedef struct place {
    int64_t index, window, block;
    ckv_blocks_block_info info;
} place;

static ckv_status read_place(blocks_run *run, const json_t *in, place *p)
{
    int64_t id = 0, position = 0, beam = 0;
    bool by_block = blocks_field(in, "block") != NULL, by_id = blocks_field(in, "id") != NULL;
    *p = (place){0};
    if (by_block == by_id)
        return blocks_refuse(run, CKV_ERROR_INVALID, "a block is named by 'block', or by 'id', 'index' and 'beam'");
    CKV_TRY(blocks_integer(run, in, "block", by_block, &p->block));
    CKV_TRY(blocks_integer(run, in, "id", by_id, &id));
    CKV_TRY(blocks_integer(run, in, "index", by_id, &position));
    CKV_TRY(blocks_integer(run, in, "beam", false, &beam));
    CKV_TRY(blocks_window_field(run, in, &p->index));
    p->window = run->windows[p->index].window;
    if (by_id)
        CKV_TRY(ckv_blocks_block_at(run->blocks, id, p->window, position, beam, &p->block));
    return ckv_blocks_get_block(run->blocks, p->window, p->block, &p->info);
}

static ckv_status move(blocks_run *run, const json_t *in, json_t *out, bool to_host)
{
    place p;
    CKV_TRY(read_place(run, in, &p));
    CKV_TRY(to_host ? ckv_blocks_offload(run->blocks, p.window, p.block)
                    : ckv_blocks_onboard(run->blocks, p.window, p.block));
    json_object_set_new(out, "block", json_integer(p.block));
    json_object_set_new(out, "level", json_integer(to_host ? CKV_BLOCKS_HOST : CKV_BLOCKS_PRIMARY));
    return CKV_OK;
}

static ckv_status op_offload(blocks_run *run, const json_t *in, json_t *out)
{
    return move(run, in, out, true);
}

static ckv_status op_onboard(blocks_run *run, const json_t *in, json_t *out)
{
    return move(run, in, out, false);
}

static ckv_status op_write(blocks_run *run, const json_t *in, json_t *out)
{
    place p;
    int64_t stamp = 0, *data, count;
    bool stamped = blocks_field(in, "stamp") != NULL;
    CKV_TRY(blocks_integer(run, in, "stamp", false, &stamp));
    CKV_TRY(blocks_integers(run, in, "data", &data, &count));
    if (stamped == (data != NULL) || count > run->tokens_per_block)
        return blocks_refuse(run, CKV_ERROR_INVALID, "either 'stamp' or at most %" PRId64 " values of 'data'",
                             run->tokens_per_block);
    CKV_TRY(read_place(run, in, &p));
    int64_t *rows = blocks_engine_rows(run, p.index, p.info.tier, p.info.slot);
    for (int64_t i = 0; i < (stamped ? run->tokens_per_block : count); i++)
        rows[i] = stamped ? stamp : data[i];
    json_object_set_new(out, "block", json_integer(p.block));
    return CKV_OK;
}

static ckv_status op_read(blocks_run *run, const json_t *in, json_t *out)
{
    place p;
    int64_t rows = run->tokens_per_block;
    CKV_TRY(blocks_integer(run, in, "rows", false, &rows));
    if (rows < 0 || rows > run->tokens_per_block)
        return blocks_refuse(run, CKV_ERROR_INVALID, "a block has %" PRId64 " rows, not %" PRId64,
                             run->tokens_per_block, rows);
    CKV_TRY(read_place(run, in, &p));
    json_object_set_new(out, "block", json_integer(p.block));
    json_object_set_new(out, "level", json_integer(p.info.tier));
    json_object_set_new(out, "data",
                        blocks_integers_json(blocks_engine_rows(run, p.index, p.info.tier, p.info.slot), rows));
    return CKV_OK;
}

static ckv_status op_verify(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id = 0;
    ckv_blocks_request_info info;
    CKV_TRY(blocks_integer(run, in, "id", true, &id));
    CKV_TRY(ckv_blocks_get_request(run->blocks, id, &info));
    blocks_engine_verify(run, id, out);
    return CKV_OK;
}

const blocks_op blocks_block_ops[] = {
    {"unpin", op_unpin, false, true},
    {"truncate", op_truncate, false, true},
    {"make_private", op_make_private, false, true},
    {"offload", op_offload, false, true},
    {"onboard", op_onboard, false, true},
    {"write", op_write, false, false},
    {"read", op_read, false, false},
    {"verify", op_verify, false, false},
    {NULL, NULL, false, false},
};
