/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/explain/explain.h"
#include "tools/report/choose.h"
#include "tools/report/errors.h"
#include "tools/report/report.h"

#include <ckv/version.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_EXPLAINED = 32, MAX_EXPLAINED_BLOCKS = 16, HEAT_BYTES = 600000, MIN_HEAT_CELLS = 48, MAX_HEAT_CELLS = 4096 };

typedef struct collector {
    const trace *trace;
    const rank_run *run;
    int64_t ranks;
    json_t *forwards, *numbers;
    walk walk;
    exact exact;
    char *timeline;              /* one character an op */
    bool *shown;                 /* [forwards] */
    double *recorded, *replayed; /* errors of a forward, [rows, q_heads] */
    int64_t heat_cells;
    int64_t forward, rollouts, explained;
    problem *why;
} collector;

json_t *report_number(double value)
{
    if (isfinite(value))
        return json_real(value);
    return json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

/* Text of whatever encoding: what is not UTF-8 loses its other characters. */
static json_t *text_json(const char *text)
{
    json_t *json = json_string(text);
    char *ascii = json == NULL ? strdup(text) : NULL;
    for (char *c = ascii; c != NULL && *c != '\0'; c++)
        if ((*c & 0x80) != 0)
            *c = '?';
    if (ascii != NULL)
        json = json_string(ascii);
    free(ascii);
    return json;
}

static json_t *difference_json(const session_difference *worst)
{
    return json_pack("{so sI sI sI si so so}", "error", report_number(worst->error), "row", (json_int_t)worst->row,
                     "head", (json_int_t)worst->head, "channel", (json_int_t)worst->channel, "rank", worst->rank,
                     "observed", report_number(worst->observed), "wanted", report_number(worst->wanted));
}

static bool is_next(const history_key *a, const history_key *b)
{
    bool follows = b->row == a->row + 1 && (a->id < 0 ? b->id < 0 : b->id == a->id + 1);
    return follows && a->forward == b->forward && a->rank == b->rank && a->count == b->count;
}

/* Runs of keys. Padding has rows, and the id of the token that it comes before. */
static json_t *keys_json(const history *h, const history_keys *keys)
{
    json_t *runs = json_array();
    for (int64_t i = 0; i < keys->count;) {
        const history_key *first = keys->keys[i];
        int64_t start = i++;
        while (i < keys->count && is_next(keys->keys[i - 1], keys->keys[i]))
            i++;
        bool is_padding = first->id < 0;
        int64_t before = first->order > 0 ? (first->order + 1) / 2 : h->committed + h->op->seq_len;
        json_array_append_new(runs, json_pack("{sb sI sI sI sI sI sI}", "padding", is_padding, "first",
                                              (json_int_t)(is_padding ? first->row : first->id), "count",
                                              (json_int_t)(i - start), "times", (json_int_t)first->count, "forward",
                                              (json_int_t)first->forward, "rank", (json_int_t)first->rank, "before",
                                              (json_int_t)(is_padding ? before : first->id)));
    }
    return runs;
}

static json_t *block_json(const history *h, int64_t row, const explain_verdict *verdict)
{
    const diagnosis *found = &verdict->found;
    json_t *block = json_pack("{sI sI so sI sI sI so so so sb}", "block", (json_int_t)(row / h->block_size), "row",
                              (json_int_t)row, "error", report_number(found->error), "head", (json_int_t)found->head,
                              "rank", (json_int_t)(found->head * h->ranks / h->trace->config.q_heads), "channel",
                              (json_int_t)found->channel, "observed", report_number(found->observed), "wanted",
                              report_number(found->wanted), "tolerance", report_number(verdict->tolerance),
                              "is_padding", row >= h->op->seq_len);
    if (verdict->fitting != NULL)
        json_object_update_new(
            block, json_pack("{ss ss so so so}", "class", verdict->fitting->name, "what", verdict->fitting->what,
                             "residual", report_number(verdict->fitting->residual), "extra",
                             keys_json(h, &verdict->extra), "missing", keys_json(h, &verdict->missing)));
    return block;
}

/* Lines of the list that begins here. */
static size_t list_length(const char *line)
{
    size_t lines = 0;
    for (; strncmp(line, "  ", 2) == 0; lines++)
        line = strchr(line, '\n') + 1;
    return lines;
}

/* Lists of keys can be as long as the cache has pages: of a long one both ends stay. */
static void put_cut(FILE *out, const char *text)
{
    enum { KEPT = 8 };
    size_t length = 0, index = 0;
    for (const char *line = text, *end; *line != '\0'; line = end) {
        end = strchr(line, '\n') + 1;
        if (index == length) {
            length = list_length(line);
            index = 0;
        }
        if (length <= 2 * KEPT || index < KEPT || index + KEPT >= length)
            fwrite(line, 1, (size_t)(end - line), out);
        else if (index == KEPT)
            fprintf(out, "  ... and %zu lines like these\n", length - 2 * KEPT);
        index += index < length;
    }
}

static json_t *print_json(const history *h, int64_t row, const explain_output *output, const explain_verdict *verdict)
{
    char *whole = NULL, *cut = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&whole, &bytes);
    if (out == NULL)
        return NULL;
    explain_print(out, h, row, output, verdict);
    bool ok = fclose(out) == 0;
    out = ok ? open_memstream(&cut, &bytes) : NULL;
    if (out != NULL) {
        put_cut(out, whole);
        ok = fclose(out) == 0;
    }
    json_t *json = ok && out != NULL ? text_json(cut) : NULL;
    free(whole);
    free(cut);
    return json;
}

