/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/explain/mistakes.h"

#include "tools/explain/dense.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MISTAKES = 40 };

typedef struct search {
    const history *h;
    int64_t row;
    const float *observed; /* NULL: nothing is measured against it */
    const double *exact;
    double *out; /* scratch, as long as a row */
    int64_t values;
    int64_t block_start; /* id of the causal block's first token */
    diagnosis *found;
} search;

static double difference(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? 0 : INFINITY;
    return a == b ? 0 : fabs(a - b); /* equal infinities included */
}

static void add(const search *s, mistake candidate)
{
    if (candidate.keys.count > 0 && s->found->num_mistakes < MAX_MISTAKES)
        s->found->mistakes[s->found->num_mistakes++] = candidate;
}

static history_keys joined(const search *s, const history_keys *first, const history_keys *second)
{
    history_keys all = {0};
    for (int64_t i = 0; i < first->count; i++)
        history_add(s->h->memory, &all, first->keys[i]);
    for (int64_t i = 0; i < second->count; i++)
        history_add(s->h->memory, &all, second->keys[i]);
    return all;
}

/* Keys of zeros in the place of `like`; of the forward's padding when that is NULL. */
static history_key *zero_key(const search *s, const history_key *like, int64_t row)
{
    const trace_config *model = &s->h->trace->config;
    history_key *key = arena_alloc(s->h->memory, sizeof *key);
    if (like != NULL)
        *key = *like;
    else
        *key = (history_key){.id = -1, .forward = s->h->forward, .row = row, .page = -1, .slot = -1};
    key->rank = history_rank_of(s->h, s->h->op, row);
    key->k = key->v =
        arena_alloc(s->h->memory, (size_t)(model->kv_heads * model->head_dim) * ckv_dtype_bytes(model->dtype));
    return key;
}

static void add_own_padding(const search *s)
{
    const history *h = s->h;
    history_keys zeros = {0};
    for (int64_t row = h->op->seq_len; row < h->padded_tokens; row++)
        history_add(h->memory, &zeros, zero_key(s, NULL, row));
    if (h->own_padding.count > 0)
        add(s, (mistake){.name = "padding",
                         .what = "the forward's padding rows are attended with what they hold (seq_len is the padded "
                                 "length, or tokens of a rank times ranks)",
                         .keys = joined(s, &s->found->window, &h->own_padding)});
    if (zeros.count > 0)
        add(s, (mistake){.name = "padding",
                         .what = "the forward's padding rows are attended with zero keys and values",
                         .keys = joined(s, &s->found->window, &zeros)});
}

