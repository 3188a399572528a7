/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/harness/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool harness_folder_make(const char *path)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST;
}

void harness_folder_remove(const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder != NULL)
        closedir(folder);
    rmdir(path);
}

bool harness_file_write(const char *path, const char *text)
{
    char temporary[4096];
    int length = snprintf(temporary, sizeof temporary, "%s.tmp%d", path, (int)getpid());
    if (length < 0 || (size_t)length >= sizeof temporary) {
        errno = ENAMETOOLONG;
        return false;
    }
    FILE *file = fopen(temporary, "we");
    if (file == NULL)
        return false;
    bool written = fputs(text, file) >= 0;
    written = fclose(file) == 0 && written && rename(temporary, path) == 0;
    int cause = errno;
    if (!written)
        unlink(temporary);
    errno = cause;
    return written;
}

bool harness_file_read(const char *path, char *text_out, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t length = fread(text_out, 1, bytes - 1, file);
    text_out[length] = '\0';
    fclose(file);
    return true;
}