/* The row of the largest error among [first, end). */
static int64_t worst_row(const collector *c, const double *errors, int64_t first, int64_t end, double *error_out)
{
    int64_t heads = c->trace->config.q_heads, worst = first;
    *error_out = 0;
    for (int64_t i = first * heads; i < end * heads; i++) {
        if (errors[i] <= *error_out)
            continue;
        *error_out = errors[i];
        worst = i / heads;
    }
    return worst;
}

static ckv_status explain_one(const history *h, int64_t row, const explain_output *output, bool with_text,
                              json_t *explained, problem *why)
{
    explain_verdict verdict;
    for (int64_t id = 0; id < h->tokens.count; id++) /* where another row found them */
        if (h->tokens.keys[id] != NULL)
            h->tokens.keys[id]->page = h->tokens.keys[id]->slot = -1;
    ckv_status status = explain_row(h, row, output, &verdict, why);
    if (status != CKV_OK)
        return status;
    json_array_append_new(json_object_get(explained, "blocks"), block_json(h, row, &verdict));
    if (with_text)
        json_object_set_new(explained, "text", print_json(h, row, output, &verdict));
    return CKV_OK;
}

/* The worst row first, then that of other wrong blocks. */
static ckv_status explain_blocks(const collector *c, const history *h, const explain_output *output,
                                 const double *errors, double tolerance, json_t *explained)
{
    double error;
    /* a model may leave in its padding rows what it likes; ckv may not */
    bool is_recorded = output->values == h->op->expected;
    int64_t worst = worst_row(c, errors, 0, is_recorded ? h->op->seq_len : h->op->rows, &error);
    int64_t explained_blocks = 1, left_out = 0;
    ckv_status status = explain_one(h, worst, output, true, explained, c->why);
    for (int64_t first = 0; first < h->op->seq_len && status == CKV_OK; first += h->block_size) {
        int64_t row = worst_row(c, errors, first, first + h->block_size, &error);
        if (error <= tolerance || (worst >= first && worst < first + h->block_size))
            continue;
        if (explained_blocks < MAX_EXPLAINED_BLOCKS)
            status = explain_one(h, row, output, false, explained, c->why);
        else
            left_out++;
        explained_blocks++;
    }
    json_object_set_new(explained, "blocks_left_out", json_integer((json_int_t)left_out));
    return status;
}

