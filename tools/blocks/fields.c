/* SPDX-License-Identifier: Apache-2.0 */
/* Typed access to the fields of a line, and the pieces that answers share. */
#include "tools/blocks/run.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

ckv_status blocks_refuse(blocks_run *run, ckv_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(run->message, sizeof run->message, format, arguments);
    va_end(arguments);
    return status;
}

const json_t *blocks_field(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static ckv_status ill_typed(blocks_run *run, const char *name, const char *type)
{
    return blocks_refuse(run, CKV_ERROR_INVALID, "field '%s' must be %s", name, type);
}

static ckv_status missing(blocks_run *run, const char *name)
{
    return blocks_refuse(run, CKV_ERROR_INVALID, "field '%s' is missing", name);
}

ckv_status blocks_integer(blocks_run *run, const json_t *object, const char *name, bool required, int64_t *value)
{
    const json_t *found = blocks_field(object, name);
    if (found == NULL)
        return required ? missing(run, name) : CKV_OK;
    if (!json_is_integer(found))
        return ill_typed(run, name, "an integer");
    *value = json_integer_value(found);
    return CKV_OK;
}

ckv_status blocks_boolean(blocks_run *run, const json_t *object, const char *name, bool *value)
{
    const json_t *found = blocks_field(object, name);
    if (found == NULL)
        return CKV_OK;
    if (!json_is_boolean(found))
        return ill_typed(run, name, "true or false");
    *value = json_is_true(found);
    return CKV_OK;
}

ckv_status blocks_text(blocks_run *run, const json_t *object, const char *name, const char **value)
{
    const json_t *found = blocks_field(object, name);
    if (found == NULL)
        return CKV_OK;
    if (!json_is_string(found))
        return ill_typed(run, name, "a string");
    *value = json_string_value(found);
    return CKV_OK;
}

ckv_status blocks_list(blocks_run *run, const json_t *list, const char *name, int64_t **values, int64_t *count)
{
    if (!json_is_array(list))
        return ill_typed(run, name, "a list of integers");
    size_t length = json_array_size(list);
    int64_t *items = arena_alloc(&run->memory, (length + 1) * sizeof *items);
    for (size_t i = 0; i < length; i++) {
        if (!json_is_integer(json_array_get(list, i)))
            return ill_typed(run, name, "a list of integers");
        items[i] = json_integer_value(json_array_get(list, i));
    }
    *values = items;
    *count = (int64_t)length;
    return CKV_OK;
}

ckv_status blocks_integers(blocks_run *run, const json_t *object, const char *name, int64_t **values, int64_t *count)
{
    const json_t *found = blocks_field(object, name);
    *values = NULL;
    *count = 0;
    return found == NULL ? CKV_OK : blocks_list(run, found, name, values, count);
}

ckv_status blocks_word(blocks_run *run, const json_t *object, const char *name, const char *const *words, int *value)
{
    const char *text = NULL;
    ckv_status status = blocks_text(run, object, name, &text);
    if (status != CKV_OK || text == NULL)
        return status;
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], text) == 0) {
            *value = i;
            return CKV_OK;
        }
    }
    return blocks_refuse(run, CKV_ERROR_INVALID, "field '%s' has no value '%.64s'", name, text);
}

ckv_status blocks_window_field(blocks_run *run, const json_t *object, int64_t *index)
{
    int64_t window = 0;
    ckv_status status = blocks_integer(run, object, "window", run->num_windows > 1, &window);
    if (status != CKV_OK)
        return status;
    *index = 0;
    return blocks_field(object, "window") == NULL ? CKV_OK : ckv_blocks_find_window(run->blocks, window, index);
}

json_t *blocks_integers_json(const int64_t *values, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer(values[i]));
    return list;
}

void blocks_set_window(const blocks_run *run, json_t *object, int64_t index, json_t *value)
{
    char name[24];
    snprintf(name, sizeof name, "%" PRId64, run->windows[index].window);
    json_object_set_new(object, name, value);
}

json_t *blocks_per_window(const blocks_run *run, const int64_t *values)
{
    json_t *object = json_object();
    for (int64_t i = 0; i < run->num_windows; i++)
        blocks_set_window(run, object, i, json_integer(values[i]));
    return object;
}

json_t *blocks_handles_json(const ckv_blocks_handles *handles)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < handles->count; i++) {
        const ckv_blocks_handle *handle = &handles->items[i];
        json_array_append_new(list, json_pack("[I,I,I]", (json_int_t)handle->window, (json_int_t)handle->block,
                                              (json_int_t)handle->serial));
    }
    return list;
}

json_t *blocks_label(blocks_run *run, uint64_t hash)
{
    char name[24];
    snprintf(name, sizeof name, "%016" PRIx64, hash);
    json_t *number = json_object_get(run->labels, name);
    if (number == NULL) {
        json_object_set_new(run->labels, name, json_integer((json_int_t)json_object_size(run->labels)));
        number = json_object_get(run->labels, name);
    }
    return json_sprintf("h%" JSON_INTEGER_FORMAT, json_integer_value(number));
}

ckv_status blocks_ids_json(blocks_run *run, int64_t id, json_t **ids)
{
    ckv_blocks_request_info info;
    ckv_status status = ckv_blocks_get_request(run->blocks, id, &info);
    if (status != CKV_OK)
        return status;
    json_t *object = json_object();
    int64_t *table = arena_alloc(&run->memory, (size_t)(info.positions + 1) * sizeof *table);
    for (int64_t i = 0; i < run->num_windows; i++) {
        json_t *beams = json_array();
        for (int64_t beam = 0; status == CKV_OK && beam < info.beam; beam++) {
            status =
                ckv_blocks_get_table(run->blocks, id, run->windows[i].window, beam, info.positions, table, NULL, NULL);
            json_array_append_new(beams, blocks_integers_json(table, info.positions));
        }
        blocks_set_window(run, object, i, beams);
    }
    *ids = object;
    return status;
}
