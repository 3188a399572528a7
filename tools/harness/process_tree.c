/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/process_tree.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool harness_process_read(pid_t pid, harness_process *process_out)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return false;
    text[length] = '\0';

    /* pid (name) state ppid pgrp session ...; the name may hold anything, parentheses included */
    char *name = strchr(text, '('), *name_end = strrchr(text, ')');
    if (name == NULL || name_end == NULL)
        return false;
    *name_end = '\0';
    harness_process process = {.pid = pid};
    snprintf(process.name, sizeof process.name, "%s", name + 1);
    int parent, session;
    if (sscanf(name_end + 2, "%c %d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
               &process.state, &parent, &session, &process.start_ticks) != 4)
        return false;
    process.parent = parent;
    process.session = session;
    *process_out = process;
    return true;
}

static harness_process *read_all(size_t *count_out)
{
    harness_process *all = NULL;
    size_t count = 0, capacity = 0;
    DIR *directory = opendir("/proc");
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 256;
            harness_process *grown = realloc(all, capacity * sizeof *all);
            if (grown == NULL)
                break;
            all = grown;
        }
        count += harness_process_read((pid_t)atoi(entry->d_name), &all[count]);
    }
    if (directory != NULL)
        closedir(directory);
    *count_out = count;
    return all;
}

static bool contains(const harness_process *all, const bool *inside, size_t count, pid_t pid)
{
    for (size_t i = 0; i < count; i++)
        if (inside[i] && all[i].pid == pid)
            return true;
    return false;
}

size_t harness_process_tree(pid_t session, harness_process *processes_out, size_t capacity)
{
    size_t count = 0, written = 0;
    harness_process *all = read_all(&count);
    bool *inside = calloc(count ? count : 1, sizeof *inside);
    pid_t self = getpid();
    /* children may stand before their parents, so go on until a pass adds nobody */
    for (bool grew = inside != NULL; grew;) {
        grew = false;
        for (size_t i = 0; i < count; i++) {
            if (inside[i] || all[i].pid == self)
                continue;
            inside[i] =
                all[i].session == session || all[i].parent == self || contains(all, inside, count, all[i].parent);
            grew = grew || inside[i];
        }
    }
    for (size_t i = 0; inside != NULL && i < count; i++)
        if (inside[i] && all[i].state != 'Z' && written < capacity)
            processes_out[written++] = all[i];
    free(inside);
    free(all);
    return written;
}
