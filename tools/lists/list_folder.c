/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/list_file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int is_list(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return entry->d_name[0] != '.' && dot != NULL && (strcmp(dot, ".yml") == 0 || strcmp(dot, ".yaml") == 0);
}

/* Byte order, whatever the locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

bool list_read_folder(const list_reader *reader, const char *folder, list_set *set)
{
    struct dirent **files;
    int count = scandir(folder, &files, is_list, by_name);
    if (count <= 0) {
        if (count == 0)
            free(files);
        const char *cause = count < 0 ? strerror(errno) : "has no .yml or .yaml file";
        return diag_file(reader->log, folder,
                         arena_format(reader->memory, "%s; --dir names the folder of lists", cause));
    }
    for (int i = 0; i < count; i++) {
        text_source *source = arena_alloc(reader->memory, sizeof *source);
        const char *separator = folder[strlen(folder) - 1] == '/' ? "" : "/";
        const char *path = arena_format(reader->memory, "%s%s%s", folder, separator, files[i]->d_name);
        if (text_read(reader->memory, reader->log, path, TREE_MAX_BYTES, source))
            list_read(reader, source, set);
        free(files[i]);
    }
    free(files);
    return true;
}
