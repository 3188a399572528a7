/* SPDX-License-Identifier: Apache-2.0 */
/* Three warpgroups of a thread block: one warp of the first copies K and V, the other two attend 64 packed rows each.
 *
 * Keys come in tiles of KEYS, the row's last tile first, so that only a segment's first tile can hold keys past the
 * end. Every warpgroup has two products in flight, the scores of the next tile and the values of this one; named
 * barriers let the two warpgroups issue them in turns, so that one's softmax runs while the tensor cores work for the
 * other. */
#include "kernels/common/launch.cuh"
#include "kernels/paged_attention/fragment.cuh"
#include "kernels/paged_attention/sm90.cuh"

namespace
{

using namespace ckv;

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
    PRODUCER_REGISTERS = 40,
    CONSUMER_REGISTERS = 232,
};

/* Named barriers; 0 is __syncthreads. */
enum { TURN = 1, GROUP = TURN + CONSUMERS };

/* Shared memory, from an address that is a multiple of 1024. Q of a warpgroup, K and V of a stage: chunks of 64
 * dimensions, each [rows][128 bytes]. */
template <int DIM> struct memory {
    static constexpr int CHUNKS = DIM / CKV_PAGED_ATTENTION_BOX_ELEMENTS;
    static constexpr int Q_CHUNK = WARPGROUP_ROWS * ROW_BYTES, TILE_CHUNK = KEYS * ROW_BYTES;
    static constexpr int TILE = CHUNKS * TILE_CHUNK;
    static constexpr int K = CONSUMERS * CHUNKS * Q_CHUNK, V = K + STAGES * TILE, BARRIERS = V + STAGES * TILE;
    static constexpr int OFFSETS = BARRIERS + 4 * STAGES * 8;
    static constexpr int BYTES = OFFSETS + (MAX_REMAINDER + 1) * 4 + 1024; /* and what aligning takes */
};

struct arguments {
    ckv_paged_attention_params call;
    ckv_paged_attention_sm90 own;
};

/* Workspace: [2 * workers] pieces of [2 warpgroups][DIM / 8][128 threads] float4, then [2 * workers][TILE_ROWS] float2
 * of maximum (of the scaled scores, in powers of two) and sum. */
template <int DIM> __device__ inline float4 *piece_values(const arguments &a, int slot, int warpgroup, int chunk)
{
    return static_cast<float4 *>(a.own.workspace) +
           ((static_cast<int64_t>(slot) * CONSUMERS + warpgroup) * (DIM / 8) + chunk) * WARPGROUP;
}

