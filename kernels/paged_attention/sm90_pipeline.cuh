/* SPDX-License-Identifier: Apache-2.0 */
/* How K and V come to where the matrix products of the sm90 kernel read them: the layout of its shared memory, rings of
 * stages, the warp that copies and those that widen codes. */
#ifndef CKV_KERNELS_PAGED_ATTENTION_SM90_PIPELINE_CUH
#define CKV_KERNELS_PAGED_ATTENTION_SM90_PIPELINE_CUH

#include "kernels/common/launch.cuh"
#include "kernels/paged_attention/codes.cuh"
#include "kernels/paged_attention/sm90.cuh"

namespace ckv
{
namespace sm90
{

enum {
    CONSUMERS = 2,
    WARPGROUP = 128,
    THREADS = (1 + CONSUMERS) * WARPGROUP,
    WARPGROUP_ROWS = TILE_ROWS / CONSUMERS,
    KEYS = 128,
    STAGES = 2,
    BOX = CKV_PAGED_ATTENTION_BOX_TOKENS,
    BOXES = KEYS / BOX,
    ROW_BYTES = 2 * CKV_PAGED_ATTENTION_BOX_ELEMENTS, /* one row of the swizzle */
    WIDENERS = WARPGROUP / WARP - 1,
    CODE_STAGES = 4,         /* of K or V */
    PRODUCER_REGISTERS = 40, /* of a thread of the first warpgroup; of the others. They must not add up to more than the
                                launch has got, 168 for each: who asks for more waits for ever */
    CONSUMER_REGISTERS = 232,
};

/* Named barriers; 0 is __syncthreads. */
enum { TURN = 1, GROUP = TURN + CONSUMERS };

/* Shared memory, from an address that is a multiple of 1024. Q of a warpgroup, K and V of a stage: chunks of 64
 * dimensions, each [rows][128 bytes]. A stage of codes: [KEYS][DIM]. */
template <int DIM, bool CODES> struct memory {
    static constexpr int CHUNKS = DIM / CKV_PAGED_ATTENTION_BOX_ELEMENTS;
    static constexpr int Q_CHUNK = WARPGROUP_ROWS * ROW_BYTES, TILE_CHUNK = KEYS * ROW_BYTES;
    static constexpr int TILE = CHUNKS * TILE_CHUNK;
    static constexpr int K = CONSUMERS * CHUNKS * Q_CHUNK, V = K + STAGES * TILE, CODE = V + STAGES * TILE;
    static constexpr int CODE_TILE = KEYS * DIM, BARRIERS = CODE + (CODES ? CODE_STAGES * CODE_TILE : 0);
    static constexpr int FACTORS = BARRIERS + (4 * STAGES + (CODES ? 2 * CODE_STAGES : 0)) * 8; /* of rows of Q */
    static constexpr int OFFSETS = FACTORS + (CODES ? TILE_ROWS * 4 : 0);
    static constexpr int BYTES = OFFSETS + (MAX_REMAINDER + 1) * 4 + 1024; /* and what aligning takes */
};

struct arguments {
    ckv_paged_attention_params call;
    ckv_paged_attention_sm90 own;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Barriers of a ring of stages: full when the tile is there, empty when every warp that reads it has let go. */
template <int COUNT> struct ring {
    uint32_t full, empty; /* shared addresses of [COUNT] */
    uint32_t count;       /* tiles so far, by this thread */

    __device__ __forceinline__ void init(uint32_t writers, uint32_t readers) const
    {
        for (int stage = 0; stage < COUNT; stage++) {
            barrier_init(full + 8 * stage, writers);
            barrier_init(empty + 8 * stage, readers);
        }
    }
    __device__ __forceinline__ uint32_t stage() const
    {
        return count % COUNT;
    }
    __device__ __forceinline__ uint32_t parity() const
    {
        return count / COUNT % 2;
    }
    __device__ __forceinline__ void wait_full() const
    {
        barrier_wait(full + 8 * stage(), parity());
    }
    __device__ __forceinline__ void wait_empty() const
    {
        barrier_wait(empty + 8 * stage(), parity() ^ 1);
    }
    /* Of a warp that is done with the tile. */
    __device__ __forceinline__ void release()
    {
        if (threadIdx.x % WARP == 0)
            barrier_arrive(empty + 8 * stage());
        count++;
    }
    /* Of a warp that has written its part of the tile with ordinary stores. */
    __device__ __forceinline__ void hand_over()
    {
        async_fence();
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            barrier_arrive(full + 8 * stage());
        count++;
    }
};

/* All rings of a thread block. */
struct rings {
    ring<STAGES> k, v;
    ring<CODE_STAGES> codes; /* K and V in turns */

