/* SPDX-License-Identifier: Apache-2.0 */
/* paged_attention: attend every causal block of a forward over its row of the page table, in one launch. No mask but
 * the row's end; whatever lies past it, NaN included, has no influence. Query heads that share a K/V head are packed:
 * packed row r of a block is its token r / group, query head kv_head * group + r % group. Two kernels with one
 * contract:
 *
 * portable: mma.sync, any page size, head_dim a multiple of 8 up to 128; compute capability 8.0 and newer.
 * sm90:     tensor-map copies and wgmma, head_dim 64 or 128, pages of 32 tokens and more; compute capability 9.0. */
#ifndef CKV_KERNELS_PAGED_ATTENTION_H
#define CKV_KERNELS_PAGED_ATTENTION_H

#include <ckv/types.h>
#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CKV_PAGED_ATTENTION_MAX_HEAD_DIM = 128 };

typedef struct ckv_paged_attention_params {
    ckv_dtype dtype; /* bf16 or fp16: q and out, K and V too unless there are scales */
    int32_t head_dim;
    int32_t q_heads, kv_heads; /* q_heads a multiple of kv_heads */
    int32_t num_blocks;        /* causal blocks, each block_size tokens of q and out */
    int32_t block_size;
    int32_t tokens_per_page; /* a power of two */
    int32_t row_pages;
    const int32_t *rows;       /* [num_blocks, row_pages] page ids */
    const int32_t *seq_len_kv; /* [num_blocks], each at least 1 */
    const void *q;             /* [num_blocks * block_size, q_heads, head_dim]; strides in elements, multiples of 8; */
    int64_t q_token_stride, q_head_stride; /* q and out aligned to 16 bytes */
    void *out;
    int64_t out_token_stride, out_head_stride;
    float *lse;     /* NULL, or [num_blocks * block_size, q_heads]: log of the sum of exp of the scaled scores */
    const void *kv; /* of one layer: K of page p, head h, slot s at + p * page_stride + h * head_stride + s *
                       slot_stride bytes, V at + kv_stride; aligned to 16 bytes, of codes to 8 */
    int64_t page_stride, kv_stride, head_stride, slot_stride;
    float scale;                      /* positive */
    const float *k_scales, *v_scales; /* NULL, or [kv_heads] on the device: K and V are e4m3 codes times these */
} ckv_paged_attention_params;

ckv_status ckv_paged_attention_portable_cuda(const ckv_paged_attention_params *params, ckv_stream stream);

/* What the sm90 kernel needs besides, made once for a pool and a device. */
typedef struct ckv_paged_attention_sm90 {
    CUtensorMap pool;               /* [planes][tokens_per_page][head_dim], a plane a page of one head, of K or of V;
                                       of codes in boxes of head_dim, unswizzled */
    int32_t planes;                 /* in the pool */
    int32_t first_plane;            /* K of page 0, head 0 of the call; page p, head h at + p * page_planes + h */
    int32_t multiprocessors;        /* thread blocks launched; at most CKV_PAGED_ATTENTION_MAX_MULTIPROCESSORS */
    void *workspace;                /* partial results; one forward at a time may use it */
    int32_t page_planes, kv_planes; /* from page to page; from K to V */
} ckv_paged_attention_sm90;

enum {
    CKV_PAGED_ATTENTION_MAX_MULTIPROCESSORS = 256,
    CKV_PAGED_ATTENTION_BOX_TOKENS = 32,   /* a copy's, so the smallest page */
    CKV_PAGED_ATTENTION_BOX_ELEMENTS = 64, /* 128 bytes, one row of the swizzle */
};

int64_t ckv_paged_attention_sm90_workspace_bytes(int32_t multiprocessors, int32_t head_dim);

/* Allow the kernels of the current device the shared memory they take. */
ckv_status ckv_paged_attention_sm90_prepare(void);

ckv_status ckv_paged_attention_sm90_cuda(const ckv_paged_attention_params *params, const ckv_paged_attention_sm90 *sm90,
                                         ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