template <int DIM> __device__ inline float2 *piece_sums(const arguments &a, int slot)
{
    float4 *end = piece_values<DIM>(a, 2 * a.own.multiprocessors, 0, 0);
    return reinterpret_cast<float2 *>(end) + static_cast<int64_t>(slot) * TILE_ROWS;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Barriers of a ring of stages: full when the copy has landed, empty when every consumer warp has let go. */
struct ring {
    uint32_t full, empty; /* shared addresses of [STAGES] */
    uint32_t count;       /* tiles so far, by this thread */

    __device__ __forceinline__ uint32_t stage() const
    {
        return count % STAGES;
    }
    __device__ __forceinline__ uint32_t parity() const
    {
        return count / STAGES % 2;
    }
    __device__ __forceinline__ void wait_full() const
    {
        sm90::barrier_wait(full + 8 * stage(), parity());
    }
    __device__ __forceinline__ void wait_empty() const
    {
        sm90::barrier_wait(empty + 8 * stage(), parity() ^ 1);
    }
    /* Of a consumer warp, which is done with the tile. */
    __device__ __forceinline__ void release()
    {
        if (threadIdx.x % WARP == 0)
            sm90::barrier_arrive(empty + 8 * stage());
        count++;
    }
};

/* The producer warp: lane n copies the n-th box of every tile. Boxes past the end are outside the map and come as
 * zeros. */
template <int DIM> struct producer {
    using mem = memory<DIM>;
    const arguments &a;
    uint32_t base;
    ring k, v;

    /* Plane of the lane's box of K; `slot` is its first token there. */
    __device__ __forceinline__ int plane_of(const attention_tile &tile, const int32_t *row, int key, int *slot) const
    {
        *slot = key & (a.call.tokens_per_page - 1);
        if (key >= tile.keys)
            return a.own.planes;
        const int page = row[key / a.call.tokens_per_page];
        return a.own.first_plane + page * a.own.page_planes + tile.kv_head;
    }

    __device__ __forceinline__ void copy(ring &tiles, uint32_t memory, int lane, int slot, int plane)
    {
        tiles.wait_empty();
        const uint32_t full = tiles.full + 8 * tiles.stage();
        if (lane == 0)
            sm90::barrier_expect(full, mem::TILE);
        __syncwarp();
        if (lane < BOXES)
            for (int chunk = 0; chunk < mem::CHUNKS; chunk++)
                sm90::copy_box(&a.own.pool,
                               memory + tiles.stage() * mem::TILE + chunk * mem::TILE_CHUNK + lane * BOX * ROW_BYTES,
                               full, chunk * CKV_PAGED_ATTENTION_BOX_ELEMENTS, slot, plane);
        tiles.count++;
    }

    __device__ __forceinline__ void run(const attention_schedule &schedule, int lane)
    {
        attention_cursor cursor = cursor_begin();
        attention_segment segment;
        while (next_segment<KEYS>(a.call, schedule, gridDim.x, blockIdx.x, &cursor, &segment)) {
            const int32_t *row = a.call.rows + static_cast<int64_t>(segment.tile.block) * a.call.row_pages;
            const int box = (lane < BOXES ? lane : 0) * BOX;
            int slot, plane = plane_of(segment.tile, row, (segment.end - 1) * KEYS + box, &slot);
            copy(k, base + mem::K, lane, slot, plane);
            for (int tile = segment.end - 1; tile > segment.begin; tile--) { /* K of the next before V of this one */
                int next_slot, next = plane_of(segment.tile, row, (tile - 1) * KEYS + box, &next_slot);
                copy(k, base + mem::K, lane, next_slot, next);
                copy(v, base + mem::V, lane, slot, plane + a.own.kv_planes);
                slot = next_slot;
                plane = next;
            }
            copy(v, base + mem::V, lane, slot, plane + a.own.kv_planes);
        }
    }
};

template <typename T, int DIM> struct consumer {
    using mem = memory<DIM>;
    const arguments &a;
    uint32_t base;
    char *bytes; /* at base */
    int warpgroup, thread;
    ring k, v;
    uint32_t queries, keys, values; /* descriptors; of stage 0 */
    float scale_log2;
    fragment<T, KEYS, DIM> f;

    /* 64 rows of Q; rows the block does not have are zero. */
    __device__ __forceinline__ void load_queries(const attention_tile &tile)
    {
        constexpr int VECTORS = DIM / 8, LOADS = WARPGROUP_ROWS * VECTORS / WARPGROUP;
        uint4 loaded[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int at = thread + i * WARPGROUP, row = tile.first_row + warpgroup * WARPGROUP_ROWS + at / VECTORS;
            loaded[i] = uint4{};
            if (row < packed_rows(a.call))
                loaded[i] = __ldg(reinterpret_cast<const uint4 *>(query_row<T>(a.call, place_of(a.call, tile, row)) +
                                                                  at % VECTORS * 8));
        }
        sm90::named_sync(GROUP + warpgroup, WARPGROUP); /* nobody still multiplies the queries before */
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int at = thread + i * WARPGROUP, row = at / VECTORS, vector = at % VECTORS;
            const int chunk = (warpgroup * mem::CHUNKS + vector / 8) * mem::Q_CHUNK;
            *reinterpret_cast<uint4 *>(bytes + chunk + row * ROW_BYTES + (vector ^ row) % 8 * 16) = loaded[i];
        }
        sm90::async_fence();
        sm90::named_sync(GROUP + warpgroup, WARPGROUP);
    }

    __device__ __forceinline__ void multiply_keys(uint32_t stage)
    {
        const uint32_t key = keys + stage * (mem::TILE >> 4);
        sm90::scores<T, 0>(f.scores, queries, key);
#pragma unroll
        for (int i = 1; i < DIM / 16; i++) {
            const int chunk = i / 4, step = i % 4 * 32;
            sm90::scores<T, 1>(f.scores, queries + ((chunk * mem::Q_CHUNK + step) >> 4),
                               key + ((chunk * mem::TILE_CHUNK + step) >> 4));
        }
        sm90::matrix_commit();
    }

    __device__ __forceinline__ void multiply_values(uint32_t stage)
    {
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++)
            sm90::values<T>(f.values, f.weights + 4 * i, values + ((stage * mem::TILE + i * 16 * ROW_BYTES) >> 4));
        sm90::matrix_commit();
    }

    /* 0 * NaN is NaN: V past the end becomes zero up to where the copies did not write it as such. Both warpgroups do
     * it, each before its own product. */
    __device__ __forceinline__ void clear_values(int keys)
    {
        const int vectors = ((keys + BOX - 1) / BOX * BOX - keys) * (ROW_BYTES / 16);
        char *tile = bytes + mem::V + v.stage() * mem::TILE + keys * ROW_BYTES;
        for (int i = thread; i < mem::CHUNKS * vectors; i += WARPGROUP)
            *reinterpret_cast<uint4 *>(tile + i / vectors * mem::TILE_CHUNK + i % vectors * 16) = uint4{};
        sm90::async_fence();
        sm90::named_sync(GROUP + warpgroup, WARPGROUP);
    }

    /* A branch that is never taken, which the compiler does not know: `computed` is there before it. Without it ptxas
     * (13.0) waits for the values before any of the softmax, which is there to run beside their product. */
    __device__ __forceinline__ void keep_order(float computed)
    {
        if (a.call.num_blocks == 0)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(base), "f"(computed) : "memory");
    }

    __device__ __forceinline__ void first_tile(const attention_segment &segment)
    {
        f.clear();
        k.wait_full();
        sm90::matrix_fence();
        multiply_keys(k.stage());
        sm90::matrix_wait<0>();
        sm90::pin(f.scores);
        k.release();
        const int count = segment.tile.keys - (segment.end - 1) * KEYS;
        if (count < KEYS)
            f.mask(thread, count);
        if (count < KEYS && count % BOX != 0) {
            v.wait_full();
            clear_values(count);
        }
        f.softmax(scale_log2);
    }

    /* STAGE: of K. V is a tile behind. */
    template <int STAGE> __device__ __forceinline__ void next_tile()
    {
        k.wait_full();
        v.wait_full();
        sm90::named_sync(TURN + warpgroup, CONSUMERS * WARPGROUP);
        sm90::matrix_fence();
        multiply_keys(STAGE);
        multiply_values((STAGE + STAGES - 1) % STAGES);
        sm90::named_arrive(TURN + 1 - warpgroup, CONSUMERS * WARPGROUP);
        sm90::matrix_wait<1>();
        sm90::pin(f.scores);
        k.release();
        const float offset0 = f.take_maximum(0, scale_log2), offset1 = f.take_maximum(1, scale_log2);
        f.weigh(0, scale_log2, offset0);
        keep_order(f.sum[0] + offset1);
        sm90::matrix_wait<0>();
        sm90::pin(f.values);
        v.release();
        f.round_weights(0);
        f.weigh(1, scale_log2, offset1);
        f.round_weights(1);
        f.rescale();
    }

    __device__ __forceinline__ void last_values()
    {
        v.wait_full();
        sm90::matrix_fence();
        multiply_values(v.stage());
        sm90::matrix_wait<0>();
        sm90::pin(f.values);
        v.release();
        f.finish();
    }

    __device__ __forceinline__ void store_piece(int slot)
    {
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
            piece_values<DIM>(a, slot, warpgroup, i)[thread] =
                make_float4(f.values[4 * i], f.values[4 * i + 1], f.values[4 * i + 2], f.values[4 * i + 3]);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (thread % 4 == 0)
                piece_sums<DIM>(a, slot)[warpgroup * WARPGROUP_ROWS + fragment_row(thread) + 8 * r] =
                    make_float2(f.maximum[r] * scale_log2, f.sum[r]);
    }

    __device__ __forceinline__ void run(const attention_schedule &schedule)
    {
        attention_cursor cursor = cursor_begin();
        attention_segment segment;
        if (warpgroup == 1)
            sm90::named_arrive(TURN, CONSUMERS * WARPGROUP);
        while (next_segment<KEYS>(a.call, schedule, gridDim.x, blockIdx.x, &cursor, &segment)) {
            load_queries(segment.tile);
            first_tile(segment);
            int tiles = segment.end - segment.begin - 1;
            if (k.stage() == 1 && tiles > 0) {
                next_tile<1>();
                tiles--;
            }
#pragma unroll 1
            for (; tiles > 1; tiles -= 2) { /* the stage is a constant everywhere */
                next_tile<0>();
                next_tile<1>();
            }
            if (tiles > 0)
                next_tile<0>();
            last_values();
            if (segment.slot < 0)
                f.store(a.call, segment.tile, warpgroup * WARPGROUP + thread, DIM);
            else
                store_piece(segment.slot);
        }
        if (warpgroup == 0)
            sm90::named_sync(TURN, CONSUMERS * WARPGROUP);
    }
};

