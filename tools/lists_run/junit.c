/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/junit.h"

#include "tools/common/xml_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RED_LOG_BYTES = 64 * 1024, GREEN_LOG_BYTES = 4 * 1024 };

struct junit {
    const char *path, *suite;
    char *properties; /* rendered */
    char *cases;      /* rendered, one after the other */
    size_t cases_bytes, capacity;
    size_t tests, failures, errors, skipped;
    double seconds;
    time_t started;
    char host[256];
};

static void put_attribute(FILE *stream, const char *name, const char *value)
{
    fprintf(stream, " %s=\"", name);
    for (; *value != '\0'; value++) { /* an attribute's line break would be read as a space */
        size_t plain = strcspn(value, "\n\t");
        xml_put_text(stream, value, plain);
        value += plain;
        if (*value == '\0')
            break;
        fputs(*value == '\n' ? "&#10;" : "&#9;", stream);
    }
    putc('"', stream);
}

static void put_properties(FILE *stream, const junit_property *properties, const char *indent)
{
    if (properties == NULL || properties->name == NULL)
        return;
    fprintf(stream, "%s<properties>\n", indent);
    for (; properties->name != NULL; properties++) {
        if (properties->value == NULL)
            continue;
        fprintf(stream, "%s  <property", indent);
        put_attribute(stream, "name", properties->name);
        put_attribute(stream, "value", properties->value);
        fputs("/>\n", stream);
    }
    fprintf(stream, "%s</properties>\n", indent);
}

/* The last part of a log, from the start of a line. */
static void put_log(FILE *stream, const char *path, long limit_bytes)
{
    FILE *log = fopen(path, "re");
    char *text = malloc((size_t)limit_bytes);
    if (log == NULL || text == NULL) {
        free(text);
        if (log != NULL)
            fclose(log);
        return;
    }
    bool is_cut = fseek(log, 0, SEEK_END) == 0 && ftell(log) > limit_bytes;
    fseek(log, is_cut ? -limit_bytes : 0, is_cut ? SEEK_END : SEEK_SET);
    size_t bytes = fread(text, 1, (size_t)limit_bytes, log);
    const char *newline = is_cut ? memchr(text, '\n', bytes) : NULL;
    size_t start = newline != NULL ? (size_t)(newline - text) + 1 : 0;
    if (bytes > start) {
        fputs("      <system-out>", stream);
        if (is_cut) {
            xml_put_text(stream, "... all of it: ", 15);
            xml_put_text(stream, path, strlen(path));
            putc('\n', stream);
        }
        xml_put_text(stream, text + start, bytes - start);
        fputs("</system-out>\n", stream);
    }
    free(text);
    fclose(log);
}

/* --- Cases --- */

/* What a verdict is in JUnit's words; NULL: a plain pass. */
static const char *element_of(run_verdict verdict)
{
    switch (verdict) {
    case RUN_PASS:
        return NULL;
    case RUN_SKIP:
    case RUN_XFAIL: /* as pytest reports it */
        return "skipped";
    case RUN_HANG:
    case RUN_CRASH:
    case RUN_INFRASTRUCTURE:
        return "error";
    default:
        return "failure";
    }
}

/* "l0_cpu.cache" and "rolls" of "cache.rolls": no two lists share a case's name. */
static void put_name(FILE *stream, const char *suite, const char *name)
{
    char class_name[512];
    const char *dot = strchr(name, '.');
    int length = dot != NULL ? (int)(dot - name) : 0;
    snprintf(class_name, sizeof class_name, "%s%s%.*s", suite, length > 0 ? "." : "", length, name);
    put_attribute(stream, "classname", class_name);
    put_attribute(stream, "name", dot != NULL ? dot + 1 : name);
}