/* What `ckv explain` would say, or why it would not. */
static ckv_status explain_forward(collector *c, const explain_output *output, const double *errors, double tolerance,
                                  json_t *forward)
{
    json_t *explained = json_pack("{ss s[]}", "output", output->name, "blocks");
    json_object_set_new(forward, "explained", explained);
    if (c->explained++ >= MAX_EXPLAINED) {
        json_object_set_new(explained, "refused", json_string("only the first wrong forwards are explained here"));
        return CKV_OK;
    }
    arena memory = {0};
    history h;
    ckv_status status = history_open(&h, c->trace, c->forward, c->ranks, &memory, c->why);
    if (status == CKV_OK)
        status = explain_blocks(c, &h, output, errors, tolerance, explained);
    else if (status != CKV_ERROR_MEMORY && status != CKV_ERROR_INTERNAL) {
        json_object_set_new(explained, "refused", text_json(c->why->text));
        status = CKV_OK;
    }
    history_close(&h);
    arena_free(&memory);
    return status;
}

static json_t *heat_json(const collector *c, const trace_op *op, double tolerance)
{
    int64_t heads = c->trace->config.q_heads;
    json_t *maps = json_object();
    if (op->expected != NULL)
        json_object_set_new(maps, "recorded", heat_map(op, heads, c->recorded, tolerance, c->heat_cells));
    json_object_set_new(maps, "replayed", heat_map(op, heads, c->replayed, tolerance, c->heat_cells));
    return maps;
}

/* Compare both outputs; what the recorded one holds in padding rows is noted and no mistake. */
static bool compare(collector *c, const trace_op *op, json_t *forward)
{
    const session_result *result = &c->run->results[c->forward];
    exact_compare(&c->exact, op, c->run->outputs[c->forward], c->replayed);
    json_object_set_new(forward, "replayed", difference_json(&result->output));
    bool is_right = result->output_ok && result->expected_ok;
    json_object_set_new(forward, "verdict", json_string(is_right ? "ok" : "wrong"));
    if (op->expected != NULL) {
        double error;
        exact_compare(&c->exact, op, op->expected, c->recorded);
        int64_t row = worst_row(c, c->recorded, op->seq_len, op->rows, &error);
        json_object_set_new(forward, "recorded", difference_json(&result->expected));
        if (error > result->tolerance)
            json_object_set_new(forward, "padding",
                                json_pack("{so sI}", "error", report_number(error), "row", (json_int_t)row));
    }
    json_object_set_new(forward, "heat", heat_json(c, op, result->tolerance));
    return is_right;
}

static ckv_status show_forward(collector *c, const trace_op *op, size_t index)
{
    const session_result *result = &c->run->results[c->forward];
    json_t *forward = json_pack("{sI sI sI so sI sI sI so}", "n", (json_int_t)c->forward, "op", (json_int_t)index,
                                "layer", (json_int_t)op->layer, "tensor", text_json(op->tensor), "rows",
                                (json_int_t)op->rows, "seq_len", (json_int_t)op->seq_len, "padded",
                                (json_int_t)result->padded_tokens, "tolerance", report_number(result->tolerance));
    json_array_append_new(c->forwards, forward);
    bool is_right = compare(c, op, forward);
    ckv_status status = walk_show(&c->walk, op, forward, c->why);
    if (status != CKV_OK || is_right)
        return status;
    const explain_output output = {result->output_ok ? "recorded" : "replayed",
                                   result->output_ok ? op->expected : c->run->outputs[c->forward]};
    return explain_forward(c, &output, result->output_ok ? c->recorded : c->replayed, result->tolerance, forward);
}

/* What the timeline says of an op: a letter and a number. */
static void note_op(collector *c, size_t index)
{
    const trace_op *op = &c->trace->ops[index];
    static const char letters[] = {[TRACE_OPEN] = 'o',    [TRACE_WRITE_RANGE] = 'w', [TRACE_ZERO_VALUES] = 'z',
                                   [TRACE_FORWARD] = 'f', [TRACE_COMMIT] = 'c',      [TRACE_CLOSE] = 'x'};
    c->timeline[index] = letters[op->kind];
    int64_t number = op->tokens;
    if (op->kind == TRACE_OPEN)
        number = c->rollouts++;
    if (op->kind == TRACE_FORWARD) {
        number = c->forward;
        if (!c->run->results[number].output_ok || !c->run->results[number].expected_ok)
            c->timeline[index] = 'F';
    }
    json_array_append_new(c->numbers, json_integer((json_int_t)number));
}

