/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/ctest.h"

#include "tools/lists/facts.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CKV_CTEST
#define CKV_CTEST "ctest"
#endif

static const double default_timeout_s = 1500; /* CTest's own */
static const double max_timeout_s = 7 * 86400.0;
static const char launcher[] = "ckv_case_launch";

enum { ANSWER_MAX_BYTES = 256 * 1024 * 1024, MAX_RANKS = 256, MAX_SLOTS = 4096 };

/* --- Asking --- */

static const char *ctest_program(void)
{
    const char *chosen = getenv("CKV_CTEST");
    if (chosen != NULL)
        return chosen;
    return access(CKV_CTEST, X_OK) == 0 ? CKV_CTEST : "ctest";
}

static char *quoted(arena *memory, const char *text)
{
    static const char escaped[] = "'\\''";
    char *out = arena_alloc(memory, 4 * strlen(text) + 3), *at = out;
    *at++ = '\'';
    for (; *text != '\0'; text++) {
        const char *from = *text == '\'' ? escaped : (const char[]){*text, '\0'};
        while (*from != '\0')
            *at++ = *from++;
    }
    *at = '\'';
    return out;
}

static bool read_answer(arena *memory, diagnostics *log, FILE *pipe, text_source *source)
{
    size_t size = 0, capacity = 1024 * 1024;
    char *text = arena_alloc(memory, capacity);
    for (size_t bytes; (bytes = fread(text + size, 1, capacity - size, pipe)) > 0;) {
        size += bytes;
        if (size < capacity)
            continue;
        if (capacity >= ANSWER_MAX_BYTES)
            return diag_file(log, source->name, "CTest's answer is too long");
        char *larger = arena_alloc(memory, 2 * capacity);
        memcpy(larger, text, size);
        text = larger;
        capacity *= 2;
    }
    source->text = text;
    source->size = size;
    return true;
}

