/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions of sm_90a that have no name in CUDA C: barriers with transaction counts, tensor-map copies,
 * warpgroup matrix products. Shared memory is named by its 32-bit address. */
#ifndef CKV_KERNELS_PAGED_ATTENTION_SM90_CUH
#define CKV_KERNELS_PAGED_ATTENTION_SM90_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace ckv
{
namespace sm90
{

__device__ __forceinline__ uint32_t shared_address(const void *memory)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

/* mbarrier */
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Until the phase of this parity has ended. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "wait:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni finish;\n"
                 "bra.uni wait;\n"
                 "finish:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Named barriers: `sync` waits until `threads` have come, `arrive` only counts. */
__device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Ordinary stores to shared memory before this are seen by copies and matrix products after the next barrier. */
__device__ __forceinline__ void async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int REGISTERS> __device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* One box of a 3-D tensor map. */
__device__ __forceinline__ void copy_box(const CUtensorMap *map, uint32_t destination, uint32_t barrier, int x, int y,
                                         int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4}], [%5];" ::"r"(destination),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* The low half of the descriptor of a matrix in shared memory with the 128-byte swizzle: rows of 128 bytes in groups of
 * eight, 1024 bytes apart, which is what the high half says. Along rows longer than 128 bytes the next 128 bytes are
 * `row_chunk_bytes` further; only operands whose rows are not the summed dimension use it. A matrix that begins n bytes
 * further has a descriptor that is n / 16 larger. */
__device__ __forceinline__ uint32_t matrix_descriptor(uint32_t address, uint32_t row_chunk_bytes)
{
    return (address & 0x3ffff) >> 4 | row_chunk_bytes >> 4 << 16;
}
#define CKV_DESCRIPTOR_HIGH "0x40000040" /* groups of 1024 bytes in 16ths, 128-byte swizzle */

__device__ __forceinline__ void matrix_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void matrix_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most `PENDING` groups of products run. */
template <int PENDING> __device__ __forceinline__ void matrix_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* What is computed before this stays before the volatile instructions after it, and the other way round: the compiler
 * does not know that a product writes its results late. */
template <int COUNT> __device__ __forceinline__ void pin(float (&values)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(values[i])::"memory");
}

/* Operand lists of the matrix products. */
#define CKV_D8(d, i)                                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define CKV_D32(d, i) CKV_D8(d, i), CKV_D8(d, i + 8), CKV_D8(d, i + 16), CKV_D8(d, i + 24)
#define CKV_R32                                                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
    "%30,%31"
#define CKV_R64                                                                                                        \
    CKV_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"    \
            "%57,%58,%59,%60,%61,%62,%63"

/* d[64 x N] (+)= a[64 x 16] * b[N x 16]^T, both in shared memory with rows along the summed dimension. */
#define CKV_SCORES(N, TYPE, REGISTERS, A, B, ADD, ...)                                                                 \
    asm volatile("{\n.reg .pred add;\n.reg .b64 a, b;\n"                                                               \
                 "mov.b64 a, {%" A ", " CKV_DESCRIPTOR_HIGH "};\nmov.b64 b, {%" B ", " CKV_DESCRIPTOR_HIGH "};\n"      \
                 "setp.ne.b32 add, %" ADD ", 0;\n"                                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" REGISTERS                         \
                 "}, a, b, add, 1, 1, 0, 0;\n}"                                                                        \
                 : __VA_ARGS__                                                                                         \
                 : "r"(a), "r"(b), "n"(ADDS))

template <typename T, int ADDS> __device__ __forceinline__ void scores(float (&d)[64], uint32_t a, uint32_t b)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        CKV_SCORES("128", "bf16", CKV_R64, "64", "65", "66", CKV_D32(d, 0), CKV_D32(d, 32));
    else
        CKV_SCORES("128", "f16", CKV_R64, "64", "65", "66", CKV_D32(d, 0), CKV_D32(d, 32));
}

/* The same with a in registers. */
#define CKV_SCORES_OF(N, TYPE, REGISTERS, A0, A1, A2, A3, B, ADD, ...)                                                 \
    asm volatile("{\n.reg .pred add;\n.reg .b64 b;\nmov.b64 b, {%" B ", " CKV_DESCRIPTOR_HIGH "};\n"                   \
                 "setp.ne.b32 add, %" ADD ", 0;\n"                                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" REGISTERS "}, {%" A0 ",%" A1      \
                 ",%" A2 ",%" A3 "}, b, add, 1, 1, 0;\n}"                                                              \
                 : __VA_ARGS__                                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(ADDS))

template <typename T, int ADDS> __device__ __forceinline__ void scores_of(float (&d)[64], const uint32_t *a, uint32_t b)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        CKV_SCORES_OF("128", "bf16", CKV_R64, "64", "65", "66", "67", "68", "69", CKV_D32(d, 0), CKV_D32(d, 32));
    else
        CKV_SCORES_OF("128", "f16", CKV_R64, "64", "65", "66", "67", "68", "69", CKV_D32(d, 0), CKV_D32(d, 32));
}

/* d[64 x N] += a[64 x 16] * b[16 x N], a in registers, b in shared memory with rows of N. */
#define CKV_VALUES(N, TYPE, REGISTERS, A0, A1, A2, A3, B, ...)                                                         \
    asm volatile("{\n.reg .pred add;\n.reg .b64 b;\nmov.b64 b, {%" B ", " CKV_DESCRIPTOR_HIGH "};\n"                   \
                 "setp.ne.b32 add, 1, 0;\n"                                                                            \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" REGISTERS "}, {%" A0 ",%" A1      \
                 ",%" A2 ",%" A3 "}, b, add, 1, 1, 1;\n}"                                                              \
                 : __VA_ARGS__                                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b))

template <typename T> __device__ __forceinline__ void values(float (&d)[64], const uint32_t *a, uint32_t b)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        CKV_VALUES("128", "bf16", CKV_R64, "64", "65", "66", "67", "68", CKV_D32(d, 0), CKV_D32(d, 32));
    else
        CKV_VALUES("128", "f16", CKV_R64, "64", "65", "66", "67", "68", CKV_D32(d, 0), CKV_D32(d, 32));
}

template <typename T> __device__ __forceinline__ void values(float (&d)[32], const uint32_t *a, uint32_t b)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        CKV_VALUES("64", "bf16", CKV_R32, "32", "33", "34", "35", "36", CKV_D32(d, 0));
    else
        CKV_VALUES("64", "f16", CKV_R32, "32", "33", "34", "35", "36", CKV_D32(d, 0));
}

} // namespace sm90
} // namespace ckv

#endif