static int by_order(const void *a, const void *b)
{
    const history_key *x = *(history_key *const *)a, *y = *(history_key *const *)b;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* What the cache would hold had `padding` been committed with the tokens: the window of that, counted in rows. */
static history_keys padded_window(const search *s, const history_keys *padding, bool zero)
{
    const history *h = s->h;
    history_keys rows = {0}, window = {0};
    for (int64_t id = 0; id < s->block_start; id++)
        if (h->tokens.keys[id] != NULL)
            history_add(h->memory, &rows, h->tokens.keys[id]);
    for (int64_t i = 0; i < padding->count; i++)
        history_add(h->memory, &rows, zero ? zero_key(s, padding->keys[i], padding->keys[i]->row) : padding->keys[i]);
    if (rows.count > 1)
        qsort(rows.keys, (size_t)rows.count, sizeof(history_key *), by_order);
    for (int64_t i = 0; i < rows.count; i++)
        if (i < h->state.pin_tokens || i >= rows.count - h->state.window_tokens)
            history_add(h->memory, &window, rows.keys[i]);
    for (int64_t id = s->block_start; id < s->block_start + h->block_size; id++)
        history_add(h->memory, &window, h->tokens.keys[id]);
    return window;
}

static history_keys without_padding(const search *s, const history_keys *keys)
{
    history_keys tokens = {0};
    for (int64_t i = 0; i < keys->count; i++)
        if (keys->keys[i]->id >= 0)
            history_add(s->h->memory, &tokens, keys->keys[i]);
    return tokens;
}

/* The window with its start moved by `tokens`: later when positive. */
static history_keys shifted_window(const search *s, int64_t tokens)
{
    const history *h = s->h;
    history_keys window = {0};
    int64_t begin = s->block_start - h->state.window_tokens + tokens;
    for (int64_t id = 0; id < s->block_start + h->block_size; id++)
        if ((id < h->state.fixed_tokens || id >= begin || id >= s->block_start) && h->tokens.keys[id] != NULL)
            history_add(h->memory, &window, h->tokens.keys[id]);
    return window;
}

static void add_committed_padding(const search *s, const history_keys *padding, const char *const what[5])
{
    if (padding->count == 0)
        return;
    history_keys padded = padded_window(s, padding, false);
    add(s, (mistake){.name = "commit", .what = what[0], .keys = padded});
    add(s, (mistake){.name = "commit", .what = what[1], .keys = padded_window(s, padding, true)});
    add(s, (mistake){.name = "window", .what = what[2], .keys = without_padding(s, &padded)});
    add(s, (mistake){.name = "window", .what = what[3], .keys = shifted_window(s, padding->count)});
    add(s, (mistake){.name = "window", .what = what[4], .keys = shifted_window(s, -padding->count)});
}

static void add_earlier_padding(const search *s)
{
    static const char *const of_first[] = {
        "the first padded chunk was committed with its padding, which later windows hold and count",
        "the first padded chunk was committed with zeros for its padding, which later windows hold and count",
        "padding of the first padded chunk takes room in the window and is masked",
        "the first chunk's padding moves the start of every later window: too late by that many tokens",
        "the first chunk's padding moves the start of every later window: too early by that many tokens",
    };
    static const char *const of_all[] = {
        "every chunk was committed with its padding, which windows hold and count",
        "every chunk was committed with zeros for its padding, which windows hold and count",
        "padding of all chunks takes room in the window and is masked",
        "the padding of all earlier chunks moves the start of the window: too late by that many tokens",
        "the padding of all earlier chunks moves the start of the window: too early by that many tokens",
    };
    const history_keys *padding = &s->h->padding;
    history_keys first = {0};
    for (int64_t i = 0; i < padding->count && padding->keys[i]->order == padding->keys[0]->order; i++)
        history_add(s->h->memory, &first, padding->keys[i]);
    add_committed_padding(s, &first, of_first);
    if (first.count < padding->count)
        add_committed_padding(s, padding, of_all);
}

static void add_windows(const search *s)
{
    const history *h = s->h;
    int64_t dropped = h->committed - h->state.staging_offset;
    int64_t position = s->block_start - h->state.window_tokens - dropped; /* resident */
    if (position > 0)
        add(s, (mistake){.name = "window",
                         .what = "the window starts at the first token of a page",
                         .keys = shifted_window(s, -(position % h->trace->config.tokens_per_page))});
    history_keys all = {0}, own = {0};
    for (int64_t id = 0; id < h->committed + h->op->seq_len; id++) {
        history_key *key = h->tokens.keys[id];
        if (key != NULL && id >= h->committed)
            history_add(h->memory, &own, key);
        if (key != NULL && (id < h->state.fixed_tokens || id >= s->block_start - h->state.window_tokens))
            history_add(h->memory, &all, key);
    }
    add(s, (mistake){.name = "window", .what = "later causal blocks of the forward are read too", .keys = all});
    add(s, (mistake){.name = "window", .what = "the cache is not read, only the forward's own tokens", .keys = own});
}

static void add_shifted(const search *s, int64_t tokens, const char *what)
{
    if (tokens != 0)
        add(s, (mistake){.name = "window", .what = what, .keys = shifted_window(s, tokens)});
}

/* Windows that a model counts otherwise. */
static void add_miscounted_windows(const search *s)
{
    const history *h = s->h;
    int64_t pinned = h->state.fixed_tokens;
    history_keys sliding = {0};
    for (int64_t i = 0; i < s->found->window.count; i++)
        if (s->found->window.keys[i]->id >= pinned)
            history_add(h->memory, &sliding, s->found->window.keys[i]);
    add(s, (mistake){.name = "window", .what = "the pinned tokens are not read", .keys = sliding});
    add_shifted(s, pinned, "the pinned tokens take room in the window");
    add_shifted(s, h->block_size, "the causal block's own tokens take room in the window");
    if (h->block_size != h->op->seq_len)
        add_shifted(s, h->op->seq_len, "the chunk's own tokens take room in the window");
    add_shifted(s, -h->op->seq_len, "the window starts a chunk too early");
    add_shifted(s, h->committed - s->block_start, "every causal block reads the window of the first one");
}

/* The forward, of the same chunk and layer, right before number `forward`, or the first one; NULL: there is none. */
static const trace_op *earlier_step(const history *h, int64_t forward, bool is_first, int64_t *number_out)
{
    const trace_op *step = NULL;
    int64_t number = 0;
    for (size_t i = 0; i < h->trace->num_ops; i++) {
        const trace_op *op = &h->trace->ops[i];
        if (op->kind == TRACE_COMMIT || op->kind == TRACE_OPEN)
            step = NULL;
        if (op->kind != TRACE_FORWARD)
            continue;
        if (number == forward)
            return step;
        if (op->layer == h->op->layer && (step == NULL || !is_first)) {
            step = op;
            *number_out = number;
        }
        number++;
    }
    return NULL;
}

/* The window whose committed tokens keep what an earlier denoising step wrote. */
static void add_stale_steps(const search *s, bool is_first, const char *what)
{
    const history *h = s->h;
    const trace_config *model = &h->trace->config;
    size_t token_bytes = (size_t)(model->kv_heads * model->head_dim) * ckv_dtype_bytes(model->dtype);
    history_keys keys = {0};
    const trace_op *step = NULL;
    int64_t forward = -1, number = -1;
    for (int64_t i = 0; i < s->found->window.count; i++) {
        history_key *key = s->found->window.keys[i];
        if (key->forward >= 0 && key->forward != forward && key->id < h->committed) {
            forward = key->forward;
            step = earlier_step(h, forward, is_first, &number);
        }
        if (key->forward >= 0 && key->id < h->committed && step != NULL && key->row < step->rows) {
            history_key *stale = arena_alloc(h->memory, sizeof *stale);
            *stale = *key;
            stale->k = (const char *)step->k + (size_t)key->row * token_bytes;
            stale->v = (const char *)step->v + (size_t)key->row * token_bytes;
            stale->forward = number;
            stale->version = 0;
            stale->page = -1;
            key = stale;
        }
        history_add(h->memory, &keys, key);
    }
    add(s, (mistake){.name = "commit", .what = what, .keys = keys});
}

static void add_shard_length(const search *s)
{
    const history *h = s->h;
    int64_t own = (h->op->seq_len + h->ranks - 1) / h->ranks;
    history_keys keys = {0};
    for (int64_t i = 0; i < s->found->window.count; i++)
        if (s->found->window.keys[i]->id < h->committed + own)
            history_add(h->memory, &keys, s->found->window.keys[i]);
    add(s, (mistake){.name = "seq_len", .what = "seq_len is that of one rank's shard", .keys = keys});
}

/* Text that every rank has, counted once per rank. */
static void add_context(const search *s)
{
    history_keys keys = {0};
    for (int64_t i = 0; i < s->found->window.count; i++) {
        history_key *key = s->found->window.keys[i];
        int64_t times = key->forward < 0 ? s->h->ranks : 1;
        for (int64_t n = 0; n < times; n++)
            history_add(s->h->memory, &keys, key);
    }
    add(s, (mistake){.name = "context", .what = "keys that every rank holds are counted once per rank", .keys = keys});
}

typedef void place_of(const search *s, int64_t head, int64_t *row, int64_t *head_out);

static void neighbour_slice(const search *s, int64_t head, int64_t *row, int64_t *head_out)
{
    int64_t heads = s->h->trace->config.q_heads;
    *row = s->row;
    *head_out = (head + heads / s->h->ranks) % heads;
}

static void reversed_shards(const search *s, int64_t head, int64_t *row, int64_t *head_out)
{
    int64_t rows = (s->h->op->seq_len + s->h->ranks - 1) / s->h->ranks;
    *row = (s->h->ranks - 1 - s->row / rows) * rows + s->row % rows;
    *head_out = head;
}

/* Rows and heads of a rank's result, [rows, heads], taken for [heads, rows] on its way back. */
static void transposed(const search *s, int64_t head, int64_t *row, int64_t *head_out)
{
    int64_t rows = s->h->padded_tokens, heads = s->h->trace->config.q_heads / s->h->ranks;
    int64_t index = s->row * heads + head % heads;
    *row = index % rows;
    *head_out = head / heads * heads + index / rows;
}

static void add_place(const search *s, const char *what, place_of *place)
{
    int64_t heads = s->h->trace->config.q_heads;
    int64_t *rows = arena_alloc(s->h->memory, (size_t)heads * sizeof *rows);
    int64_t *from = arena_alloc(s->h->memory, (size_t)heads * sizeof *from);
    for (int64_t head = 0; head < heads; head++) {
        place(s, head, &rows[head], &from[head]);
        if (rows[head] >= s->h->op->seq_len)
            rows[head] = -1;
    }
    add(s, (mistake){.name = "layout", .what = what, .keys = s->found->window, .row_of = rows, .head_of = from});
}

static void add_layouts(const search *s)
{
    add_place(s, "rows and heads are transposed: token-major taken for head-major", transposed);
    if (s->h->ranks > 1) {
        add_place(s, "the heads are the next rank's", neighbour_slice);
        add_place(s, "the ranks' shards are put together in the opposite order", reversed_shards);
    }
    add(s, (mistake){.name = "heads",
                     .what = "query heads read K/V head h modulo kv_heads, not that of their group",
                     .keys = s->found->window,
                     .interleaved_groups = true});
}

/* Query heads in the order in which neighbours share a K/V head, if h reads K/V head h % kv_heads; and back. */
static ckv_status attend_interleaved(const search *s, problem *why)
{
    const trace_config *model = &s->h->trace->config;
    size_t head_bytes = (size_t)model->head_dim * ckv_dtype_bytes(model->dtype);
    const char *row = (const char *)s->h->op->q + (size_t)(s->row * model->q_heads) * head_bytes;
    char *q = arena_alloc(s->h->memory, (size_t)model->q_heads * head_bytes);
    double *out = arena_alloc(s->h->memory, (size_t)s->values * sizeof *out);
    int64_t group = model->q_heads / model->kv_heads;
    for (int64_t i = 0; i < model->q_heads; i++)
        memcpy(q + (size_t)i * head_bytes, row + (size_t)(i % group * model->kv_heads + i / group) * head_bytes,
               head_bytes);
    ckv_status status = dense_attend(s->h, &s->found->window, s->row, q, out, why);
    for (int64_t i = 0; i < model->q_heads && status == CKV_OK; i++)
        memcpy(s->out + (i % group * model->kv_heads + i / group) * model->head_dim, out + i * model->head_dim,
               (size_t)model->head_dim * sizeof *out);
    return status;
}

static ckv_status attend_elsewhere(const search *s, const mistake *candidate, problem *why)
{
    const trace_config *model = &s->h->trace->config;
    double *out = arena_alloc(s->h->memory, (size_t)s->values * sizeof *out);
    int64_t computed = -1;
    for (int64_t head = 0; head < model->q_heads; head++) {
        int64_t row = candidate->row_of[head];
        if (row >= 0 && row != computed) {
            history_keys window = history_window(s->h, row);
            ckv_status status = dense_attend(s->h, &window, row, NULL, out, why);
            if (status != CKV_OK)
                return status;
            computed = row;
        }
        for (int64_t i = 0; i < model->head_dim; i++)
            s->out[head * model->head_dim + i] = row < 0 ? 0 : out[candidate->head_of[head] * model->head_dim + i];
    }
    return CKV_OK;
}

/* The row's output with the mistake, in s->out; *change_out is how far that is from the exact one. */
static ckv_status make(const search *s, const mistake *candidate, double *change_out, problem *why)
{
    ckv_status status;
    if (candidate->interleaved_groups)
        status = attend_interleaved(s, why);
    else if (candidate->row_of != NULL)
        status = attend_elsewhere(s, candidate, why);
    else
        status = dense_attend(s->h, &candidate->keys, s->row, NULL, s->out, why);
    *change_out = 0;
    for (int64_t i = 0; i < s->values && status == CKV_OK; i++)
        *change_out = fmax(*change_out, difference(s->exact[i], s->out[i]));
    return status;
}

static bool changes_nothing(const search *s, double change)
{
    return change <= 1e-12 * s->found->largest; /* another order of the same sum */
}

/* The residual of a mistake; infinite when it changes nothing here. */
static ckv_status measure(const search *s, mistake *candidate, problem *why)
{
    double change;
    ckv_status status = make(s, candidate, &change, why);
    candidate->residual = 0;
    for (int64_t i = 0; i < s->values && status == CKV_OK; i++)
        candidate->residual = fmax(candidate->residual, difference(s->observed[i], s->out[i]));
    if (changes_nothing(s, change))
        candidate->residual = INFINITY;
    return status;
}

static const char one_key_missing[] = "one key is left out", one_key_more[] = "one key too many";

/* The window without `key`, or with it. */
static void add_key(const search *s, history_key *key, bool is_missing)
{
    history_keys keys = {0};
    for (int64_t i = 0; i < s->found->window.count; i++)
        if (s->found->window.keys[i] != key)
            history_add(s->h->memory, &keys, s->found->window.keys[i]);
    if (!is_missing)
        history_add(s->h->memory, &keys, key);
    add(s, (mistake){.name = "key",
                     .what = is_missing ? one_key_missing : one_key_more,
                     .keys = keys,
                     .has_distance = key->id >= 0,
                     .distance = key->id - s->block_start});
}

static ckv_status add_single_key(const search *s, problem *why)
{
    const history *h = s->h;
    const trace_config *model = &h->trace->config;
    history_keys others = {0};
    for (int64_t id = 0; id < h->committed + h->op->seq_len; id++)
        if (h->tokens.keys[id] != NULL && h->tokens.keys[id]->page < 0)
            history_add(h->memory, &others, h->tokens.keys[id]);
    others = joined(s, &others, &h->padding);
    others = joined(s, &others, &h->own_padding);
    double *observed = arena_alloc(h->memory, (size_t)model->head_dim * sizeof *observed);
    for (int64_t i = 0; i < model->head_dim; i++)
        observed[i] = s->observed[s->found->head * model->head_dim + i];
    history_key *key = NULL;
    bool is_missing = false;
    ckv_status status =
        dense_explain(h, &s->found->window, &others, s->row, s->found->head, observed, &key, &is_missing, why);
    if (status == CKV_OK && key != NULL)
        add_key(s, key, is_missing);
    return status;
}

/* Stable, so that what is the same to the last bit keeps the order of the table. */
static void sort_mistakes(diagnosis *found)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < found->num_mistakes; i++) {
        mistake candidate = found->mistakes[i];
        if (isinf(candidate.residual))
            continue;
        int64_t at = kept++;
        for (; at > 0 && found->mistakes[at - 1].residual > candidate.residual; at--)
            found->mistakes[at] = found->mistakes[at - 1];
        found->mistakes[at] = candidate;
    }
    found->num_mistakes = kept;
}

