/* SPDX-License-Identifier: Apache-2.0 */
/* Three warpgroups of a thread block: one warp of the first copies K and V, the other two attend 64 packed rows each.
 * Where pages hold e4m3 codes, they are copied as they are, and the other three warps of the first widen them to tiles
 * of fp16, whose range and precision hold every code exactly; queries are fp16 then too, each row times a power of two
 * that brings its largest element near the top of the range, and the weights lose less than they do in bf16. Scales of
 * heads meet the scores and the results.
 *
 * Keys come in tiles of KEYS, the row's last tile first, so that only a segment's first tile can hold keys past the
 * end. Every warpgroup has two products in flight, the scores of the next tile and the values of this one; named
 * barriers let the two warpgroups issue them in turns, so that one's softmax runs while the tensor cores work for the
 * other. */
#include "kernels/paged_attention/fragment.cuh"
#include "kernels/paged_attention/sm90_pipeline.cuh"

namespace
{

using namespace ckv;
using namespace ckv::sm90;

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

template <typename T, int DIM, bool CODES> struct consumer {
    using mem = memory<DIM, CODES>;
    using element = typename std::conditional<CODES, __half, T>::type; /* of the products */
    const arguments &a;
    uint32_t base;
    char *bytes; /* at base */
    int warpgroup, thread;
    ring<STAGES> k, v;
    uint32_t queries, keys, values; /* descriptors; of stage 0 */
    float scale_log2;
    fragment<element, KEYS, DIM> f;
    /* CODES: this thread's part of Q as first operands. Widening takes so much of the bandwidth of shared memory that
     * reading Q there for every tile costs more than the registers. */
    uint32_t own_queries[DIM / 4];
    float row_scales[2]; /* CODES: those of the thread's two rows, instead of scale_log2 */

    __device__ __forceinline__ float scale_of_row(int r) const
    {
        if constexpr (CODES)
            return row_scales[r];
        else
            return scale_log2;
    }

    /* Eight elements of Q as fp16 times a power of two, the same for a row: the largest one of it comes to 2^14 or more
     * and below 2^15, so only what is 2^-39 of it and less is lost. Leaves what undoes the power. The lanes of a row
     * are neighbours and call together. */
    __device__ __forceinline__ uint4 fit_query(uint4 vector, float *undo)
    {
        float values[8], largest = 0;
        uint32_t halves[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const unsigned short bits = static_cast<unsigned short>(halves[i / 2] >> (i % 2 * 16));
            values[i] = static_cast<float>(*reinterpret_cast<const T *>(&bits));
            largest = fmaxf(largest, fabsf(values[i]));
        }
        for (int step = 1; step < DIM / 8; step *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
        const int exponent = __float_as_int(largest) >> 23; /* and 127; 255: infinite */
        const int power = exponent == 255 ? 127 : min(127 + 14 + 127 - exponent, 253);
        const float factor = __int_as_float(power << 23);
        *undo = __int_as_float((254 - power) << 23);
#pragma unroll
        for (int i = 0; i < 4; i++)
            halves[i] = pack<__half>(values[2 * i] * factor, values[2 * i + 1] * factor);
        return {halves[0], halves[1], halves[2], halves[3]};
    }

    __device__ __forceinline__ float *factors() const
    {
        return reinterpret_cast<float *>(bytes + mem::FACTORS) + warpgroup * WARPGROUP_ROWS;
    }

    /* From where load_queries has left them. */
    __device__ __forceinline__ void take_queries(const attention_tile &tile)
    {
        const float scale = scale_log2 * __ldg(a.call.k_scales + tile.kv_head);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = fragment_row(thread) + 8 * r;
            row_scales[r] = factors()[row] * scale;
#pragma unroll
            for (int vector = 0; vector < DIM / 8; vector++) {
                const int chunk = (warpgroup * mem::CHUNKS + vector / 8) * mem::Q_CHUNK;
                own_queries[2 * vector + r] = *reinterpret_cast<const uint32_t *>(
                    bytes + chunk + row * ROW_BYTES + (vector ^ row) % 8 * 16 + 2 * fragment_column(thread));
            }
        }
    }

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
            if constexpr (CODES)
                loaded[i] = fit_query(loaded[i], factors() + row);
            *reinterpret_cast<uint4 *>(bytes + chunk + row * ROW_BYTES + (vector ^ row) % 8 * 16) = loaded[i];
        }
        sm90::async_fence();
        sm90::named_sync(GROUP + warpgroup, WARPGROUP);
        if constexpr (CODES)
            take_queries(tile);
    }

    /* 16 dimensions. */
    template <int ADDS> __device__ __forceinline__ void multiply_step(int i, uint32_t key)
    {
        const int chunk = i / 4, step = i % 4 * 32;
        const uint32_t at = key + ((chunk * mem::TILE_CHUNK + step) >> 4);
        if constexpr (CODES)
            sm90::scores_of<element, ADDS>(f.scores, own_queries + 4 * i, at);
        else
            sm90::scores<element, ADDS>(f.scores, queries + ((chunk * mem::Q_CHUNK + step) >> 4), at);
    }

    __device__ __forceinline__ void multiply_keys(uint32_t stage)
    {
        const uint32_t key = keys + stage * (mem::TILE >> 4);
        multiply_step<0>(0, key);
#pragma unroll
        for (int i = 1; i < DIM / 16; i++)
            multiply_step<1>(i, key);
        sm90::matrix_commit();
    }

    __device__ __forceinline__ void multiply_values(uint32_t stage)
    {
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++)
            sm90::values<element>(f.values, f.weights + 4 * i,
                                  values + ((stage * mem::TILE + i * 16 * ROW_BYTES) >> 4));
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
        if (!CODES && count < KEYS && count % BOX != 0) {
            v.wait_full();
            clear_values(count);
        }
        f.softmax(0, scale_of_row(0));
        f.softmax(1, scale_of_row(1));
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
        const float offset0 = f.take_maximum(0, scale_of_row(0)), offset1 = f.take_maximum(1, scale_of_row(1));
        f.weigh(0, scale_of_row(0), offset0);
        keep_order(f.sum[0] + offset1);
        sm90::matrix_wait<0>();
        sm90::pin(f.values);
        v.release();
        f.round_weights(0);
        f.weigh(1, scale_of_row(1), offset1);
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

    __device__ __forceinline__ void store_all(const attention_tile &tile)
    {
        const int of_tile = warpgroup * WARPGROUP + thread;
        if constexpr (CODES) {
            const float scales[2] = {row_scales[0] * static_cast<float>(M_LN2),
                                     row_scales[1] * static_cast<float>(M_LN2)};
            f.template store<T>(a.call, tile, of_tile, DIM, scales, __ldg(a.call.v_scales + tile.kv_head));
        } else {
            const float scales[2] = {a.call.scale, a.call.scale};
            f.template store<T>(a.call, tile, of_tile, DIM, scales, 1);
        }
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
                    make_float2(f.maximum[r] * scale_of_row(r), f.sum[r]);
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
                store_all(segment.tile);
            else
                store_piece(segment.slot);
        }
        if (warpgroup == 0)
            sm90::named_sync(TURN, CONSUMERS * WARPGROUP);
    }
};

