/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/demo/model.h"

#include <stdlib.h>

/* splitmix64's finaliser: every input bit reaches every output bit. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void demo_model_fill(int tensor, int64_t layer, int64_t step, int64_t first_token, int64_t tokens, int64_t heads,
                     int64_t head_dim, ckv_dtype dtype, void *out)
{
    enum { CHUNK = 256 };
    const float sqrt_3 = 1.7320508f; /* uniform in [-sqrt 3, sqrt 3) has variance 1 */
    const size_t element = ckv_dtype_bytes(dtype);
    const int64_t width = heads * head_dim;
    float values[CHUNK];
    uint64_t stream =
        mix(mix((uint64_t)tensor + 1) ^ mix((uint64_t)layer + 0x1000) ^ mix((uint64_t)step + 0x100000000));
    for (int64_t token = 0; token < tokens; token++) {
        uint64_t state = mix(stream ^ mix((uint64_t)(first_token + token) + 0x9e3779b97f4a7c15u));
        for (int64_t at = 0; at < width; at += CHUNK) {
            int64_t count = width - at < CHUNK ? width - at : CHUNK;
            for (int64_t i = 0; i < count; i++)
                values[i] = ((float)(mix(state += 0x9e3779b97f4a7c15u) >> 40) * 0x1p-23f - 1.0f) * sqrt_3;
            ckv_convert_from_float(dtype, values, (size_t)count, (char *)out + (size_t)(token * width + at) * element);
        }
    }
}
