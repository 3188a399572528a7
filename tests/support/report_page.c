/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/report_page.h"

#include "tests/support/case.h"
#include "tests/support/random.h"
#include "tests/support/rollout_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char DATA_BEGINS[] = "<script type=\"application/json\" id=\"data\">";

char *report_read(const workplace *place, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", place->folder, name);
    return read_text(path);
}

json_t *report_parse(const char *page)
{
    const char *begin = strstr(page, DATA_BEGINS);
    assert_non_null(begin);
    begin += strlen(DATA_BEGINS);
    const char *end = strstr(begin, REPORT_ELEMENT_ENDS);
    assert_non_null(end);
    json_error_t error;
    json_t *report = json_loadb(begin, (size_t)(end - begin), JSON_REJECT_DUPLICATES, &error);
    if (report == NULL)
        fail_msg("%s", error.text);
    return report;
}

json_t *report_make(workplace *place, const char *options, int code)
{
    char command[256];
    snprintf(command, sizeof command, "report t -o r.html %s", options);
    workplace_expect(place, command, code, NULL, "");
    char *page = report_read(place, "r.html");
    json_t *report = report_parse(page);
    free(page);
    return report;
}

void report_write_trace(const workplace *place, const trace *t)
{
    char path[128];
    problem why;
    snprintf(path, sizeof path, "%s/t", place->folder);
    if (!trace_write(t, path, &why))
        fail_msg("%s", why.text);
}

trace *report_rollout(ckv_key_fault fault, int64_t token, int64_t forward)
{
    rollout_spec spec = rollout_spec_default(ckv_test_seed(), CKV_FP32);
    spec.fault = fault;
    spec.fault_token = token;
    spec.fault_forward = forward;
    trace *t = rollout_trace_make(&spec);
    assert_non_null(t);
    return t;
}

int64_t report_integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

const char *report_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    assert_non_null(text);
    return text;
}

json_t *report_forward(const json_t *report, size_t index)
{
    json_t *forward = json_array_get(json_object_get(report, "forwards"), index);
    assert_non_null(forward);
    return forward;
}
