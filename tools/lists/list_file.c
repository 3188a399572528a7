/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/list_file.h"

#include "tools/common/suggest.h"
#include "tools/lists/value.h"

#include <string.h>

#define LIST_VERSION "0.0.1"

static const char *const part_names[] = {"ranges", "wildcards", "terms", NULL};
static const char *const operator_names[] = {"gte", "lte", "gt", "lt", NULL};
static const char *const block_keys[] = {"condition", "tests", NULL};
static const char *const file_keys[] = {"version", NULL};

typedef struct walker {
    const list_reader *reader;
    const text_source *source;
} walker;

#define walk_error(walk, node, ...) diag_error((walk)->reader->log, (walk)->source, (node)->at, __VA_ARGS__)

const char *list_part_name(list_part part)
{
    return part_names[part];
}

const char *list_operator_name(list_operator op)
{
    return operator_names[op];
}

static int index_of(const char *word, const char *const *known)
{
    for (int i = 0; known[i] != NULL; i++)
        if (strcmp(word, known[i]) == 0)
            return i;
    return -1;
}

#define walk_soft_error(walk, node, ...)                                                                               \
    diag_report((walk)->reader->log, (walk)->reader->lenient ? DIAG_WARNING : DIAG_ERROR, (walk)->source, (node)->at,  \
                __VA_ARGS__)

static void unknown_key(const walker *walk, const tree_node *key, const char *place, const char *const *known)
{
    const char *near = suggest_from(key->text, known);
    walk_soft_error(walk, key, "unknown key '%s' %s%s%s%s", key->text, place, near != NULL ? "; did you mean '" : "",
                    near != NULL ? near : "", near != NULL ? "'?" : "");
}

/* A mapping, or nothing written, which counts as an empty one; `place` completes "... must be a mapping". */
static const tree_node *first_key(const walker *walk, const tree_node *node, const char *place)
{
    if (node->kind == TREE_MAPPING)
        return node->first;
    if (!node->is_null)
        walk_error(walk, node, "%s must be a mapping of keys", place);
    return NULL;
}

static bool is_value(const walker *walk, const tree_node *node, const char *key)
{
    if (node->kind == TREE_SCALAR && node->text[0] != '\0')
        return true;
    walk_error(walk, node, node->kind == TREE_SCALAR ? "'%s' has no value" : "'%s' must be a single value", key);
    return false;
}

static list_operand *add_operand(const walker *walk, list_operand ***tail, list_operator op, const char *text)
{
    list_operand *operand = arena_alloc(walk->reader->memory, sizeof *operand);
    operand->op = op;
    operand->text = text;
    **tail = operand;
    *tail = &operand->next;
    return operand;
}

static void read_bounds(const walker *walk, const tree_node *node, list_condition *condition)
{
    list_operand **tail = &condition->operands;
    for (const tree_node *key = first_key(walk, node, "a range"); key != NULL; key = key->next->next) {
        int op = index_of(key->text, operator_names);
        double number = 0;
        if (op < 0) {
            unknown_key(walk, key, "in a range (gte, lte, gt, lt)", operator_names);
        } else if (is_value(walk, key->next, key->text)) {
            if (value_number(key->next->text, &number))
                add_operand(walk, &tail, (list_operator)op, key->next->text)->number = number;
            else
                walk_error(walk, key->next, "'%s' must be a number, not '%s'", key->text, key->next->text);
        }
    }
    if (node->is_null || (node->kind == TREE_MAPPING && node->first == NULL))
        walk_error(walk, node, "the range '%s' has no bound (gte, lte, gt, lt)", condition->key);
}

static void read_globs(const walker *walk, const tree_node *node, list_condition *condition)
{
    list_operand **tail = &condition->operands;
    const tree_node *glob = node->kind == TREE_SEQUENCE ? node->first : node;
    if (glob == NULL)
        walk_error(walk, node, "the wildcard '%s' has no glob", condition->key);
    for (; glob != NULL; glob = node->kind == TREE_SEQUENCE ? glob->next : NULL)
        if (is_value(walk, glob, condition->key))
            add_operand(walk, &tail, LIST_GLOB, glob->text);
}

static list_condition *read_key(const walker *walk, list_part part, const tree_node *key)
{
    const tree_node *value = key->next;
    list_condition *condition = arena_alloc(walk->reader->memory, sizeof *condition);
    *condition = (list_condition){.part = part, .key = key->text, .at = key->at};
    list_operand **tail = &condition->operands;
    if (part == LIST_RANGES)
        read_bounds(walk, value, condition);
    else if (part == LIST_WILDCARDS)
        read_globs(walk, value, condition);
    else if (is_value(walk, value, key->text))
        add_operand(walk, &tail, LIST_EQUAL, value->text);
    return condition;
}

static list_condition *read_condition(const walker *walk, const tree_node *node)
{
    list_condition *first = NULL, **tail = &first;
    for (const tree_node *part = first_key(walk, node, "'condition'"); part != NULL; part = part->next->next) {
        int index = index_of(part->text, part_names);
        if (index < 0) {
            unknown_key(walk, part, "in a condition (ranges, wildcards, terms)", part_names);
            continue;
        }
        for (const tree_node *key = first_key(walk, part->next, part->text); key != NULL; key = key->next->next) {
            list_condition *condition = read_key(walk, (list_part)index, key);
            *tail = condition;
            tail = &condition->next;
        }
    }
    return first;
}

