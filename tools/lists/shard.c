/* SPDX-License-Identifier: Apache-2.0 */
/* ckv lists shard: the longest entry first, each to the shard with the least to do. Deterministic, so that the N shards
 * of one selection, computed on N machines, are disjoint and complete. */
#include "tools/lists/names.h"
#include "tools/lists/options.h"
#include "tools/lists/selection.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DURATIONS_MAX_BYTES = 64 * 1024 * 1024, MAX_SHARDS = 4096 };

typedef struct shard_options {
    lists_options shared;
    int64_t shards;
    int64_t shard;
    const char *durations_file;
} shard_options;

typedef struct piece {
    const list_entry *entry;
    size_t order;
    double seconds;
    size_t shard; /* from 0 */
} piece;

static const struct argp_option shard_option_table[] = {
    {"shards", 'N', "N", 0, "How many shards there are", 0},
    {"shard", 'I', "I", 0, "Which one to print, from 1", 0},
    {"durations", 'D', "FILE", 0, "Seconds of past runs: a JSON object from an entry or a test to its seconds", 0},
    {0},
};

static error_t parse_shard(int key, char *argument, struct argp_state *state)
{
    shard_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->shared;
        return 0;
    case 'N':
        return cli_parse_integer("--shards", argument, 1, MAX_SHARDS, &options->shards);
    case 'I':
        return cli_parse_integer("--shard", argument, 1, MAX_SHARDS, &options->shard);
    case 'D':
        options->durations_file = argument;
        return 0;
    case ARGP_KEY_END:
        if (options->shards == 0 || options->shard == 0)
            return cli_usage_error("--shards N and --shard I are needed");
        if (options->shard > options->shards)
            return cli_usage_error("--shard is %lld; there are %lld shards", (long long)options->shard,
                                   (long long)options->shards);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child shared_child[] = {{&lists_options_argp, 0, NULL, 0}, {0}};

static const struct argp shard_argp = {
    .options = shard_option_table,
    .parser = parse_shard,
    .children = shared_child,
    .doc = "Split what 'ckv lists select' prints into N shards of about the same duration, and print shard I. The "
           "shards are "
           "disjoint, and together they are the selection; the plan goes to standard error."
           "\vAn entry without a duration counts as the average of those that have one. A suite's duration is the sum "
           "of its "
           "tests'.\n\nExample:\n"
           "  ckv lists shard --shards 4 --shard 1 --context l0_cpu -D seconds.json\n",
};

static bool read_durations(arena *memory, diagnostics *log, const char *path, fact_set *durations)
{
    text_source source;
    if (!text_read(memory, log, path, DURATIONS_MAX_BYTES, &source) ||
        !facts_read_json(memory, log, &source, durations))
        return false;
    for (const fact *one = durations->first; one != NULL; one = one->next) {
        char *end = NULL;
        double seconds = one->text != NULL ? strtod(one->text, &end) : -1;
        if (end != NULL && *end == '\0' && end != one->text && seconds >= 0 && isfinite(seconds))
            continue;
        return diag_error(log, &source, facts_position(memory, &source, one->key),
                          "the duration of '%s' is '%s'; it must be seconds, 0 or more", one->key,
                          one->text != NULL ? one->text : "null");
    }
    return true;
}

/* Seconds of the entry itself, otherwise of the tests that it names; negative when nothing is known. */
static double known_seconds(const list_entry *entry, const fact_set *durations)
{
    const char *own = facts_get(durations, entry->text);
    if (own != NULL)
        return strtod(own, NULL);
    double sum = -1;
    for (const fact *one = durations->first; one != NULL && !entry->has_options; one = one->next)
        if (name_matches(entry->target, one->key))
            sum = (sum < 0 ? 0 : sum) + strtod(one->text, NULL);
    return sum;
}

static void measure(piece *pieces, size_t count, const fact_set *durations)
{
    double sum = 0;
    size_t known = 0;
    for (size_t i = 0; i < count; i++) {
        pieces[i].seconds = known_seconds(pieces[i].entry, durations);
        sum += pieces[i].seconds >= 0 ? pieces[i].seconds : 0;
        known += pieces[i].seconds >= 0;
    }
    for (size_t i = 0; i < count; i++)
        if (pieces[i].seconds < 0)
            pieces[i].seconds = known > 0 ? sum / (double)known : 1;
}

static int longest_first(const void *a, const void *b)
{
    const piece *one = a, *other = b;
    if (one->seconds != other->seconds)
        return one->seconds < other->seconds ? 1 : -1;
    return (one->order > other->order) - (one->order < other->order);
}

static int in_order(const void *a, const void *b)
{
    const piece *one = a, *other = b;
    return (one->order > other->order) - (one->order < other->order);
}

/* Equal loads: the shard with fewer entries, so that entries of 0 seconds spread too. */
static size_t least_loaded(const double *load, const size_t *entries, size_t shards)
{
    size_t least = 0;
    for (size_t i = 1; i < shards; i++)
        if (load[i] < load[least] || (load[i] == load[least] && entries[i] < entries[least]))
            least = i;
    return least;
}

static void print_shard(arena *memory, const selection *chosen, const fact_set *durations, size_t shards, size_t shard)
{
    piece *pieces = arena_alloc(memory, chosen->count * sizeof *pieces);
    double *load = arena_alloc(memory, shards * sizeof *load);
    size_t *entries = arena_alloc(memory, shards * sizeof *entries);
    for (size_t i = 0; i < chosen->count; i++)
        pieces[i] = (piece){.entry = chosen->entries[i], .order = i};
    measure(pieces, chosen->count, durations);
    qsort(pieces, chosen->count, sizeof *pieces, longest_first);
    for (size_t i = 0; i < chosen->count; i++) {
        size_t least = least_loaded(load, entries, shards);
        pieces[i].shard = least;
        load[least] += pieces[i].seconds;
        entries[least]++;
    }
    qsort(pieces, chosen->count, sizeof *pieces, in_order);
    for (size_t i = 0; i < chosen->count; i++)
        if (pieces[i].shard == shard)
            puts(pieces[i].entry->text);
    for (size_t i = 0; i < shards; i++)
        fprintf(stderr, "%s shard %zu of %zu: %zu of %zu entries, %.0f s\n", i == shard ? "*" : " ", i + 1, shards,
                entries[i], chosen->count, load[i]);
}

int lists_shard(int argc, char **argv)
{
    shard_options options = {0};
    diagnostics log = {.stream = stderr};
    fact_set durations = {NULL};
    lists_job job;
    arena *memory = &options.shared.memory;
    int code = cli_parse(&shard_argp, argc, argv, &options);
    if (code == CLI_OK)
        code = lists_load(argv[0], &options.shared, &job);
    if (code == CLI_OK && options.durations_file != NULL &&
        !read_durations(memory, &log, options.durations_file, &durations))
        code = CLI_USAGE;
    if (code == CLI_OK) {
        selection chosen = select_entries(memory, &log, job.context, &job.facts, options.shared.lenient);
        print_shard(memory, &chosen, &durations, (size_t)options.shards, (size_t)options.shard - 1);
        code = lists_finish(argv[0]);
    }
    arena_free(memory);
    return code;
}
