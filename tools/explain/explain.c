/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/explain/explain.h"

#include "tools/trace/session.h"

#include <inttypes.h>

/* Keys one after the other in ids or rows, pages and slots, of one write. */
static bool continues(const history_key *a, const history_key *b)
{
    return (a->id < 0 ? b->id < 0 : b->id == a->id + 1) && b->row == a->row + 1 && a->forward == b->forward &&
           a->rank == b->rank && a->version == b->version && a->page == b->page &&
           (a->page < 0 || b->slot == a->slot + 1) && a->count == b->count;
}

static void print_range(FILE *out, const char *name, int64_t first, int64_t last)
{
    if (first == last)
        fprintf(out, "%s %" PRId64, name, first);
    else
        fprintf(out, "%ss %" PRId64 "-%" PRId64, name, first, last);
}

static void print_run(FILE *out, const history_key *first, const history_key *last)
{
    fprintf(out, "  ");
    if (first->id >= 0)
        print_range(out, "token", first->id, last->id);
    else
        print_range(out, "padding row", first->row, last->row);
    if (first->page >= 0) {
        fprintf(out, ", page %" PRId64 " ", first->page);
        print_range(out, "slot", first->slot, last->slot);
    }
    if (first->forward < 0)
        fprintf(out, ", written on every rank");
    else if (first->rank < 0)
        fprintf(out, ", of forward %" PRId64 ", in no rank's shard", first->forward);
    else
        fprintf(out, ", of forward %" PRId64 " rank %" PRId64, first->forward, first->rank);
    if (first->version > 0)
        fprintf(out, ", version %" PRId64, first->version);
    if (first->count > 1)
        fprintf(out, ", %" PRId64 " times", first->count);
    fprintf(out, "\n");
}

/* Keys that follow `first` in its run, itself included. */
static int64_t run_length(const history_keys *keys, int64_t first)
{
    int64_t end = first + 1;
    while (end < keys->count && continues(keys->keys[end - 1], keys->keys[end]))
        end++;
    return end - first;
}

static void print_keys(FILE *out, const history_keys *keys)
{
    for (int64_t i = 0; i < keys->count;) {
        int64_t length = run_length(keys, i);
        print_run(out, keys->keys[i], keys->keys[i + length - 1]);
        i += length;
    }
}

static void count_keys(const history_keys *keys, int64_t by)
{
    for (int64_t i = 0; i < keys->count; i++)
        keys->keys[i]->count += by;
}

/* Keys of `keys` that are not in `others`, or in it less often; each with how often more. */
static history_keys surplus(const history *h, const history_keys *keys, const history_keys *others)
{
    history_keys more = {0};
    count_keys(keys, 1);
    count_keys(others, -1);
    for (int64_t i = 0; i < keys->count; i++) {
        if (keys->keys[i]->count <= 0 || (i > 0 && keys->keys[i] == keys->keys[i - 1]))
            continue;
        history_key *copy = arena_alloc(h->memory, sizeof *copy);
        *copy = *keys->keys[i];
        history_add(h->memory, &more, copy);
    }
    count_keys(keys, -1);
    count_keys(others, 1);
    return more;
}

static const float *load_row(const history *h, int64_t row, const explain_output *output)
{
    const trace_config *model = &h->trace->config;
    size_t count = (size_t)(model->q_heads * model->head_dim), bytes = count * ckv_dtype_bytes(model->dtype);
    float *values = arena_alloc(h->memory, count * sizeof *values);
    ckv_convert_to_float(model->dtype, (const char *)output->values + (size_t)row * bytes, count, values);
    return values;
}

static bool fits(const explain_verdict *verdict, const mistake *candidate)
{
    return mistake_fits(&verdict->found, candidate, verdict->tolerance);
}

ckv_status explain_row(const history *h, int64_t row, const explain_output *output, explain_verdict *verdict_out,
                       problem *why)
{
    explain_verdict verdict = {.found = {.window = history_window(h, row)}};
    ckv_status status = history_locate(h, row, &verdict.found.window, why);
    if (status == CKV_OK && output->values != NULL) {
        history_keys window = verdict.found.window;
        status = diagnose(h, row, &window, load_row(h, row, output), &verdict.found, why);
        verdict.tolerance = session_default_tolerance(h->trace->config.dtype, verdict.found.largest);
        verdict.is_wrong = verdict.found.error > verdict.tolerance;
    }
    if (status == CKV_OK && verdict.is_wrong && verdict.found.num_mistakes > 0 &&
        fits(&verdict, &verdict.found.mistakes[0])) {
        verdict.fitting = &verdict.found.mistakes[0];
        verdict.extra = surplus(h, &verdict.fitting->keys, &verdict.found.window);
        verdict.missing = surplus(h, &verdict.found.window, &verdict.fitting->keys);
    }
    *verdict_out = verdict;
    return status;
}

static void print_difference(FILE *out, const char *title, const history_keys *keys)
{
    if (keys->count > 0)
        fprintf(out, "%s\n", title);
    print_keys(out, keys);
}

static void print_mistakes(FILE *out, const history *h, const explain_output *output, const explain_verdict *verdict)
{
    enum { SHOWN = 5 };
    const diagnosis *found = &verdict->found;
    fprintf(out,
            "%s output: off by %.2g at head %" PRId64 " (rank %" PRId64 ") channel %" PRId64
            ": %.6g instead of %.6g; tolerance %.2g\n",
            output->name, found->error, found->head, found->head * h->ranks / h->trace->config.q_heads, found->channel,
            found->observed, found->wanted, verdict->tolerance);
    fprintf(out, "residual  class    mistake\n");
    for (int64_t i = 0; i < found->num_mistakes && i < SHOWN; i++) {
        const mistake *candidate = &found->mistakes[i];
        fprintf(out, "%-9.2g %-8s %s%s\n", candidate->residual, candidate->name, candidate->what,
                fits(verdict, candidate) ? "" : " (does not fit)");
    }
    if (verdict->fitting == NULL) {
        fprintf(out, "verdict: wrong, and no known mistake fits\n");
        return;
    }
    fprintf(out, "verdict: %s: %s\n", verdict->fitting->name, verdict->fitting->what);
    print_difference(out, "read, but should not have been:", &verdict->extra);
    print_difference(out, "not read, but should have been:", &verdict->missing);
}

void explain_print(FILE *out, const history *h, int64_t row, const explain_output *output,
                   const explain_verdict *verdict)
{
    bool is_padding = row >= h->op->seq_len;
    int64_t block = (is_padding ? h->op->seq_len - 1 : row) / h->block_size;
    fprintf(out,
            "forward %" PRId64 ": layer %" PRId64 ", %" PRId64 " tokens (padded %" PRId64 "), %" PRId64
            " committed before; row %" PRId64 "%s\n",
            h->forward, h->op->layer, h->op->seq_len, h->padded_tokens, h->committed, row,
            is_padding ? " is padding: it reads nothing and comes back zero" : "");
    if (!is_padding) {
        fprintf(out, "block %" PRId64 " of %" PRId64 " tokens should read %" PRId64 " keys:\n", block, h->block_size,
                verdict->found.window.count);
        print_keys(out, &verdict->found.window);
    }
    if (output->values == NULL)
        fprintf(out, "no output was recorded (%s.expected): nothing to explain\n", h->op->tensor);
    else if (verdict->is_wrong)
        print_mistakes(out, h, output, verdict);
    else
        fprintf(out, "%s output: right, off by %.2g; tolerance %.2g\n", output->name, verdict->found.error,
                verdict->tolerance);
}
