/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/exchange_heads/exchange_heads.h"

#include "lib/support/mutant.h"

#include <string.h>

static void exchange_chunk(const ckv_exchange_tensor *tensor, int64_t chunk, int64_t chunks, int pack)
{
    char *packed_chunk = (char *)tensor->packed + chunk * tensor->chunk_stride_bytes;
    int64_t slice = CKV_MUTANT(slice_of_a_neighbour) ? (chunk + pack) % chunks : chunk;
    int64_t first_head = CKV_MUTANT(kv_head_of_another_group) && tensor->heads < chunks
                             ? slice % tensor->heads
                             : slice * tensor->heads / chunks + tensor->first_head;
    char *first = (char *)tensor->tensor + first_head * tensor->head_stride_bytes;
    for (int64_t token = 0; token < tensor->chunk_tokens; token++) {
        for (int64_t head = 0; head < tensor->chunk_heads; head++) {
            int64_t at = token * tensor->chunk_heads + head;
            if ((pack && CKV_MUTANT(head_major_there)) || (!pack && CKV_MUTANT(head_major_back)))
                at = head * tensor->chunk_tokens + token;
            char *packed = packed_chunk + at * tensor->row_bytes;
            char *row = first + token * tensor->token_stride_bytes + head * tensor->head_stride_bytes;
            if (pack)
                memcpy(packed, row, (size_t)tensor->row_bytes);
            else
                memcpy(row, packed, (size_t)tensor->row_bytes);
        }
    }
}

ckv_status ckv_exchange_heads_host(const ckv_exchange_heads_params *params, ckv_stream stream)
{
    (void)stream;
    for (int64_t i = 0; i < params->num_tensors; i++)
        for (int64_t chunk = 0; chunk < params->chunks; chunk++)
            exchange_chunk(&params->tensors[i], chunk, params->chunks, params->pack);
    return CKV_OK;
}
