/* SPDX-License-Identifier: Apache-2.0 */
/* A geometry of one's own, as JSON; and one made small enough for a host. */
#ifndef CKV_TOOLS_BENCH_GEOMETRY_FILE_H
#define CKV_TOOLS_BENCH_GEOMETRY_FILE_H

#include "tools/common/geometries.h"
#include "tools/trace/problem.h"

/* One object with q_heads, kv_heads, head_dim, layers, frame_tokens, chunk_frames, window_frames and, unless they are
 * to be 0, pin_tokens, denoising_forwards, clean_in_frames (1: the clean forward is causal from frame to frame). The
 * geometry's name is `path`, which must outlive it. */
bool geometry_read_file(const char *path, model_geometry *geometry_out, problem *why);

/* Fewer heads and layers and a shorter window until a forward of one layer is at most `operations`, as far as that is
 * possible: a chunk stays as long as it is. */
void geometry_scale(model_geometry *geometry, double operations);

/* 4 operations for every query, key it sees and channel, when a chunk is one block and the window is full. */
double geometry_forward_operations(const model_geometry *geometry);

#endif