#endif

/* Grid: a thread block a multiprocessor, each of THREADS threads and memory<DIM>::BYTES of dynamic shared memory (162
 * KiB for DIM 128). Writes out and lse of the rows it attends alone, pieces of the others. */
template <typename T, int DIM> __global__ void __launch_bounds__(THREADS, 1) attend(const __grid_constant__ arguments a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using mem = memory<DIM>;
    extern __shared__ char shared[];
    const uint32_t unaligned = sm90::shared_address(shared), base = (unaligned + 1023) / 1024 * 1024;
    char *bytes = shared + (base - unaligned);
    const uint32_t barriers = base + mem::BARRIERS;
    const ring k = {barriers, barriers + 8 * STAGES, 0}, v = {barriers + 16 * STAGES, barriers + 24 * STAGES, 0};
    if (threadIdx.x == 0) {
        sm90::prefetch_map(&a.own.pool);
        for (int stage = 0; stage < STAGES; stage++) {
            sm90::barrier_init(k.full + 8 * stage, 1);
            sm90::barrier_init(v.full + 8 * stage, 1);
            sm90::barrier_init(k.empty + 8 * stage, CONSUMERS * WARPGROUP / WARP);
            sm90::barrier_init(v.empty + 8 * stage, CONSUMERS * WARPGROUP / WARP);
        }
        sm90::barrier_init_fence();
    }
    const attention_schedule schedule =
        make_schedule<KEYS>(a.call, gridDim.x, reinterpret_cast<int *>(bytes + mem::OFFSETS)); /* synchronises */
    const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / WARPGROUP, 0);
    if (warpgroup == 0) {
        sm90::give_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x < WARP)
            producer<DIM>{a, base, k, v}.run(schedule, static_cast<int>(threadIdx.x));
    } else {
        sm90::take_registers<CONSUMER_REGISTERS>();
        const int thread = static_cast<int>(threadIdx.x) % WARPGROUP;
        const float scale_log2 = a.call.scale * static_cast<float>(M_LOG2E);
        const uint32_t queries = sm90::matrix_descriptor(base + (warpgroup - 1) * mem::CHUNKS * mem::Q_CHUNK, 0);
        const uint32_t keys = sm90::matrix_descriptor(base + mem::K, 0);
        const uint32_t values = sm90::matrix_descriptor(base + mem::V, mem::TILE_CHUNK);
        consumer<T, DIM>{a, base, bytes, warpgroup - 1, thread, k, v, queries, keys, values, scale_log2, {}}.run(
            schedule);
    }
