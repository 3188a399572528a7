/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/yaml_tree.h"

#include <string.h>
#include <yaml.h>

typedef struct open_node {
    tree_node *node;
    tree_node **tail; /* where the next child goes */
    size_t children;
} open_node;

typedef struct tree_builder {
    arena *memory;
    diagnostics *log;
    const text_source *source;
    size_t first_line;
    const char *text; /* behind a byte order mark, as libyaml sees it */
    size_t size;
    tree_node *root;
    open_node open[TREE_MAX_DEPTH];
    size_t depth;
} tree_builder;

static text_position position(const tree_builder *builder, yaml_mark_t mark)
{
    return (text_position){builder->first_line + mark.line, mark.column + 1};
}

#define tree_error(builder, mark, ...)                                                                                 \
    diag_error((builder)->log, (builder)->source, position(builder, mark), __VA_ARGS__)

static bool in_key_place(const tree_builder *builder)
{
    const open_node *top = builder->depth > 0 ? &builder->open[builder->depth - 1] : NULL;
    return top != NULL && top->node->kind == TREE_MAPPING && top->children % 2 == 0;
}

static bool add_node(tree_builder *builder, const yaml_event_t *event, tree_node *node)
{
    if (node->kind != TREE_SCALAR && in_key_place(builder))
        return tree_error(builder, event->start_mark, "a key must be text; quote it when it starts with '[' or '{'");
    node->at = position(builder, event->start_mark);
    if (builder->depth == 0) {
        builder->root = node;
        return true;
    }
    open_node *top = &builder->open[builder->depth - 1];
    *top->tail = node;
    top->tail = &node->next;
    top->children++;
    if (top->node->kind == TREE_MAPPING && top->children / 2 > TREE_MAX_KEYS)
        return tree_error(builder, event->start_mark, "more than %d keys in one mapping", TREE_MAX_KEYS);
    return true;
}

static bool is_refused_control(unsigned char byte)
{
    return (byte < 0x20 && byte != '\t') || byte == 0x7F;
}

static bool add_scalar(tree_builder *builder, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    for (size_t i = 0; i < length; i++)
        if (is_refused_control((unsigned char)value[i]))
            return tree_error(builder, event->start_mark,
                              "a line break or control character (0x%02x) inside a text that must be one line",
                              (unsigned)(unsigned char)value[i]);
    bool is_plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    tree_node *node = arena_alloc(builder->memory, sizeof *node);
    node->kind = TREE_SCALAR;
    node->text = arena_copy(builder->memory, value, length);
    node->is_null = is_plain && length == 0;
    if (event->start_mark.line == event->end_mark.line)
        node->text_column = event->start_mark.column + 1 + (is_plain ? 0 : 1);
    return add_node(builder, event, node);
}

static bool open_collection(tree_builder *builder, const yaml_event_t *event, tree_kind kind)
{
    if (builder->depth == TREE_MAX_DEPTH)
        return tree_error(builder, event->start_mark, "nested deeper than %d", TREE_MAX_DEPTH);
    tree_node *node = arena_alloc(builder->memory, sizeof *node);
    node->kind = kind;
    if (!add_node(builder, event, node))
        return false;
    builder->open[builder->depth++] = (open_node){node, &node->first, 0};
    return true;
}

static void report_duplicate_keys(tree_builder *builder, const tree_node *mapping)
{
    for (const tree_node *key = mapping->first; key != NULL; key = key->next->next) {
        for (const tree_node *earlier = mapping->first; earlier != key; earlier = earlier->next->next) {
            if (strcmp(earlier->text, key->text) != 0)
                continue;
            diag_error(builder->log, builder->source, key->at, "duplicate key '%s'; it is already on line %zu",
                       key->text, earlier->at.line);
            diag_note(builder->log, builder->source, earlier->at, "the first '%s' is here", key->text);
            break;
        }
    }
}

static bool refuse_properties(tree_builder *builder, const yaml_event_t *event, const yaml_char_t *anchor,
                              const yaml_char_t *tag)
{
    if (anchor != NULL)
        return tree_error(builder, event->start_mark,
                          "anchors are not part of a list; quote text that starts with '&'");
    if (tag != NULL)
        return tree_error(builder, event->start_mark, "tags are not part of a list; quote text that starts with '!'");
    return true;
}

