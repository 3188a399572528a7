/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/workplace.h"

#include "tests/support/case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("cannot read %s", path);
    char *text;
    size_t bytes;
    FILE *copy = open_memstream(&text, &bytes);
    assert_non_null(copy);
    for (int byte = getc(file); byte != EOF; byte = getc(file))
        putc(byte, copy);
    fclose(copy);
    fclose(file);
    return text;
}

size_t lines_of(const char *text)
{
    size_t lines = 0;
    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return lines;
}

void workplace_open(workplace *place, const char *program)
{
    *place = (workplace){.program = program};
    ckv_test_folder(place->folder);
}

void workplace_close(workplace *place)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", place->folder);
    assert_int_equal(system(command), 0);
    free(place->out);
    free(place->err);
}

void workplace_put_bytes(const workplace *place, const char *name, const char *bytes, size_t count)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", place->folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

void workplace_put(const workplace *place, const char *name, const char *text)
{
    workplace_put_bytes(place, name, text, strlen(text));
}

void workplace_run(workplace *place, const char *arguments)
{
    char command[4096], path[128];
    snprintf(command, sizeof command, "cd '%s' && %s %s >out 2>err", place->folder, place->program, arguments);
    int status = system(command);
    assert_true(WIFEXITED(status));
    place->code = WEXITSTATUS(status);
    free(place->out);
    free(place->err);
    snprintf(path, sizeof path, "%s/out", place->folder);
    place->out = read_text(path);
    snprintf(path, sizeof path, "%s/err", place->folder);
    place->err = read_text(path);
}

const char *workplace_shell(workplace *place, const char *line)
{
    const char *program = place->program;
    place->program = "";
    workplace_run(place, line);
    place->program = program;
    return place->out;
}

void workplace_expect(workplace *place, const char *arguments, int code, const char *out, const char *err)
{
    workplace_run(place, arguments);
    if (place->code != code || (out != NULL && strcmp(place->out, out) != 0) ||
        (err != NULL && strstr(place->err, err) == NULL))
        fail_msg("%s %s\nexit %d, expected %d\n%s--- expected ---\n%s\n--- standard error ---\n%s", place->program,
                 arguments, place->code, code, place->out, out != NULL ? out : "(anything)", place->err);
}
