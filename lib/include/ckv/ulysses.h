/* SPDX-License-Identifier: Apache-2.0 */
/* Ulysses sequence parallelism over the cache: outside attention a rank holds a shard of the tokens with all heads,
 * inside it holds all tokens with a slice of the heads. */
#ifndef CKV_ULYSSES_H
#define CKV_ULYSSES_H

#include <ckv/attention.h>
#include <ckv/cache.h>
#include <ckv/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_ulysses ckv_ulysses;

typedef struct ckv_ulysses_config {
    size_t struct_size;
    int64_t q_heads;  /* over all ranks; a multiple of the ranks and of kv_heads */
    int64_t kv_heads; /* over all ranks; a multiple of the ranks */
    int64_t head_dim;
    ckv_dtype dtype;
    const ckv_device *device; /* NULL: host */
} ckv_ulysses_config;

CKV_API ckv_ulysses_config ckv_ulysses_config_default(void);

/* K/V heads each rank holds: what its cache is built with. ERROR_INVALID, ERROR_UNSUPPORTED with the numbers. */
CKV_NODISCARD CKV_API ckv_status ckv_ulysses_kv_heads_per_rank(const ckv_ulysses_config *config, int ranks,
                                                               int64_t *kv_heads_out);

/* Token rows per rank that a sharder needs for seq_len real tokens: ceil(seq_len / ranks); 0 unless both are
 * positive. */
CKV_API int64_t ckv_ulysses_rows_per_rank(int64_t seq_len, int ranks);

/* A context over `comm` (borrowed; must outlive it). Collective: ranks agree on the config. All state belongs to the
 * context, so several live side by side. ERROR_INVALID, ERROR_UNSUPPORTED (head counts, with the numbers),
 * ERROR_MEMORY, ERROR_COMM, ERROR_TIMEOUT; the same on every rank. */
CKV_NODISCARD CKV_API ckv_status ckv_ulysses_create(ckv_comm *comm, const ckv_ulysses_config *config,
                                                    ckv_ulysses **ulysses_out);
CKV_API void ckv_ulysses_destroy(ckv_ulysses **ulysses);

/* Attention of one forward, sharded. `args` as for ckv_attention, except that q, kv and out are this rank's shard
 * [rows, heads of all ranks, head_dim] with rows the same on every rank and q_heads the count over all ranks; rank r
 * holds token rows [r*rows, (r+1)*rows). seq_len is global: ranks*rows - ranks < seq_len <= ranks*rows. The cache holds
 * the K/V heads of this rank. Rows past seq_len are neither cached nor attended, whatever they hold, and come back
 * zero. lse, if given, is [rows, q_heads] of this rank's shard. ckv_attention_args_set_packed counts the cache's heads,
 * which are one rank's: set the strides of a fused shard by hand.
 * Collective. When one rank must refuse, all return that
 * rank's error before anything is exchanged, and no cache or output has changed: ERROR_INVALID, ERROR_STATE,
 * ERROR_UNSUPPORTED. Ranks whose seq_len, geometry or history differ are refused with ERROR_INVALID. ERROR_COMM,
 * ERROR_TIMEOUT. */
CKV_NODISCARD CKV_API ckv_status ckv_ulysses_attention(ckv_ulysses *ulysses, const ckv_attention_args *args,
                                                       ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
