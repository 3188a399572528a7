/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/replace_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool replace_file_open(const char *path, replace_file *file_out, const char **cause_out)
{
    struct stat info;
    *file_out = (replace_file){.path = path};
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        *cause_out = "not a regular file";
        return false;
    }
    int length = snprintf(file_out->temporary, sizeof file_out->temporary, "%s.%ld.tmp", path, (long)getpid());
    errno = ENAMETOOLONG;
    if (length < (int)sizeof file_out->temporary)
        file_out->stream = fopen(file_out->temporary, "wbx");
    if (file_out->stream == NULL)
        *cause_out = strerror(errno);
    return file_out->stream != NULL;
}

bool replace_file_close(replace_file *file, bool ok, const char **cause_out)
{
    int cause = errno;
    if (fclose(file->stream) != 0 && ok) {
        ok = false;
        cause = errno;
    }
    if (ok && rename(file->temporary, file->path) != 0) {
        ok = false;
        cause = errno;
    }
    if (!ok) {
        remove(file->temporary);
        *cause_out = strerror(cause);
    }
    return ok;
}

bool replace_file_check(const char *path, const char **cause_out)
{
    replace_file file;
    if (!replace_file_open(path, &file, cause_out))
        return false;
    fclose(file.stream);
    remove(file.temporary);
    return true;
}

bool is_one_file(const char *path, const char *other)
{
    struct stat one, two;
    return stat(path, &one) == 0 && stat(other, &two) == 0 && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}
