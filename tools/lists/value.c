/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/value.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool value_number(const char *text, double *number_out)
{
    if (text[0] == '\0' || text[strspn(text, "+-.0123456789eE")] != '\0')
        return false;
    char *end;
    double number = strtod(text, &end);
    if (*end != '\0' || end == text || !isfinite(number))
        return false;
    *number_out = number;
    return true;
}

bool value_boolean(const char *text, bool *boolean_out)
{
    *boolean_out = strcasecmp(text, "true") == 0;
    return *boolean_out || strcasecmp(text, "false") == 0;
}

bool value_equal(const char *a, const char *b)
{
    double a_number, b_number;
    if (value_number(a, &a_number) && value_number(b, &b_number))
        return a_number == b_number;
    bool a_boolean, b_boolean;
    if (value_boolean(a, &a_boolean) && value_boolean(b, &b_boolean))
        return a_boolean == b_boolean;
    return strcmp(a, b) == 0;
}

bool value_glob(const char *pattern, const char *text)
{
    return fnmatch(pattern, text, FNM_CASEFOLD | FNM_NOESCAPE) == 0;
}
