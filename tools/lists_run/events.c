/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/run.h"

#include <string.h>
#include <time.h>

double run_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

json_t *run_text(const char *text)
{
    json_t *value = json_string(text);
    if (value != NULL)
        return value;
    char copy[2048];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *c = copy; *c != '\0'; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    return json_string(copy);
}

void run_event(run_state *run, const char *name, json_t *event)
{
    struct timespec now;
    struct tm utc;
    char when[64] = "", text[80];
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &utc) != NULL)
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof text, "%s.%03ldZ", when, now.tv_nsec / 1000000);
    json_t *line = json_pack("{s:s, s:s, s:f}", "event", name, "time", text, "seconds", run_now() - run->started);
    if (line != NULL && event != NULL)
        json_object_update(line, event);
    if (line != NULL && run->events != NULL) {
        json_dumpf(line, run->events, JSON_COMPACT | JSON_REAL_PRECISION(9));
        putc('\n', run->events);
        fflush(run->events);
    }
    json_decref(line);
    json_decref(event);
}
