/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rotate_rows/rotate_rows.h"

#include "lib/support/error.h"

#include <inttypes.h>
#include <string.h>

enum { HELD_BYTES = 1024 };

static void reverse(char *row, int64_t begin, int64_t end, size_t bytes)
{
    char held[16];
    for (end--; begin < end; begin++, end--) {
        char *left = row + begin * (int64_t)bytes;
        char *right = row + end * (int64_t)bytes;
        memcpy(held, left, bytes);
        memcpy(left, right, bytes);
        memcpy(right, held, bytes);
    }
}

/* Rotate right by 0 < shift < columns. What a short shift pushes over the edge waits aside while the rest moves. */
static void rotate(char *row, int64_t columns, int64_t shift, size_t bytes)
{
    char held[HELD_BYTES];
    size_t right = (size_t)shift * bytes, left = (size_t)(columns - shift) * bytes; /* how far each way */
    if (right <= sizeof held) {
        memcpy(held, row + left, right);
        memmove(row + right, row, left);
        memcpy(row, held, right);
    } else if (left <= sizeof held) {
        memcpy(held, row, left);
        memmove(row, row + left, right);
        memcpy(row + right, held, left);
    } else {
        reverse(row, 0, columns, bytes);
        reverse(row, 0, shift, bytes);
        reverse(row, shift, columns, bytes);
    }
}

ckv_status ckv_rotate_rows_host(const ckv_rotate_rows_params *params, ckv_stream stream)
{
    (void)stream;
    int64_t bytes = params->element_bytes;
    if (bytes < 1 || bytes > 16 || (bytes & (bytes - 1)) != 0)
        return ckv_fail(CKV_ERROR_INVALID, "rotate_rows: element_bytes is %" PRId64 "; it must be 1, 2, 4, 8 or 16",
                        bytes);
    if (params->rows < 0 || params->columns < 0)
        return ckv_fail(CKV_ERROR_INVALID, "rotate_rows: shape [%" PRId64 ", %" PRId64 "] is negative", params->rows,
                        params->columns);
    if (params->rows == 0 || params->columns <= 1)
        return CKV_OK;
    int64_t shift = params->shift % params->columns;
    if (shift < 0)
        shift += params->columns;
    for (int64_t i = 0; i < params->rows && shift != 0; i++)
        rotate((char *)params->data + i * params->row_stride_bytes, params->columns, shift, (size_t)bytes);
    return CKV_OK;
}
