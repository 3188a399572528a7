/* SPDX-License-Identifier: Apache-2.0 */
/* What a scheduler asks. */
#include "lib/support/error.h"
#include "tools/blocks/run.h"

#include <inttypes.h>

static ckv_status demand(blocks_run *run, const json_t *in, json_t *out, bool to_the_end)
{
    int64_t index, id = 0;
    bool two_steps = false;
    ckv_blocks_request storage;
    const ckv_blocks_request *request;
    ckv_blocks_demand answer;
    CKV_TRY(blocks_window_field(run, in, &index));
    CKV_TRY(blocks_live_or_object(run, in, &id, &storage, &request));
    CKV_TRY(blocks_boolean(run, in, "two_steps", &two_steps));
    int64_t window = run->windows[index].window;
    CKV_TRY(to_the_end ? ckv_blocks_remaining(run->blocks, window, id, request, &answer)
                       : ckv_blocks_needed(run->blocks, window, id, request, two_steps, &answer));
    json_object_set_new(out, "window", json_integer(window));
    json_object_set_new(out, "blocks", json_integer(answer.blocks));
    json_object_set_new(out, "estimated_reusable_tokens", json_integer(answer.estimated_reusable_tokens));
    return CKV_OK;
}

static ckv_status op_needed(blocks_run *run, const json_t *in, json_t *out)
{
    return demand(run, in, out, false);
}

static ckv_status op_remaining(blocks_run *run, const json_t *in, json_t *out)
{
    return demand(run, in, out, true);
}

/* Tokens of one block of a live request or a request object. */
static ckv_status block_tokens(blocks_run *run, int64_t id, const ckv_blocks_request *request, int64_t block,
                               json_t **value)
{
    const int32_t *tokens = request != NULL ? request->tokens : NULL;
    *value = json_null();
    if (block < 0)
        return CKV_OK;
    if (tokens == NULL) {
        ckv_blocks_request_info info;
        CKV_TRY(ckv_blocks_get_request(run->blocks, id, &info));
        int32_t *copy = arena_alloc(&run->memory, (size_t)info.tokens * sizeof *copy);
        CKV_TRY(ckv_blocks_get_tokens(run->blocks, id, info.tokens, copy));
        tokens = copy;
    }
    *value = json_array();
    for (int64_t i = 0; i < run->tokens_per_block; i++)
        json_array_append_new(*value, json_integer(tokens[block * run->tokens_per_block + i]));
    return CKV_OK;
}

static ckv_status op_analyze(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id = 0;
    ckv_blocks_request storage;
    const ckv_blocks_request *request;
    ckv_blocks_analysis analysis;
    json_t *first_new;
    CKV_TRY(blocks_live_or_object(run, in, &id, &storage, &request));
    CKV_TRY(ckv_blocks_analyze(run->blocks, id, request, &analysis));
    CKV_TRY(block_tokens(run, id, request, analysis.first_new_block, &first_new));
    json_object_set_new(out, "tokens", json_integer(analysis.tokens));
    json_object_set_new(out, "reusable_all", blocks_per_window(run, analysis.reusable_all));
    json_object_set_new(out, "reusable_allocated", blocks_per_window(run, analysis.reusable_allocated));
    json_object_set_new(out, "first_new_block", first_new);
    return CKV_OK;
}

static ckv_status op_schedule_start(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t free_blocks[CKV_BLOCKS_MAX_WINDOWS];
    (void)in;
    CKV_TRY(ckv_blocks_schedule_start(run->blocks, free_blocks));
    json_object_set_new(out, "schedule_free", blocks_per_window(run, free_blocks));
    return CKV_OK;
}

static ckv_status op_schedule_release(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t id = 0, free_blocks[CKV_BLOCKS_MAX_WINDOWS];
    CKV_TRY(blocks_integer(run, in, "id", true, &id));
    CKV_TRY(ckv_blocks_schedule_release(run->blocks, id, free_blocks));
    json_object_set_new(out, "schedule_free", blocks_per_window(run, free_blocks));
    return CKV_OK;
}

static ckv_status op_schedule_fits(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t index, needed = 0;
    int fits;
    CKV_TRY(blocks_window_field(run, in, &index));
    CKV_TRY(blocks_integer(run, in, "blocks", true, &needed));
    CKV_TRY(ckv_blocks_schedule_fits(run->blocks, run->windows[index].window, needed, &fits));
    json_object_set_new(out, "window", json_integer(run->windows[index].window));
    json_object_set_new(out, "fits", json_boolean(fits));
    return CKV_OK;
}

