/* SPDX-License-Identifier: Apache-2.0 */
/* Test lists in memory: contexts of blocks, each with a condition and its entries. The grammar is TensorRT-LLM's:
 *
 *     version: 0.0.1
 *     <context>:
 *     - condition:
 *         ranges:    {<key>: {gte|lte|gt|lt: number, ...}}
 *         wildcards: {<key>: glob | [glob, ...]}
 *         terms:     {<key>: value}
 *       tests: [entry, ...]
 */
#ifndef CKV_LISTS_LIST_FILE_H
#define CKV_LISTS_LIST_FILE_H

#include "tools/lists/entry.h"
#include "tools/lists/yaml_tree.h"

typedef enum list_operator { LIST_GTE, LIST_LTE, LIST_GT, LIST_LT, LIST_GLOB, LIST_EQUAL } list_operator;

typedef struct list_operand {
    list_operator op;
    const char *text;
    double number; /* of a bound */
    struct list_operand *next;
} list_operand;

typedef enum list_part { LIST_RANGES, LIST_WILDCARDS, LIST_TERMS } list_part;

/* One key of a condition. All bounds of a range must hold; one glob of a wildcard is enough; a term has one value. */
typedef struct list_condition {
    list_part part;
    const char *key;
    list_operand *operands;
    text_position at;
    struct list_condition *next;
} list_condition;

typedef struct list_block {
    const text_source *source;
    text_position at;
    list_condition *conditions; /* all must hold; in the order written */
    list_entry *entries;
    struct list_block *next;
} list_block;

typedef struct list_context {
    const char *name;
    list_block *blocks; /* in the order of files and lines */
    list_block **tail;
    struct list_context *next;
} list_context;

/* Starts as zeroes. */
typedef struct list_set {
    list_context *contexts;
    list_context **tail;
} list_set;

typedef struct list_reader {
    arena *memory;
    diagnostics *log;
    bool lenient; /* unknown keys are warnings */
} list_reader;

/* Add what `source` holds. Faults are counted in reader->log; what could be read is added all the same. */
void list_read(const list_reader *reader, const text_source *source, list_set *set);

/* Every .yml and .yaml file of a folder, in name order. False when the folder cannot be read or has none. */
bool list_read_folder(const list_reader *reader, const char *folder, list_set *set);

const list_context *list_find(const list_set *set, const char *name);

/* The value of a `condition` key. */
list_condition *list_read_condition(const list_reader *reader, const text_source *source, const tree_node *node);

const char *list_part_name(list_part part);
const char *list_operator_name(list_operator op);

#endif