    __device__ __forceinline__ explicit rings(uint32_t barriers)
        : k{barriers, barriers + 8 * STAGES, 0}, v{barriers + 16 * STAGES, barriers + 24 * STAGES, 0},
          codes{barriers + 32 * STAGES, barriers + 32 * STAGES + 8 * CODE_STAGES, 0}
    {
    }
};

/* The producer warp: lane n copies the n-th box of every tile. Boxes past the end are outside the map and come as
 * zeros. */
template <int DIM, bool CODES> struct producer {
    using mem = memory<DIM, CODES>;
    const arguments &a;
    uint32_t base;
    rings tiles;

    /* Plane of the lane's box of K; `slot` is its first token there. */
    __device__ __forceinline__ int plane_of(const attention_tile &tile, const int32_t *row, int key, int *slot) const
    {
        *slot = key & (a.call.tokens_per_page - 1);
        if (key >= tile.keys)
            return a.own.planes;
        const int page = row[key / a.call.tokens_per_page];
        return a.own.first_plane + page * a.own.page_planes + tile.kv_head;
    }

    /* A tile of `bytes` becomes part of the ring; copy(stage, full) issues the copies of a lane that has a box. */
    template <int COUNT, typename COPY>
    __device__ __forceinline__ void fill(ring<COUNT> &ring, int bytes, int lane, const COPY &copy)
    {
        ring.wait_empty();
        const uint32_t full = ring.full + 8 * ring.stage();
        if (lane == 0)
            barrier_expect(full, bytes);
        __syncwarp();
        if (lane < BOXES)
            copy(ring.stage(), full);
        ring.count++;
    }

    __device__ __forceinline__ void copy(ring<STAGES> &ring, int offset, int lane, int slot, int plane)
    {
        if constexpr (CODES)
            fill(tiles.codes, mem::CODE_TILE, lane, [&](uint32_t stage, uint32_t full) {
                copy_box(&a.own.pool, base + mem::CODE + stage * mem::CODE_TILE + lane * BOX * DIM, full, 0, slot,
                         plane);
            });
        else
            fill(ring, mem::TILE, lane, [&](uint32_t stage, uint32_t full) {
                for (int chunk = 0; chunk < mem::CHUNKS; chunk++)
                    copy_box(&a.own.pool,
                             base + offset + stage * mem::TILE + chunk * mem::TILE_CHUNK + lane * BOX * ROW_BYTES, full,
                             chunk * CKV_PAGED_ATTENTION_BOX_ELEMENTS, slot, plane);
            });
    }

    __device__ __forceinline__ void run(const attention_schedule &schedule, int lane)
    {
        attention_cursor cursor = cursor_begin();
        attention_segment segment;
        while (next_segment<KEYS>(a.call, schedule, gridDim.x, blockIdx.x, &cursor, &segment)) {
            const int32_t *row = a.call.rows + static_cast<int64_t>(segment.tile.block) * a.call.row_pages;
            const int box = (lane < BOXES ? lane : 0) * BOX;
            int slot, plane = plane_of(segment.tile, row, (segment.end - 1) * KEYS + box, &slot);
            copy(tiles.k, mem::K, lane, slot, plane);
            for (int tile = segment.end - 1; tile > segment.begin; tile--) { /* K of the next before V of this one */
                int next_slot, next = plane_of(segment.tile, row, (tile - 1) * KEYS + box, &next_slot);
                copy(tiles.k, mem::K, lane, next_slot, next);
                copy(tiles.v, mem::V, lane, slot, plane + a.own.kv_planes);
                slot = next_slot;
                plane = next;
            }
            copy(tiles.v, mem::V, lane, slot, plane + a.own.kv_planes);
        }
    }
};

/* The warps that turn codes into tiles of fp16, in the producer's order. A warp takes every WIDENERS-th group of eight
 * keys; a lane reads eight codes at a time and writes them as one vector, both without bank conflicts. */
template <int DIM> struct widener {
    using mem = memory<DIM, true>;
    static constexpr int GROUP_KEYS = 8, VECTORS = DIM / 8, LOADS = GROUP_KEYS * VECTORS / WARP;
    const char *codes; /* of stage 0, this lane's first */
    char *tile[LOADS]; /* where this lane's vectors go, from the first group of a tile at address `tiles` on */
    rings all;

    __device__ __forceinline__ widener(char *bytes, const rings &tiles, int lane)
        : codes(bytes + mem::CODE + lane * 8), all(tiles)
    {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int at = i * WARP + lane, row = at / VECTORS, vector = at % VECTORS;
            tile[i] = bytes + vector / 8 * mem::TILE_CHUNK + row * ROW_BYTES + (vector ^ row) % 8 * 16;
        }
    }

