/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a script of cache operations: parsed, and run when it is small. */
#include "fuzz/fuzz.h"

#include "tools/common/cli.h"
#include "tools/window/window.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_POOL_BYTES = 1 << 16, MAX_POOL_TOKENS = 256, MAX_OPS = 24 };

/* A create that is refused is small too. */
static bool is_small(const window_script *script)
{
    int64_t bytes = 0;
    const ckv_pool_config *pool = &script->ops[0].pool;
    return script->num_ops <= MAX_OPS && (ckv_pool_config_bytes(pool, &bytes) != CKV_OK ||
                                          (bytes <= MAX_POOL_BYTES && pool->pool_tokens <= MAX_POOL_TOKENS));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    window_script script;
    json_lines_error error = {""};
    if (!window_script_parse("fuzz.jsonl", (const char *)data, size, &script, &error)) {
        if (error.text[0] == '\0' || strpbrk(error.text, "\n\r\033") != NULL)
            abort();
        return 0;
    }
    const ckv_device *host;
    if (ckv_device_find("host", &host) != CKV_OK)
        abort();
    FILE *out = is_small(&script) ? fopen("/dev/null", "w") : NULL;
    if (out != NULL) {
        if (window_script_run(&script, host, 0, out) != CLI_OK)
            abort();
        fclose(out);
    }
    window_script_free(&script);
    return 0;
}
