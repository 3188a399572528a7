/* SPDX-License-Identifier: Apache-2.0 */
/* Positions to pages. tokens_per_page is a power of two, so this is a shift and a mask; a kernel pays a hundred
 * instructions for a 64-bit division. */
#ifndef CKV_LAYOUT_PAGES_H
#define CKV_LAYOUT_PAGES_H

#include <stdint.h>

#if defined(__CUDACC__)
#define CKV_HOST_DEVICE __host__ __device__
#else
#define CKV_HOST_DEVICE
#endif

static inline CKV_HOST_DEVICE int64_t ckv_page_of(int64_t position, int64_t tokens_per_page)
{
#if defined(__CUDA_ARCH__)
    return position >> (__ffsll(tokens_per_page) - 1);
#else
    return position >> __builtin_ctzll((unsigned long long)tokens_per_page);
#endif
}

static inline CKV_HOST_DEVICE int64_t ckv_in_page(int64_t position, int64_t tokens_per_page)
{
    return position & (tokens_per_page - 1);
}

#endif
