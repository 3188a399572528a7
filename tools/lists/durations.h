/* SPDX-License-Identifier: Apache-2.0 */
/* How long tests took, and a split of work by it. */
#ifndef CKV_LISTS_DURATIONS_H
#define CKV_LISTS_DURATIONS_H

#include "tools/lists/entry.h"
#include "tools/lists/facts.h"

/* The class of hardware that durations were measured on, as a file name: "h200x8", "cpu-x86_64". */
const char *durations_class(arena *memory, const fact_set *facts);

/* The file of durations that `path` names: itself, or in a folder the one of this class; NULL when the folder has none
 * yet. */
const char *durations_file(arena *memory, const char *path, const fact_set *facts);

/* A JSON object from an entry or a test to its seconds. False after a message. */
bool durations_read(arena *memory, diagnostics *log, const char *path, fact_set *durations_out);

/* Seconds of the entry itself, otherwise of the tests that it names; negative when nothing is known. */
double durations_of_entry(const fact_set *durations, const list_entry *entry);

/* A piece of work, for a split. */
typedef struct shard_piece {
    double seconds; /* negative: unknown, counts as the average of those that are known */
    size_t order;   /* different for each; decides between equals */
    size_t shard;   /* where it went, from 0 */
} shard_piece;

typedef struct shard_load {
    double seconds;
    size_t pieces;
} shard_load;

/* The longest piece first, each to the shard with the least to do. Deterministic, so that the shards of one selection,
 * computed on as many machines, are disjoint and complete. `loads` has one for each shard, and pieces end in the order
 * of `order`. */
void shard_split(shard_piece *pieces, size_t count, shard_load *loads, size_t shards);

/* The plan, one line a shard, with a star at `chosen`. */
void shard_print_plan(FILE *stream, const shard_load *loads, size_t shards, size_t chosen, const char *pieces_name);

#endif
