/* SPDX-License-Identifier: Apache-2.0 */
/* A YAML text as a plain tree with positions. Scalars stay text: `no`, `010` and `1e3` mean what the reader of the tree
 * decides. Refused, each with its place: anchors, aliases and tags (no list has them, and without aliases a tree is
 * never larger than its text), control characters in a scalar, keys that are not text, the same key twice, a second
 * document, and what is beyond the limits below. */
#ifndef CKV_LISTS_YAML_TREE_H
#define CKV_LISTS_YAML_TREE_H

#include "tools/lists/diag.h"

enum {
    TREE_MAX_DEPTH = 24, /* a list needs 7 */
    TREE_MAX_KEYS = 1024,
    TREE_MAX_BYTES = 4 * 1024 * 1024,
};

typedef enum tree_kind { TREE_SCALAR, TREE_SEQUENCE, TREE_MAPPING } tree_kind;

typedef struct tree_node {
    tree_kind kind;
    text_position at;
    const char *text;        /* of a scalar */
    size_t text_column;      /* column of text[0]; 0 when it stands on several lines */
    bool is_null;            /* nothing was written */
    struct tree_node *first; /* items of a sequence; key, value, key, value... of a mapping */
    struct tree_node *next;
} tree_node;

/* NULL when it cannot be read at all; smaller faults are counted in log->errors. `text` (of `size` bytes) is what is
 * parsed and begins on line `first_line` of `source`, which is only named and quoted. */
tree_node *tree_parse(arena *memory, diagnostics *log, const text_source *source, const char *text, size_t size,
                      size_t first_line);

#endif
