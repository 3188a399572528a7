/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/shared_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char folder[] = "/dev/shm/";
static const char *const prefixes[] = {"vader_segment.", "sm_segment.", "open_mpi.", "psm", "nccl-"};

static bool is_of_mpi(const char *name)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static void add(shared_files *files, const char *path)
{
    if (strlen(path) >= SHARED_PATH_BYTES || files->count == SHARED_MAX_FILES)
        return;
    for (size_t i = 0; i < files->count; i++)
        if (strcmp(files->path[i], path) == 0)
            return;
    memcpy(files->path[files->count++], path, strlen(path) + 1);
}

static void note_process(shared_files *files, pid_t pid)
{
    char name[64], *line = NULL;
    size_t capacity = 0;
    snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(name, "re");
    while (maps != NULL && getline(&line, &capacity, maps) > 0) {
        char *path = strstr(line, folder);
        if (path == NULL || !is_of_mpi(path + sizeof folder - 1))
            continue;
        path[strcspn(path, " \n")] = '\0'; /* " (deleted)" may follow */
        add(files, path);
    }
    free(line);
    if (maps != NULL)
        fclose(maps);
}

void shared_files_note(shared_files *files, const harness_process *processes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        note_process(files, processes[i].pid);
}

int shared_files_remove(const shared_files *files)
{
    int removed = 0;
    for (size_t i = 0; i < files->count; i++)
        removed += unlink(files->path[i]) == 0;
    return removed;
}