static void compare(const search *s)
{
    int64_t head_dim = s->h->trace->config.head_dim;
    for (int64_t i = 0; i < s->values; i++) {
        double error = difference(s->observed[i], s->exact[i]);
        if (isfinite(s->exact[i]))
            s->found->largest = fmax(s->found->largest, fabs(s->exact[i]));
        if (error <= s->found->error)
            continue;
        s->found->error = error;
        s->found->head = i / head_dim;
        s->found->channel = i % head_dim;
        s->found->observed = s->observed[i];
        s->found->wanted = s->exact[i];
    }
}

static void add_known(const search *s)
{
    add_own_padding(s);
    add_earlier_padding(s);
    add_windows(s);
    add_miscounted_windows(s);
    add_stale_steps(s, false, "chunks keep K and V of the denoising step before their last one");
    add_stale_steps(s, true, "chunks keep K and V of their first denoising step");
    add_layouts(s);
    if (s->h->ranks > 1) {
        add_shard_length(s);
        add_context(s);
    }
}

static void begin(search *s, diagnosis *found)
{
    const history *h = s->h;
    int64_t values = h->trace->config.q_heads * h->trace->config.head_dim;
    found->mistakes = arena_alloc(h->memory, MAX_MISTAKES * sizeof *found->mistakes);
    s->found = found;
    s->values = values;
    s->out = arena_alloc(h->memory, (size_t)values * sizeof *s->out);
    s->block_start = h->committed + s->row / h->block_size * h->block_size;
}

