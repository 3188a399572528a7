/* SPDX-License-Identifier: Apache-2.0 */
/* Request objects of a script. */
#include "lib/support/error.h"
#include "tools/blocks/run.h"

#include <inttypes.h>
#include <string.h>

enum { MANY_TOKENS = 1 << 20 }; /* a list that is too long for the manager is refused by the manager up to here */

bool blocks_has_tokens(const json_t *object)
{
    return blocks_field(object, "tokens") != NULL || blocks_field(object, "range") != NULL ||
           blocks_field(object, "tokens_i32") != NULL;
}

static ckv_status narrow(blocks_run *run, const int64_t *values, int64_t count, int32_t *tokens)
{
    for (int64_t i = 0; i < count; i++) {
        if (values[i] < INT32_MIN || values[i] > INT32_MAX)
            return blocks_refuse(run, CKV_ERROR_INVALID, "token %" PRId64 " does not fit 32 bits", values[i]);
        tokens[i] = (int32_t)values[i];
    }
    return CKV_OK;
}

static ckv_status read_range(blocks_run *run, const json_t *object, int32_t **tokens, int64_t *count)
{
    int64_t *range, length;
    CKV_TRY(blocks_integers(run, object, "range", &range, &length));
    if (length != 2 || range[1] < 0 || range[0] < INT32_MIN || range[0] > INT32_MAX ||
        range[1] > INT32_MAX - range[0] + (int64_t)1)
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'range' must be [first, count] of 32-bit tokens");
    if (range[1] > run->max_seq_len && range[1] > MANY_TOKENS)
        return blocks_refuse(run, CKV_ERROR_INVALID, "%" PRId64 " tokens are more than max_seq_len %" PRId64, range[1],
                             run->max_seq_len);
    *tokens = arena_alloc(&run->memory, (size_t)(range[1] + 1) * sizeof **tokens);
    *count = range[1];
    for (int64_t i = 0; i < range[1]; i++)
        (*tokens)[i] = (int32_t)(range[0] + i);
    return CKV_OK;
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c != '\0' ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

static ckv_status read_packed(blocks_run *run, const json_t *object, int32_t **tokens, int64_t *count)
{
    const char *text = "";
    CKV_TRY(blocks_text(run, object, "tokens_i32", &text));
    size_t bytes = strlen(text) / 2;
    uint8_t *packed = arena_alloc(&run->memory, bytes + 1);
    bool valid = strlen(text) % 2 == 0;
    for (size_t i = 0; valid && i < bytes; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        valid = high >= 0 && low >= 0;
        packed[i] = (uint8_t)(valid ? high << 4 | low : 0);
    }
    if (!valid)
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'tokens_i32' must be pairs of hexadecimal digits");
    *tokens = arena_alloc(&run->memory, bytes + sizeof **tokens);
    *count = (int64_t)(bytes / 4);
    return ckv_blocks_unpack_tokens(packed, bytes, *tokens);
}

ckv_status blocks_tokens(blocks_run *run, const json_t *object, int32_t **tokens, int64_t *count)
{
    bool list = blocks_field(object, "tokens") != NULL, range = blocks_field(object, "range") != NULL;
    bool packed = blocks_field(object, "tokens_i32") != NULL;
    if (list + range + packed != 1)
        return blocks_refuse(run, CKV_ERROR_INVALID, "exactly one of 'tokens', 'range', 'tokens_i32' is needed");
    if (range)
        return read_range(run, object, tokens, count);
    if (packed)
        return read_packed(run, object, tokens, count);
    int64_t *values;
    CKV_TRY(blocks_integers(run, object, "tokens", &values, count));
    *tokens = arena_alloc(&run->memory, (size_t)(*count + 1) * sizeof **tokens);
    return narrow(run, values, *count, *tokens);
}

static uint64_t text_hash(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

static ckv_status read_mm_item(blocks_run *run, const json_t *item, ckv_blocks_mm *mm)
{
    const json_t *hash = blocks_field(item, "hash");
    if (json_is_integer(hash))
        mm->hash = (uint64_t)json_integer_value(hash);
    else if (json_is_string(hash))
        mm->hash = text_hash(json_string_value(hash));
    else
        return blocks_refuse(run, CKV_ERROR_INVALID,
                             "field 'hash' of a multimodal item must be an integer or a string");
    CKV_TRY(blocks_integer(run, item, "pos", true, &mm->position));
    return blocks_integer(run, item, "len", true, &mm->length);
}

static ckv_status read_mm(blocks_run *run, const json_t *object, ckv_blocks_request *request)
{
    const json_t *list = blocks_field(object, "mm");
    if (list == NULL)
        return CKV_OK;
    if (!json_is_array(list))
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'mm' must be a list");
    size_t count = json_array_size(list);
    ckv_blocks_mm *items = arena_alloc(&run->memory, (count + 1) * sizeof *items);
    for (size_t i = 0; i < count; i++)
        CKV_TRY(read_mm_item(run, json_array_get(list, i), &items[i]));
    request->mm = items;
    request->num_mm = (int64_t)count;
    return CKV_OK;
}

static ckv_status read_range_item(blocks_run *run, const json_t *item, ckv_blocks_range *range)
{
    if (!json_is_object(item))
        return blocks_refuse(run, CKV_ERROR_INVALID, "a retention range must be an object");
    *range = (ckv_blocks_range){.end = CKV_BLOCKS_OPEN, .duration_ms = CKV_BLOCKS_NO_DURATION};
    CKV_TRY(blocks_integer(run, item, "start", true, &range->start));
    CKV_TRY(blocks_integer(run, item, "end", false, &range->end));
    CKV_TRY(blocks_integer(run, item, "priority", true, &range->priority));
    if (blocks_field(item, "duration_ms") != NULL) {
        CKV_TRY(blocks_integer(run, item, "duration_ms", true, &range->duration_ms));
        if (range->duration_ms < 0)
            return blocks_refuse(run, CKV_ERROR_INVALID, "duration_ms %" PRId64 " is negative", range->duration_ms);
    }
    return CKV_OK;
}

ckv_status blocks_retention_object(blocks_run *run, const json_t *object, ckv_blocks_request *request)
{
    if (!json_is_object(object))
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'retention' must be an object");
    const json_t *list = blocks_field(object, "ranges");
    if (list != NULL && !json_is_array(list))
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'ranges' must be a list");
    size_t count = json_array_size(list);
    ckv_blocks_range *ranges = arena_alloc(&run->memory, (count + 1) * sizeof *ranges);
    for (size_t i = 0; i < count; i++)
        CKV_TRY(read_range_item(run, json_array_get(list, i), &ranges[i]));
    request->ranges = ranges;
    request->num_ranges = (int64_t)count;
    CKV_TRY(blocks_integer(run, object, "decode_priority", false, &request->decode_priority));
    CKV_TRY(blocks_integer(run, object, "decode_duration_ms", false, &request->decode_duration_ms));
    if (blocks_field(object, "decode_duration_ms") != NULL && request->decode_duration_ms < 0)
        return blocks_refuse(run, CKV_ERROR_INVALID, "decode_duration_ms %" PRId64 " is negative",
                             request->decode_duration_ms);
    if (request->decode_priority < 0 || request->decode_priority > CKV_BLOCKS_MAX_PRIORITY)
        return blocks_refuse(run, CKV_ERROR_INVALID, "decode_priority %" PRId64 " is not 0 to %d",
                             request->decode_priority, CKV_BLOCKS_MAX_PRIORITY);
    return CKV_OK;
}

static ckv_status read_identity(blocks_run *run, const json_t *object, ckv_blocks_request *request)
{
    const json_t *salt = blocks_field(object, "salt");
    request->has_lora = blocks_field(object, "lora") != NULL;
    CKV_TRY(blocks_integer(run, object, "lora", false, &request->lora));
    if (json_is_integer(salt)) {
        request->salt_kind = CKV_BLOCKS_SALT_INTEGER;
        request->salt = json_integer_value(salt);
    } else if (json_is_string(salt)) {
        request->salt_kind = CKV_BLOCKS_SALT_TEXT;
        request->salt_text = json_string_value(salt);
    } else if (salt != NULL) {
        return blocks_refuse(run, CKV_ERROR_INVALID, "field 'salt' must be a string or an integer");
    }
    int64_t *extra, count;
    CKV_TRY(blocks_integers(run, object, "extra_ids", &extra, &count));
    if (extra != NULL && count != request->num_tokens)
        return blocks_refuse(run, CKV_ERROR_INVALID, "%" PRId64 " extra_ids for %" PRId64 " tokens", count,
                             request->num_tokens);
    request->extra_ids = extra;
    return read_mm(run, object, request);
}

ckv_status blocks_request_object(blocks_run *run, const json_t *object, ckv_blocks_request *request)
{
    if (!json_is_object(object))
        return blocks_refuse(run, CKV_ERROR_INVALID, "a request must be an object");
    *request = ckv_blocks_request_default();
    int32_t *tokens = NULL;
    CKV_TRY(blocks_tokens(run, object, &tokens, &request->num_tokens));
    request->tokens = tokens;
    CKV_TRY(blocks_integer(run, object, "id", false, &request->id));
    CKV_TRY(blocks_integer(run, object, "beam", false, &request->beam));
    CKV_TRY(blocks_integer(run, object, "max_new", false, &request->max_new));
    CKV_TRY(blocks_integer(run, object, "draft", false, &request->draft));
    CKV_TRY(blocks_integer(run, object, "external", false, &request->external));
    bool dummy = false, gen_init = false;
    CKV_TRY(blocks_boolean(run, object, "dummy", &dummy));
    CKV_TRY(blocks_boolean(run, object, "gen_init", &gen_init));
    request->dummy = dummy;
    request->gen_init = gen_init;
    CKV_TRY(read_identity(run, object, request));
    const json_t *retention = blocks_field(object, "retention");
    return retention == NULL ? CKV_OK : blocks_retention_object(run, retention, request);
}

ckv_status blocks_live_or_object(blocks_run *run, const json_t *object, int64_t *id, ckv_blocks_request *storage,
                                 const ckv_blocks_request **request)
{
    *request = NULL;
    if (!blocks_has_tokens(object))
        return blocks_integer(run, object, "id", true, id);
    *request = storage;
    *id = 0;
    return blocks_request_object(run, object, storage);
}
