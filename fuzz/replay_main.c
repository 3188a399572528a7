/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds every file of the named folders to a fuzz target, so that a corpus is a regression test in every build. The
 * name is printed before each input: the last line of a crash names the culprit. A folder without files fails. */
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* The allocation has exactly the size of the file: AddressSanitizer sees the first byte read past its end. */
static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (file == NULL || fstat(fileno(file), &info) != 0) {
        perror(path);
        if (file != NULL)
            fclose(file);
        return -1;
    }
    size_t size = (size_t)info.st_size;
    uint8_t *data = malloc(size == 0 ? 1 : size);
    int failed = data == NULL || fread(data, 1, size, file) != size;
    fclose(file);
    if (failed)
        fprintf(stderr, "%s: cannot read %zu bytes\n", path, size);
    else
        LLVMFuzzerTestOneInput(data, size);
    free(data);
    return failed ? -1 : 0;
}

/* Number of files replayed, or -1. */
static int replay_folder(const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_visible, alphasort);
    if (count < 0) {
        perror(folder);
        return -1;
    }
    int failed = 0;
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        printf("%s\n", path);
        fflush(stdout);
        failed |= replay_file(path) != 0;
        free(entries[i]);
    }
    free(entries);
    return failed ? -1 : count;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "%s: name at least one folder of inputs\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        int count = replay_folder(argv[i]);
        if (count == 0)
            fprintf(stderr, "%s: no inputs\n", argv[i]);
        if (count <= 0)
            return 1;
        printf("%s: %d inputs replayed\n", argv[i], count);
    }
    return 0;
}