static ckv_status op_max_batch(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t input = 0, output = 0, batch, per_window[CKV_BLOCKS_MAX_WINDOWS];
    CKV_TRY(blocks_integer(run, in, "input", true, &input));
    CKV_TRY(blocks_integer(run, in, "output", true, &output));
    CKV_TRY(ckv_blocks_max_batch(run->blocks, input, output, &batch, per_window));
    json_object_set_new(out, "batch", json_integer(batch));
    json_object_set_new(out, "per_window", blocks_per_window(run, per_window));
    return CKV_OK;
}

typedef struct shape {
    int64_t input, output, tokens_per_block, sink, beam;
} shape;

static ckv_status read_shape(blocks_run *run, const json_t *in, shape *s)
{
    *s = (shape){.beam = 1};
    CKV_TRY(blocks_integer(run, in, "input", true, &s->input));
    CKV_TRY(blocks_integer(run, in, "output", true, &s->output));
    CKV_TRY(blocks_integer(run, in, "tokens_per_block", true, &s->tokens_per_block));
    CKV_TRY(blocks_integer(run, in, "sink", false, &s->sink));
    return blocks_integer(run, in, "beam", false, &s->beam);
}

static ckv_status op_block_requirements(blocks_run *run, const json_t *in, json_t *out)
{
    shape s;
    int64_t window = 0, needed;
    CKV_TRY(read_shape(run, in, &s));
    CKV_TRY(blocks_integer(run, in, "window", true, &window));
    CKV_TRY(ckv_blocks_requirements(s.input, s.output, window, s.tokens_per_block, s.sink, s.beam, &needed));
    json_object_set_new(out, "blocks", json_integer(needed));
    return CKV_OK;
}

static ckv_status op_max_window(blocks_run *run, const json_t *in, json_t *out)
{
    shape s;
    int64_t window, available = 0;
    CKV_TRY(read_shape(run, in, &s));
    CKV_TRY(blocks_integer(run, in, "blocks", true, &available));
    CKV_TRY(ckv_blocks_max_window(s.input, s.output, available, s.tokens_per_block, s.sink, s.beam, &window));
    json_object_set_new(out, "window", json_integer(window));
    return CKV_OK;
}

enum { MOST_RETENTION_BLOCKS = 1 << 20 };

static ckv_status op_retention(blocks_run *run, const json_t *in, json_t *out)
{
    int64_t step = 0, length = 0;
    const json_t *retention = blocks_field(in, "retention");
    ckv_blocks_request request = ckv_blocks_request_default();
    if (retention != NULL)
        CKV_TRY(blocks_retention_object(run, retention, &request));
    CKV_TRY(blocks_integer(run, in, "tokens_per_block", true, &step));
    CKV_TRY(blocks_integer(run, in, "length", true, &length));
    if (step < 1 || length < 0 || length / step > MOST_RETENTION_BLOCKS)
        return blocks_refuse(run, CKV_ERROR_INVALID, "tokens_per_block %" PRId64 ", length %" PRId64, step, length);
    int64_t blocks = length / step + (length % step != 0);
    int64_t *priorities = arena_alloc(&run->memory, (size_t)(blocks + 1) * sizeof *priorities);
    int64_t *durations = arena_alloc(&run->memory, (size_t)(blocks + 1) * sizeof *durations);
    CKV_TRY(ckv_blocks_retention(request.ranges, request.num_ranges, step, length, priorities, durations));
    json_t *list = json_array();
    for (int64_t i = 0; i < blocks; i++) {
        json_t *duration = durations[i] == CKV_BLOCKS_NO_DURATION ? json_null() : json_integer(durations[i]);
        json_array_append_new(list, priorities[i] < 0 ? json_null()
                                                      : json_pack("[I,O]", (json_int_t)priorities[i], duration));
        json_decref(duration);
    }
    json_object_set_new(out, "blocks", list);
    return CKV_OK;
}

const blocks_op blocks_schedule_ops[] = {
    {"needed", op_needed, false, false},
    {"remaining", op_remaining, false, false},
    {"analyze", op_analyze, false, false},
    {"schedule_start", op_schedule_start, false, false},
    {"schedule_release", op_schedule_release, false, false},
    {"schedule_fits", op_schedule_fits, false, false},
    {"max_batch", op_max_batch, false, false},
    {"block_requirements", op_block_requirements, true, false},
    {"max_window", op_max_window, true, false},
    {"retention", op_retention, true, false},
    {NULL, NULL, false, false},
};