static ckv_status run_op(collector *c, size_t index)
{
    const trace_op *op = &c->trace->ops[index];
    note_op(c, index);
    bool is_forward = op->kind == TRACE_FORWARD, is_shown = is_forward && c->shown[c->forward];
    ckv_status status = exact_op(&c->exact, &c->walk, op, is_shown, c->why);
    if (status == CKV_OK)
        status = walk_op(&c->walk, op, c->why);
    if (status == CKV_OK && is_shown)
        status = show_forward(c, op, index);
    c->forward += is_forward;
    return status;
}

static bool create(collector *c)
{
    const trace *t = c->trace;
    int64_t longest = 1;
    for (size_t i = 0; i < t->num_ops; i++)
        if (t->ops[i].kind == TRACE_FORWARD && t->ops[i].rows > longest)
            longest = t->ops[i].rows;
    size_t values = (size_t)(longest * t->config.q_heads);
    c->timeline = calloc(t->num_ops + 1, 1);
    c->shown = calloc(c->run->forwards + 1, sizeof *c->shown);
    c->recorded = calloc(values, sizeof *c->recorded);
    c->replayed = calloc(values, sizeof *c->replayed);
    return c->timeline != NULL && c->shown != NULL && c->recorded != NULL && c->replayed != NULL;
}

static void destroy(collector *c)
{
    walk_destroy(&c->walk);
    exact_destroy(&c->exact);
    free(c->timeline);
    free(c->shown);
    free(c->recorded);
    free(c->replayed);
}

static json_t *about_json(const trace *t, const char *name, const rank_run *run, int64_t ranks)
{
    const trace_config *model = &t->config;
    json_t *config =
        json_pack("{sI sI sI sI ss sI}", "layers", (json_int_t)model->layers, "q_heads", (json_int_t)model->q_heads,
                  "kv_heads", (json_int_t)model->kv_heads, "head_dim", (json_int_t)model->head_dim, "dtype",
                  ckv_dtype_name(model->dtype), "tokens_per_page", (json_int_t)model->tokens_per_page);
    size_t wrong = 0;
    for (size_t i = 0; i < run->forwards; i++)
        wrong += !run->results[i].output_ok || !run->results[i].expected_ok;
    return json_pack("{so ss sI so sI sI}", "name", text_json(name), "version", ckv_version(), "ranks",
                     (json_int_t)ranks, "config", config, "num_forwards", (json_int_t)run->forwards, "num_wrong",
                     (json_int_t)wrong);
}

static ckv_status run_ops(collector *c, json_t *report)
{
    ckv_status status = walk_create(&c->walk, c->trace, report, c->why);
    if (status == CKV_OK)
        status = exact_create(&c->exact, c->trace, c->why);
    size_t shown = choose_forwards(c->trace, c->run, c->shown);
    double cells = HEAT_BYTES / (2 * (double)(shown + 1));
    c->heat_cells = (int64_t)fmin(fmax(cells, MIN_HEAT_CELLS), MAX_HEAT_CELLS);
    for (size_t i = 0; i < c->trace->num_ops && status == CKV_OK; i++)
        status = run_op(c, i);
    json_object_set_new(report, "timeline", json_string(c->timeline));
    return status;
}

ckv_status report_collect(const trace *t, const char *name, const rank_run *run, int64_t ranks, json_t **report_out,
                          problem *why)
{
    collector c = {.trace = t, .run = run, .ranks = ranks, .why = why};
    json_t *report = about_json(t, name, run, ranks);
    c.forwards = json_array();
    c.numbers = json_array();
    json_object_set_new(report, "forwards", c.forwards);
    json_object_set_new(report, "numbers", c.numbers);
    ckv_status status = CKV_ERROR_MEMORY;
    problem_format(why, "out of memory");
    if (create(&c))
        status = run_ops(&c, report);
    destroy(&c);
    if (status == CKV_OK)
        *report_out = report;
    else
        json_decref(report);
    return status;
}
