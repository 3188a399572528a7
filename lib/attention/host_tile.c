/* SPDX-License-Identifier: Apache-2.0 */
/* Written once with the compilers' vector extension, for 256-bit vectors with AVX2 and FMA where the processor has them
 * and for 128-bit vectors everywhere; the build lets multiply-adds of this file fuse. */
#include "lib/attention/host_tile.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)

enum { PANEL = CKV_HOST_TILE_PANEL, ROWS = CKV_HOST_TILE_ROWS, KEYS = CKV_HOST_TILE_KEYS };

#define LANES 4
#define NAMED(name) name##_128
#include "lib/attention/host_tile_lanes.h"
#undef LANES
#undef NAMED

#if defined(__x86_64__)
#define LANES 8
#define NAMED(name) name##_256
#include "lib/attention/host_tile_lanes.h"
#undef LANES
#undef NAMED

__attribute__((target("avx2,fma"))) static void attend_avx2(const ckv_host_tile *tile)
{
    attend_256(tile);
}
#endif

void ckv_host_tile_attend(const ckv_host_tile *tile)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        attend_avx2(tile);
        return;
    }
#endif
    attend_128(tile);
}
