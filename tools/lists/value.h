/* SPDX-License-Identifier: Apache-2.0 */
/* What a text in a list or a fact is worth. */
#ifndef CKV_LISTS_VALUE_H
#define CKV_LISTS_VALUE_H

#include <stdbool.h>

/* A decimal number and nothing else: no hexadecimal, no infinity, no spaces. */
bool value_number(const char *text, double *number_out);

/* `true` or `false` in any case. */
bool value_boolean(const char *text, bool *boolean_out);

/* Equal as numbers when both are, as booleans when both are, otherwise as text with its case. */
bool value_equal(const char *a, const char *b);

/* A shell glob (* ? [a-z] [!a-z]) over the whole text, in any case. */
bool value_glob(const char *pattern, const char *text);

#endif
