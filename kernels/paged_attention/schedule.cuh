/* SPDX-License-Identifier: Apache-2.0 */
/* Who attends what. Work is a list of tiles (K/V head, causal block, a tile of packed query rows), heads outermost, so
 * that thread blocks that run together read the same keys. Each of the G thread blocks takes every G-th tile while
 * there are whole rounds of them; the keys of the tiles that remain are laid end to end and cut into G equal shares. A
 * tile that a cut goes through is merged from its pieces afterwards, in the order of its keys. Lengths are on the
 * device, so every thread block finds its own share. */
#ifndef CKV_KERNELS_PAGED_ATTENTION_SCHEDULE_CUH
#define CKV_KERNELS_PAGED_ATTENTION_SCHEDULE_CUH

extern "C" {
#include "kernels/paged_attention/paged_attention.h"
}

namespace ckv
{

enum { TILE_ROWS = 128, MAX_REMAINDER = CKV_PAGED_ATTENTION_MAX_MULTIPROCESSORS };

/* A tile of packed rows: those of the causal block from first_row on. */
struct attention_tile {
    int kv_head, block, first_row;
    int keys;
};

/* Keys of one tile, in tiles of keys. */
struct attention_segment {
    attention_tile tile;
    int begin, end; /* key tiles */
    int slot;       /* of the workspace, -1: the segment is the whole tile */
};

struct attention_schedule {
    int row_tiles;      /* of a causal block of one head */
    int rounds;         /* tiles each thread block takes whole */
    int remainder;      /* tiles that are shared */
    int shares;         /* thread blocks that share them: all, or one a key tile */
    const int *offsets; /* [remainder + 1], shared memory: key tiles before each shared tile */
};

__host__ __device__ inline int ceil_div_int(int a, int b)
{
    return (a + b - 1) / b;
}

/* Packed rows of one causal block of one K/V head. */
__host__ __device__ inline int packed_rows(const ckv_paged_attention_params &params)
{
    return params.block_size * (params.q_heads / params.kv_heads);
}

__host__ __device__ inline int count_tiles(const ckv_paged_attention_params &params)
{
    return params.kv_heads * params.num_blocks * ceil_div_int(packed_rows(params), TILE_ROWS);
}

__device__ inline attention_tile tile_of(const ckv_paged_attention_params &params, int row_tiles, int index)
{
    attention_tile tile;
    const int block = index / row_tiles;
    tile.first_row = (index - block * row_tiles) * TILE_ROWS;
    tile.kv_head = block / params.num_blocks;
    tile.block = block - tile.kv_head * params.num_blocks;
    tile.keys = params.seq_len_kv[tile.block];
    return tile;
}

/* By all threads of a block, at least a warp of them; `offsets` has MAX_REMAINDER + 1 entries of shared memory. */
template <int KEYS>
__device__ inline attention_schedule make_schedule(const ckv_paged_attention_params &params, int workers, int *offsets)
{
    attention_schedule schedule;
    const int tiles = count_tiles(params);
    schedule.row_tiles = ceil_div_int(packed_rows(params), TILE_ROWS);
    schedule.rounds = tiles / workers;
    schedule.remainder = tiles - schedule.rounds * workers;
    schedule.offsets = offsets;
    for (int i = threadIdx.x; i < schedule.remainder; i += blockDim.x)
        offsets[i + 1] = ceil_div_int(tile_of(params, schedule.row_tiles, schedule.rounds * workers + i).keys, KEYS);
    __syncthreads();
    if (threadIdx.x < 32) { /* running sums */
        int before = 0;
        for (int first = 0; first < schedule.remainder; first += 32) {
            const int i = first + static_cast<int>(threadIdx.x);
            int sum = i < schedule.remainder ? offsets[i + 1] : 0;
            for (int step = 1; step < 32; step *= 2) {
                const int left = __shfl_up_sync(0xffffffff, sum, step);
                sum += static_cast<int>(threadIdx.x) >= step ? left : 0;
            }
            if (i < schedule.remainder)
                offsets[i + 1] = before + sum;
            before += __shfl_sync(0xffffffff, sum, 31);
        }
        if (threadIdx.x == 0)
            offsets[0] = 0;
    }
    __syncthreads();
    schedule.shares = schedule.remainder == 0 ? 0 : min(workers, offsets[schedule.remainder]);
    return schedule;
}

/* Where a share begins, in key tiles of the remainder. Share n is worker n's. */
__device__ inline int share_begin(const attention_schedule &schedule, int share)
{
    return static_cast<int>(static_cast<int64_t>(schedule.offsets[schedule.remainder]) * share / schedule.shares);
}

/* The share that holds a key tile of the remainder. */
__device__ inline int share_of(const attention_schedule &schedule, int key_tile)
{
    return static_cast<int>((static_cast<int64_t>(key_tile + 1) * schedule.shares - 1) /
                            schedule.offsets[schedule.remainder]);
}

/* The workspace has two slots for a share: only its first piece can begin inside a tile, only its last can
 * end inside one that it begins. */
__device__ inline int piece_slot(int share, bool begins_inside)
{
    return 2 * share + (begins_inside ? 0 : 1);
}

/* Walks the segments of a worker. */
struct attention_cursor {
    int round;
    int shared;  /* the next shared tile; -1 before the first */
    int at, end; /* in the worker's share, key tiles of the remainder */
};

__device__ inline attention_cursor cursor_begin()
{
    attention_cursor cursor;
    cursor.round = 0;
    cursor.shared = -1;
    cursor.at = cursor.end = 0;
    return cursor;
}

template <int KEYS>
__device__ inline bool next_segment(const ckv_paged_attention_params &params, const attention_schedule &schedule,
                                    int workers, int worker, attention_cursor *cursor, attention_segment *segment)
{
    if (cursor->round < schedule.rounds) {
        segment->tile = tile_of(params, schedule.row_tiles, cursor->round++ * workers + worker);
        segment->begin = 0;
        segment->end = ceil_div_int(segment->tile.keys, KEYS);
        segment->slot = -1;
        return true;
    }
    if (worker >= schedule.shares)
        return false;
    if (cursor->shared < 0) {
        cursor->at = share_begin(schedule, worker);
        cursor->end = share_begin(schedule, worker + 1);
        int low = 0, high = schedule.remainder; /* offsets[low] <= at < offsets[high] */
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (schedule.offsets[middle] <= cursor->at)
                low = middle;
            else
                high = middle;
        }
        cursor->shared = low;
    }
    if (cursor->at >= cursor->end)
        return false;
    const int tile_begin = schedule.offsets[cursor->shared], tile_end = schedule.offsets[cursor->shared + 1];
    const int stop = cursor->end < tile_end ? cursor->end : tile_end;
    segment->tile = tile_of(params, schedule.row_tiles, schedule.rounds * workers + cursor->shared);
    segment->begin = cursor->at - tile_begin;
    segment->end = stop - tile_begin;
    const bool whole = cursor->at == tile_begin && stop == tile_end;
    segment->slot = whole ? -1 : piece_slot(worker, cursor->at > tile_begin);
    cursor->at = stop;
    cursor->shared++;
    return true;
}

} // namespace ckv

#endif
