/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/geometry_file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HEADS = 4096, MAX_DIM = 4096, MAX_LAYERS = 4096, MAX_FRAMES = 1 << 16, MAX_TOKENS = 1 << 22 };

static bool check_range(const char *path, const char *field, json_int_t value, int64_t least, int64_t most,
                        problem *why)
{
    if (value >= least && value <= most)
        return true;
    return problem_set(why, "%s: %s is %" JSON_INTEGER_FORMAT "; it must be %" PRId64 " to %" PRId64, path, field,
                       value, least, most);
}

static bool check(const char *path, const model_geometry *g, problem *why)
{
    const struct {
        const char *field;
        int64_t value, least, most;
    } ranges[] = {
        {"q_heads", g->q_heads, 1, MAX_HEADS},
        {"kv_heads", g->kv_heads, 1, MAX_HEADS},
        {"head_dim", g->head_dim, 1, MAX_DIM},
        {"layers", g->layers, 1, MAX_LAYERS},
        {"frame_tokens", g->frame_tokens, 1, MAX_TOKENS},
        {"chunk_frames", g->chunk_frames, 1, MAX_FRAMES},
        {"window_frames", g->window_frames, 1, MAX_FRAMES},
        {"pin_tokens", g->pin_tokens, 0, MAX_TOKENS},
        {"denoising_forwards", g->denoising_forwards, 0, MAX_FRAMES},
        {"clean_in_frames", g->clean_in_frames, 0, 1},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (!check_range(path, ranges[i].field, ranges[i].value, ranges[i].least, ranges[i].most, why))
            return false;
    if (g->q_heads % g->kv_heads != 0)
        return problem_set(why, "%s: q_heads %" PRId64 " is no multiple of kv_heads %" PRId64, path, g->q_heads,
                           g->kv_heads);
    return true;
}

/* Every rank reads it, which a pipe or a device does not bear. */
static bool is_readable(const char *path, problem *why)
{
    struct stat info;
    if (stat(path, &info) != 0 || access(path, R_OK) != 0)
        return problem_set(why, "%s: %s", path, strerror(errno));
    return S_ISREG(info.st_mode) || problem_set(why, "%s: not a regular file", path);
}

bool geometry_read_file(const char *path, model_geometry *geometry_out, problem *why)
{
    json_error_t error;
    if (!is_readable(path, why))
        return false;
    json_t *object = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL)
        return problem_set(why, "%s:%d: %s", path, error.line, error.text);
    json_int_t q_heads, kv_heads, head_dim, layers, frame, chunk, window, pin = 0, denoising = 0, clean = 0;
    int read = json_unpack_ex(object, &error, 0, "{sI sI sI sI sI sI sI s?I s?I s?I !}", "q_heads", &q_heads,
                              "kv_heads", &kv_heads, "head_dim", &head_dim, "layers", &layers, "frame_tokens", &frame,
                              "chunk_frames", &chunk, "window_frames", &window, "pin_tokens", &pin,
                              "denoising_forwards", &denoising, "clean_in_frames", &clean);
    json_decref(object);
    if (read != 0)
        return problem_set(why, "%s: %s", path, error.text);
    model_geometry geometry = {.name = path,
                               .source = path,
                               .q_heads = q_heads,
                               .kv_heads = kv_heads,
                               .head_dim = head_dim,
                               .layers = layers,
                               .frame_tokens = frame,
                               .first_chunk_frames = chunk,
                               .chunk_frames = chunk,
                               .pin_tokens = pin,
                               .window_frames = window,
                               .denoising_forwards = denoising,
                               .clean_in_frames = clean};
    if (!check(path, &geometry, why))
        return false;
    *geometry_out = geometry;
    return true;
}

double geometry_forward_operations(const model_geometry *geometry)
{
    int64_t chunk = geometry->chunk_frames * geometry->frame_tokens;
    int64_t keys = geometry->pin_tokens + geometry->window_frames * geometry->frame_tokens + chunk;
    return 4.0 * (double)chunk * (double)keys * (double)(geometry->q_heads * geometry->head_dim);
}

void geometry_scale(model_geometry *geometry, double operations)
{
    if (geometry_forward_operations(geometry) <= operations)
        return;
    geometry->layers = geometry->layers < 2 ? geometry->layers : 2;
    geometry->q_heads /= geometry->kv_heads;
    geometry->kv_heads = 1;
    while (geometry_forward_operations(geometry) > operations && geometry->window_frames > 1)
        geometry->window_frames /= 2;
}