#endif

/* Grid: a thread block a multiprocessor, each of THREADS threads and memory::BYTES of dynamic shared memory (162 KiB
 * for DIM 128, 227 with codes). Writes out and lse of the rows it attends alone, pieces of the others. */
template <typename T, int DIM, bool CODES>
__global__ void __launch_bounds__(THREADS, 1) attend(const __grid_constant__ arguments a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using mem = memory<DIM, CODES>;
    extern __shared__ char shared[];
    const uint32_t unaligned = sm90::shared_address(shared), base = (unaligned + 1023) / 1024 * 1024;
    char *bytes = shared + (base - unaligned);
    const rings tiles(base + mem::BARRIERS);
    if (threadIdx.x == 0) {
        sm90::prefetch_map(&a.own.pool);
        tiles.k.init(CODES ? WIDENERS : 1, CONSUMERS * WARPGROUP / WARP);
        tiles.v.init(CODES ? WIDENERS : 1, CONSUMERS * WARPGROUP / WARP);
        if (CODES)
            tiles.codes.init(1, WIDENERS);
        sm90::barrier_init_fence();
    }
    const attention_schedule schedule =
        make_schedule<KEYS>(a.call, gridDim.x, reinterpret_cast<int *>(bytes + mem::OFFSETS)); /* synchronises */
    const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / WARPGROUP, 0);
    if (warpgroup == 0) {
        sm90::give_registers<PRODUCER_REGISTERS>();
        const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / WARP, 0);
        const int lane = static_cast<int>(threadIdx.x) % WARP;
        if (warp == 0)
            producer<DIM, CODES>{a, base, tiles}.run(schedule, lane);
        else if constexpr (CODES)
            widener<DIM>(bytes, tiles, lane).run(a, schedule, warp - 1, lane);
    } else {
        sm90::take_registers<CONSUMER_REGISTERS>();
        const int thread = static_cast<int>(threadIdx.x) % WARPGROUP;
        const float scale_log2 = a.call.scale * static_cast<float>(M_LOG2E);
        const uint32_t queries = sm90::matrix_descriptor(base + (warpgroup - 1) * mem::CHUNKS * mem::Q_CHUNK, 0);
        const uint32_t keys = sm90::matrix_descriptor(base + mem::K, 0);
        const uint32_t values = sm90::matrix_descriptor(base + mem::V, mem::TILE_CHUNK);
        consumer<T, DIM, CODES>{a,       base, bytes,  warpgroup - 1, thread, tiles.k, tiles.v,
                                queries, keys, values, scale_log2,    {},     {},      {}}
            .run(schedule);
    }