ckv_status diagnose(const history *h, int64_t row, const history_keys *window, const float *observed,
                    diagnosis *diagnosis_out, problem *why)
{
    int64_t values = h->trace->config.q_heads * h->trace->config.head_dim;
    double *exact = arena_alloc(h->memory, (size_t)values * sizeof *exact);
    *diagnosis_out = (diagnosis){.window = *window};
    search s = {.h = h, .row = row, .observed = observed, .exact = exact};
    begin(&s, diagnosis_out);
    bool is_padding = row >= h->op->seq_len; /* comes back zero, as arena_alloc leaves it */
    ckv_status status = is_padding ? CKV_OK : dense_attend(h, window, row, NULL, exact, why);
    if (status != CKV_OK)
        return status;
    compare(&s);
    if (is_padding) {
        add(&s, (mistake){.name = "padding",
                          .what = "a padding row is computed like a token's and left in the output",
                          .keys = *window});
    } else {
        add_known(&s);
        status = add_single_key(&s, why);
    }
    for (int64_t i = 0; i < diagnosis_out->num_mistakes && status == CKV_OK; i++)
        status = measure(&s, &diagnosis_out->mistakes[i], why);
    sort_mistakes(diagnosis_out);
    return status;
}

bool mistake_fits(const diagnosis *found, const mistake *candidate, double tolerance)
{
    return candidate->residual <= tolerance && candidate->residual <= found->error / 10;
}

