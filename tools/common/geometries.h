/* SPDX-License-Identifier: Apache-2.0 */
/* Published geometries of real autoregressive video models. */
#ifndef CKV_TOOLS_GEOMETRIES_H
#define CKV_TOOLS_GEOMETRIES_H

#include <stddef.h>
#include <stdint.h>

typedef struct model_geometry {
    const char *name;
    const char *source; /* where the figures were published */
    int64_t q_heads, kv_heads, head_dim, layers;
    int64_t frame_tokens;
    int64_t first_chunk_frames; /* frames of the first chunk */
    int64_t chunk_frames;       /* frames of every later chunk */
    int64_t pin_tokens;         /* prompt or sink */
    int64_t pin_is_prompt;      /* 1: written before the first chunk; 0: the first committed frames are pinned */
    int64_t window_frames;      /* history a block sees before its own tokens */
    int64_t denoising_forwards; /* of one chunk, before its clean forward */
    int64_t clean_in_frames;    /* 1: the clean forward is causal from frame to frame; 0: one block */
} model_geometry;

/* NULL for an unknown name. */
const model_geometry *geometry_find(const char *name);

/* All names, separated by ", ". Static storage. */
const char *geometry_names(void);

/* Tokens of the longest chunk: max_staged_tokens. */
int64_t geometry_chunk_tokens(const model_geometry *geometry);

#endif
