/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts of `ckv blocks` and what they answer. */
#ifndef CKV_TESTS_SUPPORT_BLOCKS_LINES_H
#define CKV_TESTS_SUPPORT_BLOCKS_LINES_H

#include <stddef.h>

/* What a script answers, to be freed. */
char *blocks_answers(const char *text, size_t bytes);

/* Every field of an expected line is in the answer, line by line. `expected` is cut up. */
void blocks_expect_answers(const char *name, const char *script, char *expected);

/* Lines in pairs: what is asked, and a part of the answer. Apostrophes stand for quotation marks. */
typedef struct script_line {
    const char *in, *out;
} script_line;

void blocks_expect_lines(const script_line *lines, size_t count);
#define EXPECT(lines) blocks_expect_lines(lines, sizeof(lines) / sizeof(lines)[0])

#endif