/* The one key that lies where that of `like` did. */
static void add_key_like(const search *s, const mistake *like)
{
    int64_t id = s->block_start + like->distance;
    if (!like->has_distance || id < 0 || id >= s->h->committed + s->h->op->seq_len)
        return;
    history_key *key = s->h->tokens.keys[id];
    bool is_missing = strcmp(like->what, one_key_missing) == 0, is_read = false;
    for (int64_t i = 0; i < s->found->window.count; i++)
        is_read |= s->found->window.keys[i] == key;
    if (key != NULL && is_read == is_missing)
        add_key(s, key, is_missing);
}

ckv_status imitate(const history *h, int64_t row, const mistake *like, double *out, bool *applies_out, problem *why)
{
    diagnosis found = {.window = history_window(h, row)};
    search s = {.h = h, .row = row, .exact = out};
    begin(&s, &found);
    *applies_out = false;
    ckv_status status = dense_attend(h, &found.window, row, NULL, out, why);
    for (int64_t i = 0; i < s.values && status == CKV_OK; i++)
        if (isfinite(out[i]))
            found.largest = fmax(found.largest, fabs(out[i]));
    add_known(&s);
    add_key_like(&s, like);
    for (int64_t i = 0; i < found.num_mistakes && status == CKV_OK && !*applies_out; i++) {
        double change;
        if (strcmp(found.mistakes[i].what, like->what) != 0)
            continue;
        status = make(&s, &found.mistakes[i], &change, why);
        *applies_out = status == CKV_OK && !changes_nothing(&s, change);
    }
    if (*applies_out)
        memcpy(out, s.out, (size_t)s.values * sizeof *out);
    return status;
}
