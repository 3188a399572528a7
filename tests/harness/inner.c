/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/inner.h"

#include "tools/harness/folder.h"
#include "tools/harness/launch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void inner_begin(inner_run *run)
{
    memset(run, 0, sizeof *run);
    ckv_test_folder(run->folder);
}

static void split_last_line(inner_run *run)
{
    size_t length = strlen(run->output);
    while (length > 0 && run->output[length - 1] == '\n')
        run->output[--length] = '\0';
    const char *start = strrchr(run->output, '\n');
    snprintf(run->last_line, sizeof run->last_line, "%.2000s", start ? start + 1 : run->output);
}

void inner_execute(inner_run *run, int ranks, const char *const *program)
{
    char log[128];
    char *argv[32];
    size_t count = 0;
    for (; program[count] != NULL; count++) {
        assert_true(count + 1 < sizeof argv / sizeof *argv);
        argv[count] = strdup(program[count]);
    }
    argv[count] = NULL;
    snprintf(log, sizeof log, "%s/output", run->folder);
    harness_launch launch;
    assert_true(harness_launch_prepare(&launch, ranks, argv));
    run->outcome = harness_run(
        &(harness_job){.argv = launch.argv, .environment = launch.environment, .log_path = log, .timeout_s = 30});
    harness_launch_clear(&launch);
    for (size_t i = 0; i < count; i++)
        free(argv[i]);
    if (!harness_file_read(log, run->output, sizeof run->output))
        run->output[0] = '\0';
    printf("%s\n", run->output);
    if (run->outcome.timed_out || run->outcome.num_left > 0)
        fail_msg("%s, left running: '%s'", run->outcome.timed_out ? "no end in 30 s" : "ended", run->outcome.left);
    split_last_line(run);
}

char *inner_read(const inner_run *run, const char *name)
{
    static const size_t bytes = 65536;
    char path[256];
    char *text = malloc(bytes);
    assert_non_null(text);
    snprintf(path, sizeof path, "%s/%s", run->folder, name);
    bool there = harness_file_read(path, text, bytes);
    if (!there) {
        free(text);
        text = NULL;
    }
    assert_non_null(text);
    return text;
}

void inner_end(inner_run *run)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", run->folder);
    assert_int_equal(system(command), 0);
}