static bool take_event(tree_builder *builder, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        return tree_error(builder, event->start_mark,
                          "'*%s' is an alias to YAML; quote the glob: a text that starts with '*' needs quotes",
                          (const char *)event->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        return refuse_properties(builder, event, event->data.scalar.anchor, event->data.scalar.tag) &&
               add_scalar(builder, event);
    case YAML_SEQUENCE_START_EVENT:
        return refuse_properties(builder, event, event->data.sequence_start.anchor, event->data.sequence_start.tag) &&
               open_collection(builder, event, TREE_SEQUENCE);
    case YAML_MAPPING_START_EVENT:
        return refuse_properties(builder, event, event->data.mapping_start.anchor, event->data.mapping_start.tag) &&
               open_collection(builder, event, TREE_MAPPING);
    case YAML_SEQUENCE_END_EVENT:
        builder->depth--;
        return true;
    case YAML_MAPPING_END_EVENT:
        report_duplicate_keys(builder, builder->open[--builder->depth].node);
        return true;
    case YAML_DOCUMENT_START_EVENT:
        return builder->root == NULL || tree_error(builder, event->start_mark, "a second document; a file holds one");
    default:
        return true;
    }
}

/* libyaml's message, and what to do about the traps that lists run into. */
static void report_syntax(tree_builder *builder, const yaml_parser_t *parser)
{
    const char *problem = parser->problem != NULL ? parser->problem : "not YAML";
    if (parser->error == YAML_READER_ERROR) {
        text_source seen = {builder->source->name, builder->text, builder->size};
        text_position at = text_position_of(&seen, parser->problem_offset);
        at.line += builder->first_line - 1;
        diag_error(builder->log, builder->source, at, "not UTF-8 text: %s", problem);
        return;
    }
    if (parser->error == YAML_MEMORY_ERROR) {
        diag_error(builder->log, builder->source, ((text_position){builder->first_line, 1}), "out of memory");
        return;
    }
    yaml_mark_t mark = parser->problem_mark;
    const char *context = parser->context != NULL ? parser->context : "";
    if (strstr(context, "alias") != NULL) {
        tree_error(builder, parser->context_mark, "quote the glob: a text that starts with '*' needs quotes (%s %s)",
                   problem, context);
        return;
    }
    text_source seen = {builder->source->name, builder->text, builder->size};
    size_t offset = 0;
    for (size_t line = 0; offset < seen.size && line < mark.line; offset++)
        line += seen.text[offset] == '\n';
    bool is_tab = offset + mark.column < seen.size && seen.text[offset + mark.column] == '\t';
    tree_error(builder, mark, "%s%s%s%s", problem, context[0] != '\0' ? " " : "", context,
               is_tab ? "; a tab cannot indent, use spaces" : "");
}

static bool parse_events(tree_builder *builder, yaml_parser_t *parser)
{
    for (bool at_end = false; !at_end;) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event)) {
            report_syntax(builder, parser);
            return false;
        }
        at_end = event.type == YAML_STREAM_END_EVENT;
        bool ok = take_event(builder, &event);
        yaml_event_delete(&event);
        if (!ok)
            return false;
    }
    return true;
}

tree_node *tree_parse(arena *memory, diagnostics *log, const text_source *source, const char *text, size_t size,
                      size_t first_line)
{
    tree_builder builder = {.memory = memory, .log = log, .source = source, .first_line = first_line};
    text_position start = {first_line, 1};
    if (size > TREE_MAX_BYTES) {
        diag_error(log, source, start, "%zu bytes; a list has at most %d", size, TREE_MAX_BYTES);
        return NULL;
    }
    size_t mark = size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    builder.text = text + mark;
    builder.size = size - mark;

    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        diag_error(log, source, start, "out of memory");
        return NULL;
    }
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)builder.text, builder.size);
    bool parsed = parse_events(&builder, &parser);
    yaml_parser_delete(&parser);
    bool is_empty = builder.root == NULL || builder.root->is_null;
    if (parsed && is_empty)
        diag_error(log, source, start, "the file is empty; a list starts with 'version: 0.0.1'");
    return parsed && !is_empty ? builder.root : NULL;
}
