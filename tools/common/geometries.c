/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/geometries.h"

#include <stdio.h>
#include <string.h>

/* A window given as "N frames in all" counts the chunk itself (and the sink): what is left for history is N minus
 * those. */
static const model_geometry geometries[] = {
    {.name = "cosmos3-nano",
     .source =
         "NVIDIA TensorRT-LLM VisualGen, causal K/V cache benchmark: 512 prompt tokens, 96 frames of 394, chunks of 4",
     .q_heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .layers = 36,
     .frame_tokens = 394,
     .first_chunk_frames = 1,
     .chunk_frames = 4,
     .pin_tokens = 512,
     .pin_is_prompt = 1,
     .window_frames = 96,
     .denoising_forwards = 4,
     .clean_in_frames = 1},
    {.name = "self-forcing",
     .source = "Self-Forcing, Wan 2.1 T2V 1.3B at 480 x 832: 21 frames of 1560 in all, chunks of 3",
     .q_heads = 12,
     .kv_heads = 12,
     .head_dim = 128,
     .layers = 30,
     .frame_tokens = 1560,
     .first_chunk_frames = 3,
     .chunk_frames = 3,
     .window_frames = 18,
     .denoising_forwards = 4},
    {.name = "self-forcing-first-frame",
     .source = "Self-Forcing with an independent first frame: 1 frame, then chunks of 4; 21 frames in all",
     .q_heads = 12,
     .kv_heads = 12,
     .head_dim = 128,
     .layers = 30,
     .frame_tokens = 1560,
     .first_chunk_frames = 1,
     .chunk_frames = 4,
     .window_frames = 17,
     .denoising_forwards = 4},
    {.name = "longlive",
     .source = "LongLive, Wan 2.1 1.3B: sink of 3 frames, 12 frames in all, chunks of 3",
     .q_heads = 12,
     .kv_heads = 12,
     .head_dim = 128,
     .layers = 30,
     .frame_tokens = 1560,
     .first_chunk_frames = 1,
     .chunk_frames = 3,
     .pin_tokens = 4680,
     .window_frames = 6,
     .denoising_forwards = 4},
    {.name = "krea-14b",
     .source = "Krea realtime, Wan 2.1 14B: 21 frames of 1560 in all, chunks of 3",
     .q_heads = 40,
     .kv_heads = 40,
     .head_dim = 128,
     .layers = 40,
     .frame_tokens = 1560,
     .first_chunk_frames = 3,
     .chunk_frames = 3,
     .window_frames = 18,
     .denoising_forwards = 4},
};

enum { NUM_GEOMETRIES = sizeof geometries / sizeof geometries[0] };

const model_geometry *geometry_find(const char *name)
{
    for (size_t i = 0; i < NUM_GEOMETRIES; i++)
        if (strcmp(name, geometries[i].name) == 0)
            return &geometries[i];
    return NULL;
}

const char *geometry_names(void)
{
    static char names[256];
    size_t used = 0;
    for (size_t i = 0; i < NUM_GEOMETRIES; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", geometries[i].name);
    return names;
}

int64_t geometry_chunk_tokens(const model_geometry *geometry)
{
    int64_t frames =
        geometry->chunk_frames > geometry->first_chunk_frames ? geometry->chunk_frames : geometry->first_chunk_frames;
    return frames * geometry->frame_tokens;
}