    /* Keys from `keys` on become zero: 0 * NaN is NaN. */
    template <bool ENDS>
    __device__ __forceinline__ void widen_groups(const char *from, int to, int warp, int lane, int keys) const
    {
#pragma unroll 2
        for (int group = warp; group < KEYS / GROUP_KEYS; group += WIDENERS) {
            uint2 narrow[LOADS];
#pragma unroll
            for (int i = 0; i < LOADS; i++)
                narrow[i] = *reinterpret_cast<const uint2 *>(from + group * GROUP_KEYS * DIM + i * WARP * 8);
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                if (ENDS && group * GROUP_KEYS + (i * WARP + lane) / VECTORS >= keys)
                    narrow[i] = uint2{};
                *reinterpret_cast<uint4 *>(tile[i] + to + group * GROUP_KEYS * ROW_BYTES) = widen<__half>(narrow[i]);
            }
        }
    }

    __device__ __forceinline__ void next(ring<STAGES> &tiles, int offset, int warp, int lane, int keys)
    {
        all.codes.wait_full();
        tiles.wait_empty();
        const char *from = codes + all.codes.stage() * mem::CODE_TILE;
        const int to = offset + static_cast<int>(tiles.stage()) * mem::TILE;
        if (keys < KEYS)
            widen_groups<true>(from, to, warp, lane, keys);
        else
            widen_groups<false>(from, to, warp, lane, keys);
        tiles.hand_over();
        all.codes.release();
    }

    __device__ __forceinline__ void run(const arguments &a, const attention_schedule &schedule, int warp, int lane)
    {
        attention_cursor cursor = cursor_begin();
        attention_segment segment;
        while (next_segment<KEYS>(a.call, schedule, gridDim.x, blockIdx.x, &cursor, &segment)) {
            int keys = segment.tile.keys - (segment.end - 1) * KEYS; /* of V's next tile */
            next(all.k, mem::K, warp, lane, KEYS);
            for (int tile = segment.end - 1; tile > segment.begin; tile--) {
                next(all.k, mem::K, warp, lane, KEYS);
                next(all.v, mem::V, warp, lane, keys);
                keys = KEYS;
            }
            next(all.v, mem::V, warp, lane, keys);
        }
    }
};

#endif

} // namespace sm90
} // namespace ckv

#endif
