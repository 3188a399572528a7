/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/case_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16 };

static char folders[MOST][CKV_TEST_FOLDER_BYTES]; /* some may be gone already */

void ckv_test_folder(char path[static CKV_TEST_FOLDER_BYTES])
{
    for (int i = 0; i < MOST; i++) {
        if (folders[i][0] != '\0' && access(folders[i], F_OK) == 0)
            continue;
        snprintf(path, CKV_TEST_FOLDER_BYTES, "/tmp/ckv_test_XXXXXX");
        assert_non_null(mkdtemp(path));
        memcpy(folders[i], path, CKV_TEST_FOLDER_BYTES);
        return;
    }
    fail_msg("a case has more than %d folders at a time", MOST);
}

void case_folders_remove(void)
{
    for (int i = 0; i < MOST; i++) {
        char command[CKV_TEST_FOLDER_BYTES + 16];
        snprintf(command, sizeof command, "rm -rf '%.*s'", CKV_TEST_FOLDER_BYTES - 1, folders[i]);
        if (folders[i][0] != '\0' && access(folders[i], F_OK) == 0 && system(command) != 0)
            fprintf(stderr, "%s cannot be removed\n", folders[i]);
        folders[i][0] = '\0';
    }
}