static void put_case(FILE *stream, const char *suite, const junit_case *one)
{
    const char *element = element_of(one->verdict);
    fputs("    <testcase", stream);
    put_name(stream, suite, one->name);
    fprintf(stream, " time=\"%.3f\">\n", one->seconds);
    put_properties(stream, one->properties, "      ");
    if (element != NULL) {
        char message[1200];
        snprintf(message, sizeof message, "%s%s%s", run_verdict_name(one->verdict), one->message[0] ? ": " : "",
                 one->message);
        fprintf(stream, "      <%s", element);
        put_attribute(stream, "message", one->verdict == RUN_SKIP ? one->message : message);
        if (strcmp(element, "skipped") != 0)
            put_attribute(stream, "type", run_verdict_name(one->verdict));
        putc('>', stream);
        if (one->details != NULL)
            xml_put_text(stream, one->details, strlen(one->details));
        fprintf(stream, "</%s>\n", element);
    }
    if (one->log_path != NULL)
        put_log(stream, one->log_path, run_verdict_is_red(one->verdict) ? RED_LOG_BYTES : GREEN_LOG_BYTES);
    fputs("    </testcase>\n", stream);
}

static bool append(junit *report, const char *text, size_t bytes)
{
    if (report->cases_bytes + bytes > report->capacity) {
        size_t capacity = 2 * (report->cases_bytes + bytes);
        char *larger = realloc(report->cases, capacity);
        if (larger == NULL)
            return false;
        report->cases = larger;
        report->capacity = capacity;
    }
    memcpy(report->cases + report->cases_bytes, text, bytes);
    report->cases_bytes += bytes;
    return true;
}

bool junit_add(junit *report, const junit_case *one)
{
    const char *element = element_of(one->verdict);
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL)
        return false;
    put_case(stream, report->suite, one);
    bool written = fclose(stream) == 0 && append(report, text, bytes);
    free(text);
    report->tests++;
    report->failures += element != NULL && strcmp(element, "failure") == 0;
    report->errors += element != NULL && strcmp(element, "error") == 0;
    report->skipped += element != NULL && strcmp(element, "skipped") == 0;
    report->seconds += one->seconds;
    return written;
}

/* --- The file --- */

junit *junit_open(const char *path, const char *suite, const junit_property *properties)
{
    junit *report = calloc(1, sizeof *report);
    size_t bytes;
    if (report == NULL)
        return NULL;
    report->path = path;
    report->suite = suite;
    report->started = time(NULL);
    if (gethostname(report->host, sizeof report->host - 1) != 0)
        report->host[0] = '\0';
    FILE *stream = open_memstream(&report->properties, &bytes);
    if (stream != NULL) {
        put_properties(stream, properties, "    ");
        if (fclose(stream) == 0)
            return report;
    }
    junit_close(report);
    return NULL;
}

void junit_close(junit *report)
{
    if (report == NULL)
        return;
    free(report->properties);
    free(report->cases);
    free(report);
}

static void put_counts(FILE *stream, const junit *report, size_t num_running)
{
    fprintf(stream, " tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\" time=\"%.3f\"",
            report->tests + num_running, report->failures, report->errors + num_running, report->skipped,
            report->seconds);
}

static void put_unfinished(FILE *stream, const char *suite, const char *name)
{
    fputs("    <testcase", stream);
    put_name(stream, suite, name);
    fputs(
        " time=\"0\">\n      <error message=\"unfinished: the run ended before this case did\" type=\"unfinished\"/>\n"
        "    </testcase>\n",
        stream);
}

bool junit_write(junit *report, const char *const *running, size_t num_running)
{
    char temporary[4096], when[32] = "";
    struct tm utc;
    if (snprintf(temporary, sizeof temporary, "%s.new", report->path) >= (int)sizeof temporary) {
        errno = ENAMETOOLONG;
        return false;
    }
    FILE *stream = fopen(temporary, "we");
    if (stream == NULL)
        return false;
    if (gmtime_r(&report->started, &utc) != NULL)
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"ckv\"", stream);
    put_counts(stream, report, num_running);
    fputs(">\n  <testsuite", stream);
    put_attribute(stream, "name", report->suite);
    put_counts(stream, report, num_running);
    put_attribute(stream, "timestamp", when);
    put_attribute(stream, "hostname", report->host);
    fputs(">\n", stream);
    fputs(report->properties, stream);
    if (report->cases_bytes > 0)
        fwrite(report->cases, 1, report->cases_bytes, stream);
    for (size_t i = 0; i < num_running; i++)
        put_unfinished(stream, report->suite, running[i]);
    fputs("  </testsuite>\n</testsuites>\n", stream);
    bool written = !ferror(stream);
    written = fclose(stream) == 0 && written;
    return written && rename(temporary, report->path) == 0;
}
