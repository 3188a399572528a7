/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/repro/shrink.h"

#include "tools/repro/reduce.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* --- What there is --- */

trace_size shrink_size(const shrinker *s)
{
    const trace *t = s->best;
    const trace_config *c = &t->config;
    trace_size size = {.ops = (int64_t)t->num_ops,
                       .chunks = (int64_t)trace_chunks(t),
                       .tokens = trace_tokens(t),
                       .layers = c->layers,
                       .q_heads = c->q_heads,
                       .kv_heads = c->kv_heads,
                       .head_dim = c->head_dim,
                       .tokens_per_page = c->tokens_per_page,
                       .ranks = s->trial.ranks};
    for (size_t i = 0; i < t->num_ops; i++) {
        const trace_op *op = &t->ops[i];
        size.forwards += op->kind == TRACE_FORWARD;
        size.window = op->kind == TRACE_OPEN && op->window_tokens > size.window ? op->window_tokens : size.window;
        size.pinned = op->kind == TRACE_OPEN && op->pin_tokens > size.pinned ? op->pin_tokens : size.pinned;
        size.padding += op->kind == TRACE_FORWARD ? op->rows - op->seq_len : 0;
    }
    return size;
}

void shrink_print_change(FILE *to, const trace_size *before, const trace_size *after)
{
    const struct {
        const char *name;
        int64_t before, after;
    } parts[] = {
        {"ops", before->ops, after->ops},
        {"forwards", before->forwards, after->forwards},
        {"chunks", before->chunks, after->chunks},
        {"tokens", before->tokens, after->tokens},
        {"padding rows", before->padding, after->padding},
        {"layers", before->layers, after->layers},
        {"query heads", before->q_heads, after->q_heads},
        {"K/V heads", before->kv_heads, after->kv_heads},
        {"head_dim", before->head_dim, after->head_dim},
        {"tokens a page", before->tokens_per_page, after->tokens_per_page},
        {"window", before->window, after->window},
        {"pinned", before->pinned, after->pinned},
        {"ranks", before->ranks, after->ranks},
    };
    const char *separator = "";
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].before == parts[i].after)
            continue;
        fprintf(to, "%s%s %" PRId64 " -> %" PRId64, separator, parts[i].name, parts[i].before, parts[i].after);
        separator = ", ";
    }
}

/* --- One try --- */

/* Rank 0's clock counts, so that all ranks stop at the same try. */
static double seconds_left(shrinker *s)
{
    enum { MAX_RANKS = 4096 };
    double left = s->seconds - (seconds_now() - s->started_s), all[MAX_RANKS];
    if (s->trial.comm == NULL)
        return left;
    if (s->trial.ranks > MAX_RANKS)
        return 0;
    if (s->meeting == CKV_OK)
        s->meeting = ckv_comm_all_gather(s->trial.comm, &left, sizeof left, all);
    return s->meeting == CKV_OK ? all[0] : 0;
}

/* A recorded output that no known mistake explains stays as it is, so its error must too. */
static bool is_same_error(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-3 * b;
}

static bool is_same(const shrinker *s, const failure *f)
{
    const failure *target = &s->target;
    if (f->kind != target->kind)
        return false;
    switch (f->kind) {
    case FAILURE_OUTPUT:
        return f->is_padding == target->is_padding && f->is_nan == target->is_nan;
    case FAILURE_EXPECTED:
        return s->copies_mistake ? f->is_known && strcmp(f->what, target->what) == 0
                                 : is_same_error(f->worst.error, target->worst.error);
    case FAILURE_STATUS:
        return f->status == target->status;
    case FAILURE_CRASH:
        return f->signal == target->signal;
    default:
        return false;
    }
}

static void take(shrinker *s, trace *small, const failure *f)
{
    trace_free(&s->best);
    s->best = small;
    s->found = *f;
    s->successes++;
}

/* Takes `small`. */
static bool attempt_trace(shrinker *s, trace *small, int ranks)
{
    double left = seconds_left(s);
    trial tried = s->trial;
    problem why;
    tried.ranks = ranks;
    tried.limit_s = fmin(tried.limit_s, left);
    s->is_late |= left <= 0;
    if (small == NULL || left <= 0) {
        trace_free(&small);
        return false;
    }
    s->tries++;
    failure f = trial_run(&tried, small);
    bool ok = is_same(s, &f) && (tried.like == NULL || tried.comm != NULL ||
                                 trial_imitate(&tried, small, &why) == CKV_OK); /* the try's was in its process */
    if (!ok) {
        trace_free(&small);
        return false;
    }
    s->trial.ranks = ranks;
    take(s, small, &f);
    return true;
}

