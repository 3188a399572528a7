/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/repro/case_text.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The exact value, as a C constant. */
static void format_value(float value, char *text, size_t bytes)
{
    if (isnan(value)) {
        snprintf(text, bytes, "NAN");
    } else if (isinf(value)) {
        snprintf(text, bytes, "%sINFINITY", value < 0 ? "-" : "");
    } else {
        int length = snprintf(text, bytes, "%.9g", (double)value);
        snprintf(text + length, bytes - (size_t)length, "%s", strpbrk(text, ".e") == NULL ? ".0f" : "f");
    }
}

static void print_tensor(FILE *to, const trace *t, size_t op, const char *name, const void *tensor, int64_t count)
{
    enum { WIDTH = 116 };
    size_t bytes = ckv_dtype_bytes(t->config.dtype);
    fprintf(to, "static const float t%zu_%s[] = {", op, name);
    size_t column = WIDTH;
    for (int64_t i = 0; i < count; i++) {
        float value;
        char text[32];
        ckv_convert_to_float(t->config.dtype, (const char *)tensor + (size_t)i * bytes, 1, &value);
        format_value(value, text, sizeof text);
        size_t length = strlen(text) + 2;
        bool wraps = column + length > WIDTH;
        fprintf(to, "%s%s,", wraps ? "\n    " : " ", text);
        column = wraps ? 4 + length : column + length;
    }
    fprintf(to, "\n};\n");
}

static void print_tensors(FILE *to, const trace *t)
{
    int64_t q_row = t->config.q_heads * t->config.head_dim, kv_row = t->config.kv_heads * t->config.head_dim;
    for (size_t i = 0; i < t->num_ops; i++) {
        const trace_op *op = &t->ops[i];
        int64_t rows = op->kind == TRACE_FORWARD ? op->rows : op->tokens;
        if (op->q != NULL)
            print_tensor(to, t, i, "q", op->q, rows * q_row);
        if (op->k != NULL)
            print_tensor(to, t, i, "k", op->k, rows * kv_row);
        if (op->v != NULL)
            print_tensor(to, t, i, "v", op->v, rows * kv_row);
        if (op->expected != NULL)
            print_tensor(to, t, i, "expected", op->expected, rows * q_row);
        if (op->kind != TRACE_OPEN)
            continue;
        fprintf(to, "static const int64_t t%zu_sizes[] = {", i);
        for (size_t size = 0; size < op->num_causal_block_sizes; size++)
            fprintf(to, "%s%" PRId64, size == 0 ? "" : ", ", op->causal_block_sizes[size]);
        fprintf(to, "};\n");
    }
}

static void print_op(FILE *to, const trace_op *op, size_t i)
{
    fprintf(to, "    {.kind = RECORDED_");
    for (const char *name = trace_op_name(op->kind); *name != '\0'; name++)
        fputc(toupper((unsigned char)*name), to);
    switch (op->kind) {
    case TRACE_OPEN:
        fprintf(to,
                ", .pin_tokens = %" PRId64 ", .window_tokens = %" PRId64 ", .max_staged_tokens = %" PRId64
                ",\n     .causal_block_sizes = t%zu_sizes, .num_causal_block_sizes = %zu",
                op->pin_tokens, op->window_tokens, op->max_staged_tokens, i, op->num_causal_block_sizes);
        break;
    case TRACE_WRITE_RANGE:
        fprintf(to, ", .layer = %" PRId64 ", .start = %" PRId64 ", .tokens = %" PRId64 ", .k = t%zu_k, .v = t%zu_v",
                op->layer, op->start, op->tokens, i, i);
        break;
    case TRACE_ZERO_VALUES:
        fprintf(to, ", .layer = %" PRId64 ", .start = %" PRId64 ", .tokens = %" PRId64, op->layer, op->start,
                op->tokens);
        break;
    case TRACE_FORWARD:
        fprintf(to,
                ", .layer = %" PRId64 ", .rows = %" PRId64 ", .seq_len = %" PRId64 ", .causal_block_size = %" PRId64
                ",\n     .q = t%zu_q, .k = t%zu_k, .v = t%zu_v",
                op->layer, op->rows, op->seq_len, op->causal_block_size, i, i, i);
        if (op->expected != NULL)
            fprintf(to, ", .expected = t%zu_expected", i);
        break;
    case TRACE_COMMIT:
        fprintf(to, ", .tokens = %" PRId64, op->tokens);
        break;
    case TRACE_CLOSE:
        break;
    }
    fprintf(to, "},\n");
}

/* Inside a comment: nothing in it may end that. */
static void print_safely(FILE *to, const char *text)
{
    for (; *text != '\0'; text++)
        fputc(isalnum((unsigned char)*text) || strchr(" .,:;()'-_%=+", *text) != NULL ? *text : '_', to);
}

static void print_comment(FILE *to, const failure *f, const char *source)
{
    const char *slash = strrchr(source, '/');
    fprintf(to, "/* SPDX-License-Identifier: Apache-2.0 */\n/* Shrunk from ");
    print_safely(to, slash == NULL ? source : slash + 1);
    if (f->kind == FAILURE_EXPECTED) {
        fprintf(to, ": `expected` is the model's output, and it is wrong.");
        if (f->is_known) {
            fprintf(to, "\n * ");
            print_safely(to, f->class);
            fprintf(to, ": ");
            print_safely(to, f->what);
            fprintf(to, ".\n * The case fails until `expected` is right.");
        }
    } else {
        fprintf(to, ": the case fails as long as ckv does.");
    }
    fprintf(to, "\n * A test as it is: ckv_add_test(shrunk SOURCES FILE), FILE being this one in tests/host. "
                "*/\n#include \"tests/support/recorded_calls.h\"\n\n#include <math.h>\n\n");
}

void case_text_print(FILE *to, const trace *t, int ranks, const failure *f, const char *source)
{
    static const char *const dtypes[] = {[CKV_FP32] = "CKV_FP32", [CKV_BF16] = "CKV_BF16", [CKV_FP16] = "CKV_FP16"};
    const trace_config *c = &t->config;
    print_comment(to, f, source);
    print_tensors(to, t);
    fprintf(to, "static const recorded_op ops[] = {\n");
    for (size_t i = 0; i < t->num_ops; i++)
        print_op(to, &t->ops[i], i);
    fprintf(to,
            "};\n\nstatic void shrunk(void **state)\n{\n    (void)state;\n    static const recorded_calls calls = {\n"
            "        .ranks = %d, .layers = %" PRId64 ", .q_heads = %" PRId64 ", .kv_heads = %" PRId64
            ", .head_dim = %" PRId64 ", .tokens_per_page = %" PRId64 ",\n        .dtype = %s, .scale = %.17g, "
            ".tolerance = %.17g, .ops = ops, .num_ops = sizeof ops / sizeof ops[0]};\n",
            ranks, c->layers, c->q_heads, c->kv_heads, c->head_dim, c->tokens_per_page, dtypes[c->dtype], c->scale,
            f->tolerance);
    fprintf(
        to,
        "    recorded_calls_expect_exact(&calls);\n}\n\nstatic const ckv_test_case cases[] = {CKV_CASE(shrunk)};\n\n"
        "CKV_TEST_MAIN(\"shrunk\", cases)\n");
}
