/* SPDX-License-Identifier: Apache-2.0 */
/* Random scripts of block-manager operations, run on the manager and on the slow one side by side. An operation draws
 * everything it needs from its own seed, so that a script stays valid when operations are taken out of it. */
#ifndef CKV_TESTS_SUPPORT_BLOCKS_SCRIPT_H
#define CKV_TESTS_SUPPORT_BLOCKS_SCRIPT_H

#include "tests/support/blocks_model.h"
#include "tests/support/random.h"

#include <stddef.h>

enum { SCRIPT_MOST_OPS = 400 };

#define SCRIPT_OP_LIST(X)                                                                                              \
    X(ADD, 10)                                                                                                         \
    X(PREFILL, 10)                                                                                                     \
    X(APPEND, 12)                                                                                                      \
    X(REWIND, 7)                                                                                                       \
    X(STORE, 10)                                                                                                       \
    X(REMOVE, 6)                                                                                                       \
    X(PIN, 1)                                                                                                          \
    X(UNPIN, 3)                                                                                                        \
    X(FIND, 3)                                                                                                         \
    X(TRUNCATE, 1)                                                                                                     \
    X(PRIVATE, 2)                                                                                                      \
    X(MOVE, 4)                                                                                                         \
    X(REFRESH, 3)                                                                                                      \
    X(CARRY, 2)                                                                                                        \
    X(ASK, 4)                                                                                                          \
    X(DRY_RUN, 2)                                                                                                      \
    X(ITERATE, 1)                                                                                                      \
    X(MISUSE, 2)

typedef enum script_op_kind {
#define SCRIPT_OP_ENUM(name, weight) SCRIPT_##name,
    SCRIPT_OP_LIST(SCRIPT_OP_ENUM)
#undef SCRIPT_OP_ENUM
        SCRIPT_NUM_KINDS
} script_op_kind;

typedef struct script_op {
    script_op_kind kind;
    uint64_t seed;
} script_op;

typedef struct script {
    uint64_t seed; /* of the configuration */
    int num_ops;
    script_op ops[SCRIPT_MOST_OPS];
} script;

script script_make(uint64_t seed, int num_ops);

/* Run it; true when both managers agree all the way. Otherwise `message` says after which operation they do not. */
bool script_run(const script *s, char *message, size_t message_bytes);

/* The shortest script found that still fails, with its message. */
script script_shrink(const script *failing, char *message, size_t message_bytes);

const char *script_op_name(script_op_kind kind);

#endif
