/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/merge.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A log that never stops is cut here; its file holds all of it. */
static const long merged_limit_bytes = 64L * 1024 * 1024;

enum { CHUNK_BYTES = 64 * 1024, LINE_BYTES = 16 * 1024 };

typedef struct source {
    char *path;
    char tag[32];
    int fd; /* -1 until the log exists */
    size_t held;
    char line[LINE_BYTES]; /* the line so far; a longer one is broken */
    struct source *next;
} source;

struct harness_merge {
    FILE *merged;
    long bytes;
    source *first, **tail;
};

harness_merge *harness_merge_open(const char *merged_path)
{
    harness_merge *merge = calloc(1, sizeof *merge);
    if (merge == NULL)
        return NULL;
    merge->tail = &merge->first;
    merge->merged = fopen(merged_path, "we");
    if (merge->merged == NULL) {
        free(merge);
        return NULL;
    }
    return merge;
}

bool harness_merge_add(harness_merge *merge, const char *path, const char *tag)
{
    source *one = calloc(1, sizeof *one);
    char *copy = strdup(path);
    if (one == NULL || copy == NULL) {
        free(one);
        free(copy);
        return false;
    }
    one->path = copy;
    one->fd = -1;
    snprintf(one->tag, sizeof one->tag, "%s", tag);
    *merge->tail = one;
    merge->tail = &one->next;
    return true;
}

static void put_line(harness_merge *merge, source *from)
{
    if (merge->bytes < merged_limit_bytes) {
        merge->bytes += fprintf(merge->merged, "%s%.*s\n", from->tag, (int)from->held, from->line);
        if (merge->bytes >= merged_limit_bytes)
            fprintf(merge->merged, "... cut here; the logs of the ranks hold the rest\n");
    }
    from->held = 0;
}

static void take(harness_merge *merge, source *from, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        bool ends = text[i] == '\n';
        if (!ends)
            from->line[from->held++] = text[i];
        if (ends || from->held == LINE_BYTES)
            put_line(merge, from);
    }
}

/* At most a few chunks a call: a log that grows as fast as it is read must not keep its reader. */
static void read_source(harness_merge *merge, source *from, int max_chunks)
{
    static char chunk[CHUNK_BYTES];
    if (from->fd < 0)
        from->fd = open(from->path, O_RDONLY | O_CLOEXEC);
    for (int i = 0; from->fd >= 0 && i < max_chunks && merge->bytes < merged_limit_bytes; i++) {
        ssize_t bytes = read(from->fd, chunk, sizeof chunk);
        if (bytes <= 0)
            return;
        take(merge, from, chunk, (size_t)bytes);
    }
}

void harness_merge_poll(harness_merge *merge)
{
    for (source *from = merge->first; from != NULL; from = from->next)
        read_source(merge, from, 16);
    fflush(merge->merged);
}

void harness_merge_close(harness_merge *merge)
{
    if (merge == NULL)
        return;
    for (source *from = merge->first, *next; from != NULL; from = next) {
        next = from->next;
        read_source(merge, from, (int)(merged_limit_bytes / CHUNK_BYTES));
        if (from->held > 0)
            put_line(merge, from);
        if (from->fd >= 0)
            close(from->fd);
        free(from->path);
        free(from);
    }
    fclose(merge->merged);
    free(merge);
}
