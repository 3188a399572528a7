/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists_run/plan.h"

#include "tools/common/text_map.h"
#include "tools/lists/durations.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct builder {
    arena *memory;
    diagnostics *log;
    const plan_input *input;
    const waiver *waivers;
    text_map planned; /* name to plan_case */
    plan *out;
    size_t capacity;
} builder;

/* --- Waivers --- */

static bool read_waivers(builder *build)
{
    const char *path = arena_format(build->memory, "%s/waives.txt", build->input->folder);
    struct stat info;
    if (stat(path, &info) != 0 && errno == ENOENT)
        return true;
    text_source source;
    if (!text_read(build->memory, build->log, path, TREE_MAX_BYTES, &source))
        return false;
    list_reader reader = {build->memory, build->log, false};
    build->waivers = waivers_read(&reader, &source);
    for (const waiver *one = build->waivers; one != NULL; one = one->next)
        if (one->until < build->input->today)
            diag_warning(build->log, &source, one->at, "the waiver of '%s' by %s expired on %s and no longer counts",
                         one->target, one->owner, one->until_text);
    return build->log->errors == 0;
}

static bool waives(const builder *build, const waiver *one, const char *name)
{
    bool names_it = name_is_glob(one->target) ? name_matches(one->target, name) : strcmp(one->target, name) == 0;
    return names_it && one->until >= build->input->today &&
           match_all(one->conditions, build->input->facts) == MATCH_YES;
}

static void expect(builder *build, plan_case *one)
{
    one->expected = one->entry->verdict;
    one->waived_by = one->expected != ENTRY_RUN ? (one->entry->reason != NULL ? one->entry->reason : "the list") : NULL;
    for (const waiver *waived = build->waivers; waived != NULL; waived = waived->next) {
        if (!waives(build, waived, one->name))
            continue;
        one->expected = waived->verdict;
        one->waived_by =
            arena_format(build->memory, "%s, until %s by %s", waived->reference, waived->until_text, waived->owner);
        return;
    }
}

/* --- Cases --- */