list_condition *list_read_condition(const list_reader *reader, const text_source *source, const tree_node *node)
{
    walker walk = {reader, source};
    return read_condition(&walk, node);
}

static list_entry *read_entry(const walker *walk, const tree_node *node)
{
    if (node->kind == TREE_MAPPING) {
        walk_error(walk, node, "': ' makes this entry a mapping; quote the whole entry");
        return NULL;
    }
    if (node->kind == TREE_SEQUENCE) {
        walk_error(walk, node, "an entry is one line of text, not a list; quote it when it starts with '['");
        return NULL;
    }
    list_entry *entry = arena_alloc(walk->reader->memory, sizeof *entry);
    entry_problem problem = {0, ""};
    if (!entry_parse(walk->reader->memory, node->text, entry, &problem)) {
        text_position at = node->at;
        if (node->text_column > 0)
            at.column = node->text_column + text_characters(node->text, problem.offset);
        diag_error(walk->reader->log, walk->source, at, "%s", problem.message);
        return NULL;
    }
    entry->at = node->at;
    return entry;
}

static void read_entries(const walker *walk, const tree_node *node, list_block *block)
{
    if (node->kind != TREE_SEQUENCE) {
        if (!node->is_null)
            walk_error(walk, node, "'tests' must be a list of entries");
        return;
    }
    list_entry **tail = &block->entries;
    for (const tree_node *item = node->first; item != NULL; item = item->next) {
        list_entry *entry = read_entry(walk, item);
        if (entry == NULL)
            continue;
        *tail = entry;
        tail = &entry->next;
    }
}

static list_block *read_block(const walker *walk, const tree_node *node)
{
    if (node->kind != TREE_MAPPING) {
        walk_error(walk, node, "a block must be a mapping with 'condition' and 'tests'");
        return NULL;
    }
    list_block *block = arena_alloc(walk->reader->memory, sizeof *block);
    block->source = walk->source;
    block->at = node->at;
    bool has_tests = false;
    for (const tree_node *key = node->first; key != NULL; key = key->next->next) {
        if (strcmp(key->text, "condition") == 0) {
            block->conditions = read_condition(walk, key->next);
        } else if (strcmp(key->text, "tests") == 0) {
            read_entries(walk, key->next, block);
            has_tests = true;
        } else {
            unknown_key(walk, key, "in a block (condition, tests)", block_keys);
        }
    }
    if (!has_tests)
        walk_soft_error(walk, node, "this block has no 'tests'");
    return block;
}

static list_context *find_or_add(const walker *walk, list_set *set, const char *name)
{
    for (list_context *context = set->contexts; context != NULL; context = context->next)
        if (strcmp(context->name, name) == 0)
            return context;
    list_context *context = arena_alloc(walk->reader->memory, sizeof *context);
    context->name = name;
    context->tail = &context->blocks;
    *(set->tail != NULL ? set->tail : &set->contexts) = context;
    set->tail = &context->next;
    return context;
}

static void read_context(const walker *walk, const tree_node *key, list_set *set)
{
    const tree_node *blocks = key->next;
    list_context *context = find_or_add(walk, set, key->text);
    if (blocks->kind != TREE_SEQUENCE && !blocks->is_null)
        walk_error(walk, blocks, "the context '%s' must be a list of blocks", key->text);
    if (blocks->kind != TREE_SEQUENCE)
        return;
    for (const tree_node *item = blocks->first; item != NULL; item = item->next) {
        list_block *block = read_block(walk, item);
        if (block == NULL)
            continue;
        *context->tail = block;
        context->tail = &block->next;
    }
}

static void read_version(const walker *walk, const tree_node *node)
{
    if (node->kind != TREE_SCALAR || strcmp(node->text, LIST_VERSION) != 0)
        walk_error(walk, node, "the version must be " LIST_VERSION);
}

void list_read(const list_reader *reader, const text_source *source, list_set *set)
{
    walker walk = {reader, source};
    const tree_node *root = tree_parse(reader->memory, reader->log, source, source->text, source->size, 1);
    if (root == NULL)
        return;
    if (root->kind != TREE_MAPPING) {
        walk_error(&walk, root, "a list file must be a mapping: 'version: " LIST_VERSION "' and contexts");
        return;
    }
    bool has_version = false;
    for (const tree_node *key = root->first; key != NULL; key = key->next->next) {
        if (strcmp(key->text, "version") == 0) {
            read_version(&walk, key->next);
            has_version = true;
        } else if (key->next->kind == TREE_SCALAR && !key->next->is_null) {
            unknown_key(&walk, key, "(a context is a list of blocks)", file_keys);
        } else {
            read_context(&walk, key, set);
        }
    }
    if (!has_version)
        diag_warning(reader->log, source, root->at, "'version: " LIST_VERSION "' is missing");
}

const list_context *list_find(const list_set *set, const char *name)
{
    for (const list_context *context = set->contexts; context != NULL; context = context->next)
        if (strcmp(context->name, name) == 0)
            return context;
    return NULL;
}
