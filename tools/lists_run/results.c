/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/folder.h"
#include "tools/lists/durations.h"
#include "tools/lists_run/run.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static const char *path_of(const run_state *run, const char *name)
{
    return arena_format(run->memory, "%s/%s", run->out, name);
}

/* Logs of an earlier run must not pass for this one's. */
static void remove_old_cases(const run_state *run, const char *folder)
{
    DIR *cases = opendir(folder);
    for (struct dirent *entry; cases != NULL && (entry = readdir(cases)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            harness_folder_remove(arena_format(run->memory, "%s/%s", folder, entry->d_name));
    if (cases != NULL)
        closedir(cases);
}

static bool make_folders(run_state *run, const char *out)
{
    char *absolute = harness_folder_make(out) ? realpath(out, NULL) : NULL;
    if (absolute == NULL)
        return false;
    run->out = arena_copy(run->memory, absolute, strlen(absolute));
    free(absolute);
    remove_old_cases(run, path_of(run, "cases"));
    return harness_folder_make(path_of(run, "cases"));
}

static json_t *facts_json(const fact_set *facts)
{
    json_t *object = json_object();
    for (const fact *one = facts->first; one != NULL; one = one->next)
        json_object_set_new(object, one->key, one->text != NULL ? run_text(one->text) : json_null());
    return object;
}

/* Takes over the reference. */
static bool write_json(const run_state *run, const char *name, json_t *object)
{
    char *text = json_dumps(object, JSON_INDENT(1) | JSON_SORT_KEYS | JSON_REAL_PRECISION(6));
    bool written = text != NULL && harness_file_write(path_of(run, name), arena_format(run->memory, "%s\n", text));
    free(text);
    json_decref(object);
    return written;
}

static bool open_junit(run_state *run, const fact_set *facts)
{
    size_t count = 2;
    for (const fact *one = facts->first; one != NULL; one = one->next)
        count++;
    for (const junit_property *note = run->notes; note->name != NULL; note++)
        count++;
    junit_property *properties = arena_alloc(run->memory, count * sizeof *properties);
    count = 0;
    for (const junit_property *note = run->notes; note->name != NULL; note++)
        properties[count++] = *note;
    properties[count++] = (junit_property){"hardware_class", durations_class(run->memory, facts)};
    for (const fact *one = facts->first; one != NULL; one = one->next)
        properties[count++] = (junit_property){one->key, one->text};
    run->junit = junit_open(path_of(run, "junit.xml"), run->context, properties);
    return run->junit != NULL;
}

bool run_results_open(run_state *run, const char *out, const fact_set *facts)
{
    if (!make_folders(run, out) || !open_junit(run, facts) || !write_json(run, "facts.json", facts_json(facts)))
        return false;
    run->events = fopen(path_of(run, "events.jsonl"), "we");
    if (run->events == NULL)
        return false;
    json_t *event =
        json_pack("{s:o, s:o, s:I, s:I, s:o}", "context", run_text(run->context), "build", run_text(run->build_folder),
                  "cases", (json_int_t)run->plan.count, "repeat", (json_int_t)run->repeat, "facts", facts_json(facts));
    for (const junit_property *note = run->notes; event != NULL && note->name != NULL; note++)
        json_object_set_new(event, note->name, run_text(note->value));
    run_event(run, "run", event);
    return true;
}

bool run_results_durations(const run_state *run, const fact_set *earlier)
{
    json_t *durations = json_object();
    for (const fact *one = earlier->first; one != NULL; one = one->next)
        json_object_set_new(durations, one->key, json_real(strtod(one->text, NULL)));
    for (size_t i = 0; i < run->plan.count; i++) {
        const plan_case *one = &run->plan.cases[i];
        if (one->verdict == RUN_PASS && one->finished > 0)
            json_object_set_new(durations, one->name, json_real(one->seconds / (double)one->finished));
    }
    return write_json(run, "durations.json", durations);
}

void run_results_close(run_state *run, int exit_code)
{
    json_t *event = json_pack("{s:i}", "exit_code", exit_code);
    for (int verdict = 0; event != NULL && verdict < RUN_NUM_VERDICTS; verdict++)
        json_object_set_new(event, run_verdict_name((run_verdict)verdict),
                            json_integer((json_int_t)run->tally[verdict]));
    run_event(run, "done", event);
    fclose(run->events);
    junit_close(run->junit);
    run->events = NULL;
    run->junit = NULL;
}
