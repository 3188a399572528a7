/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/out_file.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Something else than a file that can be replaced. */
static bool is_written_in_place(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode);
}

bool out_file_open(const char *path, out_file *file_out, problem *why)
{
    *file_out = (out_file){.path = path};
    bool in_place = is_written_in_place(path), fits = true;
    if (!in_place)
        fits = snprintf(file_out->temporary, PATH_MAX, "%s.%ld.tmp", path, (long)getpid()) < PATH_MAX;
    errno = ENAMETOOLONG;
    if (path[0] == '\0') {
        errno = ENOENT;
        fits = false;
    }
    if (fits)
        file_out->stream = in_place ? fopen(path, "wbe") : fopen(file_out->temporary, "wbxe");
    return file_out->stream != NULL || problem_set(why, "%s: %s", path, strerror(errno));
}

bool out_file_close(out_file *file, bool ok, problem *why)
{
    errno = 0;
    ok = ok && ferror(file->stream) == 0;
    ok = fclose(file->stream) == 0 && ok;
    if (file->temporary[0] != '\0')
        ok = ok && rename(file->temporary, file->path) == 0;
    if (ok)
        return true;
    problem_format(why, "%s: %s", file->path, errno != 0 ? strerror(errno) : "it cannot be written");
    if (file->temporary[0] != '\0')
        remove(file->temporary);
    return false;
}

bool out_file_check(const char *path, problem *why)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return problem_set(why, "%s: %s", path, strerror(EISDIR));
    if (is_written_in_place(path))
        return access(path, W_OK) == 0 || problem_set(why, "%s: %s", path, strerror(errno));
    out_file file;
    if (!out_file_open(path, &file, why))
        return false;
    fclose(file.stream);
    remove(file.temporary);
    return true;
}

static bool is_one_inode(const struct stat *one, const struct stat *two)
{
    return one->st_dev == two->st_dev && one->st_ino == two->st_ino;
}

/* Files that are not there yet: the same name in the same folder. */
static bool would_be_one(const char *path, const char *other)
{
    struct stat one, two;
    char *copies[] = {strdup(path), strdup(path), strdup(other), strdup(other)};
    bool same = copies[0] != NULL && copies[1] != NULL && copies[2] != NULL && copies[3] != NULL &&
                strcmp(basename(copies[0]), basename(copies[2])) == 0 && stat(dirname(copies[1]), &one) == 0 &&
                stat(dirname(copies[3]), &two) == 0 && is_one_inode(&one, &two);
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        free(copies[i]);
    return same;
}

bool is_one_file(const char *path, const char *other)
{
    struct stat one, two;
    bool has_one = stat(path, &one) == 0, has_two = stat(other, &two) == 0;
    if (has_one && has_two)
        return S_ISREG(one.st_mode) && is_one_inode(&one, &two);
    return has_one == has_two && would_be_one(path, other);
}
