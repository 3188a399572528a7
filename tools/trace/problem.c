/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/problem.h"

#include <stdarg.h>
#include <stdio.h>

void problem_format(problem *why, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, sizeof why->text, format, arguments);
    va_end(arguments);
    for (char *at = why->text; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?';
}
