/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static char usage_message[512];

void cli_error(const char *argv0, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", argv0);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

error_t cli_usage_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(usage_message, sizeof usage_message, format, arguments);
    va_end(arguments);
    return EINVAL;
}

int cli_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    usage_message[0] = '\0';
    int stopped_at = 0;
    error_t error = argp_parse(argp, argc, argv, ARGP_NO_ERRS, &stopped_at, input);
    if (error == 0 && stopped_at < argc)
        error = cli_usage_error("unexpected argument '%s'", argv[stopped_at]);
    if (error == 0)
        return CLI_OK;
    if (usage_message[0] == '\0') {
        /* getopt refused an option; it has stepped past it unless it is part of a cluster */
        int at = stopped_at > 1 ? stopped_at - 1 : 1;
        cli_usage_error("unknown option, or option without its value: '%s'", at < argc ? argv[at] : "");
    }
    cli_error(argv[0], "%s; see '%s --help'", usage_message, argv[0]);
    return CLI_USAGE;
}

error_t cli_parse_integer(const char *option, const char *text, int64_t minimum, int64_t maximum, int64_t *value_out)
{
    char *end;
    errno = 0;
    intmax_t value = strtoimax(text, &end, 10);
    if (end == text || *end != '\0' || errno == ERANGE || value < minimum || value > maximum)
        return cli_usage_error("%s is '%s'; it must be an integer from %" PRId64 " to %" PRId64, option, text, minimum,
                               maximum);
    *value_out = value;
    return 0;
}
