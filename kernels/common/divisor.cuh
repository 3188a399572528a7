/* SPDX-License-Identifier: Apache-2.0 */
/* Division by a number that the host knows: a multiplication and a shift. */
#ifndef CKV_KERNELS_DIVISOR_CUH
#define CKV_KERNELS_DIVISOR_CUH

#include <cstdint>

namespace ckv
{

struct divisor {
    uint32_t magic; /* ceil(2^shift / d), and 2^(shift - 31) >= d: exact for numbers below 2^31 */
    uint32_t shift;
};

inline divisor divisor_of(uint32_t d)
{
    uint32_t shift = 31;
    while ((uint64_t{1} << (shift - 31)) < d)
        shift++;
    return {static_cast<uint32_t>(((uint64_t{1} << shift) + d - 1) / d), shift};
}

__host__ __device__ inline uint32_t divide(uint32_t n, divisor d)
{
    return static_cast<uint32_t>(static_cast<uint64_t>(n) * d.magic >> d.shift);
}

} // namespace ckv

#endif
