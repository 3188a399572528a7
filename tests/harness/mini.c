/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/mini.h"

#include "tools/harness/folder.h"
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mini_put(const inner_run *run, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", run->folder, name);
    assert_true(harness_file_write(path, text));
}

/* In YAML's single quotes. */
static void put_entry(FILE *list, const mini_case *one)
{
    fputs("  - 'mini.", list);
    for (const char *c = one->name; *c != '\0'; c++)
        fputs(*c == '\'' ? "''" : (const char[]){*c, '\0'}, list);
    fprintf(list, " %s'\n", one->markers ? one->markers : "");
}

static void put_test(FILE *tests, const mini_case *one, const char *deadline)
{
    /* bracket arguments: nothing in them means anything to CTest */
    fprintf(tests, "add_test([=[mini.%s]=] [=[%s]=] --name [=[mini.%s]=] --ranks %d --timeout %s", one->name,
            CKV_CASE_LAUNCH, one->name, one->ranks, one->deadline ? one->deadline : deadline);
    if (one->fault[0] == '!')
        fprintf(tests, " --unrecorded -- sh -c [=[%s]=])\n", one->fault + 1);
    else
        fprintf(tests, " -- [=[%s]=] %s)\n", CKV_FAULTY, one->fault);
    fprintf(tests, "set_tests_properties([=[mini.%s]=] PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77 %s)\n", one->name,
            one->properties ? one->properties : "");
}

void mini_begin(inner_run *run, const mini_case *cases, size_t count, const char *deadline)
{
    char *tests_text, *list_text;
    size_t bytes;
    inner_begin(run);
    FILE *tests = open_memstream(&tests_text, &bytes), *list = open_memstream(&list_text, &bytes);
    assert_true(tests != NULL && list != NULL);
    fprintf(list, "version: 0.0.1\nmini:\n- tests:\n");
    for (size_t i = 0; i < count; i++) {
        put_test(tests, &cases[i], deadline);
        put_entry(list, &cases[i]);
    }
    fclose(tests);
    fclose(list);
    mini_put(run, "CTestTestfile.cmake", tests_text);
    mini_put(run, "mini.yml", list_text);
    free(tests_text);
    free(list_text);
}

void mini_end(inner_run *run)
{
    inner_end(run);
}

void mini_run(inner_run *run, const char *before, const char *options)
{
    char script[2048];
    snprintf(script, sizeof script, "cd '%s' && %s '%s' lists run --dir . --context mini --build . --out out %s",
             run->folder, before, CKV_PROGRAM, options);
    inner_execute(run, 1, (const char *[]){"sh", "-c", script, NULL});
}

const json_t *mini_event(const inner_run *run, const char *event, const char *name)
{
    static json_t *found;
    char path[256], *line = NULL;
    size_t capacity = 0;
    json_decref(found);
    found = NULL;
    snprintf(path, sizeof path, "%s/out/events.jsonl", run->folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (getline(&line, &capacity, file) > 0) {
        json_t *one = json_loads(line, 0, NULL);
        assert_non_null(one); /* every line is whole */
        const char *kind = json_string_value(json_object_get(one, "event"));
        const char *of = json_string_value(json_object_get(one, "case"));
        if (strcmp(kind, event) == 0 && (name == NULL || (of != NULL && strcmp(of, name) == 0))) {
            json_decref(found);
            found = json_incref(one);
        }
        json_decref(one);
    }
    free(line);
    fclose(file);
    if (found == NULL)
        fail_msg("no event '%s' of %s", event, name ? name : "any case");
    return found;
}

void mini_expect(const inner_run *run, const char *name, const char *verdict, const char *reason)
{
    char full[256];
    snprintf(full, sizeof full, "mini.%s", name);
    const json_t *event = mini_event(run, "case", full);
    const char *got = json_string_value(json_object_get(event, "verdict"));
    const char *why = json_string_value(json_object_get(event, "reason"));
    if (strcmp(got, verdict) != 0 || fnmatch(reason, why, 0) != 0)
        fail_msg("%s is %s (%s), not %s (%s)", full, got, why, verdict, reason);
}