static bool attempt(shrinker *s, reduction r)
{
    r.only_used_blocks |= s->only_used_blocks;
    if (s->target.kind != FAILURE_EXPECTED)
        r.expected = EXPECTED_NONE;
    return attempt_trace(s, reduce(s->best, &r), s->trial.ranks);
}

/* --- Lists: leave out neighbours, half of them first --- */

typedef struct list {
    size_t (*count)(const trace *t);
    void (*leave_out)(const trace *t, trace_range range, reduction *r);
} list;

static size_t count_ops(const trace *t)
{
    return t->num_ops;
}

static size_t count_layers(const trace *t)
{
    return (size_t)t->config.layers;
}

static size_t count_kv_heads(const trace *t)
{
    return (size_t)t->config.kv_heads;
}

static size_t count_group(const trace *t)
{
    return (size_t)(t->config.q_heads / t->config.kv_heads);
}

static void without_chunks(const trace *t, trace_range range, reduction *r)
{
    trace_range first = trace_chunk(t, range.first), last = trace_chunk(t, range.first + range.count - 1);
    r->ops = (trace_range){first.first, last.first + last.count - first.first};
}

static void without_ops(const trace *t, trace_range range, reduction *r)
{
    (void)t;
    r->ops = range;
}

static void without_layers(const trace *t, trace_range range, reduction *r)
{
    (void)t;
    r->layers = range;
}

static void without_kv_heads(const trace *t, trace_range range, reduction *r)
{
    (void)t;
    r->kv_heads = range;
}

static void without_group(const trace *t, trace_range range, reduction *r)
{
    (void)t;
    r->group = range;
}

static void shorten(shrinker *s, const list *of)
{
    for (size_t length = of->count(s->best) / 2; length > 0 && !s->is_late; length /= 2) {
        for (size_t first = 0; first + length <= of->count(s->best) && of->count(s->best) > length;) {
            reduction r = {.number = NUMBER_NONE};
            of->leave_out(s->best, (trace_range){first, length}, &r);
            if (!attempt(s, r))
                first += length;
        }
    }
}

/* --- Numbers: the least first, then halfway --- */

typedef struct number {
    int64_t (*get)(const shrinker *s, size_t item);
    bool (*attempt)(shrinker *s, size_t item, int64_t value);
    int64_t least;
} number;

static void lower(shrinker *s, const number *of, size_t item)
{
    int64_t now = of->get(s, item), failed = of->least - 1;
    for (int64_t step = 0; of->least + step < now && !s->is_late; step = 2 * step + 1) {
        if (of->attempt(s, item, of->least + step))
            break;
        failed = of->least + step;
    }
    now = of->get(s, item);
    while (now - failed > 1 && !s->is_late) {
        int64_t value = failed + (now - failed) / 2;
        if (of->attempt(s, item, value))
            now = value;
        else
            failed = value;
    }
}

static int64_t get_ranks(const shrinker *s, size_t item)
{
    (void)item;
    return s->trial.ranks;
}

static bool attempt_ranks(shrinker *s, size_t item, int64_t value)
{
    (void)item;
    reduction r = {.number = NUMBER_NONE};
    return attempt_trace(s, reduce(s->best, &r), (int)value);
}

static int64_t get_page(const shrinker *s, size_t item)
{
    (void)item;
    return s->best->config.tokens_per_page;
}

static bool attempt_page(shrinker *s, size_t item, int64_t value)
{
    (void)item;
    return (value & (value - 1)) == 0 && attempt(s, (reduction){.tokens_per_page = value});
}

static int64_t get_head_dim(const shrinker *s, size_t item)
{
    (void)item;
    return s->best->config.head_dim;
}

static bool attempt_head_dim(shrinker *s, size_t item, int64_t value)
{
    (void)item;
    return attempt(s, (reduction){.head_dim = value});
}

static int64_t get_any_tokens(const shrinker *s, size_t item)
{
    (void)item;
    return trace_most_tokens(s->best, (trace_range){0, s->best->num_ops});
}

static bool attempt_any_tokens(shrinker *s, size_t item, int64_t value)
{
    (void)item;
    return attempt(s, (reduction){.capped = {0, s->best->num_ops}, .cap_tokens = value});
}