bool ctest_ask(arena *memory, diagnostics *log, const char *build_folder, text_source *source_out)
{
    const char *command = arena_format(memory, "%s --test-dir %s --show-only=json-v1", quoted(memory, ctest_program()),
                                       quoted(memory, build_folder));
    source_out->name = arena_format(memory, "%s (asked of CTest)", build_folder);
    fflush(NULL);
    FILE *pipe = popen(command, "re");
    if (pipe == NULL)
        return diag_file(log, source_out->name, strerror(errno));
    bool read = read_answer(memory, log, pipe, source_out);
    int status = pclose(pipe);
    if (read && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        return diag_file(log, source_out->name, "CTest refused; is this a build folder?");
    return read;
}

/* --- Reading --- */

typedef struct reader {
    arena *memory;
    diagnostics *log;
    const text_source *source;
    const char *test; /* which one is being read */
} reader;

static bool fail(const reader *in, const char *what, const char *value)
{
    return diag_file(in->log, in->source->name,
                     arena_format(in->memory, "test '%s': %s%s%s%s", in->test, what, value ? " '" : "",
                                  value ? value : "", value ? "'" : ""));
}

static char **read_texts(const reader *in, const json_t *array)
{
    size_t count = json_array_size(array);
    char **texts = arena_alloc(in->memory, (count + 1) * sizeof *texts);
    for (size_t i = 0; i < count; i++) {
        const char *text = json_string_value(json_array_get(array, i));
        if (text == NULL)
            return NULL;
        texts[i] = arena_copy(in->memory, text, strlen(text));
    }
    return texts;
}

static bool parse_number(const char *text, double least, double most, double *value_out)
{
    char *end;
    *value_out = strtod(text, &end);
    return end != text && *end == '\0' && *value_out >= least && *value_out <= most;
}

/* `ckv_case_launch --name X --ranks N --timeout S [--unrecorded] [--record-dir DIR] -- PROGRAM...`: the runner does
 * what the launcher would do. */
static bool read_launcher(const reader *in, ctest_case *one)
{
    char *const *at = one->command + 1;
    for (; *at != NULL && strcmp(*at, "--") != 0; at++) {
        double number = 0;
        if (strcmp(*at, "--unrecorded") == 0) {
            one->unrecorded = true;
            continue;
        }
        const char *option = *at, *value = *++at;
        if (value == NULL)
            return fail(in, "its launcher's last option has no value", option);
        if (strcmp(option, "--ranks") == 0) {
            if (!parse_number(value, 1, MAX_RANKS, &number) || number != floor(number))
                return fail(in, "it runs on a number of ranks that is none:", value);
            one->ranks = (int)number;
        } else if (strcmp(option, "--timeout") == 0) {
            if (!parse_number(value, 0.1, max_timeout_s, &one->timeout_s))
                return fail(in, "its deadline is not in seconds:", value);
        } else if (strcmp(option, "--name") != 0 && strcmp(option, "--record-dir") != 0) {
            return fail(in, "its launcher has an option that this program does not know:", option);
        }
    }
    if (*at == NULL || at[1] == NULL)
        return fail(in, "its launcher runs no program", NULL);
    one->program = at + 1;
    return true;
}

static bool read_command(const reader *in, const json_t *test, ctest_case *one)
{
    const json_t *command = json_object_get(test, "command");
    if (command == NULL)
        return true; /* CTest leaves it out when the program is not there */
    char **texts = read_texts(in, command);
    if (texts == NULL || texts[0] == NULL)
        return fail(in, "'command' is not a list of texts", NULL);
    one->command = one->program = texts;
    const char *slash = strrchr(texts[0], '/');
    if (strcmp(slash != NULL ? slash + 1 : texts[0], launcher) == 0) {
        one->unrecorded = false;
        return read_launcher(in, one);
    }
    return true;
}

/* RESOURCE_GROUPS of "gpus": each group is a rank, each slot a GPU. */
static bool read_groups(const reader *in, const json_t *groups, ctest_case *one)
{
    size_t index, inner;
    json_t *group, *requirement;
    json_array_foreach(groups, index, group)
    {
        json_array_foreach(json_object_get(group, "requirements"), inner, requirement)
        {
            const char *type = json_string_value(json_object_get(requirement, ".type"));
            if (type == NULL || strcmp(type, "gpus") != 0)
                return fail(in, "it asks for a resource that is not 'gpus':", type != NULL ? type : "?");
            json_int_t slots = json_integer_value(json_object_get(requirement, "slots"));
            if (slots < 1 || slots > MAX_SLOTS || one->gpus + slots > MAX_SLOTS)
                return fail(in, "it asks for a number of GPUs that is none", NULL);
            one->gpus += (int)slots;
        }
    }
    return true;
}

static bool read_property(const reader *in, const char *name, const json_t *value, ctest_case *one)
{
    static const char *const ignored[] = {
        "LABELS",         "SKIP_RETURN_CODE",       "COST",        "_BACKTRACE_TRIPLES",
        "ATTACHED_FILES", "ATTACHED_FILES_ON_FAIL", "MEASUREMENT", NULL};
    if (strcmp(name, "WORKING_DIRECTORY") == 0) {
        const char *text = json_string_value(value);
        one->directory = text != NULL ? arena_copy(in->memory, text, strlen(text)) : NULL;
    } else if (strcmp(name, "ENVIRONMENT") == 0) {
        one->environment = (const char *const *)read_texts(in, value);
        if (one->environment == NULL)
            return fail(in, "ENVIRONMENT is not a list of texts", NULL);
        for (size_t i = 0; one->environment[i] != NULL; i++)
            if (strchr(one->environment[i], '=') == NULL)
                return fail(in, "ENVIRONMENT has an entry without '=':", one->environment[i]);
    } else if (strcmp(name, "PROCESSORS") == 0) {
        one->processors = (int)json_integer_value(value);
        if (one->processors < 1 || one->processors > MAX_SLOTS)
            return fail(in, "PROCESSORS is not a number of CPUs", NULL);
    } else if (strcmp(name, "TIMEOUT") == 0) {
        one->timeout_s = json_number_value(value);
        if (!(one->timeout_s > 0 && one->timeout_s <= max_timeout_s))
            return fail(in, "TIMEOUT is not in seconds", NULL);
    } else if (strcmp(name, "RUN_SERIAL") == 0) {
        one->alone = json_is_true(value);
    } else if (strcmp(name, "RESOURCE_GROUPS") == 0) {
        return read_groups(in, value, one);
    } else {
        for (size_t i = 0; ignored[i] != NULL; i++)
            if (strcmp(name, ignored[i]) == 0)
                return true;
        return fail(in, "it has a property that this program does not know, so it would be judged wrongly:", name);
    }
    return true;
}

static bool read_test(reader *in, const json_t *test, ctest_case *out)
{
    static const char *const no_environment[] = {NULL};
    const char *name = json_string_value(json_object_get(test, "name"));
    in->test = name != NULL ? name : "?";
    if (name == NULL || name[0] == '\0' || !facts_is_plain(name))
        return fail(in, "its name is not one line of text", NULL);
    ctest_case one = {.name = arena_copy(in->memory, name, strlen(name)),
                      .environment = no_environment,
                      .ranks = 1,
                      .timeout_s = default_timeout_s,
                      .unrecorded = true,
                      .processors = 1};
    size_t index;
    json_t *property;
    json_array_foreach(json_object_get(test, "properties"), index, property)
    {
        const char *key = json_string_value(json_object_get(property, "name"));
        if (key != NULL && !read_property(in, key, json_object_get(property, "value"), &one))
            return false;
    }
    if (!read_command(in, test, &one))
        return false;
    *out = one;
    return true;
}

static bool read_tests(reader *in, const json_t *root, ctest_table *table)
{
    const json_t *tests = json_object_get(root, "tests");
    const char *kind = json_string_value(json_object_get(root, "kind"));
    if (kind == NULL || strcmp(kind, "ctestInfo") != 0 || !json_is_array(tests))
        return diag_file(in->log, in->source->name, "is not what 'ctest --show-only=json-v1' prints");
    table->cases = arena_alloc(in->memory, (json_array_size(tests) + 1) * sizeof *table->cases);
    size_t index;
    json_t *test;
    json_array_foreach(tests, index, test)
    {
        ctest_case *one = &table->cases[table->count];
        if (!read_test(in, test, one))
            return false;
        void **place = text_map_at(in->memory, &table->by_name, one->name);
        if (*place != NULL)
            return fail(in, "there are two of that name", NULL);
        *place = one;
        table->count++;
    }
    return true;
}

bool ctest_read(arena *memory, diagnostics *log, const text_source *source, ctest_table *table_out)
{
    json_error_t error;
    json_t *root = json_loadb(source->text, source->size, JSON_REJECT_DUPLICATES, &error);
    reader in = {memory, log, source, "?"};
    *table_out = (ctest_table){0};
    if (root == NULL) {
        text_position at = {error.line > 0 ? (size_t)error.line : 1, error.column > 0 ? (size_t)error.column : 1};
        return diag_error(log, source, at, "%s", error.text);
    }
    bool read = read_tests(&in, root, table_out);
    json_decref(root);
    return read;
}
