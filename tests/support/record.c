/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CLOSING_BYTES = 3 }; /* "}\n" and the quote of a cut text always fit */

static int record_fd = -1;
static int record_rank;
static ckv_comm_record (*operation_source)(const ckv_comm *);
static const ckv_comm *operation_comm;

static int open_for_rank(const char *path, int rank, const char *suffix)
{
    char name[4096];
    int length = snprintf(name, sizeof name, "%s.rank%d%s", path, rank, suffix);
    if (length < 0 || (size_t)length >= sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

int record_open(int rank, int redirect_output)
{
    const char *path = getenv("CKV_TEST_RECORD");
    record_rank = rank;
    if (path == NULL || path[0] == '\0')
        return 0;
    record_fd = open_for_rank(path, rank, "");
    if (record_fd < 0 || !redirect_output)
        return record_fd < 0 ? -1 : 0;
    int log = open_for_rank(path, rank, ".log");
    if (log < 0 || dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0)
        return -1;
    close(log);
    setvbuf(stdout, NULL, _IOLBF, 0); /* a killed rank must not take its last lines along */
    return 0;
}

static void put(record_line *line, char c)
{
    if (line->length < sizeof line->text - CLOSING_BYTES)
        line->text[line->length++] = c;
}

static void put_string(record_line *line, const char *text)
{
    for (; *text != '\0'; text++)
        put(line, *text);
}

static void put_escaped(record_line *line, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    for (; *text != '\0' && line->length + 8 < sizeof line->text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            put(line, '\\');
            put(line, (char)c);
        } else if (c < 0x20 || c >= 0x7f) {
            put_string(line, "\\u00");
            put(line, hex[c >> 4]);
            put(line, hex[c & 15]);
        } else {
            put(line, (char)c);
        }
    }
}

static void put_key(record_line *line, const char *key)
{
    if (line->length > 1)
        put_string(line, ", ");
    put(line, '"');
    put_string(line, key);
    put_string(line, "\": ");
}

static void put_number(record_line *line, uint64_t value, int min_digits)
{
    char digits[24];
    int count = 0;
    for (; value != 0 || count < min_digits; value /= 10)
        digits[count++] = (char)('0' + value % 10);
    while (count > 0)
        put(line, digits[--count]);
}

void record_begin(record_line *line, const char *event)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    line->length = 0;
    put(line, '{');
    record_text(line, "event", event);
    record_number(line, "rank", record_rank);
    put_key(line, "time");
    put_number(line, (uint64_t)now.tv_sec, 1);
    put(line, '.');
    put_number(line, (uint64_t)now.tv_nsec / 1000, 6);
}

void record_text(record_line *line, const char *key, const char *value)
{
    if (line->length + strlen(key) + 16 > sizeof line->text)
        return;
    put_key(line, key);
    put(line, '"');
    put_escaped(line, value);
    put(line, '"');
}

void record_number(record_line *line, const char *key, int64_t value)
{
    if (line->length + strlen(key) + 32 > sizeof line->text)
        return;
    put_key(line, key);
    if (value < 0)
        put(line, '-');
    put_number(line, value < 0 ? -(uint64_t)value : (uint64_t)value, 1);
}

void record_end(record_line *line)
{
    if (record_fd < 0)
        return;
    line->text[line->length++] = '}';
    line->text[line->length++] = '\n';
    int saved_errno = errno;
    ssize_t written = write(record_fd, line->text, line->length);
    (void)written; /* nobody is left to tell; the reader sees a line that is missing */
    errno = saved_errno;
}

void record_set_operation_source(ckv_comm_record (*last_operation)(const ckv_comm *), const ckv_comm *comm)
{
    operation_comm = NULL;
    operation_source = last_operation;
    operation_comm = comm;
}

void record_operation(record_line *line)
{
    if (operation_comm == NULL)
        return;
    ckv_comm_record last = operation_source(operation_comm);
    record_text(line, "operation", last.operation);
    record_number(line, "sequence", (int64_t)last.sequence);
    record_number(line, "bytes", last.bytes);
    record_number(line, "in_progress", last.in_progress);
}

void record_state(const char *reason)
{
    record_line line;
    record_begin(&line, "state");
    record_text(&line, "reason", reason);
    record_operation(&line);
    record_end(&line);
}
