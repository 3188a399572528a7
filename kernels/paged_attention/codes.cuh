/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of e4m3 codes: every code is an exact value of fp16 and of bf16, so widening loses nothing. */
#ifndef CKV_KERNELS_PAGED_ATTENTION_CODES_CUH
#define CKV_KERNELS_PAGED_ATTENTION_CODES_CUH

#include "kernels/paged_attention/fragment.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace ckv
{

/* Two codes as the two halves of a register, the first one low; one instruction for fp16 on compute capability 8.9 and
 * newer. */
template <typename T> __device__ __forceinline__ uint32_t widen_pair(uint16_t codes);
template <> __device__ __forceinline__ uint32_t widen_pair<__half>(uint16_t codes)
{
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
    return pair.x | static_cast<uint32_t>(pair.y) << 16;
}
template <> __device__ __forceinline__ uint32_t widen_pair<__nv_bfloat16>(uint16_t codes)
{
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
    return pack<__nv_bfloat16>(__half2float(__half(__half_raw{pair.x})), __half2float(__half(__half_raw{pair.y})));
}

/* Eight codes. */
template <typename T> __device__ __forceinline__ uint4 widen(uint2 codes)
{
    return {widen_pair<T>(static_cast<uint16_t>(codes.x)), widen_pair<T>(static_cast<uint16_t>(codes.x >> 16)),
            widen_pair<T>(static_cast<uint16_t>(codes.y)), widen_pair<T>(static_cast<uint16_t>(codes.y >> 16))};
}

} // namespace ckv

#endif