#else
    (void)a;
    __trap(); /* another architecture's build of it; the backend does not come here */
#endif
}

/* Grid: [DIM / 8] columns of eight, [2 * shared tiles] warpgroups. A thread has the results its twin in `attend` had.
 */
template <typename T, int DIM, bool CODES>
__global__ void __launch_bounds__(WARPGROUP) merge(const __grid_constant__ arguments a)
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
        const float value_scale = CODES ? a.call.v_scales[tile.kv_head] : 1;
        *reinterpret_cast<uint32_t *>(out) = pack<T>(value.x / sum * value_scale, value.y / sum * value_scale);
        if (a.call.lse != nullptr && column == 0 && thread % 4 == 0)
            a.call.lse[place.token * a.call.q_heads + place.head] = (offset + log2f(sum)) * static_cast<float>(M_LN2);
    }
}

struct variant {
    void (*attend)(arguments);
    void (*merge)(arguments);
    int shared_bytes;
};

template <typename T, int DIM, bool CODES> constexpr variant make_variant()
{
    return {attend<T, DIM, CODES>, merge<T, DIM, CODES>, memory<DIM, CODES>::BYTES};
}

/* By type of q and out, by head size. */
template <bool CODES>
constexpr variant variants[2][2] = {
    {make_variant<__nv_bfloat16, 64, CODES>(), make_variant<__nv_bfloat16, 128, CODES>()},
    {make_variant<__half, 64, CODES>(), make_variant<__half, 128, CODES>()}};

ckv_status allow_shared_memory(const variant (&all)[2][2])
{
    for (const auto &of_type : all)
        for (const variant &v : of_type)
            CKV_TRY(ckv_cuda_status(
                cudaFuncSetAttribute(v.attend, cudaFuncAttributeMaxDynamicSharedMemorySize, v.shared_bytes),
                "paged_attention: cudaFuncSetAttribute"));
    return CKV_OK;
}

} // namespace

int64_t ckv_paged_attention_sm90_workspace_bytes(int32_t multiprocessors, int32_t head_dim)
{
    return static_cast<int64_t>(2) * multiprocessors * TILE_ROWS *
           (head_dim * static_cast<int64_t>(sizeof(float)) + static_cast<int64_t>(sizeof(float2)));
}

ckv_status ckv_paged_attention_sm90_prepare(void)
{
    CKV_TRY(allow_shared_memory(variants<false>));
    return allow_shared_memory(variants<true>);
}

ckv_status ckv_paged_attention_sm90_cuda(const ckv_paged_attention_params *params, const ckv_paged_attention_sm90 *sm90,
                                         ckv_stream stream)
{
    const int type = params->dtype == CKV_FP16, wide = params->head_dim == 128;
    const variant &v = params->k_scales != nullptr ? variants<true>[type][wide] : variants<false>[type][wide];
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
