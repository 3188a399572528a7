/* SPDX-License-Identifier: Apache-2.0 */
/* rotate_rows: rotate every row of a [rows, columns] array in place, like torch.roll along the last dimension:
 * column c moves to (c + shift) mod columns. */
#ifndef CKV_KERNELS_ROTATE_ROWS_H
#define CKV_KERNELS_ROTATE_ROWS_H

#include <ckv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_rotate_rows_params {
    void *data;
    int64_t rows;
    int64_t columns;
    int64_t element_bytes;    /* 1, 2, 4, 8 or 16 */
    int64_t row_stride_bytes; /* any; may exceed the row */
    int64_t shift;            /* any value, negative rotates left */
} ckv_rotate_rows_params;

/* No rows or at most one column: nothing to do, no launch. ERROR_INVALID. */
ckv_status ckv_rotate_rows_host(const ckv_rotate_rows_params *params, ckv_stream stream);
ckv_status ckv_rotate_rows_cuda(const ckv_rotate_rows_params *params, ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