#else
    (void)a;
    __trap(); /* another architecture's build of it; the backend does not come here */
#endif
}

/* Grid: [DIM / 8] columns of eight, [2 * shared tiles] warpgroups. A thread has the results its twin in `attend` had.
 */
template <typename T, int DIM> __global__ void __launch_bounds__(WARPGROUP) merge(const __grid_constant__ arguments a)
{
    __shared__ int offsets[MAX_REMAINDER + 1];
    const int workers = a.own.multiprocessors, thread = static_cast<int>(threadIdx.x), column = blockIdx.x;
    const int shared = blockIdx.y / CONSUMERS, warpgroup = blockIdx.y % CONSUMERS;
    const attention_schedule schedule = make_schedule<KEYS>(a.call, workers, offsets);
    const int begin = offsets[shared], end = offsets[shared + 1];
    const int first = share_of(schedule, begin), last = share_of(schedule, end - 1);
    if (first == last)
        return; /* whole, and stored */
    const attention_tile tile = tile_of(a.call, schedule.row_tiles, schedule.rounds * workers + shared);
    for (int r = 0; r < 2; r++) {
        const int piece_row = warpgroup * WARPGROUP_ROWS + fragment_row(thread) + 8 * r,
                  row = tile.first_row + piece_row;
        if (row >= packed_rows(a.call))
            continue;
        float top = -INFINITY, sum = 0;
        float2 value = make_float2(0, 0);
#pragma unroll 8
        for (int share = first; share <= last; share++) {
            const int slot = piece_slot(share, share_begin(schedule, share) > begin);
            top = fmaxf(top, piece_sums<DIM>(a, slot)[piece_row].x);
        }
        const float offset = top == -INFINITY ? 0 : top;
#pragma unroll 8
        for (int share = first; share <= last; share++) {
            const int slot = piece_slot(share, share_begin(schedule, share) > begin);
            const float2 sums = piece_sums<DIM>(a, slot)[piece_row];
            const float4 values = piece_values<DIM>(a, slot, warpgroup, column)[thread];
            const float weight = exp2f(sums.x - offset);
            sum += weight * sums.y;
            value.x += weight * (r == 0 ? values.x : values.z);
            value.y += weight * (r == 0 ? values.y : values.w);
        }
        const row_place place = place_of(a.call, tile, row);
        T *out = out_row<T>(a.call, place) + 8 * column + fragment_column(thread);
        *reinterpret_cast<uint32_t *>(out) = pack<T>(value.x / sum, value.y / sum);
        if (a.call.lse != nullptr && column == 0 && thread % 4 == 0)
            a.call.lse[place.token * a.call.q_heads + place.head] = (offset + log2f(sum)) * static_cast<float>(M_LN2);
    }
}

