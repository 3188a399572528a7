/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the host backend: some queries against one tile of keys, softmax online over the tiles.
 * Floats in panels; it knows nothing of pages, dtypes or the cache. */
#ifndef CKV_ATTENTION_HOST_TILE_H
#define CKV_ATTENTION_HOST_TILE_H

#include <stdint.h>

enum {
    CKV_HOST_TILE_PANEL = 16,    /* keys, or channels, side by side: two 256-bit registers */
    CKV_HOST_TILE_ROWS = 6,      /* queries that share a load of a panel: 6 x 2 accumulators fit 16 registers */
    CKV_HOST_TILE_GROUP = 24,    /* queries whose scores are held at a time; a multiple of ROWS */
    CKV_HOST_TILE_KEYS = 128,    /* a multiple of PANEL */
    CKV_HOST_TILE_QUERIES = 768, /* queries per pass over the keys; a multiple of ROWS */
    CKV_HOST_TILE_ALIGNMENT = 64 /* bytes; of every array */
};

typedef struct ckv_host_tile {
    int64_t head_dim;
    int64_t padded_dim;  /* head_dim rounded up to PANEL */
    int64_t num_queries; /* a multiple of ROWS; surplus queries hold anything and yield nothing */
    int64_t num_keys;    /* 1..KEYS */
    float *queries;      /* [num_queries, head_dim], scaled */
    float *keys;         /* [KEYS / PANEL, head_dim, PANEL]; keys at and past num_keys are computed with and dropped */
    float *values;       /* [padded_dim / PANEL, KEYS, PANEL]; keys at and past num_keys are not read */
    float *scores;       /* [GROUP, KEYS], scratch */
    float *out;          /* [num_queries, padded_dim]: sum of exp(score - max) * value; start with 0 */
    float *max, *sum;    /* [num_queries]: largest score and sum of exp(score - max); start with -inf and 0 */
} ckv_host_tile;

/* Add the tile's keys to every query. A query without a score above -inf keeps max -inf and sum 0; a NaN score makes
 * the query's sum and result NaN. */
void ckv_host_tile_attend(const ckv_host_tile *tile);

#endif