/* A seed of its own for each case: FNV-1a of the name, mixed as splitmix64 does. */
static uint64_t seed_of(uint64_t seed, const char *name)
{
    uint64_t mixed = UINT64_C(0xcbf29ce484222325) ^ seed;
    for (; *name != '\0'; name++)
        mixed = (mixed ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

static double duration_of(const fact_set *durations, const char *name)
{
    const char *text = facts_get(durations, name);
    return text != NULL ? strtod(text, NULL) : -1;
}

static void describe(builder *build, plan_case *one)
{
    void **test = text_map_at(build->memory, &build->input->tests->by_name, one->name);
    one->test = *test;
    one->expected_s = duration_of(build->input->durations, one->name);
    one->seed = seed_of(build->input->seed, one->name);
    one->reason = one->seed_used = one->gpus_used = "";
    expect(build, one);
    if (one->test == NULL)
        return;
    one->timeout_s = one->entry->timeout_minutes > 0 ? 60.0 * one->entry->timeout_minutes : one->test->timeout_s;
    if (one->entry->timeout_minutes > 0 && one->timeout_s == one->test->timeout_s)
        fprintf(build->log->stream, "note: TIMEOUT (%u) of '%s' is the deadline it has anyway\n",
                one->entry->timeout_minutes, one->name);
    one->request = (slot_request){
        .cpus = one->test->processors, .gpus = one->test->gpus, .alone = one->test->alone || one->entry->isolation};
}

static plan_case *append(builder *build)
{
    if (build->out->count == build->capacity) {
        build->capacity = build->capacity > 0 ? 2 * build->capacity : 256;
        plan_case *larger = arena_alloc(build->memory, build->capacity * sizeof *larger);
        if (build->out->count > 0)
            memcpy(larger, build->out->cases, build->out->count * sizeof *larger);
        build->out->cases = larger;
    }
    plan_case *one = &build->out->cases[build->out->count];
    *one = (plan_case){.order = build->out->count++};
    return one;
}

static void add_case(builder *build, const char *name, const list_entry *entry)
{
    void **place = text_map_at(build->memory, &build->planned, name);
    if (*place != NULL)
        return; /* an earlier entry names it too: it runs once */
    plan_case *one = append(build);
    *place = build; /* cases move while they grow in number: only presence counts */
    one->name = name;
    one->entry = entry;
    describe(build, one);
}

static void add_entry(builder *build, const list_entry *entry, const text_source *anywhere)
{
    name_search search = names_search(build->input->names, entry->target);
    test_name *found = entry->has_options ? NULL : names_next(&search);
    if (found == NULL && build->input->partial) {
        add_case(build, entry->text, entry);
        return;
    }
    if (found == NULL) {
        const char *near = entry->has_options ? NULL : names_suggest(build->memory, build->input->names, entry->target);
        diag_file(build->log, anywhere->name,
                  arena_format(build->memory, "no case of this build is called '%s'%s%s%s%s", entry->text,
                               entry->has_options ? "; options are pytest's" : "",
                               near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                               near != NULL ? "'?" : ""));
        return;
    }
    for (; found != NULL; found = names_next(&search))
        add_case(build, found->text, entry);
}

/* --- Narrowing by name --- */

static bool keeps(char *const *only, const char *name, bool *used)
{
    bool kept = only[0] == NULL;
    for (size_t i = 0; only[i] != NULL; i++) {
        if (!name_matches(only[i], name))
            continue;
        used[i] = true;
        kept = true;
    }
    return kept;
}

static bool narrow(builder *build)
{
    char *const *only = build->input->only;
    size_t names = 0, kept = 0;
    while (only[names] != NULL)
        names++;
    bool *used = arena_alloc(build->memory, names + 1);
    for (size_t i = 0; i < build->out->count; i++)
        if (keeps(only, build->out->cases[i].name, used))
            build->out->cases[kept++] = build->out->cases[i];
    build->out->count = kept;
    for (size_t i = 0; i < names; i++)
        if (!used[i])
            diag_file(build->log, only[i], "the list selects no case of this name here");
    return build->log->errors == 0;
}

bool plan_make(arena *memory, diagnostics *log, const plan_input *input, plan *plan_out)
{
    builder build = {.memory = memory, .log = log, .input = input, .out = plan_out};
    *plan_out = (plan){0};
    if (!read_waivers(&build))
        return false;
    for (size_t i = 0; i < input->selected->count; i++)
        add_entry(&build, input->selected->entries[i], input->names->source);
    return log->errors == 0 && narrow(&build);
}

/* --- Shards and order --- */

void plan_shard(arena *memory, plan *all, size_t shards, size_t shard, FILE *stream)
{
    shard_piece *pieces = arena_alloc(memory, all->count * sizeof *pieces);
    shard_load *loads = arena_alloc(memory, shards * sizeof *loads);
    size_t kept = 0;
    for (size_t i = 0; i < all->count; i++) /* what is not run takes no time */
        pieces[i] = (shard_piece){.order = i,
                                  .seconds = all->cases[i].test == NULL || all->cases[i].expected == ENTRY_SKIP
                                                 ? 0
                                                 : all->cases[i].expected_s};
    shard_split(pieces, all->count, loads, shards);
    for (size_t i = 0; i < all->count; i++)
        if (pieces[i].shard == shard)
            all->cases[kept++] = all->cases[i];
    all->count = kept;
    shard_print_plan(stream, loads, shards, shard, "cases");
}

/* Together first, then alone; the longest first; the order of the lists. */
static int by_length(const void *a, const void *b)
{
    const plan_case *one = *(plan_case *const *)a, *other = *(plan_case *const *)b;
    if (one->request.alone != other->request.alone)
        return one->request.alone ? 1 : -1;
    if (one->expected_s != other->expected_s)
        return one->expected_s < other->expected_s ? 1 : -1;
    return (one->order > other->order) - (one->order < other->order);
}

plan_case **plan_order(arena *memory, plan *all, bool shuffle, uint64_t seed)
{
    plan_case **order = arena_alloc(memory, (all->count + 1) * sizeof(plan_case *));
    for (size_t i = 0; i < all->count; i++)
        order[i] = &all->cases[i];
    if (!shuffle) {
        qsort(order, all->count, sizeof(plan_case *), by_length);
        return order;
    }
    for (size_t i = all->count; i > 1; i--) {
        size_t other = (size_t)(seed_of(seed + i, "order") % i);
        plan_case *moved = order[i - 1];
        order[i - 1] = order[other];
        order[other] = moved;
    }
    return order;
}
