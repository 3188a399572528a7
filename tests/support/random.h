/* SPDX-License-Identifier: Apache-2.0 */
/* A small seeded generator (splitmix64), so that a printed seed replays a property test anywhere. */
#ifndef CKV_TESTS_SUPPORT_RANDOM_H
#define CKV_TESTS_SUPPORT_RANDOM_H

#include <stdint.h>

typedef struct ckv_random {
    uint64_t state;
} ckv_random;

static inline uint64_t ckv_random_next(ckv_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* An integer in [minimum, maximum]. */
static inline int64_t ckv_random_range(ckv_random *random, int64_t minimum, int64_t maximum)
{
    return minimum + (int64_t)(ckv_random_next(random) % (uint64_t)(maximum - minimum + 1));
}

/* A float in [-1, 1). */
static inline float ckv_random_float(ckv_random *random)
{
    return (float)(int64_t)(ckv_random_next(random) >> 40) * 0x1p-23f - 1.0f;
}

#endif