static int64_t get_chunk_tokens(const shrinker *s, size_t item)
{
    return trace_most_tokens(s->best, trace_chunk(s->best, item));
}

static bool attempt_chunk_tokens(shrinker *s, size_t item, int64_t value)
{
    return attempt(s, (reduction){.capped = trace_chunk(s->best, item), .cap_tokens = value});
}

#define OP_NUMBER(name, kind)                                                                                          \
    static int64_t get_##name(const shrinker *s, size_t item)                                                          \
    {                                                                                                                  \
        return trace_get_number(&s->best->ops[item], kind);                                                            \
    }                                                                                                                  \
    static bool attempt_##name(shrinker *s, size_t item, int64_t value)                                                \
    {                                                                                                                  \
        return attempt(s, (reduction){.number = (kind), .number_op = item, .value = value});                           \
    }
OP_NUMBER(window, NUMBER_WINDOW)
OP_NUMBER(pin, NUMBER_PIN)
OP_NUMBER(staged, NUMBER_STAGED)
OP_NUMBER(start, NUMBER_START)
OP_NUMBER(op_tokens, NUMBER_TOKENS)
OP_NUMBER(padding, NUMBER_PADDING)
OP_NUMBER(blocks, NUMBER_BLOCKS)
#undef OP_NUMBER

/* --- The whole --- */

static void shorten_lists(shrinker *s)
{
    static const list lists[] = {
        {count_layers, without_layers},     {trace_chunks, without_chunks}, {count_ops, without_ops},
        {count_kv_heads, without_kv_heads}, {count_group, without_group},
    };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        shorten(s, &lists[i]);
}

static void lower_numbers(shrinker *s)
{
    static const number whole[] = {{get_ranks, attempt_ranks, 1},
                                   {get_any_tokens, attempt_any_tokens, 1},
                                   {get_page, attempt_page, 1},
                                   {get_head_dim, attempt_head_dim, 1}};
    static const number of_chunk = {get_chunk_tokens, attempt_chunk_tokens, 1};
    static const number of_op[] = {
        {get_window, attempt_window, 0}, {get_pin, attempt_pin, 0},         {get_staged, attempt_staged, 1},
        {get_blocks, attempt_blocks, 1}, {get_padding, attempt_padding, 0}, {get_op_tokens, attempt_op_tokens, 1},
        {get_start, attempt_start, 0},
    };
    for (size_t i = s->trial.comm != NULL ? 1 : 0; i < sizeof whole / sizeof whole[0]; i++)
        lower(s, &whole[i], 0);
    for (size_t i = 0; i < trace_chunks(s->best); i++)
        lower(s, &of_chunk, i);
    for (size_t i = 0; i < sizeof of_op / sizeof of_op[0]; i++)
        for (size_t op = 0; op < s->best->num_ops; op++)
            lower(s, &of_op[i], op);
}

static void say(shrinker *s, trace_size *before)
{
    trace_size after = shrink_size(s);
    if (memcmp(before, &after, sizeof after) != 0 && s->speaks) {
        printf("%4" PRId64 " tries: ", s->tries);
        shrink_print_change(stdout, before, &after);
        printf("\n");
        fflush(stdout);
    }
    *before = after;
}

/* Nothing behind the wrong forward matters to it, and no earlier output does. A known mistake is made again in every
 * smaller trace: what the model would have recorded there, nobody knows. */
static void begin(shrinker *s)
{
    size_t next = s->target.op + 1;
    reduction r = {.ops = {next, s->best->num_ops - next}, .expected = EXPECTED_LAST};
    if (s->target.kind == FAILURE_EXPECTED && s->target.is_known) {
        s->copies_mistake = true;
        s->trial.like = &s->target;
        if (attempt(s, r))
            return;
        s->copies_mistake = false;
        s->trial.like = NULL;
    }
    if (s->target.kind == FAILURE_EXPECTED || s->target.kind == FAILURE_OUTPUT)
        attempt(s, r);
}

void shrink_run(shrinker *s)
{
    trace_size before = shrink_size(s);
    s->found = s->target;
    s->started_s = seconds_now();
    begin(s);
    s->only_used_blocks = attempt(s, (reduction){.only_used_blocks = true});
    say(s, &before);
    int64_t successes;
    do {
        successes = s->successes;
        shorten_lists(s);
        say(s, &before);
        lower_numbers(s);
        say(s, &before);
    } while (s->successes > successes && !s->is_late);
    attempt(s, (reduction){.round_values = true});
    seconds_left(s); /* a rank may have gone in the last try */
}
