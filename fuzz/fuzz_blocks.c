/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a script of block-manager operations. Every line must be answered in one line, and whatever was asked,
 * the invariants hold at the end. */
#include "fuzz/fuzz.h"
#include "tools/blocks/run.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 14, MAX_VALUE = 4096 };

/* Scripts that only ask for a large manager take memory and say nothing. */
static int is_small(const uint8_t *data, size_t size)
{
    long value = 0;
    for (size_t i = 0; i < size; i++) {
        value = data[i] >= '0' && data[i] <= '9' ? value * 10 + (data[i] - '0') : 0;
        if (value > MAX_VALUE)
            return 0;
    }
    return size <= MAX_BYTES;
}

static void expect_one_line_each(const char *out)
{
    for (const char *c = out; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' && *c != '\n')
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!is_small(data, size))
        return 0;
    char *out = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&out, &bytes);
    if (stream == NULL)
        return 0;
    blocks_run run;
    blocks_run_init(&run);
    if (!blocks_run_text(&run, (const char *)data, size, stream))
        abort();
    if (run.blocks != NULL && ckv_blocks_check(run.blocks) != CKV_OK)
        abort();
    blocks_run_free(&run);
    fclose(stream);
    expect_one_line_each(out);
    free(out);
    return 0;
}