struct variant {
    void (*attend)(arguments);
    void (*merge)(arguments);
    int shared_bytes;
};

template <typename T, int DIM> constexpr variant make_variant()
{
    return {attend<T, DIM>, merge<T, DIM>, memory<DIM>::BYTES};
}

const variant variants[2][2] = {{make_variant<__nv_bfloat16, 64>(), make_variant<__nv_bfloat16, 128>()},
                                {make_variant<__half, 64>(), make_variant<__half, 128>()}};

} // namespace

int64_t ckv_paged_attention_sm90_workspace_bytes(int32_t multiprocessors, int32_t head_dim)
{
    return static_cast<int64_t>(2) * multiprocessors * TILE_ROWS *
           (head_dim * static_cast<int64_t>(sizeof(float)) + static_cast<int64_t>(sizeof(float2)));
}

ckv_status ckv_paged_attention_sm90_prepare(void)
{
    for (const auto &of_type : variants)
        for (const variant &v : of_type)
            CKV_TRY(ckv_cuda_status(
                cudaFuncSetAttribute(v.attend, cudaFuncAttributeMaxDynamicSharedMemorySize, v.shared_bytes),
                "paged_attention: cudaFuncSetAttribute"));
    return CKV_OK;
}

ckv_status ckv_paged_attention_sm90_cuda(const ckv_paged_attention_params *params, const ckv_paged_attention_sm90 *sm90,
                                         ckv_stream stream)
{
    const variant &v = variants[params->dtype == CKV_FP16][params->head_dim == 128];
    const arguments a = {*params, *sm90};
    const int workers = sm90->multiprocessors, remainder = count_tiles(*params) % workers;
    v.attend<<<workers, THREADS, v.shared_bytes, stream>>>(a);
    CKV_TRY(ckv_cuda_status(cudaGetLastError(), "paged_attention: launch"));
    if (remainder == 0)
        return CKV_OK;
    const dim3 grid(static_cast<unsigned>(params->head_dim / 8), static_cast<unsigned>(CONSUMERS * remainder));
    v.merge<<<grid, WARPGROUP, 0, stream>>>(a);
    return ckv_cuda_status(cudaGetLastError(), "paged_attention: merge launch");
}
