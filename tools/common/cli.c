/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/cli.h"

#include "tools/common/suggest.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char usage_message[512];

void cli_error(const char *argv0, const char *format, ...)
{
    char message[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    for (char *c = message; *c != '\0'; c++)
        if (iscntrl((unsigned char)*c))
            *c = '?';
    fprintf(stderr, "%s: %s\n", argv0, message);
}

void cli_hold_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return;
}

int cli_finish(const char *argv0, int code)
{
    errno = 0;
    bool failed_before = ferror(stdout) != 0;
    if ((fflush(stdout) == 0 && !failed_before) || code == CLI_INTERNAL)
        return code;
    cli_error(argv0, "standard output: %s", errno != 0 ? strerror(errno) : "it cannot be written");
    return CLI_INTERNAL;
}

error_t cli_usage_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(usage_message, sizeof usage_message, format, arguments);
    va_end(arguments);
    return EINVAL;
}

typedef struct option_search {
    const char *name;
    size_t length;
    const struct argp_option *exact;
    const struct argp_option *prefix;
    size_t prefixes;
    suggestion near;
} option_search;

static bool is_end(const struct argp_option *option)
{
    return option == NULL || (option->name == NULL && option->key == 0 && option->doc == NULL);
}

static void search_long(const struct argp *argp, option_search *search)
{
    for (const struct argp_option *option = argp->options; !is_end(option); option++) {
        if (option->name == NULL)
            continue;
        suggest_offer(&search->near, option->name);
        if (strncmp(option->name, search->name, search->length) != 0)
            continue;
        if (option->name[search->length] == '\0')
            search->exact = option;
        search->prefix = option;
        search->prefixes++;
    }
    for (const struct argp_child *child = argp->children; child != NULL && child->argp != NULL; child++)
        search_long(child->argp, search);
}

static const struct argp_option *find_short(const struct argp *argp, char letter)
{
    for (const struct argp_option *option = argp->options; !is_end(option); option++)
        if (option->key == letter)
            return option;
    const struct argp_option *found = NULL;
    for (const struct argp_child *child = argp->children; child != NULL && child->argp != NULL && !found; child++)
        found = find_short(child->argp, letter);
    return found;
}

/* What is wrong with one argument, into usage_message. True when the next argument is its value. */
static bool explain_long(const struct argp *argp, const char *text, bool is_last)
{
    char name[64];
    size_t length = strcspn(text, "=");
    bool has_value = text[length] == '=';
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), text);
    option_search search = {.name = name, .length = strlen(name), .near = suggest_begin(name)};
    search_long(argp, &search);
    const struct argp_option *option = search.exact != NULL ? search.exact : search.prefix;
    if (option == NULL && search.near.best == NULL)
        cli_usage_error("unknown option '--%s'", name);
    else if (option == NULL)
        cli_usage_error("unknown option '--%s', did you mean '--%s'?", name, search.near.best);
    else if (search.exact == NULL && search.prefixes > 1)
        cli_usage_error("option '--%s' is short for more than one option", name);
    else if (option->arg == NULL && has_value)
        cli_usage_error("option '--%s' takes no value", option->name);
    else if (option->arg != NULL && !has_value && is_last)
        cli_usage_error("option '--%s' needs a value, --%s=%s", option->name, option->name, option->arg);
    return option != NULL && option->arg != NULL && !has_value;
}

static bool explain_short(const struct argp *argp, const char *letters, bool is_last)
{
    for (; *letters != '\0'; letters++) {
        const struct argp_option *option = find_short(argp, *letters);
        if (option == NULL) {
            cli_usage_error("unknown option '-%c'", *letters);
            return false;
        }
        if (option->arg == NULL)
            continue;
        if (letters[1] == '\0' && is_last)
            cli_usage_error("option '-%c' needs a value, -%c %s", *letters, *letters, option->arg);
        return letters[1] == '\0';
    }
    return false;
}

/* argp does not tell which option it refused, so they are read once more, as getopt reads them. */
static void explain_refusal(const struct argp *argp, int argc, char **argv)
{
    for (int i = 1; i < argc && usage_message[0] == '\0' && strcmp(argv[i], "--") != 0; i++) {
        bool is_last = i + 1 == argc;
        if (strncmp(argv[i], "--", 2) == 0)
            i += explain_long(argp, argv[i] + 2, is_last);
        else if (argv[i][0] == '-')
            i += explain_short(argp, argv[i] + 1, is_last);
    }
    if (usage_message[0] == '\0')
        cli_usage_error("an option could not be read");
}

/* Not left to argp: told to print no errors, it prints no help either. */
static bool wants_help(const struct argp *argp, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || (strcmp(argv[i], "-h") == 0 && find_short(argp, 'h') == NULL))
            return true;
    return false;
}

int cli_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    if (wants_help(argp, argc, argv)) {
        argp_help(argp, stdout, ARGP_HELP_STD_HELP, argv[0]);
        exit(cli_finish(argv[0], CLI_OK));
    }
    usage_message[0] = '\0';
    int stopped_at = 0;
    error_t error = argp_parse(argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, &stopped_at, input);
    if (error == 0 && stopped_at < argc)
        error = cli_usage_error("unexpected argument '%s'", argv[stopped_at]);
    if (error == 0)
        return CLI_OK;
    if (usage_message[0] == '\0')
        explain_refusal(argp, argc, argv);
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
